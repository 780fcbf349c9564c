"""What no server can use is excluded, logged and counted, and the round survives."""

import re

import numpy as np
import pytest
import torch
from tests.support import blobs

import fedveil
from fedveil.aggregate.mean import Mean
from fedveil.aggregate.order import TrimmedMean
from fedveil.core.errors import Aborted
from fedveil.core.flat import Layout
from fedveil.core.intake import faults
from fedveil.core.method import Method
from fedveil.core.parts import MOVE
from fedveil.core.round import Shares, arrive
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.local.rules import FedAvg
from fedveil.privacy.clip import clip
from fedveil.privacy.noise import gaussian
from fedveil.transport.plain import Plain

KINDS = {
    "nan": "not finite",
    "inf": "not finite",
    "wrong_shape": r"shape \(19,\) instead of \(18,\)",
    "silent": "no up",
}


def server_side(rows, instead=None, weights=None, **slots):
    slots = {"aggregate": Mean()} | slots
    method = Method(name="toy", local=FedAvg(), transport=Plain(), **slots)
    n, dim = rows.shape
    weights = torch.full((n,), 1 / n, dtype=torch.float64) if weights is None else weights
    streams = [stream(0, k) for k in range(n)]
    ctx = Context(1, Layout(("w",), ((dim,),)), list(range(10, 10 + n)), streams, server=stream(0, "server"))
    shares = Shares(weights, torch.ones(n, 1), 0.5, 1.0, 1 / n)
    uploads = {MOVE: clip(1.0)(Signal(rows), ctx) if "on_delta" in slots else Signal(rows)}
    return arrive(method, uploads, shares, {"w": torch.zeros(dim)}, ctx, instead), ctx.log


def test_the_others_weights_sum_to_one_without_the_excluded():
    rows = torch.tensor([[1.0, 1.0], [torch.inf, -torch.inf], [3.0, 5.0], [0.0, torch.nan]])
    arrival, log = server_side(rows, weights=torch.tensor([0.2, 0.3, 0.4, 0.1], dtype=torch.float64))
    assert torch.allclose(arrival.server["w"], (0.2 * rows[0] + 0.4 * rows[2]) / 0.6)
    assert arrival.arrived.tolist() == [0, 2]
    assert log["excluded"] == [{"client": 11, "why": "move: not finite"}, {"client": 13, "why": "move: not finite"}]


def test_what_arrives_instead_of_an_upload_is_excluded():
    rows = torch.tensor([[1.0, 2.0], [7.0, 7.0], [7.0, 7.0], [7.0, 7.0]])
    arrival, log = server_side(rows, {1: None, 2: {MOVE: torch.ones(3)}, 3: {MOVE: torch.ones(1, 2)}})
    assert torch.equal(arrival.server["w"], rows[0])
    assert [e["why"] for e in log["excluded"]] == [
        "no upload",
        "move: shape (3,) instead of (2,)",
        "move: shape (1, 2) instead of (2,)",
    ]


def test_nothing_is_excluded_that_is_merely_large():
    rows = torch.full((4, 3), 3e38)
    assert faults({MOVE: Signal(rows)}, {}) == {}


def test_numbers_whose_powers_no_format_holds_are_excluded():
    rows = torch.tensor([[1.0, 2.0], [3.0, -1e61], [3.0, 1e59]], dtype=torch.float64)
    assert faults({MOVE: Signal(rows)}, {}) == {1: "move: not finite"}


@pytest.mark.parametrize("aggregate", ["mean", "krum", "centered_clipping", "adaptive", "source", "geometric_median"])
def test_no_length_of_an_upload_ends_the_run_or_passes_for_calm(tmp_path, aggregate):
    """In float64, where lengths of 1e200 are numbers, and their squares none."""
    rule = {"name": aggregate, "declared_f": 1}
    rule |= {"window": 2, "calibration": 4} if aggregate == "adaptive" else {}
    result = fedveil.run(
        data=blobs(8),
        model="logistic",
        rounds=7,
        cohort=8,
        dtype="float64",
        aggregate=rule,
        attack={"name": "gaussian", "factor": 1e200, "share": 0.13, "onset": 5},
        out=tmp_path / "run",
    )
    assert result.summary["excluded"] == 3 and not any("aborted" in event for event in result.history)
    assert result.summary["accuracy"] > 0.5


def test_a_round_in_which_nothing_can_be_used_is_aborted():
    with pytest.raises(Aborted, match="none of 2 uploads"):
        server_side(torch.full((2, 3), torch.nan))


def test_where_the_cohort_is_a_secret_an_empty_round_looks_like_any_other():
    """Central noise: who took part must not show, so the noise is there whether anybody could be used or not."""
    arrival, log = server_side(torch.zeros(2, 3), {0: None, 1: None}, on_delta=clip(1.0), on_mean=gaussian(1.0))
    assert len(log["excluded"]) == 2 and arrival.arrived.tolist() == []
    assert (arrival.server["w"] != 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["trimmed_mean", "median"])
def test_a_rule_under_noise_at_the_server_survives_too(tmp_path, kind, rule):
    """Its sensitivity was planned for so many rows: zeros stand where nothing usable came, and the bound stays."""
    result = fedveil.run(
        sigma=0.3,
        method="dp_fedavg_central",
        aggregate={"name": rule, "declared_f": 1},
        data=blobs(),
        model="logistic",
        rounds=3,
        cohort=4,
        attack={"name": "malformed", "kind": kind, "share": 0.25, "onset": 2},
        out=tmp_path / "run",
    )
    assert result.summary["excluded"] == 2 and not any("aborted" in event for event in result.history)
    assert np.isfinite(result.summary["loss"])


def test_zeros_stand_where_nothing_usable_came():
    rows = torch.tensor([[0.3], [0.4], [0.9], [0.5], [9.0]])
    arrival, log = server_side(
        rows, {2: None, 4: None}, on_delta=clip(1.0), on_mean=gaussian(1e-4), aggregate=TrimmedMean(1)
    )
    assert [e["client"] for e in log["excluded"]] == [12, 14]
    assert float(arrival.mean[MOVE].value) == pytest.approx((0.0 + 0.3 + 0.4) / 3, abs=1e-3), "of 0, 0, 0.3, 0.4, 0.5"
    assert arrival.arrived.tolist() == [0, 1, 3]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "dp_fedavg_central", "dp_scaffold"])
def test_a_run_survives_what_attackers_send(tmp_path, kind, method):
    noise = [] if method in ("fedavg", "scaffold") else ["sigma=0.3"]
    result = fedveil.run(
        *noise,
        method=method,
        data=blobs(),
        model="logistic",
        rounds=6,
        cohort=4,
        lr=0.1,
        attack={"name": "malformed", "kind": kind, "share": 0.5, "onset": 2},
        out=tmp_path / "run",
    )
    attackers = result.summary["attack"]["clients"]
    assert len(attackers) == 2 and result.summary["excluded"] == 2 * 5
    assert "excluded" not in result.history[0]
    for event in result.history[1:]:
        assert [e["client"] for e in event["excluded"]] == attackers
        assert all(re.search(KINDS[kind], e["why"]) for e in event["excluded"])
    assert np.isfinite(result.summary["loss"])


def test_a_run_of_attackers_only_ends_where_it_began(tmp_path):
    attack = {"name": "malformed", "share": 1.0, "onset": 1}
    result = fedveil.run(data=blobs(), model="logistic", rounds=2, attack=attack, out=tmp_path / "run")
    assert all("none of 4 uploads" in event["aborted"] for event in result.history)
    assert result.history[0]["loss"] == result.history[1]["loss"]


def test_honest_clients_whom_a_broken_model_breaks_are_excluded_too(tmp_path):
    """A mean under a huge attack is lost, but the run goes on to say so."""
    attack = {"name": "gaussian", "factor": 1e30, "share": 0.25, "onset": 2}
    result = fedveil.run(data=blobs(), model="mlp", rounds=4, cohort=4, attack=attack, out=tmp_path / "run")
    assert len(result.history) == 4 and any("aborted" in event for event in result.history)


def test_without_an_attack_a_client_that_diverges_ends_the_run(tmp_path):
    with pytest.raises(fedveil.Refused, match="client"):
        fedveil.run(data=blobs(), model="mlp", rounds=4, cohort=4, lr=1e30, out=tmp_path / "run")

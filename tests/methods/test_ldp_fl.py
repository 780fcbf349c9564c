"""LDP-FL as a method: what the statement says and does not say, what epsilon means, what goes with what."""

import math

import pytest
import torch
from tests.support import blobs

import fedveil
from fedveil.core.errors import Refused
from fedveil.privacy.events import Event
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.rdp import ORDERS, plain, to_epsilon
from fedveil.privacy.shuffling import Crowd, composed_epsilon
from fedveil.privacy.weightwise import ALONE

CLIENTS, ROUNDS, DELTA = 6, 4, 1e-5


def run(folder, *overrides, rounds=ROUNDS, cohort=CLIENTS, epsilon=1.0, **kw):
    privacy = {} if epsilon is None else {"privacy": {"epsilon": epsilon}}
    return fedveil.run(
        *overrides,
        method="ldp_fl",
        data=blobs(CLIENTS),
        model="logistic",
        rounds=rounds,
        cohort=cohort,
        lr=0.2,
        out=folder,
        **privacy,
        **kw,
    )


def rows(result):
    return {(r.observer, r.unit, r.status): r for r in result.statement.rows}


def test_the_statement_counts_by_hand(tmp_path):
    """d = 18 weights, 4 rounds, everybody in every round."""
    result = run(tmp_path / "run", "transport=shuffle")
    found, dim = rows(result), 18
    curve = plain(Event("pure", 1.0, adjacency="replace"), torch.tensor(ORDERS, dtype=torch.float64).numpy())
    composed = to_epsilon(dim * ROUNDS * curve, DELTA)
    for observer in ("server", "public"):
        for unit in ("record", "client"):
            assert found[observer, unit, "proved"].epsilon == pytest.approx(composed)
    alone = found[ALONE, "client", "proved"]
    assert alone.epsilon == pytest.approx(composed_epsilon({Crowd(CLIENTS, 1.0): dim * ROUNDS}, DELTA))
    assert alone.epsilon < composed
    assert "at least 6" in alone.note
    nominal = found["server", "client", "nominal"]
    assert (nominal.epsilon, nominal.delta) == (1.0, 0.0)
    notes = " ".join(result.statement.notes)
    assert "per weight and round" in notes
    assert f"has spent {dim * ROUNDS} at delta 0" in notes


def test_ledger_lines_say_what_a_report_costs(tmp_path):
    result = run(tmp_path / "run")
    entries = Ledger.replay(result.folder.ledger).entries
    assert len(entries) == ROUNDS
    for entry in entries:
        (line,) = entry.lines
        assert (line.release.mechanism, line.release.epsilon, line.release.count) == ("two_point", 1.0, 18)
        assert line.clients == tuple(range(CLIENTS))


def test_a_crowd_is_no_larger_than_what_the_shuffler_insists_on(tmp_path):
    result = run(tmp_path / "run", "transport=shuffle", "transport.least=0.5", "transport.loss=0.1")
    alone = rows(result)[ALONE, "client", "proved"]
    assert alone.epsilon == pytest.approx(composed_epsilon({Crowd(3, 1.0): 18 * ROUNDS}, DELTA))
    parts = result.history[-1]["parts"]
    assert parts["arrived"] < parts["sent"]
    assert parts["smallest_crowd"] >= 3


def test_a_delta_that_the_shuffled_sum_cannot_do_with_loses_a_row_and_no_run(tmp_path):
    result = run(tmp_path / "run", "transport=shuffle", "privacy.delta=1e-30", rounds=1)
    assert ALONE not in {r.observer for r in result.statement.rows}
    assert any("Shuffling claims nothing here: delta" in note for note in result.statement.notes)
    assert 18.0 <= rows(result)["server", "client", "proved"].epsilon < 18.1


@pytest.mark.parametrize("kind", ["silent", "nan"])
def test_attackers_are_no_crowd_to_hide_in(tmp_path, kind):
    """Two of six attack from round 3 on; whether they send nothing or anything, four honest reports are left."""
    attack = {"name": "malformed", "kind": kind, "share": 0.34, "onset": 3}
    result = run(tmp_path / "run", "transport=shuffle", attack=attack)
    alone = rows(result)[ALONE, "client", "proved"]
    expected = composed_epsilon({Crowd(6, 1.0): 18 * 2, Crowd(4, 1.0): 18 * 2}, DELTA)
    assert alone.epsilon == pytest.approx(expected)
    assert "at least 4 honest ones" in alone.note
    assert [h["parts"]["smallest_crowd"] for h in result.history] == [6, 6, 4, 4]
    voting = run(tmp_path / "voting", "transport=shuffle", attack={"name": "zero", "share": 0.34, "onset": 3})
    assert rows(voting)[ALONE, "client", "proved"].epsilon == pytest.approx(expected), "a vote of theirs hides nobody"


@pytest.mark.parametrize(
    "overrides",
    [("split=layer", "transport=shuffle"), ("transport=plain",), ("transport=shuffle", "transport.split=layer")],
)
def test_no_shuffled_row_without_single_weights(tmp_path, overrides):
    assert not any(r.observer == ALONE for r in run(tmp_path / "run", *overrides).statement.rows)


def test_hybrid_reports_are_accounted_by_the_bound_for_any_report(tmp_path):
    result = run(tmp_path / "run", "transport=shuffle", "mechanism=hybrid", epsilon=2.0)
    alone = rows(result)[ALONE, "client", "proved"]
    assert alone.epsilon == pytest.approx(composed_epsilon({Crowd(CLIENTS, 2.0, "generic"): 18 * ROUNDS}, DELTA))
    assert "hybrid" in alone.mechanism


def test_a_simulation_without_seals_says_so(tmp_path):
    result = run(tmp_path / "run", "transport=shuffle", "transport.seal=false")
    assert any("not sealed" in note for note in result.statement.notes)
    assert result.history[0]["parts"]["sealed"] is False
    sealed = run(tmp_path / "sealed", "transport=shuffle")
    assert sealed.summary["model_hash"] == result.summary["model_hash"], "sealing changes nothing that is learned"
    assert sealed.history[0]["bytes_up"] == result.history[0]["bytes_up"]


def test_one_bit_per_weight_is_sent(tmp_path):
    assert run(tmp_path / "run").history[0]["bytes_up"] == CLIENTS * math.ceil(18 / 8)


def test_epsilon_is_no_budget(tmp_path):
    """Four rounds spend far more than privacy.epsilon, which is per weight and round, and none is left out."""
    result = run(tmp_path / "run")
    assert result.summary["rounds"] == ROUNDS
    assert result.summary["rounds_left"] is None
    assert result.summary["epsilon"]["budget"] is None
    assert result.summary["epsilon"]["epsilon"] > 1.0


def test_clients_who_joined_more_often_have_spent_more(tmp_path):
    result = run(tmp_path / "run", cohort=2, rounds=6)
    joined = {k: sum(k in h["clients"] for h in result.history) for k in range(CLIENTS)}
    curve = plain(Event("pure", 1.0, adjacency="replace"), torch.tensor(ORDERS, dtype=torch.float64).numpy())
    expected = to_epsilon(18 * max(joined.values()) * curve, DELTA)
    assert rows(result)["server", "client", "proved"].epsilon == pytest.approx(expected)


@pytest.mark.parametrize("perturb", ["weights", "delta"])
@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
@pytest.mark.parametrize("mechanism", ["two_point", "hybrid"])
def test_resumed_bit_for_bit(tmp_path, perturb, kind, mechanism):
    settings = (f"perturb={perturb}", f"range={kind}", f"mechanism={mechanism}", "radius=0.2")
    whole = run(tmp_path / "whole", *settings)
    part = run(tmp_path / "part", *settings, rounds=2)
    config = part.folder.config.read_text().replace("rounds: 2", f"rounds: {ROUNDS}")
    part.folder.config.write_text(config)
    resumed = fedveil.resume(part.folder.path, data=blobs(CLIENTS))
    assert resumed.summary["model_hash"] == whole.summary["model_hash"]
    assert resumed.statement == whole.statement


def test_adaptive_ranges_of_weights_change_and_are_kept_with_the_checkpoint(tmp_path):
    from safetensors.torch import load

    result = run(tmp_path / "run", "radius=5.0", "perturb=weights", "width=3")
    server = load((result.folder.checkpoint / f"round-{ROUNDS:06d}" / "server.safetensors").read_bytes())
    radii = server["on_delta.0"]
    assert radii.shape == (2,)
    assert bool((radii != 5.0).all()), "they follow the weights from the first round on"
    assert float(radii[0]) != float(radii[1]), "each layer by itself"


def test_the_clamp_alone_is_no_private_method(tmp_path):
    result = run(tmp_path / "run", "mechanism=clamp", epsilon=None)
    assert all(r.status == "none" for r in result.statement.rows)
    with pytest.raises(Refused, match="clamp adds no noise"):
        run(tmp_path / "no", "mechanism=clamp")


@pytest.mark.parametrize(
    ("overrides", "epsilon", "message"),
    [
        ((), None, "privacy.epsilon: this method needs it"),
        ((), 50.0, "privacy.epsilon: 50 per weight"),
        (("split=weight",), 1.0, "split: only transport=shuffle"),
        (("delay=3",), 1.0, "delay: only transport=shuffle"),
        (("range=wide",), 1.0, "range"),
        (("radius=0",), 1.0, "radius"),
        (("radius=[0.1,0.2,0.3]", "range=fixed"), 1.0, "radius: 3 numbers for the 2 tensors"),
        (("mechanism=duchi",), 1.0, "mechanism"),
        (("range=fixed", "width=3"), 1.0, "width: a fixed range"),
        (("centre=0.1",), 1.0, "centre: an adaptive range"),
        (("range=fixed", "centre=nan"), 1.0, "centre"),
        (("range=fixed", "centre=inf"), 1.0, "centre"),
    ],
)
def test_refused(tmp_path, overrides, epsilon, message):
    with pytest.raises(Refused, match=message):
        run(tmp_path / "run", *overrides, epsilon=epsilon)


def test_methods_that_cannot_lose_track_of_clients_are_refused_over_the_shuffler(tmp_path):
    settings = {"data": blobs(), "rounds": 1, "cohort": 2, "out": tmp_path / "run"}
    with pytest.raises(Refused, match="weights=uniform"):
        fedveil.run("transport=shuffle", method="fedavg", **settings)
    with pytest.raises(Refused, match="noise at the server"):
        fedveil.run("transport=shuffle", method="dp_fedavg_central", sigma=1.0, **settings)


def test_what_the_source_claims_is_never_called_proved(tmp_path):
    for row in run(tmp_path / "run", "transport=shuffle").statement.rows:
        assert row.status == "nominal" or row.epsilon > 1.0

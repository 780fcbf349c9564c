"""Signals over masks: the same mean as in the clear, to the step of the encoding; and whole runs."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import blobs

import fedveil
from fedveil.core.errors import Aborted, Refused
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.transport.masks import Masks


def context(n, seed=0):
    return Context(1, Layout(("w",), ((3,),)), list(range(n)), [], chance=stream(seed, "chance", 1))


def equal(n):
    return torch.full((n,), 1 / n, dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.booleans(), st.sampled_from([0.0, 0.2]), st.integers(0, 2**32))
def test_a_delivery_is_the_weighted_sum_of_what_arrived(n, by_size, dropout, seed):
    rng = torch.Generator().manual_seed(seed)
    weights = torch.rand(n, generator=rng, dtype=torch.float64) + 0.05 if by_size else torch.ones(n).double()
    weights = weights / weights.sum()
    channels = {
        name: torch.randn(n, dim, generator=rng, dtype=torch.float64) for name, dim in (("move", 7), ("control", 3))
    }
    masks = Masks(dropout=dropout)
    ctx = context(n, seed)
    try:
        found = masks.carry({k: Signal(v) for k, v in channels.items()}, weights, ctx)
    except Aborted:  # rounded up, a fifth of the clients may be more than the fifth that may drop out
        assert sum(ctx.log["masks"]["dropped"].values()) > masks.plan(n).lost
        return
    here = torch.arange(n) if found.arrived is None else found.arrived
    top = float(weights.max())
    for name, value in channels.items():
        truth = (weights[here] @ value[here])[None]
        assert (found.uploads[name] - truth).abs().max() <= len(here) * top * masks.step
    assert found.weight == pytest.approx(float(weights[here].sum()), abs=n * top * n / 2**31)
    log = ctx.log["masks"]
    assert found.bytes_up == sum(stage["up"] for stage in log["stages"].values())
    assert sum(log["dropped"].values()) >= n - len(here)


@given(st.integers(2, 20), st.data())
def test_a_grid_is_carried_exactly_and_wraps_round(bits, data):
    whole = data.draw(st.lists(st.integers(-(2**24), 2**24), min_size=8, max_size=8))
    rows = torch.tensor(whole, dtype=torch.float32).reshape(4, 2) * 0.25
    found = Masks(bits=bits).carry({"move": Signal(rows, grid=0.25)}, equal(4), context(4)).uploads["move"]
    half = 2 ** (bits - 1)
    truth = (np.array(whole).reshape(4, 2).sum(0) + half) % 2**bits - half
    assert found[0].tolist() == pytest.approx((truth * 0.25 / 4).tolist(), rel=1e-6)


def test_facts_about_grids():
    x = Signal(torch.ones(2, 2), grid=0.5)
    assert (x * 3).grid == 1.5 and (x * torch.ones(2, 1)).grid is None
    assert (x + x).grid == 0.5 and (x + Signal(torch.ones(2, 2))).grid is None
    assert x.shifted(1.0).grid is None and x.mean(torch.ones(2)).grid is None and x.unbounded().grid == 0.5


def test_what_a_grid_cannot_carry():
    with pytest.raises(Refused, match="weights=uniform"):
        Masks().carry({"move": Signal(torch.ones(2, 2), grid=1.0)}, torch.tensor([0.3, 0.7]).double(), context(2))
    with pytest.raises(Refused, match="off its grid"):
        Masks().carry({"move": Signal(torch.full((2, 2), 0.5), grid=1.0)}, equal(2), context(2))


@given(st.integers(0, 2**32), st.floats(1e-6, 10))
def test_rounding_never_lengthens_a_vector(seed, step):
    """A clip bounds what is encoded as well, so that no claim rests on an unrounded norm."""
    value = torch.randn(3, 50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    whole, _ = Masks(step=step)._encode("move", Signal(value), None, 3)
    assert (np.abs(whole * step) <= value.abs().numpy() * (1 + 1e-12)).all()


def test_a_sum_that_could_wrap_is_refused_or_clipped():
    rows = torch.tensor([[1.0, -40.0], [0.5, 3.0]])
    narrow = Masks(bits=16, step=2.0**-10)
    with pytest.raises(Refused, match=r"holds 40, but 2 clients in 16 bits .* room for 16 each"):
        narrow.carry({"move": Signal(rows)}, equal(2), context(2))
    ctx = context(2)
    clipped = dataclasses.replace(narrow, overflow="clip").carry({"move": Signal(rows)}, equal(2), ctx)
    assert clipped.uploads["move"][0].tolist() == pytest.approx([0.75, -6.5], abs=2e-3)
    assert ctx.log["masks"]["clipped"] == 1
    with pytest.raises(Refused, match="no numbers"):
        narrow.carry({"move": Signal(rows / 0)}, equal(2), context(2))


@given(st.integers(2, 12), st.integers(8, 40), st.integers(0, 2**32))
def test_whatever_is_accepted_does_not_wrap(n, bits, seed):
    masks = Masks(bits=bits, step=1.0, max_dropout=0.0, overflow="clip")
    value = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2.0**bits
    whole, _ = masks._encode("move", Signal(value), None, n)
    assert (np.abs(whole).sum(0) < 2 ** (bits - 1)).all()


def test_nobody_came():
    ctx = dataclasses.replace(context(1), clients=[None])
    found = Masks().carry({"move": Signal(torch.zeros(1, 3))}, torch.tensor([0.1]), ctx)
    assert found.uploads["move"].tolist() == [[0.0, 0.0, 0.0]] and found.bytes_up == 0


def test_one_client_alone_is_no_sum():
    with pytest.raises(Aborted, match="hides nobody"):
        Masks().carry({"move": Signal(torch.ones(1, 3))}, torch.ones(1), context(1))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"bits": 1}, "transport.bits"),
        ({"bits": 63}, "transport.bits"),
        ({"step": 0.0}, "transport.step"),
        ({"dropout": 1.0}, "transport.dropout"),
        ({"max_dropout": -0.1}, "transport.max_dropout"),
        ({"collusion": 2.0}, "transport.collusion"),
        ({"overflow": "wrap"}, "transport.overflow"),
    ],
)
def test_settings_that_make_no_sense(setting, words):
    with pytest.raises(Refused, match=words):
        Masks(**setting)


def train(out, *more, **settings):
    given = {"data": blobs(8), "model": "logistic", "rounds": 3, "cohort": 8, "lr": 0.2, "dtype": "float64"}
    return fedveil.run(*more, **(given | {"out": out} | settings))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {"weights": "examples"}),
        ("fedavg", {"weights": "uniform", "server_momentum": 0.5}),
        ("scaffold", {"weights": "uniform"}),
        ("scaffold", {"weights": "examples"}),
        ("dp_fedavg_central", {"sigma": 0.5}),
        ("dp_fedavg_local", {"sigma": 0.5}),
        ("dp_scaffold_stein", {"sigma": 0.5}),
    ],
)
def test_a_run_equals_one_in_the_clear_to_the_step(tmp_path, method, settings):
    plain, masked = (train(tmp_path / t, method=method, transport=t, **settings) for t in ("plain", "masks"))
    far = max(
        float((a - b).detach().abs().max())
        for a, b in zip(plain.model.parameters(), masked.model.parameters(), strict=True)
    )
    assert 0 < far < 3 * 8 * 2.0**-20


def test_a_run_with_dropouts_is_the_same_again_for_the_same_seed(tmp_path):
    runs = [
        train(tmp_path / str(i), "transport.dropout=0.2", transport="masks", seed=s) for i, s in enumerate((1, 1, 2))
    ]
    assert runs[0].summary["model_hash"] == runs[1].summary["model_hash"] != runs[2].summary["model_hash"]
    assert all(sum(r["masks"]["dropped"].values()) in (1, 2) for r in runs[0].history)


def test_below_the_threshold_the_model_stays(tmp_path):
    start = train(tmp_path / "start", rounds=1, lr=1e-12)
    found = train(tmp_path / "none", "transport.dropout=0.8", transport="masks", method="scaffold", rounds=2)
    assert all("came" not in r["aborted"] and "fewer than" in r["aborted"] for r in found.history)
    assert [r["loss"] for r in found.history] == pytest.approx([start.history[0]["loss"]] * 2, abs=1e-9)
    events = [json.loads(line) for line in (tmp_path / "none" / "events.jsonl").read_text().splitlines()]
    assert all(e["bytes_up"] == 0 and e["masks"]["stages"]["advertise"]["up"] > 0 for e in events)


def test_the_statement_says_what_the_server_sees(tmp_path):
    found = train(
        tmp_path / "run", "transport.active_server=true", transport="masks", method="dp_fedavg_central", sigma=1.0
    )
    rows = {(r.observer, r.unit): r for r in found.statement.rows}
    assert rows["server", "client"].status == "none"
    assert "the sum of the uploads before any noise" in rows["server", "client"].note
    assert rows["public", "client"].status == "proved"
    assert "which sees sums of uploads only" in rows["public", "client"].note
    note = next(n for n in found.statement.notes if n.startswith("Secure aggregation"))
    assert "may lie about who dropped out" in note and "8 clients" in note and "probability of a leak 0" in note
    plain = train(tmp_path / "plain", method="dp_fedavg_central", sigma=1.0)
    assert not any("Secure aggregation" in n for n in plain.statement.notes)


def test_noise_of_a_cohort_is_not_averaged_where_some_may_be_missing(tmp_path):
    one = {"method": "dp_fedavg_local", "sigma": 1.0, "steps": 1, "sampling": "poisson"}
    plain, masked = (train(tmp_path / t, transport=t, **one) for t in ("plain", "masks"))
    averaged = [r for r in plain.statement.rows if r.mechanism == "mean of a cohort's noises"]
    assert averaged and not [r for r in masked.statement.rows if r.mechanism == "mean of a cohort's noises"]


def test_combinations_that_masks_cannot_serve(tmp_path):
    with pytest.raises(Refused, match="hides nobody"):
        train(tmp_path / "a", transport="masks", cohort=1)
    with pytest.raises(Refused, match="a stage with memory"):
        train(tmp_path / "b", transport="masks", method="dp_fedavg_central", sigma=1.0, clipping="adaptive")

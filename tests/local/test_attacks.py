"""Attackers send what their formulas say, know what they may know, and touch nobody else's random numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load
from tests.support import blobs

import fedveil
from fedveil.core.errors import Refused
from fedveil.core.federation import Examples
from fedveil.core.streams import stream
from fedveil.local.attackers import drawn, one_of_two
from fedveil.local.attacks import (
    Alie,
    GaussianNoise,
    Ipm,
    LabelFlip,
    Malformed,
    MinMax,
    Scaling,
    Sight,
    SignFlip,
    Zero,
)
from fedveil.local.poison import FlipLabels, Trigger
from fedveil.runtime.config import options


def sight(f=2, honest=8, dim=40, seed=0, omniscient=True):
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.normal(size=(f + honest, dim)) + 1.0)
    return Sight(rows[:f], rows[f:] if omniscient else torch.empty(honest, 0), [stream(seed, k) for k in range(f)])


def test_blind_attacks_follow_their_formulas_without_seeing_anybody():
    seen = sight(omniscient=False)
    assert torch.equal(SignFlip().forge(seen), -seen.own)
    assert torch.equal(SignFlip(factor=3.0).forge(seen), -3 * seen.own)
    assert torch.equal(Zero().forge(seen), torch.zeros_like(seen.own))
    assert torch.equal(LabelFlip().forge(seen), seen.own)
    assert torch.equal(Scaling().forge(seen), 5 * seen.own), "n/f = 10/2"
    assert torch.equal(Scaling(factor=2.0).forge(seen), 2 * seen.own)
    assert not any(a.omniscient for a in (SignFlip(), Zero(), LabelFlip(), Scaling(), GaussianNoise(), Malformed()))


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_noise_has_the_length_of_so_many_own_moves(factor):
    seen = sight(dim=20_000)
    noise = GaussianNoise(factor=factor).forge(seen)
    # ‖noise‖²/std² is chi-squared with 20,000 degrees: six deviations are 6 %.
    assert torch.allclose(noise.norm(dim=1) / seen.own.norm(dim=1), torch.tensor(factor).double(), rtol=0.03)
    assert abs(float(torch.cosine_similarity(noise[0], noise[1], dim=0))) < 6 / math.sqrt(20_000), "not the same noise"


def test_omniscient_attacks_follow_their_formulas():
    seen = sight()
    mean, std = seen.honest.mean(0), seen.honest.numpy().std(axis=0)
    for row in Alie(z=1.5).forge(seen):
        assert np.allclose(row, mean.numpy() - 1.5 * std)
    for row in Ipm(factor=0.5).forge(seen):
        assert torch.allclose(row, -0.5 * mean)
    assert all(a.omniscient for a in (Alie(), Ipm(), MinMax()))


@given(seed=st.integers(0, 10_000), honest=st.integers(2, 12), direction=st.sampled_from(["mean", "std", "sign"]))
def test_min_max_goes_as_far_as_it_may_and_no_farther(seed, honest, direction):
    seen = sight(honest=honest, dim=7, seed=seed)
    row = MinMax(direction=direction).forge(seen)[0]
    widest = torch.cdist(seen.honest, seen.honest).max()
    reach = (row - seen.honest).norm(dim=1).max()
    assert float(reach) == pytest.approx(float(widest), rel=1e-6)
    beyond = row + 1e-3 * (row - seen.honest.mean(0))
    assert (beyond - seen.honest).norm(dim=1).max() > widest


def test_alone_in_a_cohort_omniscient_attackers_go_by_their_own_uploads():
    seen = sight(f=3, honest=0)
    assert torch.allclose(Ipm(factor=2.0).forge(seen)[0], -2 * seen.own.mean(0))


def test_where_bits_travel_attackers_send_bits():
    """Of two levels the nearest where there is no room, else both with the right mean (five deviations)."""
    low, high = torch.full((1, 4000), -2.0), torch.full((1, 4000), 6.0)
    wanted = torch.tensor([[-9.0], [-2.0], [0.0], [6.0], [70.0], [math.nan]]).expand(-1, 4000)
    sent = one_of_two(wanted, (low, high), [stream(0, k) for k in range(6)])
    assert [row.unique().tolist() for row in sent[[0, 1, 3, 4]]] == [[-2.0], [-2.0], [6.0], [6.0]]
    assert sent[2].unique().tolist() == [-2.0, 6.0]
    assert float(sent[2].mean()) == pytest.approx(0.0, abs=5 * math.sqrt(12 / 4000))
    assert bool(sent[5].isnan().all())


def test_an_attack_on_reports_of_one_bit_is_the_attack_that_was_asked_for(tmp_path):
    """Noise and zeros are coins; before, whatever was no report of the protocol passed for the lower value."""
    means = {}
    for name in ("gaussian", "zero"):
        attack = {"name": name, "share": 1.0, "onset": 2}
        settings = {"method": {"name": "ldp_fl", "radius": 0.1, "range": "fixed"}, "privacy": {"epsilon": 4.0}}
        result = train(tmp_path / name, attack, rounds=2, **settings)
        after = [
            load((result.folder.checkpoint / f"round-{n:06d}" / "server.safetensors").read_bytes())["w"] for n in (1, 2)
        ]
        means[name] = ((after[1] - after[0]) > 0).double().mean()
    assert all(0.1 < share < 0.9 for share in means.values())


def test_poison_changes_what_is_trained_on_and_not_how_much():
    x, y = torch.zeros(10, 1, 5, 5), torch.arange(10) % 4
    flipped = FlipLabels()(Examples(x, y), 4, np.random.default_rng(0))
    assert torch.equal(flipped.y, 3 - y) and torch.equal(flipped.x, x)
    trigger = Trigger(target=1, fraction=0.3, size=2, value=9.0)
    made = trigger(Examples(x, y), 4, np.random.default_rng(0))
    marked = made.x.flatten(1).sum(1) > 0
    assert marked.sum() == 3 and (made.y[marked] == 1).all() and torch.equal(made.y[~marked], y[~marked])
    assert torch.equal(made.x[marked][0, 0, 3:, 3:], torch.full((2, 2), 9.0)) and made.x[marked][0].sum() == 36
    assert torch.equal(trigger.stamp(torch.zeros(1, 5))[0], torch.tensor([0.0, 0, 0, 9, 9]))
    assert (x == 0).all(), "the true data stays"
    assert len(trigger.tried(Examples(x, y))) == int((y != 1).sum())


def test_the_share_is_of_the_population_and_drawn_from_the_seed():
    assert len(drawn(0.2, 10, 0)) == 2 and len(drawn(0.15, 100, 3)) == 15
    assert drawn(0.3, 50, 1) == drawn(0.3, 50, 1) != drawn(0.3, 50, 2)
    assert drawn(0.0, 10, 0) == frozenset()
    with pytest.raises(Refused, match="attack.share"):
        drawn(1.2, 10, 0)
    with pytest.raises(Refused, match="nobody"):
        drawn(0.01, 10, 0)


ATTACKS = [name for name in options("attack") if name != "none"]


def train(folder, attack, **settings):
    kept = {"data": blobs(), "model": "logistic", "rounds": 4, "cohort": 4, "lr": 0.2} | settings
    kept["cohort"] = min(kept["cohort"], kept["data"].population)
    return fedveil.run(out=folder, attack=attack, **kept)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return train(tmp_path_factory.mktemp("honest") / "run", "none")


@pytest.mark.parametrize("name", ATTACKS)
def test_nobody_notices_an_attack_before_its_onset_or_without_attackers(tmp_path, honest, name):
    late = train(tmp_path / "late", {"name": name, "onset": 5, "share": 0.5}, rounds=5)
    nobody = train(tmp_path / "nobody", {"name": name, "share": 0.0})
    assert [e["loss"] for e in late.history[:4]] == [e["loss"] for e in honest.history]
    assert nobody.summary["model_hash"] == honest.summary["model_hash"]
    assert nobody.summary["attack"] is None


def test_an_attack_that_would_never_begin_is_refused(tmp_path):
    with pytest.raises(Refused, match="attack.onset: round 5 never comes in a run of 4 rounds"):
        train(tmp_path / "run", {"name": "zero", "onset": 5, "share": 0.5})


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_acts_from_its_onset_on_and_is_recorded(tmp_path, honest, name):
    result = train(tmp_path / "run", {"name": name, "onset": 3, "share": 0.25})
    losses, clean = [e["loss"] for e in result.history], [e["loss"] for e in honest.history]
    assert losses[:2] == clean[:2] and losses[2] != clean[2]
    told = result.summary["attack"]
    assert (told["name"], told["onset"], told["share"], len(told["clients"])) == (name, 3, 0.25, 1)
    # What honest clients compute in the round of the onset is what they compute without an attack.
    assert result.history[2]["train_loss"] == honest.history[2]["train_loss"]


def test_a_backdoor_is_measured(tmp_path):
    attack = {"name": "backdoor", "share": 0.5, "target": 2, "value": 30.0, "size": 2, "boost": 2.0}
    result = train(tmp_path / "run", attack, rounds=15)
    rates = [e["attack_success"] for e in result.history]
    assert rates[-1] == result.summary["attack"]["success"] > 0.9 > rates[0] - 0.5
    with pytest.raises(Refused, match="attack.target: there is no class 7"):
        train(tmp_path / "none", attack | {"target": 7})


def test_a_poisoner_follows_the_protocol_on_other_data(tmp_path):
    """With every label already its own opposite, flipping changes nothing at all."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    parts = [(x + k, np.ones(40, dtype=int)) for k in range(3)]
    data = fedveil.data.from_clients(parts, classes=3, name="ones")
    hashes = {
        train(tmp_path / name, attack, data=data, method="scaffold", momentum=0.5).summary["model_hash"]
        for name, attack in (("honest", "none"), ("flip", {"name": "label_flip", "share": 0.34}))
    }
    assert len(hashes) == 1

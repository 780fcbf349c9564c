"""Everybody computes the same thing: ours, the lean loops and the peers, on one small scenario each."""

import pytest
import torch
from tests.support import require

from fedveil.bench import agreement
from fedveil.bench.rivals import OURS, named, rivals
from fedveil.bench.scenario import ALGORITHMS, Scenario, Setting


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_ours_equals_the_lean_loop_to_rounding(algorithm):
    scenario = Scenario("mlp", algorithm)
    who = [r for r in rivals(scenario, "cpu") if r.name.startswith("loop")]
    found = agreement.agree(scenario, who, "cpu")
    assert found and max(found.values()) < 1e-13


def test_the_channels_last_loop_equals_ours_on_images():
    scenario = Scenario("cnn", "fedavg")
    assert agreement.agree(scenario, [named("loop, channels last")], "cpu")["loop, channels last"] < 1e-13


@pytest.mark.parametrize("name", ["Opacus hooks", "Opacus ghost"])
def test_opacus_clips_the_same_gradients(name):
    require("opacus")
    scenario = Scenario("mlp", "step_noise", clip_norm=0.1)  # far below the norms, so that every example is clipped
    assert agreement.agree(scenario, [named(name)], "cpu")[name] < 1e-6


def test_pfl_averages_the_same_moves():
    pytest.importorskip("pfl", reason="pfl is in the bench extra, which the suite does not install")
    assert agreement.agree(Scenario("mlp", "fedavg"), [named("pfl")], "cpu")["pfl"] < 1e-5


def test_nothing_is_timed_where_weights_differ(monkeypatch):
    monkeypatch.setattr(agreement, "TOLERANCE", -1.0)
    with pytest.raises(agreement.Disagreement, match="nothing was timed"):
        agreement.agree(Scenario("mlp", "fedavg"), [named("loop")], "cpu")


def test_secure_streams_give_other_noise_and_the_same_batches_none():
    setting = Setting(Scenario("mlp", "last_noise", cohort=2, population=2, samples=40))
    runs = [named(name).build(setting) for name in (OURS, OURS, "ours, secure streams")]
    for run in runs:
        run.round(1, [0, 1])
    seeded, again, secure = [run.weights() for run in runs]
    assert torch.equal(seeded, again)
    assert not torch.equal(seeded, secure)

"""Controllers: which rule they choose and why, thresholds that stay frozen, memory that resumes bit for bit."""

import math

import numpy as np
import pytest
import torch
from tests.support import blobs

import fedveil
from fedveil.aggregate.centered_clipping import CenteredClipping
from fedveil.aggregate.controllers import Adaptive, Published
from fedveil.aggregate.krum import Krum
from fedveil.aggregate.mean import Mean
from fedveil.aggregate.order import TrimmedMean
from fedveil.core.errors import Refused
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context


def ctx(number=1, previous=None):
    previous = torch.ones(1, 30) if previous is None else previous
    return Context(number, Layout(("w",), ((30,),)), list(range(10)), [], previous=previous)


def uploads(seed, lying=0, factor=20.0, spread=1.0):
    """Ten clients around a common direction, the first ``lying`` of them far away."""
    rng = np.random.default_rng(seed)
    rows = torch.from_numpy(rng.normal(size=(10, 30)) * spread + 1.0)
    rows[:lying] *= factor
    return Signal(rows)


def walk(rule, rounds, memory=None):
    """Choices of a controller over rounds of uploads: memory, rules, logs."""
    memory, chosen, logs = memory or rule.init(), [], []
    for i, moves in enumerate(rounds):
        at = ctx(i + 1)
        found, memory = rule.choose(memory, moves, at)
        chosen.append(found)
        logs.append(at.log["detector"])
    return memory, chosen, logs


def short(**kw):
    return Adaptive(**({"calibration": 130, "momentum": 0.9} | kw))


def test_the_warm_up_is_robust_then_calm_rounds_get_the_mean_and_attacks_do_not():
    rule = short()
    rounds = [uploads(i) for i in range(150)] + [uploads(200 + i, lying=2) for i in range(5)]
    _, chosen, logs = walk(rule, rounds)
    assert all(isinstance(r, CenteredClipping) for r in chosen[:20]) and "warm-up" in logs[0]["why"]
    calm = [isinstance(r, Mean) for r in chosen[20:150]]
    assert np.mean(calm) > 0.85
    assert all(isinstance(r, CenteredClipping) for r in chosen[150:])
    assert all(log["alarm"] and log["score"] > log["theta2"] for log in logs[150:])
    assert {log["rule"] for log in logs} == {"mean", "centered_clipping"}
    assert not logs[5]["alarm"], "the warm-up is no alarm"


def test_thresholds_come_from_all_rounds_of_the_phase_and_are_frozen_then():
    rule = short()
    memory, _, logs = walk(rule, [uploads(i) for i in range(130)])
    scored = memory["scores"][~memory["scores"].isnan()]
    assert len(scored) == 110, "130 rounds without the 20 that fill the baseline"
    ordered = np.sort(scored.numpy())
    theta = memory["thresholds"].tolist()
    assert theta == [ordered[math.ceil(0.95 * 111) - 1], ordered[math.ceil(0.99 * 111) - 1]]
    assert (logs[0]["theta1"], logs[0]["theta2"]) == (3.7, 4.3), "until then the starting values"
    later, _, _ = walk(rule, [uploads(1000 + i, spread=0.1) for i in range(60)], memory)
    assert later["thresholds"].tolist() == theta and torch.equal(
        later["scores"].nan_to_num(), memory["scores"].nan_to_num()
    )


def test_thresholds_recomputed_from_calm_rounds_would_ratchet_down():
    """Why they are frozen: each recomputation throws away what it called an alarm, until much of calm is one."""
    rng = np.random.default_rng(0)
    scores = np.abs(rng.normal(size=3000))
    frozen = np.quantile(scores[:100], 0.95)
    kept, theta, ratcheted = list(scores[:100]), frozen, []
    for score in scores[100:]:
        if score <= theta:  # only what the alarm itself let through
            kept.append(score)
            theta = np.quantile(kept[-100:], 0.95)
        ratcheted.append(score > theta)
    assert np.mean(scores[100:] > frozen) < 0.10
    assert np.mean(ratcheted[-1000:]) > 0.5 and theta < 0.5 * frozen


def test_a_short_phase_keeps_the_starting_values():
    memory, _, _ = walk(short(calibration=40), [uploads(i) for i in range(60)])
    assert memory["thresholds"].tolist() == [3.7, 4.3]
    assert Adaptive(calibration=40).init()["thresholds"].tolist() == pytest.approx([4.9, 6.4]), "without momentum"


def test_a_lasting_attack_never_becomes_normal_but_drift_does():
    rule = short()
    memory, _, _ = walk(rule, [uploads(i) for i in range(130)])
    _, chosen, _ = walk(rule, [uploads(500 + i, lying=2, factor=5.0) for i in range(80)], memory)
    assert all(isinstance(r, CenteredClipping) for r in chosen)
    _, chosen, _ = walk(rule, [uploads(700 + i, spread=1.0 + 0.004 * i) for i in range(80)], memory)
    assert np.mean([isinstance(r, Mean) for r in chosen]) > 0.7


def test_a_lasting_attack_below_the_guard_never_becomes_normal_either():
    """Three of ten turn their signs: no outliers, so that only the baseline stands between them and the mean."""
    rule = short()
    memory, _, _ = walk(rule, [uploads(i) for i in range(130)])
    before = memory["baseline"].clone()
    after, chosen, logs = walk(rule, [uploads(500 + i, lying=3, factor=-1.0) for i in range(60)], memory)
    assert not any("guard" in log["why"] for log in logs)
    assert all(log["score"] > rule.drift * log["theta1"] for log in logs)
    assert all(isinstance(r, CenteredClipping) for r in chosen)
    assert torch.equal(after["baseline"], before), "nothing of it was learned"


def test_the_published_ladder_gives_outliers_the_mean_and_clean_rounds_krum():
    rule = Published(byzantine=1)
    together = uploads(2).value
    together[:2] = 1000.0  # H = 1.471 of ln 10
    _, chosen, logs = walk(rule, [uploads(0), uploads(1, lying=1, factor=100.0), Signal(together)])
    assert [type(r) for r in chosen] == [Krum, Mean, TrimmedMean]
    assert [log["rule"] for log in logs] == ["krum", "mean", "trimmed_mean"]


def run(folder, *overrides, **settings):
    kept = {"data": blobs(8), "model": "logistic", "rounds": 12, "cohort": 8, "out": folder} | settings
    return fedveil.run(*overrides, **kept)


ADAPTIVE = {"name": "adaptive", "window": 3, "calibration": 6, "theta1": 6.0, "theta2": 8.0}
ATTACK = {"name": "scaling", "factor": 40.0, "share": 0.13, "onset": 9}


def test_every_round_says_what_was_chosen_and_why(tmp_path):
    result = run(tmp_path / "run", aggregate=ADAPTIVE, attack=ATTACK)
    for event in result.history:
        told = event["detector"]
        assert set(told) == {"name", "score", "theta1", "theta2", "rule", "alarm", "why", "values"}
    assert all(e["detector"]["rule"] == "centered_clipping" and e["detector"]["alarm"] for e in result.history[8:])
    clients = 8 * 18 * 4
    assert result.history[-1]["bytes_down"] == clients, "what a controller remembers stays with the server"


@pytest.mark.parametrize("aggregate", [ADAPTIVE, {"name": "source", "declared_f": 1}])
def test_a_resumed_run_chooses_as_if_nothing_had_happened(tmp_path, aggregate):
    settings = {"aggregate": aggregate, "attack": {"name": "label_flip", "share": 0.25, "onset": 5}}
    settings |= {"method": {"name": "fedavg", "client_momentum": 0.9}}
    whole = run(tmp_path / "whole", **settings)

    class Stop:
        def opened(self, *_): ...
        def closed(self, *_): ...
        def round(self, record):
            if record["round"] == 7:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "part", listeners=[Stop()], **settings)
    resumed = fedveil.resume(tmp_path / "part", data=blobs(8))
    assert resumed.summary["model_hash"] == whole.summary["model_hash"]
    assert [e["detector"] for e in resumed.history] == [e["detector"] for e in whole.history]


def test_central_noise_does_not_cover_a_choice(tmp_path):
    with pytest.raises(Refused, match="chooses its rule by looking at uploads before any noise"):
        run(tmp_path / "run", "sigma=1", method="dp_fedavg_central", aggregate="adaptive")
    private = run(tmp_path / "own", "sigma=1", method="dp_fedavg_local", aggregate="adaptive", rounds=3)
    assert "proved" in private.summary["statement"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"detector": "source"}, "aggregate=source"),
        ({"detector": "sauce"}, "did you mean 'source'"),
        ({"detector": "deficit", "calibration": 50}, "aggregate.calibration: deficit has no thresholds"),
        ({"theta1": 2.0}, "theta1 and theta2 together"),
        ({"theta1": 3.0, "theta2": 2.0}, "no thresholds"),
        ({"window": 1}, "aggregate.window"),
        ({"alarm": "krum"}, "aggregate.alarm"),
    ],
)
def test_wrong_settings_are_refused_in_words(tmp_path, settings, words):
    with pytest.raises(Refused, match=words):
        run(tmp_path / "run", aggregate={"name": "adaptive", **settings})

"""Noise that is found for a budget, and a run that is looked at before it is made."""

import math
import re

import orjson
import pytest
from rich.console import Console
from tests.methods.test_ledgers import joined, reference, rows
from tests.support import blobs

import fedveil
from fedveil.core.errors import Refused
from fedveil.privacy.ledger import Ledger
from fedveil.report.plan import show_plan
from fedveil.runtime.calibrate import calibrate
from fedveil.runtime.config import resolve
from fedveil.runtime.plan import plan
from fedveil.runtime.planning import Planner
from fedveil.runtime.prepare import prepare

SETTINGS = ("batch=8", "steps=3", "lr=0.1", "model=logistic", "rounds=5", "cohort=2")


def run(tmp_path, *overrides, method="dp_fedavg_local", data=None):
    return fedveil.run(*SETTINGS, *overrides, method=method, data=data or blobs(), out=tmp_path / "r")


def parts(*overrides, method="dp_fedavg_local", data=None):
    return prepare(resolve([f"method={method}", *SETTINGS, *overrides]), data=data or blobs())


def noises(result):
    return {
        k: line.release.noise_std / line.release.bound
        for entry in Ledger.replay(result.folder.ledger).entries
        for line in entry.lines
        for k in line.clients
    }


def test_every_client_spends_the_whole_budget_and_no_more(tmp_path):
    """Rates and rounds joined differ, ε does not: each client has its own noise (SPEC 3.1)."""
    result = run(tmp_path, "privacy.epsilon=4")
    found, sizes = noises(result), blobs().sizes
    assert len(set(found.values())) > 1
    for k, times in joined(result).items():
        own = reference(8 / sizes[k], found[k], 3 * times)
        assert 3.98 < own <= 4.0 + 2e-3
    assert rows(result)["server", "record"].epsilon <= 4.0
    assert result.summary["rounds"] == 5, "the budget lasts for all rounds"


def test_one_noise_for_all_keeps_the_worst_client_within_the_budget(tmp_path):
    result = run(tmp_path, "privacy.epsilon=4", "sigma_per_client=false")
    (sigma,) = set(noises(result).values())
    sizes = blobs().sizes
    spent = [reference(8 / sizes[k], sigma, 3 * times) for k, times in joined(result).items()]
    assert max(spent) <= 4.0 + 2e-3
    assert min(spent) < 3.9
    assert rows(result)["server", "record"].epsilon == pytest.approx(max(spent), rel=2e-3)


@pytest.mark.parametrize(
    ("method", "overrides", "row"),
    [
        ("dp_fed_stein", ["algorithm_variant=1"], ("server", "client")),
        ("dp_scaffold_stein", ["algorithm_variant=3"], ("server", "record")),
        ("dp_fedavg_central", ["selection=poisson"], ("public", "client")),
        ("dp_fedavg_central", ["clipping=adaptive", "selection=poisson"], ("public", "client")),
        ("dp_fedavg_local", ["algorithm_variant=1", "privacy.unit=record"], ("server", "record")),
        ("dp_fedavg_local", ["privacy.adjacency=replace"], ("server", "record")),
    ],
)
def test_any_method_can_be_calibrated(tmp_path, method, overrides, row):
    result = run(tmp_path, "privacy.epsilon=6", *overrides, method=method)
    assert 5.9 < rows(result)[row].epsilon <= 6.0
    assert result.summary["rounds"] == 5


def test_sigma_and_a_budget_together_stop_the_run(tmp_path):
    result = run(tmp_path, "privacy.epsilon=12", "sigma=1.0", "rounds=50")
    assert 1 < result.summary["rounds"] < 50
    assert "stopped early" in result.summary["status"]
    assert set(noises(result).values()) == {1.0}


def test_a_calibrated_run_resumes_under_the_same_noise(tmp_path, monkeypatch):
    from tests.runtime.test_private_runs import Killed, killed_in_round

    whole = run(tmp_path / "a", "privacy.epsilon=4")
    with monkeypatch.context() as patch:
        killed_in_round(patch, 3)
        with pytest.raises(Killed):
            run(tmp_path / "b", "privacy.epsilon=4")
    resumed = fedveil.resume(tmp_path / "b/r", data=blobs())
    assert resumed.summary["model_hash"] == whole.summary["model_hash"]
    assert resumed.statement == whole.statement


def go_on(folder, *edits):
    """Resume a run with another number of rounds or another budget in its config.yaml."""
    config = folder / "config.yaml"
    for before, after in edits:
        assert before in config.read_text()
        config.write_text(config.read_text().replace(before, after))
    return fedveil.resume(folder, data=blobs())


@pytest.mark.parametrize("per_client", ["true", "false"])
def test_a_calibrated_run_goes_on_under_its_own_noise(tmp_path, per_client):
    """More rounds end at the budget, a larger budget affords more of them; the noise stays what it was."""
    first = run(tmp_path, "privacy.epsilon=4", "cohort=4", f"sigma_per_client={per_client}")
    sigma, folder = noises(first), first.folder.path
    assert (len(set(sigma.values())) > 1) == (per_client == "true")
    more = go_on(folder, ("rounds: 5", "rounds: 30"))
    assert more.summary["rounds"] == 5
    assert "stopped early: the next round would spend" in more.summary["status"]
    assert more.summary["model_hash"] == first.summary["model_hash"]
    richer = go_on(folder, ("epsilon: 4", "epsilon: 6"))
    assert 5 < richer.summary["rounds"] < 30
    assert 5.0 < rows(richer)["server", "record"].epsilon <= 6.0
    assert noises(richer) == sigma
    for entry in Ledger.replay(richer.folder.ledger).entries:
        assert {x.release.noise_std / x.release.bound for x in entry.lines} == set(sigma.values())


def test_a_budget_that_ended_a_run_may_grow_whenever_it_was_saved(tmp_path):
    first = run(tmp_path, "privacy.epsilon=6", "sigma=1.2", "rounds=40", "checkpoint.every=1000")
    ended = first.summary["rounds"]
    assert ended < 40
    richer = go_on(first.folder.path, ("epsilon: 6", "epsilon: 9"))
    assert richer.summary["rounds"] > ended


def test_calibrated_noise_that_was_damaged_is_not_guessed(tmp_path):
    first = run(tmp_path, "privacy.epsilon=4")
    kept = first.folder.noise.read_bytes()
    first.folder.noise.write_bytes(b'{"sigma": [1.0, null]}')
    with pytest.raises(Refused, match=r"noise.json: these are no noise multipliers"):
        fedveil.resume(first.folder.path, data=blobs())
    first.folder.noise.write_bytes(kept.replace(b"1.", b"2."))
    with pytest.raises(Refused, match="resume: settings, method, model or data are not those"):
        fedveil.resume(first.folder.path, data=blobs())
    first.folder.noise.write_bytes(kept)
    with pytest.raises(Refused, match="resume: this run began with 4 clients, and the data has 3"):
        fedveil.resume(first.folder.path, data=blobs(3))


def test_many_kinds_of_clients_are_rounded_to_the_safe_side(monkeypatch):
    monkeypatch.setattr("fedveil.runtime.calibrate.MANY", 6)
    skewed = parts("privacy.epsilon=8", "cohort=8", "rounds=3", data=blobs(clients=12, examples=10))
    assert len(set(skewed.federation.sizes.tolist())) > 6
    assert 1 < len(set(skewed.sigma.values)) < len({*map(float, skewed.federation.sizes)}), "fewer kinds than sizes"
    planner = Planner(skewed)
    accounts = planner.accounts()
    for number in range(1, 4):
        accounts.add(planner.lines(planner.cohort(number), {}))
    spread = accounts.spread("record")
    assert 3.0 < spread.least <= spread.worst <= 8.0


def test_calibration_is_the_smallest_noise_that_fits():
    made = parts("privacy.epsilon=4", "sigma_per_client=false")
    from fedveil.runtime.prepare import maker

    make = maker(made.config, made.settings, made.federation, made.cohort)
    again = calibrate(
        prepare(resolve(["method=dp_fedavg_local", *SETTINGS, "sigma=1", "privacy.epsilon=4"]), data=blobs()),
        make,
        per_client=False,
    )
    assert again == made.sigma
    result = plan(
        prepare(
            resolve(["method=dp_fedavg_local", *SETTINGS, f"sigma={0.99 * made.sigma}", "privacy.epsilon=4"]),
            data=blobs(),
        )
    )
    assert result.rounds < 5, "one per cent less noise does not last"


def test_the_plan_is_what_the_run_then_does(tmp_path):
    planned = plan(parts("sigma=1.2", "privacy.epsilon=6", "rounds=40"))
    result = run(tmp_path, "sigma=1.2", "privacy.epsilon=6", "rounds=40")
    assert planned.rounds == result.summary["rounds"] < 40
    assert planned.statement.rows == result.statement.rows
    assert "would spend epsilon" in planned.stopped
    (noise,) = planned.noise
    assert (noise.slot, noise.unit, noise.multiplier, noise.times) == ("on_step", "record", (1.2, 1.2), (3, 3))
    assert planned.seconds > 0


def test_a_plan_says_how_many_rounds_the_budget_really_covers(tmp_path):
    """The cohorts of rounds that nobody asked for are known as well, so that it is the number of a longer run."""
    short = plan(parts("sigma=2", "privacy.epsilon=6", "rounds=3"))
    result = run(tmp_path, "sigma=2", "privacy.epsilon=6", "rounds=60")
    assert (short.rounds, short.affordable, short.ends) == (3, result.summary["rounds"], True)
    assert short.affordable > 3
    assert short.statement.rows == plan(parts("sigma=2", "privacy.epsilon=60", "rounds=3")).statement.rows
    plenty = plan(parts("sigma=1000", "privacy.epsilon=6", "rounds=3"))
    assert (plenty.affordable, plenty.ends) == (1003, False)
    assert (plan(parts("sigma=1", "rounds=3")).affordable, plan(parts("sigma=1", "rounds=3")).stopped) == (None, None)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], "rounds affordable: all 3, as no budget is set"),
        (["privacy.epsilon=60"], "rounds affordable: [0-9]+ \\(3 asked for\\)"),
        (["privacy.epsilon=60", "sigma=1000"], "rounds affordable: 1003 or more \\(3 asked for\\)"),
        (["privacy.epsilon=6"], "rounds affordable: 0 of 3; the first round alone would spend"),
    ],
)
def test_the_words_for_affordable_rounds(capsys, overrides, words):
    show_plan(Console(width=200), plan(parts("sigma=0.8", "rounds=3", *overrides)))
    assert re.search(words, capsys.readouterr().out)


def test_a_plan_leaves_no_trace(tmp_path, monkeypatch):
    import subprocess
    import sys

    texts = ["method=dp_scaffold_stein", "privacy.epsilon=8", "rounds=3", "steps=2", "model=logistic", "population=5"]
    done = subprocess.run(
        [sys.executable, "-m", "fedveil", "run", *texts, "--plan", "--json", "plan.json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in (
        "Noise",
        "Predicted after 3 rounds",
        "rounds affordable: 3 (3 asked for)",
        "expected time",
        "nothing was trained",
    ):
        assert words in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"], "no run folder"
    data = orjson.loads((tmp_path / "plan.json").read_bytes())
    assert data["rounds"] == 3
    assert data["noise"][0]["mechanism"] == "gaussian"
    (proved,) = [r for r in data["statement"]["rows"] if (r["observer"], r["unit"]) == ("server", "record")]
    assert math.isclose(proved["epsilon"], 8.0, rel_tol=0.01)


def test_one_noise_for_all_where_the_method_has_no_other():
    source = ["algorithm_variant=1", "calibration=source", "privacy.epsilon=8", "steps=5"]
    assert isinstance(parts(*source).sigma, float)
    assert parts(*source, "sigma_per_client=false").sigma == parts(*source).sigma
    assert isinstance(parts("privacy.epsilon=8", method="dp_fedavg_central").sigma, float)
    for method, texts in (("dp_fedavg_local", source), ("dp_fedavg_central", ["privacy.epsilon=8"])):
        with pytest.raises(
            Refused, match=f"sigma_per_client: {method}.* has one noise for all.*leave sigma_per_client"
        ):
            parts(*texts, "sigma_per_client=true", method=method)


def test_nothing_says_how_much_noise():
    with pytest.raises(Refused, match="sigma: dp_fedavg_local adds noise, but nothing says how much; set sigma"):
        parts()

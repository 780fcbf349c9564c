"""The command from end to end on a tiny scenario, and the page that is made of its report."""

import json

import pytest
from typer.testing import CliRunner

from fedveil.bench import alone, engine, ours, rivals
from fedveil.bench.goals import GOALS
from fedveil.bench.growth import grow
from fedveil.bench.page import page, read
from fedveil.bench.scenario import Scenario
from fedveil.cli import app
from fedveil.core.errors import Refused


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "report.json"
    arguments = [
        "bench",
        "engine",
        "--only",
        "mlp/fedavg",
        "--only",
        "whole/mlp/fedavg/10",
        "--quick",
        "--threads",
        "1",
    ]
    done = CliRunner().invoke(app, [*arguments, "--json", str(path), "--page", str(path.with_suffix(".md"))])
    assert done.exit_code == 0, done.output
    assert "mlp/fedavg/10 (engine fold)" in done.output
    return path


def test_a_report_has_seconds_ratios_and_the_limit(report):
    found = json.loads(report.read_text())
    row = found["scenarios"]["mlp/fedavg/10"]
    mine, loop = row["contenders"]["ours"], row["contenders"]["loop"]
    assert mine["times_ours"]["median"] == 1
    assert loop["times_ours"]["median"] == pytest.approx(
        sum(a / b for a, b in zip(loop["all_seconds"], mine["all_seconds"], strict=True)) / 2
    )
    assert row["flops"] == 409_088 * 10 * 64
    assert found["peaks"]["float32"] > 1e9
    assert row["agreement"]["loop"] < 1e-13
    assert found["whole"]["whole/mlp/fedavg/10"]["seconds_per_round"] > 0


def test_the_page_is_computed_from_reports(report, tmp_path):
    text = report.with_suffix(".md").read_text()
    mine = json.loads(report.read_text())["scenarios"]["mlp/fedavg/10"]["contenders"]["ours"]
    assert f"{1e3 * mine['seconds']['median']:.4g}" in text
    assert "A quick run" in text
    assert "MLP, FedAvg: rounds per second against loop | at least 3x" in text
    again = tmp_path / "page.md"
    done = CliRunner().invoke(app, ["bench", "engine", "--from", str(report), "--page", str(again)])
    assert done.exit_code == 0
    assert again.read_text() == text


def test_a_missing_peer_is_a_row_with_the_command_that_installs_it(monkeypatch):
    real = rivals.importlib.util.find_spec
    monkeypatch.setattr(rivals.importlib.util, "find_spec", lambda name: None if name == "pfl" else real(name))
    found = engine.run(engine.Options(only=("mlp/fedavg",), quick=True, threads=1), None, lambda unit: None, print)
    row = found["scenarios"]["mlp/fedavg/10"]["contenders"]["pfl"]
    assert row["missing"].startswith("not installed; pip install")
    assert row["missing"] in page([found])


def _made_up(times):
    def contender(seconds, ratio):
        spread = {"median": ratio, "min": ratio, "max": ratio}
        return {
            "seconds": dict.fromkeys(("median", "min", "max"), seconds),
            "rounds_per_second": 1 / seconds,
            "times_ours": spread,
            "first_round": 1.0,
        }

    rows = {"ours": contender(0.1, 1.0) | {"flops_per_second": 1e9}}
    rows |= {name: contender(0.1 * ratio, ratio) for name, ratio in times.items()}
    scenario = {"contenders": rows, "parameters": 5, "flops": 10**8, "engine": "fold", "engine_reason": "as asked"}
    about = {
        "fedveil": "0",
        "torch": "2",
        "python": "3",
        "device": "cpu",
        "machine": "m",
        "threads": 2,
        "precision": "float32",
    }
    return {
        "about": about,
        "peaks": {"float32": 2e9},
        "scenarios": {"cnn/fedavg/10": scenario | {"agreement": None}},
        "whole": {},
        "growth": {},
    }


def test_losses_are_marked():
    text = page([_made_up({"loop": 2.0, "pfl": 0.5})])
    assert "| **missed** |" in text
    assert "**x 0.5 (0.5 to 0.5): slower**" in text
    assert "50 % of the float32 limit" in text


def test_a_goal_asks_for_the_fastest_of_the_others():
    goal = next(g for g in GOALS if "fastest" in g.words)
    assert goal.verdict(_made_up({"loop": 2.0, "pfl": 1.1})) == "met"
    assert goal.verdict(_made_up({"loop": 2.0, "Flower simulation": 0.9})) == "**missed**"
    assert goal.verdict(_made_up({})) == "not measured"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_goal_names_a_scenario_that_is_measured(device, monkeypatch):
    monkeypatch.setattr(engine.torch.cuda, "is_available", lambda: True)
    asked = []

    class Asked(dict):
        def get(self, key, default=None):
            asked.append(key)
            return default

    for goal in GOALS:
        if goal.device == device:
            goal.measured({"scenarios": Asked(), "peaks": {"float32": 1.0}})
    assert asked
    assert set(asked) <= {s.name for s in engine.scenarios(engine.Options(device=device))}


def test_growth_is_measured_in_a_process_of_its_own():
    found = grow(Scenario("mlp", "fedavg", cohort=2, population=5, samples=10, data="synthetic"), 1, rounds=2)
    assert found["population"] == 5
    assert found["memory"]["peak"] >= found["memory"]["before"] > 10 * 2**20


def test_a_process_that_fails_says_why():
    with pytest.raises(alone.Failed, match="ours failed on mlp/fedavg/9.*9"):
        alone.alone(Scenario("mlp", "fedavg", cohort=9, population=5), "ours", 1, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "nothing"], "matches nothing; names are mlp/fedavg/10"),
        (["--device", "tpu"], "device"),
        (["--from", "absent.json", "--page", "p.md"], "is no report of"),
        (["--from", "absent.json"], "add --page FILE"),
        (["--page", "nowhere/p.md"], "--page: there is no folder"),
    ],
)
def test_mistakes_are_one_sentence(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["bench", "engine", *arguments])
    assert isinstance(done.exception, Refused)
    assert words in str(done.exception)


def test_a_file_that_is_no_report_is_refused(tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    with pytest.raises(Refused, match="is no report"):
        read([broken])


def test_a_precision_that_the_engine_lacks_is_refused_not_ignored(monkeypatch):
    monkeypatch.setattr(ours.dataclasses, "fields", lambda kind: ())
    assert ours.with_precision("float32") == {}
    with pytest.raises(Refused, match="leave --precision out"):
        ours.with_precision("tf32")


def test_parts_of_one_report_are_joined(report, tmp_path):
    whole = json.loads(report.read_text())
    paths = []
    for i, (name, row) in enumerate(whole["scenarios"].items()):
        part = whole | {"scenarios": {name: row}, "whole": whole["whole"] if i == 0 else {}}
        paths.append(tmp_path / f"{i}.json")
        paths[-1].write_text(json.dumps(part))
    other = tmp_path / "gpu.json"
    other.write_text(json.dumps(whole | {"about": whole["about"] | {"machine": "another"}}))
    first, second = read([*paths, other])
    assert first["scenarios"] == whole["scenarios"] and first["whole"] == whole["whole"]
    assert second["about"]["machine"] == "another"

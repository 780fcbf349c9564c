"""The command from end to end on tiny matrices, and the page that is made of its report."""

import json

import pytest
from typer.testing import CliRunner

from fedveil.bench import aggregate
from fedveil.cli import app
from fedveil.core.errors import Refused


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "report.json"
    arguments = ["bench", "aggregate", "--quick", "--repeats", "2", "--threads", "1"]
    done = CliRunner().invoke(app, [*arguments, "--json", str(path), "--page", str(path.with_suffix(".md"))])
    assert done.exit_code == 0, done.output
    return path


def test_every_rule_is_measured_and_the_page_is_computed(report):
    found = json.loads(report.read_text())
    assert set(found["scenarios"]) == {case.name for case in aggregate.cases(quick=True)}
    row = found["scenarios"]["krum"]["contenders"]
    assert row["ours"]["times_ours"]["median"] == 1
    assert row["byzfl"]["seconds"]["median"] > 0
    text = report.with_suffix(".md").read_text()
    assert f"{1e3 * row['byzfl']['seconds']['median']:.4g}" in text
    assert "A quick run" in text
    assert aggregate.page([found]) == text


def test_every_goal_is_measured_and_losses_are_marked(report):
    found = json.loads(report.read_text())
    assert all(goal.measured(found) is not None for goal in aggregate.goals())
    for row in found["scenarios"].values():
        for name, took in row["contenders"].items():
            if name != "ours":
                took["times_ours"] = dict.fromkeys(("median", "min", "max"), 0.1)
    text = aggregate.page([found])
    assert "**missed**" in text and "| met |" not in text
    assert "**x 0.1 (0.1 to 0.1): slower**" in text


def test_without_byzfl_its_rows_say_so(monkeypatch):
    monkeypatch.setattr(aggregate.byzfl, "installed", lambda: False)
    case = next(case for case in aggregate.cases(quick=True) if case.name == "median")
    found = aggregate.measure(case, aggregate.Options(repeats=1))
    assert found["contenders"]["byzfl"]["missing"].startswith("not installed; pip install")
    assert found["contenders"]["torch.sort"]["seconds"]["median"] > 0


def test_mistakes_are_refused():
    with pytest.raises(Refused, match="device"):
        aggregate.Options(device="tpu")
    with pytest.raises(Refused, match="repeats"):
        aggregate.Options(repeats=0)

"""The command from end to end on a tiny round, and the page that is made of its report."""

import json

import pytest
from tests.support import require
from typer.testing import CliRunner

from fedveil.bench import secagg
from fedveil.bench.secagg_page import goals, page
from fedveil.cli import app


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    require("flwr")
    path = tmp_path_factory.mktemp("bench") / "report.json"
    arguments = ["bench", "secagg", "--quick", "--json", str(path), "--page", str(path.with_suffix(".md"))]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return path


def test_a_report_has_times_ratios_and_the_floor(report):
    found = json.loads(report.read_text())
    row = found["rows"][0]
    assert found["quick"] and [r["setting"]["length"] for r in found["rows"]] == [2000, 4000]
    for who in ("client", "server"):
        mine, theirs = row["ours"][who], row["flower"][who]
        assert mine["total"]["median"] == pytest.approx(sum(mine["stages"].values()), rel=0.5)
        assert theirs["times_ours"]["median"] > 1
    assert row["masks"]["ratio"]["median"] >= 0.8
    assert row["bytes_up"] > 4 * 2000


def test_the_page_shows_every_goal_and_says_that_a_quick_run_means_nothing(report):
    text = report.with_suffix(".md").read_text()
    assert text == page(json.loads(report.read_text()))
    assert "its numbers mean nothing" in text
    assert all(words in text for words, *_ in goals(json.loads(report.read_text())))


def test_a_goal_that_is_missed_is_shown_as_missed(report):
    found = json.loads(report.read_text())
    found["rows"][0]["ours"]["client"]["total"] = {"median": 1.0, "min": 1.0, "max": 1.0}
    found["rows"][0]["flower"]["server"]["times_ours"] = {"median": 0.5, "min": 0.5, "max": 0.5}
    verdicts = {words: verdict for words, _, _, verdict in goals(found)}
    assert verdicts["client, ms"] == verdicts["Flower's primitives over ours, server"] == "**missed**"
    del found["rows"][0]["flower"]
    assert {words: v for words, _, _, v in goals(found)}["Flower's primitives over ours, server"] == "not measured"


def test_a_wrong_sum_stops_the_benchmark(monkeypatch):
    monkeypatch.setattr(secagg.Server, "_finish", lambda self: None)
    setting = secagg.Setting(clients=5, length=10)
    with pytest.raises(RuntimeError, match="the sum is wrong"):
        secagg.ours(setting, setting.vectors())


def test_a_folder_that_is_not_there():
    done = CliRunner().invoke(app, ["bench", "secagg", "--quick", "--json", "/nowhere/at/all.json"])
    assert "there is no folder /nowhere/at" in str(done.exception)

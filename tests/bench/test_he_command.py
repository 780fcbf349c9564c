"""The command from end to end on a tiny round, and the page that is made of its report."""

import json

import pytest
from tests.support import require
from typer.testing import CliRunner

from fedveil.bench.he_page import goals, overhead, page
from fedveil.cli import app


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    require("tenseal")
    path = tmp_path_factory.mktemp("bench") / "report.json"
    arguments = ["bench", "he", "--quick", "--json", str(path), "--page", str(path.with_suffix(".md"))]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "30 to 50 %" in done.output
    return path


def test_a_report_has_every_step_and_every_rival(report):
    row = json.loads(report.read_text())["rows"][0]
    mine = row["ours"]["seconds"]
    steps = (
        "client",
        "read uploads",
        "shares, norm check",
        "statistics",
        "entropy",
        "trimmed_mean",
        "deliver switched",
    )
    assert all(mine[step]["median"] > 0 for step in steps)
    assert 32 * 8192 / 3000 < mine["bytes"]["median"] < 36 * 8192 / 3000
    assert row["ours"]["dealer"]["trimmed_mean"]["median"] > 0
    assert row["ours"]["megabytes"]["shares, norm check"]["median"] > 2
    for rival in ("he", "tenseal"):
        assert row[rival]["seconds"]["servers"]["median"] > 0


def test_the_page_shows_every_goal_and_says_that_a_quick_run_means_nothing(report):
    found, text = json.loads(report.read_text()), report.with_suffix(".md").read_text()
    assert text == page(found)
    assert "its numbers mean nothing" in text
    assert all(words in text for words, *_ in goals(found))
    assert all(words in text for words, *_ in overhead(found["rows"][0]))

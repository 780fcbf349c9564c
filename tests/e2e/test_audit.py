"""``fedveil audit`` and ``fedveil demo inversion`` from the command line."""

import json
import os
import re
import subprocess
import sys

import pytest
from tests.report.pages import Page
from typer.testing import CliRunner

from fedveil.cli import app
from fedveil.core.errors import Refused


def fedveil(*arguments, cwd, expected=0):
    command = [sys.executable, "-m", "fedveil", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


LOCAL = ("method=dp_fedavg_local", "data=digits", "sigma=4.9", "rounds=20")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def inside(*arguments, expected=0):
    """The same command in this process, which starts faster."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == expected, done.output
    return done.output


def test_settings_are_audited_and_checked_for_power(here):
    out = fedveil("audit", *LOCAL, "out=a", "--json", "a.json", cwd=here)
    assert "HOLDS" in out and "the audit would have noticed" in out and re.search(r"\d s left", out)
    for words in ("claim  ", "lower bound, 95 %", "cap of so many guesses", "page: a/audit.html"):
        assert words in out
    found = json.loads((here / "a.json").read_text())
    assert found["verdict"] == "holds" and 0 < found["bound"] < found["claim"] < found["switched_off"]
    page = (here / "a" / "audit.html").read_text()
    assert len(Page(page).figures()) == 2
    report = (here / "a" / "report.html").read_text()
    assert 'href="audit.html"' in report and found["in_words"] in Page(report).text
    statement = json.loads((here / "a" / "statement.json").read_text())
    assert any("canaries.json" in note for note in statement["notes"]), "scores undo noise"
    assert found["claim"] == statement["rows"][0]["epsilon"]
    again = inside("audit", "a", "--guesses", "100")
    assert "100, " in again and "noise off" not in again, "a finished run is not trained again unless asked for"


def test_a_violated_claim_is_said_and_exits_with_one(here):
    out = inside("audit", *LOCAL, "--noise", "0", "--repeats", "2", "--json", "a.json", "out=a", expected=1)
    assert "above the claim in 2 of 2 audits" in " ".join(out.split())
    assert "nothing is claimed" in out
    assert [one["verdict"] for one in json.loads((here / "a.json").read_text())] == ["violated"] * 2
    assert (here / "a" / "001" / "audit.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("audit", "nowhere"), "this is no run folder"),
        (("audit", "nowhere", "--noise", "0.5"), "this one is finished"),
        (("audit", "method=fedavg"), "claims nothing that could be audited"),
        (("audit", *LOCAL, "--guesses", "7"), "--guesses: 7"),
        (("audit", *LOCAL, "rounds=1", "audit.canaries=50", "--guesses", "60"), "audit.guesses: 60"),
        (("audit", *LOCAL, "audit.canaries=5", "--canaries", "9"), "leave one of them out"),
        (("demo", "inversion", "model=cnn"), "use model=mlp or logistic"),
        (("demo", "inversion", "method=fedavg"), "the demonstration sets it itself"),
    ],
)
def test_mistakes_are_one_sentence(here, arguments, words):
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, Refused) and words in str(done.exception)


def test_the_inversion_shows_what_a_server_sees(here):
    out = inside("demo", "inversion", "--json", "i.json")
    assert "secure aggregation" in out and os.path.isfile("inversion.html")
    views = {v["protection"]: v for v in json.loads((here / "i.json").read_text())["views"]}
    for bare in ("nothing", "a clip alone"):
        assert min(views[bare]["likeness"]) > 0.999 and views[bare]["picked"] == 8
    mixed = views["eight examples"]
    assert mixed["held"] == 64 and mixed["exact"] >= 16, "a larger batch hides few of its examples"
    assert max(map(abs, views["ε = 8"]["likeness"])) < 0.5 and views["ε = 8"]["picked"] <= 1
    assert views["secure aggregation"]["picked"] <= 1
    assert views["ε = 8"]["exact"] == views["secure aggregation"]["exact"] == 0
    page = (here / "inversion.html").read_text()
    assert page.count('src="data:image/png;base64,') == 8 * (1 + len(views))
    assert "http://" not in page and "https://" not in page

"""LDP-FL and its shuffler as a person meets them: the command line, on the bundled digits."""

import subprocess
import sys

import orjson
from tests.e2e.test_command_line import refused

DIGITS = (
    "data=digits",
    "model=logistic",
    "population=10",
    "cohort=10",
    "privacy.epsilon=4",
    "lr=0.5",
    "local_epochs=3",
)


def fedveil(*arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "fedveil", *arguments], cwd=cwd, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_through_a_shuffler_of_its_own_process_that_is_resumed(tmp_path):
    """Layers sealed and shuffled by another process; cut after two rounds, it goes on as if it had not been."""
    settings = ("method=ldp_fl", "transport=shuffle", "split=layer", "transport.apart=true", *DIGITS)
    fedveil("run", *settings, "rounds=4", "out=whole", cwd=tmp_path)
    fedveil("run", *settings, "rounds=2", "out=cut", cwd=tmp_path)
    config = tmp_path / "cut" / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 2", "rounds: 4"))
    out = fedveil("resume", "cut", cwd=tmp_path)
    summaries = [orjson.loads((tmp_path / name / "summary.json").read_bytes()) for name in ("whole", "cut")]
    assert summaries[0]["model_hash"] == summaries[1]["model_hash"]
    assert summaries[0]["accuracy"] > 0.5
    assert "nominal" in out
    statement = (tmp_path / "cut" / "statement.md").read_text()
    assert "per weight and round" in statement
    assert "split=layer" in statement


def test_a_sealed_run_by_weight_with_losses(tmp_path):
    settings = ("transport=shuffle", "transport.loss=0.05", "transport.stragglers=0.1", "transport.least=0.6")
    fedveil("run", "method=ldp_fl", *settings, *DIGITS, "rounds=2", "out=run", cwd=tmp_path)
    events = [orjson.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_bytes().splitlines()]
    for event in events:
        parts = event["parts"]
        assert parts["sealed"] and parts["positions"] == 650
        assert 6 <= parts["smallest_crowd"] <= 10
        assert parts["arrived"] < parts["sent"] == 6500
        assert event["bytes_up"] > 6500 * 50, "what is sent is sealed parts"
    rows = orjson.loads((tmp_path / "run" / "statement.json").read_bytes())["rows"]
    (alone,) = [row for row in rows if row["observer"] == "server alone"]
    assert alone["status"] == "proved"
    assert "at least 6" in alone["note"]


def test_the_plan_says_what_a_run_would_cost(tmp_path):
    out = fedveil("run", "method=ldp_fl", *DIGITS, "rounds=3", "--plan", cwd=tmp_path)
    assert "two_point" in out and "nominal" in out


def test_options_before_the_calculator_are_not_lost(tmp_path):
    line = ("budget", "--delta", "1e-9", "ldp", "--clients", "9", "--epsilon", "1", "--dim", "5", "--rounds", "1")
    assert "--delta: it stands before ldp" in refused(*line, cwd=tmp_path)


def test_the_calculator(tmp_path):
    line = ("budget", "ldp", "--clients", "100", "--epsilon", "1", "--dim", "21840", "--rounds", "10")
    out = fedveil(*line, "--json", "b.json", cwd=tmp_path)
    assert "218,400" in out
    rows = orjson.loads((tmp_path / "b.json").read_bytes())
    assert rows[1]["epsilon"] == 218_400
    assert abs(rows[-1]["epsilon"] / 2021 - 1) < 0.05
    assert f"{rows[-1]['epsilon']:,.0f}" in out

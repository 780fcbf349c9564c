"""Transports that hide single uploads, from the command line."""

import stat
import subprocess
import sys

import orjson
from tests.support import require


def fedveil(*arguments, cwd, code=0):
    command = [sys.executable, "-m", "fedveil", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def rows(folder):
    return {(r["observer"], r["unit"]): r for r in orjson.loads((folder / "statement.json").read_bytes())["rows"]}


DIGITS = ("data=digits", "population=40", "cohort=40", "model=logistic", "clip_norm=1", "lr=1", "steps=5", "batch=16")


def test_distributed_noise_over_masks_is_proved_towards_server_and_public(tmp_path):
    out = fedveil(
        "run", "method=ddp_fedavg", "transport=masks", "transport.dropout=0.1", *DIGITS, "rounds=10", "privacy.epsilon=8",
        "out=run", cwd=tmp_path,
    )  # fmt: skip
    found = rows(tmp_path / "run")
    for observer in ("server", "public"):
        row = found[observer, "client"]
        assert row["status"] == "proved" and 7.9 < row["epsilon"] <= 8
        assert row["mechanism"] == "skellam (client, shared by clients)"
        assert "at least 32 uploads, at most a = 4 clients" in row["note"] and "n_min = 28" in row["note"]
        assert found[observer, "record"]["status"] == "proved"
    events = [orjson.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_bytes().splitlines()]
    assert all(sum(e["masks"]["dropped"].values()) == 4 for e in events)
    assert orjson.loads((tmp_path / "run" / "summary.json").read_bytes())["accuracy"] > 0.7
    assert "proved" in out and "(client, server)" in out


def test_without_masks_shared_noise_is_refused_in_one_sentence(tmp_path):
    out = fedveil("run", "method=ddp_fedavg", *DIGITS, "privacy.epsilon=8", cwd=tmp_path, code=2)
    assert "set transport=masks" in out and "Traceback" not in out


def test_its_plan_is_that_of_the_run(tmp_path):
    out = fedveil(
        "run", "method=ddp_fedavg", "transport=masks", *DIGITS, "privacy.epsilon=8", "rounds=10", "--plan", cwd=tmp_path
    )
    assert "skellam" in out and "proved" in out


def test_keys_are_made_and_used(tmp_path):
    require("tenseal")
    out = fedveil("keys", "new", "--clients", "8", "--out", "keys", cwd=tmp_path)
    assert "delete all of it here" in out
    assert stat.S_IMODE((tmp_path / "keys" / "computer" / "share.key").stat().st_mode) == 0o600
    settings = ("method=fedavg", "data=digits", "population=8", "cohort=8", "model=logistic", "rounds=2")
    fedveil("run", *settings, "transport=he", "transport.keys=keys", "out=hidden", cwd=tmp_path)
    fedveil("run", *settings, "out=plain", cwd=tmp_path)
    hidden, plain = (orjson.loads((tmp_path / f / "summary.json").read_bytes()) for f in ("hidden", "plain"))
    assert abs(hidden["loss"] - plain["loss"]) < 1e-5 and hidden["accuracy"] == plain["accuracy"]
    again = fedveil("keys", "new", "--clients", "8", "--out", "keys", cwd=tmp_path, code=2)
    assert "not empty" in again
    few = fedveil(
        "run", *settings[:2], "population=9", "cohort=9", "transport=he", "transport.keys=keys", cwd=tmp_path, code=2
    )
    assert "sums of 8 clients, and 9 take part" in few

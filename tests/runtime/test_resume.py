"""Killed, interrupted, damaged: a resumed run ends with the very same parameters."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest
from tests.support import blobs

import fedveil
from fedveil.core.errors import Refused
from fedveil.privacy.ledger import Ledger
from fedveil.runtime.folder import Folder

SETTINGS = (
    "method=scaffold",
    "data.partition=dirichlet",
    "data.alpha=0.3",
    "cohort=4",
    "rounds=60",
    "steps=4",
    "momentum=0.5",
    "server_momentum=0.3",
    "threads=1",
)


def fedveil_command(*arguments, **kw):
    return subprocess.Popen(
        [sys.executable, "-m", "fedveil", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kw
    )


def finish(process, expected=0):
    out, err = process.communicate(timeout=120)
    assert process.returncode == expected, err
    return out, err


def wait_for_round(folder: Path, number: int):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if len(Folder(folder).read_events()) >= number:
            return
        time.sleep(0.005)
    raise AssertionError("the run never got there")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(fedveil_command("run", *SETTINGS, f"out={folder}", "--quiet"))
    return folder


def model(folder):
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("every", [1, 7])
def test_a_stopped_run_resumes_bit_for_bit(tmp_path, uninterrupted, how, every):
    folder = tmp_path / "run"
    process = fedveil_command("run", *SETTINGS, f"out={folder}", f"checkpoint.every={every}")
    wait_for_round(folder, 12)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if how == signal.SIGKILL else 130)
    assert not (folder / "summary.json").exists(), "the run was stopped in the middle"
    done = len(Folder(folder).read_events())
    if how != signal.SIGKILL:
        assert f"fedveil resume {folder}" in err
        saved = max(int(p.name[6:]) for p in (folder / "checkpoint").glob("round-*"))
        assert done - saved <= 1, "Ctrl-C loses at most one round"
    finish(fedveil_command("resume", str(folder), "--quiet"))
    assert model(folder) == model(uninterrupted)
    timeless = [{k: v for k, v in e.items() if k != "seconds"} for e in Folder(folder).read_events()]
    assert timeless == [{k: v for k, v in e.items() if k != "seconds"} for e in Folder(uninterrupted).read_events()]


def test_resuming_twice_and_from_an_earlier_checkpoint(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    for target in (5, 20):
        process = fedveil_command(*(("run", *SETTINGS, f"out={folder}") if target == 5 else ("resume", str(folder))))
        wait_for_round(folder, target)
        process.kill()
        process.communicate()
    newest = max((folder / "checkpoint").glob("round-*"))
    server = newest / "server.safetensors"
    server.write_bytes(server.read_bytes()[:-10])
    out, _ = finish(fedveil_command("resume", str(folder)))
    assert "is damaged" in out
    assert model(folder) == model(uninterrupted)


def test_a_finished_run_can_be_resumed_without_harm(uninterrupted):
    before = model(uninterrupted)
    finish(fedveil_command("resume", str(uninterrupted), "--quiet"))
    assert model(uninterrupted) == before


def test_two_processes_never_train_the_same_run(tmp_path):
    folder = tmp_path / "run"
    process = fedveil_command("run", *SETTINGS, f"out={folder}", "rounds=2000", "--quiet")
    try:
        wait_for_round(folder, 2)
        _, err = finish(fedveil_command("resume", str(folder)), expected=2)
        assert "another process is training this run" in err
    finally:
        process.kill()
        process.communicate()


def test_a_torn_event_line_is_dropped(tmp_path):
    result = fedveil.run(data=blobs(), rounds=3, out=tmp_path / "run")
    with result.folder.events.open("ab") as file:
        file.write(b'{"round": 4, "acc')
    assert [e["round"] for e in result.folder.read_events()] == [1, 2, 3]


def test_parts_handed_in_from_python_are_asked_for_again(tmp_path):
    result = fedveil.run(data=blobs(), rounds=2, out=tmp_path / "run")
    with pytest.raises(Refused, match="data was handed in from Python"):
        fedveil.resume(tmp_path / "run")
    assert fedveil.resume(tmp_path / "run", data=blobs()).summary["model_hash"] == result.summary["model_hash"]


def test_same_seed_same_model_other_seed_other_model(tmp_path):
    hashes = [
        fedveil.run("rounds=3", method="scaffold", seed=seed, out=tmp_path / str(i)).summary["model_hash"]
        for i, seed in enumerate((1, 1, 2))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_summary_has_what_scripts_read(uninterrupted):
    summary = orjson.loads((uninterrupted / "summary.json").read_bytes())
    wanted = {
        "method",
        "data",
        "rounds",
        "accuracy",
        "loss",
        "worst10_accuracy",
        "seconds",
        "seconds_per_round",
        "engine",
    }
    assert wanted | {"statement"} <= set(summary)
    assert summary["rounds"] == 60
    assert os.path.getsize(uninterrupted / "report.html") > 10_000


PRIVATE = """
from fedveil.aggregate.mean import Mean
from fedveil.core.method import Method
from fedveil.core.stage import chain
from fedveil.local.rules import Scaffold
from fedveil.privacy.clip import clip
from fedveil.privacy.noise import gaussian
from fedveil.transport.plain import Plain


def noisy(multiplier: float = 5.0) -> Method:
    noise = chain(clip(1.0), gaussian(multiplier))
    return Method(name="noisy", local=Scaffold(), on_delta=noise, transport=Plain(), aggregate=Mean())
"""


def test_a_killed_private_run_resumes_bit_for_bit_at_one_charge_a_round(tmp_path):
    (tmp_path / "recipes.py").write_text(PRIVATE)
    settings = ("method=recipes:noisy", "rounds=40", "cohort=4", "privacy.epsilon=20", "threads=1")
    finish(fedveil_command("run", *settings, "out=whole", "--quiet", cwd=tmp_path))
    process = fedveil_command("run", *settings, "out=run", cwd=tmp_path)
    wait_for_round(tmp_path / "run", 10)
    process.kill()
    process.communicate()
    assert not (tmp_path / "run/summary.json").exists()
    finish(fedveil_command("resume", "run", "--quiet", cwd=tmp_path))
    assert model(tmp_path / "run") == model(tmp_path / "whole")
    ledgers = [Ledger.replay(tmp_path / name / "ledger.jsonl") for name in ("run", "whole")]
    assert ledgers[0].entries == ledgers[1].entries
    assert [e.round for e in ledgers[0].entries] == list(range(1, 41))
    statements = [(tmp_path / name / "statement.json").read_bytes() for name in ("run", "whole")]
    assert statements[0] == statements[1]

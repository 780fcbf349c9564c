"""Flower's simulation from the command line: the same run, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from tests.flower.common import in_process, same, training_of
from tests.support import require

import fedveil
from fedveil.core.errors import Refused
from fedveil.runtime.folder import Folder

require("flwr")
require("ray")

SETTINGS = ("method=scaffold", "data=digits", "population=6", "cohort=4", "model=logistic", "steps=3", "batch=16",
            "lr=0.5", "engine=sequential")  # fmt: skip
NOTHING = (set(), set(), [])
FLOWER = ("runtime=flower", "runtime.workers=2")


class Command:
    """A command in a session of its own, and everything that it has started."""

    def __init__(self, *arguments, cwd):
        self.temporary = tempfile.TemporaryDirectory(prefix="t", dir="/tmp")  # Ray's sockets need a short path
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedveil", *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True, env=os.environ | {"TMPDIR": self.temporary.name},
        )  # fmt: skip
        self.family, self.ports, self.lines = set(), set(), []

    def until(self, beginning):
        """Read on to this line; note who is there, and which ports they listen at."""
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith(beginning):
                break
        self.family |= descendants(self.process.pid)
        self.ports |= listening(self.family)

    def end(self):
        out, _ = self.process.communicate(timeout=280)
        self.lines.append(out)
        return self.process.returncode

    def left(self):
        """Processes, ports and files that outlive the command."""
        files = os.listdir(self.temporary.name)
        self.temporary.cleanup()
        return {p for p in self.family if alive(p)}, {p for p in self.ports if p in listening(None)}, files


def descendants(root):
    children, found = {}, set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), []):
            found.add(child)
            queue.append(child)
    return found


def alive(process):
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def listening(processes):
    """Ports that these processes (None: anybody) listen at."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                sockets[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
    if processes is None:
        return set(sockets.values())
    found = set()
    for process in processes:
        with suppress(OSError):
            found |= {sockets.get(os.readlink(f)) for f in Path(f"/proc/{process}/fd").iterdir() if f.is_symlink()}
    return found - {None}


def test_an_interrupted_simulation_goes_on_and_leaves_nothing_behind(tmp_path):
    command = Command("run", *SETTINGS, *FLOWER, "rounds=100", "out=run", cwd=tmp_path)
    command.until("round 10/")
    assert len(command.family) >= 4 and command.ports  # Ray is really there
    os.killpg(command.process.pid, signal.SIGINT)
    assert command.end() == 130 and "go on with `fedveil resume" in command.lines[-1]
    assert command.left() == NOTHING
    folder = Folder(tmp_path / "run")
    done = len(folder.read_events())
    assert 10 <= done < 100
    text = folder.config.read_text().replace("rounds: 100", f"rounds: {done + 5}")
    folder.config.write_text(text)
    again = Command("resume", "run", cwd=tmp_path)
    again.until("round")
    assert again.end() == 0, again.lines
    assert again.left() == NOTHING
    training = training_of(*SETTINGS, f"rounds={done + 5}")
    same(in_process(training, tmp_path / "here")[2], folder, 1e-6)
    assert (folder.path / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["term", "error"])
def test_nothing_is_left_behind_after_a_failure(tmp_path, how):
    (tmp_path / "nets.py").write_text(
        "import os, torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self, input_shape, classes):\n"
        "        super().__init__(64, classes)\n"
        "    def forward(self, x):\n"
        "        if os.path.exists('broken') and not self.training:\n"
        "            raise RuntimeError('the model is broken')\n"
        "        return super().forward(x.flatten(1))\n"
    )
    settings = [s for s in SETTINGS if not s.startswith("model")]
    command = Command("run", *settings, *FLOWER, "model=nets:Net", "rounds=100", "out=run", cwd=tmp_path)
    command.until("round 10/")
    if how == "term":
        command.process.send_signal(signal.SIGTERM)
    else:
        (tmp_path / "broken").touch()
    assert command.end() == (130 if how == "term" else 1)
    assert command.left() == NOTHING


METHODS = {
    "fedavg": ("method=fedavg",),
    "scaffold": ("method=scaffold",),
    "dp_fedavg_local": ("method=dp_fedavg_local", "algorithm_variant=step_noise", "clip_norm=1", "sigma=1"),
    "dp_scaffold_stein": ("method=dp_scaffold_stein", "clip_norm=1", "sigma=1"),
    "dp_fedavg_central": ("method=dp_fedavg_central", "clip_norm=1", "sigma=1"),
    "ddp_fedavg": ("method=ddp_fedavg", "transport=masks", "clip_norm=1", "sigma=1", "population=12", "cohort=10"),
    "ldp_fl": ("method=ldp_fl", "transport=shuffle", "privacy.epsilon=2", "split=layer"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-10)])
def test_every_method_gives_the_same_run_on_a_cluster_of_two_machines(tmp_path, dtype, tolerance):
    words = {name: (*SETTINGS[1:], *own, f"dtype={dtype}", "rounds=3") for name, own in METHODS.items()}
    done = subprocess.run(
        [sys.executable, "-m", "tests.flower.on_ray", str(tmp_path)], capture_output=True, text=True, timeout=900,
        input="".join(json.dumps([name, given]) + "\n" for name, given in words.items()),
    )  # fmt: skip
    assert done.stdout.split() == list(METHODS), done.stderr
    for name, given in words.items():
        same(in_process(training_of(*given), tmp_path / f"here-{name}")[2], Folder(tmp_path / name), tolerance)


@pytest.mark.slow
def test_two_servers_on_nodes_give_the_same_run_on_ray(tmp_path):
    """Numbers have a fixed point there, of 26 bits below the norm bound: equal to 1e-6, whatever the data type."""
    require("tenseal")
    settings = ("method=apa_fl", "sigma=0.1", "clip_norm=1", "declared_f=1", "cohort=5", "aggregate.window=2")
    words = (*SETTINGS[1:], *settings, "privacy.rng=seeded", "rounds=2")
    run = Command("run", *words, *FLOWER, "out=run", cwd=tmp_path)
    run.until("round 2/")
    assert run.end() == 0, run.lines
    assert run.left()[:2] == NOTHING[:2]
    folder = Folder(tmp_path / "run")
    same(in_process(training_of(*words), tmp_path / "here")[2], folder, 1e-6)
    assert len((folder.nodes / "S1.jsonl").read_bytes().splitlines()) == 2
    assert "each on a node of its own" in folder.statement.with_suffix(".md").read_text()


def test_a_cluster_that_is_not_there_is_named_in_one_sentence(tmp_path):
    with pytest.raises(Refused, match=r"runtime.ray_address: no Ray on 127.0.0.1:1 \("):
        fedveil.run(*SETTINGS, *FLOWER, "runtime.ray_address=127.0.0.1:1", "rounds=1", out=tmp_path / "run")

"""A federation on this machine, with TLS and node authentication, as its operators start it.

Every process carries a mark of its own federation in its environment, so that all of them are found again, and nobody
else's.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

MARK = "FEDVEIL_TEST_FEDERATION"
PART = "FEDVEIL_TEST_PART"
COMMAND = [sys.executable, "-m", "fedveil"]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def listening(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def until(done: Callable[[], object], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:g} s")
        time.sleep(0.2)


@dataclass
class Machines:
    """A folder that ``fedveil deploy init`` wrote, and what was started from it."""

    root: Path
    sites: int = 3
    settings: str = ""
    roles: tuple[str, ...] = ()
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    port: int = field(default_factory=free_port)
    ports: dict[str, int] = field(default_factory=dict)
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.root / "federation"
        command = ["deploy", "init", str(self.folder), "--host", "localhost", "--listen", "127.0.0.1"]
        command += ["--port", str(self.port), "--sites", str(self.sites)]
        done = self.call([*COMMAND, *command, *(word for role in self.roles for word in ("--role", role))])
        assert done.returncode == 0, done.stderr
        for name in self.names:
            self.place(name)
        if self.settings:
            (self.folder / "superlink/settings.txt").write_text(self.settings)

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def names(self) -> list[str]:
        return [*(f"site-{k + 1}" for k in range(self.sites)), *self.roles]

    @property
    def run_folder(self) -> Path:
        return self.folder / "superlink/state/runs/first"

    def place(self, name: str) -> None:
        """Free ports, and a data file of its own, for a site."""
        place = self.folder / "sites" / name
        self.ports[name] = free_port()
        text = re.sub(r"LOCAL_PORT=.*", f"LOCAL_PORT={self.ports[name]}", (place / "site.conf").read_text())
        (place / "site.conf").write_text(text)
        data = self.root / f"{name}.npz"
        if not data.exists():
            examples(data, len(self.ports))
        toml = (place / "site.toml").read_text()
        (place / "site.toml").write_text(re.sub(r'data = ".*"', f'data = "{data}"', toml))

    def environment(self, part: str) -> dict[str, str]:
        extra = {MARK: self.mark, PART: part, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
        return {**os.environ, **extra, "PYTHONUNBUFFERED": "1"}

    def call(self, command: list[str], part: str = "command", timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment(part), capture_output=True, text=True, timeout=timeout, check=False
        )

    def start(self, part: str, command: list[str]) -> None:
        with self.log(part).open("ab") as file:
            self.started[part] = subprocess.Popen(
                command, env=self.environment(part), stdout=file, stderr=file, start_new_session=True
            )

    def log(self, part: str) -> Path:
        return self.root / f"{part}.log"

    def said(self, part: str) -> str:
        return self.log(part).read_text() if self.log(part).exists() else ""

    def superlink(self) -> None:
        self.start("superlink", [str(self.folder / "superlink/start.sh")])
        until(lambda: listening(self.port) or self.died("superlink"), 60, "the SuperLink listens")

    def register(self) -> None:
        done = self.call([str(self.folder / "superlink/register.sh")])
        assert done.returncode == 0, done.stdout + done.stderr

    def alive(self, part: str) -> bool:
        return self.started[part].poll() is None

    def died(self, part: str) -> bool:
        """Never true: a process that ended too early is an error."""
        assert self.started[part].poll() is None, self.said(part)[-3000:]
        return False

    def site(self, name: str) -> None:
        self.start(name, [str(self.folder / "sites" / name / "start.sh")])

    def run(self, *more: str) -> None:
        """Start (or go on with) the run; its output is the log of ``run``."""
        self.kill("run")
        self.log("run").unlink(missing_ok=True)
        self.start("run", [str(self.folder / "superlink/run.sh"), "first", *more])

    def finished(self) -> bool:
        assert "Exit Code" not in self.said("run") and self.started["run"].poll() in (None, 0), self.said("run")[-3000:]
        return (self.run_folder / "summary.json").is_file() and "report:" in self.said("run")

    def events(self) -> list[dict[str, object]]:
        path = self.run_folder / "events.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [orjson.loads(line) for line in lines]

    def summary(self) -> dict[str, object]:
        found: dict[str, object] = orjson.loads((self.run_folder / "summary.json").read_bytes())
        return found

    def processes(self, part: str | None = None) -> list[int]:
        """Everything of this federation (or of a part of it) that is alive."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                variables = entry.read_bytes().split(b"\0")
                mine = f"{MARK}={self.mark}".encode() in variables
                if mine and (part is None or f"{PART}={part}".encode() in variables):
                    found.append(int(entry.parent.name))
        return found

    def kill(self, part: str) -> None:
        """As a power cut would."""
        for _ in range(5):
            for number in self.processes(part):
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        if part in self.started:
            self.started.pop(part).wait(10)

    def stop(self) -> list[int]:
        """Ctrl-C for everybody; what is left after that is returned, and killed."""
        for process in self.started.values():
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)
        end = time.monotonic() + 20
        while self.processes() and time.monotonic() < end:
            for process in self.started.values():
                process.poll()
            time.sleep(0.2)
        left = self.processes()
        for number in left:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        for process in self.started.values():
            process.wait(10)
        return left


def examples(path: Path, seed: int, rows: int = 120) -> None:
    """Two classes that a line tells apart."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 5)).astype(np.float32)
    y = (x @ np.array([2.0, -1.0, 1.0, 0.5, 0.0]) > 0).astype(np.int64)
    np.savez(path, x=x, y=y)

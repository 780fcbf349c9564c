"""The run folder: which file is where, written so that a crash never leaves half a file (DESIGN 4)."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from omegaconf import OmegaConf

from fedveil.core.errors import Refused
from fedveil.core.files import write_bytes


def write_json(path: Path, data: Any) -> None:
    """Replace a JSON file in one step; numbers that JSON does not have (NaN, infinity) become null."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    write_bytes(path, orjson.dumps(data, option=options))


def read_json(path: Path, *keys: str) -> Any:
    """Read a JSON file of a run with (at least) these keys, or say in one sentence why it cannot be read."""
    try:
        data = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise Refused(f"{path}: the file is missing; the run folder is not complete") from None
    except orjson.JSONDecodeError as problem:
        raise Refused(f"{path}: cannot be read ({problem}); the run folder is damaged") from None
    missing = [key for key in keys if not isinstance(data, dict) or key not in data]
    if missing:
        raise Refused(f"{path}: {missing[0]!r} is missing; the run folder is damaged")
    return data


@dataclass(frozen=True)
class Folder:
    """Paths of one run."""

    path: Path

    @classmethod
    def create(cls, out: str | Path | None, label: str) -> Folder:
        """A new folder: ``out`` itself, or ``runs/<time>-<label>``; a folder with a run in it is not touched."""
        if out is not None:
            path = Path(out)
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise Refused(
                    f"out: {path} exists and is not empty; give another folder, or go on with `fedveil resume {path}`"
                )
        else:
            path = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', label)}"
        try:
            return cls(_make(path, exist_ok=out is not None))
        except OSError as problem:
            raise Refused(f"out: {path} cannot be created ({problem.strerror}); give another folder") from None

    @classmethod
    def existing(cls, path: str | Path) -> Folder:
        """The folder of an earlier run."""
        folder = cls(Path(path))
        if not folder.config.is_file():
            raise Refused(f"{path}: this is no run folder (no config.yaml); give the folder that `fedveil run` printed")
        return folder

    @property
    def config(self) -> Path:
        """Every setting, resolved."""
        return self.path / "config.yaml"

    @property
    def events(self) -> Path:
        """One line per round."""
        return self.path / "events.jsonl"

    @property
    def clients(self) -> Path:
        """Who took part: sizes, class counts, final accuracy of each client."""
        return self.path / "clients.json"

    @property
    def ledger(self) -> Path:
        """Every release, charged before it happened; one line per round."""
        return self.path / "ledger.jsonl"

    @property
    def noise(self) -> Path:
        """The multipliers that were calibrated to the budget, where they were: a resumed run keeps them."""
        return self.path / "noise.json"

    @property
    def statement(self) -> Path:
        """The privacy statement; the same as a table stands in ``statement.md``."""
        return self.path / "statement.json"

    @property
    def canaries(self) -> Path:
        """What was heard of the canaries of a run that had some, for ``fedveil audit``."""
        return self.path / "canaries.json"

    @property
    def summary(self) -> Path:
        """The outcome in one small file."""
        return self.path / "summary.json"

    @property
    def model(self) -> Path:
        """The final global model."""
        return self.path / "model.safetensors"

    @property
    def checkpoint(self) -> Path:
        """What a resumed run starts from."""
        return self.path / "checkpoint"

    @property
    def nodes(self) -> Path:
        """What clients remember in a simulation over Flower: each node's own."""
        return self.path / "nodes"

    @property
    def report(self) -> Path:
        """The page for people."""
        return self.path / "report.html"

    def save_config(self, config: dict[str, Any]) -> None:
        """Write every setting of the run."""
        write_bytes(self.config, OmegaConf.to_yaml(OmegaConf.create(config)).encode())

    def append_event(self, record: dict[str, Any]) -> None:
        """Add one round's line."""
        with self.events.open("ab") as file:
            file.write(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))

    def read_events(self, up_to: int | None = None) -> list[dict[str, Any]]:
        """The lines of whole rounds; a torn last line is not one."""
        records = []
        for line in self.events.read_bytes().splitlines() if self.events.exists() else []:
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                break
            if up_to is None or record["round"] <= up_to:
                records.append(record)
        return records

    def rewrite_events(self, records: list[dict[str, Any]]) -> None:
        """Drop the lines of rounds that will run again."""
        write_bytes(self.events, b"".join(orjson.dumps(r, option=orjson.OPT_APPEND_NEWLINE) for r in records))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder, so that two processes never train the same run."""
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refused(f"{self.path}: another process is training this run; wait for it or stop it") from None
            yield


def _make(path: Path, *, exist_ok: bool) -> Path:
    """Create a folder; two runs of the same second get two of them, even when they start at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        numbered = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            numbered.mkdir(exist_ok=exist_ok)
            return numbered
        except FileExistsError:
            if exist_ok:
                raise
    raise FileExistsError(17, "too many runs in one second", str(path))

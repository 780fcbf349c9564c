"""Run folders under a root: found without following links, opened only inside it, read again only when changed."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fedveil.core.errors import Refused
from fedveil.report.read import Run, read_run
from fedveil.report.rows import Row, row

FILES = ("config.yaml", "events.jsonl", "clients.json", "statement.json", "summary.json", "audit.json")
"""What a run is shown from; no other file of a run folder is ever opened."""
MARKS = ("config.yaml", "events.jsonl", "summary.json")
DEPTH = 4
MOST = 2000
RECENT = 30.0
"""Where locks cannot be seen, a run that wrote something so many seconds ago counts as running."""

Signature = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Found:
    """A folder that is, or was meant to be, a run."""

    name: str
    status: str
    row: Row | None
    trouble: str | None
    changed: float
    version: str
    """Changes when anything of this does."""


class Outside(LookupError):
    """No such run under the root."""


@dataclass(eq=False)
class Folders:
    """The runs and matrices under a root."""

    root: Path
    cache: dict[str, tuple[Signature, Row | None, str | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = self.root.absolute()

    def names(self) -> list[str]:
        """Every run folder, as its path below the root."""
        return sorted(name for name, files in self._walk() if any(mark in files for mark in MARKS))

    def matrices(self) -> list[str]:
        """Every folder that ``fedveil matrix`` wrote."""
        return sorted(name for name, files in self._walk() if "matrix.json" in files)

    def _walk(self) -> Iterator[tuple[str, set[str]]]:
        """Folders and their plain files; neither links nor what lies inside a run folder."""
        seen, level = 0, [""]
        for _ in range(DEPTH):
            below = []
            for name in level:
                try:
                    entries = list(os.scandir(self.root / name))
                except OSError:
                    continue
                files = {e.name for e in entries if e.is_file(follow_symlinks=False)}
                if name:
                    yield name, files
                    seen += 1
                if seen >= MOST:
                    return
                if name and any(mark in files for mark in MARKS):
                    continue
                folders = (e.name for e in entries if e.is_dir(follow_symlinks=False) and _shown(e.name))
                below += [f"{name}/{inner}" if name else inner for inner in folders]
            level = below

    def place(self, name: str) -> Path:
        """The folder of a name; a name that leads out of the root, or over a link, names nothing."""
        parts = name.split("/")
        if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
            raise Outside(name)
        path = self.root
        for part in parts:
            path = path / part
            try:
                if not stat.S_ISDIR(path.lstat().st_mode):
                    raise Outside(name)
            except OSError:
                raise Outside(name) from None
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise Outside(name)
        return path

    def run(self, name: str) -> Path:
        """The folder of a name that is, or was meant to be, a run."""
        folder = self.place(name)
        if not any(os.path.lexists(folder / mark) for mark in MARKS):
            raise Outside(name)
        return folder

    def read(self, name: str) -> Run:
        """A run by its name; refused in words where its folder is damaged."""
        folder = self.run(name)
        for file in FILES:
            try:
                kind = (folder / file).lstat().st_mode
            except OSError:
                continue
            if not stat.S_ISREG(kind):
                raise Refused(f"{file} is no plain file; links and devices are not followed")
        try:
            return read_run(folder)
        except Refused:
            raise
        except Exception as problem:  # a file edited into something no reader foresaw must not hide the other runs
            raise Refused(f"cannot be read ({type(problem).__name__}); the run folder is damaged") from None

    def find(self, name: str) -> Found:
        """What the list says of a run; whatever is wrong with one folder stays with that folder."""
        folder = self.run(name)
        now = signature(folder)
        kept = self.cache.get(name)
        if kept is None or kept[0] != now:
            made, trouble = None, None
            try:
                made = row(self.read(name), name)
            except Refused as refusal:
                trouble = str(refusal)
            except Exception as problem:
                trouble = f"cannot be read ({type(problem).__name__})"
            kept = self.cache[name] = (now, made, trouble)
        changed = max(mtime for _, mtime, _ in now) / 1e9
        going = self.running(folder, changed)
        if going and kept[1] is None and not (folder / "events.jsonl").exists():
            return Found(name, "running", None, "is starting", changed, version(now, going))
        status = "damaged" if kept[1] is None else "running" if going else kept[1].status
        return Found(name, status, kept[1], kept[2], changed, version(now, going))

    def all(self) -> list[Found]:
        """Every run, the newest first."""
        return sorted((self.find(name) for name in self.names()), key=lambda found: (-found.changed, found.name))

    def running(self, folder: Path, changed: float) -> bool:
        """Whether a process holds the run; the lock itself is never touched, so that nobody is kept from training."""
        try:
            number = (folder / ".lock").lstat().st_ino
            held = Path("/proc/locks").read_text("ascii", "replace")
        except FileNotFoundError:
            if not (folder / ".lock").exists():
                return False
            return not (folder / "summary.json").exists() and time.time() - changed < RECENT
        except OSError:
            return False
        return any(":" in word and word.rsplit(":", 1)[1] == str(number) for word in held.split())


def _shown(name: str) -> bool:
    """Whether a folder is looked at: it is not hidden, and its name is text that an address can hold."""
    return not name.startswith(".") and "\\" not in name and name.isprintable()


def signature(folder: Path) -> Signature:
    """Changes when a file of the run does."""
    found = []
    for file in FILES:
        try:
            about = (folder / file).lstat()
            found.append((about.st_ino, about.st_mtime_ns, about.st_size))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)


def version(*parts: object) -> str:
    """A short word that changes when anything in it does."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()

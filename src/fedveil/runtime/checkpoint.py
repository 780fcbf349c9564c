"""Checkpoints: the server's vectors, and the memories that changed, with check sums (SPEC: resume bit for bit).

``checkpoint/round-000012/`` holds ``server.safetensors`` and ``state.json``; clients' memories stand in
``checkpoint/memory/000012.safetensors``, one file per checkpoint with the rows that changed since the one before,
so that a round writes its cohort and not its population. ``state.json`` names every file that it needs with its
check sum; a checkpoint counts only when all of them agree.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedveil.core.errors import Refused
from fedveil.core.files import write_bytes
from fedveil.core.parts import State
from fedveil.runtime.folder import write_json
from fedveil.runtime.memory import Memory

KEEP = 2
FORMAT = 1


class Broken(Exception):
    """A checkpoint that does not agree with its own check sums."""


@dataclass(eq=False)
class Progress:
    """Where a run stands after a complete round."""

    round: int
    server: State
    memory: Memory
    seconds: float = 0.0
    best: float | None = None
    """Best test accuracy so far, for ``stop.patience``."""
    stale: int = 0
    """Evaluations since then."""
    stopped: str | None = None
    """Why the run ended before its last round."""
    ledger: str = ""
    """Head of the ledger under which these rounds were charged."""
    homes: dict[int, str] = field(default_factory=dict)
    """The memory file that holds each client's row."""


def save_progress(root: Path, progress: Progress) -> None:
    """Write a checkpoint beside the old ones, make it count by one rename, then drop what nobody needs."""
    memories = root / "memory"
    memories.mkdir(parents=True, exist_ok=True)
    label = f"{progress.round:06d}"
    for folder in _checkpoints(root):
        if int(folder.name.removeprefix("round-")) >= progress.round:
            shutil.rmtree(folder)  # damaged ones that a resumed run left behind
    known = _known_digests(root)
    if progress.memory.changed:
        ids = sorted(progress.memory.changed)
        rows = torch.stack([progress.memory.rows[i] for i in ids])
        name = f"{label}.safetensors"
        write_bytes(memories / name, save({"clients": torch.tensor(ids), "rows": rows.cpu()}))
        progress.homes |= dict.fromkeys(ids, name)
        known.pop(f"memory/{name}", None)
        progress.memory.changed.clear()
    draft = root / f".round-{label}.tmp"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    write_bytes(draft / "server.safetensors", save({k: v.cpu() for k, v in progress.server.items()}))
    files = {"server.safetensors": _digest(draft / "server.safetensors")}
    homes = _by_file(progress.homes)
    files |= {f"memory/{n}": known.get(f"memory/{n}") or _digest(memories / n) for n in homes}
    state = {
        "format": FORMAT,
        "round": progress.round,
        "seconds": progress.seconds,
        "best": progress.best,
        "stale": progress.stale,
        "stopped": progress.stopped,
        "ledger": progress.ledger,
        "memory": homes,
        "files": files,
    }
    body = orjson.dumps(state)
    write_json(draft / "state.json", {"state": state, "digest": hashlib.blake2b(body, digest_size=16).hexdigest()})
    draft.rename(root / f"round-{label}")
    _drop_old(root)


def load_progress(root: Path, memory: Memory) -> tuple[Progress, list[str]]:
    """The newest checkpoint that is whole, and a sentence for every newer one that is not.

    ``memory`` says what shape rows must have; it is filled in.
    """
    problems: list[str] = []
    for folder in reversed(_checkpoints(root)):
        try:
            progress = _load(root, folder, memory)
            if progress.server["w"].numel() != memory.dim:
                raise Refused(
                    f"{root}: the checkpoint has {progress.server['w'].numel()} parameters, the model {memory.dim}; "
                    "resume with the model that the run began with"
                )
            return progress, problems
        except Broken as problem:
            problems.append(f"{folder.name} is damaged ({problem}) and was left out")
    what = "; ".join(problems) or "there is none"
    raise Refused(f"{root}: no checkpoint to resume from: {what}; start the run again with `fedveil run`")


def _load(root: Path, folder: Path, memory: Memory) -> Progress:
    state = _read_state(folder)
    tensors = {}
    for name, digest in state["files"].items():
        path = root / name if name.startswith("memory/") else folder / name
        try:
            data = path.read_bytes()
        except OSError:
            raise Broken(f"{name} is missing") from None
        if hashlib.blake2b(data, digest_size=16).hexdigest() != digest:
            raise Broken(f"{name} does not match its check sum")
        try:
            tensors[name] = load(data)
        except SafetensorError:
            raise Broken(f"{name} is not a safetensors file") from None
    homes: dict[int, str] = {}
    rows = {}
    for name, ids in state["memory"].items():
        held = tensors[f"memory/{name}"]
        position = {client: i for i, client in enumerate(held["clients"].tolist())}
        for client in ids:
            rows[client] = held["rows"][position[client]].to(memory.device)
            homes[client] = name
    memory.rows = rows
    server = {k: v.to(memory.device) for k, v in tensors["server.safetensors"].items()}
    return Progress(
        state["round"],
        server,
        memory,
        state["seconds"],
        state["best"],
        state["stale"],
        state["stopped"],
        state["ledger"],
        homes,
    )


def _read_state(folder: Path) -> dict[str, Any]:
    try:
        envelope = orjson.loads((folder / "state.json").read_bytes())
        state, digest = envelope["state"], envelope["digest"]
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        raise Broken("state.json cannot be read") from None
    if hashlib.blake2b(orjson.dumps(state), digest_size=16).hexdigest() != digest:
        raise Broken("state.json does not match its check sum")
    if state["format"] != FORMAT:
        raise Broken(f"state.json has format {state['format']}, this version reads {FORMAT}")
    assert isinstance(state, dict)
    return state


def _known_digests(root: Path) -> dict[str, str]:
    """Check sums of memory files that an earlier checkpoint computed already."""
    for folder in reversed(_checkpoints(root)):
        try:
            return dict(_read_state(folder)["files"])
        except Broken:
            continue
    return {}


def _by_file(homes: dict[int, str]) -> dict[str, list[int]]:
    files: dict[str, list[int]] = {}
    for client, name in sorted(homes.items()):
        files.setdefault(name, []).append(client)
    return files


def _checkpoints(root: Path) -> list[Path]:
    return sorted(root.glob("round-*"))


def _drop_old(root: Path) -> None:
    folders = _checkpoints(root)
    for folder in folders[:-KEEP]:
        shutil.rmtree(folder, ignore_errors=True)
    needed = set()
    for folder in folders[-KEEP:]:
        try:
            needed |= {Path(name).name for name in _read_state(folder)["files"] if name.startswith("memory/")}
        except Broken:
            return
    for path in (root / "memory").glob("*.safetensors"):
        if path.name not in needed:
            path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()

"""What a run folder holds, read with care: a report is made from files that may be torn, missing or edited."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from fedveil.core.errors import Refused

LARGEST = sys.float_info.max
OPTIONAL = ("clients", "statement", "summary", "audit")


@dataclass(frozen=True)
class Run:
    """The files of a run folder, as they were read; optional files are empty mappings when missing."""

    folder: Path
    config: dict[str, Any]
    config_text: str
    events: tuple[dict[str, Any], ...]
    clients: dict[str, Any]
    statement: dict[str, Any]
    summary: dict[str, Any]
    audit: dict[str, Any]
    damaged: tuple[str, ...]

    def client(self, index: int) -> str:
        """A client's name, or its number where it has none."""
        names = items(self.clients, "names")
        return str(names[index]) if 0 <= index < len(names) and names[index] is not None else f"client {index}"

    def named(self, client: Any) -> str:
        """What a file calls a client: its name where that is a number, else what stands there."""
        return self.client(client) if isinstance(client, int) else str(client)

    def last(self, *path: str) -> float | None:
        """The latest number recorded at this place of the events."""
        found = (number(event, *path) for event in reversed(self.events))
        return next((value for value in found if value is not None), None)


def read_run(folder: Path) -> Run:
    """Read a run folder, finished or not; refuse a folder that is none."""
    try:
        config_text = (folder / "config.yaml").read_text("utf-8")
        if _repeats(config_text):
            raise ValueError("aliases")
        config = OmegaConf.to_container(OmegaConf.create(config_text))
    except OSError:
        raise _no_run(folder, "no config.yaml") from None
    except Exception:  # OmegaConf and its YAML parser share no base class
        raise _no_run(folder, "config.yaml is damaged") from None
    if not isinstance(config, dict) or all(value is None for value in config.values()):  # a bare word is YAML too
        raise _no_run(folder, "config.yaml is damaged")
    damaged: list[str] = []
    optional = {name: _mapping(folder / f"{name}.json", damaged) for name in OPTIONAL}
    settings = {str(key): value for key, value in config.items()}
    return Run(folder, settings, config_text, _events(folder), damaged=tuple(damaged), **optional)


def _repeats(text: str) -> bool:
    """Whether YAML uses aliases: no run writes any, and a few of them stand for more than a machine can hold."""
    return "*" in text and any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))


def _no_run(folder: Path, why: str) -> Refused:
    return Refused(f"report: {folder} is not a run folder ({why}); give the folder that `fedveil run` printed")


def _events(folder: Path) -> tuple[dict[str, Any], ...]:
    try:
        lines = [line for line in (folder / "events.jsonl").read_bytes().split(b"\n") if line.strip()]
    except OSError:
        raise _no_run(folder, "no events.jsonl") from None
    rounds: dict[int, dict[str, Any]] = {}  # a resumed run may write a round twice: the later line counts
    for place, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
            rounds[int(event["round"])] = event
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            if place < len(lines):  # only the last line can be torn by a crash
                raise _no_run(folder, f"line {place} of events.jsonl is damaged") from None
    return tuple(rounds[r] for r in sorted(rounds))


def _mapping(path: Path, damaged: list[str]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        damaged.append(path.name)
        return {}


def name(settings: Mapping[str, Any], key: str) -> Any:
    """A setting, or its name where it is a group of settings: as the command line writes it.

    >>> name({"aggregate": {"build": "fedveil.aggregate.controllers:CenteredClipping"}}, "aggregate")
    'centered_clipping'
    """
    value = settings.get(key)
    if not isinstance(value, dict):
        return value
    built = str(value.get("build") or "").rpartition(":")[2]
    return value.get("name") or value.get("source") or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", built).lower()


def dataset(run: Run) -> Any:
    """What the run was trained on."""
    return run.summary.get("data") or name(run.config, "data") or "unnamed data"


def number(value: Any, *path: str) -> float | None:
    """The finite number at a place of nested mappings, or None; an integer that no float holds is none.

    >>> number({"loss": {"mean": 0.5}}, "loss", "mean"), number({"loss": None}, "loss", "mean"), number(10**400)
    (0.5, None, None)
    """
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return None
    return value


def items(value: Any, key: str) -> list[Any]:
    """The list under a key, empty when there is none."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []

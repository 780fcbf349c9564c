"""A sweep over attacks, rules and budgets: the cells, what they are computed from, and the files that keep them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import orjson

from fedveil import __version__
from fedveil.core.errors import Refused
from fedveil.runtime.accounting import Bookkeeper
from fedveil.runtime.config import Config, expand, resolve
from fedveil.runtime.folder import Folder, write_json
from fedveil.runtime.inline import train
from fedveil.runtime.prepare import prepare

NEVER = 1_000_000
LAST = 10
"""The accuracy of a cell is the mean over so many last evaluations: one round says little under attack."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """One cell of the matrix, with everything that shapes it."""

    attack: str
    aggregate: str
    privacy: str
    seed: int
    config: Config

    @property
    def key(self) -> str:
        """A name for the result that changes with anything that shapes it."""
        shape = {k: v for k, v in self.config.items() if k not in ("out", "overrides", "cwd")}
        text = orjson.dumps([__version__, shape], option=orjson.OPT_SORT_KEYS, default=str)
        return hashlib.blake2b(text, digest_size=12).hexdigest()

    def __str__(self) -> str:
        budget = "no privacy" if self.privacy == "none" else f"epsilon {self.privacy}"
        return f"{self.attack} against {self.aggregate}, {budget}, seed {self.seed}"


@dataclass(frozen=True)
class Matrix:
    """What was asked for: the axes in order, and a cell for every combination."""

    attacks: tuple[str, ...]
    aggregates: tuple[str, ...]
    budgets: tuple[str, ...]
    seeds: tuple[int, ...]
    onset: int
    places: tuple[Place, ...]


AXES = ("attack", "aggregate", "privacy")


def lay_out(overrides: Sequence[str], *, private: str = "dp_fedavg_local", under_privacy: Sequence[str] = ()) -> Matrix:
    """The cells of ``attack=a,b aggregate=c,d privacy=none,8 seed=0,1`` and settings that all of them share.

    A word of an axis may carry settings of its own: ``attack=gaussian:factor=1,gaussian:factor=10``. ``privacy=none``
    keeps the method; a number is a budget for the method ``private``, with the settings ``under_privacy`` laid over.
    """
    axes: dict[str, list[str]] = {"attack": ["none"], "aggregate": ["mean"], "privacy": ["none"]}
    seeds, shared, attacking = [0], [], []
    for text in overrides:
        name, equals, value = text.partition("=")
        if name in axes and equals:
            axes[name] = list(dict.fromkeys(word for word in value.split(",") if word))
            if not axes[name]:
                raise Refused(f"{name}: no value was given; write {name}=a,b")
        elif name == "seed":
            seeds = [_whole("seed", only[0].partition("=")[2]) for only in expand([text])]
        elif name == "out":
            raise Refused("out: a matrix keeps cells, and no run folders; give its folder as --out")
        elif name.startswith("attack."):
            attacking.append(text)
        elif len(expand([text])) > 1:
            raise Refused(f"{name}: a matrix sweeps {', '.join(AXES)} and seed; give {name} one value")
        else:
            shared.append(text)
    onsets = [t.partition("=")[2] for t in attacking if t.startswith("attack.onset=")]
    onset = _whole("attack.onset", onsets[-1]) if onsets else 1
    configs = {}
    for attack, aggregate, privacy in product(axes["attack"], axes["aggregate"], axes["privacy"]):
        texts = [*shared, *_words("attack", attack), *_words("aggregate", aggregate)]
        texts += attacking if attack != "none" else []
        configs[attack, aggregate, privacy] = resolve([*texts, *_budget(privacy, private, under_privacy)])
    # The first seed is complete before the next begins.
    places = [Place(*at, seed, deepcopy(config) | {"seed": seed}) for seed in seeds for at, config in configs.items()]
    attacks, aggregates, budgets = (tuple(axes[a]) for a in AXES)
    return Matrix(attacks, aggregates, budgets, tuple(seeds), onset, tuple(places))


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Refused(f"{name}: {text!r} is no whole number; give one, such as {name}=1") from None


def _words(axis: str, word: str) -> list[str]:
    """``gaussian:factor=10`` as overrides."""
    name, *own = word.split(":")
    return [f"{axis}={name}", *(f"{axis}.{setting}" for setting in own)]


def _budget(privacy: str, private: str, under: Sequence[str]) -> list[str]:
    """A budget as overrides; a later text for a setting counts for more than an earlier one."""
    if privacy == "none":
        return []
    try:
        epsilon = float(privacy)
    except ValueError:
        raise Refused(f"privacy: {privacy!r} is no budget; give none, or epsilon as a number") from None
    return [f"method={private}", f"privacy.epsilon={epsilon:g}", *under]


class Cells:
    """Finished cells in a folder, one file each, whole or not there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            (root / "cells").mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise Refused(f"out: {root} cannot be created ({problem.strerror}); give another folder") from None

    def read(self, place: Place) -> Record | None:
        """A cell's record; None where there is none, or where its file is damaged."""
        try:
            record = orjson.loads((self.root / "cells" / f"{place.key}.json").read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return None
        return record if isinstance(record, dict) and record.get("key") == place.key else None

    def compute(self, place: Place, parts: Mapping[str, Any]) -> Record:
        """Run a cell and keep what came of it; its run folder is not kept."""
        work = self.root / "work" / place.key
        shutil.rmtree(work, ignore_errors=True)
        record = run_cell(place, work, parts)
        write_json(self.root / "cells" / f"{place.key}.json", record)
        shutil.rmtree(work, ignore_errors=True)
        return self.read(place) or record


def run_cell(place: Place, work: Path, parts: Mapping[str, Any]) -> Record:
    """Train one cell, and take down what the page is made of."""
    config = place.config | {"checkpoint": {"every": NEVER}}
    training = prepare(config, **parts)
    if place.privacy != "none" and training.method.epsilon_per_weight is not None:
        raise Refused(
            f"privacy: {training.method.name} takes epsilon per weight and round, which is no budget of a cell; "
            "set privacy=none, and method and privacy.epsilon for all cells"
        )
    config["threads"] = training.threads
    work.mkdir(parents=True)
    folder = Folder(work)
    folder.save_config({k: v for k, v in config.items() if k != "out"})
    progress, summary = train(training, folder)
    events = folder.read_events()
    accuracies = [e["accuracy"] for e in events if e.get("accuracy") is not None][-LAST:]
    books = Bookkeeper(training, folder, progress)
    spread = books.accounts.spread(books.planner.unit) if training.method.private else None
    attackers = training.attackers
    return {
        "key": place.key,
        "attack": place.attack,
        "aggregate": place.aggregate,
        "privacy": place.privacy,
        "seed": place.seed,
        "status": summary["status"],
        "accuracy": sum(accuracies) / len(accuracies) if accuracies else None,
        "final": summary["accuracy"],
        "rounds": summary["rounds"],
        "seconds": summary["seconds"],
        "excluded": summary["excluded"],
        "aborted": sum("aborted" in e for e in events),
        "facts": None if attackers is None else attackers.facts(),
        "success": summary["attack"]["success"] if summary["attack"] else None,
        "epsilon": summary["epsilon"],
        "spread": None if spread is None else [spread.least, spread.median, spread.worst],
        "detector": [_seen(e) for e in events] if any("detector" in e for e in events) else None,
    }


def _seen(event: Record) -> list[Any]:
    """Round, score, whether it was an alarm, and the rule."""
    found = event.get("detector") or {}
    return [event["round"], found.get("score"), bool(found.get("alarm")), found.get("rule")]

"""What is run: every attack on every data set, encrypted and in the clear, with the same seed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from experiments.robust.loop import data_file
from fedveil import api
from fedveil.runtime.config import resolve

ATTACKS = ("none", "sign_flip", "gaussian:factor=10", "label_flip", "alie", "ipm:factor=2", "scaling", "min_max")
"""Those of the robust-aggregation study; the first is for comparison."""
WAYS = ("plain", "encrypted")
ROUNDS, ONSET, WINDOW = 30, 13, 8
"""The first round has no update to compare with, eight fill the baseline, the scoring begins; then attackers start."""

SHARED = (
    "population=10", "cohort=10", "data.partition=dirichlet", "data.alpha=0.5", "data.min_samples=32", "data.holdout=0",
    "client_momentum=0.9", "steps=10", "batch=32", "lr=0.1", "threads=1", f"rounds={ROUNDS}",
    "aggregate=adaptive", "declared_f=2", f"aggregate.window={WINDOW}", f"aggregate.calibration={ONSET - 1}",
    "aggregate.iterations=1",
)  # fmt: skip
METHODS = {
    "plain": ("method=fedavg", "weights=uniform"),
    "encrypted": ("method=apa_fl", "sigma=0", "transport.norm_bound=10"),
}


def data(name: str, root: Path) -> tuple[str, ...]:
    """A data set and a small model for it."""
    if name == "digits":
        return ("data=digits", "model=mlp", "model.hidden=32")
    file = data_file(root).absolute()
    return (f"data={file}", "data.test_x=test_x", "data.test_y=test_y", "model=experiments.robust.task:model")


DATA = ("digits", "fashion_mnist")


@dataclass(frozen=True)
class Cell:
    """One run."""

    data: str
    attack: str
    way: str
    seed: int = 0

    def folder(self, root: Path) -> Path:
        """Where it is kept."""
        return root / self.data / f"{self.attack.replace(':', '-').replace('=', '')}-{self.seed}" / self.way

    def overrides(self, root: Path) -> list[str]:
        """Its settings."""
        name, _, own = self.attack.partition(":")
        attack = ["attack=none"] if name == "none" else [f"attack={name}", "attack.share=0.2", f"attack.onset={ONSET}"]
        attack += [f"attack.{own}"] if own else []
        return [*METHODS[self.way], *data(self.data, root), *SHARED, *attack, f"seed={self.seed}"]

    def result(self, root: Path) -> dict[str, Any] | None:
        """Summary and events of the finished run; None where it is not finished."""
        place = self.folder(root)
        try:
            summary = orjson.loads((place / "summary.json").read_bytes())
            events = [orjson.loads(line) for line in (place / "events.jsonl").read_bytes().splitlines()]
        except (OSError, orjson.JSONDecodeError):
            return None
        return {"summary": summary, "events": events, "folder": place}

    def run(self, root: Path) -> None:
        """Run it, or go on with it."""
        place = self.folder(root)
        if any((place / "checkpoint").glob("round-*")):
            api.resume(place)
            return
        shutil.rmtree(place, ignore_errors=True)
        api.start(resolve([*self.overrides(root), f"out={place}"]))


def cells(seeds: tuple[int, ...] = (0,)) -> Iterator[Cell]:
    """All of them, digits first."""
    for name in DATA:
        for seed in seeds:
            for attack in ATTACKS:
                for way in WAYS:
                    yield Cell(name, attack, way, seed)

"""The measuring core of ``fedveil bench engine``: what to measure, in which order, and the file that keeps it.

``python -m fedveil.bench.engine --device cuda --json FILE`` runs it where only torch and numpy are installed. The file
is written anew after every unit, so that an interrupted run keeps what it has.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedveil.bench.compare import How, Tell, compare
from fedveil.bench.convolutions import measure, shapes
from fedveil.bench.goals import GOALS
from fedveil.bench.growth import grow, sizes
from fedveil.bench.machine import about, peaks
from fedveil.bench.scenario import ALGORITHMS, MODELS, Scenario
from fedveil.bench.whole import whole_run
from fedveil.core.errors import Refused, one_of, positive
from fedveil.core.files import write_bytes

Report = dict[str, Any]
LARGE = ("cnn_large/fedavg/10", "cnn_large/step_noise/10")
"""What is measured of the largest model on a CPU, where a peer's round takes half a minute."""
ROUNDS = 20
"""Rounds of a whole run."""


@dataclass(frozen=True)
class Options:
    """How the whole benchmark is run."""

    device: str = "cpu"
    threads: int = 0
    """0: all cores."""
    precision: str = "float32"
    only: tuple[str, ...] = ()
    """Parts of names, or patterns such as ``mlp/*/100``; none: everything."""
    repeats: int = 5
    limit: float | None = None
    """Seconds of turns after which a scenario stops repeating; None: 60 on a CPU, 10 on a GPU."""
    quick: bool = False
    """Tiny, to see that it works; its numbers mean nothing."""

    def __post_init__(self) -> None:
        one_of("device", self.device, ("cpu", "cuda"))
        one_of("precision", self.precision, ("float32", "tf32", "bf16"))
        positive(repeats=self.repeats, limit=1.0 if self.limit is None else self.limit)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise Refused("device: torch finds no CUDA device here; use device cpu")

    @property
    def how(self) -> How:
        """How a scenario is measured."""
        limit = self.limit or (60.0 if self.device == "cpu" else 10.0)
        made = How(self.device, self.threads or torch.get_num_threads(), self.precision, self.repeats, limit=limit)
        return replace(made, repeats=2, turn=0.02, memory=False, flower_rounds=0) if self.quick else made


@dataclass(frozen=True)
class Unit:
    """A piece of the benchmark: where its result stands in the report, and roughly how many seconds it takes."""

    place: str
    name: str
    seconds: float
    work: Callable[[Tell], Any]


def scenarios(options: Options) -> Iterator[Scenario]:
    """Everything that is compared on this kind of device."""
    cuda = options.device == "cuda"
    for model in MODELS:
        for algorithm in ALGORITHMS:
            for cohort in (10, 100) if cuda else (10,):
                scenario = Scenario(model, algorithm, cohort)
                if cuda or model != "cnn_large" or scenario.name in LARGE:
                    yield replace(scenario, population=cohort, samples=64) if options.quick else scenario


def plan(options: Options) -> list[Unit]:
    """All units whose names match."""
    how = options.how
    units = [
        Unit("scenarios", s.name, _guess(s, options), lambda tell, s=s: compare(s, how, tell))  # type: ignore[misc]
        for s in scenarios(options)
    ]
    if options.device == "cpu":
        rounds = 2 if options.quick else ROUNDS
        for s in [s for s in scenarios(options) if s.name in ("mlp/fedavg/10", "mlp/step_noise/10")]:
            units.append(
                Unit("whole", f"whole/{s.name}", 20, lambda tell, s=s: whole_run(s, how.threads, rounds))  # type: ignore[misc]
            )
        for name, s in sizes().items():
            units.append(Unit("growth", name, 10, lambda tell, s=s: grow(s, how.threads)))  # type: ignore[misc]
    else:
        for clients in (10, 100):
            for shape in shapes(clients):
                name = f"convolutions/{clients}/{shape.name}"
                units.append(Unit("convolutions", name, 2, lambda tell, shape=shape: measure(shape)))  # type: ignore[misc]
    wanted = [unit for unit in units if _matches(unit.name, options.only)]
    if not wanted:
        raise Refused(f"only: {', '.join(options.only)} matches nothing; names are {', '.join(u.name for u in units)}")
    return wanted


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name is asked for: part of it up to a slash, or a pattern.

    >>> _matches("mlp/fedavg/10", ["mlp/fedavg"]), _matches("whole/mlp/fedavg/10", ["mlp"])
    (True, False)
    >>> _matches("cnn_large/fedavg/10", ["cnn"]), _matches("cnn/fedavg/100", ["*/100"])
    (False, True)
    """
    return not patterns or any(fnmatch.fnmatch(name, p) or name.startswith(p.rstrip("/") + "/") for p in patterns)


def _guess(scenario: Scenario, options: Options) -> float:
    """Seconds, for the bar; on the reference machines."""
    if options.quick:
        return 5.0
    size = {"mlp": 1.0, "cnn": 2.0, "cnn_large": 5.0}[scenario.model] * (2 if scenario.private else 1)
    return size * scenario.cohort / 20 if options.device == "cuda" else 15 + size * 20


def run(options: Options, path: Path | None, began: Callable[[Unit], None], tell: Tell) -> Report:
    """Measure every unit, and keep the report in ``path`` as it grows."""
    units = plan(options)
    how = options.how
    threads = torch.get_num_threads()
    torch.set_num_threads(how.threads)
    try:
        report: Report = {"about": about(options.device, how.threads, options.precision), "quick": options.quick}
        tell("matrix products, for the limit")
        report |= {"peaks": peaks(options.device), "scenarios": {}, "whole": {}, "growth": {}}
        report |= {"convolutions": {}, "seconds": {}}
        _keep(report, path)
        for unit in units:
            began(unit)
            started = time.perf_counter()
            try:
                report[unit.place][unit.name] = unit.work(tell)
            except Exception as failure:  # one scenario that fails must not take the others with it
                report[unit.place][unit.name] = {"failed": f"{type(failure).__name__}: {failure}"}
            report["seconds"][unit.name] = time.perf_counter() - started
            _keep(report, path)
    finally:
        torch.set_num_threads(threads)
    return report


def _keep(report: Report, path: Path | None) -> None:
    if path is not None:
        write_bytes(path, (json.dumps(report, indent=1) + "\n").encode())


def main() -> None:
    """The core as a command of its own, for machines without the product's other dependencies."""
    parser = argparse.ArgumentParser(description="The cohort engine against the peers that are installed.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=float)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = vars(parser.parse_args())
    path = given.pop("json")
    options = Options(**given | {"only": tuple(given["only"])})
    started = time.perf_counter()

    def say(words: str) -> None:
        print(f"{time.perf_counter() - started:7.1f} s  {words}", flush=True)

    report = run(options, path, lambda unit: say(unit.name), lambda words: say(f"    {words}"))
    for name, row in report["scenarios"].items():
        print(name, line(row), flush=True)
    _print_goals(report)


def _print_goals(report: Report) -> None:
    for goal in GOALS:
        if goal.device == report["about"]["device"] and goal.measured(report) is not None:
            bound = "at least" if goal.least else "below"
            words = f"{goal.words}: {goal.shown(report)}, {bound} {goal.target:g}{goal.unit} was asked"
            print(f"{goal.verdict(report).strip('*')}: {words}", flush=True)


def line(row: Report) -> str:
    """One scenario in one line."""
    if "failed" in row:
        return f"failed: {row['failed']}"
    words = [f"engine {row['engine']}"]
    for name, found in row["contenders"].items():
        if "missing" in found:
            words.append(f"{name}: {found['missing']}")
        else:
            words.append(f"{name} {1e3 * found['seconds']['median']:.1f} ms x{found['times_ours']['median']:.2f}")
    return "; ".join(words)


if __name__ == "__main__":
    main()

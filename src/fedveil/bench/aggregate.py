"""``fedveil bench aggregate``: every robust rule against byzfl's, a sort, a mean and a matrix product."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fedveil.aggregate as ours
from fedveil.bench.clock import ratios, spread
from fedveil.bench.goals import Goal, ratio
from fedveil.bench.machine import about, timed
from fedveil.bench.page import table
from fedveil.bench.peers import byzfl
from fedveil.core.errors import Refused, one_of, positive
from fedveil.core.files import write_bytes

Report = dict[str, Any]
Work = Callable[[Tensor], Any]
MEAN, GRAM, SORT, PEER = "plain mean", "one Gram product", "torch.sort", "byzfl"


@dataclass(frozen=True)
class Case:
    """A rule on a matrix of uploads, and what it is held against (None: byzfl is not installed)."""

    name: str
    clients: int
    parameters: int
    byzantine: int
    ours: Work
    others: dict[str, Work | None]


@dataclass(frozen=True)
class Options:
    """How the benchmark is run."""

    device: str = "cpu"
    threads: int = 0
    """0: all cores."""
    repeats: int = 3
    quick: bool = False
    """Tiny, to see that it works; its numbers mean nothing."""

    def __post_init__(self) -> None:
        one_of("device", self.device, ("cpu", "cuda"))
        positive(repeats=self.repeats)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise Refused("device: torch finds no CUDA device here; use device cpu")


def cases(quick: bool) -> list[Case]:
    """All rules: 100 clients with a million parameters and 20 attackers, less where byzfl could not do it."""
    n, d, f = (12, 500, 2) if quick else (100, 1_000_000, 20)
    even = torch.full((n,), 1 / n)

    def mean(x: Tensor) -> Tensor:
        return even.to(x) @ x

    def gram(x: Tensor) -> Tensor:
        return x @ x.t()

    def trimmed(x: Tensor) -> Tensor:
        return x.sort(dim=0).values[f:-f].mean(dim=0)

    def middle(x: Tensor) -> Tensor:
        return x.sort(dim=0).values[(n - 1) // 2 : n // 2 + 1].mean(dim=0)

    def one_step(x: Tensor) -> Tensor:
        return ours.centered_clipping(x, iterations=1)

    few = (8, 500, 2) if quick else (20, d, 3)
    small = (12, 500, 2) if quick else (n, d // 20, f)
    return [
        Case("mean", n, d, 0, mean, {PEER: _peer("Average")}),
        Case("trimmed_mean", n, d, f, lambda x: ours.trimmed_mean(x, f), {SORT: trimmed, PEER: _peer("TrMean", f)}),
        Case("median", n, d, f, ours.median, {SORT: middle, PEER: _peer("Median")}),
        Case("krum", n, d, f, lambda x: ours.krum(x, f), {GRAM: gram, PEER: _peer("Krum", f)}),
        Case("multi_krum", n, d, f, lambda x: ours.multi_krum(x, f), {GRAM: gram, PEER: _peer("MultiKrum", f)}),
        Case("bulyan", n, d, f, lambda x: ours.bulyan(x, f), {GRAM: gram}),
        Case("geometric_median", n, d, f, ours.geometric_median, {GRAM: gram, PEER: _peer("GeometricMedian")}),
        Case("centered_clipping, one step", n, d, f, one_step, {MEAN: mean, PEER: _peer("CenteredClipping")}),
        Case("centered_clipping", n, d, f, ours.centered_clipping, {MEAN: mean, PEER: _peer("CenteredClipping")}),
        Case("mda", *few, lambda x: ours.mda(x, few[2]), {PEER: _peer("MDA", few[2])}),
        Case("nnm", *small, lambda x: ours.nearest_neighbour_mixing(x, f), {PEER: _peer("NNM", f)}),
        Case("bucketing", n, d, f, _bucketing, {PEER: _peer("Bucketing", 2)}),
        Case("norm_bound", n, d, f, lambda x: ours.clip_norms(x, 1.0), {PEER: _peer("Clipping", 1.0)}),
    ]


def _bucketing(x: Tensor) -> Tensor:
    return ours.bucketing(x, 2, torch.randperm(len(x)))


def _peer(name: str, *settings: float) -> Work | None:
    if not byzfl.installed():
        return None
    peer = byzfl.load()
    # A fresh one each time: centered clipping keeps its centre. Clipping writes into what it is given.
    if name == "Clipping":
        return lambda x: getattr(peer, name)(*settings)(x.clone())
    return lambda x: getattr(peer, name)(*settings)(x)


def run(options: Options, path: Path | None, tell: Callable[[str], None]) -> Report:
    """Measure every rule in turns, and keep the report in ``path`` as it grows."""
    before, threads = torch.get_num_threads(), options.threads or torch.get_num_threads()
    torch.set_num_threads(threads)
    report: Report = {"about": about(options.device, threads, "float32"), "quick": options.quick, "scenarios": {}}
    try:
        for case in cases(options.quick):
            tell(f"{case.name}: {case.clients} clients, {case.parameters:,} parameters")
            report["scenarios"][case.name] = measure(case, options)
            if path is not None:
                write_bytes(path, (json.dumps(report, indent=1) + "\n").encode())
    finally:
        torch.set_num_threads(before)
    return report


def measure(case: Case, options: Options) -> Report:
    """Seconds and ratios; everybody warms up once, then they take turns."""
    x = torch.randn(case.clients, case.parameters, generator=torch.Generator().manual_seed(0)).to(options.device)
    present = {"ours": case.ours} | {name: work for name, work in case.others.items() if work is not None}
    seconds: dict[str, list[float]] = {name: [] for name in present}
    for repeat in range(options.repeats + 1):
        for name, work in present.items():
            took = timed(lambda work=work: work(x), options.device)  # type: ignore[misc]
            if repeat:
                seconds[name].append(took)
    found: Report = {name: {"missing": "not installed; pip install --no-deps byzfl"} for name in case.others}
    for name, times in seconds.items():
        found[name] = {"seconds": spread(times), "all_seconds": times, "times_ours": ratios(times, seconds["ours"])}
    shape = {"clients": case.clients, "parameters": case.parameters, "byzantine": case.byzantine}
    return shape | {"contenders": found}


def slower(scenario: str, contender: str) -> Callable[[Report], dict[str, float] | None]:
    """How many times as long ours takes as a contender."""
    read = ratio(scenario, contender)

    def turned(report: Report) -> dict[str, float] | None:
        found = read(report)
        if found is None:
            return None
        return {"median": 1 / found["median"], "min": 1 / found["max"], "max": 1 / found["min"]}

    return turned


def goals() -> list[Goal]:
    """What the rules are held to."""
    step = "centered_clipping, one step"
    asked = [Goal("cpu", f"{step}: times a plain mean", 5, "x", slower(step, MEAN), least=False)]
    asked.append(Goal("cpu", "krum: times one Gram product", 2, "x", slower("krum", GRAM), least=False))
    for rule in ("trimmed_mean", "median"):
        for other in (SORT, PEER):
            asked.append(Goal("cpu", f"{rule}: faster than {other} by", 2, "x", ratio(rule, other)))
    for case in cases(quick=True):
        if PEER in case.others and case.name not in ("trimmed_mean", "median"):
            asked.append(Goal("cpu", f"{case.name}: faster than {PEER} by", 1, "x", ratio(case.name, PEER)))
    return asked


RULES = """\
- Uploads are independent normal numbers in float32, in one matrix in memory; everybody has the same matrix and threads.
- Contenders take turns, one call each; a ratio is taken within a turn and stands as median (least to most). Everybody
  has a call before that does not count.
- `plain mean` is one product of a vector with the matrix, the fastest that torch has; `one Gram product` is `X @ X.T`;
  `torch.sort` sorts along the clients and takes the mean of what is kept.
- Ours goes on until centered clipping and the geometric median stand still; byzfl takes one step (with a fixed radius
  from zero) and three steps. byzfl's NNM needs clients² × parameters numbers, its MDA a loop over all sets of uploads:
  both are measured on less. byzfl has no Bulyan."""


def page(reports: Sequence[Report]) -> str:
    """The page as Markdown; every number on it is computed, losses are marked like wins."""
    lines = [
        "# Robust aggregation, measured",
        "",
        "Written by `fedveil bench aggregate --json REPORT --page FILE`; no number here is typed.",
        "",
        RULES,
    ]
    for report in reports:
        machine = report["about"]
        lines += ["", f"## {machine['machine']}, {machine['threads']} threads, torch {machine['torch']}", ""]
        if report["quick"]:
            lines += ["**A quick run: tiny sizes, its numbers mean nothing.**", ""]
        lines += table(("", "clients x parameters", "", "ms", "ours is faster by"), rows(report))
        lines += ["", "### Goals", ""]
        lines += table(("", "asked", "measured", ""), [goal_row(goal, report) for goal in goals()])
    return "\n".join(lines) + "\n"


def rows(report: Report) -> list[tuple[str, str, str, str, str]]:
    """A line for everybody who computed a rule."""
    found = []
    for name, row in report["scenarios"].items():
        shape = f"{row['clients']} x {row['parameters']:,}, f = {row['byzantine']}"
        for who, took in sorted(row["contenders"].items(), key=lambda pair: pair[0] != "ours"):
            if "missing" in took:
                found.append(("", "", who, "-", took["missing"]))
                continue
            times = took["times_ours"]
            words = f"x {times['median']:.3g} ({times['min']:.3g} to {times['max']:.3g})"
            words = words if times["median"] >= 1 or who in (MEAN, GRAM) else f"**{words}: slower**"
            head = (name, shape) if who == "ours" else ("", "")
            found.append((*head, who, f"{1e3 * took['seconds']['median']:.4g}", "1" if who == "ours" else words))
    return found


def goal_row(goal: Goal, report: Report) -> tuple[str, str, str, str]:
    """What was asked, and what was measured."""
    bound = "at least" if goal.least else "below"
    return goal.words, f"{bound} {goal.target:g}{goal.unit}", goal.shown(report), goal.verdict(report)

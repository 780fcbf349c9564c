"""docs/results/audit.md, written from kept cells."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

import torch

import fedveil
from experiments.audit.cell import Record
from experiments.audit.grid import (
    CANARIES,
    CONDITIONS,
    DELTA,
    HALF,
    HONEST,
    MAIN,
    OFF,
    OTHERS,
    QUARTER,
    RATIO,
    ROUNDS,
    SMALL,
    Cell,
    Condition,
)
from experiments.dp_methods.numbers import Spread
from experiments.dp_methods.progress import duration
from experiments.dp_methods.tables import markdown
from fedveil.core.files import write_bytes

Found = Mapping[Cell, Record]
MINUTES = 5
"""One audit should take no longer."""


def write_page(found: Found, folder: Path) -> Path:
    """Write the page; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "audit.md"
    lines = [*_intro(found), *_verdicts(found), *_numbers(found), *_others(found)]
    write_bytes(path, ("\n".join(lines) + "\n").encode())
    return path


def of(found: Found, label: str, condition: Condition) -> list[Record]:
    """The records of a method under a condition, by seed."""
    cells = sorted((c for c in found if (c.label, c.condition) == (label, condition)), key=lambda c: c.seed)
    return [found[c] for c in cells]


def _intro(found: Found) -> list[str]:
    sources = len({r["source"] for r in found.values()})
    several = "" if sources == 1 else f" The cells were computed with {sources} states of the source."
    return [
        "# Audits, measured",
        "",
        "Written by `python -m experiments.audit` from the runs that it keeps; no number here is typed. How to read an "
        "audit: [audit.md](../audit.md).",
        "",
        f"- digits, MLP of 9,610 parameters, 20 clients, {ROUNDS} rounds, noise calibrated to ε at δ = {DELTA:g} by "
        f"rdp; {CANARIES:,} canaries, each in or out by a fair coin; every other setting is the default.",
        "- `dp_fedavg_local` (step_noise): records towards the server, ten clients drawn each round. "
        "`dp_fedavg_central`: whole clients towards the public, all 20 clients in every round.",
        '- Lower bounds at 95 % (one run, Steinke, Nasr and Jagielski 2023). "Noise off" and the like: the run adds so '
        "much of the noise that its ledger charges (`audit.noise`), and the audit does not know.",
        f"- {len(found)} audits took {duration(sum(r['seconds'] for r in found.values()))} of one core together "
        f"(FedVeil {fedveil.__version__}, torch {torch.__version__}, Python {platform.python_version()}, one thread)."
        f"{several}",
        "",
    ]


def _verdicts(found: Found) -> list[str]:
    rows = []
    for label in MAIN:
        honest, off, half = (of(found, label, c) for c in (HONEST, OFF, HALF))
        small, quarter = of(found, label, SMALL), of(found, label, QUARTER)
        rows.append([label, "honest, ε = 4: the bound stays below the claim", _below(honest)])
        rows.append([label, "honest, ε = 1: the bound stays below the claim", _below(small)])
        rows.append([label, "noise off: the bound exceeds the claim", _above(off)])
        ratio = _mean(half) / _mean(honest) if _mean(honest) else float("inf")
        rows.append([label, f"half the noise: mean bound ≥ {RATIO} × honest", f"{ratio:.2f} ×: {_yes(ratio >= RATIO)}"])
        rows.append([label, "a quarter of the noise, ε = 1: the bound exceeds the claim", _above(quarter)])
    slowest = max(r["wall"] for r in found.values())
    rows.append(
        ["all", f"one audit within {MINUTES} minutes", f"slowest {slowest:.1f} s: {_yes(slowest <= 60 * MINUTES)}"]
    )
    return ["## Verdicts", "", *markdown(["method", "what is asked", "found"], rows), ""]


def _numbers(found: Found) -> list[str]:
    rows = []
    for label in MAIN:
        for condition in CONDITIONS:
            records = of(found, label, condition)
            if records:
                rows.append([label, condition.label, *_row(records)])
    heads = ["method", "noise", "claim", "lower bound", "lowest to highest", "estimate", "cap", "right of guesses"]
    return [
        "## Numbers",
        "",
        "Mean ± standard deviation over seeds. *Estimate*: two Gaussians fitted to the scores; it is no bound. *Cap*: "
        "what as many guesses, all right, would show.",
        "",
        *markdown([*heads, "seconds"], rows),
        "",
    ]


def _row(records: list[Record]) -> list[str]:
    bounds = [r["bound"] for r in records]
    right = Spread.of([r["right"] for r in records]).mean
    return [
        f"{max(r['claim'] for r in records):.3f}",
        Spread.of(bounds).text(".2f"),
        f"{min(bounds):.2f} to {max(bounds):.2f}",
        _estimate(records),
        f"{records[0]['cap']:.2f}",
        f"{right:.0f} of {records[0]['guesses']}",
        f"{Spread.of([r['seconds'] for r in records]).mean:.1f}",
    ]


def _estimate(records: list[Record]) -> str:
    values = [min(r["estimate"], 1000.0) for r in records]
    return "above 100" if min(values) > 100 else Spread.of(values).text(".2f")


def _others(found: Found) -> list[str]:
    rows = []
    for label in OTHERS:
        honest, off = of(found, label, HONEST), of(found, label, OFF)
        if honest and off:
            what = f"{honest[0]['unit']}, {honest[0]['observer']}"
            rows.append([label, what, _spread(honest), _below(honest), _spread(off), _above(off)])
    if not rows:
        return []
    heads = ["method", "unit, towards", "honest: bound", "below the claim", "noise off: bound", "above the claim"]
    return [
        "## Other methods, ε = 4",
        "",
        "Where the bound without noise is not above the claim, the audit is blind to that method, and an audit that "
        "holds says nothing about it: the command finds that out by itself (`--power`) and says so. Shrinking in every "
        "step is such a case: it takes out whatever is not larger than the noise that should be there.",
        "",
        *markdown(heads, rows),
        *_missing(found),
    ]


def _missing(found: Found) -> list[str]:
    lost = [label for label in OTHERS if not (of(found, label, HONEST) and of(found, label, OFF))]
    return ["", f"Not computed yet: {'; '.join(lost)}. The same command goes on."] if lost else []


def _spread(records: list[Record]) -> str:
    return Spread.of([r["bound"] for r in records]).text(".2f")


def _mean(records: list[Record]) -> float:
    return Spread.of([r["bound"] for r in records]).mean if records else 0.0


def _below(records: list[Record]) -> str:
    hits = sum(r["bound"] < r["claim"] for r in records)
    return f"{hits} of {len(records)}: {_yes(hits == len(records))}"


def _above(records: list[Record]) -> str:
    hits = sum(r["bound"] > r["claim"] for r in records)
    return f"{hits} of {len(records)}: {_yes(hits == len(records))}"


def _yes(met: bool) -> str:
    return "**yes**" if met else "**no**"

"""docs/results/distributed-dp.md, written from kept cells."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fedveil
from experiments.ddp.grid import BITS, CENTRAL, CLIENTS, DELTA, ROWS, Cell, NoiseCell, Row, Schedule
from experiments.dp_methods.numbers import Spread
from experiments.dp_methods.progress import duration
from experiments.dp_methods.tables import markdown
from fedveil.core.files import write_bytes

Record = dict[str, Any]
Study = tuple[Schedule, dict[float, float], dict[Cell, Record]]
WITHIN = 1.0
"""Points of accuracy by which distributed noise may fall behind central noise; percent by which its noise may."""


@dataclass(frozen=True)
class Found:
    """Everything that the page shows: the measured noise, and for each data set learning rates and runs."""

    noise_cell: NoiseCell
    noise: Record
    studies: list[Study]

    @property
    def records(self) -> list[Record]:
        """Every cell's record."""
        return [self.noise, *(record for *_, cells in self.studies for record in cells.values())]


def write_page(found: Found, folder: Path) -> Path:
    """Write the page; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "distributed-dp.md"
    write_bytes(path, ("\n".join([*_intro(found), *_noise(found), *_accuracy(found), *_proofs(found)]) + "\n").encode())
    return path


def _intro(found: Found) -> list[str]:
    records = found.records
    sources = len({r["source"] for r in records})
    several = "" if sources == 1 else f" The cells were computed with {sources} states of the source."
    return [
        "# Distributed against central differential privacy",
        "",
        "Written by `python -m experiments.ddp` from the runs that it keeps; no number here is typed.",
        "",
        f"- {CLIENTS} clients, all of them in every round; whole clients are protected (neighbours: zero_out), "
        f"δ = {DELTA:g}, accountant rdp, noise calibrated to ε. Central noise protects from the public and trusts the "
        "server; distributed noise protects from the server as well.",
        f"- Distributed runs go through `transport=masks`, protocol and all, with sums modulo 2^{BITS}.",
        "- Logistic model, iid partition, moves clipped to 1. The learning rate is the one that was best for *central* "
        "noise on a seed of its own; **that choice looked at test accuracy and is not counted in ε**.",
        f"- {len(records)} cells took {duration(sum(r['seconds'] for r in records))} of one core together (FedVeil "
        f"{fedveil.__version__}, torch {torch.__version__}, Python {platform.python_version()}, one thread).{several}",
        "",
    ]


def _noise(found: Found) -> list[str]:
    c, r = found.noise_cell, found.noise
    ratio = r["measured"] / r["central"]
    return [
        "## Noise",
        "",
        f"Deviation of the noise in a sum, in units of the clip norm, for ε = {c.epsilon:g}, {c.rounds} rounds of "
        f"{c.clients} clients and {c.dim:,} parameters, everybody's share being counted. Measured: {c.rounds} rounds "
        "of moves that are all zero, through rotation, rounding, noise, masks and back.",
        "",
        *markdown(
            ["", "deviation", "beside central Gaussian noise"],
            [
                ["central Gaussian", f"{r['central']:.5f}", "1"],
                ["Skellam, as charged", f"{r['charged']:.5f}", f"{r['charged'] / r['central']:.5f}"],
                ["Skellam, measured", f"{r['measured']:.5f}", f"{ratio:.5f} ± {r['standard_error']:.5f}"],
            ],
        ),
        "",
        f"Within {WITHIN:g} %: **{'yes' if abs(ratio - 1) <= WITHIN / 100 else 'no'}**. A unit has "
        f"{r['steps_per_unit']:.0f} grid steps; rounding lengthens a move by at most {r['rounding']:.2%}, which is "
        "charged; "
        f"some coordinate of a round wraps with a chance below 2^{r['wrap_log2']:.0f}.",
        "",
    ]


def _accuracy(found: Found) -> list[str]:
    lines = ["## Accuracy", "", "Test accuracy in percent, mean ± standard deviation over seeds; the same seed means "
             "the same split, initial weights and batches.", ""]  # fmt: skip
    for s, lrs, cells in found.studies:
        rows = [_row(s, row, cells) for row in ROWS]
        heads = ["noise", *(f"ε = {e:g} (lr {lrs[e]:g})" for e in s.epsilons)]
        heads += [f"ε = {s.epsilons[-1]:g}: minus central, by seed", "uploads"]
        lines += [
            f"### {s.title}: {s.rounds} rounds, seeds {', '.join(map(str, s.seeds))}",
            "",
            *markdown(heads, rows),
            "",
        ]
        lines += [_verdict(s, cells), ""]
    return lines


def _row(s: Schedule, row: Row, cells: dict[Cell, Record]) -> list[str]:
    largest = s.epsilons[-1]
    spreads = [_of(s, row, epsilon, cells) for epsilon in s.epsilons]
    texts = [Spread.of(list(found.values())).text() if found else "–" for found in spreads]
    gap = "" if row is CENTRAL else _gap(s, row, cells).text("+.2f")
    found = [r for c, r in cells.items() if (c.label, c.epsilon) == (row.label, largest) and c.seed in s.seeds]
    sent = sum(r["bytes_up"] for r in found) / len(found) / s.rounds / CLIENTS
    return [row.label, *texts, gap, f"{sent / 1000:.1f} kB per client and round"]


def _of(s: Schedule, row: Row, epsilon: float, cells: dict[Cell, Record]) -> dict[int, float]:
    """Accuracy in percent by seed."""
    return {
        c.seed: 100 * r["accuracy"]
        for c, r in cells.items()
        if (c.label, c.epsilon) == (row.label, epsilon) and c.seed in s.seeds
    }


def _gap(s: Schedule, row: Row, cells: dict[Cell, Record]) -> Spread:
    ours, central = (_of(s, which, s.epsilons[-1], cells) for which in (row, CENTRAL))
    return Spread.of([ours[seed] - central[seed] for seed in s.seeds])


def _verdict(s: Schedule, cells: dict[Cell, Record]) -> str:
    central = Spread.of(list(_of(s, CENTRAL, s.epsilons[-1], cells).values())).mean
    gaps = [_gap(s, row, cells).mean for row in ROWS if row is not CENTRAL]
    near = max(abs(gap) for gap in gaps) <= WITHIN
    return (
        f"Central noise reaches {s.goal:g} % at ε = {s.epsilons[-1]:g}: **{'yes' if central >= s.goal else 'no'}**; "
        f"every distributed row within {WITHIN:g} point of it: **{'yes' if near else 'no'}** (the farthest: "
        f"{max(gaps, key=abs):+.2f})."
    )


def _proofs(found: Found) -> list[str]:
    lines = ["## What is proved", "", "From the statements of the runs of the first seed at the largest ε.", ""]
    for s, _, cells in found.studies:
        rows = []
        for row in ROWS:
            record = next(
                r for c, r in cells.items() if (c.label, c.epsilon, c.seed) == (row.label, s.epsilons[-1], s.seeds[0])
            )
            proved = {(x["observer"], x["unit"]): x for x in record["statement"]}
            claims = [_claim(proved["server", "client"]), _claim(proved["public", "client"])]
            pool = record["pool"]
            shares = "–" if pool is None else f"{pool['honest']} (a = {pool['colluding']})"
            rows.append([row.label, *claims, f"{record['sigma']:.3f}", shares])
        heads = ["noise", "whole clients, server", "whole clients, public", "σ", "n_min"]
        lines += [f"### {s.title}", "", *markdown(heads, rows), ""]
    return lines[:-1]


def _claim(row: Record) -> str:
    return "none" if row["epsilon"] is None else f"{row['epsilon']:.3f}, {row['status']}"

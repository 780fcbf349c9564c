"""``fedveil budget`` on the terminal: all accountants side by side."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fedveil.core.arguments import fit
from fedveil.privacy.budget import BudgetRow, BudgetTable, budget, curve
from fedveil.privacy.events import Adjacency, Mechanism
from fedveil.report.budget import write_budget_page
from fedveil.runtime.folder import write_json

WORDS = {"epsilon": "epsilon", "multiplier": "noise multiplier", "steps": "steps"}


def show_budget(
    console: Console,
    *,
    given: dict[str, Any],
    sampling: float,
    delta: float,
    mechanism: str,
    adjacency: str,
    plot: Path | None,
    json: Path | None,
) -> BudgetTable:
    """Compute what is missing, print the table, and write the plot and the JSON file where they are wanted."""
    setting: dict[str, Any] = {
        "sampling": sampling,
        "delta": delta,
        "mechanism": fit("mechanism", mechanism, Mechanism),
        "adjacency": fit("adjacency", adjacency, Adjacency),
    }
    table = budget(**given, **setting)
    if table.solved == "multiplier":
        table = replace(table, rows=tuple(_rounded_up(row) for row in table.rows))
    if plot is not None:
        best = next((row for row in table.rows if row.refused is None), None)
        lines = {}
        if best is not None and best.multiplier and best.steps:
            lines = curve(multiplier=best.multiplier, steps=best.steps, **setting)
        write_budget_page(plot, table, lines)
    if json is not None:
        write_json(json, asdict(table))
    _print(console, table)
    if plot is not None:
        console.print(f"plot: {plot}", highlight=False, soft_wrap=True)
    return table


def _rounded_up(row: BudgetRow) -> BudgetRow:
    """Five digits of the multiplier, never too few of it: what is printed keeps the target when it is typed back."""
    if row.multiplier is None:
        return row
    unit = 10.0 ** (math.floor(math.log10(row.multiplier)) - 4)
    return replace(row, multiplier=float(f"{math.ceil(row.multiplier / unit) * unit:.5g}"))


def _print(console: Console, table: BudgetTable) -> None:
    rate = 1.0 if table.sampling is None else table.sampling.rate
    drawn = "every unit takes part in every release" if rate == 1 else f"Poisson sampling with rate {rate:g}"
    console.print(
        f"{table.mechanism} mechanism, {drawn}, delta {table.delta:g}, neighbours {table.adjacency}; "
        f"computed: {WORDS[table.solved]}",
        highlight=False,
        soft_wrap=True,
    )
    out = Table("accountant", "epsilon", "noise multiplier", "steps", "", box=SIMPLE)
    for row in table.rows:
        numbers = (row.epsilon, row.multiplier, row.steps)
        cells = ["-" if n is None else f"{n:,}" if isinstance(n, int) else f"{n:.5g}" for n in numbers]
        out.add_row(row.accountant, *cells, row.refused or "")
    console.print(out)

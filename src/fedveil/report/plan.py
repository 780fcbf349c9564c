"""``fedveil run ... --plan`` on the terminal and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fedveil.privacy.statement import cells
from fedveil.report.progress import statement_table
from fedveil.runtime.plan import Plan


def show_plan(console: Console, plan: Plan) -> None:
    """Print what the run would do."""

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    for line in plan.opening:
        say(line)
    if plan.noise:
        table = Table(title="Noise", title_justify="left", box=SIMPLE)
        for head in ("where", "mechanism", "unit", "sensitivity", "multiplier", "deviation", "per client and round"):
            table.add_column(head, overflow="fold")
        for n in plan.noise:
            table.add_row(n.slot, n.mechanism, n.unit, *map(_span, (n.bound, n.multiplier, n.std, n.times)))
        console.print(table)
    else:
        say("no privacy mechanism: nothing is protected")
    console.print(statement_table([cells(row) for row in plan.statement.rows], f"Predicted after {plan.rounds} rounds"))
    for row in plan.statement.rows:
        if row.note and row.status != "none":
            say(f"{row.observer}, {row.unit} ({row.status}): {row.note}")
    if plan.stopped:
        say(f"rounds affordable: {plan.rounds} of {plan.asked}; {plan.stopped}")
    elif plan.affordable is None:
        say(f"rounds affordable: all {plan.asked}, as no budget is set")
    else:
        say(f"rounds affordable: {plan.affordable}{'' if plan.ends else ' or more'} ({plan.asked} asked for)")
    say(f"expected time: {_duration(plan.seconds)} (one trial round, times {plan.rounds}); nothing was trained")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as a mapping."""
    return asdict(plan) | {"statement": plan.statement.to_json()}


def _span(values: tuple[float, float]) -> str:
    low, high = (f"{v:.4g}" for v in values)
    return low if low == high else f"{low} to {high}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

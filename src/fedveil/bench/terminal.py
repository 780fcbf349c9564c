"""What a person sees of a benchmark: a bar with the time left, and a table per scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedveil.bench.engine import Options, Unit, plan, run
from fedveil.bench.goals import GOALS

Report = dict[str, Any]


def measure(console: Console, options: Options, path: Path | None) -> Report:
    """Run the benchmark with a bar, or with a line per unit where there is no terminal."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    units = plan(options)
    task = bar.add_task("", total=sum(unit.seconds for unit in units))
    now: list[Unit] = []

    def began(unit: Unit) -> None:
        if now:
            bar.advance(task, now[-1].seconds)
        now.append(unit)
        if not console.is_terminal:
            left = sum(u.seconds for u in units[len(now) - 1 :])
            console.print(f"{len(now)}/{len(units)} {unit.name}, about {left:.0f} s left", highlight=False)

    def tell(words: str) -> None:
        bar.update(task, description=f"{now[-1].name}: {words}" if now else words)

    with bar:
        return run(options, path, began, tell)


def show(console: Console, report: Report) -> None:
    """A table per scenario, then the goals."""
    for name, row in report["scenarios"].items():
        if "failed" in row:
            console.print(f"{name}: failed: {row['failed']}", highlight=False, soft_wrap=True)
            continue
        table = Table("", "ms per round", "rounds/s", "ours is faster by", box=SIMPLE, title_justify="left")
        table.title = f"{name} (engine {row['engine']})"
        for who, found in row["contenders"].items():
            if "missing" in found:
                table.add_row(who, "-", "-", found["missing"])
                continue
            times = found["times_ours"]
            words = "" if who == "ours" else f"{times['median']:.2f} ({times['min']:.2f} to {times['max']:.2f})"
            seconds = found["seconds"]["median"]
            table.add_row(who, f"{1e3 * seconds:.2f}", f"{1 / seconds:.2f}", words)
        console.print(table)
    table = Table("goal", "asked", "measured", "", box=SIMPLE, title="Goals", title_justify="left")
    for goal in (g for g in GOALS if g.device == report["about"]["device"]):
        verdict = goal.verdict(report)
        if verdict != "not measured":
            bound = "at least" if goal.least else "below"
            table.add_row(goal.words, f"{bound} {goal.target:g}{goal.unit}", goal.shown(report), verdict.strip("*"))
    if table.row_count:
        console.print(table)

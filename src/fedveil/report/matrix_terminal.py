"""The ``fedveil matrix`` command: compute what is missing, show how far it is, write the page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from fedveil.core.errors import Refused
from fedveil.report.matrix import page, summarise
from fedveil.report.shell import save
from fedveil.report.words import duration
from fedveil.runtime.folder import write_json
from fedveil.runtime.matrix import Cells, Matrix, Place, Record, lay_out


def carry_out(
    console: Console,
    overrides: Sequence[str],
    out: Path,
    private: str = "dp_fedavg_local",
    under_privacy: Sequence[str] = (),
    json: Path | None = None,
) -> dict[str, Any]:
    """Lay out, compute, and write ``matrix.html`` and ``matrix.json`` into ``out``; returns the summary."""
    matrix = lay_out(overrides, private=private, under_privacy=under_privacy)
    cells = Cells(out)
    try:
        failed = compute(console, matrix, cells, {})
    except KeyboardInterrupt:
        write(matrix, cells, out)
        console.print("Finished cells are kept; the same command goes on.")
        raise
    summary = write(matrix, cells, out)
    if json is not None:
        write_json(json, summary)
    show(console, summary)
    console.print(f"page: {out / 'matrix.html'}", highlight=False, soft_wrap=True)
    if failed:
        what = "; ".join(f"{place}: {why}" for place, why in failed[:3])
        raise Refused(f"matrix: {len(failed)} of {len(matrix.places)} cells could not be computed ({what})")
    return summary


def write(matrix: Matrix, cells: Cells, out: Path) -> dict[str, Any]:
    """The page and its numbers, from the cells that are there."""
    summary = summarise(matrix, cells.read)
    save(out / "matrix.html", page(summary))
    write_json(out / "matrix.json", summary)
    return summary


def compute(console: Console, matrix: Matrix, cells: Cells, parts: Mapping[str, Any]) -> list[tuple[Place, str]]:
    """Compute the cells that are missing, in order; those that were refused, and why."""
    missing = [p for p in matrix.places if cells.read(p) is None]
    done, total, failed = len(matrix.places) - len(missing), len(matrix.places), list[tuple[Place, str]]()
    console.print(f"{done} of {total} cells are there", highlight=False)
    started, bar = time.perf_counter(), None
    if console.is_terminal:
        columns = (TextColumn("{task.fields[left]}"), TextColumn("{task.description}"))
        bar = Progress(BarColumn(24), MofNCompleteColumn(), *columns, console=console)
        task = bar.add_task("", total=total, completed=done, left="")
        bar.start()
    try:
        for i, place in enumerate(missing, start=1):
            record: Record | None = None
            try:
                record = cells.compute(place, parts)
            except Refused as refusal:
                failed.append((place, str(refusal)))
            left = (time.perf_counter() - started) / i * (len(missing) - i)
            accuracy = record["accuracy"] if record else None
            text = f"{place}: {'failed' if accuracy is None else f'{accuracy:.3f}'}"
            if bar is not None:
                bar.update(task, completed=done + i, left=f"{duration(left)} left", description=text)
            else:
                console.print(f"[{done + i}/{total}] {text} ({duration(left)} left)", highlight=False, markup=False)
    finally:
        if bar is not None:
            bar.stop()
    return failed


def show(console: Console, summary: dict[str, Any]) -> None:
    """A table for each budget, and the worst attack on each rule."""
    for budget in summary["budgets"]:
        title = "no privacy" if budget == "none" else f"epsilon {budget}"
        shown = Table("attack", *summary["aggregates"], title=title, title_justify="left", box=SIMPLE)
        cells = {(c["attack"], c["aggregate"]): c["accuracy"] for c in summary["cells"] if c["privacy"] == budget}
        for attack in summary["attacks"]:
            shown.add_row(attack, *(_short(cells[attack, rule]) for rule in summary["aggregates"]))
        worst = {w["aggregate"]: w["accuracy"] for w in summary["worst"] if w["privacy"] == budget}
        shown.add_row("worst", *(_short(worst[rule]) for rule in summary["aggregates"]))
        console.print(shown)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"

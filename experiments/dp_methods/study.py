"""The study from the first cell to the page: what is there is kept, what is missing is computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import fedveil
from experiments.dp_methods.cell import Cache
from experiments.dp_methods.grid import Entry, Schedule
from experiments.dp_methods.numbers import gather
from experiments.dp_methods.page import write_page
from experiments.dp_methods.progress import Display, duration
from experiments.dp_methods.tuning import survey
from experiments.dp_methods.workers import results
from fedveil.core.errors import Refused

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""


def study(
    schedule: Schedule, entries: Sequence[Entry], shown: Sequence[Entry], cache: Cache, page: Path, jobs: int
) -> int:
    """Compute the cells of ``entries``, write the page about ``shown``; returns the exit code.

    Where the data set is not there and cells are missing, it is left out, which is no failure.
    """
    console = Console()
    failed: dict[str, tuple[str, str]] = {}
    view = survey(schedule, entries, cache.read)
    if view.wanted and (why := absent(schedule)):
        console.print(
            f"{schedule.title} is left out, its page stays as it is: {why}.",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        return 0
    with Display(console) as display:
        display.begin(view.done, view.total)
        try:
            while work := [c for c in view.wanted if c.key not in failed]:
                # Learning rates first: the accountants' curves of an evaluation are then computed once.
                work = [c for c in work if c.seed == schedule.tuning_seed] or work
                done, total = view.done + len(failed), view.total
                for cell, record, why in results(work, jobs):
                    done += 1
                    if record is None:
                        failed[cell.key] = (str(cell), why)
                    else:
                        cache.write(record)
                    display.cell(cell, record, done, total)
                view = survey(schedule, entries, cache.read)
        except KeyboardInterrupt:
            console.print("Interrupted. Finished cells are kept; the same command goes on.")
            return INTERRUPTED
    console.print(f"{display.computed} cells computed in {duration(display.seconds)}", highlight=False)
    path = write_page(gather(schedule, shown, cache.read), page)
    console.print(f"Written: {path}", highlight=False, soft_wrap=True)
    for name, why in failed.values():
        console.print(f"\nFAILED: {name}\n{why}", highlight=False, markup=False, soft_wrap=True)
    if failed:
        console.print(f"{len(failed)} cells failed", style="red")
    return 1 if failed else 0


def absent(schedule: Schedule) -> str | None:
    """Why the data set cannot be loaded, in words; None where it can."""
    try:
        fedveil.data.load(schedule.dataset, seed=0, population=schedule.population, partition="iid")
    except Refused as problem:
        return str(problem)
    return None

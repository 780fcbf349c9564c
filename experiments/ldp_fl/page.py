"""The page about the study, written from what is in the cache; every number on it is computed here."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Sequence

from experiments.ldp_fl.cells import Record
from experiments.ldp_fl.grid import WHOLE, Cell, Row, Task
from fedveil.privacy.ldp_budget import ldp_budget

Read = Callable[[Cell], Record | None]
DELTA = 1e-5
MARGIN = 0.015
"""The headline may lie so far below its clamp alone."""
RECIPE = '```bash no-run="needs MNIST or Fashion-MNIST, and minutes to hours"'

HEAD = """# LDP-FL on MNIST and Fashion-MNIST

`python -m experiments.ldp_fl` computes this page: all runs of the tables below, then every number in the text.
Accuracy is on the common test set after the last round, mean and range over seeds. ε is per weight and round, as in
the paper; the columns behind it say what a client of this study spends: *composed*, trusting nobody, and *shuffled*,
trusting the shuffler and the other clients (`split=weight`). Both are at delta {delta:g}, by `fedveil budget ldp`.
*Clamp alone* is the same run without any mechanism. Learning rates and ranges were chosen by the accuracy of seed 0 on
the same test set, so that its row flatters a little; no choice was made on the other seeds. [How to read
these](../ldp-fl.md).
"""


def write_page(tasks: Sequence[Task], read: Read) -> str:
    """The whole page as Markdown."""
    parts = [HEAD.format(delta=DELTA)]
    for task in tasks:
        if any(read(cell) for cell in task.cells()):
            parts += section(task, read)
    return "\n".join(parts).rstrip() + "\n"


def section(task: Task, read: Read) -> list[str]:
    """One data set: its verdict, its table, the command of its headline."""
    lines = [f"## {task.title}, {task.clients} clients", "", verdict(task, read), ""]
    lines += ["| run | ε | accuracy | seeds | composed | shuffled |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for row in task.rows():
        lines.append(line(task, row, read))
    spent = [r for cell in task.cells() if (r := read(cell))]
    devices = sorted({r["device"] for r in spent})
    lines += [
        "",
        f"{spent[0]['settings']['model']['name']} of {spent[0]['parameters']:,} weights, {task.rounds} rounds, all "
        f"{task.clients} clients in each round, trained on {' and '.join(devices)}.",
    ]
    lines += [compare(task, read), "", "The headline's command:", "", RECIPE, command(task), "```", ""]
    return lines


def scores(task: Task, row: Row, read: Read) -> list[float]:
    """Accuracies of the seeds that are there; a run that diverged counts as no better than guessing."""
    records = [read(Cell(task, row, seed)) for seed in task.seeds]
    return [0.1 if r["accuracy"] is None else r["accuracy"] for r in records if r is not None]


def line(task: Task, row: Row, read: Read) -> str:
    """One row of the table."""
    found = scores(task, row, read)
    epsilon = "-" if row.epsilon is None else f"{row.epsilon:g}"
    accuracy = "not run" if not found else f"{mean(found):.2f} % ({100 * min(found):.2f} to {100 * max(found):.2f})"
    composed, shuffled = spending(task, row, read)
    return f"| {row.label} | {epsilon} | {accuracy} | {len(found)} | {composed} | {shuffled} |"


def spending(task: Task, row: Row, read: Read) -> tuple[str, str]:
    """What a client spends in this row."""
    record = next((r for seed in task.seeds if (r := read(Cell(task, row, seed)))), None)
    if row.epsilon is None or record is None or not record["parameters"]:
        return "-", "-"
    rows = ldp_budget(
        clients=task.clients,
        epsilon=row.epsilon,
        dim=record["parameters"],
        rounds=task.rounds,
        delta=DELTA,
        mechanism=row.mechanism,
    )
    return f"{rows[2].epsilon:,.0f}", f"{rows[-1].epsilon:,.0f}"


def verdict(task: Task, read: Read) -> str:
    """Whether the headline was reached, in words."""
    rows = list(task.rows())
    ours, clamped = scores(task, rows[0], read), scores(task, rows[1], read)
    if not ours:
        return "The headline has not been run yet."
    whole = len(ours) == len(clamped) == len(task.seeds)
    reached = "reached" if statistics.mean(ours) >= task.goal else "missed"
    words = (
        f"Mean of {len(ours)} seeds at ε = {task.headline:g}: {mean(ours):.2f} %; the goal of {100 * task.goal:.0f} % "
        f"is {reached}. The paper reports {100 * task.published:.2f} %."
    )
    if clamped:
        gap = statistics.mean(clamped) - statistics.mean(ours)
        side = "within" if gap <= MARGIN else "beyond"
        words += (
            f" The clamp alone has {mean(clamped):.2f} %, so the mechanism costs {100 * gap:.2f} points, {side} the "
            f"{100 * MARGIN:.1f} that were allowed."
        )
    return words if whole else f"{words} Not all seeds have been run."


def compare(task: Task, read: Read) -> str:
    """Ranges and mechanisms side by side, in words, from the same numbers."""
    rows = {(row.label, row.epsilon): row for row in task.rows()}
    ours = scores(task, rows["fixed range", task.headline], read)
    said = []
    for label in ("adaptive range", "hybrid, fixed range", WHOLE):
        other = scores(task, rows[label, task.headline], read)
        if ours and other:
            gap = 100 * (statistics.mean(other) - statistics.mean(ours))
            said.append(f"{label}: {gap:+.2f} points against the fixed range at ε = {task.headline:g}")
    return "; ".join(said) + "." if said else ""


def command(task: Task) -> str:
    """The headline as it is typed."""
    settings = dict(Cell(task, next(task.rows()), 0).settings)
    words = ["fedveil run"]
    for name, value in settings.items():
        if isinstance(value, dict) and "name" in value:
            words.append(f"{name}={value['name']}")
            words += [f"{name}.{key}={inner}" for key, inner in value.items() if key != "name"]
        elif isinstance(value, dict):
            words += [f"{name}.{key}={inner}" for key, inner in value.items()]
        elif name != "seed":
            words.append(f"{name}={value}")
    return " ".join([words[0], *map(shlex.quote, words[1:])])


def mean(values: Sequence[float]) -> float:
    """In percent."""
    return 100 * statistics.mean(values)

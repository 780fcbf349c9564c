"""docs/results/apa-fl.md from the runs that are there; every number on it is computed, none typed."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from safetensors.torch import load_file

from experiments.apa_fl.cells import ATTACKS, DATA, ONSET, ROUNDS, SHARED, Cell, cells
from fedveil.core.files import write_bytes

GOAL = 0.01

INTRO = f"""# APA-FL beside the same run in the clear

Ten clients, two of them attackers from round {ONSET} on, {ROUNDS} rounds, the same seed: `method=apa_fl sigma=0`
(uploads encrypted, statistics opened as scalars, rules carried out by two servers) beside `method=fedavg`.
The goal is an accuracy within {GOAL}. "Weights apart" is the largest difference of a weight of the two final models;
seconds were taken on a busy machine, with both servers as threads of the run. Written by
`python -m experiments.apa_fl`, which keeps its runs and goes on where it was.
Small models on small tasks: this shows that both take the same way, not how good a rule is.

Shared settings: `{" ".join(SHARED)}`
"""


def write_page(root: Path, page: Path) -> None:
    """The whole page."""
    found = {cell: cell.result(root) for cell in cells()}
    parts = [INTRO]
    for name in DATA:
        parts += _section(name, {cell: run for cell, run in found.items() if cell.data == name})
    page.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(page, ("\n".join(parts).rstrip() + "\n").encode())


def _section(name: str, found: dict[Cell, dict[str, Any] | None]) -> list[str]:
    both = []
    for attack in ATTACKS:
        plain, ours = (found[Cell(name, attack, way)] for way in ("plain", "encrypted"))
        if plain is not None and ours is not None:
            both.append((attack, plain, ours))
    title = name.replace("_", "-")
    if not both:
        return [f"## {title}", "", "Not computed yet.", ""]
    lines = [
        f"## {title}",
        "",
        f"{both[0][1]['summary']['parameters']:,} parameters. {len(both)} of {len(ATTACKS)} attacks are computed.",
        "",
        "| attack | in the clear | encrypted | difference | weights apart | same rule | alarms | s a round | clear |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    worst = 0.0
    for attack, plain, ours in both:
        a, b = plain["summary"]["accuracy"], ours["summary"]["accuracy"]
        worst = max(worst, abs(a - b))
        pairs = list(zip(plain["events"], ours["events"], strict=False))
        same = sum(_rule(x) == _rule(y) for x, y in pairs)
        late = [e for e in ours["events"] if e["round"] >= ONSET]
        alarms = sum(bool(e.get("detector", {}).get("alarm")) for e in late)
        lines.append(
            f"| {attack} | {a:.4f} | {b:.4f} | {b - a:+.4f} | {_apart(plain, ours):.0e} | {same} of {len(pairs)} "
            f"| {alarms} of {len(late)} | {_seconds(ours):.2f} | {_seconds(plain):.3f} |"
        )
    verdict = "within the goal" if worst <= GOAL else "ABOVE the goal"
    missing = [attack for attack in ATTACKS if attack not in {row[0] for row in both}]
    lines += ["", f"The largest difference is {worst:.4f}: {verdict} of {GOAL}."]
    if missing:
        lines.append(f"Not computed: {', '.join(missing)}.")
    return [*lines, ""]


def _apart(plain: dict[str, Any], ours: dict[str, Any]) -> float:
    """The largest difference of a weight of the two final models."""
    one, two = (load_file(Path(run["folder"]) / "model.safetensors") for run in (plain, ours))
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def _rule(event: dict[str, Any]) -> Any:
    return event.get("detector", {}).get("rule")


def _seconds(run: dict[str, Any]) -> float:
    return median(event["seconds"] for event in run["events"])

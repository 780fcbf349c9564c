"""docs/results/dp-methods*.md, one page for each data set, written from kept cells."""

from __future__ import annotations

import platform
from pathlib import Path

from experiments.dp_methods import figures, model
from experiments.dp_methods.grid import (
    LAST,
    MODELS,
    OPACUS,
    POOLED,
    SCAFFOLD_PAIRS,
    SCHEDULES,
    STEIN_PAIRS,
    Pair,
    Schedule,
    installed,
)
from experiments.dp_methods.numbers import Comparison, Results, compare, paired
from experiments.dp_methods.progress import duration
from experiments.dp_methods.tables import forms, markdown, privacy, rates, table
from fedveil.core.files import write_bytes


def page_name(s: Schedule) -> str:
    """The page's file and the folder of its plots, without an ending.

    >>> [page_name(s) for s in SCHEDULES.values()]
    ['dp-methods', 'dp-methods-mnist', 'dp-methods-fashion-mnist']
    """
    return "dp-methods" + ("" if s.dataset == "digits" else f"-{s.dataset.replace('_', '-')}")


def write_page(results: Results, folder: Path) -> Path:
    """Write the page and its plots; returns the page's path."""
    name = page_name(results.schedule)
    plots = folder / name
    plots.mkdir(parents=True, exist_ok=True)
    write_bytes(plots / "accuracy.svg", figures.accuracy(results).encode())
    write_bytes(plots / "james-stein.svg", figures.stein(results).encode())
    path = folder / f"{name}.md"
    write_bytes(path, "\n".join(_lines(results)).encode())
    return path


def _lines(r: Results) -> list[str]:
    s = r.schedule
    return [
        "# Private methods compared" + ("" if s.dataset == "digits" else f": {s.title}"),
        "",
        *_intro(r),
        "## Accuracy",
        "",
        "Test accuracy in percent, mean ± standard deviation over seeds. **Bold**: the most accurate row of the column "
        "among those that protect records from the server.",
        "",
        f"![Accuracy against epsilon]({page_name(s)}/accuracy.svg)",
        "",
        *(line for partition in s.partitions for line in table(r, partition)),
        *_acceptance(r),
        *_section(
            r,
            "Where James-Stein helps",
            "Points of test accuracy: with shrinkage minus without, noise at the same place, each tuned on its own.",
            STEIN_PAIRS,
            f"![What James-Stein shrinkage changes]({page_name(s)}/james-stein.svg)",
        ),
        *_section(
            r,
            "Where SCAFFOLD helps",
            "Points of test accuracy: with control variates minus without, each tuned on its own.",
            SCAFFOLD_PAIRS,
        ),
        *forms(r),
        *rates(r),
        *privacy(r),
    ]


def _intro(r: Results) -> list[str]:
    s = r.schedule
    server = "" if s.server_lr == 1 else f", server learning rate {s.server_lr:g}"
    command = "python -m experiments.dp_methods" + (" --quick" if s.name == "quick" else "")
    lines = [
        f"Written by `{command}` from the runs that it keeps; no number here is typed. Cells that are kept are not "
        "computed anew, so that it can be interrupted at will. Other data sets: "
        + ", ".join(f"[{o.title}]({page_name(o)}.md)" for o in SCHEDULES.values() if o.dataset != s.dataset)
        + ".",
        "",
    ]
    if s.name != "full":
        lines += [
            f"**This is the {s.name} version: few rounds, few settings; it shows that the study runs, no more.**",
            "",
        ]
    if r.missing:
        lines += [
            f"**Incomplete: about {r.missing} of {r.cells + r.missing} cells are missing (– in the tables).**",
            "",
        ]
    if len(r.sources) > 1:
        lines += [f"**The cells come from {len(r.sources)} states of FedVeil's source; `--fresh` makes them one.**", ""]
    if OPACUS not in r.entries:
        lines += ["Opacus was not installed, so that its rows are left out.", ""]
    lines += [
        f"- {s.model} model on {s.dataset}; {s.population} clients, {s.cohort} per round; {s.rounds} rounds of "
        f"{s.steps} local steps, batch {s.batch}{server}; seeds {_listed(s.seeds)}, each with its own split, "
        "partition, initial weights and noise.",
        *([f"- {s.model}: {_first_line(getattr(model, s.model))}"] if s.model in MODELS else []),
        f"- δ = {s.delta:g}, accountant {s.accountant}; noise calibrated so that each run's statement proves at most ε "
        "for records towards the server (other units and observers are marked; each run's neighbours are zero_out). "
        f"One example's gradient is clipped to {s.clip_norm:g}; for dp_fedavg_central a whole move to {s.move_norm:g}.",
        f"- Learning rate: tuned for every row and ε alike, on seed {s.tuning_seed} and {s.tuning_partition}, over "
        f"{_listed(s.lrs)}; while the best lies at an edge the grid grows by a factor of 2, at most {s.extensions} "
        "times. **Tuning looked at the test accuracy of that seed, and its runs are not counted in ε**; nor are the "
        "choice of the bold rows and of the fixed settings, which looked at test accuracies as well.",
        "- Step noise is added in every local step, last noise once to the whole move. dp_scaffold runs without "
        "shrinkage (jse_enabled=false): the names of its variants only say where the noise stands.",
        "- Non-private rows are ceilings: the same rounds, steps and tuning, no clip, no noise, uniform weights.",
    ]
    if OPACUS in r.entries:
        lines.append(
            f"- Opacus {installed('opacus')}: DP-SGD on the pooled training examples, {s.rounds * s.steps} steps, "
            f"expected batch {s.pooled_batch}, same clip and tuning; neighbours add or remove a record, where FedVeil "
            "zeroes it. The same numbers stand in every table, since pooled data has no partition."
        )
    lines += [
        f"- {r.cells} cells, tuning included, took {duration(r.seconds)} of one core together (FedVeil "
        f"{installed('fedveil')}, torch {installed('torch')}, Python {platform.python_version()}, one thread).",
        "",
    ]
    return lines


def _acceptance(r: Results) -> list[str]:
    s = r.schedule
    partition = s.tuning_partition if s.tuning_partition in s.partitions else s.partitions[0]
    epsilon = max(s.epsilons)
    lines = [f"## Against training without privacy (ε = {epsilon:g}, {partition})", ""]
    best, plain = r.best(partition, epsilon), r.spread("fedavg", partition, None)
    if best is None or plain is None:
        return [*lines, "Not measured yet.", ""]
    apart = paired(_aligned(r, partition), (best[0], "fedavg"), partition, epsilon)
    assert apart is not None
    lines.append(
        f"- `{best[0]}`, records protected from the server: {best[1].text()} %; non-private `fedavg`: "
        f"{plain.text()} %; the former is {_gap(apart.mean)} (paired by seed, standard deviation {apart.sd:.1f})."
    )
    peer = r.spread(OPACUS.label, POOLED, epsilon)
    if peer is not None:
        lines.append(
            f"- Beside it: DP-SGD by Opacus on pooled data, a trusted curator: {peer.text()} %, "
            f"{_gap(peer.mean - plain.mean)} `fedavg`; `{best[0]}` is {_gap(best[1].mean - peer.mean)} it."
        )
    if s.goal is not None:
        lines.append(f"- Goal: {s.goal:g} % with records protected from the server: {_reached(best[1].mean, s.goal)}.")
    return [*lines, ""]


def _reached(mean: float, goal: float) -> str:
    return "reached" if mean >= goal else f"missed by {goal - mean:.1f} points"


def _gap(points: float) -> str:
    return f"{abs(points):.1f} points {'below' if points < 0 else 'above'}"


def _aligned(r: Results, partition: str) -> dict[tuple[str, str, float | None], dict[int, float]]:
    """Accuracies with the ceilings repeated at every budget, so that they can be paired."""
    ceilings = [entry.label for entry in r.entries if entry.kind == "ceiling"]
    same = {
        (label, partition, epsilon): r.accuracy.get((label, partition, None), {})
        for label in ceilings
        for epsilon in r.schedule.epsilons
    }
    return r.accuracy | same


def _section(r: Results, title: str, what: str, pairs: tuple[Pair, ...], plot: str = "") -> list[str]:
    found = [compare(r, pair) for pair in pairs]
    rule = (
        "*Helps* (*hurts*): the mean difference is above (below) zero by more than its standard deviation over the "
        "seeds, a low bar with few seeds."
    )
    lines = [f"## {title}", "", what + " " + rule, ""]
    lines += [_overall(title, found), ""]
    lines += [*(f"- `{c.pair[0]}` against `{c.pair[1]}`: {c.sentence()}" for c in found), ""]
    lines += [plot, ""] if plot else []
    s = r.schedule
    for partition in s.partitions:
        rows = [
            [f"`{c.pair[0]}` − `{c.pair[1]}`"]
            + ["–" if (d := c.differences.get((partition, e))) is None else d.text("+.1f") for e in s.epsilons]
            for c in found
        ]
        lines += [f"### {title}: {partition}", "", *markdown(["", *(f"ε = {e:g}" for e in s.epsilons)], rows), ""]
    return lines


def _overall(title: str, found: list[Comparison]) -> str:
    """All pairs together, and noise in every step apart from noise on whole moves."""
    parts = []
    for name, last in (("noise in every step", False), ("noise on whole moves", True)):
        group = [c for c in found if c.pair[0].endswith(LAST) is last]
        n = sum(len(c.differences) for c in group)
        helps, hurts = (sum(len(c.where(v)) for c in group) for v in ("better", "worse"))
        parts.append(f"with {name} it helps in {helps} and hurts in {hurts} of {n} settings")
    return f"{title.split()[1]}: {'; '.join(parts)}."


def _listed(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").partition("\n")[0]

"""``fedveil compare``: many runs on one page, filtered and drawn by its script, and the same rows as CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedveil.core.errors import Refused
from fedveil.report.live.folders import Folders
from fedveil.report.matrix import heat
from fedveil.report.read import Run, number, read_run
from fedveil.report.rows import Row, course, pareto, promise_of, row
from fedveil.report.shell import document, save, sections
from fedveil.report.words import duration, figure, percent, size, table, words

POINTS = 40_000
"""Points of all courses together, so that the page stays small."""
FACETS = ("method", "data", "model", "attack", "aggregate", "transport", "status")
COLUMNS = (
    *("run", "status", "method", "data", "model", "attack", "aggregate", "transport", "seed", "rounds"),
    *("accuracy", "worst10", "loss", "epsilon", "promise", "front", "bytes", "seconds"),
)


def read_all(folders: Sequence[Path]) -> tuple[dict[str, Run], list[str]]:
    """The runs of these folders by short names, and what had to be left out.

    A folder that is no run stands for all runs inside it; a damaged run is refused where it was named, and left out
    where it was found.
    """
    found: dict[Path, Run] = {}
    left: list[str] = []
    for folder in folders:
        inside = Folders(folder) if folder.is_dir() and not (folder / "config.yaml").exists() else None
        names = inside.names() if inside is not None else []
        if inside is None or not names:
            found[folder.resolve()] = read_run(folder)
            continue
        for name in names:
            try:
                found[(folder / name).resolve()] = inside.read(name)
            except Refused as refusal:
                left.append(f"{folder / name}: {refusal}")
    one, two = (Counter("/".join(path.parts[-n:]) for path in found) for n in (1, 2))
    labels = []
    for path in found:
        name, longer = path.name, "/".join(path.parts[-2:])
        labels.append(name if one[name] == 1 else longer if two[longer] == 1 else str(path))
    return dict(zip(labels, found.values(), strict=True)), left


def write_comparison(folders: Sequence[Path], out: Path, table_file: Path | None = None) -> tuple[int, list[str]]:
    """Write the page, and the CSV file where one is wanted; returns how many runs they hold, and what was left out."""
    runs, left = read_all(folders)
    try:
        save(out, comparison(runs, notice=f"Left out: {'; '.join(left)}" if left else ""))
        if table_file is not None:
            save(table_file, as_csv([row(run, label) for label, run in runs.items()]))
    except OSError as error:
        raise Refused(f"out: cannot write {error.filename or out} ({error.strerror}); give another path") from None
    return len(runs), left


def comparison(runs: Mapping[str, Run], *, notice: str = "", linked: bool = False, above: str = "") -> str:
    """The whole page."""
    rows = [row(run, label) for label, run in runs.items()]
    points = max(20, min(400, POINTS // max(1, len(runs))))
    told = {
        "rows": [
            {**r.to_json(), "line": csv_line(r, rows), "course": course(run, points)}
            for r, run in zip(rows, runs.values(), strict=True)
        ],
        "head": _line(COLUMNS),
    }
    parts = {"filter": _filter(rows), "results": _plots(rows), "runs": _table(rows), "attacks": _matrix(rows, runs)}
    parts = {name: part for name, part in parts.items() if part}
    data = sorted({r.data for r in rows})
    lead = f"{len(rows):,} runs on {words(', '.join(data))}" if rows else "No run to compare"
    warned = f'<p class="notice" role="note">{words(notice)}</p>' if notice else ""
    return document(
        "Comparison",
        lead,
        f'<div id="compare">{sections(parts)}</div>',
        [],
        warned,
        nav=parts,
        kind="comparison",
        scripts=("compare.js",),
        data={"comparison": told},
        linked=linked,
        above=above,
        drawing=True,
    )


def usual(rows: Sequence[Row]) -> str | None:
    """The promise that most runs are listed with; where none is, the one that most make, and the first by name."""
    often = Counter(r.promise for r in rows if r.promise) or Counter(p for r in rows for p in r.promises)
    return min(often, key=lambda p: (-often[p], p), default=None)


def _on_front(mine: Row, rows: Sequence[Row]) -> bool:
    """Whether no run on the same data beats this one, for the promise that it is listed with."""
    alike = [r for r in rows if r.data == mine.data]
    return mine.promise is not None and mine in pareto(alike, mine.promise)


def _filter(rows: Sequence[Row]) -> str:
    """A group of boxes for everything in which the runs differ."""
    groups = ""
    for facet in FACETS:
        often = Counter(getattr(r, facet) for r in rows)
        if len(often) > 1:
            boxes = "".join(
                f'<label><input type="checkbox" data-facet="{facet}" value="{words(value)}" checked> {words(value)} '
                f'<span class="muted">({count})</span></label>'
                for value, count in sorted(often.items())
            )
            groups += f"<fieldset><legend>{facet.capitalize()}</legend>{boxes}</fieldset>"
    promises = sorted({promise for r in rows for promise in r.promises})
    chosen = usual(rows)
    options = "".join(
        f'<option value="{words(p)}"{" selected" if p == chosen else ""}>{words(p)}</option>' for p in promises
    )
    picks = f'<label>ε per <select id="promise">{options}</select></label>' if promises else ""
    kinds = "".join(f'<option value="{f}">{f}</option>' for f in ("run", *FACETS))
    kinds = kinds.replace('value="method"', 'value="method" selected')
    picks += f'<label>Colour by <select id="colour">{kinds}</select></label>'
    count = '<p id="count" role="status" aria-live="polite"></p>'
    buttons = '<button type="button" id="csv">Save as CSV</button> <button type="button" id="all">Show all</button>'
    body = f'<div class="facets">{groups}</div><p class="picks">{picks}</p>{count}<p>{buttons}</p>'
    return f'<form class="filters" id="filters">{body}</form>'


PLOTS = (
    (
        "epsilon",
        "Accuracy against ε",
        "Further left is more private, higher is more accurate. The line is the Pareto front of a proved promise: runs "
        "that no other run on the same data beats in both. Runs without this promise are left out; nominal values "
        "prove nothing and have no front.",
    ),
    ("rounds", "Accuracy over rounds", "Every evaluation on the test set."),
    ("bytes", "Accuracy over bytes", "Everything that the clients had sent and received until then."),
    (
        "seconds",
        "Accuracy over seconds",
        "Wall-clock seconds of the rounds; they do not compare between machines.",
    ),
)


def _plots(rows: Sequence[Row]) -> str:
    made = ""
    for name, title, caption in PLOTS:
        if name == "epsilon" and not any(r.promises for r in rows):
            continue
        heard = f'role="img" aria-labelledby="{name}-title" aria-describedby="{name}-words"'
        made += (
            f'<figure><figcaption><h3 id="{name}-title">{title}</h3><p id="{name}-words">{caption}</p></figcaption>'
            f'<div class="plot" id="plot-{name}" {heard}></div></figure>'
        )
    hint = "<noscript><p>The plots need JavaScript; the table holds the numbers.</p></noscript>"
    return f'{hint}<div class="grid">{made}</div>'


def _table(rows: Sequence[Row]) -> str:
    """One line per run, with the settings in which they differ."""
    differ = [facet for facet in FACETS if len({getattr(r, facet) for r in rows}) > 1 and facet != "method"]
    seeds = ["seed"] if len({r.seed for r in rows}) > 1 else []
    body = [
        (
            words(r.run),
            words(r.method),
            *(words(getattr(r, facet)) for facet in differ),
            *(figure(r.seed, 15) for _ in seeds),
            percent(r.accuracy),
            percent(r.worst10),
            promise_of(r, front=_on_front(r, rows)),
            f"{r.rounds:,.0f}",
            size(r.bytes),
            duration(r.seconds),
        )
        for r in rows
    ]
    heads = ("Run", "Method", *(name.capitalize() for name in (*differ, *seeds)), "Accuracy", "Worst 10 %", "ε")
    return f'<div class="sheet">{table((*heads, "Rounds", "Bytes", "Time"), body, "compared")}</div>'


def as_csv(rows: Sequence[Row]) -> str:
    """One line per run, under the names of the columns."""
    return "".join([_line(COLUMNS), *(csv_line(r, rows) for r in rows)])


def csv_line(mine: Row, rows: Sequence[Row]) -> str:
    """The line of a run; ``front`` says whether it is on the Pareto front of its promise and data."""
    front = None if mine.promise is None else int(_on_front(mine, rows))
    return _line([_cell({**mine.to_json(), "front": front}[column]) for column in COLUMNS])


def _line(values: Sequence[Any]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(values)
    return out.getvalue()


def _cell(value: Any) -> Any:
    """A value for a spreadsheet, which must not take a text for a formula."""
    if isinstance(value, float):
        return f"{value:.10g}"
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _matrix(rows: Sequence[Row], runs: Mapping[str, Run]) -> str:
    """Attacks against rules, for each group of runs in which two or more rules met two or more attacks."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for r in rows:
        groups.setdefault((r.data, r.method, r.model), []).append(r)
    made = ""
    for (data, method, model), members in sorted(groups.items()):
        at = {(r.attack, r.aggregate) for r in members}
        rules = sorted(_often([rule for _, rule in at]), key=lambda rule: (rule != "mean", rule))
        attacks = sorted(_often([a for a, rule in at if rule in rules]), key=lambda a: (a != "none", a))
        if len(attacks) < 2 or len(rules) < 2:
            continue
        cells = {(a, b): _combined(a, b, members, runs) for a in attacks for b in rules}
        worst = []
        for rule in rules:
            lying = [c for (a, b), c in cells.items() if b == rule and a != "none" and c["accuracy"] is not None]
            least = min(lying, key=lambda c: c["accuracy"], default=None)
            found = {"attack": least and least["attack"], "accuracy": least and least["accuracy"]}
            worst.append({"privacy": "none", "aggregate": rule, **found})
        summary = {"attacks": attacks, "aggregates": rules, "cells": list(cells.values()), "worst": worst}
        made += f"<h3>{words(method)}, {words(model)}, on {words(data)}</h3>{heat(summary, 'none', MATRIX)}"
    return made


MATRIX = "Accuracy on the test set at the end, mean over all runs of a cell (lowest to highest below it)."


def _often(names: Sequence[str]) -> list[str]:
    """Names that stand there at least twice."""
    return [name for name, count in Counter(names).items() if count > 1]


def _combined(attack: str, rule: str, group: Sequence[Row], runs: Mapping[str, Run]) -> dict[str, Any]:
    """A cell as the matrix page takes it; its ε is shown where all of its runs have one, and promises do not differ."""
    members = [r for r in group if (r.attack, r.aggregate) == (attack, rule)]
    accuracies = [r.accuracy for r in members if r.accuracy is not None]
    successes = [number(runs[r.run].summary, "attack", "success") for r in members]
    known = [s for s in successes if s is not None]
    promises = {r.promise for r in group if r.promise is not None}
    epsilons = [r.epsilon for r in members if r.epsilon is not None and len(promises) == 1]
    private = len(epsilons) == len(members)
    return {
        "attack": attack,
        "aggregate": rule,
        "privacy": "none",
        "runs": len(members),
        "accuracy": fmean(accuracies) if accuracies else None,
        "least": min(accuracies, default=None),
        "most": max(accuracies, default=None),
        "success": fmean(known) if known else None,
        "excluded": sum(int(number(runs[r.run].summary, "excluded") or 0) for r in members),
        "aborted": 0,
        "epsilon": max(epsilons) if private else None,
        "promise": min(promises) if private else None,
        "spread": None,
    }

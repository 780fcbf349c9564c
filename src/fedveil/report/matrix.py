"""What a matrix says: accuracy of every attack against every rule, the worst, detection, and epsilon in each cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedveil.report.shell import document, sections
from fedveil.report.words import table, words

if TYPE_CHECKING:  # the page is also shown where nothing is trained
    from fedveil.runtime.matrix import Matrix, Place, Record

Read = Callable[["Place"], "Record | None"]


def summarise(matrix: Matrix, read: Read) -> dict[str, Any]:
    """Everything on the page, as plain data; cells that failed or are not there yet are null."""
    cells = [_cell(matrix, a, r, p, read) for p in matrix.budgets for r in matrix.aggregates for a in matrix.attacks]
    worst = []
    for p in matrix.budgets:
        for r in matrix.aggregates:
            found = [c for c in cells if (c["privacy"], c["aggregate"]) == (p, r) and c["accuracy"] is not None]
            lying = [c for c in found if c["attack"] != "none"]
            least = min(lying or found, key=lambda c: c["accuracy"], default=None)
            clean = next((c["accuracy"] for c in found if c["attack"] == "none"), None)
            kept = {"privacy": p, "aggregate": r, "clean": clean}
            worst.append(kept | {"attack": least and least["attack"], "accuracy": least and least["accuracy"]})
    return {
        "attacks": list(matrix.attacks),
        "aggregates": list(matrix.aggregates),
        "budgets": list(matrix.budgets),
        "seeds": list(matrix.seeds),
        "onset": matrix.onset,
        "cells": cells,
        "worst": worst,
    }


def _cell(matrix: Matrix, attack: str, aggregate: str, privacy: str, read: Read) -> dict[str, Any]:
    def records(which: str) -> list[Record]:
        at = (which, aggregate, privacy)
        found = [read(p) for p in matrix.places if (p.attack, p.aggregate, p.privacy) == at]
        return [r for r in found if r is not None]

    mine, clean = records(attack), records("none")
    accuracies = [r["accuracy"] for r in mine if r["accuracy"] is not None]
    epsilons = [r["epsilon"] for r in mine if r["epsilon"]]
    spreads = [r["spread"] for r in mine if r["spread"]]
    onset = next((r["facts"]["onset"] for r in mine if r["facts"]), matrix.onset)
    successes = [r["success"] for r in mine if r["success"] is not None]
    return {
        "attack": attack,
        "aggregate": aggregate,
        "privacy": privacy,
        "runs": len(mine),
        "accuracy": fmean(accuracies) if accuracies else None,
        "least": min(accuracies, default=None),
        "most": max(accuracies, default=None),
        "success": fmean(successes) if successes else None,
        "excluded": sum(r["excluded"] for r in mine),
        "aborted": sum(r["aborted"] for r in mine),
        "epsilon": max((e["epsilon"] for e in epsilons), default=None),
        "promise": f"{epsilons[0]['unit']}, {epsilons[0]['observer']}" if epsilons else None,
        "spread": [min(s[0] for s in spreads), fmean(s[1] for s in spreads), max(s[2] for s in spreads)]
        if spreads
        else None,
        "detection": detection(mine, clean, onset, attacked=attack != "none"),
    }


def detection(mine: Sequence[Record], clean: Sequence[Record], onset: int, *, attacked: bool) -> dict[str, Any] | None:
    """AUC, delay, false alarms and the share of rounds under a robust rule; None for rules that detect nothing.

    AUC compares the scores from the onset on with those of the same rounds of runs without an attack (where there are
    none: with this run's scores before the onset). The delay counts rounds from the onset to the first alarm. False
    alarms are the share of scored rounds without an attacker that were alarms.
    """
    seen = [r["detector"] for r in mine if r["detector"]]
    if not seen:
        return None
    calm = [r["detector"] for r in clean if r["detector"]]
    after = [x for rows in seen for x in rows if x[0] >= onset]
    before = [x for rows in seen for x in rows if x[0] < onset and x[1] is not None]
    beside = [x for rows in calm for x in rows if x[0] >= onset and x[1] is not None]
    delays = [next((x[0] - onset for x in rows if x[0] >= onset and x[2]), None) for rows in seen]
    quiet = beside if not attacked else before
    known = [d for d in delays if d is not None]
    return {
        "auc": auc([x[1] for x in after if x[1] is not None], [x[1] for x in beside or before]) if attacked else None,
        "delay": fmean(known) if attacked and known else None,
        "missed": delays.count(None) if attacked else None,
        "false_alarms": fmean(float(x[2]) for x in quiet) if quiet else None,
        "robust": fmean(float(x[3] != "mean") for x in after) if after else None,
    }


def auc(high: Sequence[float], low: Sequence[float]) -> float | None:
    """How often a score of an attacked round is above one of a calm round; ties count half.

    >>> auc([2.0, 3.0], [1.0, 2.0])
    0.875
    """
    if not high or not low:
        return None
    wins = sum((h > x) + 0.5 * (h == x) for h in high for x in low)
    return wins / (len(high) * len(low))


HOW = "Accuracy on the test set, mean of the last evaluations over all seeds (lowest to highest below it)."


def page(
    summary: dict[str, Any], title: str = "Attacks against rules", *, linked: bool = False, above: str = ""
) -> str:
    """One page that loads nothing from elsewhere."""
    parts: dict[str, str] = {}
    for budget in summary["budgets"]:
        name = "no-privacy" if budget == "none" else f"epsilon-{budget}"
        parts[words(name)] = heat(summary, budget)
    parts["detection"] = _detection(summary)
    parts = {name: part for name, part in parts.items() if part}
    done, of = sum(c["runs"] for c in summary["cells"]), len(summary["cells"]) * len(summary["seeds"])
    lead = f"{len(summary['attacks'])} attacks, {len(summary['aggregates'])} rules, {len(summary['seeds'])} seeds"
    notice = "" if done == of else f'<p class="notice" role="note">{done} of {of} cells are there.</p>'
    body = sections(parts)
    return document(words(title), words(lead), body, [], notice, nav=parts, kind="matrix", linked=linked, above=above)


def heat(summary: dict[str, Any], budget: str, how: str = HOW) -> str:
    """Attacks by rules under one budget, coloured by accuracy, with the worst attack on each rule."""
    cells = {(c["attack"], c["aggregate"]): c for c in summary["cells"] if c["privacy"] == budget}
    rules = summary["aggregates"]
    rows = [(words(a), *(_coloured(cells[a, r]) for r in rules)) for a in summary["attacks"]]
    worst = {w["aggregate"]: w for w in summary["worst"] if w["privacy"] == budget}
    rows.append(("<strong>worst attack</strong>", *(_worst(worst[r]) for r in rules)))
    private = [c for c in cells.values() if c["epsilon"] is not None]
    told = ""
    if private:
        spread = private[0]["spread"]
        ranges = "" if spread is None else f"; by client from {spread[0]:.3g} over {spread[1]:.3g} to {spread[2]:.3g}"
        told = (
            f"<p>Each cell has its own ledger. ε ({words(private[0]['promise'])}) is at most "
            f"{max(c['epsilon'] for c in private):.4g}{ranges}. It speaks of honest clients.</p>"
        )
    return f"<p>{how}</p>" + told + table(("Attack", *map(words, rules)), rows, "plain")


def _coloured(cell: dict[str, Any]) -> str:
    value = cell["accuracy"]
    if value is None:
        return "–"
    hue = 120 * max(0.0, min(1.0, value))
    more = [f"{cell['least']:.3f}–{cell['most']:.3f}"] if cell["runs"] > 1 else []
    if cell["epsilon"] is not None:
        spread = cell["spread"]
        by_client = "" if spread is None else f" ({spread[0]:.3g}–{spread[2]:.3g})"
        more.append(f"ε {cell['epsilon']:.3g}{by_client}")
    if cell["success"] is not None:
        more.append(f"trigger {cell['success']:.0%}")
    for what in ("excluded", "aborted"):
        if cell[what]:
            more.append(f"{cell[what]} {what}")
    small = "".join(f"<br><small>{words(text)}</small>" for text in more)
    style = f"background:hsl({hue:.0f} 60% 82%);color:#111;padding:.3em .5em;border-radius:.3em"
    return f'<div style="{style}">{value:.3f}{small}</div>'


def _worst(found: dict[str, Any]) -> str:
    if found["accuracy"] is None:
        return "–"
    return f"<strong>{found['accuracy']:.3f}</strong><br><small>{words(found['attack'])}</small>"


def _detection(summary: dict[str, Any]) -> str:
    rows = []
    for c in summary["cells"]:
        d = c["detection"]
        if d is None:
            continue
        budget = "none" if c["privacy"] == "none" else f"ε {c['privacy']}"
        missed = f" ({d['missed']} never)" if d["missed"] else ""
        rows.append(
            (
                words(f"{c['aggregate']}, {c['attack']}, {budget}"),
                _number(d["auc"], 3),
                _number(d["delay"], 1) + missed,
                _percent(d["false_alarms"]),
                _percent(d["robust"]),
            )
        )
    if not rows:
        return ""
    heads = ("Rule, attack, privacy", "AUC", "Delay in rounds", "False alarms", "Robust rule from the onset on")
    return table(heads, rows)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"

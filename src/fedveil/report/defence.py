"""The report's section about attacks: who attacked, what the server made of it, round by round."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fedveil.report.drawing import Plot, columns, line, round_axis, short, thin
from fedveil.report.read import Run, items, number
from fedveil.report.shell import figures
from fedveil.report.words import fold, pairs, table, words

ROWS = 150
"""Most rounds in the table of rules; events.jsonl has them all."""


def score(run: Run) -> Plot | None:
    """The attack score of every round, the thresholds, and which rule was taken."""
    x, scores = columns(run, ("detector", "score"))
    if not x:
        return None
    traces = [line(x, scores, "score", 0)]
    for name, colour in (("theta1", 1), ("theta2", 2)):
        at, values = columns(run, ("detector", name))
        if at:
            traces.append(line(at, values, name, colour, "dash") | {"mode": "lines"})
    robust = [event for event in run.events if told(event).get("rule") not in (None, "mean")]
    places = [(number(e, "round"), number(e, "detector", "score")) for e in robust]
    marked = [(place, value) for place, value in places if place is not None and value is not None]
    if marked:
        marks = {"symbol": "x", "size": 7, "color": "--c4"}
        xs, ys = [place for place, _ in marked], [short(value) for _, value in marked]
        traces.append({"x": xs, "y": ys, "name": "robust rule", "mode": "markers", "marker": marks, "type": "scatter"})
    positive = [s for s in scores if s > 0]
    wide = bool(positive) and max(positive) > 50 * min(positive)
    y: dict[str, Any] = {"title": {"text": "Score"}, "hoverformat": ".3g"} | ({"type": "log"} if wide else {})
    caption = f"How suspicious each round looked to the detector {words(told(run.events[-1]).get('name'))}. "
    caption += "A cross marks a round that a robust rule aggregated."
    return Plot("defence", "Attack score", caption, traces, round_axis(run), y)


def told(event: dict[str, Any]) -> dict[str, Any]:
    """What the controller logged in a round."""
    found = event.get("detector")
    return found if isinstance(found, dict) else {}


def defence(run: Run, plots: list[Plot]) -> str:
    """Attackers, excluded uploads, and the rules that were taken; nothing where there is nothing of it."""
    attack = run.summary.get("attack")
    who = table(("Attack", "Value"), pairs(attack)) if isinstance(attack, dict) else ""
    return who + _excluded(run) + figures("defence", plots) + _rules(run)


def _excluded(run: Run) -> str:
    found = [(event, entry) for event in run.events for entry in items(event, "excluded") if isinstance(entry, dict)]
    if not found:
        return ""
    counts = Counter((run.named(entry.get("client")), str(entry.get("why"))) for _, entry in found)
    rows = [(words(client), words(why), f"{count:,}") for (client, why), count in counts.most_common(100)]
    lead = f"<p>The server excluded {len(found):,} uploads that it could not use; the rounds went on without them.</p>"
    return lead + table(("Client", "Why", "Rounds"), rows)


def _rules(run: Run) -> str:
    seen = [(event, told(event)) for event in run.events if told(event)]
    if not seen:
        return ""
    shown = thin(seen, ROWS)
    counts = Counter((str(t.get("rule")), str(t.get("why")).partition(":")[0]) for _, t in seen)
    rows = [(words(rule), words(why), f"{count:,}") for (rule, why), count in counts.most_common()]
    each = [
        (
            words(event.get("round")),
            words(t.get("rule")),
            *(words(number(t, key)) for key in ("score", "theta1", "theta2")),
            words(t.get("why")),
        )
        for event, t in shown
    ]
    heads = ("Round", "Rule", "Score", "θ1", "θ2", "Why")
    title = f"Rule and score, {len(shown):,} of {len(seen):,} rounds"
    return table(("Rule", "Why", "Rounds"), rows) + fold(title, table(heads, each, "rounds"))

"""The top of a report: how good, how private, under which attack, and what it took."""

from __future__ import annotations

from typing import Any

from fedveil.report.defence import told
from fedveil.report.read import Run, items, name, number
from fedveil.report.statement import claims, holds, privacy_in_words
from fedveil.report.words import duration, figure, percent, size, words

Card = tuple[str, str, str]


def cards(run: Run) -> str:
    """Three large answers and a row of small ones."""
    large = "".join(
        _card(*card, style=f"card hero {card[0].lower()}") for card in (_good(run), _private(run), _attacked(run))
    )
    small = "".join(_card(*card) for card in _small(run))
    return f'<dl class="cards heroes">{large}</dl><dl class="cards">{small}</dl>'


def _card(title: str, value: str, more: str, style: str = "card") -> str:
    return f'<div class="{style}"><dt>{title}</dt><dd class="value">{value}</dd><dd class="more">{more}</dd></div>'


def _good(run: Run) -> Card:
    value = either(number(run.summary, "accuracy"), run.last("accuracy"))
    best = number(run.summary, "best_accuracy")
    if best is None:
        best = max((a for a in (number(event, "accuracy") for event in run.events) if a is not None), default=None)
    more = "on the test set" if value is not None else "no accuracy was measured"
    return "Accuracy", percent(value), more + (f"; the best round had {percent(best)}" if best is not None else "")


def _private(run: Run) -> Card:
    """The ε that the run's budget speaks of, where it was proved; everything else that is claimed below it."""
    state, details = privacy_in_words(run)
    spent = run.summary.get("epsilon") or next((e["epsilon"] for e in reversed(run.events) if e.get("epsilon")), None)
    if not claims(run):
        so_far = number(spent, "epsilon")
        if so_far is None or not isinstance(spent, dict):
            return "Privacy", state, details
        whom = f"per {words(spent.get('unit'))} towards {words(spent.get('observer'))}"
        return "Privacy", f"ε = {figure(so_far)}", f"spent so far {whom}; the statement comes with the end of the run"
    proved = [row for row in claims(run) if holds(row) == "proved"]
    about = (spent.get("observer"), spent.get("unit")) if isinstance(spent, dict) else None
    row = next((r for r in proved if (r.get("observer"), r.get("unit")) == about), proved[0] if proved else None)
    if row is None:
        return "Privacy", state, details
    badge = f'<span class="badge proved">{state}</span>'
    return "Privacy", f"ε = {figure(number(row, 'epsilon'))} {badge}", details


def _attacked(run: Run) -> Card:
    attack = run.summary.get("attack")
    planned = run.config.get("attack")
    if not isinstance(attack, dict) and isinstance(planned, dict) and planned.get("build"):
        attack = planned  # a run that has not finished
    rule = words(name(run.config, "aggregate") or "mean")
    seen = [told(event) for event in run.events if told(event)]
    alarms = sum(bool(t.get("alarm")) for t in seen)
    lines = [
        f"aggregated by {rule}" + (f", which raised the alarm in {alarms:,} of {len(seen):,} rounds" if seen else "")
    ]
    excluded = sum(len(items(event, "excluded")) for event in run.events)
    if excluded:
        lines.append(f"{excluded:,} uploads excluded")
    if not isinstance(attack, dict):
        return "Attack", "None simulated", "; ".join(lines)
    clients = items(attack, "clients")
    of = number(run.summary, "population")
    who = (
        f"{len(clients):,}{f' of {of:,.0f}' if of else ''} clients"
        if clients
        else f"{percent(number(attack, 'share'))} of clients"
    )
    onset = number(attack, "onset")
    lines.insert(0, who + (f" from round {onset:.0f} on" if onset is not None else ""))
    success = number(attack, "success")
    if success is not None:
        lines.append(f"the attacker's trigger works on {percent(success)} of the test set")
    return "Attack", words(attack.get("name")), "; ".join(lines)


def _small(run: Run) -> list[Card]:
    made = run.summary
    seconds = sum(number(event, "seconds") or 0.0 for event in run.events)
    done = either(number(made, "rounds"), len(run.events))
    planned = number(run.config, "rounds")
    each = number(made, "seconds_per_round") or (seconds / len(run.events) if run.events else None)
    up, down = (sum(number(event, key) or 0.0 for event in run.events) for key in ("bytes_up", "bytes_down"))
    return [
        (
            "Worst 10 %",
            percent(either(number(made, "worst10_accuracy"), run.last("client_accuracy", "worst10"))),
            "accuracy of the least served clients",
        ),
        ("Loss", figure(either(number(made, "loss"), run.last("loss"))), "on the test set"),
        ("Rounds", f"{done:,.0f}", f"of {planned:,.0f} planned" if planned is not None else ""),
        ("Time", duration(either(number(made, "seconds"), seconds)), f"{duration(each)} per round"),
        ("Traffic", size(up + down), f"{size(up)} up, {size(down)} down"),
    ]


def either(value: float | None, otherwise: float | None) -> Any:
    """The first number, or the second where there is none."""
    return otherwise if value is None else value

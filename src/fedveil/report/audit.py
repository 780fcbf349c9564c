"""The page of an audit: claim, lower bound, cap and verdict, and the scores that they rest on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fedveil.core.errors import Refused
from fedveil.privacy.audit import CONFIDENCE, STRICT
from fedveil.report.drawing import COLOURS, Plot, short
from fedveil.report.shell import document, figures, save, sections
from fedveil.report.words import figure, table, words
from fedveil.runtime.audit import Audited

UNITS = {"record": "one training example", "client": "everything that one client holds"}
BACK = '<a href="report.html">Report</a> · '
CANNOT = (
    "An audit looks for errors in one run; it cannot prove that there are none. A bound below the claim is what an "
    "honest run shows, and also what a run shows whose error this attack does not see.",
    "Canaries are gradients or moves of the auditor's choice, as long as the clip lets through: the worst that a claim "
    "allows, and far more than an attacker with real data can do. They join right before the noise, so that errors in "
    "how the gradients of real examples are computed and clipped are not seen.",
    "A 95 % bound is wrong in one of twenty audits of a run whose claim is as tight as can be.",
    "Nothing is said about what the claim does not cover: losses, accuracies, who took part, the choice of settings.",
)


def write_audit_page(path: Path, found: Audited) -> Path:
    """Write the page to ``path`` and return it."""
    try:
        save(path, audit_page(found))
    except OSError as error:
        raise Refused(f"audit: cannot write {path} ({error.strerror}); make the folder writable") from None
    return path


def audit_page(found: Audited) -> str:
    """The whole page."""
    plots = [ruler(found), scores(found)]
    parts = {"verdict": _verdict(found, plots), "scores": figures("scores", plots), "numbers": _numbers(found)}
    parts["limits"] = "<ul>" + "".join(f"<li>{words(text)}</li>" for text in CANNOT) + "</ul>"
    title = f"Audit: {words(found.method)} on {words(found.data)}"
    lead = f"{words(found.folder)}: who of {found.canaries:,} canaries took part?"
    return document(title, lead, sections(parts), plots, _notice(found), nav=parts, kind="audit", above=BACK)


def _notice(found: Audited) -> str:
    if found.noise == 1:
        return ""
    return (
        f'<p class="notice" role="note">Only {found.noise:g} of the noise was added, unknown to the ledger '
        "(audit.noise): the claim below is false on purpose.</p>"
    )


def _verdict(found: Audited, plots: list[Plot]) -> str:
    who = f"{UNITS[found.unit]}, towards {words(found.observer)}"
    shown = [
        ("Claim", f"ε = {figure(found.claim)}", f"δ = {found.delta:g}; {who}"),
        ("Lower bound", f"ε ≥ {figure(found.bound, 3)}", f"at {CONFIDENCE:.0%} confidence"),
        ("Cap", f"ε = {figure(found.cap, 3)}", f"the most that {found.guesses:,} guesses can show"),
        ("Right guesses", f"{found.right:,} of {found.guesses:,}", "half of them by chance alone"),
        ("Verdict", found.verdict, "see below"),
    ]
    cards = "".join(
        f'<div class="card"><dt>{head}</dt><dd class="value">{value}</dd><dd class="more">{more}</dd></div>'
        for head, value, more in shown
    )
    return f'<dl class="cards">{cards}</dl><p>{words(found.in_words)}</p>{figures("verdict", plots)}'


def ruler(found: Audited) -> Plot:
    """Claim, bound, estimate and cap on one axis."""
    rows: list[tuple[str, float, str]] = [
        ("cap", found.cap, COLOURS[6]),
        ("claim", found.claim, COLOURS[0]),
        ("lower bound", found.bound, COLOURS[1]),
    ]
    if found.switched_off is not None:
        rows.insert(0, ("bound without noise", found.switched_off, COLOURS[3]))
    top = max(value for _, value, _ in rows)
    if math.isfinite(found.estimate) and found.estimate < 3 * top:
        rows.append(("estimate (no bound)", found.estimate, COLOURS[4]))
    bar = {"type": "bar", "orientation": "h", "hovertemplate": "%{y}: ε = %{x}<extra></extra>"}
    traces: list[dict[str, Any]] = [
        bar | {"y": [name], "x": [short(value)], "marker": {"color": colour}, "text": [f"{value:.3g}"]}
        for name, value, colour in rows
    ]
    caption = "If the claim is right, the truth lies between it and the lower bound, which never reaches past the cap."
    layout = {"showlegend": False, "hovermode": "closest", "height": 260}
    return Plot("verdict", "What is claimed, and what was shown", caption, traces, {"title": {"text": "ε"}}, {}, layout)


def scores(found: Audited) -> Plot:
    """Scores of canaries that are in, and that are out, with the thresholds of the guesses."""
    h = found.histogram
    middle = [short((a + b) / 2) for a, b in zip(h.edges[:-1], h.edges[1:], strict=True)]
    width = short(h.edges[1] - h.edges[0])
    traces: list[dict[str, Any]] = [
        {"type": "bar", "x": middle, "y": list(counts), "width": width, "name": name, "opacity": 0.7}
        | {"marker": {"color": COLOURS[colour]}}
        for counts, name, colour in ((h.outside, "out", 0), (h.inside, "in", 1))
    ]
    top = max((*h.inside, *h.outside))
    for at, name, colour in ((h.below, "guessed out up to here", 0), (h.above, "guessed in from here", 1)):
        stroke = {"color": COLOURS[colour], "width": 2, "dash": "dash"}
        traces.append(
            {"type": "scatter", "mode": "lines", "x": [short(at)] * 2, "y": [0, top], "name": name, "line": stroke}
        )
    caption = (
        "The score of each canary, in deviations of the noise that the ledger charges. Where the two heaps lie apart, "
        "anyone can tell who took part."
    )
    layout = {"barmode": "overlay", "hovermode": "closest"}
    return Plot(
        "scores", "Scores", caption, traces, {"title": {"text": "Score"}}, {"title": {"text": "Canaries"}}, layout
    )


def lines(found: Audited) -> list[tuple[str, str]]:
    """Every number of an audit with its name, for page and terminal."""
    bound = f"{found.bound:.4f}"
    rows = [
        ("claim", f"ε = {found.claim:.4f}, δ = {found.delta:g} ({found.unit}, {found.observer}, proved)"),
        ("lower bound, 95 %", f"ε ≥ {bound}"),
        (f"lower bound, {100 * STRICT:g} %", f"ε ≥ {found.strict:.4f}"),
        ("cap of so many guesses", f"ε = {found.cap:.4f}"),
        ("chance of that under the claim", f"{found.chance:.3g} at most"),
        ("estimate (no bound)", _number(found.estimate)),
        ("canaries", f"{found.canaries:,}, {found.inside:,} of them in"),
        ("guesses", f"{found.guesses:,}, {found.right:,} of them right"),
        ("run", f"{found.method} on {found.data}, {found.rounds} rounds" + _accuracy(found.accuracy)),
    ]
    if found.cosine is not None:
        rows.insert(
            6,
            ("bound from released cosines", f"ε ≥ {found.cosine:.4f} (canaries taken as independent)"),
        )
    if found.switched_off is not None:
        sees = "the audit is blind to this method" if found.powerless else "the audit would have noticed"
        rows.insert(4, ("lower bound with the noise off", f"ε ≥ {found.switched_off:.4f}: {sees}"))
    if found.noise != 1:
        rows.append(("noise really added", f"{found.noise:g} of what the ledger charges (audit.noise)"))
    return rows


def _accuracy(value: float | None) -> str:
    return "" if value is None else f", accuracy {value:.4f}"


def _number(value: float) -> str:
    return "above 100" if value > 100 else f"ε about {value:.3g}"


def _numbers(found: Audited) -> str:
    return table(("What", "Value"), [(words(a), words(b)) for a, b in lines(found)])


def show_audit(console: Console, found: Audited, page: Path) -> None:
    """The outcome on the terminal."""
    rows = lines(found)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        console.print(f"{name:<{width}}  {value}", highlight=False, soft_wrap=True, markup=False)
    console.print(found.in_words, highlight=False, soft_wrap=True, markup=False)
    console.print(f"page: {page}", highlight=False, soft_wrap=True, markup=False)


def show_audits(console: Console, found: list[Audited]) -> None:
    """Several audits of the same configuration, one seed after another."""
    shown = Table("run", "claim", "lower bound", "cap", "right", "verdict", box=SIMPLE, title="Audits")
    for one in found:
        right = f"{one.right} of {one.guesses}"
        shown.add_row(one.folder, f"{one.claim:.3f}", f"{one.bound:.3f}", f"{one.cap:.3f}", right, one.verdict)
    console.print(shown)
    bounds = [one.bound for one in found]
    above = sum(one.bound > one.claim for one in found)
    console.print(
        f"lower bound: mean {sum(bounds) / len(bounds):.3f}, {min(bounds):.3f} to {max(bounds):.3f}; above the claim "
        f"in {above} of {len(found)} audits",
        highlight=False,
        soft_wrap=True,
    )

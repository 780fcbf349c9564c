"""The privacy statement of a run, in a headline and in full, explained in plain language."""

from __future__ import annotations

import math
from typing import Any

from fedveil.report.drawing import Plot
from fedveil.report.read import Run, items, number
from fedveil.report.shell import figures
from fedveil.report.words import figure, fold, table, words


def holds(row: Any) -> str:
    """The status of a statement row; a claim without a finite epsilon is no claim."""
    status = str(row.get("status") or "none")
    return status if number(row, "epsilon") is not None and status in ("proved", "nominal") else "none"


def claims(run: Run) -> list[dict[str, Any]]:
    """The rows of the privacy statement."""
    return [row for row in items(run.statement, "rows") if isinstance(row, dict)]


def privacy_in_words(run: Run) -> tuple[str, str]:
    """The privacy of a run as a headline and its details."""
    rows = claims(run)
    if not rows:
        return "Not stated", "This run folder holds no privacy statement; assume no protection."
    proved, nominal, none = ([r for r in rows if holds(r) == status] for status in ("proved", "nominal", "none"))
    bare = dict.fromkeys(f"{words(r.get('observer'))} per {words(r.get('unit'))}" for r in none)
    lines = [
        f"ε = {figure(number(r, 'epsilon'))}, δ = {figure(number(r, 'delta'))} per {words(r.get('unit'))} "
        f"towards {words(r.get('observer'))}, {holds(r)}"
        for r in (*proved, *nominal)
    ]
    if not lines:
        seen = ", ".join(dict.fromkeys(words(r.get("observer")) for r in none))
        return "No protection claimed", f"Nothing is claimed towards any observer ({seen})."
    if bare:
        lines.append(f"nothing claimed towards {', '.join(bare)}")
    head = ("Proved in part" if nominal or bare else "Proved") if proved else "Nominal only"
    return head, "<br>".join(lines)


OBSERVERS = {
    "server": "The server sees what the transport shows it: every client's upload, or only their sum.",
    "public": "Anyone who gets the released global models, which includes the other clients.",
    "server alone": "The server sees reports and not whose they are, while it does not work with the shuffler.",
    "shuffler": "The shuffler sees the sealed uploads and who sent them.",
}
UNITS = {"record": "one training example of a client", "client": "everything that one client holds"}


CHANGES = {
    "zero_out": "whether {} had a say, or zeros in its place,",
    "add_remove": "whether {} took part or not",
    "replace": "exchanging {} for any other",
}
"""What two neighbours differ by, as the subject of a sentence."""
WEIGHTWISE = ("two_point", "hybrid")
"""Mechanisms whose claims are about any change of a client's data, whatever neighbours the run has."""


def explain(row: dict[str, Any], adjacency: str) -> str:
    """A row of the privacy statement in plain language."""
    observer, unit, status = str(row.get("observer")), str(row.get("unit")), holds(row)
    who = OBSERVERS.get(observer, f"{words(observer)} is a party of its own and sees what the protocol shows it.")
    what = UNITS.get(unit, words(unit))
    epsilon, delta = number(row, "epsilon"), number(row, "delta")
    if adjacency not in CHANGES or str(row.get("mechanism")).startswith(WEIGHTWISE):
        adjacency = "replace"
    if status == "none" or epsilon is None:
        return f"{who} No privacy protection is claimed against this observer: it may learn about {what}."
    factor = f"= {math.exp(epsilon):.3g}" if epsilon < 7 else "(more than 1,000)"
    slack = f', apart from a slack of <span class="whole">δ = {delta:g}</span>' if delta else ""
    meaning = (
        f"{CHANGES[adjacency].format(what)} changes the chance of anything this observer can see "
        f"by a factor of at most e<sup>ε</sup> {factor}{slack}."
    )
    if status == "nominal":
        return f"{who} By a published formula that we do not stand behind, so do not rely on it: {meaning}"
    large = " So large an ε rules out little by itself." if epsilon > 10 else ""
    return f"{who} Proved from the run's ledger: {meaning}{large}"


def audit(run: Run, plots: list[Plot]) -> str:
    """What the latest audit of the run found out about one claim; nothing where there was none."""
    made = run.audit
    if not made:
        return ""
    about = f"{words(made.get('unit'))} towards {words(made.get('observer'))}, δ = {words(made.get('delta'))}"
    rows = [
        ("Verdict", words(made.get("verdict"))),
        ("Claim", f"ε = {figure(number(made, 'claim'))} ({about})"),
        ("Lower bound at 95 %", f"ε ≥ {figure(number(made, 'bound'))}"),
        ("Cap of so many guesses", f"ε = {figure(number(made, 'cap'))}"),
    ]
    return f"<p>{words(made.get('in_words'))}</p>" + table(("Audit", "Value"), rows)


GLOSSARY = (
    ("Observer", "who looks: each party sees only what the protocol shows it, and is judged by that."),
    ("Unit", "what is protected: one training example (record), or everything one client holds (client)."),
    (
        "ε",
        "how far the chances of anything an observer sees can move when one unit changes: by a factor of e^ε at most.",
    ),
    ("δ", "the small probability that is left out of this promise."),
    ("Proved", "follows from a theorem and from the ledger of everything this run released."),
    ("Nominal", "what a published formula says, although its premises do not hold here or its proof has a gap."),
    ("None", "nothing bounds what this observer can learn about this unit."),
    ("Mechanism", "where the randomness comes from, and what it hides."),
    ("Sampling", "how the units of a release are drawn; a unit that may be absent is harder to find."),
    ("Accountant", "the method that adds up ε over all releases."),
)


def glossary() -> str:
    """What the words of the statement mean."""
    return "<dl>" + "".join(f"<dt>{term}</dt><dd>{meaning}</dd>" for term, meaning in GLOSSARY) + "</dl>"


def privacy(run: Run, plots: list[Plot]) -> str:
    """The privacy statement, each row explained."""
    heads = ("Observer", "Unit", "ε", "δ", "Status", "Mechanism", "Sampling", "Accountant")
    settings = run.config.get("privacy")
    adjacency = str(settings.get("adjacency")) if isinstance(settings, dict) else ""
    body = ""
    for row in claims(run):
        epsilon = number(row, "epsilon")
        status = holds(row)
        values = [words(row.get("unit")), "infinite" if epsilon is None else figure(epsilon)]
        values += [words(row.get("delta")), f'<span class="badge {status}">{status}</span>']
        values += [words(row.get(key)) for key in ("mechanism", "sampling", "accountant")]
        cells = "".join(f'<td data-label="{head}">{value}</td>' for head, value in zip(heads[1:], values, strict=True))
        note = f" Note: {words(row['note'])}" if row.get("note") else ""
        first = f'<th scope="row" data-label="{heads[0]}">{words(row.get("observer"))}</th>'
        body += f'<tr class="claim">{first}{cells}</tr>'
        body += f'<tr class="why"><td colspan="{len(heads)}">{explain(row, adjacency)}{note}</td></tr>'
    if not body:
        return "<p>This run folder holds no privacy statement; assume that nothing is protected.</p>" + figures(
            "privacy", plots
        )
    notes = "".join(f"<li>{words(note)}</li>" for note in items(run.statement, "notes"))
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    whole = f'<table class="statement"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    lead = "<p>The most each observer can learn about one privacy unit; the smaller ε, the stronger the protection.</p>"
    told = (f"<ul>{notes}</ul>" if notes else "") + fold("What these words mean", glossary())
    return f'{lead}<div class="sheet">{whole}</div>{told}' + figures("privacy", plots)

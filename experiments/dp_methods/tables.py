"""The tables of the page."""

from __future__ import annotations

from experiments.dp_methods.cell import Record
from experiments.dp_methods.grid import DEFAULT_FORM, FINAL, POOLED, STEP, Entry
from experiments.dp_methods.numbers import Results, budget

KINDS = {
    "central": "*other unit, other observer*: whole clients, towards the public; the server is trusted",
    "ceiling": "*not private*: a ceiling",
    "peer": "*other observer*: records, towards the public; a trusted curator holds all data",
}


def table(r: Results, partition: str) -> list[str]:
    """Accuracy by row and epsilon on one partition."""
    s = r.schedule
    best = {epsilon: r.best(partition, epsilon) for epsilon in s.epsilons}
    rows = []
    for entry in r.rows:
        where = POOLED if entry.kind == "peer" else partition
        cells = []
        for epsilon in s.epsilons:
            text = _cell(r, entry, where, epsilon)
            top = best[epsilon]
            cells.append(f"**{text}**" if top is not None and top[0] == entry.label else text)
        rows.append([f"`{entry.label}`" if entry.kind != "peer" else entry.label, *cells, _claim(r, entry)])
    heads = ["method", *(f"ε = {epsilon:g}" for epsilon in s.epsilons), "proved (unit, towards)"]
    return [f"### {partition}", "", *markdown(heads, rows), ""]


def _cell(r: Results, entry: Entry, partition: str, epsilon: float | None) -> str:
    at = epsilon if entry.budgeted else None
    if lost := r.diverged.get((entry.label, partition, at)):
        return f"diverged ({lost} of {len(r.schedule.seeds)})"
    found = r.spread(entry.label, partition, at)
    return "–" if found is None else found.text()


def _claim(r: Results, entry: Entry) -> str:
    claims = r.claims(entry.label)
    if entry.budgeted and r.records.get(entry.label) and entry.promise not in claims:
        return f"**{' towards the '.join(entry.promise)} is not proved within ε**"
    if entry.kind != "record":
        return KINDS[entry.kind]
    return f"{' and '.join(unit for unit, observer in claims if observer == 'server') or '–'}, server"


def forms(r: Results) -> list[str]:
    """Accuracy by scope and target of the shrinkage, each tuned on its own."""
    s = r.schedule
    tried = [entry for entry in r.entries if entry.form is not None]
    if not tried:
        return []
    epsilons = [e for e in s.epsilons if e in s.form_epsilons]
    variants = list(dict.fromkeys((entry.method, entry.variant) for entry in tried))
    lines = [
        f"## Forms of shrinkage ({s.tuning_partition})",
        "",
        "Scope: one shrinkage factor per layer or one for the whole model; target: zero or the released vector before. "
        "**Bold**: the default form where it is the best of its column and group.",
        "",
    ]
    rows = []
    for method, variant in variants:
        group = [Entry(method, variant), *(e for e in tried if (e.method, e.variant) == (method, variant))]
        spreads = {(e, x): r.spread(e.label, s.tuning_partition, x) for e in group for x in epsilons}
        for entry in group:
            cells = []
            for x in epsilons:
                found = spreads[entry, x]
                others = [o.mean for e in group if (o := spreads[e, x]) is not None]
                bold = entry.form is None and found is not None and found.mean == max(others)
                text = _cell(r, entry, s.tuning_partition, x)
                cells.append(f"**{text}**" if bold else text)
            rows.append([f"`{entry.method}/{entry.variant}`", *(entry.form or DEFAULT_FORM), *cells])
    return [*lines, *markdown(["method", "scope", "target", *(f"ε = {e:g}" for e in epsilons)], rows), ""]


def rates(r: Results) -> list[str]:
    """The learning rates that were found."""
    s = r.schedule
    rows = []
    for entry in r.entries:
        cells = []
        for epsilon in s.epsilons:
            tuned = r.tuned.get((entry.label, epsilon if entry.budgeted else None))
            cells.append(
                "–" if tuned is None or tuned.lr is None else f"{tuned.lr:g}" + (" (edge)" if tuned.at_edge else "")
            )
        rows.append([f"`{entry.label}`", *cells])
    heads = ["method", *(f"ε = {epsilon:g}" for epsilon in s.epsilons)]
    return [
        "## Learning rates",
        "",
        "*edge*: the best was the smallest or the largest of all that were tried.",
        "",
        *markdown(heads, rows),
        "",
    ]


def privacy(r: Results) -> list[str]:
    """What the statements of the runs say, worst over runs."""
    rows = []
    for entry in r.entries:
        if not entry.budgeted:
            continue
        cells = [_statement(entry, r.records.get(entry.label, []), epsilon) for epsilon in r.schedule.epsilons]
        within = ", ".join(f"({unit}, {observer})" for unit, observer in r.claims(entry.label)) or "–"
        rows.append([f"`{entry.label}`", f"({', '.join(entry.promise)})", within, *cells])
    short = [x for found in r.records.values() for x in found if x["status"] not in ("finished", "diverged")]
    notes = [_twins(r), f"{len(short)} runs ended before their last round." if short else ""]
    heads = ["method", "ε is about (unit, observer)", "proved within ε", *(f"ε = {e:g}" for e in r.schedule.epsilons)]
    return [
        "## What the privacy statements say",
        "",
        "The largest ε that any run's statement proves for the unit and observer that ε is about; *nominal*: the "
        "largest that papers claim towards the public without a proof; σ: noise multipliers of all clients and runs.",
        "",
        *markdown(heads, rows),
        "",
        *(line for note in notes if note for line in (note, "")),
    ]


def _statement(entry: Entry, records: list[Record], epsilon: float) -> str:
    found = [x for x in records if budget(x) == epsilon and x["status"] != "diverged"]
    claims = [c for x in found for c in x["statement"]]
    proved = [c["epsilon"] for c in claims if c["status"] == "proved" and (c["unit"], c["observer"]) == entry.promise]
    nominal = [c["epsilon"] for c in claims if c["status"] == "nominal" and c["epsilon"] is not None]
    sigmas = [z for x in found for z in x["sigma"] or ()]
    text = f"{max(proved):.3f}" if proved else "–"
    text += f"; nominal {max(nominal):.3f}" if nominal else ""
    return text + (f"; σ {min(sigmas):.3g} to {max(sigmas):.3g}" if sigmas else "")


def _twins(r: Results) -> str:
    """Whether the two step-noise variants of dp_scaffold, which differ in shrinkage only, gave the same models."""
    accuracies = [(place[0], list(by_seed.items())) for place, by_seed in r.accuracy.items()]
    step, final = ([v for label, v in accuracies if label == f"dp_scaffold/{x}"] for x in (STEP, FINAL))
    if not step or step != final:
        return ""
    how = "one run stands for both" if r.schedule.twins_once else "their runs agree in every cell"
    return f"Without shrinkage the two step-noise variants of `dp_scaffold` are one method; {how}."


def markdown(heads: list[str], rows: list[list[str]]) -> list[str]:
    """A table."""
    return ["| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *rows)]

"""The report of a run: one HTML page that holds all it needs and asks the network for nothing.

A new section is one function ``Run, plots -> str`` added to ``SECTIONS``; its name is its heading, and an empty
string leaves it out. Everything that comes from a file passes through ``words`` or ``escape``.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from html import escape
from importlib import import_module, metadata, resources
from pathlib import Path
from typing import Any

from fedveil.core.errors import Refused
from fedveil.report.plots import CLIENTS, Plot, Run, draw, items, number, read_run, share, thin

ROUNDS = 400  # most rows of the per-round table; a longer run is thinned, all rounds are in events.jsonl
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def write_report(folder: Path) -> Path:
    """Write ``report.html`` from the files of a run folder, finished or not, and return its path."""
    run = read_run(folder)
    target = folder / "report.html"
    draft = folder / f".report.{os.getpid()}.tmp"
    try:
        draft.write_bytes(page(run).encode("utf-8", "replace"))
        os.replace(draft, target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise Refused(f"report: cannot write {target} ({error.strerror}); make the folder writable") from None
    return target


def page(run: Run) -> str:
    """The whole page."""
    plots = draw(run)
    figures = json.dumps([p.figure() for p in plots], separators=(",", ":")).replace("<", "\\u003c")
    parts = {make.__name__: make(run, plots) for make in SECTIONS}
    parts = {n: section for n, section in parts.items() if section}
    links = "".join(f'<li><a href="#{n}">{n.capitalize()}</a></li>' for n in parts)
    body = "".join(
        f'<section id="{n}" aria-labelledby="{n}-title"><h2 id="{n}-title">{n.capitalize()}</h2>{part}</section>'
        for n, part in parts.items()
    )
    title = f"{words(run.summary.get('method') or name(run.config, 'method') or 'run')} on {words(dataset(run))}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{title} – FedVeil report</title>
<link rel="icon" href="data:,">
<style>{asset("report.css")}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<div class="wrap">
<header><p class="brand">FedVeil report</p><h1>{title}</h1><p class="lead">{words(run.folder.name)}</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>{notices(run)}</header>
<main id="content">{cards(run)}{body}</main>
<footer>Written by FedVeil {words(metadata.version("fedveil"))}. This page loads nothing from elsewhere.</footer>
</div>
<script type="application/json" id="plots">{figures}</script>
{f"<script>{plotly()}</script>" if plots else ""}
<script>{asset("report.js")}</script>
</body>
</html>
"""


def asset(file: str) -> str:
    """A style sheet or script that lies beside this module."""
    return resources.files("fedveil.report").joinpath(file).read_text("utf-8")


def plotly() -> str:
    """The plotting library, safe inside a script element."""
    offline = import_module("plotly.offline")  # only now: most commands write no report
    return str(offline.get_plotlyjs()).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def words(value: Any) -> str:
    """Anything from a file as safe, short text; null is a dash."""
    if isinstance(value, float):
        value = f"{value:.6g}"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    return "–" if value is None else escape(text if len(text) <= 2000 else text[:2000] + " …")


def name(settings: Mapping[str, Any], key: str) -> Any:
    """A setting, or its name where it is a group of settings."""
    value = settings.get(key)
    if not isinstance(value, dict):
        return value
    return value.get("name") or value.get("source") or str(value.get("build") or "").rpartition(":")[2]


def dataset(run: Run) -> Any:
    """What the run was trained on."""
    return run.summary.get("data") or name(run.config, "data") or "unnamed data"


def percent(value: float | None) -> str:
    """A fraction in percent, a dash where there is none."""
    return "–" if value is None else share(value)


def figure(value: float | None, digits: int = 4) -> str:
    """A number in a few digits, a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}g}"


def size(value: float | None) -> str:
    """Bytes in a unit that reads well.

    >>> size(1536), size(3_200_000)
    ('1.54 kB', '3.2 MB')
    """
    if value is None:
        return "–"
    power = min(4, int(math.log10(value) // 3)) if value >= 1 else 0
    return f"{value / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"


def duration(seconds: float | None) -> str:
    """Seconds as a person says them.

    >>> duration(4.2), duration(75), duration(7300)
    ('4.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds is None or seconds < 60:
        return "–" if seconds is None else f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def notices(run: Run) -> str:
    """What a reader must know before the numbers: an unfinished run, files that could not be read."""
    status = str(run.summary.get("status") or ("finished" if run.summary else ""))
    planned = number(run.config, "rounds")
    of = f" of {planned:.0f}" if planned is not None else ""
    lines = []
    if not run.summary or status == "interrupted":
        command = words(f"fedveil resume {shlex.quote(str(run.folder))}")
        lines.append(
            f"This run is not finished: {len(run.events)}{of} rounds are done. Continue: <code>{command}</code>."
        )
    elif status != "finished":
        lines.append(f"This run was {words(status)}, after {len(run.events)}{of} rounds.")
    if run.damaged:
        lines.append(f"Could not be read, and left out here: {words(', '.join(run.damaged))}.")
    return "".join(f'<p class="notice" role="note">{line}</p>' for line in lines)


def cards(run: Run) -> str:
    """The headline numbers."""
    made = run.summary
    first = {key: number(made, key) for key in ("accuracy", "worst10_accuracy", "loss", "seconds", "rounds")}
    seconds = sum(number(event, "seconds") or 0.0 for event in run.events)
    done = first["rounds"] if first["rounds"] is not None else len(run.events)
    planned = number(run.config, "rounds")
    each = number(made, "seconds_per_round") or (seconds / len(run.events) if run.events else None)
    claim, details = privacy_in_words(run)
    shown = [
        ("Accuracy", percent(either(first["accuracy"], run.last("accuracy"))), "on the test set"),
        (
            "Worst 10 %",
            percent(either(first["worst10_accuracy"], run.last("client_accuracy", "worst10"))),
            "accuracy of the least served clients",
        ),
        ("Loss", figure(either(first["loss"], run.last("loss"))), "on the test set"),
        ("Rounds", f"{done:,.0f}", f"of {planned:,.0f} planned" if planned is not None else ""),
        ("Time", duration(either(first["seconds"], seconds)), f"{duration(each)} per round"),
    ]
    simple = "".join(
        f'<div class="card"><dt>{title}</dt><dd class="value">{value}</dd><dd class="more">{more}</dd></div>'
        for title, value, more in shown
    )
    private = f'<dt>Privacy</dt><dd class="value">{claim}</dd><dd class="more">{details}</dd>'
    return f'<dl class="cards">{simple}<div class="card privacy">{private}</div></dl>'


def either(value: float | None, otherwise: float | None) -> float | None:
    """The first number, or the second where there is none."""
    return otherwise if value is None else value


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
    "shuffler": "The shuffler sees the sealed uploads and who sent them.",
}
UNITS = {"record": "one training example of a client", "client": "everything that one client holds"}


def explain(row: dict[str, Any]) -> str:
    """A row of the privacy statement in plain language."""
    observer, unit, status = str(row.get("observer")), str(row.get("unit")), holds(row)
    who = OBSERVERS.get(observer, f"{words(observer)} is a party of its own and sees what the protocol shows it.")
    what = UNITS.get(unit, words(unit))
    epsilon, delta = number(row, "epsilon"), number(row, "delta")
    if status == "none" or epsilon is None:
        return f"{who} No privacy protection is claimed against this observer: it may learn about {what}."
    factor = f"= {math.exp(epsilon):.3g}" if epsilon < 7 else "(more than 1,000)"
    slack = f', apart from a slack of <span class="whole">δ = {delta:g}</span>' if delta else ""
    meaning = (
        f"whether {what} took part or not changes the chance of anything this observer can see "
        f"by a factor of at most e<sup>ε</sup> {factor}{slack}."
    )
    if status == "nominal":
        return f"{who} By a published formula that we do not stand behind, so do not rely on it: {meaning}"
    large = " So large an ε rules out little by itself." if epsilon > 10 else ""
    return f"{who} Proved from the run's ledger: {meaning}{large}"


def privacy(run: Run, plots: list[Plot]) -> str:
    """The privacy statement, each row explained."""
    heads = ("Observer", "Unit", "ε", "δ", "Status", "Mechanism", "Sampling", "Accountant")
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
        body += f'<tr class="why"><td colspan="{len(heads)}">{explain(row)}{note}</td></tr>'
    if not body:
        return "<p>This run folder holds no privacy statement; assume that nothing is protected.</p>"
    notes = "".join(f"<li>{words(note)}</li>" for note in items(run.statement, "notes"))
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    whole = f'<table class="statement"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    lead = "<p>The most each observer can learn about one privacy unit; the smaller ε, the stronger the protection.</p>"
    return f'{lead}<div class="sheet">{whole}</div>' + (f"<ul>{notes}</ul>" if notes else "")


def _figures(section: str, plots: list[Plot]) -> str:
    made = "".join(
        f'<figure aria-labelledby="plot-{i}-title"><figcaption><h3 id="plot-{i}-title">{plot.title}</h3>'
        f'<p>{escape(plot.caption)}</p></figcaption><div class="plot" id="plot-{i}"></div></figure>'
        for i, plot in enumerate(plots, start=1)
        if plot.section == section
    )
    hint = "<noscript><p>The plots need JavaScript; the tables below hold the numbers.</p></noscript>"
    return f'{hint}<div class="grid">{made}</div>' if made else ""


def learning(run: Run, plots: list[Plot]) -> str:
    """How the model got better."""
    return _figures("learning", plots) or "<p>No round has been finished yet.</p>"


def clients(run: Run, plots: list[Plot]) -> str:
    """Who took part, how well the model serves them, and what they hold."""
    sizes, accuracy = items(run.clients, "sizes"), items(run.clients, "accuracy")
    rows = [
        (
            words(run.client(i)),
            f"{number(held) or 0:,.0f}",
            percent(number(accuracy[i]) if i < len(accuracy) else None),
        )
        for i, held in enumerate(sizes[: CLIENTS + 1])
    ]
    few = table(("Client", "Examples", "Accuracy"), rows) if 0 < len(rows) <= CLIENTS else ""
    return _figures("clients", plots) + fold("Every client", few)


def cost(run: Run, plots: list[Plot]) -> str:
    """Time and traffic."""
    return _figures("cost", plots)


def rounds(run: Run, plots: list[Plot]) -> str:
    """The numbers of every round."""
    if not run.events:
        return ""
    heads = ("Round", "Clients", "Accuracy", "Client mean", "Worst 10 %", "Loss", "Train loss", "Move norm")
    shown = thin(run.events, ROUNDS)
    rows = [
        (
            words(event.get("round")),
            f"{len(items(event, 'clients')):,}",
            percent(number(event, "accuracy")),
            percent(number(event, "client_accuracy", "mean")),
            percent(number(event, "client_accuracy", "worst10")),
            figure(number(event, "loss")),
            figure(number(event, "train_loss", "mean")),
            figure(number(event, "move_norm", "mean")),
            "–".join(dict.fromkeys(figure(number(event, "steps", end)) for end in ("min", "max"))),
            size(number(event, "bytes_up")),
            size(number(event, "bytes_down")),
            figure(number(event, "seconds"), 3),
        )
        for event in shown
    ]
    thinned = "" if len(shown) == len(run.events) else ", evenly spread; events.jsonl has them all"
    title = f"{len(shown):,} of {len(run.events):,} rounds{thinned}" if thinned else f"All {len(shown):,} rounds"
    return fold(title, table((*heads, "Steps", "Up", "Down", "Seconds"), rows, "rounds"))


def data(run: Run, plots: list[Plot]) -> str:
    """Where the examples come from."""
    facts = run.clients.get("facts")
    return table(("Fact", "Value"), pairs(facts)) if isinstance(facts, dict) and facts else ""


def settings(run: Run, plots: list[Plot]) -> str:
    """The configuration and the full summary."""
    made = {key: value for key, value in run.summary.items() if key != "statement"}
    text = run.config_text if len(run.config_text) <= 100_000 else run.config_text[:100_000] + "\n…"
    config = f'<pre tabindex="0">{escape(text)}</pre>'
    return fold("Configuration, resolved", config) + fold(
        "Summary", table(("Name", "Value"), pairs(made)) if made else ""
    )


def reproduce(run: Run, plots: list[Plot]) -> str:
    """The command that repeats this run."""
    overrides = run.config.get("overrides")
    if isinstance(overrides, list):
        command = " ".join(["fedveil run", *(shlex.quote(str(o)) for o in overrides)])
        how = f'<pre tabindex="0">{escape(command)}</pre>'
    else:
        how = "<p>Run FedVeil with the configuration above; it holds every setting, the seed too.</p>"
    made = run.summary.get("version") or run.config.get("version")
    return how + (f"<p>The run was made with FedVeil {words(made)}.</p>" if made else "")


def pairs(mapping: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A free mapping as safe rows of a table."""
    rows = []
    for key, value in mapping.items():
        inner = pairs(value) if isinstance(value, dict) and value else []
        rows += [(f"{words(key)}.{name}", text) for name, text in inner] or [(words(key), words(value))]
    return rows


def table(heads: Iterable[str], rows: Iterable[Iterable[str]], style: str = "plain") -> str:
    """A table of cells that are already safe; the first cell names the row."""
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = ""
    for row in rows:
        first, *others = row
        body += f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'
    inner = f'<table class="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll" role="group" aria-label="Table" tabindex="0">{inner}</div>'


def fold(title: str, body: str) -> str:
    """A part that opens on request; nothing when it is empty."""
    return f"<details><summary>{title}</summary>{body}</details>" if body else ""


SECTIONS: tuple[Callable[[Run, list[Plot]], str], ...] = (
    *(privacy, learning, clients, cost),
    *(rounds, data, settings, reproduce),
)

"""The pages of ``fedveil ui``: the list of runs, one run while it goes on, and what takes a page's place."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from fedveil.report.html import page
from fedveil.report.live.folders import Folders, Found, version
from fedveil.report.read import Run
from fedveil.report.rows import promise_of
from fedveil.report.shell import document
from fedveil.report.words import duration, percent, words

BACK = '<a href="/">All runs</a> · '
HEADS = ("Run", "Status", "Method", "Data", "Attack", "Aggregate", "Accuracy", "ε", "Rounds", "Time")


def follow(address: str, version: str) -> str:
    """What the page's script asks for, to know when this version is out of date, and where it says so."""
    told = f'data-follow="{escape(address)}" data-version="{version}"'
    return f'<p class="follow" role="status" aria-live="polite" {told}></p>'


def version_of(runs: Sequence[Found], matrices: Sequence[str]) -> str:
    """The version of the list."""
    return version([(found.name, found.version) for found in runs], list(matrices))


def run_list(folders: Folders, runs: Sequence[Found], matrices: Sequence[str]) -> str:
    """All runs, with a way to compare those that are ticked."""
    rows = "".join(_line(found) for found in runs)
    if rows:
        head = "".join(f'<th scope="col">{text}</th>' for text in HEADS)
        pick = '<th scope="col"><span class="unseen">Compare</span></th>'
        table = f'<table class="runs"><thead><tr>{pick}{head}</tr></thead><tbody>{rows}</tbody></table>'
        body = (
            '<form action="/compare" method="get"><p class="act"><button type="submit">Compare ticked runs</button> '
            '<span class="muted">none ticked: all of them</span></p>'
            f'<div class="scroll sheet" role="group" aria-label="Runs" tabindex="0">{table}</div></form>'
        )
    else:
        body = "<p>There is no run here yet. Start one: <code>fedveil run rounds=20</code>. It appears by itself.</p>"
    if matrices:
        links = "".join(f'<li><a href="/matrix/{quote(name)}">{words(name)}</a></li>' for name in matrices)
        body += f"<section><h2>Attacks against rules</h2><ul>{links}</ul></section>"
    going = sum(found.status == "running" for found in runs)
    lead = f"{len(runs):,} runs in {words(folders.root)}" + (f", {going:,} running" if going else "")
    return document(
        "Runs",
        lead,
        body,
        [],
        follow("/state", version_of(runs, matrices)),
        kind="live",
        linked=True,
        scripts=("live.js",),
    )


def _line(found: Found) -> str:
    address, row = f"/runs/{quote(found.name)}", found.row
    badge = f'<span class="badge {found.status.split()[0]}">{words(found.status)}</span>'
    box = f'<input type="checkbox" name="run" value="{escape(found.name)}" aria-label="Compare {escape(found.name)}">'
    first = f'<th scope="row"><a href="{address}">{words(found.name)}</a></th><td>{badge}</td>'
    if row is None:
        return f'<tr><td></td>{first}<td colspan="8">{words(found.trouble)}</td></tr>'
    cells = [*map(words, (row.method, row.data, row.attack, row.aggregate)), percent(row.accuracy), promise_of(row)]
    cells += [progress(row.rounds, row.planned, bar=found.status == "running"), duration(row.seconds)]
    return f"<tr><td>{box}</td>{first}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def progress(rounds: float, planned: float | None, *, bar: bool) -> str:
    """How far a run is, in words and as a bar."""
    if planned is None:
        return f"{rounds:,.0f}"
    words_ = f"{rounds:,.0f} of {planned:,.0f}"
    drawn = f'<progress value="{rounds:g}" max="{planned:g}" aria-hidden="true"></progress>'
    return f"{words_} {drawn}" if bar else words_


def one_run(found: Found, run: Run) -> str:
    """The report of a run from its files as they are now; nothing is written."""
    row = found.row
    told = ""
    if row is not None and not run.summary:
        rounds = progress(row.rounds, row.planned, bar=found.status == "running")
        again = f"; go on with <code>fedveil resume {words(run.folder)}</code>" if found.status != "running" else ""
        told = f'<p class="notice" role="note">{words(found.status.capitalize())}: {rounds} rounds{again}</p>'
    return page(run, linked=True, above=BACK, status=follow(f"/state/{quote(found.name)}", found.version) + told)


def trouble(title: str, text: str, follows: Found | None = None) -> str:
    """A page that says what is wrong; that of a run looks again by itself."""
    body = f'<p class="notice" role="alert">{words(text)}</p><p><a href="/">All runs</a></p>'
    told = "" if follows is None else follow(f"/state/{quote(follows.name)}", follows.version)
    return document(words(title), "", body, [], told, kind="live", linked=True, scripts=("live.js",), drawing=True)

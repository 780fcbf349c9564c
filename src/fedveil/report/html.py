"""The report of a run.

A new section is one function ``Run, plots -> str`` added to ``SECTIONS``; its name is its heading, and an empty
string leaves it out. Everything that comes from a file passes through ``words`` or ``escape``.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from html import escape
from pathlib import Path

from fedveil.core.errors import Refused
from fedveil.report.client_plots import every_client
from fedveil.report.defence import defence
from fedveil.report.drawing import Plot, thin
from fedveil.report.headline import cards
from fedveil.report.leakage import leakage
from fedveil.report.plots import draw
from fedveil.report.read import Run, dataset, items, name, number, read_run
from fedveil.report.shell import document, figures, save, sections
from fedveil.report.statement import audit, privacy
from fedveil.report.words import figure, fold, pairs, percent, size, table, words

ROUNDS = 400  # most rows of the per-round table; a longer run is thinned, all rounds are in events.jsonl
AUDIT_PAGE = '<p><a href="audit.html">The page of the audit</a> has its scores, and what an audit cannot show.</p>'


def write_report(folder: Path) -> Path:
    """Write ``report.html`` from the files of a run folder, finished or not, and return its path."""
    run = read_run(folder)
    target = folder / "report.html"
    try:
        save(target, page(run))
    except OSError as error:
        raise Refused(f"report: cannot write {target} ({error.strerror}); make the folder writable") from None
    return target


def page(run: Run, *, linked: bool = False, above: str = "", status: str = "") -> str:
    """The whole page; the live page shows it linked, with a way back above it and the run's progress as a status."""
    plots = draw(run)
    parts = {make.__name__: make(run, plots) for make in SECTIONS}
    parts = {n: section for n, section in parts.items() if section}
    if "audit" in parts and not linked:  # the live page opens no other file
        parts["audit"] += AUDIT_PAGE
    title = f"{words(run.summary.get('method') or name(run.config, 'method') or 'run')} on {words(dataset(run))}"
    return document(
        title,
        words(run.folder.name),
        cards(run) + sections(parts),
        plots,
        status + notices(run, following=linked),
        nav=parts,
        linked=linked,
        above=above,
        scripts=("live.js",) if linked else (),
        drawing=linked or bool(plots),
    )


def notices(run: Run, *, following: bool = False) -> str:
    """What a reader must know before the numbers: an unfinished run, files that could not be read."""
    status = str(run.summary.get("status") or ("finished" if run.summary else ""))
    planned = number(run.config, "rounds")
    of = f" of {planned:.0f}" if planned is not None else ""
    lines = []
    if following and not run.summary:
        pass  # the live page says how far the run is
    elif not run.summary or status == "interrupted":
        command = words(f"fedveil resume {shlex.quote(str(run.folder))}")
        lines.append(
            f"This run is not finished: {len(run.events)}{of} rounds are done. Continue: <code>{command}</code>."
        )
    elif status != "finished":
        lines.append(f"This run was {words(status)}, after {len(run.events)}{of} rounds.")
    if run.damaged:
        lines.append(f"Could not be read, and left out here: {words(', '.join(run.damaged))}.")
    return "".join(f'<p class="notice" role="note">{line}</p>' for line in lines)


def learning(run: Run, plots: list[Plot]) -> str:
    """How the model got better."""
    return figures("learning", plots) or "<p>No round has been finished yet.</p>"


def clients(run: Run, plots: list[Plot]) -> str:
    """Who took part, how well the model serves them, and what they hold."""
    return figures("clients", plots) + fold("Every client", every_client(run))


def cost(run: Run, plots: list[Plot]) -> str:
    """Time and traffic."""
    return figures("cost", plots)


def rounds(run: Run, plots: list[Plot]) -> str:
    """The numbers of every round."""
    if not run.events:
        return ""
    heads = ("Round", "Clients", "Accuracy", "Client mean", "Worst 10 %", "Loss", "Train loss", "Move norm")
    private = ("ε",) if run.last("epsilon", "epsilon") is not None else ()
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
            *(figure(number(event, "epsilon", "epsilon")) for _ in private),
        )
        for event in shown
    ]
    thinned = "" if len(shown) == len(run.events) else ", evenly spread; events.jsonl has them all"
    title = f"{len(shown):,} of {len(run.events):,} rounds{thinned}" if thinned else f"All {len(shown):,} rounds"
    return fold(title, table((*heads, "Steps", "Up", "Down", "Seconds", *private), rows, "rounds"))


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
    facts = [f"The run was made with FedVeil {words(made)}."] if made else []
    if isinstance(run.summary.get("model_hash"), str):
        facts.append(f"Its final model has the hash <code>{words(run.summary['model_hash'])}</code>.")
        chosen = run.config.get("privacy")
        if isinstance(chosen, dict) and chosen.get("rng") == "secure":
            facts.append(
                "Secret noise (privacy.rng=secure) is never drawn again: with it no other run gives the same model."
            )
        elif number(run.summary, "seed") is not None:
            facts.append(f"The same settings with seed {words(run.summary['seed'])} give the same model again.")
    return how + (f"<p>{' '.join(facts)}</p>" if facts else "")


SECTIONS: tuple[Callable[[Run, list[Plot]], str], ...] = (
    *(privacy, audit, leakage, learning, defence, clients, cost),
    *(rounds, data, settings, reproduce),
)

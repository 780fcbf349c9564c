"""The ``fedveil`` command (DESIGN 4)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fedveil import __version__
from fedveil.cli import budget, demo, deploy, keys
from fedveil.cli.audit import audit
from fedveil.cli.bench import bench
from fedveil.cli.compare import compare
from fedveil.cli.options import Json, Many, OnPaper, Overrides, Place, Quiet, writable
from fedveil.cli.ui import ui
from fedveil.core.errors import Refused

USER_MISTAKE = 2
INTERRUPTED = 130

app = typer.Typer(
    name="fedveil",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Federated learning that stays private and survives attackers, with a claim that anyone can check.\n\n"
    "Example:\n\n`fedveil run method=scaffold data=digits rounds=20`",
)

app.add_typer(bench, name="bench")
app.add_typer(budget.app, name="budget")
app.add_typer(keys.app, name="keys")
app.add_typer(demo.app, name="demo")
app.command()(audit)
app.command()(compare)
app.command()(ui)
app.add_typer(deploy.app, name="deploy")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedveil {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    overrides: Overrides = None, many: Many = False, plan: OnPaper = False, quiet: Quiet = False, json: Json = None
) -> None:
    """Train a model and write a run folder with a report.

    Examples:
    `fedveil run method=scaffold data=digits rounds=10`

    `fedveil run -m method=fedavg,scaffold 'seed=range(2)' rounds=5`

    `fedveil run method=dp_scaffold_stein privacy.epsilon=8 rounds=5 --plan`
    """
    writable(json)
    with _preparing(quiet) as ready:
        from fedveil.runtime.config import expand, resolve

        if plan:
            if many:
                raise Refused("--plan: it looks at one run at a time; leave -m out")
            config = resolve(overrides or [])
        elif many:
            runs = expand(overrides or [])
            ready()
            _sweep(runs, quiet, json)
            return
        else:
            result = _start(resolve(overrides or []), quiet, ready)
    if plan:
        _plan(config, quiet, json)
    else:
        _conclude(result, quiet, json)


@app.command()
def resume(folder: Place, quiet: Quiet = False, json: Json = None) -> None:
    """Go on with a run after Ctrl-C or a crash; the result is the same as if nothing had happened.

    Example:
    `fedveil run rounds=5 out=runs/a -q && fedveil resume runs/a`
    """
    from fedveil import api
    from fedveil.runtime.interrupt import terminable

    writable(json)
    with terminable():
        result = _interruptible(folder, lambda: api.resume(folder, listeners=_listeners(quiet)))
    _conclude(result, quiet, json)


@app.command()
def evaluate(folder: Place, overrides: Overrides = None, quiet: Quiet = False, json: Json = None) -> None:
    """Measure a finished model on its own test set, or on other data.

    Example:
    `fedveil run rounds=5 out=runs/b -q && fedveil evaluate runs/b`
    """
    from fedveil import api
    from fedveil.runtime.folder import write_json

    scores = api.evaluate(folder, overrides or [])
    if json is not None:
        write_json(json, scores)
    if not quiet:
        accuracy = "" if scores["accuracy"] is None else f"accuracy {scores['accuracy']:.4f}, "
        print(f"{scores['data']}, {scores['examples']} test examples: {accuracy}loss {scores['loss']:.4f}")


@app.command()
def report(folder: Place, quiet: Quiet = False) -> None:
    """Write the HTML report of a run again, also of one that was interrupted.

    Example:
    `fedveil run rounds=5 out=runs/c -q && fedveil report runs/c`
    """
    from fedveil.report.html import write_report

    path = write_report(folder)
    if not quiet:
        print(f"report: {path}")


@app.command()
def methods(json: Json = None) -> None:
    """List the methods, and what each one is.

    Example:
    `fedveil methods`
    """
    from fedveil.runtime.config import catalogue

    _list("method", {n: words for n, words in catalogue("method").items() if n != "custom"}, json)


@app.command()
def datasets(json: Json = None) -> None:
    """List the data sets, and what each one needs.

    Example:
    `fedveil datasets`
    """
    from fedveil.data import SOURCES

    needs = {name: "" if s.needs == "nothing" else f"; needs {s.needs}" for name, s in SOURCES.items()}
    _list("data", {name: f"{source.about}{needs[name]}" for name, source in SOURCES.items()}, json)


@app.command()
def matrix(
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="The folder of cells and page; the same one goes on.")] = Path(
        "runs/matrix"
    ),
    private: Annotated[str, typer.Option(help="The method of cells with a budget.")] = "dp_fedavg_local",
    under: Annotated[list[str] | None, typer.Option(help="A setting, name=value, of cells with a budget.")] = None,
    quiet: Quiet = False,
    json: Json = None,
) -> None:
    """Attacks against rules under budgets: every combination, with detection and a real ledger in each cell.

    Example:
    `fedveil matrix attack=none,ipm aggregate=mean,median rounds=3 attack.share=0.3 --out matrix`
    """
    from fedveil.report.matrix_terminal import carry_out

    writable(json)
    _interruptible([], lambda: carry_out(Console(quiet=quiet), overrides or [], out, private, under or [], json))


def _plan(config: dict[str, Any], quiet: bool, json: Path | None) -> None:
    from fedveil.report.plan import plan_to_json, show_plan
    from fedveil.runtime.folder import write_json
    from fedveil.runtime.plan import plan
    from fedveil.runtime.prepare import prepare

    found = plan(prepare(config))
    if json is not None:
        write_json(json, plan_to_json(found))
    show_plan(Console(quiet=quiet), found)


@contextmanager
def _preparing(quiet: bool) -> Iterator[Callable[[], None]]:
    """Something to look at in a terminal from the first moment, until what is yielded is called."""
    console = Console(quiet=quiet)
    status = console.status("preparing") if console.is_terminal else None
    if status is not None:
        status.start()
    try:
        yield status.stop if status is not None else lambda: None
    finally:
        if status is not None:
            status.stop()


def _start(config: dict[str, Any], quiet: bool, ready: Callable[[], None] = lambda: None) -> Any:
    from fedveil import api
    from fedveil.runtime.interrupt import terminable

    place: list[Path] = []
    with terminable():
        return _interruptible(place, lambda: api.start(config, listeners=[_Where(place, ready), *_listeners(quiet)]))


class _Where:
    """Remembers the run folder, for the message after an interrupt; says when a run has been prepared."""

    def __init__(self, place: list[Path], ready: Callable[[], None]) -> None:
        self.place, self.ready = place, ready

    def opened(self, training: Any, folder: Any, done: int, notes: Any) -> None:
        self.ready()
        self.place.append(folder.path)

    def round(self, record: dict[str, Any]) -> None: ...

    def closed(self, summary: dict[str, Any] | None) -> None: ...


def _interruptible(place: Path | list[Path], work: Any) -> Any:
    try:
        return work()
    except KeyboardInterrupt:
        folder = place if isinstance(place, Path) else (place[-1] if place else None)
        where = f"; go on with `fedveil resume {folder}`" if folder else ""
        print(f"interrupted{where}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _listeners(quiet: bool) -> list[Any]:
    from fedveil.report.progress import Terminal

    return [] if quiet else [Terminal(Console())]


def _conclude(result: Any, quiet: bool, json: Path | None) -> None:
    from fedveil.privacy.statement import cells
    from fedveil.report.progress import conclude
    from fedveil.runtime.folder import write_json

    if json is not None:
        write_json(json, result.summary)
    if not quiet:
        conclude(Console(), result.summary, [cells(r) for r in result.statement.rows], str(result.folder.report))


def _sweep(runs: list[list[str]], quiet: bool, json: Path | None) -> None:
    from fedveil.runtime.config import resolve
    from fedveil.runtime.folder import write_json

    configs = [resolve(overrides) for overrides in runs]  # a mistake in the last run shows before the first
    outs = [c["out"] for c in configs]
    if len(runs) > 1 and any(outs):
        for i, config in enumerate(configs):
            config["out"] = str(Path(config["out"]) / f"{i:03d}")
    summaries: list[dict[str, Any]] = []
    table = Table("run", "settings", "accuracy", "worst 10 %", "seconds", "folder", box=SIMPLE)
    for i, (overrides, config) in enumerate(zip(runs, configs, strict=True), 1):
        if not quiet:
            print(f"run {i} of {len(runs)}: {' '.join(overrides)}")
        try:
            summary = _start(config, quiet).summary
        except Refused as refusal:
            print(f"fedveil: run {i}: {refusal}", file=sys.stderr)
            summaries.append({"overrides": overrides, "error": str(refusal)})
            table.add_row(str(i), " ".join(overrides), "-", "-", "-", str(refusal))
            continue
        summaries.append({"overrides": overrides, **summary})
        scores = [f"{summary[k]:.4f}" if summary[k] is not None else "-" for k in ("accuracy", "worst10_accuracy")]
        table.add_row(str(i), " ".join(overrides), *scores, f"{summary['seconds']:.1f}", summary["folder"])
    if json is not None:
        write_json(json, summaries)
    if not quiet:
        Console().print(table)
    if any("error" in summary for summary in summaries):
        raise typer.Exit(USER_MISTAKE)


def _list(head: str, rows: dict[str, str], json: Path | None) -> None:
    from fedveil.runtime.folder import write_json

    table = Table(head, "what it is", box=SIMPLE)
    for name, words in rows.items():
        table.add_row(name, words)
    if json is not None:
        write_json(json, rows)
    Console().print(table)


def main() -> None:
    """Run the command; a user's mistake is one sentence and exit code 2, never a traceback."""
    # Waiting threads sleep instead of spinning; must be said before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except Refused as refusal:
        print(f"fedveil: {refusal}", file=sys.stderr)
        sys.exit(USER_MISTAKE)

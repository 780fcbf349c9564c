"""``fedveil bench``: ours against the peers that are installed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fedveil.cli.options import Json, Quiet, writable
from fedveil.core.errors import Refused

bench = typer.Typer(no_args_is_help=True, help="Measure ours against the peers that are installed, side by side.")


@bench.command()
def engine(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Threads for everybody; 0: all cores.")] = 0,
    precision: Annotated[str, typer.Option(help="float32, tf32 or bf16, for ours on a GPU.")] = "float32",
    only: Annotated[list[str] | None, typer.Option(help="A scenario such as mlp/fedavg, or a pattern.")] = None,
    repeats: Annotated[int, typer.Option(help="Repetitions in which everybody takes a turn.")] = 5,
    limit: Annotated[
        float | None, typer.Option(help="Seconds of turns after which a scenario stops repeating.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny, to see that it works.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write the results page to this Markdown file.")] = None,
    reports: Annotated[
        list[Path] | None, typer.Option("--from", help="Measure nothing; write the page from this saved JSON.")
    ] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Training a cohort: ours against lean loops, Opacus, pfl and Flower's simulation; memory and growth.

    Examples:
    `fedveil bench engine --only mlp/fedavg --quick`

    `fedveil bench engine --json engine.json --page engine.md`

    `fedveil bench engine --from cpu.json --from gpu.json --page docs/results/engine.md`
    """
    from fedveil.bench import page as pages
    from fedveil.bench.engine import Options
    from fedveil.bench.terminal import measure, show
    from fedveil.core.files import write_bytes

    writable(json)
    writable(page, "--page")
    if reports:
        if page is None or json is not None:
            raise Refused("--from: it only writes a page from saved reports; add --page FILE, and leave --json out")
        write_bytes(page, pages.page(pages.read(reports)).encode())
        return
    options = Options(device, threads, precision, tuple(only or ()), repeats, limit, quick)
    console = Console(quiet=quiet)
    report = measure(console, options, json)
    show(console, report)
    if page is not None:
        write_bytes(page, pages.page([report]).encode())


@bench.command()
def aggregate(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Threads for everybody; 0: all cores.")] = 0,
    repeats: Annotated[int, typer.Option(help="Repetitions in which everybody takes a turn.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny, to see that it works.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write the results page to this Markdown file.")] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Robust aggregation: every rule against byzfl's, torch.sort, a plain mean and a matrix product.

    Examples:
    `fedveil bench aggregate --quick`

    `fedveil bench aggregate --json aggregate.json --page aggregation.md`
    """
    from fedveil.bench import aggregate as rules
    from fedveil.core.files import write_bytes

    writable(json)
    writable(page, "--page")
    console = Console(quiet=quiet)
    options = rules.Options(device, threads, repeats, quick)
    report = rules.run(options, json, lambda words: console.print(words, highlight=False))
    found = Table("", "clients x parameters", "", "ms", "ours is faster by", box=SIMPLE)
    for row in rules.rows(report):
        found.add_row(*(cell.strip("*") for cell in row))
    asked = Table("goal", "asked", "measured", "", box=SIMPLE)
    for goal in rules.goals():
        asked.add_row(*(cell.strip("*") for cell in rules.goal_row(goal, report)))
    console.print(found, asked)
    if page is not None:
        write_bytes(page, rules.page([report]).encode())


@bench.command()
def secagg(
    clients: Annotated[int, typer.Option(help="Clients of a round.")] = 100,
    repeats: Annotated[int, typer.Option(help="Repetitions of ours; Flower's primitives get fewer.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny, to see that it works.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write the results page to this Markdown file.")] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Secure aggregation by masks: client and server, against Flower's primitives and the bare cipher.

    Example:
    `fedveil bench secagg --quick`
    """
    from fedveil.bench import secagg_page as pages
    from fedveil.bench.secagg import Options, run
    from fedveil.core.files import write_bytes
    from fedveil.runtime.folder import write_json

    writable(json)
    writable(page, "--page")
    console = Console(quiet=quiet)
    tiny = Options(lengths=(2000, 4000), clients=min(clients, 12), repeats=2, peer_repeats=1, quick=True)
    options = tiny if quick else Options(clients=clients, repeats=repeats)
    report = run(options, lambda words: console.print(words, highlight=False))
    console.print(_asked("Secure aggregation", pages.goals(report)))
    if json is not None:
        write_json(json, report)
    if page is not None:
        write_bytes(page, pages.page(report).encode())


@bench.command()
def he(
    repeats: Annotated[int, typer.Option(help="Repetitions in which everybody takes a turn.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny, to see that it works.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write the results page to this Markdown file.")] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Aggregation under encryption: two servers' statistics and rules, against the encrypted mean and TenSEAL's own.

    Example:
    `fedveil bench he --quick`
    """
    from fedveil.bench import he_page as pages
    from fedveil.bench.he import Options, Setting, run
    from fedveil.core.files import write_bytes
    from fedveil.runtime.folder import write_json

    writable(json)
    writable(page, "--page")
    console = Console(quiet=quiet)
    options = Options((Setting(10, 3000, 2),), 1, quick=True) if quick else Options(repeats=repeats)
    report = run(options, lambda words: console.print(words, highlight=False))
    console.print(_asked("Encrypted aggregation", pages.goals(report)))
    extra = Table("what sensing adds", "servers", "with clients' encryption", box=SIMPLE)
    for words in pages.overhead(report["rows"][0]):
        extra.add_row(*words)
    console.print(extra, "The source states 30 to 50 % over its encrypted mean.", highlight=False)
    if json is not None:
        write_json(json, report)
    if page is not None:
        write_bytes(page, pages.page(report).encode())


def _asked(title: str, goals: Iterable[tuple[str, str, str, str]]) -> Table:
    """What was asked and what was measured."""
    table = Table("goal", "asked", "measured", "", box=SIMPLE, title=title, title_justify="left")
    for row in goals:
        table.add_row(*row)
    return table

"""Benchmarks that stand in files of their own; what they need is imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedveil.core.files import writable


def secagg(
    clients: Annotated[int, typer.Option(help="Clients of a round.")] = 100,
    repeats: Annotated[int, typer.Option(help="Repetitions of ours; Flower's primitives get fewer.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny, to see that it works.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write the results page to this Markdown file.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Also write the outcome to this JSON file.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Secure aggregation by masks: client and server, against Flower's primitives and the bare cipher.

    Example:
    `fedveil bench secagg --quick`
    """
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

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
    table = Table("goal", "asked", "measured", "", box=SIMPLE, title="Secure aggregation", title_justify="left")
    for row in pages.goals(report):
        table.add_row(*row)
    console.print(table)
    if json is not None:
        write_json(json, report)
    if page is not None:
        write_bytes(page, pages.page(report).encode())

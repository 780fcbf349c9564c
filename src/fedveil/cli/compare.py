"""``fedveil compare``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedveil.cli.options import Quiet, writable


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, or one that holds many.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("compare.html"),
    csv: Annotated[Path | None, typer.Option(help="Also write one line per run to this CSV file.")] = None,
    quiet: Quiet = False,
) -> None:
    """Compare runs on one HTML page: accuracy against epsilon, rounds, bytes and seconds.

    Example:
    `fedveil run -m method=fedavg,scaffold rounds=3 out=runs/sweep -q && fedveil compare runs/sweep --out compare.html`
    """
    from fedveil.report.compare import write_comparison

    writable(out, "--out")
    writable(csv, "--csv")
    count, left = write_comparison(folders, out, csv)
    for text in left:
        print(f"left out: {text}", file=sys.stderr)
    if not quiet:
        print(f"comparison of {count} runs: {out}")

"""``fedveil demo``: things to see for oneself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedveil.cli.options import Json, Overrides, Quiet, writable

app = typer.Typer(no_args_is_help=True, help="Things to see for oneself.")


@app.callback()
def _demo() -> None:
    pass


@app.command()
def inversion(
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="The page with the pictures.")] = Path("inversion.html"),
    quiet: Quiet = False,
    json: Json = None,
) -> None:
    """What a server can read off an upload, without protection and with it, as pictures.

    Examples:
    `fedveil demo inversion`

    `fedveil demo inversion data=mnist model=logistic --out mnist.html`
    """
    from fedveil.report.inversion import show_inversion, write_inversion_page
    from fedveil.runtime.folder import write_json
    from fedveil.runtime.inversion import inversion as carry_out

    writable(json)
    writable(out, "--out")
    console = Console(quiet=quiet)
    found = carry_out(overrides or [], say=lambda text: console.print(text, highlight=False, markup=False))
    write_inversion_page(out, found)
    if json is not None:
        write_json(json, found.to_json())
    show_inversion(console, found, out)

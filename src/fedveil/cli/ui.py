"""``fedveil ui``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fedveil.cli.options import Quiet


def ui(
    folder: Annotated[Path, typer.Argument(help="The folder that holds run folders.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 for any.")] = 8377,
    remote: Annotated[bool, typer.Option("--remote", help="Allow an address that other machines can reach.")] = False,
    quiet: Quiet = False,
) -> None:
    """Show runs in the browser, also while they are training; reads only, and only for this machine.

    Example:
    `fedveil ui runs`
    """
    from fedveil.report.live.server import serve

    def opened(address: str) -> None:
        if not quiet:
            print(f"live page: {address} (Ctrl-C ends it)", flush=True)

    with suppress(KeyboardInterrupt):
        serve(folder, host, port, remote=remote, opened=opened)

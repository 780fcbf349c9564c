"""``fedveil keys``: the key centre of the he transport."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="The key centre of `transport=he` (masks need none).")


@app.callback()
def _top() -> None:
    pass


@app.command()
def new(
    clients: Annotated[int, typer.Option("--clients", help="The largest number of clients in a round.")],
    out: Annotated[Path, typer.Option("--out", help="A new folder, with one inside for each party.")],
    reach: Annotated[float, typer.Option("--reach", help="The largest size of a coordinate.")] = 16.0,
) -> None:
    """Deal a public key, and a share of the secret key to each of two servers; the secret itself is never written.

    `fedveil keys new --clients 10 --out keys/`
    """
    from fedveil.transport.he.keys import deal, write
    from fedveil.transport.he.parameters import Parameters

    write(deal(Parameters(clients, reach)), out)
    print(
        f"Written: {out}\nGive {out / 'clients'} to the clients, {out / 'controller'} and {out / 'computer'} to two "
        "servers that do not work together, over channels that nobody else reads; then delete all of it here."
    )

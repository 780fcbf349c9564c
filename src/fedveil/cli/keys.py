"""``fedveil keys``: the key centre of the he transport."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedveil.core.errors import Refused, one_of

app = typer.Typer(
    no_args_is_help=True, help="The key centre of `transport=he` and of `method=apa_fl` (masks need none)."
)


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


@app.command()
def duo(
    clients: Annotated[int, typer.Option("--clients", help="The largest number of clients in a round.")],
    length: Annotated[int, typer.Option("--length", help="Parameters of the model.")],
    out: Annotated[Path, typer.Option("--out", help="A new folder, with one inside for each party.")],
    bound: Annotated[float, typer.Option("--bound", help="The norm that an upload may have.")] = 1.0,
    declared_f: Annotated[int, typer.Option("--declared-f", help="Attackers that the rules prepare for.")] = 0,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds that the keys are for.")] = 100,
    entropy: Annotated[bool, typer.Option("--entropy", help="Keys for detector=source as well.")] = False,
    ahead: Annotated[
        list[str] | None,
        typer.Option("--ahead", help="Deal all rounds now: sums, entropy, or the name of a rule; may be repeated."),
    ] = None,
    attempts: Annotated[int, typer.Option("--attempts", help="Attempts of a round that --ahead deals for.")] = 2,
) -> None:
    """Deal keys and seeds to two servers that aggregate without seeing an update (`method=apa_fl`).

    `fedveil keys duo --clients 10 --length 100000 --declared-f 2 --out keys/`

    `fedveil keys duo --clients 5 --length 650 --declared-f 1 --rounds 30 --ahead sums --ahead trimmed_mean --out keys/`
    """
    from fedveil.transport.duo.ahead import STAGES, deal_ahead
    from fedveil.transport.duo.dealer import deal, write
    from fedveil.transport.duo.parameters import Plan

    for stage in ahead or ():
        one_of("--ahead", stage, STAGES)
    if "entropy" in (ahead or ()) and not entropy:
        raise Refused("--ahead: entropy needs keys for it; add --entropy")
    dealt = deal(Plan(clients, length, bound, declared_f, rounds), entropy=entropy)
    write(dealt, out)
    print(f"Written: {out}")
    if ahead:
        size = deal_ahead(dealt, out / "computer" / "rounds", range(1, rounds + 1), ahead, attempts)
        print(f"All {rounds} rounds are dealt, {size / 1e6:.1f} MB; the key centre is not needed again.")
    print(
        f"Give {out / 'clients'} to the clients, {out / 'controller'} and {out / 'computer'} to two servers that do "
        f"not work together, over channels that nobody else reads; then delete all of it here"
        + (f", {out / 'dealer'} first." if ahead else f". {out / 'dealer'} is for a dealer that serves every round.")
    )

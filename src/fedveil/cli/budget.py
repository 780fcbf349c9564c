"""``fedveil budget`` and its parts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fedveil.cli.options import Json, Quiet
from fedveil.core.errors import Refused

app = typer.Typer(invoke_without_command=True)


@app.callback()
def budget(
    ctx: typer.Context,
    epsilon: Annotated[float | None, typer.Option(help="The target; leave it out to compute it.")] = None,
    noise: Annotated[float | None, typer.Option(help="Noise multiplier: deviation / sensitivity.")] = None,
    steps: Annotated[int | None, typer.Option(help="How many releases.")] = None,
    sampling: Annotated[float, typer.Option(help="Poisson rate at which a unit takes part in a release.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Probability with which epsilon may fail.")] = 1e-5,
    mechanism: Annotated[str, typer.Option(help="gaussian, laplace, discrete_gaussian or skellam.")] = "gaussian",
    adjacency: Annotated[str, typer.Option(help="zero_out, add_remove or replace.")] = "zero_out",
    plot: Annotated[Path | None, typer.Option(help="Also draw epsilon over steps into this HTML file.")] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Compute the noise, the epsilon or the number of steps from the other two, by every accountant.

    Examples:
    `fedveil budget --noise 1.1 --steps 10000 --sampling 0.01`

    `fedveil budget --epsilon 8 --steps 10000 --sampling 0.01 --plot budget.html`
    """
    if ctx.invoked_subcommand is not None:
        sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
        given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
        if given:
            flag = f"--{given[0]}"
            raise Refused(f"{flag}: it stands before {ctx.invoked_subcommand}, which would not see it; put it behind")
        return
    from fedveil.report.budget_table import show_budget

    show_budget(
        Console(quiet=quiet),
        given={"epsilon": epsilon, "multiplier": noise, "steps": steps},
        sampling=sampling,
        delta=delta,
        mechanism=mechanism,
        adjacency=adjacency,
        plot=plot,
        json=json,
    )


@app.command()
def ldp(
    clients: Annotated[int, typer.Option(help="Clients that take part in a round.")],
    epsilon: Annotated[float, typer.Option(help="Epsilon of one weight in one round.")],
    dim: Annotated[int, typer.Option(help="Weights of the model.")],
    rounds: Annotated[int, typer.Option(help="Rounds that a client takes part in.")],
    delta: Annotated[float, typer.Option(help="Probability with which epsilon may fail.")] = 1e-5,
    mechanism: Annotated[str, typer.Option(help="two_point or hybrid.")] = "two_point",
    split: Annotated[str, typer.Option(help="What is shuffled: weight or layer.")] = "weight",
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """What LDP-FL costs a client: as the paper counts, composed over weights and rounds, and shuffled.

    Example:
    `fedveil budget ldp --clients 100 --epsilon 1 --dim 21840 --rounds 10`
    """
    from fedveil.privacy.ldp_budget import ldp_budget
    from fedveil.runtime.folder import write_json

    rows = ldp_budget(
        clients=clients, epsilon=epsilon, dim=dim, rounds=rounds, delta=delta, mechanism=mechanism, split=split
    )
    if json is not None:
        write_json(json, [asdict(row) for row in rows])
    table = Table("reports", "trusted", "epsilon", "delta", "status", "", box=SIMPLE)
    for row in rows:
        figure = f"{row.epsilon:,.4f}" if row.epsilon < 100 else f"{row.epsilon:,.0f}"
        table.add_row(row.what, row.trust, figure, f"{row.delta:g}", row.status, row.why)
    console = Console(quiet=quiet)
    console.print(f"{mechanism}, {clients} clients, split by {split}; neighbours: any change of a client's data")
    console.print(table)

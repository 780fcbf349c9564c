"""``fedveil audit``: try to refute the privacy claim of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedveil.cli.options import Json, Quiet, writable
from fedveil.core.errors import Refused

VIOLATED = 1

Target = Annotated[
    list[str] | None, typer.Argument(help="A run folder, or settings as name=value.", show_default=False)
]


def audit(
    target: Target = None,
    canaries: Annotated[
        int | None, typer.Option(help="Made-up records or clients; default: 5000, or what fits.")
    ] = None,
    guesses: Annotated[
        int | None, typer.Option(help="Guesses to make; default: from the claim and the canaries.")
    ] = None,
    noise: Annotated[
        float, typer.Option(help="Add only so much of the noise, unknown to the ledger: will the audit notice?")
    ] = 1.0,
    power: Annotated[
        bool | None,
        typer.Option(
            "--power/--no-power", help="Also audit the same run without noise: settings do, a folder does not."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Audit so many seeds, one after another.", min=1)] = 1,
    quiet: Quiet = False,
    json: Json = None,
) -> None:
    """Try to refute a privacy claim: train with canaries, guess who took part, and compare.

    Exits with code 1 if the claim is violated.

    Examples:
    `fedveil audit method=dp_fedavg_local data=digits privacy.epsilon=4`

    `fedveil run method=dp_fedavg_local privacy.epsilon=4 audit.canaries=5000 out=runs/d -q && fedveil audit runs/d`
    """
    from fedveil import api
    from fedveil.report.audit import show_audit, show_audits
    from fedveil.runtime.folder import write_json
    from fedveil.runtime.interrupt import terminable

    writable(json)
    if guesses is not None and (guesses < 2 or guesses % 2):
        raise Refused(f"--guesses: {guesses} cannot be split into halves; give an even number from 2 up")
    console, given = Console(quiet=quiet), target or []
    with terminable():
        try:
            if len(given) == 1 and "=" not in given[0]:
                if canaries is not None or noise != 1 or repeats != 1:
                    raise Refused(
                        "audit: --canaries, --noise and --repeats shape a run, and this one is finished; give settings"
                    )
                found = [api.audit(given[0], guesses=guesses, power=power or False, listeners=_listeners(console))]
            else:
                configs = _configs(given, canaries, noise, repeats)
                found = []
                for config in configs:
                    folder = api.start(config, listeners=_listeners(console)).folder.path
                    checked = noise > 0 if power is None else power
                    if checked and not quiet:
                        console.print("the same run with its noise switched off, to see whether the audit has power:")
                    found.append(api.audit(folder, guesses=guesses, power=checked, listeners=_listeners(console)))
        except KeyboardInterrupt:
            typer.echo("interrupted; finished runs are kept, and `fedveil audit <folder>` looks at one", err=True)
            raise typer.Exit(130) from None
    if json is not None:
        outcomes = [one.to_json() for one in found]
        write_json(json, outcomes[0] if repeats == 1 else outcomes)
    for one in found[:1] if repeats == 1 else []:
        show_audit(console, one, Path(one.folder) / "audit.html")
    if repeats > 1:
        show_audits(console, found)
    if any(one.verdict == "violated" for one in found):
        raise typer.Exit(VIOLATED)


def _configs(overrides: list[str], canaries: int | None, noise: float, repeats: int) -> list[dict[str, Any]]:
    """The runs to audit: one for each seed, in folders beside each other where one was named."""
    from fedveil.runtime.config import resolve

    named = [text.split("=")[0] for text in overrides]
    own = [] if "audit.canaries" in named else [f"audit.canaries={'auto' if canaries is None else canaries}"]
    if canaries is not None and not own:
        raise Refused("--canaries: audit.canaries says how many already; leave one of them out")
    if "audit.noise" not in named:
        own.append(f"audit.noise={noise}")
    first = resolve([*overrides, *own])
    configs = [first]
    for i in range(1, repeats):
        configs.append(resolve([*overrides, *own, f"seed={int(first['seed']) + i}"]))
    if repeats > 1 and first["out"]:
        for i, config in enumerate(configs):
            config["out"] = str(Path(config["out"]) / f"{i:03d}")
    return configs


def _listeners(console: Console) -> list[Any]:
    from fedveil.report.progress import Terminal

    return [] if console.quiet else [Terminal(console)]

"""``fedveil deploy``: a federation between real machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedveil.core.errors import Refused

app = typer.Typer(no_args_is_help=True, help="A federation between real machines, on Flower.")
Folder = Annotated[Path, typer.Argument(help="The folder that `deploy init` wrote.", show_default=False)]


@app.command()
def init(
    out: Annotated[Path, typer.Argument(help="A new folder.", show_default=False)],
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Name or address under which sites reach the SuperLink.")
    ] = None,
    site: Annotated[list[str] | None, typer.Option("--site", help="A site's name; once for each.")] = None,
    sites: Annotated[int | None, typer.Option("--sites", help="Instead of names: how many sites.")] = None,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", help="A party without data: shuffler, computer or controller."),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="The SuperLink's port.")] = 8000,
    listen: Annotated[str, typer.Option("--listen", help="The address that it listens on.")] = "0.0.0.0",
    days: Annotated[int, typer.Option("--days", help="How long the server's certificate holds.")] = 397,
    name: Annotated[str, typer.Option("--name", help="The federation's name.")] = "federation",
    force: Annotated[bool, typer.Option("--force", help="Set an earlier federation in this folder aside.")] = False,
) -> None:
    """Write certificates, keys, start scripts, the app and a README, for the SuperLink and every site.

    `fedveil deploy init hospitals --host superlink.example.org --site north --site south --site west`
    """
    from fedveil.deploy.folder import Plan, write

    if site and sites is not None:
        raise Refused("--sites: the sites have names already; leave one of --site and --sites out")
    if sites is not None and not 0 < sites <= 1000:
        raise Refused(f"--sites: {sites} is not a number of sites; give one from 1 to 1000")
    names = tuple(site or ()) if sites is None else tuple(f"site-{k + 1}" for k in range(sites))
    hosts, roles = tuple(host or ()), tuple(role or ())
    plan = Plan(name=name, sites=names, hosts=hosts, port=port, days=days, listen=listen, roles=roles)
    aside = write(plan, out, force=force)
    if aside is not None:
        print(f"The earlier federation is now in {aside}.")
    print(f"Written: {out}, for {len(names)} sites. Go on with {out / 'README.md'}.")


@app.command()
def renew(
    folder: Folder,
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Names and addresses; those of the old one, if none is given.")
    ] = None,
    days: Annotated[int, typer.Option("--days", help="How long the certificate holds.")] = 397,
) -> None:
    """Write another server certificate before the old one ends; sites need not be told."""
    from fedveil.deploy.folder import renew as write_certificate

    write_certificate(folder, host or [], days)
    print(f"Written: {folder / 'superlink/server.crt'}. Restart the SuperLink.")


@app.command()
def key(
    folder: Annotated[Path, typer.Argument(help="A site's folder.", show_default=False)] = Path(),
) -> None:
    """Make a site's key at the site itself; the SuperLink's operator registers its public half."""
    from fedveil.deploy.folder import new_key

    new_key(folder)
    print(f"Written: {folder / 'node.key'}, which stays here. Send {folder / 'node.pub'} to the SuperLink's operator.")


@app.command()
def approve(folder: Folder) -> None:
    """Write the check sum of a changed app into every site's list of approved apps."""
    from fedveil.deploy.folder import approve as write_sums

    digest = write_sums(folder)
    print(f"{digest}\nSend each site its approved.txt; until it is in place the site ignores the app.")


@app.command()
def check(
    settings: Annotated[Path, typer.Argument(help="A file with one name=value a line.", show_default=False)],
) -> None:
    """Look for mistakes in the settings of a run before anybody trains."""
    from fedveil.deploy.settings import read

    config = read(settings)
    print(f"{settings}: {config['method']['build'].split(':')[-1]}, {config['rounds']} rounds; no mistake found")

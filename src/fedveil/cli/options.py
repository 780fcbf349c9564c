"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedveil.core.errors import Refused

Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as name=value.", show_default=False)]
Place = Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the outcome to this JSON file.")]
OnPaper = Annotated[
    bool, typer.Option("--plan", help="Print noise, epsilon, affordable rounds and time; train nothing.")
]
Many = Annotated[bool, typer.Option("-m", "--multirun", help="Run every combination of comma-separated values.")]


def writable(path: Path | None, option: str = "--json") -> None:
    """Refuse before the work, not after it, when its outcome could not be written."""
    if path is not None and not path.absolute().parent.is_dir():
        raise Refused(f"{option}: there is no folder {path.absolute().parent}; create it or give another path")

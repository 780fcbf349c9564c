"""Find the files of a data set under the data root; no path is built in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fedveil.core.errors import Refused

VARIABLE = "FEDVEIL_DATA"


def data_root(root: str | None) -> Path:
    """The folder that holds the data sets: the setting, or else the environment variable ``FEDVEIL_DATA``."""
    named = root or os.environ.get(VARIABLE)
    if not named:
        raise Refused(
            f"data.root: no data root is given; set data.root or the environment variable {VARIABLE} to the "
            "folder that holds the data sets"
        )
    path = Path(named).expanduser()
    if not path.is_dir():
        raise Refused(
            f"data.root: {path} is not a folder; set data.root or the environment variable {VARIABLE} to the "
            "folder that holds the data sets"
        )
    return path


def find(root: str | None, folders: Sequence[str], files: Sequence[str]) -> list[Path]:
    """Paths of ``files`` in the first of ``folders`` that has all; a ``.gz`` file may lie there unzipped."""
    base = data_root(root)
    for folder in folders:
        found = [_present(base / folder / name) for name in files]
        if all(found):
            return [path for path in found if path]
    raise Refused(
        f"data.root: {base / folders[0]} does not hold the files wanted ({', '.join(files)}); put them "
        f"there, or set data.root or the environment variable {VARIABLE} to the folder that contains "
        f"{folders[0]}/"
    )


def _present(path: Path) -> Path | None:
    if path.is_file():
        return path
    plain = path.with_suffix("")
    return plain if path.suffix == ".gz" and plain.is_file() else None

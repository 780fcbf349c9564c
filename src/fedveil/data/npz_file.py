"""A user's own arrays in an npz file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.errors import Refused, suggest
from fedveil.data.arrays import raw_from_arrays
from fedveil.data.raw import AnyArray, Raw


def npz(
    *,
    path: str,
    x: str = "x",
    y: str = "y",
    test_x: str | None = None,
    test_y: str | None = None,
    test: str | None = None,
    client: str | None = None,
    classes: int | None = None,
    divide: float = 1.0,
    tokens: bool = False,
) -> Raw:
    """Arrays of an npz file, named by ``x``, ``y`` and, if any, ``test_x``, ``test_y`` and ``client``.

    ``test`` is a second file, whose arrays of the same names ``x`` and ``y`` are the test set. Inputs are divided by
    the public number ``divide`` (255 for bytes of pixels). Float targets make a regression. Arrays that need pickle
    are never loaded.
    """
    if test is not None and (test_x is not None or test_y is not None):
        raise Refused("test: a file and arrays are given for the test set; give one of the two")
    file = Path(path).expanduser()
    x_array, y_array, test_x_array, test_y_array, ids = _arrays(
        file, ("x", x), ("y", y), ("test_x", test_x), ("test_y", test_y), ("client", client)
    )
    if test is not None:
        test_x_array, test_y_array = _arrays(Path(test).expanduser(), ("x", x), ("y", y), setting="test")
    return raw_from_arrays(
        x_array,
        y_array,
        test_x=test_x_array,
        test_y=test_y_array,
        clients=ids,
        classes=classes,
        name=file.stem,
        divide=divide,
        tokens=tokens,
    )


def _arrays(file: Path, *wanted: tuple[str, str | None], setting: str = "path") -> list[Any]:
    """The named arrays of a file, in order; None for those without a name."""
    try:
        with file.open("rb") as handle:
            arrays = np.load(handle, allow_pickle=False)
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise Refused(f"{setting}: {file} holds a single array; save inputs and targets with numpy.savez")
            return [None if name is None else _named(arrays, of, name) for of, name in wanted]
    except FileNotFoundError as error:
        raise Refused(f"{setting}: there is no file {file}; give the path of an npz file") from error
    except Refused:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise Refused(
            f"{setting}: {file} is not an npz file of plain numbers ({error}); save it by numpy.savez, without objects"
        ) from error


def _named(arrays: np.lib.npyio.NpzFile, setting: str, name: str) -> AnyArray:
    if name not in arrays.files:
        raise Refused(f"{setting}: the file has no array {name!r}; {suggest(name, arrays.files)}")
    return np.asarray(arrays[name])

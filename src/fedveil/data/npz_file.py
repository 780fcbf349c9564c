"""A user's own arrays in an npz file."""

from __future__ import annotations

import zipfile
from pathlib import Path

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
    client: str | None = None,
    classes: int | None = None,
    divide: float = 1.0,
    tokens: bool = False,
) -> Raw:
    """Arrays of an npz file, named by ``x``, ``y`` and, if any, ``test_x``, ``test_y`` and ``client``.

    Inputs are divided by the public number ``divide`` (255 for bytes of pixels). Float targets make a
    regression. Arrays that need pickle are never loaded.
    """
    file = Path(path).expanduser()
    try:
        with file.open("rb") as handle:
            arrays = np.load(handle, allow_pickle=False)
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise Refused(f"path: {file} holds a single array; save inputs and targets with numpy.savez")
            x_array, y_array = _named(arrays, "x", x), _named(arrays, "y", y)
            test_x_array, test_y_array, ids = (
                None if name is None else _named(arrays, setting, name)
                for setting, name in (("test_x", test_x), ("test_y", test_y), ("client", client))
            )
    except FileNotFoundError as error:
        raise Refused(f"path: there is no file {file}; give the path of an npz file") from error
    except Refused:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise Refused(
            f"path: {file} is not an npz file of plain numbers ({error}); save it with numpy.savez, without objects"
        ) from error
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


def _named(arrays: np.lib.npyio.NpzFile, setting: str, name: str) -> AnyArray:
    if name not in arrays.files:
        raise Refused(f"{setting}: the file has no array {name!r}; {suggest(name, arrays.files)}")
    return np.asarray(arrays[name])

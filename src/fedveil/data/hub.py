"""Any data set of the Hugging Face hub, through flwr-datasets, which is imported only when asked for."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

from fedveil.core.errors import Refused, suggest
from fedveil.data.arrays import raw_from_arrays
from fedveil.data.raw import AnyArray, Raw


def huggingface(
    *,
    dataset: str,
    x: str | list[str] = "image",
    y: str = "label",
    split: str = "train",
    test_split: str | None = None,
    subset: str | None = None,
    client: str | None = None,
    divide: float = 1.0,
    tokens: bool = False,
) -> Raw:
    """Rows of a hub data set: ``x`` is a column or a list of them, ``y`` the label, ``client`` the owner.

    Images become (channels, height, width) between 0 and 1; other inputs are divided by the public number
    ``divide``. Text labels are numbered in sorted order, float labels make a regression.
    """
    # flwr-datasets reports its use to its makers unless told not to; a privacy tool tells it not to.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        library = importlib.import_module("flwr_datasets")
    except ImportError as error:
        raise Refused(
            "data: the Hugging Face source needs the package flwr-datasets, which is not installed; run pip "
            "install 'fedveil[flower]'"
        ) from error
    try:
        hub = library.FederatedDataset(dataset=dataset, subset=subset, partitioners={split: 1}, shuffle=False)
        rows = hub.load_split(split)
        held = None if test_split is None else hub.load_split(test_split)
    except Exception as error:  # the library raises a dozen kinds, for network, names and formats
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise Refused(
            f"dataset: {dataset!r} could not be loaded from the Hugging Face hub ({reason}); check the name, "
            "the splits and the network, or save the rows yourself and use the source npz or csv"
        ) from error
    return convert(rows, held, name=dataset.split("/")[-1], x=x, y=y, client=client, divide=divide, tokens=tokens)


def convert(
    rows: Any,
    held: Any = None,
    *,
    name: str,
    x: str | list[str] = "image",
    y: str = "label",
    client: str | None = None,
    divide: float = 1.0,
    tokens: bool = False,
) -> Raw:
    """A ``datasets.Dataset`` (and one for the test set) as ``Raw``; needs no network."""
    images, inputs = _inputs(rows, x)
    labels = _column(rows, "y", y)
    test_x = test_y = None
    if held is not None:
        test_x, test_y = _inputs(held, x)[1], _column(held, "y", y)
    if labels.dtype.kind in "SU":
        names = np.unique(labels)
        labels = np.searchsorted(names, labels)
        if test_y is not None:
            unknown = ~np.isin(test_y, names)
            if unknown.any():
                raise Refused(
                    f"test_split: it has the label {str(test_y[unknown][0])!r}, which the training split "
                    "does not have; choose a test split with the same labels"
                )
            test_y = np.searchsorted(names, test_y)
    listed = getattr(rows.features[y], "num_classes", None)
    return raw_from_arrays(
        inputs,
        labels,
        test_x=test_x,
        test_y=test_y,
        clients=None if client is None else _column(rows, "client", client),
        classes=listed,
        name=name,
        divide=255.0 if images else divide,
        tokens=tokens,
    )


def _column(rows: Any, setting: str, name: str) -> AnyArray:
    if name not in rows.column_names:
        raise Refused(f"{setting}: the data set has no column {name!r}; {suggest(name, rows.column_names)}")
    values = np.asarray(rows.select_columns([name]).with_format("numpy")[:][name])
    if values.dtype.kind == "O":
        raise Refused(
            f"{setting}: the rows of column {name!r} differ in size or have gaps; choose a column of equal, "
            "complete rows"
        )
    return values


def _inputs(rows: Any, x: str | list[str]) -> tuple[bool, AnyArray]:
    """Whether the inputs are images, and the inputs."""
    if not isinstance(x, str):
        return False, np.stack([_column(rows, "x", name) for name in x], axis=1)
    values = _column(rows, "x", x)
    if type(rows.features[x]).__name__ == "Image":
        return True, values[:, None] if values.ndim == 3 else np.moveaxis(values, 3, 1)
    if values.ndim == 1 and values.dtype.kind in "biuf":
        return False, values[:, None]
    return False, values

"""Flower's array records as rows of FedVeil's signals, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedveil.core.flat import Layout

Plain = Mapping[str, np.ndarray]
REAL = "f"
"""The kind of numbers that a model consists of; counters and flags are no part of a move."""


def plain(record: ArrayRecord) -> dict[str, np.ndarray]:
    """The arrays of a record, by name."""
    return {name: array.numpy() for name, array in record.items()}


def layout_of(arrays: Plain) -> Layout:
    """Which position of a flat vector belongs to which array of real numbers."""
    real = {name: array for name, array in arrays.items() if array.dtype.kind == REAL}
    return Layout(tuple(real), tuple(array.shape for array in real.values()))


def flat(arrays: Plain, layout: Layout) -> Tensor:
    """All real numbers as one float64 vector."""
    parts = [np.asarray(arrays[name], np.float64).reshape(-1) for name in layout.names]
    return torch.from_numpy(np.concatenate(parts) if parts else np.empty(0))


def move(after: Plain, before: Plain, layout: Layout) -> Tensor:
    """How far a client's arrays are from those that it was sent."""
    return flat(after, layout) - flat(before, layout)


def moved(before: Plain, by: Tensor, layout: Layout, others: Plain) -> ArrayRecord:
    """The arrays before, moved; what is no real number is taken from ``others``. Shapes and types stay."""
    steps = layout.named(by)
    record = ArrayRecord()
    for name, array in before.items():
        if name in steps:
            value = np.asarray(array, np.float64) + steps[name].numpy()
            record[name] = Array(np.asarray(value, dtype=array.dtype).reshape(array.shape))
        else:
            record[name] = Array(np.asarray(others[name], dtype=array.dtype).reshape(array.shape))
    return record


def alike(arrays: Plain, before: Plain, *, finite: bool = True) -> str | None:
    """None where arrays have the names, shapes and kinds of those before (and are ``finite``); else what is wrong."""
    if arrays.keys() != before.keys():
        return "other arrays than it was sent"
    for name, array in before.items():
        if arrays[name].shape != array.shape:
            return f"{name} has shape {arrays[name].shape} instead of {array.shape}"
        if (arrays[name].dtype.kind == REAL) != (array.dtype.kind == REAL):
            return f"{name} holds {arrays[name].dtype} instead of {array.dtype}"
        if finite and array.dtype.kind == REAL and not np.isfinite(arrays[name]).all():
            return f"{name} is not finite"
    return None

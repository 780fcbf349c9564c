"""A data set as it comes from its source: all rows together, before anybody owns them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Refused
from fedveil.core.federation import Examples

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]
TextArray = np.ndarray[Any, np.dtype[np.str_]]
AnyArray = np.ndarray[Any, np.dtype[Any]]

POOLED = (
    "inputs are scaled by the mean and standard deviation of all clients' rows together, which no privacy "
    "budget pays for"
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Raw:
    """Rows of one source, checked once so that nothing downstream has to.

    x
        float32 inputs ``(n, *input_shape)``; int64 only for token numbers.
    y
        int64 class numbers ``0 .. classes - 1``, or float32 values when ``classes`` is 0.
    test
        the official test set, None when the source has none.
    groups, group_names
        the natural client of each row, numbered ``0 .. G - 1``, and the name of each; None when there are
        none.
    private_statistics
        why the inputs depend on pooled private statistics, None when they do not.
    labels, columns
        what class numbers and inputs stand for, where that was read off a file: a model means nothing without.
    """

    name: str
    x: Tensor
    y: Tensor
    classes: int
    test: Examples | None = None
    groups: IntArray | None = None
    group_names: tuple[str, ...] | None = None
    private_statistics: str | None = None
    labels: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check(self.name, self.x, self.y, self.classes)
        if self.test is not None:
            _check(f"{self.name} (test set)", self.test.x, self.test.y, self.classes)
            if self.test.x.shape[1:] != self.x.shape[1:] or self.test.x.dtype != self.x.dtype:
                raise Refused(
                    f"{self.name}: a training input has shape {tuple(self.x.shape[1:])} but a test input has "
                    f"shape {tuple(self.test.x.shape[1:])}; both must have the same shape and type"
                )
        if self.groups is not None:
            if len(self.groups) != len(self.y):
                raise Refused(
                    f"{self.name}: {len(self.groups)} client ids for {len(self.y)} rows; give one client id per row"
                )
            if self.groups.min() < 0 or not np.bincount(self.groups).all():
                raise Refused(f"{self.name}: natural clients must be numbered 0, 1, 2, ... and each must own a row")
            if self.group_names is not None and len(self.group_names) != int(self.groups.max()) + 1:
                raise Refused(
                    f"{self.name}: {len(self.group_names)} client names for {int(self.groups.max()) + 1} "
                    "clients; give one name per client"
                )

    def __len__(self) -> int:
        return len(self.y)


def _check(name: str, x: Tensor, y: Tensor, classes: int) -> None:
    if len(x) != len(y):
        raise Refused(f"{name}: {len(x)} inputs but {len(y)} targets; give one target per input")
    if len(y) == 0:
        raise Refused(f"{name}: there are no rows; give at least one")
    if x.dim() < 2:
        raise Refused(f"{name}: inputs have shape {tuple(x.shape)}; give (rows, features) or (rows, *input_shape)")
    if y.dim() != 1:
        raise Refused(f"{name}: targets have shape {tuple(y.shape)}; give one target per row, shape (rows,)")
    if x.dtype not in (torch.float32, torch.int64):
        raise Refused(f"{name}: inputs are {x.dtype}; give float32, or int64 for token numbers")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        row = int(torch.nonzero(~torch.isfinite(x.flatten(1)).all(1))[0])
        raise Refused(f"{name}: the input in row {row} is not finite; replace or remove missing values first")
    if classes == 0:
        if y.dtype != torch.float32:
            raise Refused(f"{name}: targets are {y.dtype}; a regression target is float32")
        if not bool(torch.isfinite(y).all()):
            raise Refused(f"{name}: a target is not finite; remove the rows without a target")
    elif y.dtype != torch.int64:
        raise Refused(f"{name}: targets are {y.dtype}; class numbers are int64")
    elif int(y.min()) < 0 or int(y.max()) >= classes:
        raise Refused(
            f"{name}: class numbers run from {int(y.min())} to {int(y.max())}, but there are {classes} "
            f"classes; number them 0 to {classes - 1}"
        )

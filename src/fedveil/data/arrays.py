"""A user's own arrays (numpy or torch) as a federation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedveil.core.arguments import fit, known, settings
from fedveil.core.errors import Refused, positive
from fedveil.core.federation import Examples
from fedveil.data.federate import federate
from fedveil.data.pooled import Pooled
from fedveil.data.raw import AnyArray, Raw


def from_arrays(
    x: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    *,
    test_x: ArrayLike | Tensor | None = None,
    test_y: ArrayLike | Tensor | None = None,
    clients: ArrayLike | Tensor | None = None,
    classes: int | None = None,
    name: str = "arrays",
    seed: int = 0,
    tokens: bool = False,
    **partition: Any,
) -> Pooled:
    """Your own arrays as a federation; ``clients`` says whose row each is, the rest are federate's settings.

    Integer targets are class numbers (``classes`` is one more than the largest if not given), float targets
    are values to predict. Inputs become float32, or stay integers when they are ``tokens``.

    >>> x, y = np.random.default_rng(0).normal(size=(100, 4)), np.arange(100) % 2
    >>> data = from_arrays(x, y, population=5)
    >>> data.population, data.input_shape, data.classes, len(data.test)
    (5, (4,), 2, 20)
    """
    allowed = settings(federate) | {"population": int | None}
    known("from_arrays", partition, allowed)
    for setting, value in partition.items():
        fit(setting, value, allowed[setting])
    raw = raw_from_arrays(
        x, y, test_x=test_x, test_y=test_y, clients=clients, classes=classes, name=name, tokens=tokens
    )
    return federate(raw, seed=seed, **partition)


def from_clients(
    clients: Sequence[tuple[ArrayLike | Tensor, ArrayLike | Tensor]],
    *,
    test: tuple[ArrayLike | Tensor, ArrayLike | Tensor] | None = None,
    names: Sequence[str] | None = None,
    classes: int | None = None,
    name: str = "clients",
    seed: int = 0,
    tokens: bool = False,
    holdout: float = 0.1,
    test_fraction: float = 0.2,
) -> Pooled:
    """One ``(x, y)`` pair per client as a federation; without ``test`` each gives ``test_fraction`` to it.

    >>> parts = [(np.zeros((10, 3)), np.arange(10) % 2), (np.ones((30, 3)), np.arange(30) % 2)]
    >>> data = from_clients(parts, names=["north", "south"])
    >>> data.client_names(), data.sizes.tolist()
    (('north', 'south'), [7, 22])
    """
    if not clients:
        raise Refused("clients: the list is empty; give one (x, y) pair per client")
    xs, ys = [_array("x", x) for x, _ in clients], [_array("y", y) for _, y in clients]
    for number, (one_x, one_y) in enumerate(zip(xs, ys, strict=True)):
        if one_x.ndim == 0 or one_y.ndim == 0 or len(one_x) != len(one_y) or len(one_y) == 0:
            raise Refused(
                f"clients: client {number} has inputs of shape {one_x.shape} and targets of shape "
                f"{one_y.shape}; give as many targets as inputs, at least one"
            )
        if one_x.shape[1:] != xs[0].shape[1:]:
            raise Refused(
                f"clients: an input of client {number} has shape {one_x.shape[1:]}, but of client 0 "
                f"{xs[0].shape[1:]}; all clients need the same shape"
            )
    if names is not None and len(names) != len(clients):
        raise Refused(f"names: {len(names)} names for {len(clients)} clients; give one name per client")
    test_x, test_y = (None, None) if test is None else test
    raw = raw_from_arrays(
        np.concatenate(xs),
        np.concatenate(ys),
        test_x=test_x,
        test_y=test_y,
        clients=np.repeat(np.arange(len(clients)), [len(one) for one in ys]),
        classes=classes,
        name=name,
        tokens=tokens,
        client_names=names,
    )
    return federate(raw, seed=seed, holdout=holdout, test_fraction=test_fraction)


def raw_from_arrays(
    x: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    *,
    test_x: ArrayLike | Tensor | None,
    test_y: ArrayLike | Tensor | None,
    clients: ArrayLike | Tensor | None,
    classes: int | None,
    name: str,
    tokens: bool = False,
    divide: float = 1.0,
    client_names: Sequence[str] | None = None,
) -> Raw:
    """Arrays as ``Raw``, with the checks that a user's own arrays need."""
    if (test_x is None) != (test_y is None):
        raise Refused("test_x, test_y: only one of the two is given; give both or neither")
    inputs, (targets, count) = _inputs("x", x, tokens, divide), _targets("y", y, classes)
    test: Examples | None = None
    if test_x is not None and test_y is not None:
        held_x, (held_y, largest) = (
            _inputs("test_x", test_x, tokens, divide),
            _targets("test_y", test_y, classes),
        )
        if (largest == 0) != (count == 0):
            raise Refused("test_y: one of y and test_y holds class numbers and the other values; give both alike")
        if len(held_x) != len(held_y):
            raise Refused(f"test_x: {len(held_x)} inputs but {len(held_y)} targets in test_y; give one per input")
        count = max(count, largest)
        test = Examples(held_x, held_y)
    groups = group_names = None
    if clients is not None:
        ids = _array("clients", clients)
        if ids.ndim != 1 or ids.dtype.kind not in "iuSU":
            raise Refused(
                f"clients: shape {ids.shape} of {ids.dtype} does not name clients; give one whole number or "
                "text per row"
            )
        unique, groups = np.unique(ids, return_inverse=True)
        group_names = tuple(client_names or map(str, unique.tolist()))
    return Raw(name=name, x=inputs, y=targets, classes=count, test=test, groups=groups, group_names=group_names)


def _array(setting: str, values: ArrayLike | Tensor) -> AnyArray:
    try:
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    except ValueError as error:
        raise Refused(f"{setting}: the rows do not have one shape; give a rectangular array") from error
    if array.dtype.kind not in "biufSU":
        raise Refused(f"{setting}: an array of {array.dtype} is not allowed; give plain numbers")
    return array


def _inputs(setting: str, values: ArrayLike | Tensor, tokens: bool, divide: float) -> Tensor:
    positive(divide=divide)
    array = _array(setting, values)
    if array.dtype.kind in "SU":
        raise Refused(f"{setting}: text is not a number; encode it first")
    if tokens:
        if array.dtype.kind not in "iu":
            raise Refused(
                f"tokens: {setting} holds {array.dtype}; token numbers are whole numbers, or leave tokens out"
            )
        return torch.from_numpy(array.astype(np.int64))
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is refused in words
        array = array.astype(np.float32)
    return torch.from_numpy(array if divide == 1 else array / np.float32(divide))


def _targets(setting: str, values: ArrayLike | Tensor, classes: int | None) -> tuple[Tensor, int]:
    array = _array(setting, values)
    if array.dtype.kind in "SU":
        raise Refused(f"{setting}: text is not a class number; number the classes 0, 1, 2, ... first")
    if array.ndim != 1 or len(array) == 0:
        raise Refused(f"{setting}: targets have shape {array.shape}; give one number per row, shape (rows,)")
    if array.dtype.kind in "biu":
        if classes == 0:
            return torch.from_numpy(array.astype(np.float32)), 0
        numbers = torch.from_numpy(array.astype(np.int64))
        return numbers, int(numbers.max()) + 1 if classes is None else classes
    if classes:
        raise Refused(
            f"classes: {classes} classes, but {setting} holds {array.dtype}; give whole class numbers, or "
            "leave classes out to predict values"
        )
    return torch.from_numpy(array.astype(np.float32)), 0

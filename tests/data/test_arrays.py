from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedveil.core.errors import Refused
from fedveil.data import from_arrays, from_clients

X = np.random.default_rng(0).normal(size=(100, 3))
Y = np.arange(100) % 4


def test_numpy_and_torch_give_the_same_federation() -> None:
    one = from_arrays(X, Y, population=5, partition="dirichlet", min_samples=1, seed=2)
    two = from_arrays(
        torch.from_numpy(X), torch.from_numpy(Y), population=5, partition="dirichlet", min_samples=1, seed=2
    )
    assert torch.equal(one.pool.x, two.pool.x)
    assert one.pool.x.dtype == torch.float32
    assert one.classes == 4


def test_the_users_arrays_are_copied_not_shared() -> None:
    x = torch.zeros(100, 3)
    data = from_arrays(x, Y, test_x=x, test_y=Y, population=5)
    x.fill_(7)
    assert data.pool.x.max() == data.test.x.max() == 0


def test_clients_by_number_or_by_name() -> None:
    ids = np.array(["north", "south"])[np.arange(100) % 2]
    data = from_arrays(X, Y, clients=ids)
    assert data.client_names() == ("north", "south")
    assert data.sizes.sum() + len(data.kept) + len(data.test) == 100
    assert from_arrays(X, Y, clients=np.arange(100) % 3 * 10).client_names() == ("0", "10", "20")


def test_floats_make_a_regression_and_classes_can_be_declared() -> None:
    assert from_arrays(X, Y.astype(float)).classes == 0
    assert from_arrays(X, Y, classes=0).pool.y.dtype == torch.float32
    assert from_arrays(X, Y, classes=9).classes == 9
    assert from_arrays(X, Y > 1).classes == 2


def test_the_test_set_is_the_users_own() -> None:
    data = from_arrays(X, Y, test_x=X[:7], test_y=np.full(7, 5))
    assert len(data.test) == 7
    assert data.classes == 6


def test_tokens_stay_integers() -> None:
    data = from_arrays(np.arange(300).reshape(100, 3), Y, tokens=True)
    assert data.pool.x.dtype == torch.int64


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"x": X[:50]}, "50 inputs but 100 targets"),
        ({"y": Y[:, None]}, r"y: targets have shape \(100, 1\); give one number per row"),
        ({"y": Y.astype(str)}, "y: text is not a class number"),
        ({"x": X.astype(str)}, "x: text is not a number"),
        ({"x": X.astype(object)}, "x: an array of object is not allowed"),
        ({"x": [[1, 2], [3]]}, "x: the rows do not have one shape"),
        ({"y": Y.astype(float), "classes": 4}, "classes: 4 classes, but y holds float64"),
        ({"classes": 2}, "class numbers run from 0 to 3, but there are 2 classes"),
        ({"test_x": X}, "test_x, test_y: only one of the two is given"),
        ({"test_x": X, "test_y": Y[:3]}, "test_x: 100 inputs but 3 targets in test_y"),
        ({"test_x": X, "test_y": Y.astype(float)}, "test_y: one of y and test_y"),
        ({"clients": Y.astype(float)}, "clients: shape"),
        ({"clients": Y[:10]}, "10 client ids for 100 rows"),
        ({"tokens": True}, "tokens: x holds float64"),
        ({"alhpa": 0.1}, "alhpa: from_arrays has no such setting; did you mean 'alpha'"),
        ({"partition": "dirichlet", "alpha": "0.1"}, "alpha: '0.1' is not allowed; give a number or null"),
        ({"population": 2.5}, "population: 2.5 is not allowed; give a whole number or null"),
    ],
)
def test_refusals(setting: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {"x": X, "y": Y} | setting
    with pytest.raises(Refused, match=message):
        from_arrays(call.pop("x"), call.pop("y"), **call)


def test_from_clients_keeps_each_pair_together() -> None:
    parts = [(np.full((10 * (k + 1), 2), k), np.arange(10 * (k + 1)) % 2) for k in range(3)]
    data = from_clients(parts, test=(np.zeros((4, 2)), [0, 1, 0, 1]))
    assert data.population == 3
    assert len(data.test) == 4
    assert all((data.train(k).x == k).all() and (data.holdout(k).x == k).all() for k in range(3))
    assert (data.sizes + np.diff(data.kept_starts)).tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    ("clients", "names", "message"),
    [
        ([], None, "clients: the list is empty"),
        ([(X, Y[:3])], None, "clients: client 0 has inputs of shape"),
        ([(X, Y), (X[:0], Y[:0])], None, "clients: client 1 has inputs of shape"),
        ([(X, Y), (X[:, :2], Y)], None, "clients: an input of client 1 has shape"),
        ([(X, Y)], ["a", "b"], "names: 2 names for 1 clients"),
    ],
)
def test_from_clients_refusals(clients: Any, names: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        from_clients(clients, names=names)

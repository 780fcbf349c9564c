from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.errors import Refused
from fedveil.core.federation import Examples, Federation
from fedveil.data.bundled import digits
from fedveil.data.federate import Pooled, federate
from fedveil.data.raw import Raw


def numbered(rows: int = 400, classes: int = 4, groups: list[int] | None = None, test: int = 0) -> Raw:
    """Rows whose only input is their own number, so that each can be followed."""
    x = torch.arange(rows, dtype=torch.float32)[:, None]
    y = torch.from_numpy(np.random.default_rng(0).integers(0, classes, rows))
    owners = None if groups is None else np.repeat(np.arange(len(groups)), groups)
    held = Examples(torch.full((test, 1), -1.0), torch.zeros(test, dtype=torch.int64)) if test else None
    names = None if groups is None else tuple(f"c{i}" for i in range(len(groups)))
    return Raw(name="numbered", x=x, y=y, classes=classes, groups=owners, group_names=names, test=held)


def rows_of(examples: Examples) -> list[int]:
    return examples.x[:, 0].int().tolist()


def everything(data: Pooled) -> list[int]:
    clients = range(data.population)
    return [row for k in clients for part in (data.train(k), data.holdout(k)) for row in rows_of(part)] + rows_of(
        data.test
    )


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    population=st.integers(1, 15),
    partition=st.sampled_from(["iid", "dirichlet", "shards", "classes", "quantity"]),
    holdout=st.sampled_from([0.0, 0.1, 0.5, 0.99]),
    test_fraction=st.sampled_from([0.1, 0.2, 0.5]),
)
def test_every_row_is_in_exactly_one_place(
    seed: int, population: int, partition: str, holdout: float, test_fraction: float
) -> None:
    raw = numbered()
    setting = {"min_samples": 1} if partition in ("dirichlet", "quantity") else {}
    if partition == "classes":
        setting["classes_per_client"] = 4
    data = federate(
        raw,
        seed=seed,
        population=population,
        partition=partition,
        holdout=holdout,
        test_fraction=test_fraction,
        **setting,
    )
    assert sorted(everything(data)) == list(range(400))
    assert len(data.test) == pytest.approx(400 * test_fraction, abs=1)
    for client in range(population):
        train, held = data.train(client), data.holdout(client)
        assert len(train) == data.sizes[client] >= 1
        assert torch.equal(train.y, raw.y[train.x[:, 0].long()])
        if holdout == 0:
            assert len(held) == 0
        elif len(train) + len(held) >= 2:
            assert len(held) >= 1
    counts = data.label_counts()
    assert counts is not None
    assert counts.sum(axis=1).tolist() == data.sizes.tolist()
    assert counts[0].tolist() == np.bincount(data.train(0).y.numpy(), minlength=4).tolist()


def test_a_seed_fixes_everything_and_another_seed_changes_it() -> None:
    one, same, other = (federate(numbered(), seed=seed, partition="dirichlet", population=5) for seed in (3, 3, 4))
    assert everything(one) == everything(same)
    assert everything(one) != everything(other)
    assert rows_of(one.test) != rows_of(other.test)


def test_the_test_set_does_not_depend_on_the_partition() -> None:
    ways = ("iid", "dirichlet", "shards")
    tests = [sorted(rows_of(federate(numbered(), seed=0, population=5, partition=way).test)) for way in ways]
    assert tests[0] == tests[1] == tests[2]


def test_the_random_test_set_is_stratified() -> None:
    raw = digits()
    data = federate(raw, seed=0)
    shares = torch.bincount(data.test.y) / torch.bincount(raw.y)
    assert shares.min() > 0.19
    assert shares.max() < 0.21


def test_training_examples_are_views_of_one_pool() -> None:
    data = federate(numbered(), seed=0)
    for part, pool in ((data.train(3), data.pool), (data.holdout(3), data.kept)):
        assert part.x.untyped_storage().data_ptr() == pool.x.untyped_storage().data_ptr()
    assert data.starts[-1] == len(data.pool) == data.sizes.sum()
    with pytest.raises(IndexError, match="client 20 does not exist; clients are numbered 0 to 19"):
        data.train(20)
    with pytest.raises(IndexError):
        data.holdout(-1)


def test_an_official_test_set_is_kept_whole() -> None:
    data = federate(numbered(test=7), seed=0, population=10)
    assert len(data.test) == 7
    assert len(data.pool) + len(data.kept) == 400
    assert data.facts()["test_set"] == "official"


def test_natural_clients_are_the_default_where_there_are_any() -> None:
    sizes = [100, 20, 3, 1, 276]
    data = federate(numbered(groups=sizes), seed=0)
    assert data.population == 5
    assert data.client_names() == ("c0", "c1", "c2", "c3", "c4")
    starts = np.cumsum([0, *sizes])
    for client in range(5):
        own = rows_of(data.train(client)) + rows_of(data.holdout(client))
        assert all(starts[client] <= row < starts[client + 1] for row in own)
        assert len(own) == pytest.approx(0.8 * sizes[client], abs=1)
        assert data.sizes[client] >= 1
    assert sorted(everything(data)) == list(range(400))


def test_no_natural_client_loses_all_rows_to_the_test_set() -> None:
    for seed in range(20):
        data = federate(numbered(rows=60, groups=[1] * 30 + [2] * 15), seed=seed, test_fraction=0.5)
        assert data.sizes.min() >= 1


def test_natural_data_can_be_shared_out_otherwise() -> None:
    data = federate(numbered(groups=[100, 300]), seed=0, partition="iid", population=8)
    assert data.population == 8
    assert data.client_names() is None


def test_a_regression_has_no_label_counts() -> None:
    raw = Raw(name="r", x=torch.randn(100, 2), y=torch.randn(100), classes=0)
    data = federate(raw, seed=0, population=4)
    assert data.label_counts() is None
    assert data.classes == 0


def test_facts_can_be_written_to_a_report() -> None:
    data: Federation = federate(digits(), seed=0, population=10, partition="dirichlet", alpha=0.3)
    facts = orjson.loads(orjson.dumps(data.facts()))
    assert facts["partition"] == "dirichlet"
    assert facts["alpha"] == 0.3
    assert facts["min_samples"] == 10
    assert facts["train_rows"] + facts["holdout_rows"] + facts["test_rows"] == 1797


@pytest.mark.parametrize(
    ("raw", "setting", "message"),
    [
        (numbered(), {"partition": "natural"}, "no natural clients; choose one of iid, dirichlet, shards"),
        (numbered(groups=[200, 200]), {"population": 5}, "5 clients, but numbered has 2 natural clients"),
        (numbered(), {"population": 500}, "population: 500 clients are more than the 320 training rows"),
        (numbered(), {"alpha": 0.5}, "alpha: partition 'iid' does not use it"),
        (numbered(groups=[200, 200]), {"shards": 2}, "shards: partition 'natural' does not use it"),
        (numbered(), {"partition": "iidd"}, "did you mean 'iid'"),
        (numbered(), {"holdout": 1.0}, "holdout: 1.0 is not a fraction"),
        (numbered(), {"test_fraction": -0.1}, "test_fraction: -0.1 is not a fraction"),
        (numbered(), {"test_fraction": 0.0}, "test_fraction: 0 of 400 rows leaves no test rows"),
        (numbered(groups=[398, 2]), {"min_samples": 3}, "'natural' leaves 1 of 2 clients with fewer than 3"),
    ],
)
def test_refusals(raw: Raw, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        federate(raw, seed=0, **setting)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.zeros(3, dtype=torch.int64)}, "4 inputs but 3 targets"),
        ({"x": torch.zeros(0, 1), "y": torch.zeros(0, dtype=torch.int64)}, "there are no rows"),
        ({"x": torch.zeros(4)}, r"inputs have shape \(4,\)"),
        ({"y": torch.zeros(4, 1, dtype=torch.int64)}, "give one target per row"),
        ({"x": torch.zeros(4, 1, dtype=torch.float64)}, "inputs are torch.float64"),
        ({"x": torch.tensor([[0.0], [1.0], [float("nan")], [2.0]])}, "input in row 2 is not finite"),
        ({"y": torch.zeros(4)}, "class numbers are int64"),
        ({"y": torch.tensor([0, 1, 2, 3])}, "class numbers run from 0 to 3, but there are 2 classes"),
        ({"y": torch.tensor([0, 1, -1, 0])}, "class numbers run from -1 to 1"),
        ({"classes": 0}, "a regression target is float32"),
        ({"classes": 0, "y": torch.full((4,), float("inf"))}, "a target is not finite"),
        ({"groups": np.zeros(3, np.int64)}, "3 client ids for 4 rows"),
        ({"groups": np.array([0, 0, 2, 2])}, "each must own a row"),
        ({"groups": np.array([0, 0, 1, 1]), "group_names": ("a",)}, "1 client names for 2 clients"),
        ({"test": Examples(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))}, "both must have the same"),
        ({"test": Examples(torch.zeros(1, 1), torch.tensor([5]))}, r"\(test set\): class numbers run"),
    ],
)
def test_rows_are_checked_once_at_the_source(change: dict[str, Any], message: str) -> None:
    good = Raw(name="good", x=torch.zeros(4, 1), y=torch.tensor([0, 1, 0, 1]), classes=2)
    with pytest.raises(Refused, match=message):
        dataclasses.replace(good, **change)

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
import torch

from fedveil.core.errors import Refused
from fedveil.core.federation import Federation
from fedveil.data import Synthetic


@pytest.mark.parametrize("shape", ["linear", "image"])
def test_a_client_is_the_same_every_time_and_in_every_population(shape: str) -> None:
    small, large = Synthetic(seed=1, population=10, shape=shape), Synthetic(seed=1, population=10**5, shape=shape)
    for client in (0, 9):
        assert torch.equal(small.train(client).x, large.train(client).x)
        assert torch.equal(small.holdout(client).y, large.holdout(client).y)
    assert torch.equal(small.test.x, large.test.x)
    assert not torch.equal(small.train(0).x, small.train(1).x)
    assert not torch.equal(small.train(0).x, Synthetic(seed=2, shape=shape).train(0).x)


def test_it_is_a_federation() -> None:
    data: Federation = Synthetic(population=7, samples=20, features=5, classes=3, test_samples=11)
    assert data.population == len(data.sizes) == 7
    assert data.input_shape == (5,)
    assert data.train(6).x.shape == (20, 5)
    assert data.train(6).x.dtype == torch.float32
    assert data.train(6).y.dtype == torch.int64
    assert len(data.holdout(6)) == 2
    assert len(data.test) == 11
    assert data.client_names() is None
    assert data.private_statistics is None
    counts = data.label_counts()
    assert counts is not None
    assert counts.sum(axis=1).tolist() == data.sizes.tolist()
    assert orjson.loads(orjson.dumps(data.facts()))["train_rows"] == 140


def test_a_large_population_costs_nothing_until_asked() -> None:
    data = Synthetic(population=1_000_000)
    assert data.label_counts() is None
    assert len(data.train(999_999)) == 50
    with pytest.raises(IndexError, match="client 1000000 does not exist"):
        data.train(1_000_000)
    with pytest.raises(IndexError):
        data.train(-1)


def test_images_have_one_channel() -> None:
    data = Synthetic(shape="image", size=6, population=3)
    assert data.input_shape == (1, 6, 6)
    assert data.train(0).x.shape == (50, 1, 6, 6)


def test_heterogeneity_shifts_inputs_or_skews_labels() -> None:
    def spread(h: float) -> float:
        data = Synthetic(heterogeneity=h, samples=100)
        return float(torch.stack([data.train(k).x.mean(0) for k in range(50)]).std(0).mean())

    assert spread(0.0) < 0.15 < spread(0.5) < spread(2.0)

    def skew(h: float) -> float:
        counts = Synthetic(shape="image", heterogeneity=h, samples=100, population=50).label_counts()
        assert counts is not None
        return float(np.abs(counts / 100 - 0.1).sum(axis=1).mean())

    assert skew(0.0) < skew(1.0) < skew(10.0)


@pytest.mark.parametrize(("shape", "least"), [("linear", 0.6), ("image", 0.85)])
def test_the_task_can_be_learned(shape: str, least: float) -> None:
    data = Synthetic(shape=shape, population=100)
    x = torch.cat([data.train(k).x.flatten(1) for k in range(100)])
    y = torch.cat([data.train(k).y for k in range(100)])
    targets = torch.nn.functional.one_hot(y, 10).float()
    weights = torch.linalg.lstsq(torch.cat([x, torch.ones(len(x), 1)], 1), targets).solution
    test = data.test.x.flatten(1)
    guess = (torch.cat([test, torch.ones(len(test), 1)], 1) @ weights).argmax(1)
    assert (guess == data.test.y).float().mean() > least


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"shape": "images"}, "did you mean 'image'"),
        ({"heterogeneity": -1.0}, "heterogeneity: -1.0 is not allowed"),
        ({"noise": -1.0}, "noise: -1.0 is not allowed"),
        ({"holdout": 1.0}, "holdout: 1.0 is not a fraction"),
        ({"samples": 0}, "samples: 0 is not allowed"),
        ({"population": 0}, "population: 0 is not allowed"),
        ({"classes": 1}, "classes: 1 is not enough"),
    ],
)
def test_refusals(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        Synthetic(**setting)

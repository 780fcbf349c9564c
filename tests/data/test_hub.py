from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import require

from fedveil.core.errors import Refused
from fedveil.data.hub import convert, huggingface

datasets = require("datasets")


def images(rows: int = 6, shape: tuple[int, ...] = (4, 4)) -> Any:
    image = require("PIL.Image")
    pictures = [image.fromarray(np.full(shape, 51 * (i % 6), dtype=np.uint8)) for i in range(rows)]
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    columns = {"image": pictures, "label": [i % 2 for i in range(rows)]}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def table(**columns: Any) -> Any:
    return datasets.Dataset.from_dict(columns)


def test_images_become_channels_first_between_0_and_1() -> None:
    raw = convert(images(), name="pictures")
    assert raw.x.shape == (6, 1, 4, 4)
    assert torch.allclose(raw.x[:, 0, 0, 0], torch.arange(6) / 5)
    assert raw.classes == 3  # as the data set declares, though only two occur
    assert convert(images(shape=(4, 5, 3)), name="colour").x.shape == (6, 3, 4, 5)


def test_features_text_labels_owners_and_a_test_split() -> None:
    rows = table(v=[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], kind=["no", "yes", "no"], site=["x", "y", "x"])
    raw = convert(rows, rows.select([1]), name="t", x="v", y="kind", client="site", divide=2.0)
    assert raw.x.tolist() == [[0.5, 1.0], [1.5, 2.0], [2.5, 3.0]]
    assert raw.y.tolist() == [0, 1, 0]
    assert raw.group_names == ("x", "y")
    assert raw.test is not None
    assert raw.test.y.tolist() == [1]


def test_several_numeric_columns_and_a_regression() -> None:
    raw = convert(table(a=[1, 2], b=[0.5, 1.5], y=[0.1, 0.2]), name="t", x=["a", "b"], y="y")
    assert raw.x.tolist() == [[1, 0.5], [2, 1.5]]
    assert raw.classes == 0
    assert convert(table(a=[1, 2], y=[0, 1]), name="t", x="a", y="y").x.shape == (2, 1)


@pytest.mark.parametrize(
    ("columns", "change", "message"),
    [
        ({"v": [1.0], "y": [0]}, {"x": "vv"}, "x: the data set has no column 'vv'; did you mean 'v'"),
        ({"v": [1.0], "y": [0]}, {"y": "label"}, "y: the data set has no column 'label'"),
        ({"v": [1.0], "y": [0]}, {"client": "site"}, "client: the data set has no column 'site'"),
        ({"v": [[1.0, 2.0], [3.0]], "y": [0, 1]}, {}, "x: the rows of column 'v' differ in size or have gaps"),
        ({"v": ["text"], "y": [0]}, {}, "x: text is not a number"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: Any, change: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        convert(table(**columns), **({"name": "t", "x": "v", "y": "y"} | change))


def test_an_unknown_label_in_the_test_split_is_refused() -> None:
    rows, held = table(v=[1.0, 2.0], y=["a", "b"]), table(v=[1.0], y=["c"])
    with pytest.raises(Refused, match="test_split: it has the label 'c'"):
        convert(rows, held, name="t", x="v", y="y")


def fake_library(monkeypatch: pytest.MonkeyPatch, splits: dict[str, Any] | Exception) -> None:
    class FederatedDataset:
        def __init__(self, **_: Any) -> None: ...

        def load_split(self, split: str) -> Any:
            if isinstance(splits, Exception):
                raise splits
            return splits[split]

    monkeypatch.setitem(sys.modules, "flwr_datasets", types.SimpleNamespace(FederatedDataset=FederatedDataset))


def test_splits_come_through_flwr_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_library(monkeypatch, {"train": images(), "test": images(2)})
    raw = huggingface(dataset="somebody/pictures", test_split="test")
    assert raw.name == "pictures"
    assert len(raw) == 6
    assert raw.test is not None
    assert len(raw.test) == 2


def test_an_unreachable_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_library(monkeypatch, ConnectionError("Couldn't reach 'a/b' on the Hub\nlong story"))
    with pytest.raises(Refused, match=r"dataset: 'a/b' could not be loaded .* on the Hub\); check the name") as error:
        huggingface(dataset="a/b")
    assert "\n" not in str(error.value)


def test_a_missing_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(Refused, match=r"needs the package flwr-datasets, .* pip install 'fedveil\[flower\]'"):
        huggingface(dataset="a/b")

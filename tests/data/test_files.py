"""The data sets that come as files: MNIST's format, the hospitals, and those that scikit-learn carries."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedveil.core.errors import Refused
from fedveil.data.bundled import breast_cancer, digits
from fedveil.data.federate import federate
from fedveil.data.hospitals import heart_disease
from fedveil.data.idx import fashion_mnist, mnist


def test_idx_files_are_read(tiny_mnist: Path) -> None:
    raw = mnist(root=str(tiny_mnist))
    assert raw.x.shape == (30, 1, 28, 28)
    assert raw.test is not None
    assert raw.test.x.shape == (10, 1, 28, 28)
    assert 0 <= raw.x.min() < 0.01 < 0.99 < raw.x.max() <= 1
    assert raw.y.tolist() == [i % 10 for i in range(30)]
    assert raw.private_statistics is None


def test_unzipped_files_and_torchvisions_folder_will_do(tiny_mnist: Path) -> None:
    expected = mnist(root=str(tiny_mnist))
    folder = tiny_mnist / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for path in (tiny_mnist / "mnist").iterdir():
        (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    assert torch.equal(fashion_mnist(root=str(tiny_mnist)).x, expected.x)


def test_the_root_comes_from_the_environment(tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDVEIL_DATA", str(tiny_mnist))
    assert len(mnist()) == 30


IMAGES = "train-images-idx3-ubyte.gz"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data, idx: data[: len(data) // 2], "does not unzip .* download it again"),
        (lambda data, idx: b"not gzip", "does not unzip"),
        (lambda data, idx: data[:-6] + b"\0\1\2\3\4\5", "does not unzip"),
        (
            lambda data, idx: gzip.compress(b"\0\0\x08\x01" + gzip.decompress(data)[4:]),
            "starts with 00000801, not with",
        ),
        (lambda data, idx: gzip.compress(b""), "starts with nothing"),
        (lambda data, idx: gzip.compress(gzip.decompress(data)[:-1]), "holds 23519 values but declares 23520"),
        (lambda data, idx: gzip.compress(gzip.decompress(data) + b"x"), "holds 23521 values but declares 23520"),
        (lambda data, idx: gzip.compress(idx(np.zeros((30, 8, 8)))), "images of 8x8, not of 28x28"),
        (lambda data, idx: gzip.compress(idx(np.zeros((29, 28, 28)))), "29 images but .* 30 labels"),
    ],
)
def test_damaged_files_are_refused(tiny_mnist: Path, idx: Any, damage: Callable[..., bytes], message: str) -> None:
    path = tiny_mnist / "mnist" / IMAGES
    path.write_bytes(damage(path.read_bytes(), idx))
    with pytest.raises(Refused, match=message) as error:
        mnist(root=str(tiny_mnist))
    assert str(path) in str(error.value)


@pytest.mark.usefixtures("no_root")
def test_a_missing_root_or_file_says_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"data\.root: no data root is given; set data\.root or .* FEDVEIL_DATA"):
        mnist()
    with pytest.raises(Refused, match=r"nowhere is not a folder; set data\.root"):
        heart_disease(root=str(tmp_path / "nowhere"))
    with pytest.raises(
        Refused, match=r"does not hold the files wanted \(train-images.*t10k-labels.* FEDVEIL_DATA"
    ) as e:
        mnist(root=str(tmp_path))
    assert str(tmp_path / "mnist") in str(e.value)


@pytest.mark.mnist
@pytest.mark.parametrize("source", [mnist, fashion_mnist])
def test_the_real_images(source: Any, data_root: str) -> None:
    raw = source(root=data_root)
    assert raw.x.shape == (60_000, 1, 28, 28)
    assert raw.test.x.shape == (10_000, 1, 28, 28)
    assert raw.y.unique().tolist() == list(range(10))
    data = federate(raw, seed=0, population=100, partition="dirichlet", alpha=0.3)
    assert data.population == 100
    assert data.sizes.sum() + len(data.kept) == 60_000


HEADER = ",".join(f"X{i}" for i in range(1, 15))
ROW = "63,1,4,140,260,0,1,112,1,3,2,-9,-9,2"


@pytest.fixture
def hospitals(write: Callable[[str, str], str], tmp_path: Path) -> Callable[..., str]:
    def build(row: str = ROW) -> str:
        for name in ("cleveland", "hungarian", "switzerland", "va"):
            write(f"heart-disease/processed.{name}.data", f"{HEADER}\n{row}\n{row}\n")
        return str(tmp_path)

    return build


def test_a_patient_is_encoded_by_public_ranges_and_categories(hospitals: Callable[..., str]) -> None:
    raw = heart_disease(root=hospitals("50,1,4,?,0,-9,1,220,?,-9,-9.0,,7.0,3"))
    pressure, cholesterol, rate, oldpeak = [0.5, 1.0], [0.5, 1.0], [1.0, 0.0], [0.5, 1.0]
    sex, pain, sugar, ecg = [0, 1], [0, 0, 0, 1], [0, 0], [0, 1, 0]
    angina, slope, vessels, thal = [0, 0], [0, 0, 0], [0, 0, 0, 0], [0, 0, 1]
    expected = [0.5, *pressure, *cholesterol, *rate, *oldpeak]
    expected += [*sex, *pain, *sugar, *ecg, *angina, *slope, *vessels, *thal]
    assert raw.x[0].tolist() == expected
    assert raw.y.tolist() == [1] * 8
    assert raw.groups is not None
    assert raw.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            ROW.replace("63,1,4", "63,1,5"),
            r"row 1 of .* holds '5' in column 'X3' \(chest pain type\); allowed: 1, 2, 3",
        ),
        (ROW.replace("63,", "old,"), "column 'X1': row 1 of processed.cleveland.data holds 'old'"),
        (ROW.replace("63,", "?,"), "lacks a value in column 'X1'"),
        (ROW[:-1] + "?", "lacks a label in column 'X14'"),
        (ROW + ",7", "row 1 of .* has 15 values, but the header names 14"),
    ],
)
def test_a_damaged_patient_is_refused(hospitals: Callable[..., str], row: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        heart_disease(root=hospitals(row))


def test_the_real_hospitals(data_root: str) -> None:
    raw = heart_disease(root=data_root)
    assert raw.x.shape == (920, 32)
    assert 0 <= raw.x.min() <= raw.x.max() <= 1
    assert int(raw.y.sum()) == 920 - 411
    assert raw.groups is not None
    assert np.bincount(raw.groups).tolist() == [303, 294, 123, 200]
    data = federate(raw, seed=0)
    assert data.client_names() == ("cleveland", "hungarian", "switzerland", "va")
    assert data.private_statistics is None
    share = (data.sizes + np.diff(data.kept_starts)) / np.bincount(raw.groups)
    assert np.abs(share - 0.8).max() < 0.01


def test_digits_lie_between_0_and_1() -> None:
    raw = digits()
    assert raw.x.min() == 0
    assert raw.x.max() == 1
    assert raw.x.dtype == torch.float32


def test_public_bounds_hold_every_tumour_and_are_not_its_extremes() -> None:
    raw, measured = breast_cancer(), breast_cancer(scaling="none")
    assert raw.private_statistics is None
    assert 0 <= raw.x.min() <= raw.x.max() < 1
    assert torch.allclose(raw.x[:, 3] * 5000, measured.x[:, 3], rtol=1e-4)  # mean area
    assert torch.allclose(raw.x[:, 20] * 40, measured.x[:, 20], rtol=1e-4)  # worst radius


def test_pooled_scaling_is_declared() -> None:
    raw = breast_cancer(scaling="pooled")
    assert "no privacy budget pays" in str(raw.private_statistics)
    assert torch.allclose(raw.x.mean(0), torch.zeros(30), atol=1e-4)
    assert federate(raw, seed=0).private_statistics == raw.private_statistics
    with pytest.raises(Refused, match="scaling: 'pool' is unknown; did you mean 'pooled'"):
        breast_cancer(scaling="pool")


def test_many_files_are_read_alike(tmp_path):
    from fedveil.data.csv_file import csv
    from fedveil.data.npz_file import npz

    whole, part = tmp_path / "whole.csv", tmp_path / "part.csv"
    whole.write_text("age,size,y\n50,1,yes\n60,?,no\n")
    part.write_text("age,size,y\n40,2,yes\n")
    given = {"label": "y", "labels": ["no", "yes"], "gaps": ["size"], "bounds": {"age": [0, 100], "size": [0, 4]}}
    one, other = csv(path=str(whole), **given), csv(path=str(part), **given)
    assert one.columns == other.columns == ("age", "size", "size missing") and one.labels == other.labels
    assert one.y.tolist() == [1, 0] and other.y.tolist() == [1] and other.classes == 2
    with pytest.raises(Refused, match="gaps: row 2 of whole.csv has no value in column 'size'"):
        csv(path=str(whole), **given | {"gaps": []})
    with pytest.raises(Refused, match="labels: row 1 of part.csv has the label 'yes'"):
        csv(path=str(part), **given | {"labels": ["no", "maybe"]})
    with pytest.raises(Refused, match="labels"):
        csv(path=str(part), **given | {"labels": ["no", "no"]})
    for name, value in (("a", 1.0), ("b", 2.0)):
        np.savez(tmp_path / f"{name}.npz", x=np.full((3, 2), value), y=np.arange(3) % 2)
    raw = npz(path=str(tmp_path / "a.npz"), test=str(tmp_path / "b.npz"))
    assert raw.x.mean() == 1 and raw.test.x.mean() == 2
    with pytest.raises(Refused, match="test: there is no file"):
        npz(path=str(tmp_path / "a.npz"), test=str(tmp_path / "c.npz"))

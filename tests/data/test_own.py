"""A user's own files: npz and CSV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedveil.core.errors import Refused
from fedveil.data import load
from fedveil.data.csv_file import csv
from fedveil.data.npz_file import npz

Write = Callable[[str, str], str]

TABLE = """age, colour ,clinic,grade
30,red,north,low
60,blue,south,high
?,red,north,low
-9.0,,south,high
200,blue,north,low
"""
SETTING: dict[str, Any] = {"label": "grade", "categorical": ["colour"], "bounds": {"age": [0, 100]}, "client": "clinic"}


def test_a_table_is_encoded(write: Write) -> None:
    raw = csv(path=write("t.csv", TABLE), **SETTING)
    assert raw.name == "t"
    assert torch.allclose(
        raw.x,
        torch.tensor(
            [
                [0.3, 0.0, 0.0, 1.0],
                [0.6, 0.0, 1.0, 0.0],
                [0.5, 1.0, 0.0, 1.0],
                [0.5, 1.0, 0.0, 0.0],
                [1.0, 0.0, 1.0, 0.0],
            ]
        ),
    )
    assert raw.y.tolist() == [1, 0, 1, 0, 1]  # high, low
    assert raw.groups is not None
    assert raw.groups.tolist() == [0, 1, 0, 1, 0]
    assert raw.group_names == ("north", "south")
    assert raw.private_statistics is None


def test_pooled_scaling_is_declared_and_none_leaves_numbers(write: Write) -> None:
    setting = SETTING | {"bounds": None}
    pooled = csv(path=write("t.csv", TABLE), **setting, scaling="pooled")
    assert "mean and standard deviation" in str(pooled.private_statistics)
    age = torch.tensor([30.0, 60.0, 200.0])
    assert torch.allclose(pooled.x[[0, 1, 4], 0], (age - age.mean()) / age.std(correction=0))
    assert pooled.x[2, :2].tolist() == [0.0, 1.0]
    plain = csv(path=write("t.csv", TABLE), **setting, scaling="none")
    assert plain.x[:, 0].tolist() == [30, 60, 0, 0, 200]


def test_declared_categories_fix_the_columns(write: Write) -> None:
    setting = SETTING | {"categories": {"colour": ["blue", "green", "red"]}}
    assert csv(path=write("t.csv", TABLE), **setting).x.shape == (5, 5)


def test_numbers_as_categories_and_labels_match_in_any_spelling(write: Write) -> None:
    raw = csv(path=write("t.csv", "k,y\n1,10\n1.0,9\n2,9.0\n"), label="y", categories={"k": [1, 2]})
    assert raw.x.tolist() == [[1, 0], [1, 0], [0, 1]]
    assert raw.y.tolist() == [1, 0, 0]


def test_a_regression_a_semicolon_a_mark_and_a_dropped_column(write: Write) -> None:
    text = "\ufeffid;a;y\nx1;1;0,5\nx2;2;1,5\n".replace(",", ".")
    raw = csv(path=write("t.csv", text), label="y", target="number", delimiter=";", drop=["id"], bounds={"a": [0, 4]})
    assert raw.classes == 0
    assert raw.y.tolist() == [0.5, 1.5]
    assert raw.x.tolist() == [[0.25], [0.5]]


def test_a_second_file_is_the_test_set(write: Write) -> None:
    held = "age,colour,clinic,grade\n50,red,west,high\n"
    raw = csv(path=write("t.csv", TABLE), test=write("u.csv", held), **SETTING)
    assert raw.test is not None
    assert raw.test.x.tolist() == [[0.5, 0.0, 0.0, 1.0]]
    assert raw.test.y.tolist() == [0]


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        (
            TABLE.replace("60", "sixty"),
            {},
            "column 'age': row 2 of t.csv holds 'sixty', .* name the column in data.cat",
        ),
        (TABLE.replace("60", "inf"), {}, "column 'age': row 2 of t.csv holds 'inf'"),
        (TABLE.replace("south,high", "south,?"), {}, "label: row 2 of t.csv has no label in column 'grade'"),
        (TABLE.replace("north,low", ",low"), {}, "client: row 1 of t.csv names no client"),
        (TABLE, {"label": "garde"}, "label: t.csv has no column 'garde'; did you mean 'grade'"),
        (TABLE, {"client": "klinic"}, "client: t.csv has no column 'klinic'; did you mean 'clinic'"),
        (TABLE, {"drop": ["aeg"]}, "drop: t.csv has no column 'aeg'; did you mean 'age'"),
        (TABLE, {"categorical": ["color"]}, "categorical: 'color' is not an input column; did you mean 'colour'"),
        (TABLE, {"bounds": {"age": [0, 1], "agee": [0, 1]}}, "bounds: 'agee' is not an input column"),
        (TABLE, {"bounds": {"age": [0, 1], "grade": [0, 1]}}, "bounds: 'grade' is not an input column"),
        (TABLE, {"bounds": {"age": [0, 1], "colour": [0, 1]}}, "bounds: column 'colour' is categorical"),
        (
            TABLE,
            {"bounds": None},
            r"column 'age' has no public range; give 'data.bounds=\{age: \[low, high\]\}'",
        ),
        (TABLE, {"bounds": {"age": [5, 5]}}, r"bounds: \[5, 5\] for column 'age' is not a range"),
        (TABLE, {"bounds": {"age": [5]}}, "is not a range; give"),
        (TABLE, {"categories": {"colour": ["red"]}}, "row 2 of t.csv holds 'blue' in column 'colour'; allowed: red"),
        (TABLE, {"categories": {"colour": ["red", "red"]}}, "names a category twice"),
        (TABLE, {"scaling": "bound"}, "scaling: 'bound' is unknown"),
        (TABLE, {"target": "klass"}, "target: 'klass' is unknown"),
        (TABLE, {"delimiter": ", "}, "delimiter: ', ' is not one character"),
        (TABLE, {"drop": ["age", "colour"], "categorical": None, "bounds": None}, "no column left for inputs"),
        (TABLE, {"missing": []}, r"holds '\?', which is not a number; .* add the value to data.missing"),
        (TABLE + "1,red\n", {}, "row 6 of .* has 2 values, but the header names 4 columns"),
        ("age,age\n1,2\n", {}, "names a column twice or not at all"),
        ("age,grade\n", {}, "has no rows"),
        ("", {}, "has no rows"),
        ('age,grade\n"1,2\n', {}, "is not a table of UTF-8 text"),
    ],
)
def test_csv_refusals(write: Write, text: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        csv(path=write("t.csv", text), **(SETTING | change))


def test_csv_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="there is no file"):
        csv(path=str(tmp_path / "none.csv"), label="y")
    with pytest.raises(Refused, match="cannot be read"):
        csv(path=str(tmp_path), label="y")
    (tmp_path / "latin.csv").write_bytes(b"a,y\n\xe9,1\n")
    with pytest.raises(Refused, match="not a table of UTF-8 text"):
        csv(path=str(tmp_path / "latin.csv"), label="y")


@pytest.mark.parametrize(
    ("held", "change", "message"),
    [
        ("age,colour,clinic,grade\n5,red,a,middle\n", {}, "test: row 1 of u.csv has the label 'middle'"),
        ("age,colour,clinic,grade\n5,pink,a,low\n", {}, "row 1 of u.csv holds 'pink' in column 'colour'"),
        ("age,clinic,grade\n5,a,low\n", {}, "u.csv has no column 'colour'"),
        (TABLE, {"scaling": "pooled", "bounds": None}, "not carried over to a test file"),
    ],
)
def test_test_file_refusals(write: Write, held: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        csv(path=write("t.csv", TABLE), test=write("u.csv", held), **(SETTING | change))


def test_a_gap_only_in_the_test_file_is_refused(write: Write) -> None:
    paths = write("t.csv", "a,y\n1,0\n2,1\n"), write("u.csv", "a,y\n?,0\n")
    with pytest.raises(Refused, match=r"u\.csv lacks values in column 'a', which is complete in the training file"):
        csv(path=paths[0], test=paths[1], label="y", bounds={"a": [0, 4]})


@pytest.fixture
def arrays(tmp_path: Path) -> str:
    path = tmp_path / "mine.npz"
    pixels = np.arange(60 * 4, dtype=np.uint8).reshape(60, 1, 2, 2)
    np.savez(path, x=pixels, y=np.arange(60) % 3, who=np.arange(60) % 4, tx=pixels[:5], ty=np.arange(5) % 3)
    return str(path)


def test_an_npz_file_is_read(arrays: str) -> None:
    raw = npz(path=arrays, test_x="tx", test_y="ty", client="who", divide=255)
    assert raw.name == "mine"
    assert raw.x.shape == (60, 1, 2, 2)
    assert raw.x.max() <= 1
    assert raw.classes == 3
    assert raw.test is not None
    assert len(raw.test) == 5
    assert raw.group_names == ("0", "1", "2", "3")
    assert load("npz", seed=0, path=arrays, client="who").population == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": "xx"}, "x: the file has no array 'xx'; did you mean 'x'"),
        ({"client": "woh"}, "client: the file has no array 'woh'; did you mean 'who'"),
        ({"test_x": "tx"}, "only one of the two is given"),
        ({"divide": 0.0}, "divide: 0.0 is not a positive number"),
        ({"path": "nowhere.npz"}, "path: there is no file nowhere.npz"),
    ],
)
def test_npz_refusals(arrays: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        npz(**({"path": arrays} | change))


def test_npz_never_unpickles(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    np.savez(path, x=np.array([{"a": 1}, None], dtype=object), y=np.arange(2))
    with pytest.raises(Refused, match="not an npz file of plain numbers"):
        npz(path=str(path))
    for name, content in (("text.npz", b"hello"), ("zip.npz", b"PK\x03\x04broken"), ("empty.npz", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(Refused, match="not an npz file of plain numbers"):
            npz(path=str(tmp_path / name))
    np.save(tmp_path / "single.npy", np.arange(3))
    with pytest.raises(Refused, match="holds a single array"):
        npz(path=str(tmp_path / "single.npy"))

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def data_root() -> str:
    root = os.environ.get("FEDVEIL_DATA")
    if not root:
        pytest.skip("needs the data sets under the data root FEDVEIL_DATA")
    return root


@pytest.fixture
def no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDVEIL_DATA", raising=False)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], str]:
    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def idx() -> Callable[[np.ndarray], bytes]:
    """Write an array in the idx format."""
    return _idx


def _idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


@pytest.fixture
def tiny_mnist(tmp_path: Path) -> Path:
    """A root with 30 + 10 images in MNIST's format."""
    folder = tmp_path / "root" / "mnist"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, rows in (("train", 30), ("t10k", 10)):
        images = rng.integers(0, 256, (rows, 28, 28))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(_idx(images)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(_idx(np.arange(rows) % 10)))
    return tmp_path / "root"

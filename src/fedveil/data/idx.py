"""MNIST and Fashion-MNIST from their idx files, parsed by hand and checked byte for byte.

An idx file is: two zero bytes, one byte for the type (8: unsigned byte), one byte for the number of
dimensions, each dimension as a big-endian 32-bit number, then the values.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Refused
from fedveil.core.federation import Examples
from fedveil.data.raw import AnyArray, Raw
from fedveil.data.root import find

FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def mnist(*, root: str | None = None) -> Raw:
    """MNIST: hand-written digits, 60,000 + 10,000 images of 28x28, scaled from 0..255 to 0..1."""
    return _images("mnist", find(root, ("mnist", "MNIST/raw"), FILES))


def fashion_mnist(*, root: str | None = None) -> Raw:
    """Fashion-MNIST: pieces of clothing in ten classes, in the format of MNIST."""
    return _images("fashion_mnist", find(root, ("fashion-mnist", "FashionMNIST/raw"), FILES))


def read_idx(path: Path, dimensions: int) -> AnyArray:
    """The unsigned bytes of one idx file (gzipped or not), as an array of ``dimensions`` dimensions."""
    again = "the file is damaged; download it again"
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Refused(f"data.root: {path} does not unzip ({error}); {again}") from error
    except OSError as error:
        raise Refused(f"data.root: {path} cannot be read ({error.strerror}); make it readable") from error
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes([0, 0, 8, dimensions]):
        raise Refused(
            f"data.root: {path} starts with {data[:4].hex() or 'nothing'}, not with the idx mark "
            f"{bytes([0, 0, 8, dimensions]).hex()}; {again}"
        )
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", dimensions, 4))
    if len(data) - header != math.prod(shape):
        raise Refused(
            f"data.root: {path} holds {len(data) - header} values but declares {math.prod(shape)} "
            f"({' x '.join(map(str, shape))}); {again}"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _images(name: str, paths: list[Path]) -> Raw:
    x, y = _part(paths[0], paths[1])
    test_x, test_y = _part(paths[2], paths[3])
    return Raw(name=name, x=x, y=y, classes=10, test=Examples(test_x, test_y))


def _part(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    pixels, numbers = read_idx(images, 3), read_idx(labels, 1)
    if pixels.shape[1:] != (28, 28):
        raise Refused(
            f"data.root: {images} holds images of {pixels.shape[1]}x{pixels.shape[2]}, not of 28x28; put the "
            "right file there"
        )
    if len(pixels) != len(numbers):
        raise Refused(
            f"data.root: {images} holds {len(pixels)} images but {labels.name} {len(numbers)} labels; put "
            "two files there that belong together"
        )
    x = torch.from_numpy(pixels.astype(np.float32)).div_(255).unsqueeze(1)
    return x, torch.from_numpy(numbers.astype(np.int64))

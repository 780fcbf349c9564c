"""Random streams that belong to a place in the run, so that packing and resuming never change a result.

A stream is named by the run's seed and a path such as ``("batches", round, client)``. Two different paths give
independent streams; the same path gives the same numbers on every engine, runtime and resumed run. These streams
are for experiments and for everything that is not a secret; secret noise and keys come from the operating system.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np


def key(seed: int, *path: str | int) -> int:
    """A 128-bit number that stands for one place in the run.

    >>> key(0, "batches", 3, 7) == key(0, "batches", 3, 7) != key(0, "batches", 37)
    True
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (int(seed), *path))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def stream(seed: int, *path: str | int) -> np.random.Generator:
    """The generator of one place in the run: SFC64 (more than twice as fast as Philox), keyed by the place."""
    return np.random.Generator(np.random.SFC64(key(seed, *path)))


def drawable_on_device(generators: Sequence[np.random.Generator]) -> bool:
    """Whether a CUDA device may draw for these generators, each by a key of 64 bits.

    Secret ones are drawn in full where they are: such a key could be found by trying.
    """
    seeded = all(isinstance(g.bit_generator, np.random.SFC64) for g in generators)
    return seeded and importlib.util.find_spec("triton") is not None


def device_key(generator: np.random.Generator) -> int:
    """The next 64 bits of a stream, as the key of a generator on a device."""
    return int(np.uint64(generator.bit_generator.random_raw()).view(np.int64))


def device_keys(generator: np.random.Generator, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """What :func:`device_key` gives in as many calls."""
    return np.asarray(generator.bit_generator.random_raw(count), dtype=np.uint64).view(np.int64)


def torch_seed(seed: int, *path: str | int) -> int:
    """A seed for torch's own generators, for models that draw numbers themselves (initial weights, dropout)."""
    return key(seed, *path) & (2**63 - 1)

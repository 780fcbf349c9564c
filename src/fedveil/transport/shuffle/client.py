"""The client's side: cut reports into parts, seal each, and choose when it leaves (SPEC 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from fedveil.transport.shuffle.messages import Part
from fedveil.transport.shuffle.sealing import seal

Times = np.ndarray[Any, np.dtype[np.float64]]


def parts(reports: Sequence[bytes], key: X25519PublicKey, round: int) -> Iterator[bytes]:
    """One client's messages, a report for each position."""
    for position, report in enumerate(reports):
        yield Part(round, position, seal(report, key, round, position)).encode()


def departures(own: Times, slowest: float, delay: float, count: int, rng: np.random.Generator) -> Times:
    """When each of ``count`` parts of each client leaves, shape (clients, count).

    A client that was ready after ``own`` seconds waits slowest − own + U(0, delay), a new draw for each part, so that
    speed tells nobody who it is; one that is slower than ``slowest`` cannot wait, and stands out where it is taken.
    """
    return np.maximum(own, slowest)[:, None] + rng.uniform(0.0, delay, (len(own), count))

"""Where secret noise comes from (SPEC 4, ``rng: secure | seeded``).

``secure`` draws from ChaCha20 with a 256-bit key from the operating system: nobody can draw the same noise again.
``seeded`` draws from the run's own streams: repeatable, so anyone who knows the seed can subtract the noise; it is
for experiments, and the privacy statement says so.
"""

from __future__ import annotations

import secrets
from typing import Literal

import numpy as np
from randomgen import ChaCha

from fedveil.core.errors import Refused, one_of
from fedveil.core.streams import stream

Rng = Literal["secure", "seeded"]


def secure_generator() -> np.random.Generator:
    """A generator that nobody can repeat; every call gives a fresh one.

    >>> secure_generator().random() != secure_generator().random()
    True
    """
    return np.random.Generator(ChaCha(key=secrets.randbits(256), rounds=20))


def generator(rng: str, seed: int | None = None, *path: str | int) -> np.random.Generator:
    """The generator that the setting ``rng`` asks for; ``seed`` and ``path`` count only for ``seeded``."""
    one_of("rng", rng, ("secure", "seeded"))
    if rng == "secure":
        return secure_generator()
    if seed is None:
        raise Refused("rng: 'seeded' has no seed; give one, or use rng: secure")
    return stream(seed, *path)

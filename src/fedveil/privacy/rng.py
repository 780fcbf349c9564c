"""Where secret noise comes from (SPEC 4, ``rng: secure | seeded``).

``secure`` draws from ChaCha20 with a 256-bit key from the operating system: nobody can draw the same noise again.
``seeded`` draws from the run's own streams: repeatable, so anyone who knows the seed can subtract the noise; it is
for experiments, and the privacy statement says so.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedveil.core.errors import Refused, one_of
from fedveil.core.secret import secure_generator
from fedveil.core.streams import stream

Rng = Literal["secure", "seeded"]


def generator(rng: str, seed: int | None = None, *path: str | int) -> np.random.Generator:
    """The generator that the setting ``rng`` asks for; ``seed`` and ``path`` count only for ``seeded``."""
    one_of("rng", rng, ("secure", "seeded"))
    if rng == "secure":
        return secure_generator()
    if seed is None:
        raise Refused("rng: 'seeded' has no seed; give one, or use rng: secure")
    return stream(seed, *path)


__all__ = ["Rng", "generator", "secure_generator"]

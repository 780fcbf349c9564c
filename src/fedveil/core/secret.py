"""Secret random numbers, from the operating system: for noise in earnest, and for orders that nobody may know."""

from __future__ import annotations

import secrets

import numpy as np
from randomgen import ChaCha


def secure_generator() -> np.random.Generator:
    """A generator that nobody can repeat (ChaCha20 under a fresh 256-bit key); every call gives another one.

    >>> secure_generator().random() != secure_generator().random()
    True
    """
    return np.random.Generator(ChaCha(key=secrets.randbits(256), rounds=20))

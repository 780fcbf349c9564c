from __future__ import annotations

import numpy as np
import pytest

from fedveil.core.errors import Refused
from fedveil.core.streams import stream
from fedveil.privacy.rng import generator, secure_generator


def test_secure_generators_never_repeat():
    first, second = (secure_generator().random(1000) for _ in range(2))
    assert not np.intersect1d(first, second).size
    assert type(secure_generator().bit_generator).__name__ == "ChaCha"


def test_secure_numbers_are_uniform_and_normal():
    rng = secure_generator()
    normal = rng.standard_normal(200_000)
    assert abs(normal.mean()) < 5 / np.sqrt(200_000)
    assert abs(normal.var() - 1) < 5 * np.sqrt(2 / 200_000)


def test_seeded_generators_are_the_runs_streams():
    assert np.array_equal(generator("seeded", 3, "noise", 1).random(5), stream(3, "noise", 1).random(5))
    with pytest.raises(Refused, match="seed"):
        generator("seeded")
    with pytest.raises(Refused, match="rng"):
        generator("quick", 0)

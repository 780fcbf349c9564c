from __future__ import annotations

from collections.abc import Callable

import pytest

from fedveil.core.flat import Layout
from fedveil.core.stage import Context
from fedveil.core.streams import stream


@pytest.fixture
def at() -> Callable[..., Context]:
    """A context for so many rows."""

    def build(rows: int = 1, layout: Layout | None = None, seed: int = 0) -> Context:
        streams = [stream(seed, "test", row) for row in range(rows)]
        return Context(3, layout or Layout((), ()), list(range(rows)), streams, slot="on_delta")

    return build

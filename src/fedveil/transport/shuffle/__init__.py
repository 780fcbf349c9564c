"""Uploads cut into parts that nobody can link: see :mod:`fedveil.transport.shuffle.journey`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedveil.transport.shuffle.journey import Shuffle, Split

__all__ = ["Shuffle", "Split"]


def __getattr__(name: str) -> Any:
    """Import the transport when it is first used: the shuffler's own process needs no torch, and starts at once."""
    if name in __all__:
        return getattr(importlib.import_module("fedveil.transport.shuffle.journey"), name)
    raise AttributeError(f"module 'fedveil.transport.shuffle' has no attribute {name!r}")

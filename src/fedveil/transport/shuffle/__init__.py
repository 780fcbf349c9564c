"""Uploads cut into parts that nobody can link: see :mod:`fedveil.transport.shuffle.journey`."""

from fedveil.transport.shuffle.journey import Shuffle, Split

__all__ = ["Shuffle", "Split"]

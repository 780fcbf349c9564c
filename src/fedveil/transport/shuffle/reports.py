"""Uploads as reports in bytes, by position, and back: one bit per value where values are one of two (SPEC 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveil.core.signal import Signal

Rows = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Codec:
    """One channel's uploads, cut at ``sizes``: what a report about each piece looks like.

    ``levels`` are the two values of each coordinate (bits travel), or None (float numbers travel).
    """

    sizes: tuple[int, ...]
    levels: tuple[Tensor, Tensor] | None
    dtype: torch.dtype

    @property
    def lengths(self) -> list[int]:
        """Bytes of a report about each piece."""
        if self.levels is not None:
            return [-(-size // 8) for size in self.sizes]
        return [size * self.dtype.itemsize for size in self.sizes]

    def encode(self, signal: Signal) -> list[list[bytes]]:
        """Reports of each client, a list of pieces for each."""
        rows = self._rows(signal)
        if self.levels is not None and max(self.sizes) == 1:
            table = [b"\x00", b"\x01"]
            return [[table[bit] for bit in row] for row in rows.astype(np.uint8).tolist()]
        pieces = np.split(rows, np.cumsum(self.sizes)[:-1], axis=1)
        if self.levels is not None:
            pieces = [np.packbits(piece, axis=1, bitorder="little") for piece in pieces]
        return [[piece[i].tobytes() for piece in pieces] for i in range(len(rows))]

    def _rows(self, signal: Signal) -> Rows:
        value = signal.value if self.levels is None else signal.value == self.levels[1]
        return value.cpu().numpy()

    def readable(self, report: bytes) -> bool:
        """Whether a report is made of finite numbers, as any bits are; one that is not would spoil a whole sum."""
        if self.levels is not None:
            return True
        return bool(np.isfinite(np.frombuffer(report, dtype=_NUMPY[self.dtype])).all())

    def total(self, piece: int, reports: Sequence[bytes]) -> Rows:
        """What reports about one piece add up to in each coordinate: upper values counted, or numbers summed.

        Numbers are put in order first, so that the sum does not depend on the order in which they came.
        """
        size = self.sizes[piece]
        raw = np.frombuffer(b"".join(reports), dtype=np.uint8).reshape(len(reports), -1)
        if self.levels is not None:
            bits = np.unpackbits(raw, axis=1, count=size, bitorder="little")
            return np.asarray(bits.sum(axis=0, dtype=np.float64))
        return _ordered_sum(raw.copy().view(_NUMPY[self.dtype]))

    def summed(self, signal: Signal, arrived: np.ndarray[Any, np.dtype[np.bool_]]) -> Rows:
        """The same for all pieces at once, of the values whose pieces arrived, without any bytes."""
        mask = arrived if arrived.shape[1] == signal.dim else np.repeat(arrived, self.sizes, axis=1)
        if self.levels is not None:
            return np.asarray(np.sum(self._rows(signal) & mask, axis=0, dtype=np.float64))
        return _ordered_sum(np.where(mask, self._rows(signal), 0))

    def mean(self, totals: Rows, counts: Rows) -> Tensor:
        """The mean over what arrived, shape (1, dim); zero, which is no move, where nothing did."""
        share = torch.from_numpy(totals / np.maximum(counts, 1))
        if self.levels is not None:
            low, high = (level.double().cpu().reshape(-1) for level in self.levels)
            share = low + (high - low) * share
        return torch.where(torch.from_numpy(counts > 0), share, 0.0).to(self.dtype)[None, :]


_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def _ordered_sum(rows: Rows) -> Rows:
    return np.asarray(np.sort(rows, axis=0).sum(axis=0, dtype=np.float64))

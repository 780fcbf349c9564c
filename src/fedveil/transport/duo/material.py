"""Correlated randomness: what each server draws from its own seed, and how the dealer mends what the second drew.

For every kind there is one entry, used by all three: what a server draws (the first one also draws its half of the
result), what the dealer adds for the second server so that the halves fit, and what shape that has. A kind's numbers
are public: sizes alone. ⊕-shares of bits are packed eight to a byte; other shares add up modulo 2^64, 2^8 or 2^192.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.transport.duo import wide
from fedveil.transport.duo.stream import Stream
from fedveil.transport.masks.rejected import Malformed

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]
State = dict[str, Array]
"""What a dealer remembers within a round: the mask of the uploads."""


@dataclass(frozen=True)
class Kind:
    """``draw``: each server's own part; ``mend``: what makes the second server's part fit; ``shapes``: of that."""

    draw: Callable[[Stream, bool, Sizes], list[Array]]
    mend: Callable[[State, list[Array], list[Array], Sizes], list[Array]]
    shapes: Callable[[Sizes], list[tuple[Any, Sizes]]]


def _ring(width: int) -> Any:
    return {1: np.uint8, 8: np.uint64, wide.SIZE: object}[width]


def words(stream: Stream, shape: Sizes, width: int) -> Array:
    """Uniform numbers of a ring, by its bytes."""
    if width == wide.SIZE:
        return wide.load(stream.bytes(int(np.prod(shape)) * wide.SIZE).tobytes()).reshape(shape)
    return stream.words(shape, _ring(width))


def less(a: Array, b: Array) -> Array:
    """The difference in their ring."""
    found: Array = np.subtract(a, b)
    return found % wide.RING if a.dtype == object else found


def unpacked(bits: Array, count: int, width: int) -> Array:
    """Packed bits as numbers of a ring."""
    flat = np.unpackbits(bits, count=count, bitorder="little")
    return wide.wide(flat.tolist()) if width == wide.SIZE else flat.astype(_ring(width), copy=False)


def _eighth(bits: int) -> int:
    return -(-bits // 8)


def _and(stream: Stream, first: bool, sizes: Sizes) -> list[Array]:
    return [stream.bytes(sizes[0]) for _ in range(3 if first else 2)]


def _and_mend(_: State, one: list[Array], two: list[Array], sizes: Sizes) -> list[Array]:
    return [((one[0] ^ two[0]) & (one[1] ^ two[1])) ^ one[2]]


def _cross(stream: Stream, first: bool, sizes: Sizes) -> list[Array]:
    """For the product of a bit that the first server knows and one that the second knows."""
    return [stream.bytes(sizes[0]) for _ in range(2 if first else 1)]


def _cross_mend(_: State, one: list[Array], two: list[Array], sizes: Sizes) -> list[Array]:
    return [(one[0] & two[0]) ^ one[1]]


def _bit(stream: Stream, first: bool, sizes: Sizes) -> list[Array]:
    """Random bits in both kinds of shares."""
    count, width = sizes
    drawn = [stream.bytes(_eighth(count))]
    return [*drawn, words(stream, (count,), width)] if first else drawn


def _bit_mend(_: State, one: list[Array], two: list[Array], sizes: Sizes) -> list[Array]:
    return [less(unpacked(one[0] ^ two[0], *sizes), one[1])]


def _product(stream: Stream, first: bool, sizes: Sizes) -> list[Array]:
    count, width = sizes
    return [words(stream, (count,), width) for _ in range(3 if first else 2)]


def _product_mend(_: State, one: list[Array], two: list[Array], sizes: Sizes) -> list[Array]:
    return [less((one[0] + two[0]) * (one[1] + two[1]), one[2])]


def _mask(stream: Stream, first: bool, sizes: Sizes) -> list[Array]:
    """A mask A of all rows, and the products of its rows with each other."""
    rows, length = sizes
    drawn = [stream.words((rows, length))]
    return [*drawn, stream.words((rows, rows))] if first else drawn


def _mask_mend(state: State, one: list[Array], two: list[Array], sizes: Sizes) -> list[Array]:
    state["mask"] = one[0] + two[0]
    return [gram(state["mask"], state["mask"]) - one[1]]


def gram(a: Array, b: Array) -> Array:
    """Products of all rows of a with all rows of b, modulo 2^64."""
    return np.stack([np.einsum("ij,j->i", a, row) for row in b], axis=1)


def _scale(stream: Stream, first: bool, sizes: Sizes) -> list[Array]:
    """Factors β for the first rows of the mask, and β_i·A_i."""
    rows, length = sizes
    drawn = [stream.words((rows,))]
    return [*drawn, stream.words((rows, length))] if first else drawn


def _scale_mend(state: State, one: list[Array], two: list[Array], sizes: Sizes) -> list[Array]:
    return [(one[0] + two[0])[:, None] * state["mask"][: sizes[0]] - one[1]]


def _mix(stream: Stream, first: bool, sizes: Sizes) -> list[Array]:
    """Factors γ for the first rows of the mask, and Σ γ_i·A_i."""
    rows, length = sizes
    drawn = [stream.words((rows,))]
    return [*drawn, stream.words((length,))] if first else drawn


def _mix_mend(state: State, one: list[Array], two: list[Array], sizes: Sizes) -> list[Array]:
    return [np.einsum("i,ij->j", one[0] + two[0], state["mask"][: sizes[0]]) - one[1]]


def _select(stream: Stream, first: bool, sizes: Sizes) -> list[Array]:
    """Bits β in packed shares, a mask A; β as numbers, and β·A."""
    (count,) = sizes
    drawn = [stream.bytes(_eighth(count)), stream.words(count)]
    return [*drawn, stream.words(count), stream.words(count)] if first else drawn


def _select_mend(_: State, one: list[Array], two: list[Array], sizes: Sizes) -> list[Array]:
    bits = unpacked(one[0] ^ two[0], sizes[0], 8)
    return [bits - one[2], bits * (one[1] + two[1]) - one[3]]


def _shift(stream: Stream, first: bool, sizes: Sizes) -> list[Array]:
    """A mask r, r without its lowest bits, and its highest bit."""
    return [stream.words(sizes[0]) for _ in range(3 if first else 1)]


def _shift_mend(_: State, one: list[Array], two: list[Array], sizes: Sizes) -> list[Array]:
    r = one[0] + two[0]
    return [(r >> np.uint64(sizes[1])) - one[1], (r >> np.uint64(63)) - one[2]]


KINDS: dict[str, Kind] = {
    "and": Kind(_and, _and_mend, lambda s: [(np.uint8, (s[0],))]),
    "cross": Kind(_cross, _cross_mend, lambda s: [(np.uint8, (s[0],))]),
    "bit": Kind(_bit, _bit_mend, lambda s: [(_ring(s[1]), (s[0],))]),
    "product": Kind(_product, _product_mend, lambda s: [(_ring(s[1]), (s[0],))]),
    "mask": Kind(_mask, _mask_mend, lambda s: [(np.uint64, (s[0], s[0]))]),
    "scale": Kind(_scale, _scale_mend, lambda s: [(np.uint64, (s[0], s[1]))]),
    "mix": Kind(_mix, _mix_mend, lambda s: [(np.uint64, (s[1],))]),
    "select": Kind(_select, _select_mend, lambda s: [(np.uint64, (s[0],)), (np.uint64, (s[0],))]),
    "shift": Kind(_shift, _shift_mend, lambda s: [(np.uint64, (s[0],)), (np.uint64, (s[0],))]),
}


def dump(arrays: list[Array]) -> bytes:
    """Arrays one after the other."""
    return b"".join(wide.dump(a) if a.dtype == object else a.tobytes() for a in arrays)


def load(kind: str, sizes: Sizes, data: bytes) -> list[Array]:
    """What :func:`dump` wrote of this kind; :class:`Malformed` if it has another length."""
    found, start = [], 0
    for dtype, shape in KINDS[kind].shapes(sizes):
        size = int(np.prod(shape)) * (wide.SIZE if dtype is object else np.dtype(dtype).itemsize)
        part = data[start : start + size]
        if len(part) != size:
            raise Malformed(f"correlated randomness of {len(data)} bytes is too short")
        found.append((wide.load(part) if dtype is object else np.frombuffer(part, dtype)).reshape(shape))
        start += size
    if start != len(data):
        raise Malformed(f"correlated randomness of {len(data)} bytes, not {start}")
    return found


Mend = Callable[[str, Sizes], bytes]
"""Where the second server has the dealer's part of a kind from: a file, or the dealer itself."""


class Material:
    """One server's correlated randomness for one stage of one round, used in order and once."""

    def __init__(self, seed: bytes, label: str, mend: Mend | None = None) -> None:
        self.first, self._stream, self._mend = mend is None, Stream(seed, label), mend

    def take(self, kind: str, *sizes: int) -> list[Array]:
        """The next of this kind."""
        drawn = KINDS[kind].draw(self._stream, self.first, sizes)
        return drawn if self._mend is None else [*drawn, *load(kind, sizes, self._mend(kind, sizes))]

"""One server among two: what it can do with shares (SPEC 7.2).

Shares of numbers add up modulo 2^64 (or 2^8, or 2^192), shares of bits modulo 2, packed eight to a byte. Every message
is uniform to the one who receives it: only ``reveal`` opens a value.
"""

from __future__ import annotations

import numpy as np

from fedveil.transport.duo import wide
from fedveil.transport.duo.link import Link
from fedveil.transport.duo.material import Array, Material, less, unpacked
from fedveil.transport.duo.stream import Bytes, Words
from fedveil.transport.duo.wide import Wide
from fedveil.transport.masks.rejected import Malformed


class Party:
    """``first``: S1, which learns what is opened; else S2. Both run the same program."""

    def __init__(self, first: bool, link: Link, material: Material) -> None:
        self.first, self.link, self.material = first, link, material

    def exchange(self, kind: str, body: bytes) -> bytes:
        """Send, and receive what the other sends at this place: both at once, as links take what is not read yet."""
        self.link.send(kind, body)
        return self.link.receive(kind)

    def joined(self, share: Array) -> Array:
        """The value of masked shares: the sum in their ring, or of bits their ⊕."""
        if share.dtype == object:
            mine = share.reshape(-1)
            other = wide.load(self._same(wide.dump(mine)))
            return np.asarray((mine + other) % wide.RING).reshape(share.shape)
        found: Array = share + np.frombuffer(self._same(share.tobytes()), share.dtype).reshape(share.shape)
        return found

    def toggled(self, share: Bytes) -> Bytes:
        """The value of masked bits."""
        return share ^ np.frombuffer(self._same(share.tobytes()), np.uint8).reshape(share.shape)

    def _same(self, body: bytes) -> bytes:
        found = self.exchange("masked", body)
        if len(found) != len(body):
            raise Malformed(f"{len(found)} masked bytes, not {len(body)}")
        return found

    def both(self, x: Bytes, y: Bytes) -> Bytes:
        """⊕-shares of x & y."""
        a, b, c = (m.reshape(x.shape) for m in self.material.take("and", x.size))
        d, e = self.toggled(np.stack([x ^ a, y ^ b]))
        found: Bytes = (d & b) ^ (e & a) ^ c
        return found ^ (d & e) if self.first else found

    def crossed(self, known: Bytes) -> Bytes:
        """⊕-shares of x & y where S1 knows x and S2 knows y; each calls with what it knows."""
        mine, fit = (m.reshape(known.shape) for m in self.material.take("cross", known.size))
        there = np.frombuffer(self._same((known ^ mine).tobytes()), np.uint8).reshape(known.shape)
        return (there & known) ^ fit if self.first else (mine & there) ^ fit

    def numbers(self, bits: Bytes, count: int, width: int = 8) -> Array:
        """Shares of bits as shares of numbers of a ring, by its bytes (1, 8 or 24)."""
        mask, fit = self.material.take("bit", count, width)
        c = unpacked(self.toggled(bits ^ mask), count, width)
        if width == wide.SIZE:
            return ((c if self.first else 0) + (1 - 2 * c) * fit) % wide.RING
        turned = (1 - c - c).astype(c.dtype) * fit
        return turned + c if self.first else turned

    def product(self, x: Array, y: Array) -> Array:
        """Shares of x·y."""
        width = wide.SIZE if x.dtype == object else x.itemsize
        a, b, c = (m.reshape(x.shape) for m in self.material.take("product", x.size, width))
        d, e = self.joined(np.stack([less(x, a), less(y, b)]))
        found: Array = d * b + e * a + c
        if self.first:
            found = found + d * e
        return np.asarray(found % wide.RING) if width == wide.SIZE else found

    def lifted(self, share: Words) -> Wide:
        """Shares modulo 2^192 of integers between −2^62 and 2^62, from shares modulo 2^64.

        With 2^62 added, the sum of both shares is below 2^63, and passes 2^64 just if either has its highest bit.
        """
        flat = share.reshape(-1) + np.uint64(1 << 62) * np.uint64(self.first)
        high = np.packbits((flat >> np.uint64(63)).astype(np.uint8), bitorder="little")
        passed = self.numbers(high ^ self.crossed(high), flat.size, wide.SIZE)
        mine = wide.wide(flat.tolist())
        found: Wide = (mine - passed * (1 << 64) - ((1 << 62) if self.first else 0)) % wide.RING
        return found.reshape(share.shape)

    def shifted(self, share: Wide, bits: int) -> Wide:
        """Shares of x/2^bits, to one unit; x is small beside 2^192, or this fails with probability |x|/2^191."""
        return wide.wide((int(v) >> bits) if self.first else -(-int(v) % wide.RING >> bits) for v in share.reshape(-1))

    def halved(self, share: Words, bits: int) -> Words:
        """Shares of x/2^bits, to one unit, of integers between −2^62 and 2^62 modulo 2^64."""
        mask, low, top = self.material.take("shift", share.size, bits)
        opened = self.joined(share + mask + np.uint64(1 << 62) * np.uint64(self.first))
        wrapped = np.uint64(1) - (opened >> np.uint64(63))  # with the mask's highest bit: the sum passed 2^64
        found: Words = wrapped * top * np.uint64(1 << (64 - bits)) - low
        if self.first:
            found = found + (opened >> np.uint64(bits)) - np.uint64(1 << (62 - bits))
        return found

    def reveal(self, name: str, share: Wide) -> list[int] | None:
        """Open integers to S1, which notes them; None at S2."""
        if not self.first:
            self.link.send(f"reveal:{name}", wide.dump(share))
            return None
        body = self.link.receive(f"reveal:{name}")
        if len(body) != wide.SIZE * share.size:
            raise Malformed(f"a share of {name} with {len(body)} bytes")
        return wide.signed((share + wide.load(body)) % wide.RING)

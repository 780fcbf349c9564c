"""The entropy H = −Σ p ln p under encryption, as the source has it: a Chebyshev polynomial of degree 31 (SPEC 7.2).

The shares p_i = d_i/S stand on shares modulo 2^192. S2 masks them, S1 encrypts what it sees in the deep ring, S2
takes its masks off again, exactly, and computes −p ln p in all slots at once (error under 1e-3). The sum of the slots
is one constant coefficient, whose decryption by two ends in shares again; only H rounded to 2^−10 is opened, to S1.
S1 made the ciphertext that S2 computed with, so that what comes of it would tell of S2's masks: before a half of it
goes back, S2 adds a fresh encryption of zero.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from fedveil.core.errors import Refused
from fedveil.transport.duo import wide
from fedveil.transport.duo.bits import digits
from fedveil.transport.duo.dealer import ServerKeys
from fedveil.transport.duo.fixed import SHARE
from fedveil.transport.duo.lattice import Encryptor, Ring, product, ring
from fedveil.transport.duo.parameters import SCALARS
from fedveil.transport.duo.party import Party
from fedveil.transport.duo.stream import Stream
from fedveil.transport.duo.wide import RING, Wide
from fedveil.transport.he.ring import Floats, Residues
from fedveil.transport.masks.rejected import Malformed

DEGREE = 31
SCALE = 2.0**40
MASK = SHARE + 71
"""Bits of masks, where shares of the whole have SHARE at most: within 2^−70 of telling nothing."""
FLOOD = 52
"""Bits by which the mask of the opened coefficient is longer than the coefficient, of 45 bits at most; together they
stay below the 100 bits of modulus that are left."""
POINT = 20
"""Bits after the point of H on shares."""
ROUNDED = 10
"""Bits after the point of H as it is opened."""


@lru_cache(maxsize=1)
def polynomial() -> Floats:
    """Coefficients of −p ln p in u = 2p − 1."""
    points = chebyshev.chebpts1(DEGREE + 1)
    p = (points + 1) / 2
    return np.asarray(np.linalg.solve(chebyshev.chebvander(points, DEGREE), -p * np.log(p)), np.float64)


def _sized(body: bytes, size: int) -> bytes:
    if len(body) != size:
        raise Malformed(f"{len(body)} bytes about the entropy, not {size}")
    return body


class Side:
    """What both servers know: how slots are filled, and how a coefficient becomes H."""

    def __init__(self, keys: ServerKeys, party: Party) -> None:
        if not keys.scalars:
            raise Refused("detector: these keys are not for the entropy; make new ones with `--entropy`, or change it")
        self.keys, self.party, self._ring = keys, party, ring(SCALARS)
        self._share = self._ring.unpacked(keys.scalars, 1, SCALARS.levels)

    def _sum(self, values: list[int], n: int) -> Residues:
        """Σ v_i E_i modulo every prime, E_i the integers that stand for 1 in every n-th slot."""
        place = self._ring
        total = np.zeros((SCALARS.levels, place.degree), np.uint64)
        for value, unit in zip(values, _units(n), strict=True):
            for i, q in enumerate(place.primes[: SCALARS.levels]):
                total[i] = (total[i] + product(unit[i], np.full(place.degree, value % q, np.uint64), q)) % np.uint64(q)
        return total

    def _rounded(self, share: int, n: int, scale: float) -> Any:
        """H on shares, from a share of the constant coefficient: the mean of all slots; the bits that are opened."""
        party, slots = self.party, self._ring.degree // 2
        copies = slots // n
        empty = (slots - copies * n) * float(chebyshev.chebval(-1.0, polynomial())) / copies
        factor = round(slots / copies / scale * 2.0 ** (POINT + 70))
        whole = party.shifted(wide.wide([share * factor]), 70)
        whole = (whole + (round((2.0 ** -(ROUNDED + 1) - empty) * 2**POINT) if party.first else 0)) % RING
        return digits(party, wide.octets(whole), POINT + 4)[POINT - ROUNDED :]


class Controller(Side):
    """S1: encrypts what is masked, and learns H rounded."""

    def entropy(self, shares: Wide) -> float:
        """H."""
        place, party, n = self._ring, self.party, len(shares)
        body = _sized(party.link.receive("masked"), wide.SIZE * n)
        seen = [int(v) for v in (shares + wide.load(body)) % RING]
        encrypt = Encryptor(place, self.keys.scalars_public)
        party.link.send("cipher", place.packed(encrypt(self._sum(seen, n)[None])[0]))
        scale, levels = np.frombuffer(_sized(party.link.receive("tell:scale"), 16), np.float64)
        if not (scale > 0 and 1 <= levels <= SCALARS.levels):
            raise Malformed("a scale and a level that a ciphertext does not have")
        rest = place.unpacked(party.link.receive("cipher"), 1, int(levels))[0]
        half = [int(v) for v in np.frombuffer(_sized(party.link.receive("masked"), 8 * int(levels)), np.uint64)]
        mine = place.constants(place.times(rest, self._share[0, : int(levels)]))
        opened = place.joined([(a + b) % q for a, b, q in zip(mine, half, place.primes, strict=False)])
        bits = self._rounded(opened, n, float(scale))
        other = np.frombuffer(_sized(party.link.receive("reveal:entropy"), bits.size), np.uint8).reshape(bits.shape)
        return float(sum(int(row[0] & 1) << at for at, row in enumerate(bits ^ other)) / 2**ROUNDED)


class Computer(Side):
    """S2: takes its masks off under encryption, and evaluates the polynomial; masks are made of its ``own`` stream."""

    def __init__(self, keys: ServerKeys, party: Party, own: Stream) -> None:
        super().__init__(keys, party)
        self._own = own

    def _drawn(self, bits: int) -> int:
        drawn = int.from_bytes(self._own.bytes(-(-bits // 8)).tobytes(), "little")
        return drawn & ((1 << bits) - 1)

    def entropy(self, shares: Wide) -> None:
        """Nothing is opened here."""
        place, party, n = self._ring, self.party, len(shares)
        masks = [self._drawn(MASK) for _ in range(n)]
        party.link.send("masked", wide.dump((shares + wide.wide(masks)) % RING))
        parts = place.unpacked(party.link.receive("cipher"), 2, SCALARS.levels)
        parts[0] = place.minus(parts[0], self._sum(masks, n))
        found = self._evaluated(place.ciphertext(parts, SCALE * place.primes[SCALARS.levels - 1]))
        levels = found.coeff_modulus_size()
        out = place.plus(place.parts(found), Encryptor(place, self.keys.scalars_public).zero(levels))
        mask = self._drawn(45 + FLOOD)
        half = place.constants(place.plus(out[0], place.times(out[1], self._share[0, :levels])))
        party.link.send("tell:scale", np.array([found.scale, levels], np.float64).tobytes())
        party.link.send("cipher", place.packed(out[1:]))
        masked = [(v + mask) % q for v, q in zip(half, place.primes, strict=False)]
        party.link.send("masked", np.array(masked, np.uint64).tobytes())
        party.link.send("reveal:entropy", self._rounded(-mask, n, float(found.scale)).tobytes())

    def _evaluated(self, twice: Any) -> Any:
        evaluator = self._ring.evaluator
        evaluator.rescale_to_next_inplace(twice)
        twice.scale = SCALE
        relinearise = self._ring.load("RelinKeys", self.keys.relinearise)
        powers = Powers(self._ring, relinearise)
        powers.known[1] = powers.plus_number(twice, -1.0)
        return powers.value(polynomial())


@lru_cache(maxsize=8)
def _units(n: int) -> list[Residues]:
    """The residues of E_i: 1 in every n-th slot from i, at a scale that makes p_i with SHARE bits 2·p_i at SCALE."""
    place = ring(SCALARS)
    slots = place.degree // 2
    copies, found = slots // n, []
    scale = 2 * SCALE * place.primes[SCALARS.levels - 1] / 2.0**SHARE
    for i in range(n):
        filled = np.zeros(slots)
        filled[np.arange(copies) * n + i] = 1.0
        plain = place.seal.Plaintext()
        place.encoder.encode(filled.tolist(), place.identity[SCALARS.levels], scale, plain)
        found.append(place.residues(plain, (SCALARS.levels, place.degree)))
    return found


class Powers:
    """Chebyshev polynomials T_k of a ciphertext, each made once, and sums of them (Paterson and Stockmeyer).

    Every product is rescaled, and its scale set to SCALE: the prime is within 2^−20 of it.
    """

    def __init__(self, place: Ring, relinearise: Any) -> None:
        self._ring, self._keys, self.known = place, relinearise, dict[int, Any]()

    def value(self, series: np.ndarray[Any, Any]) -> Any:
        """Σ c_k T_k."""
        degree = len(series) - 1
        small = 1 << max(1, int(np.ceil(np.log2(DEGREE + 1) / 2)))
        if degree <= small:
            return self._linear(series)
        big = small
        while 2 * big <= degree:
            big *= 2
        quotient, rest = chebyshev.chebdiv(series, [0] * big + [1])
        high, low = self.value(quotient), self.value(rest)
        return self._sum(self._times(self.power(big), high) if not isinstance(high, float) else high, low)

    def power(self, k: int) -> Any:
        """T_k = 2 T_a T_b − T_|a−b|."""
        if k not in self.known:
            a = 1 << (k.bit_length() - 1)
            a = a // 2 if a == k else a
            twice = self._times(self.power(a), self.power(k - a))
            self._ring.evaluator.add_inplace(twice, self._same(twice))
            if 2 * a == k:
                self.known[k] = self.plus_number(twice, -1.0)
            else:
                first, second = self._level(twice, self.power(abs(2 * a - k)))
                out = self._ring.seal.Ciphertext()
                self._ring.evaluator.sub(first, second, out)
                self.known[k] = out
        return self.known[k]

    def plus_number(self, x: Any, number: float) -> Any:
        """A number added to all slots."""
        plain, out = self._ring.seal.Plaintext(), self._ring.seal.Ciphertext()
        self._ring.encoder.encode(number, x.parms_id(), x.scale, plain)
        self._ring.evaluator.add_plain(x, plain, out)
        return out

    def _same(self, x: Any) -> Any:
        return self._down(x, x.coeff_modulus_size())

    def _down(self, x: Any, level: int) -> Any:
        out = self._ring.seal.Ciphertext()
        self._ring.evaluator.mod_switch_to(x, self._ring.identity[level], out)
        return out

    def _level(self, x: Any, y: Any) -> tuple[Any, Any]:
        level = min(x.coeff_modulus_size(), y.coeff_modulus_size())
        return self._down(x, level), self._down(y, level)

    def _sum(self, x: Any, y: Any) -> Any:
        first, second = self._level(x, y)
        self._ring.evaluator.add_inplace(first, second)
        return first

    def _times(self, x: Any, y: Any) -> Any:
        first, second = self._level(x, y)
        self._ring.evaluator.multiply_inplace(first, second)
        self._ring.evaluator.relinearize_inplace(first, self._keys)
        self._ring.evaluator.rescale_to_next_inplace(first)
        first.scale = SCALE
        return first

    def _linear(self, series: np.ndarray[Any, Any]) -> Any:
        """Σ c_k T_k for few k, in one level."""
        held = [self.power(k) for k in range(1, len(series))]
        level = min(x.coeff_modulus_size() for x in held)
        total = None
        for c, x in zip(series[1:], held, strict=True):
            plain, part = self._ring.seal.Plaintext(), self._down(x, level)
            if abs(c) < 1e-12:
                continue
            self._ring.encoder.encode(float(c), part.parms_id(), float(self._ring.primes[level - 1]), plain)
            self._ring.evaluator.multiply_plain_inplace(part, plain)
            if total is None:
                total = part
            else:
                part.scale = total.scale
                self._ring.evaluator.add_inplace(total, part)
        assert total is not None
        self._ring.evaluator.rescale_to_next_inplace(total)
        total.scale = SCALE
        return self.plus_number(total, float(series[0]))

"""The numbers that everybody knows: ring, primes, scale, and how much noise an opening is flooded with (SPEC 7.1)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedveil.core.errors import Refused, positive

SECURE_BITS = {4096: 109, 8192: 218, 16384: 438, 32768: 881}
"""The longest modulus in bits, special prime included, that gives 128 bits of security (HomomorphicEncryption.org)."""
FRESH = 10
"""log2 of the largest error of a fresh encryption's coefficient; measured 2^7, at a deviation of 2^4.4."""
OPENED = 32
"""log2 of how many coefficients may be opened under one key."""
LEAK = 40
"""All openings under one key are within a statistical distance of 2^−LEAK from telling nothing but sums."""


@dataclass(frozen=True)
class Parameters:
    """One key's parameters.

    A coordinate x travels as one coefficient, round(x·scale): ``degree`` coordinates in a ciphertext, where slots would
    hold half as many. The last of ``primes`` (in bits) is SEAL's own, for keys; the others hold the sums of up to
    ``clients`` coordinates of size up to ``reach``.
    """

    clients: int
    reach: float = 16.0
    degree: int = 8192
    primes: tuple[int, ...] = (60, 60, 60)

    def __post_init__(self) -> None:
        if self.clients < 2:
            raise Refused(f"clients: a sum over {self.clients} client is its upload; give 2 or more")
        positive(reach=self.reach)
        if self.degree not in SECURE_BITS:
            raise Refused(f"degree: {self.degree} is unknown; give one of {', '.join(map(str, SECURE_BITS))}")
        if sum(self.primes) > SECURE_BITS[self.degree]:
            raise Refused(
                f"primes: {sum(self.primes)} bits with degree {self.degree} are below 128 bits of security; give at "
                f"most {SECURE_BITS[self.degree]} bits in all"
            )
        if len(self.primes) < 2 or not all(30 <= bits <= 60 for bits in self.primes):
            raise Refused("primes: give two or more sizes from 30 to 60 bits, the last one for keys")
        if self.precision > 2**-18 * self.reach:
            raise Refused(
                f"primes: sums of {self.clients} coordinates up to {self.reach:g} would have a precision of "
                f"{self.precision:.1g}; give more primes, or keys for fewer clients"
            )

    @property
    def levels(self) -> int:
        """How many primes hold data."""
        return len(self.primes) - 1

    @property
    def log_scale(self) -> int:
        """log2 of the scale: as fine as leaves one bit free beside the sign, the error and the flood."""
        return sum(self.primes[:-1]) - self.levels - 2 - math.ceil(math.log2(self.clients * self.reach))

    @property
    def flood(self) -> int:
        """log2 of the flood that either server adds: uniform, independent of all else.

        An opened coefficient is m + e, and e depends on the secret key. With u uniform in [−2^B, 2^B), m + e + u is
        within |e|/2^(B+1) of m + u in statistical distance; |e| ≤ n·2^FRESH, and 2^OPENED of them add up to 2^−LEAK.
        """
        return OPENED + LEAK + FRESH + math.ceil(math.log2(self.clients))

    @property
    def precision(self) -> float:
        """The largest error of a coordinate of the mean of all clients: two floods."""
        return 2.0 ** (self.flood + 1 - self.log_scale) / self.clients

    def to_json(self) -> dict[str, Any]:
        """A mapping for a file."""
        return asdict(self) | {"primes": list(self.primes)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Parameters:
        """The inverse of :meth:`to_json`; everything is checked anew."""
        kinds = {"clients": int, "reach": float, "degree": int, "primes": list}
        whole = isinstance(data, dict) and data.keys() == kinds.keys()
        if not whole or any(type(data[k]) is not kind for k, kind in kinds.items()):
            raise Refused("parameters: they are not those of keys; the folder is damaged, or of another version")
        if not all(type(bits) is int for bits in data["primes"]):
            raise Refused("parameters: sizes of primes are whole numbers; the folder is damaged")
        return cls(data["clients"], data["reach"], data["degree"], tuple(data["primes"]))

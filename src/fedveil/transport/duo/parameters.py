"""Rings, primes and fixed point of two-server aggregation, checked for 128 bits of security (SPEC 7.1).

Three rings: uploads travel in ``VECTORS`` (shallow), the entropy is computed in ``SCALARS`` (deep, for a few numbers),
results travel to clients in ``RESULTS``. A coordinate x of an upload stands for the integer x·2^POINT/bound.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedveil.core.errors import Refused, positive
from fedveil.transport.he.parameters import SECURE_BITS

POINT = 26
"""Bits after the point of a coordinate, relative to the norm bound: uploads have norms of at most 2^POINT units."""
MASK = 97
"""Bits of the uniform mask over an opened coefficient of POINT + 1: within 2^(POINT + 1 − MASK) of telling nothing."""
OPENED = 30
"""log2 of the coefficients that may be opened under one key: all together within 2^−40 of telling nothing."""
MOST = 100
"""Clients of a round, at most: ranks are bytes."""


@dataclass(frozen=True)
class Lattice:
    """A CKKS ring: its degree, and its primes in bits, of which the last is for keys."""

    degree: int
    primes: tuple[int, ...]

    def __post_init__(self) -> None:
        if sum(self.primes) > SECURE_BITS.get(self.degree, 0):
            raise Refused(
                f"primes: {sum(self.primes)} bits with degree {self.degree} are below 128 bits of security; give at "
                f"most {SECURE_BITS.get(self.degree, 0)} bits in all"
            )

    @property
    def levels(self) -> int:
        """Primes that hold data."""
        return len(self.primes) - 1


VECTORS = Lattice(8192, (50, 50, 20, 50))
SCALARS = Lattice(16384, (60, *(7 * (40,)), 38, 60))
RESULTS = Lattice(8192, (50, 50, 50))


@dataclass(frozen=True)
class Plan:
    """What everybody knows before the first round.

    clients
        uploads of a round, at most.
    length
        numbers in an upload.
    bound
        the norm that an upload may have; a longer one counts as zeros.
    byzantine
        attackers that trimmed mean and Krum prepare for (``declared_f``).
    rounds
        rounds that the keys are for.
    """

    clients: int
    length: int
    bound: float = 1.0
    byzantine: int = 0
    rounds: int = 100

    def __post_init__(self) -> None:
        positive(bound=self.bound)
        if not 2 <= self.clients <= MOST:
            raise Refused(f"clients: {self.clients} uploads cannot be aggregated by two servers; give 2 to {MOST}")
        if self.length < 1:
            raise Refused(f"length: an upload of {self.length} numbers holds nothing; give 1 or more")
        if self.rounds > self.most:
            raise Refused(
                f"rounds: {self.rounds} rounds of {self.clients} uploads open more than 2^{OPENED} coefficients under "
                "one key; deal keys for fewer rounds, and new ones after them"
            )
        if not 0 <= self.byzantine < self.clients / 2:
            raise Refused(
                f"declared_f: {self.byzantine} attackers of {self.clients} clients are no minority; lower declared_f"
            )

    @property
    def most(self) -> int:
        """Rounds, with attempts that were lost, after which 2^OPENED coefficients were opened under masks."""
        return (1 << OPENED) // (self.clients * self.blocks * VECTORS.degree)

    @property
    def blocks(self) -> int:
        """Ciphertexts of an upload."""
        return -(-self.length // VECTORS.degree)

    @property
    def unit(self) -> float:
        """The number that the integer 1 stands for."""
        return float(self.bound * 2.0**-POINT)

    @property
    def longest(self) -> int:
        """The norm, in units, that an upload may have: the bound, and room for rounding and encryption's noise."""
        return (1 << POINT) + math.isqrt(self.length) + 2

    def to_json(self) -> dict[str, Any]:
        """A mapping for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """The inverse of :meth:`to_json`; everything is checked anew."""
        kinds = {"clients": (int,), "length": (int,), "bound": (int, float), "byzantine": (int,), "rounds": (int,)}
        if not isinstance(data, dict) or data.keys() != kinds.keys():
            raise Refused("plan: these are not the settings of keys; the folder is damaged, or of another version")
        if any(type(data[name]) not in kind for name, kind in kinds.items()):
            raise Refused("plan: a setting of these keys has a wrong type; the folder is damaged")
        return cls(**data)

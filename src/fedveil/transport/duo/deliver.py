"""How a result reaches the clients: a share from each server, or a ciphertext switched to the clients' key (SPEC 7.2).

Collective key switching: S1 and S2 each encrypt their own share of the result under the clients' key, and S1 adds the
two. Neither sees the result. Shares are uniform, so that no flood is needed, and every rule can be delivered this way.
"""

from __future__ import annotations

import numpy as np

from fedveil.transport.duo.client import GUARD, result
from fedveil.transport.duo.dealer import ServerKeys
from fedveil.transport.duo.lattice import Encryptor, product, ring
from fedveil.transport.duo.link import Link
from fedveil.transport.duo.parameters import RESULTS
from fedveil.transport.duo.rules import Update
from fedveil.transport.duo.stream import Words
from fedveil.transport.he.ring import Residues


def delivered(update: Update) -> bytes:
    """A server's share, for the clients alone: it travels inside TLS."""
    return result("share", update.unit, len(update.share), update.share.tobytes())


class Switch:
    """Encrypts shares under the clients' key."""

    def __init__(self, keys: ServerKeys) -> None:
        self._ring = ring(RESULTS)
        self._encrypt = Encryptor(self._ring, keys.results_public)

    def delivered(self, link: Link, first: bool, update: Update) -> bytes | None:
        """At S1 the ciphertext for the clients; None at S2."""
        place, mine = self._ring, self._sealed(update.share)
        if not first:
            link.send("cipher", place.packed(mine))
            return None
        other = place.unpacked(link.receive("cipher"), len(mine), RESULTS.levels)
        return result("switch", update.unit, len(update.share), place.packed(place.plus(mine, other)))

    def _sealed(self, share: Words) -> Residues:
        """Ciphertexts ``(2·blocks, primes, degree)`` of the share, GUARD bits above the noise."""
        place, degree = self._ring, self._ring.degree
        blocks = -(-len(share) // degree)
        padded = np.zeros(blocks * degree, np.uint64)
        padded[: len(share)] = share
        residues = np.stack(
            [product(padded % np.uint64(q), np.full_like(padded, 1 << GUARD), q) for q in place.primes[: place.levels]]
        ).reshape(place.levels, blocks, degree)
        plain = place.forward(residues.transpose(1, 0, 2).copy())
        return self._encrypt(plain).reshape(2 * blocks, place.levels, degree)

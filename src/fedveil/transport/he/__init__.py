"""Homomorphic aggregation: uploads are added under encryption, and two servers open the sum (SPEC 6.2, 7.1).

CKKS in Microsoft SEAL, through TenSEAL's ``sealapi`` and its public calls alone. A *key centre* deals one public key
and two shares of the secret key, then leaves. *Clients* encrypt under the public key. The *computer* (S2) adds what
they send and holds one share; the *controller* (S1) never sees an upload, holds the other share, and ends with the sum.
Every decryption takes both. Both servers follow the protocol and do not work together.

``parameters``
    ring, primes and scale, checked for 128 bits of security; ``ring`` is the only module that touches SEAL.
``keys``
    what the key centre deals, as bytes and as a folder for each party.
``messages``, ``roles``
    what the parties say, and the state machines that say it; they share no objects.
``transport``
    all of them in one process, for simulation.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedveil.transport.he.transport import Encrypted

__all__ = ["Encrypted"]


def __getattr__(name: str) -> Any:
    """Import the transport when it is first used: processes that only compute need no torch, and start at once."""
    if name in __all__:
        return getattr(importlib.import_module("fedveil.transport.he.transport"), name)
    raise AttributeError(f"module 'fedveil.transport.he' has no attribute {name!r}")

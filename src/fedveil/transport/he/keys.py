"""The key centre: one public key, and a secret key that nobody has (SPEC 7.1).

s = s₁ + s₂ modulo every prime, s₁ uniform: either share alone is a uniform polynomial, independent of s. The centre
deals and leaves; s is never written anywhere.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

from fedveil.core.errors import Refused
from fedveil.transport.he.parameters import Parameters
from fedveil.transport.he.ring import Residues, dumped, ring
from fedveil.transport.masks.rejected import Malformed

PARTIES = ("clients", "controller", "computer")
PUBLIC, SHARE, KNOWN = "public.key", "share.key", "parameters.json"


@dataclass(frozen=True)
class Keys:
    """What the centre deals: ``public`` for clients, a share of the secret key for each server."""

    parameters: Parameters
    public: bytes
    controller: bytes = field(repr=False)
    computer: bytes = field(repr=False)


def deal(parameters: Parameters) -> Keys:
    """New keys, from SEAL's generator and the operating system's random numbers."""
    place = ring(parameters)
    generator = place.seal.KeyGenerator(place.context)
    public = place.seal.PublicKey()
    generator.create_public_key(public)
    whole = generator.secret_key()  # kept while it is read: its data would go with it
    secret = place.residues(whole.data(), primes=len(place.primes))
    first = np.stack([uniform(q, place.degree) for q in place.primes])
    moduli = np.array(place.primes, np.uint64)[:, None]
    return Keys(parameters, dumped(public), place.secret(first), place.secret((secret + moduli - first) % moduli))


def uniform(prime: int, count: int) -> Residues:
    """Uniform residues: too large ones are thrown away."""
    mask, found = np.uint64(2 ** prime.bit_length() - 1), np.empty(0, np.uint64)
    while len(found) < count:
        drawn = np.frombuffer(os.urandom(8 * count), np.uint64) & mask
        found = np.concatenate([found, drawn[drawn < prime]])
    return found[:count]


def write(keys: Keys, folder: Path) -> None:
    """A folder for each party, with what it may have and no more; only their owner may read them."""
    if folder.exists() and any(folder.iterdir()):
        raise Refused(f"--out: {folder} is not empty, and old keys are not overwritten; give another folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    written = (PUBLIC, keys.public), (SHARE, keys.controller), (SHARE, keys.computer)
    for party, (name, data) in zip(PARTIES, written, strict=True):
        (folder / party).mkdir(mode=0o700)
        owned(folder / party / name, data)
        owned(folder / party / KNOWN, orjson.dumps(keys.parameters.to_json(), option=orjson.OPT_INDENT_2))


def owned(path: Path, data: bytes) -> None:
    """Write a new file that nobody else could ever read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def read(folder: Path) -> Keys:
    """All parties' keys, for a simulation in one process."""
    known = {party: _parameters(folder / party / KNOWN) for party in PARTIES}
    if len(set(known.values())) > 1:
        raise Refused(f"transport.keys: the parties of {folder} have different parameters; make new keys")
    files = [folder / "clients" / PUBLIC, folder / "controller" / SHARE, folder / "computer" / SHARE]
    parameters = known["clients"]
    keys = Keys(parameters, *(contents(path) for path in files))
    try:
        for kind, data in (("PublicKey", keys.public), ("SecretKey", keys.controller), ("SecretKey", keys.computer)):
            ring(parameters).load(kind, data)
    except Malformed as why:
        raise Refused(f"transport.keys: a file of {folder} is damaged ({why}); make new keys") from None
    return keys


def _parameters(path: Path) -> Parameters:
    try:
        return Parameters.from_json(orjson.loads(contents(path)))
    except orjson.JSONDecodeError:
        raise Refused(f"transport.keys: {path} is damaged; make new keys") from None


def contents(path: Path) -> bytes:
    """A party's file, or a sentence that says why it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as why:
        raise Refused(
            f"transport.keys: cannot read {path} ({why.strerror}); make keys with `fedveil keys new --clients N --out "
            "FOLDER`"
        ) from None

"""Flower's SecAgg+ primitives, put together as its own client and workflow do, without their messages.

Flower 1.41: ECDH on P-384, Fernet, Shamir over GF(2^128) by pycryptodome, masks from MT19937 with a 32-bit seed. Used
favourably: keys and arrays are handed over as objects, nothing is logged, and weights are one.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_utils import (
    pseudo_rand_gen,
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

CLIP, TARGET, RANGE = 8.0, 2**22, 2**32
"""The workflow's own defaults: range of a parameter, steps in it, and the modulus."""

Boxes = dict[int, bytes]


class Client:
    """One client, stage by stage; it shares its secrets with its neighbours and with itself."""

    def __init__(self, seat: int, neighbours: set[int], threshold: int) -> None:
        self.seat, self.neighbours, self.threshold = seat, sorted(neighbours), threshold
        self.seeds: Boxes = {}
        self.keys: Boxes = {}
        self.shared: Boxes = {}

    def advertise(self) -> tuple[bytes, bytes]:
        """Two key pairs."""
        (one, public_one), (two, public_two) = generate_key_pairs(), generate_key_pairs()
        self.key, self.box_key = private_key_to_bytes(one), private_key_to_bytes(two)
        return public_key_to_bytes(public_one), public_key_to_bytes(public_two)

    def share(self, publics: dict[int, tuple[bytes, bytes]]) -> Boxes:
        """A sealed box for each neighbour."""
        self.publics, self.seed = publics, os.urandom(32)
        seats = [self.seat, *self.neighbours]
        seeds = create_shares(self.seed, self.threshold, len(seats))
        keys = create_shares(self.key, self.threshold, len(seats))
        self.seeds[self.seat], self.keys[self.seat] = seeds[0], keys[0]
        boxes = {}
        for other, seed, key in zip(seats[1:], seeds[1:], keys[1:], strict=True):
            shared = generate_shared_key(bytes_to_private_key(self.box_key), bytes_to_public_key(publics[other][1]))
            self.shared[other] = shared
            boxes[other] = encrypt(shared, share_keys_plaintext_concat(self.seat, other, seed, key))
        return boxes

    def mask(self, boxes: Boxes, vector: Any) -> Any:
        """The masked upload."""
        for other, box in boxes.items():
            plain = share_keys_plaintext_separate(decrypt(self.shared[other], box))
            self.seeds[other], self.keys[other] = plain[2], plain[3]
        total: Any = quantize([vector], CLIP, TARGET)
        sizes = [total[0].shape]
        total = parameters_addition(total, pseudo_rand_gen(self.seed, RANGE, sizes))
        for other in boxes:
            publics = bytes_to_public_key(self.publics[other][0])
            shared = generate_shared_key(bytes_to_private_key(self.key), publics)
            change = parameters_addition if self.seat > other else parameters_subtraction
            total = change(total, pseudo_rand_gen(shared, RANGE, sizes))
        return parameters_mod(total, RANGE)

    def unmask(self, alive: set[int], gone: set[int]) -> tuple[Boxes, Boxes]:
        """Shares of seeds, and of keys."""
        return {k: s for k, s in self.seeds.items() if k in alive}, {k: s for k, s in self.keys.items() if k in gone}


def unmasked(
    total: Any,
    opened: dict[int, tuple[Boxes, Boxes]],
    publics: dict[int, tuple[bytes, bytes]],
    neighbours: dict[int, set[int]],
    gone: set[int],
) -> Any:
    """The server's last stage: rebuild seeds and keys, and take their masks away."""
    sizes = [total[0].shape]
    shares: dict[int, list[bytes]] = {}
    for seeds, keys in opened.values():
        for seat, share in (seeds | keys).items():
            shares.setdefault(seat, []).append(share)
    for seat, found in shares.items():
        secret = combine_shares(found)
        if seat not in gone:
            total = parameters_subtraction(total, pseudo_rand_gen(secret, RANGE, sizes))
            continue
        for other in neighbours[seat] - gone:
            shared = generate_shared_key(bytes_to_private_key(secret), bytes_to_public_key(publics[other][0]))
            change = parameters_addition if seat > other else parameters_subtraction
            total = change(total, pseudo_rand_gen(shared, RANGE, sizes))
    return parameters_mod(total, RANGE)


def zeros(length: int) -> Any:
    """What uploads are added to."""
    return [np.zeros(length, np.int64)]


def add(total: Any, upload: Any) -> Any:
    """One more upload."""
    return parameters_mod(parameters_addition(total, upload), RANGE)

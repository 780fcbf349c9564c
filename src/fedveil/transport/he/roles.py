"""The parties of a summation as state machines; frames of bytes are all that passes between them (SPEC 7.1).

A client's frame goes to the computer, the computer's to the controller. A frame that is refused changes nothing.
"""

from __future__ import annotations

import numpy as np

from fedveil.core.errors import Aborted, Refused
from fedveil.transport.he.messages import Opening, Session, Upload, decode, encode
from fedveil.transport.he.ring import Floats, Residues, dumped, ring
from fedveil.transport.masks.rejected import Malformed, Replayed


class Client:
    """Encrypts its numbers under the public key; nothing that it has decrypts anything."""

    def __init__(self, session: Session, seat: int, public: bytes) -> None:
        self.session, self.seat = session, seat
        self._ring = ring(session.parameters)
        self._encryptor = self._ring.seal.Encryptor(self._ring.context, self._ring.load("PublicKey", public))

    def upload(self, values: Floats) -> bytes:
        """The frame for the computer."""
        degree, reach = self.session.parameters.degree, self.session.parameters.reach
        far = float(np.abs(values).max(initial=0.0))
        if len(values) != self.session.length or not far <= reach:  # not a number is not within reach
            raise Refused(
                f"transport.reach: an upload holds {far:.4g}, and sums have room for {reach:g} each; raise it, or clip"
            )
        blocks = []
        for start in range(0, self.session.length, degree):
            out = self._ring.seal.Ciphertext()
            self._encryptor.encrypt(self._ring.packed(values[start : start + degree]), out)
            blocks.append(dumped(out))
        return encode(self.session, Upload(self.seat, blocks))


class Server:
    """What both servers have: a share of the secret key, which opens nothing by itself."""

    def __init__(self, session: Session, share: bytes) -> None:
        self.session = session
        self._ring = ring(session.parameters)
        self._share = self._ring.seal.Decryptor(self._ring.context, self._ring.load("SecretKey", share))

    def _half(self, ciphertext: object) -> object:
        """c₀ + c₁·(this share), as a plaintext."""
        out = self._ring.seal.Plaintext()
        self._share.decrypt(ciphertext, out)
        return out


class Computer(Server):
    """S2: adds the uploads under encryption, and begins the decryption of their sum."""

    def __init__(self, session: Session, share: bytes, least: int = 2) -> None:
        super().__init__(session, share)
        self.least, self._sums, self._seats, self._closed = max(2, least), list[object](), set[int](), False

    def receive(self, frame: bytes) -> None:
        """Add a client's upload."""
        upload = decode(self.session, Upload, frame)
        if self._closed or upload.seat in self._seats:
            raise Replayed(f"a second upload of client {upload.seat}, or one that comes too late")
        blocks = [self._ring.fresh(block) for block in upload.blocks]
        if not self._sums:
            self._sums = blocks
        else:
            for total, block in zip(self._sums, blocks, strict=True):
                self._ring.evaluator.add_inplace(total, block)
        self._seats.add(upload.seat)

    def close(self) -> bytes:
        """The frame for the controller: its half, flooded, and the rest of the sum, of which it needs no more."""
        if self._closed:
            raise Replayed("the sum was opened before")
        if len(self._seats) < self.least:
            raise Aborted(
                f"{len(self._seats)} of {self.session.clients} uploads arrived, fewer than {self.least}, so that the "
                "sum stays encrypted; take more clients per round"
            )
        self._closed = True
        halves, rests = [], []
        for total in self._sums:
            half = self._ring.add(self._ring.residues(self._half(total)), self._ring.flood())
            halves.append(half.tobytes())
            rests.append(self._ring.residues(total, 1).tobytes())
        return encode(self.session, Opening(halves, rests, sorted(self._seats)))


class Controller(Server):
    """S1: never sees an upload; completes the decryption of the sum, under a flood of its own."""

    def __init__(self, session: Session, share: bytes) -> None:
        super().__init__(session, share)
        self.seats: list[int] = []

    def open(self, frame: bytes) -> Floats:
        """The sum, and in ``seats`` whose numbers are in it."""
        if self.seats:
            raise Replayed("the sum was opened before")
        opening = decode(self.session, Opening, frame)
        if len(opening.seats) < 2:
            raise Malformed("a sum of fewer than two uploads")
        pairs = zip(opening.halves, opening.rests, strict=True)
        parts = [(self._polynomial(half), self._polynomial(rest)) for half, rest in pairs]
        found = []
        for half, rest in parts:
            flooded = self._ring.add(half, self._ring.flood())
            found.append(self._ring.unpacked(self._half(self._ring.ciphertext(np.stack([flooded, rest])))))
        self.seats = opening.seats
        return np.concatenate(found)[: self.session.length]

    def _polynomial(self, data: bytes) -> Residues:
        if len(data) != self.session.polynomial:
            raise Malformed(f"a polynomial of {len(data)} bytes, not {self.session.polynomial}")
        found = np.frombuffer(data, np.uint64).reshape(self._ring.levels, -1)
        if not np.all(found < np.array(self._ring.primes[: self._ring.levels], np.uint64)[:, None]):
            raise Malformed("residues that are not below their prime")
        return found

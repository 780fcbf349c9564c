"""The server of a session, as a state machine that takes and gives bytes (SPEC 6.1)."""

from __future__ import annotations

import numpy as np

from fedveil.core.errors import Aborted
from fedveil.transport.masks import shamir
from fedveil.transport.masks.crypto import KEY, Pair, Words, add_mask, digest
from fedveil.transport.masks.encoding import unpack
from fedveil.transport.masks.messages import (
    BOX,
    SERVER,
    SIGNATURE,
    Advert,
    Boxes,
    Channel,
    Header,
    Masked,
    Message,
    Opened,
    Roster,
    Shares,
    Signatures,
    Signed,
    Survivors,
    limit,
    prefix_of,
    sized,
)
from fedveil.transport.masks.rejected import Foreign, Malformed, Oversized, Replayed
from fedveil.transport.masks.session import Session

STAGES = ("advertise", "share", "mask", "sign", "unmask")


class Server:
    """Collects the answers of one stage with :meth:`receive`, and ends it with :meth:`close`.

    A frame that is not accepted raises :class:`~fedveil.transport.masks.rejected.Rejected` and changes nothing.
    ``close`` returns the frames that begin the next stage, by seat; after the last one, none, and ``total`` is the sum
    of the uploads of ``survivors``. Too few answers raise :class:`~fedveil.core.errors.Aborted`.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._pair = Pair()
        self.key = self._pair.public
        self.stage = "advertise"
        self.total: Words = np.zeros(session.length, session.word)
        self._answered: set[int] = set()
        self._lines: dict[int, Channel] = {}
        self._adverts: dict[int, Advert] = {}
        self._shares: dict[int, Shares] = {}
        self._masked: set[int] = set()
        self._signatures: dict[int, bytes] = {}
        self._opened: dict[int, Opened] = {}

    @property
    def survivors(self) -> list[int]:
        """The seats whose uploads are in the sum."""
        return sorted(self._masked)

    def receive(self, frame: bytes) -> None:
        """Take one client's answer."""
        header, session = Header.read(frame), self.session
        seat = header.sender
        if header.session != session.id or header.recipient != SERVER or seat >= session.plan.clients:
            raise Foreign("a frame of another session, or from nobody who was invited")
        if seat in self._answered:
            raise Replayed(f"client {seat} has answered at stage {self.stage}")
        if self.stage == "advertise":
            self._advertise(seat, frame)
        elif self.stage == "done" or seat not in self._lines:
            raise Replayed(f"client {seat}: stage {self.stage} has no use for this frame")
        elif self.stage == "share":
            self._share(seat, self._lines[seat].open(Shares, frame))
        elif self.stage == "mask":
            self._mask(seat, self._lines[seat].open(Masked, frame))
        elif self.stage == "sign":
            self._sign(seat, self._lines[seat].open(Signed, frame))
        else:
            self._unmask(seat, self._lines[seat].open(Opened, frame))
        self._answered.add(seat)

    def close(self) -> dict[int, bytes]:
        """End the stage: nobody else's answer to it is accepted."""
        plan = self.session.plan
        wanted = {"done": 0, "sign": plan.signatures, "unmask": plan.threshold}.get(self.stage, plan.least)
        if len(self._answered) < wanted:
            raise Aborted(
                f"{len(self._answered)} of {plan.clients} clients were left at stage {self.stage}, fewer than "
                f"{wanted}: the sum stays masked; raise transport.max_dropout"
            )
        messages: dict[int, Message] = {}
        if self.stage == "advertise":
            messages = {seat: Roster(self._keys_for(seat)) for seat in self._adverts}
        elif self.stage == "share":
            messages = {seat: Boxes(self._boxes_for(seat)) for seat in self._shares}
        elif self.stage == "mask":
            survivors = Survivors(*map(self.session.bitmap, (self._masked, self._gone)))
            messages = dict.fromkeys(self._masked, survivors)
        elif self.stage == "sign":
            messages = dict.fromkeys(self._signatures, Signatures(self._signatures))
        elif self.stage == "unmask":
            self._finish()
        steps = [s for s in STAGES if s != "sign" or plan.active]
        self.stage = [*steps, "done", "done"][steps.index(self.stage) + 1] if self.stage in steps else "done"
        self._answered = set()
        return {seat: self._lines[seat].seal(message) for seat, message in messages.items()}

    def _advertise(self, seat: int, frame: bytes) -> None:
        session = self.session
        if len(frame) > limit(Advert, session.plan, session.payload):
            raise Oversized(f"client {seat}: an advert of {len(frame)} bytes")
        sealing = prefix_of(frame, KEY)
        line = Channel(self._pair, sealing, session.plan, session.payload, session.id, seat, me=SERVER)
        advert = line.open(Advert, frame, prefix=KEY)
        if (len(advert.masking), len(advert.signature)) != (KEY, SIGNATURE) or advert.sealing != sealing:
            raise Malformed(f"client {seat}: an advert with other keys than expected")
        self._pair.agree(advert.masking, b"")  # refuses a key that no mask can be made of
        if session.plan.active:
            words = session.advert_words(seat, advert.sealing, advert.masking)
            session.check_signature(seat, advert.signature, words)
        self._lines[seat], self._adverts[seat] = line, advert

    def _keys_for(self, seat: int) -> dict[int, bytes]:
        near = self.session.neighbours(seat) & self._adverts.keys()
        return {j: a.sealing + a.masking + a.signature for j in near for a in (self._adverts[j],)}

    def _share(self, seat: int, shares: Shares) -> None:
        sized(shares.boxes, BOX, self.session.neighbours(seat) & self._adverts.keys(), f"client {seat}: boxes")
        if len(shares.promise) != KEY:
            raise Malformed(f"client {seat}: a promise of another length")
        self._shares[seat] = shares

    def _boxes_for(self, seat: int) -> dict[int, bytes]:
        near = self.session.neighbours(seat) & self._shares.keys()
        return {j: self._shares[j].boxes[seat] for j in near}

    def _mask(self, seat: int, masked: Masked) -> None:
        if seat not in self._shares:
            raise Replayed(f"client {seat}: an upload, but it has not shared its secrets")
        self.total += unpack(masked.values, self.session.length, self.session.bits)
        self._masked.add(seat)

    @property
    def _gone(self) -> set[int]:
        """Those who shared their secrets and whose uploads did not come: others' masks with them are in the sum."""
        return self._shares.keys() - self._masked

    def _sign(self, seat: int, signed: Signed) -> None:
        lists = map(self.session.bitmap, (self._masked, self._gone))
        self.session.check_signature(seat, signed.signature, self.session.list_words(*lists))
        self._signatures[seat] = signed.signature

    def _unmask(self, seat: int, opened: Opened) -> None:
        near = self.session.neighbours(seat) & self._shares.keys()
        sized(opened.seeds, shamir.SHARE, near & self._masked, f"client {seat}: shares of seeds")
        sized(opened.keys, shamir.SHARE, near - self._masked, f"client {seat}: shares of keys")
        self._opened[seat] = opened

    def _finish(self) -> None:
        """Rebuild what still hides the sum, and take it away."""
        session = self.session
        seeds = self._rebuild(self._masked, {j: o.seeds for j, o in self._opened.items()})
        for seat, secret in seeds.items():
            if digest(secret) != self._shares[seat].promise:
                self._liar(seat)
            add_mask(self.total, session.seed_key(secret), subtract=True)
        gone = {seat for seat in self._gone if session.neighbours(seat) & self._masked}
        keys = self._rebuild(gone, {j: o.keys for j, o in self._opened.items()})
        for seat, secret in keys.items():
            pair = Pair(secret)
            if pair.public != self._adverts[seat].masking:
                self._liar(seat)
            for other in session.neighbours(seat) & self._masked:
                key = pair.agree(self._adverts[other].masking, session.pair_purpose, 16)
                # What the other added is taken away, and the other way round.
                add_mask(self.total, key, subtract=other < seat)
        if session.bits < 8 * self.total.itemsize:
            self.total &= self.total.dtype.type(2**session.bits - 1)

    def _rebuild(self, targets: set[int], shares: dict[int, dict[int, bytes]]) -> dict[int, bytes]:
        """The secrets of these clients, each from a threshold of its neighbours' shares."""
        threshold = self.session.plan.threshold
        if not targets:
            return {}
        seats = sorted(targets)
        held: dict[int, list[int]] = {seat: [] for seat in seats}
        for holder in sorted(shares):
            for seat in shares[holder].keys() & targets:
                held[seat].append(holder)
        for seat in seats:
            if len(held[seat]) < threshold:
                raise Aborted(
                    f"{len(held[seat])} neighbours of client {seat} were left to unmask it, fewer than the threshold "
                    f"of {threshold}, so that the sum stays masked; raise transport.max_dropout"
                )
        places = np.array([held[seat][:threshold] for seat in seats], np.uint64) + np.uint64(1)
        raw = b"".join(shares[holder][seat] for seat in seats for holder in held[seat][:threshold])
        found = shamir.join(places, shamir.from_bytes(raw).reshape(len(seats), threshold, shamir.LIMBS))
        out = {}
        for seat, secret in zip(seats, found, strict=True):
            if secret is None:
                self._liar(seat)
            else:
                out[seat] = secret
        return out

    def _liar(self, seat: int) -> None:
        raise Aborted(
            f"the shares of client {seat} do not fit what it promised: it or a neighbour sent something else; the sum "
            "stays masked"
        )

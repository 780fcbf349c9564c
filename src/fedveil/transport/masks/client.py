"""The client of a session, as a state machine that takes and gives bytes (SPEC 6.1)."""

from __future__ import annotations

import msgpack
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.transport.masks import shamir
from fedveil.transport.masks.crypto import KEY, Pair, Words, add_mask, digest, seal, seed, unseal
from fedveil.transport.masks.encoding import pack
from fedveil.transport.masks.messages import (
    BOX,
    SIGNATURE,
    Advert,
    Boxes,
    Channel,
    Masked,
    Opened,
    Roster,
    Shares,
    Signatures,
    Signed,
    Survivors,
)
from fedveil.transport.masks.rejected import Malformed, Replayed, Unsafe
from fedveil.transport.masks.session import Session

ADVERT = 2 * KEY + SIGNATURE


class Client:
    """Sits on one seat of one session: :meth:`advertise`, :meth:`share`, :meth:`mask`, (:meth:`sign`,) :meth:`unmask`.

    Each takes the server's frame and returns the answer; a frame that cannot be answered safely raises
    :class:`~fedveil.transport.masks.rejected.Rejected` and changes nothing. ``server`` is the server's public key for
    this session; ``identity`` signs where the server is not trusted to follow the protocol.
    """

    def __init__(
        self,
        session: Session,
        seat: int,
        server: bytes,
        identity: Ed25519PrivateKey | None = None,
        secrets: tuple[bytes, bytes, bytes] | None = None,
    ) -> None:
        self.session, self.seat = session, seat
        self._neighbours = session.neighbours(seat)
        self._identity = identity
        fresh = (None, None, seed()) if secrets is None else secrets
        self._sealing, self._masking, self._seed = Pair(fresh[0]), Pair(fresh[1]), fresh[2]
        self._line = Channel(self._sealing, server, session.plan, session.payload, session.id, seat, me=seat)
        self._adverts: dict[int, Advert] = {}
        self._box_keys: dict[int, bytes] = {}
        self._held: dict[int, bytes] = {}
        self._list: Survivors | None = None
        self._stage = "advertise"

    def saved(self) -> bytes:
        """Everything that this client is, secrets included, for a place of its own between two messages."""
        shown = None if self._list is None else [self._list.alive, self._list.gone]
        adverts = {seat: [a.sealing, a.masking, a.signature] for seat, a in self._adverts.items()}
        secrets = [self._sealing.private(), self._masking.private(), self._seed]
        out: bytes = msgpack.packb(
            [secrets, self._line.sent, adverts, self._box_keys, self._held, shown, self._stage], use_bin_type=True
        )
        return out

    @classmethod
    def restored(
        cls, data: bytes, session: Session, seat: int, server: bytes, identity: Ed25519PrivateKey | None = None
    ) -> Client:
        """The inverse of :meth:`saved`; ``data`` comes from that client's own place and nowhere else."""
        secrets, sent, adverts, box_keys, held, shown, stage = msgpack.unpackb(data, strict_map_key=False)
        client = cls(session, seat, server, identity, secrets)
        client._line.sent = sent
        client._adverts = {seat: Advert(*fields) for seat, fields in adverts.items()}
        client._box_keys, client._held, client._stage = box_keys, held, stage
        client._list = None if shown is None else Survivors(*shown)
        return client

    def advertise(self) -> bytes:
        """Fresh public keys for this session."""
        self._must_be("advertise")
        sealing, masking = self._sealing.public, self._masking.public
        signature = b"\0" * SIGNATURE
        if self.session.plan.active:
            assert self._identity is not None
            signature = self._identity.sign(self.session.advert_words(self.seat, sealing, masking))
        self._stage = "share"
        return self._line.seal(Advert(sealing, masking, signature), sealing)

    def share(self, frame: bytes) -> bytes:
        """Both secrets, shared out among the neighbours that advertised."""
        self._must_be("share")
        roster = self._line.open(Roster, frame)
        adverts = {}
        for seat, raw in roster.adverts.items():
            if seat not in self._neighbours or len(raw) != ADVERT:
                raise Malformed("a roster with others than neighbours")
            adverts[seat] = Advert(raw[:KEY], raw[KEY : 2 * KEY], raw[2 * KEY :])
            if self.session.plan.active:
                advert = adverts[seat]
                words = self.session.advert_words(seat, advert.sealing, advert.masking)
                self.session.check_signature(seat, advert.signature, words)
        if len(adverts) < self.session.plan.threshold:
            raise Unsafe(f"{len(adverts)} neighbours, fewer than the threshold of {self.session.plan.threshold}")
        seats = sorted(adverts)
        places = np.array(seats, np.uint64) + np.uint64(1)
        shares = shamir.split([self._seed, self._masking.private()], self.session.plan.threshold, places)
        purpose = self.session.box_purpose
        keys = {seat: self._sealing.agree(adverts[seat].sealing, purpose) for seat in seats}
        boxes = {
            seat: seal(keys[seat], self.seat, shamir.to_bytes(both), self.session.box_header(self.seat, seat))
            for seat, both in zip(seats, shares, strict=True)
        }
        self._adverts, self._box_keys, self._stage = adverts, keys, "mask"
        return self._line.seal(Shares(boxes, digest(self._seed)))

    def mask(self, frame: bytes, values: Words) -> bytes:
        """The upload, whole numbers below 2^bits, under a mask with each neighbour that shared, and one of its own."""
        session = self.session
        self._must_be("mask")
        if values.shape != (session.length,) or values.dtype != session.word:
            raise ValueError(f"Client: an upload is {session.length} words of {session.word}")
        boxes = self._line.open(Boxes, frame).boxes
        if not boxes.keys() <= self._adverts.keys() or any(len(box) != BOX for box in boxes.values()):
            raise Malformed("boxes from others than neighbours, or of another length")
        if len(boxes) < session.plan.threshold:
            raise Unsafe(f"{len(boxes)} neighbours shared, fewer than the threshold of {session.plan.threshold}")
        held = {
            seat: unseal(self._box_keys[seat], seat, box, session.box_header(seat, self.seat))
            for seat, box in boxes.items()
        }
        total = values.copy()
        add_mask(total, session.seed_key(self._seed))
        for seat in boxes:
            key = self._masking.agree(self._adverts[seat].masking, session.pair_purpose, 16)
            add_mask(total, key, subtract=seat < self.seat)
        if session.bits < 8 * total.itemsize:
            total &= total.dtype.type(2**session.bits - 1)
        self._held = held
        self._stage = "sign" if session.plan.active else "unmask"
        return self._line.seal(Masked(pack(total, session.bits)))

    def sign(self, frame: bytes) -> bytes:
        """A signature of the list of survivors, of which it signs one only."""
        self._must_be("sign")
        shown = self._line.open(Survivors, frame)
        self._check(shown)
        assert self._identity is not None
        self._list, self._stage = shown, "unmask"
        return self._line.seal(Signed(self._identity.sign(self.session.list_words(shown.alive, shown.gone))))

    def unmask(self, frame: bytes) -> bytes:
        """Shares of the seeds of those whose uploads arrived, and of the keys of those who are gone."""
        self._must_be("unmask")
        if self.session.plan.active:
            assert self._list is not None
            shown = self._list
            self._check_signatures(shown, self._line.open(Signatures, frame))
            alive, gone = self._check(shown)
        else:
            shown = self._line.open(Survivors, frame)
            alive, gone = self._check(shown)
        seeds = {seat: both[: shamir.SHARE] for seat, both in self._held.items() if seat in alive}
        keys = {seat: both[shamir.SHARE :] for seat, both in self._held.items() if seat in gone}
        self._stage, self._held = "done", {}
        return self._line.seal(Opened(seeds, keys))

    def _check(self, shown: Survivors) -> tuple[set[int], set[int]]:
        """Refuse a list whose sum would hold too few, or that asks for both secrets of somebody."""
        alive, gone = self.session.seats(shown.alive), self.session.seats(shown.gone)
        if alive & gone:
            raise Unsafe(f"both kinds of shares of {len(alive & gone)} clients were asked for")
        if self.seat not in alive:
            raise Unsafe("a list of survivors without this client, whose upload was sent")
        if len(alive) < self.session.plan.least:
            raise Unsafe(f"a sum of {len(alive)} uploads, fewer than {self.session.plan.least}")
        if self._held.keys() != self._neighbours & (alive | gone):
            # A neighbour whose box was withheld would not be masked against; enough of them, and the sum falls apart.
            raise Unsafe("a list of survivors with other neighbours than those that this client is masked against")
        return alive, gone

    def _check_signatures(self, shown: Survivors, found: Signatures) -> None:
        """Refuse a list that not enough clients were shown alike."""
        alive = self.session.seats(shown.alive)
        if not found.signatures.keys() <= alive:
            raise Malformed("signatures of clients that are no survivors")
        if len(found.signatures) < self.session.plan.signatures:
            raise Unsafe(f"{len(found.signatures)} signatures of the list, not {self.session.plan.signatures}")
        words = self.session.list_words(shown.alive, shown.gone)
        for seat, signature in found.signatures.items():
            self.session.check_signature(seat, signature, words)

    def _must_be(self, stage: str) -> None:
        if self._stage != stage:
            raise Replayed(f"a frame for stage {stage}, but this client is at {self._stage}")

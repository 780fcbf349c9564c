"""A shuffler on a node of its own (SPEC 5): it must not belong to whoever runs the server.

Nodes cannot reach each other, so that the server carries what clients send to the shuffler: a client's parts, each
sealed to the server, together in an envelope that is sealed to the shuffler. The server sees envelopes with senders,
and after the shuffler has opened them parts without.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgpack
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from flwr.app import ConfigRecord, Context
from torch import Tensor

from fedveil.core.errors import Aborted, Refused
from fedveil.core.parts import Delivery, Uploads
from fedveil.core.stage import Context as Stance
from fedveil.runtime.flower.messages import (
    Envelopes,
    Keys,
    Malformed,
    Opened,
    Opening,
    Order,
    Shuffled,
    decode,
    encode,
    pack,
    unpack,
)
from fedveil.runtime.flower.nodes import Nodes
from fedveil.runtime.prepare import Training
from fedveil.transport.shuffle import Shuffle
from fedveil.transport.shuffle.client import parts
from fedveil.transport.shuffle.journey import open_batches
from fedveil.transport.shuffle.messages import Malformed as Unreadable
from fedveil.transport.shuffle.messages import Open
from fedveil.transport.shuffle.sealing import OVERHEAD, SUITE
from fedveil.transport.shuffle.shuffler import ENVELOPE, Shuffler

ROLE = "shuffler"
STATE = "fedveil.shuffler"
OPENED = "opened-envelopes"
"""Digests of all envelopes that a shuffler has opened, 16 bytes each, in the folder of its node's own."""
Trainings = Callable[[Mapping[int, bytes], Tensor | None, int], dict[int, bytes | str]]


def check(transport: Shuffle) -> None:
    """Refuse what is simulated in process alone."""
    if transport.loss or transport.stragglers or not transport.seal:
        raise Refused(
            "transport: lost parts, stragglers and seal=false are simulated in process; leave loss, stragglers and "
            "seal out, or set runtime=inline"
        )


def carried(
    transport: Shuffle, nodes: Nodes, train: Trainings, uploads: Uploads, weights: Tensor, ctx: Stance
) -> Delivery:
    """The journey of a round's uploads; ``uploads`` has their facts."""
    if list(ctx.clients) == [None]:
        return transport.carry(uploads, weights, ctx)
    n = len(weights)
    codecs, lengths = transport.forms(uploads, ctx.layout)
    transport.refuse_size(n, lengths)
    key = X25519PrivateKey.generate()
    opening = Open(ctx.round, tuple(length + OVERHEAD for length in lengths), transport.fewest(n))
    theirs = decode(Opened, nodes.ask_role(ROLE, "query.open", encode(Opening(opening.encode()))), {})[0].key
    frame = pack(Keys(key.public_key().public_bytes_raw(), theirs))
    room = sum(opening.lengths) + (ENVELOPE + 8) * len(lengths) + 2**20
    envelopes, lost = {}, {}
    for seat, answer in train(dict.fromkeys(range(n), frame), None, room).items():
        if isinstance(answer, str):
            lost[seat] = answer
        else:
            envelopes[seat] = answer
    if lost:
        ctx.log["excluded"] = [{"client": ctx.clients[seat], "why": why} for seat, why in sorted(lost.items())]
    batches = nodes.ask_role(ROLE, "query.shuffle", encode(Envelopes(envelopes)))
    try:
        found = decode(Shuffled, batches, {}, n * room)[0]
        totals, counts, spoilt = open_batches(list(found.batches), key, list(codecs.values()), lengths, ctx.round)
    except (Malformed, Unreadable) as why:
        raise Aborted(f"the shuffler sent something else than batches ({why}); look after its node") from None
    ctx.log["parts"] = transport.note(n, found.arrived, counts, Counter(found.refused) + spoilt)
    return transport.delivery(codecs, totals, counts, n, sum(map(len, envelopes.values())))


def upload(training: Training, order: Order, uploads: Uploads, context: Context) -> bytes:
    """A client's parts, sealed to the server one by one, in an envelope to the shuffler.

    Where the node config pins the shuffler's key (``shuffler``, in hex), the server cannot put itself in its place.
    """
    transport = training.method.transport
    assert isinstance(transport, Shuffle)
    keys = unpack(Keys, order.frame)
    pinned = context.node_config.get("shuffler")
    if pinned is not None and bytes.fromhex(str(pinned)) != keys.shuffler:
        raise Malformed("the shuffler's key is not the one that this node was told of")
    codecs, _ = transport.forms(uploads, training.objective.layout)
    reports = [report for name, codec in codecs.items() for report in codec.encode(uploads[name])[0]]
    messages = list(parts(reports, X25519PublicKey.from_public_bytes(keys.server), order.round))
    body: bytes = msgpack.packb(messages)
    return SUITE.encrypt(body, X25519PublicKey.from_public_bytes(keys.shuffler), info=_place(order.round))


def begin(message: Opening, context: Context) -> Opened:
    """The shuffler's node: note what the round's parts look like, and give the key for envelopes.

    It need not trust the server about crowds: where its node config says ``least``, smaller ones are refused.
    """
    opening, fewest = Open.decode(message.open), context.node_config.get("least", 1)
    if opening.least < int(fewest):
        raise Malformed(f"crowds of {opening.least}, and this shuffler forwards none of fewer than {fewest} parts")
    key = _key(context)
    record = context.state.config_records.get(STATE)
    opened = b"" if record is None else record.get("opened", b"")
    assert isinstance(opened, bytes)
    context.state[STATE] = ConfigRecord(
        {"open": message.open, "key": key.private_bytes_raw(), "round": opening.round, "opened": opened}
    )
    return Opened(key.public_key().public_bytes_raw())


def finish(message: Envelopes, context: Context) -> Shuffled:
    """The shuffler's node: open the envelopes, and forward their parts in random order and without senders."""
    record = context.state.config_records.get(STATE)
    raw = None if record is None else record.pop("open", None)  # a round is shuffled once
    if not isinstance(raw, bytes):
        raise Malformed("no round has begun here")
    opening, key = Open.decode(raw), _key(context)
    shuffler, came = Shuffler(opening), 0
    fresh = _first_time(message.envelopes, context)
    if again := len(message.envelopes) - len(fresh):
        shuffler.refused["opened before"] += again
    for seat, envelope in fresh.items():
        try:
            found = msgpack.unpackb(SUITE.decrypt(envelope, key, info=_place(opening.round)))
            if not isinstance(found, list) or not all(isinstance(part, bytes) for part in found):
                raise ValueError
        except (InvalidTag, ValueError, msgpack.UnpackException):
            shuffler.refused["no envelope for the shuffler"] += 1
            continue
        came += len(found)
        for part in found:
            shuffler.take(seat, part)
    batches = tuple(shuffler.release())
    return Shuffled(batches, came, dict(shuffler.refused))


def _first_time(envelopes: Mapping[int, bytes], context: Context) -> dict[int, bytes]:
    """Those that were not opened before; all of them are opened now.

    Whoever had the same envelopes opened twice, once without somebody's, would know whose parts are missing.
    """
    place, record = context.node_config.get("state"), context.state.config_records[STATE]
    path = None if place is None else Path(str(place)) / OPENED
    held = record.get("opened", b"") if path is None else path.read_bytes() if path.exists() else b""
    assert isinstance(held, bytes)
    known = {held[i : i + 16] for i in range(0, len(held), 16)}
    found: dict[bytes, int] = {}
    for seat, envelope in envelopes.items():
        found.setdefault(hashlib.blake2b(envelope, digest_size=16).digest(), seat)
    new = {digest: seat for digest, seat in found.items() if digest not in known}
    if path is None:
        record["opened"] = held + b"".join(new)
    else:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("ab") as file:
            file.write(b"".join(new))
            file.flush()
            os.fsync(file.fileno())
    return {seat: envelopes[seat] for seat in new.values()}


def _key(context: Context) -> X25519PrivateKey:
    """The shuffler's key: from the file that its node config names (``key``), else one of this run's own."""
    path = context.node_config.get("key")
    if path is not None:
        return X25519PrivateKey.from_private_bytes(Path(str(path)).read_bytes())
    record = context.state.config_records.get(STATE)
    kept = None if record is None else record.get("key")
    return X25519PrivateKey.from_private_bytes(kept) if isinstance(kept, bytes) else X25519PrivateKey.generate()


def _place(round: int) -> bytes:
    return b"fedveil shuffle envelope" + round.to_bytes(8, "big")

"""The shuffle transport: every part of an upload travels alone, sealed, late, and among those of all others (SPEC 5).

Clients cut their uploads into parts, by weight or by layer, and seal each to the server's key. A shuffler collects a
round's parts, and forwards them together, in random order and without senders. The server opens them, and averages
what arrived about each weight; it never sees a row of one client. Times are simulated: nobody waits in process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from fedveil.core.errors import Aborted, Refused, fraction, not_negative, one_of
from fedveil.core.flat import Layout
from fedveil.core.parts import Delivery, View
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.transport.shuffle.client import departures, parts
from fedveil.transport.shuffle.messages import LONGEST, Batch, Malformed, Open, Part
from fedveil.transport.shuffle.reports import Codec, Rows
from fedveil.transport.shuffle.sealing import OVERHEAD, unseal
from fedveil.transport.shuffle.shuffler import ENVELOPE, Apart, Shuffler, Shuffling

Split = Literal["weight", "layer"]
Arrived = np.ndarray[Any, np.dtype[np.bool_]]
MANY = 2_000_000
"""More parts than this in one round take minutes to seal and open."""


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """How uploads are split and hidden.

    split
        a part is about one ``weight``, or about one ``layer`` (a tensor of the model).
    delay
        parts leave at random within so many seconds after the slowest client that is waited for.
    least
        a weight (or layer) is taken into the mean when at least this share of the cohort's parts about it arrives; the
        shuffler withholds the others. Claims about shuffled reports count on no larger crowd.
    loss, stragglers
        simulated: the share of parts that get lost, and of clients that are ready only after the slowest one that is
        waited for (up to ``delay`` later), whose parts come in time or not.
    seal
        whether parts are really sealed and sent; if not, only their order is simulated, and ``bytes_up`` is what they
        would weigh.
    apart
        whether the shuffler runs in a process of its own.
    """

    split: Split = "weight"
    delay: float = 10.0
    least: float = 1.0
    loss: float = 0.0
    stragglers: float = 0.0
    seal: bool = True
    apart: bool = False

    def __post_init__(self) -> None:
        one_of("split", self.split, ("weight", "layer"))
        not_negative(delay=self.delay)
        fraction(**{"transport.loss": self.loss, "transport.stragglers": self.stragglers})
        if not 0 < self.least <= 1:
            raise Refused(f"transport.least: {self.least} is not a share of the cohort; give more than 0, at most 1")
        if self.least == 1 and (self.loss or self.stragglers):
            raise Refused(
                "transport.least: with 1, a weight is left out as soon as one part about it is lost; "
                "give less, such as transport.least=0.8"
            )
        if self.apart and not self.seal:
            raise Refused(
                "transport.apart: a process of its own has nothing to do where nothing is sealed; set seal=true"
            )

    def remarks(self, cohort: int) -> list[str]:
        """Nothing beyond what the statement's own rows say of the shuffler."""
        return []

    @property
    def reveals(self) -> frozenset[View]:
        """Reports about each weight, but not whose: no row of a client, only sums."""
        return frozenset({"sum"})

    @property
    def unlinks(self) -> bool:
        """Nobody knows which parts belong together, so that all clients count alike."""
        return True

    def carry(self, uploads: Mapping[str, Signal], weights: Any, ctx: Context) -> Delivery:
        """Split, seal, collect, shuffle, open, and average what arrived about each weight."""
        codecs, lengths = self.forms(uploads, ctx.layout)
        clients = next(iter(uploads.values())).rows
        if self.seal:
            self.refuse_size(clients, lengths)
        came = self._arrivals(clients, len(lengths), ctx)
        least = self.fewest(clients)
        if self.seal:
            totals, counts, sent, refused = self._sealed(uploads, codecs, lengths, came, least, ctx.round)
        else:
            totals, counts, sent, refused = _unsealed(uploads, codecs, lengths, came, least, ctx.round)
        ctx.log["parts"] = self.note(clients, int(came.sum()), counts, refused)
        found = self.delivery(codecs, totals, counts, clients, sent)
        here = {name: mean.to(uploads[name].value.device) for name, mean in found.uploads.items()}
        return replace(found, uploads=here)

    def forms(self, uploads: Mapping[str, Signal], layout: Layout) -> tuple[dict[str, Codec], list[int]]:
        """How each channel is cut, and the length of a report about each position."""
        codecs = {name: self._codec(signal, layout) for name, signal in uploads.items()}
        return codecs, [length for codec in codecs.values() for length in codec.lengths]

    def fewest(self, clients: int) -> int:
        """How many parts about a position must come."""
        return max(1, int(np.ceil(self.least * clients - 1e-9)))

    def refuse_size(self, clients: int, lengths: list[int]) -> None:
        """Refuse rounds of more, or of longer, sealed parts than can be handled."""
        if clients * len(lengths) > MANY:
            raise Refused(
                f"transport.seal: {clients} clients sealing {len(lengths):,} parts each takes minutes a round; "
                "set split=layer, or transport.seal=false to simulate the order alone"
            )
        if clients * (max(lengths) + ENVELOPE + OVERHEAD) > LONGEST:
            raise Refused(
                f"transport.split: {clients} parts of {max(lengths):,} bytes make a batch above the limit of "
                f"{LONGEST:,}; use mechanism=two_point or split=weight, or simulate the order alone with "
                "transport.seal=false"
            )

    def note(self, clients: int, arrived: int, counts: Rows, refused: Counter[str]) -> dict[str, Any]:
        """What the round's line says of the parts."""
        taken = int((counts > 0).sum())
        return {
            "sent": clients * len(counts),
            "arrived": arrived,
            "positions": len(counts),
            "withheld": len(counts) - taken,
            "smallest_crowd": int(counts[counts > 0].min()) if taken else 0,
            "sealed": self.seal,
            "refused": dict(refused),
        }

    def delivery(self, codecs: Mapping[str, Codec], totals: Rows, counts: Rows, clients: int, sent: int) -> Delivery:
        """The means of what arrived; a round in which nothing was let through is aborted."""
        if not (counts > 0).any():
            raise Aborted(
                f"fewer than {self.fewest(clients)} of {clients} parts arrived about every {self.split}; "
                "wait longer, or set transport.least lower"
            )
        return Delivery(_means(codecs, totals, counts), sent)

    def _codec(self, signal: Signal, layout: Layout) -> Codec:
        by_layer = layout.sizes if signal.dim == layout.dim else (signal.dim,)
        sizes = (1,) * signal.dim if self.split == "weight" else tuple(size for size in by_layer if size)
        return Codec(sizes, signal.levels, signal.value.dtype)

    def _arrivals(self, clients: int, positions: int, ctx: Context) -> Arrived:
        """Which parts reach the shuffler in time."""
        came = np.ones((clients, positions), dtype=np.bool_)
        if not (self.loss or self.stragglers):
            return came
        assert ctx.server is not None
        rng = ctx.server
        late = rng.random(clients) < self.stragglers
        own = np.where(late, rng.uniform(0.0, self.delay, clients), 0.0)
        came &= departures(own, 0.0, self.delay, positions, rng) <= self.delay
        came &= rng.random((clients, positions)) >= self.loss
        return came

    def _sealed(
        self,
        uploads: Mapping[str, Signal],
        codecs: Mapping[str, Codec],
        lengths: list[int],
        came: Arrived,
        least: int,
        number: int,
    ) -> tuple[Rows, Rows, int, Counter[str]]:
        key = X25519PrivateKey.generate()
        public = key.public_key()
        opening = Open(number, tuple(length + OVERHEAD for length in lengths), least)
        shuffler: Shuffling = Apart(opening) if self.apart else Shuffler(opening)
        encoded = [codec.encode(uploads[name]) for name, codec in codecs.items()]
        sent = 0
        for client in range(len(came)):
            reports = [report for channel in encoded for report in channel[client]]
            for message, arrives in zip(parts(reports, public, number), came[client].tolist(), strict=True):
                sent += len(message)
                if arrives:
                    shuffler.take(client, message)
        batches = shuffler.release()
        totals, counts, spoilt = open_batches(batches, key, list(codecs.values()), lengths, number)
        return totals, counts, sent, shuffler.refused + spoilt


def open_batches(
    batches: list[bytes], key: X25519PrivateKey, codecs: list[Codec], lengths: list[int], number: int
) -> tuple[Rows, Rows, Counter[str]]:
    """The server's side: totals by coordinate, how many parts each position has, and how many could not be read."""
    places = [(codec, piece) for codec in codecs for piece in range(len(codec.sizes))]
    ends = np.cumsum([size for codec in codecs for size in codec.sizes])
    totals, counts, spoilt = np.zeros(ends[-1]), np.zeros(len(places), dtype=np.int64), Counter[str]()
    for message in batches:
        batch = Batch.decode(message)
        place = batch.position
        if batch.round != number or place >= len(places):
            raise Malformed(f"a batch is about round {batch.round}, position {place}")
        codec, piece = places[place]
        reports = []
        for sealed in batch.sealed:
            try:
                report = unseal(sealed, key, number, place)
            except Malformed:
                spoilt["not sealed to the server"] += 1
                continue
            if len(report) != lengths[place]:
                spoilt["another length"] += 1
            elif not codec.readable(report):
                spoilt["not finite"] += 1
            else:
                reports.append(report)
        if reports:
            totals[ends[place] - codec.sizes[piece] : ends[place]] = codec.total(piece, reports)
            counts[place] = len(reports)
    return totals, counts, spoilt


def _unsealed(
    uploads: Mapping[str, Signal],
    codecs: Mapping[str, Codec],
    lengths: list[int],
    came: Arrived,
    least: int,
    number: int,
) -> tuple[Rows, Rows, int, Counter[str]]:
    """What sealing and shuffling would deliver: the mean over a permutation is the mean."""
    counts = came.sum(axis=0)
    held = came & (counts >= least)
    totals: list[Rows] = []
    first = 0
    for name, codec in codecs.items():
        totals.append(codec.summed(uploads[name], held[:, first : first + len(codec.sizes)]))
        first += len(codec.sizes)
    few = int(counts[counts < least].sum())
    refused = Counter({"too few": few}) if few else Counter[str]()
    sent = len(came) * int(weights_on_the_wire(np.asarray(lengths), number).sum())
    return np.concatenate(totals), held.sum(axis=0), sent, refused


def weights_on_the_wire(lengths: Rows, number: int) -> Rows:
    """Bytes of the messages that carry reports of these lengths, about positions 0, 1, 2, ... of a round."""
    place = np.arange(len(lengths))
    sealed = lengths + OVERHEAD
    # Whole numbers and byte strings of msgpack have heads of lengths that grow with them.
    extra = (place >= 128).astype(np.int64) + (place >= 256) + 2 * (place >= 65_536)
    extra = extra + (sealed >= 256) + 2 * (sealed >= 65_536)
    return np.asarray(len(Part(number, 0, b"").encode()) + extra + sealed)


def _means(codecs: Mapping[str, Codec], totals: Rows, counts: Rows) -> dict[str, Tensor]:
    out, place, coordinate = {}, 0, 0
    for name, codec in codecs.items():
        here = counts[place : place + len(codec.sizes)]
        spread = here if len(here) == sum(codec.sizes) else np.repeat(here, codec.sizes)
        out[name] = codec.mean(totals[coordinate : coordinate + len(spread)], spread)
        place, coordinate = place + len(here), coordinate + len(spread)
    return out

"""Nobody decrypts alone; what passes between the servers is uniform; what is opened is on record."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support import require
from tests.transport.duo.duet import Duet, cohort, keys

from fedveil.core.errors import Refused
from fedveil.transport.duo import wide
from fedveil.transport.duo.client import Sealer, seal, unsealed
from fedveil.transport.duo.dealer import Dealer, deal
from fedveil.transport.duo.lattice import ring
from fedveil.transport.duo.link import Framed, together
from fedveil.transport.duo.material import KINDS, Material
from fedveil.transport.duo.parameters import POINT, RESULTS, SCALARS, VECTORS, Lattice, Plan
from fedveil.transport.duo.party import Party
from fedveil.transport.duo.round import Server
from fedveil.transport.duo.stream import Stream

require("tenseal")
LENGTH = 3000
TELLS = {"tell:seats": "seats", "tell:rule": "rule"}
"""What is said in the clear, and the name under which whoever hears it notes it; the rest is below."""
PUBLIC = {"tell:combinations", "tell:scale"}
"""Fresh coins and sizes: they depend on no upload."""


def found(parts, key):
    """What a key makes of an upload: its coefficients as CKKS would decode them."""
    place = ring(VECTORS)
    plain = place.backward(place.plus(parts[:, 0], place.times(parts[:, 1], key)))[0]
    whole = [place.joined([int(v) for v in plain[:, k]]) for k in range(LENGTH)]
    return np.array(whole, float) / place.primes[2] * 2.0**-POINT


@pytest.fixture(scope="module")
def upload():
    dealt = keys(4, LENGTH)
    x = cohort(np.random.default_rng(0), 1, LENGTH)[0]
    parts = unsealed(dealt.clients.plan, seal(dealt.clients.plan, dealt.clients.public, x))
    shares = [ring(VECTORS).unpacked(server.vectors, 1, VECTORS.levels) for server in (dealt.s1, dealt.s2)]
    return dealt, x, parts, shares


def alike(x, y):
    """The cosine: 1 where y is x, and of the order of 1/√d where it has nothing to do with it."""
    return abs(float(x @ y) / np.linalg.norm(x) / np.linalg.norm(y))


def test_two_servers_together_decrypt(upload):
    _, x, parts, (one, two) = upload
    assert found(parts, ring(VECTORS).plus(one, two)) == pytest.approx(x, abs=1e-7)


def test_no_server_decrypts_alone(upload):
    """With its share, the other's guessed from what it has, its seed, or any of its key material as a key."""
    dealt, x, parts, shares = upload
    place = ring(VECTORS)
    for share, server in zip(shares, (dealt.s1, dealt.s2), strict=True):
        guesses = [share, place.plus(share, share), place.minus(np.zeros_like(share), share), np.zeros_like(share)]
        drawn = Material(server.seed, "0/0/begin", None).take("mask", 4, VECTORS.degree * VECTORS.levels)[0]
        guesses.append(drawn[0].reshape(1, VECTORS.levels, -1) % place.moduli[: VECTORS.levels])
        for guess in guesses:
            assert alike(found(parts, guess), x) < 6 / LENGTH**0.5


def test_clients_and_s1_do_not_decrypt(upload):
    """The clients' secret key is of another ring, and no share of the uploads' key."""
    dealt, x, parts, (one, _) = upload
    place, other = ring(VECTORS), ring(RESULTS)
    whole = other.residues(other.load("SecretKey", dealt.clients.results), (len(other.primes), other.degree))
    small = np.stack([whole[0] % np.uint64(q) for q in place.primes[: VECTORS.levels]])[None]
    ternary = other.backward(whole[None, : RESULTS.levels])[0, 0]
    signs = np.where(ternary > 1, -1, ternary.astype(np.int64))  # −1, 0, 1: the key itself
    lifted = place.forward((signs[None, None, :] % place.moduli[: VECTORS.levels].astype(np.int64)).astype(np.uint64))
    for key in (small, lifted):
        for guess in (key, place.plus(key, one), place.minus(key, one)):
            assert alike(found(parts, guess), x) < 6 / LENGTH**0.5


def test_shares_of_keys_are_uniform(upload):
    """Mean and spread of both shares' residues within 6 standard errors of uniform: fails once in 10^8 times."""
    for share in upload[3]:
        for values, q in zip(share[0], ring(VECTORS).primes, strict=False):
            scaled = values.astype(float) / q
            assert abs(scaled.mean() - 0.5) < 6 / (12 * len(scaled)) ** 0.5
            assert abs(scaled.var() - 1 / 12) < 6 * (1 / 180 / len(scaled)) ** 0.5


def test_parameters_below_128_bits_are_refused():
    with pytest.raises(Refused, match="128 bits"):
        Lattice(8192, (60, 60, 60, 60))
    with pytest.raises(Refused, match="128 bits"):
        Lattice(2048, (30,))
    for lattice in (VECTORS, SCALARS, RESULTS):
        assert ring(lattice).context.parameters_set()


def test_more_openings_than_masks_cover_are_refused():
    with pytest.raises(Refused, match="new ones"):
        Plan(100, 100_000, rounds=200)


class Kept(Framed):
    """An end of a link that keeps what it was sent."""

    def __init__(self, end):
        super().__init__()
        self.end, self.said = end, []

    def put(self, frame):
        self.end.put(frame)

    def get(self):
        return self.end.get()

    def close(self):
        self.end.close()

    def receive(self, kind):
        body = super().receive(kind)
        self.said.append((kind, body))
        return body


def overheard(rows, *, entropy=False):
    """A whole round with every rule, and all that either server received."""
    dealt = keys(len(rows), rows.shape[1], byzantine=1, entropy=entropy)
    duet = Duet(dealt)
    duet.ends = tuple(Kept(end) for end in duet.ends)
    duet.one = Server(dealt.s1, duet.ends[0])
    duet.two = Server(dealt.s2, duet.ends[1], Dealer(dealt.s1.seed, dealt.s2.seed).mend)
    round = duet.begin(rows)
    duet.both(lambda r: r.sense(), round)
    if entropy:
        duet.both(lambda r: r.indicate(), round)
    duet.both(lambda r, value: r.announce("rule", value), round, ("krum", None))
    for rule in ("mean", "trimmed_mean", "krum", "centered_clipping"):
        duet.result(round, rule)
    return duet.ends


def test_every_opened_value_is_on_record():
    """What either server received in the clear, read off the messages, is exactly what its record says it saw."""
    ends = overheard(cohort(np.random.default_rng(0), 5, 700), entropy=True)
    for end, least in zip(ends, (6, 1), strict=True):
        kinds = {kind for kind, _ in end.said}
        told = {TELLS[kind] for kind in kinds if kind in TELLS}
        shown = {kind.removeprefix("reveal:") for kind in kinds if kind.startswith("reveal:")}
        assert {k for k in kinds if ":" not in k} <= {"masked", "cipher"}
        assert {k for k in kinds if k.startswith("tell:")} <= set(TELLS) | PUBLIC
        assert told | shown == set(end.record.names())
        assert len(end.record.names()) >= least
    assert set(ends[0].record.names()) == {
        "seats",
        "energy",
        "common",
        "quartic",
        "along",
        "reference",
        "spread",
        "entropy",
    }
    assert ends[1].record.names() == ["rule"]


def uniform(data: bytes) -> bool:
    """Chi-square of bytes: False for uniform ones once in 10^9 times."""
    counts, expected = np.bincount(np.frombuffer(data, np.uint8), minlength=256), len(data) / 256
    return bool(((counts - expected) ** 2 / expected).sum() < 255 + 6 * (2 * 255) ** 0.5 + 24)


@pytest.mark.parametrize("value", [0.0, 0.02])
def test_messages_and_what_they_open_are_uniform(value, monkeypatch):
    """On uploads that are all alike: what either server receives, and the masked values that both make of it.

    Values are taken together by the length of their message, which tells what they belong to.
    """
    opened: dict[object, list[bytes]] = {}
    for name in ("joined", "toggled"):
        inner = getattr(Party, name)

        def watched(party, share, inner=inner, name=name):
            found = inner(party, share)
            data = wide.dump(found) if found.dtype == object else found.tobytes()
            if party.first:  # both know the same
                opened.setdefault((name, len(data)), []).append(data)
            return found

        monkeypatch.setattr(Party, name, watched)
    for end in overheard(np.full((5, 2000), value)):
        received = b"".join(body for kind, body in end.said if kind == "masked")
        assert len(received) > 200_000
        assert uniform(received)
    groups = {key: b"".join(parts) for key, parts in opened.items()}
    long = {key: data for key, data in groups.items() if len(data) > 5000}
    assert len(long) > 5
    assert all(uniform(data) for data in long.values()), [key for key, data in long.items() if not uniform(data)]
    assert uniform(b"".join(data for data in groups.values() if len(data) <= 5000))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_both_servers_draw_uniform_masks(kind, first):
    """Every number that a server draws, of every kind: no mask is left out at either."""
    sizes = {"bit": (9000, 8), "product": (9000, 8), "mask": (90, 900), "scale": (4000, 90), "mix": (4000, 4000)}
    sizes["shift"] = (9000, 3)
    drawn = KINDS[kind].draw(Stream(bytes(32), kind), first, sizes.get(kind, (9000,)))
    assert all(uniform(part.tobytes()) for part in drawn)
    assert len({part.tobytes()[:100] for part in drawn}) == len(drawn)


def test_two_rounds_share_no_masks():
    """The same uploads in two rounds: what S1 receives has nothing in common."""
    rows = cohort(np.random.default_rng(0), 4, 900)
    dealt = keys(4, 900, byzantine=1)
    duet = Duet(dealt)
    duet.ends = tuple(Kept(end) for end in duet.ends)
    duet.one = Server(dealt.s1, duet.ends[0])
    duet.two = Server(dealt.s2, duet.ends[1], Dealer(dealt.s1.seed, dealt.s2.seed).mend)
    said = []
    for number, attempt in ((0, 0), (1, 0), (1, 1)):
        duet.begin(rows, number, attempt=attempt)
        said.append([body for kind, body in duet.ends[0].said if kind == "masked" and len(body) > 64])
        duet.ends[0].said.clear()
    for first, second in ((0, 1), (1, 2)):
        assert len(said[first]) == len(said[second]) > 3
        assert not any(a == b for a, b in zip(said[first], said[second], strict=True))


def test_encryption_is_randomised_and_fits_its_budget():
    plan = Plan(2, 100_000)
    sealer = Sealer(plan, deal(plan).clients.public)
    x = np.zeros(100_000)
    first, second = sealer(x), sealer(x)
    assert len(first) <= 55 * 100_000
    one, two = (np.frombuffer(body, np.uint8) for body in (first, second))
    assert (one == two).mean() < 0.05


def test_programs_that_part_ways_are_told():
    duet = Duet(keys(3, 20))
    with pytest.raises(Exception, match="expected|left"):
        together(
            lambda: duet.one.round(0),
            lambda: duet.two.link.send("masked", b"something else"),
            duet.ends,
        )

"""What masks do: taken off, each of them would show a server what it must not see."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from tests.support import require
from tests.transport.duo.duet import Duet, cohort, keys

from fedveil.transport.duo import convert, entropy, session, wide
from fedveil.transport.duo import round as round_module
from fedveil.transport.duo.dealer import Dealer, deal
from fedveil.transport.duo.given import Given
from fedveil.transport.duo.lattice import Encryptor
from fedveil.transport.duo.parameters import MASK, SCALARS, Plan
from fedveil.transport.duo.round import Server

require("tenseal")


def even(values, bins: int = 64) -> bool:
    """Chi-square of numbers from 0 to 1 in bins: False for uniform ones once in 10^9 times."""
    counts = np.bincount((np.asarray(values, float) * bins).astype(int), minlength=bins)
    expected = len(values) / bins
    return bool(((counts - expected) ** 2 / expected).sum() < bins - 1 + 6 * (2 * (bins - 1)) ** 0.5 + 24)


def test_what_s1_decrypts_of_an_upload_is_a_mask_of_117_bits(monkeypatch):
    """Uploads of zeros: what S1 reads is uniform at the top of the mask, at its middle, and below the point."""
    seen = []
    divided = convert._divided
    monkeypatch.setattr(convert, "_divided", lambda place, r: seen.append((place, r.copy())) or divided(place, r))
    Duet(keys(3, 50)).begin(np.zeros((3, 50)))
    q, p, last = seen[0][0].primes[:3]
    for _, residues in seen:
        cut = residues[:, 2].reshape(-1)
        low, high = (residues[:, i].reshape(-1).astype(object) for i in (0, 1))
        low, high = ((v - cut.astype(object)) * pow(last, -1, m) % m for v, m in ((low, q), (high, p)))
        whole = low + q * ((high - low) * pow(q, -1, p) % p)
        assert max(whole) < 2**MASK + 2
        assert even([float(v >> (MASK - 32)) / 2**32 for v in whole[:4096]]), "the highest bits"
        assert even([float((v >> 32) % 2**32) / 2**32 for v in whole[:4096]]), "bits in the middle"
        assert even([float(v % 2**16) / 2**16 for v in whole[:4096]]), "the lowest bits, where an upload would stand"
        assert even(cut / last), "what is below the point, where the encryption's noise would stand"


def test_a_small_prime_leaves_nothing_over():
    high, low = np.array([0, 5, 2**31 - 1], np.uint64), np.array([7, 2**64 - 1, 2**64 - 1], np.uint64)
    expected = [((int(h) << 64) + int(x)) % 1032193 for h, x in zip(high, low, strict=True)]
    assert convert._modulo(high, low, 1032193).tolist() == expected


def test_new_servers_with_the_same_keys_mask_anew():
    """A round that is begun again: nothing that masked the lost attempt's uploads comes again."""
    dealt = keys(3, 50)
    mend = Dealer(dealt.s1.seed, dealt.s2.seed).mend
    first, second = (Server(dealt.s2, Duet(dealt).ends[1], mend).mask.words(4) for _ in range(2))
    assert not (first == second).any()


def test_shares_of_the_previous_update_are_masked_anew_in_every_round(monkeypatch):
    masks, shared = [], session.shared
    monkeypatch.setattr(session, "shared", lambda plan, r, mask: masks.append(mask.copy()) or shared(plan, r, mask))
    running = session.Session(Given.fresh(deal(Plan(4, 6000, 5.0, 0, 20))))
    frames = [running.sealer(np.zeros(6000)) for _ in range(3)]
    for number in (1, 2):
        running.round(frames, (), lambda opened, n: "mean", reference=np.ones(6000), number=number)
    running.close()
    assert all(even((mask >> np.uint64(32)) / 2**32) and even((mask % 2**16) / 2**16) for mask in masks)
    assert not (masks[0] == masks[1]).any()


def test_s1_sees_masked_shares_of_the_spread_and_a_masked_coefficient(monkeypatch):
    """Of −2^30 ≤ p ≤ 2^30 under masks of 101 bits, and 45 bits under 97: far from what they hide, and never twice."""
    shares, opened = [], []
    rounded, summed = entropy.Side._rounded, entropy.Side._sum

    def noted(side, share, n, scale):
        if isinstance(side, entropy.Controller):
            opened.append(share)
        return rounded(side, share, n, scale)

    def added(side, values, n):
        if isinstance(side, entropy.Controller):
            shares.extend(values)
        return summed(side, values, n)

    monkeypatch.setattr(entropy.Side, "_rounded", noted)
    monkeypatch.setattr(entropy.Side, "_sum", added)
    duet = Duet(keys(5, 400, byzantine=1, entropy=True))
    x = cohort(np.random.default_rng(0), 5, 400)
    for number in range(2):
        duet.both(lambda r: r.indicate(), duet.begin(x, number))
    assert len(set(shares)) == 10 and all(2**72 < v < wide.RING >> 64 for v in shares)
    assert len(opened) == 2 and opened[0] != opened[1] and all(v > 2**72 for v in opened)


class Twice:
    """S2's end of a conversation in which S1 says the same again; what S2 sends is kept."""

    def __init__(self, said):
        self.said, self.sent = said, {}

    def receive(self, kind):
        return self.said[kind]

    def send(self, kind, body):
        self.sent[kind] = body


def test_what_s2_sends_back_of_a_ciphertext_is_fresh(monkeypatch):
    """S1 made that ciphertext, and could tell by what comes back which masks were taken off: not once it is fresh."""
    dealt = keys(5, 400, byzantine=1, entropy=True)
    place = entropy.ring(SCALARS)
    zero = np.zeros((1, SCALARS.levels, place.degree), np.uint64)
    said = {"cipher": place.packed(Encryptor(place, dealt.s1.scalars_public)(zero)[0])}
    monkeypatch.setattr(entropy.Side, "_rounded", lambda *_: np.zeros(1, np.uint8))
    bodies = []
    for _ in range(2):
        numbers = count()
        monkeypatch.setattr(entropy.secrets, "randbelow", lambda _, numbers=numbers: next(numbers))

        class Party:
            link = Twice(said)

        entropy.Computer(dealt.s2, Party()).entropy(wide.wide([1, 2, 3]))
        bodies.append(np.frombuffer(Party.link.sent["cipher"], np.uint8))
    assert (bodies[0] == bodies[1]).mean() < 0.05


@pytest.mark.parametrize("levels", [1, 2, SCALARS.levels])
def test_an_encryption_of_zero_is_one_at_every_level(levels):
    dealt = keys(5, 400, byzantine=1, entropy=True)
    place = entropy.ring(SCALARS)
    halves = [place.unpacked(s.scalars, 1, SCALARS.levels)[0, :levels] for s in (dealt.s1, dealt.s2)]
    parts = Encryptor(place, dealt.s2.scalars_public).zero(levels)
    found = place.joined(place.constants(place.plus(parts[0], place.times(parts[1], place.plus(*halves)))))
    assert abs(found) < 2**20


def test_combinations_are_drawn_anew_in_every_round(monkeypatch):
    """A client that knew them could send an upload of any length that passes."""
    drawn, duet = [], Duet(keys(3, 50))
    within = round_module.within
    monkeypatch.setattr(round_module, "within", lambda *given: drawn.append(given[-1]) or within(*given))
    for number in range(3):
        duet.begin(np.zeros((3, 50)), number)
    assert len(drawn) == 6 and len(set(drawn)) == 3, "both servers have the same ones"

"""Any threshold of shares gives the secret back, and fewer say nothing about it."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedveil.transport.masks import shamir


def places(*seats):
    return np.array(seats, np.uint64) + np.uint64(1)


def joined(found, chosen, which=0):
    seats = list(chosen)
    return shamir.join(places(*seats)[None], np.stack([found[i, which] for i in seats])[None])[0]


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.data())
def test_any_threshold_of_shares_gives_both_secrets_back(one, other, data):
    n = data.draw(st.integers(1, 12))
    threshold = data.draw(st.integers(1, n))
    found = shamir.split([one, other], threshold, places(*range(n)))
    chosen = data.draw(st.permutations(range(n)))[:threshold]
    assert (joined(found, chosen), joined(found, chosen, 1)) == (one, other)


def test_agrees_with_polynomials_over_pythons_own_integers():
    secret, seats, threshold = os.urandom(32), [3, 17, 999, 65_000], 3
    found = shamir.split([secret], threshold, places(*seats))
    for limb in range(shamir.LIMBS):
        points = [(seat + 1, int(found[i, 0, limb])) for i, seat in enumerate(seats)][:threshold]
        value = 0
        for x, y in points:
            above = below = 1
            for other, _ in points:
                if other != x:
                    above, below = above * -other % shamir.PRIME, below * (x - other) % shamir.PRIME
            value += y * above * pow(below, -1, shamir.PRIME)
        assert value % shamir.PRIME == int.from_bytes(secret[2 * limb : 2 * limb + 2], "little")


def test_many_are_joined_at_once():
    secrets = [os.urandom(32) for _ in range(20)]
    rows = [shamir.split([s], 4, places(*range(i, i + 4)))[:, 0] for i, s in enumerate(secrets)]
    at = np.stack([places(*range(i, i + 4)) for i in range(20)])
    assert shamir.join(at, np.stack(rows)) == secrets


def test_fewer_shares_are_uniform_whatever_the_secret_is():
    """Share 1 of 2 over both extreme secrets: 64 bins of 16,000 elements each; fails once in 10,000 runs."""
    for secret in (bytes(32), b"\xff" * 32):
        seen = np.concatenate([shamir.split([secret], 2, places(0, 1))[0, 0] for _ in range(1000)])
        assert (
            chisquare(np.bincount((seen * np.uint64(64) // np.uint64(shamir.PRIME)).astype(int), minlength=64)).pvalue
            > 1e-4
        )


def test_fewer_shares_fit_every_secret():
    """From threshold − 1 shares, a polynomial through any secret exists: a last share can be computed that leads there."""
    found = shamir.split([os.urandom(32)], 3, places(0, 1, 2))
    wish = os.urandom(32)
    target = np.frombuffer(wish, "<u2").astype(np.uint64)
    weights = shamir._at_zero(places(0, 1, 2)[None])[0]
    known = (weights[0] * found[0, 0] + weights[1] * found[1, 0] % np.uint64(shamir.PRIME)) % np.uint64(shamir.PRIME)
    missing = (target + np.uint64(shamir.PRIME) - known) % np.uint64(shamir.PRIME)
    inverse = np.uint64(pow(int(weights[2]), -1, shamir.PRIME))
    found[2, 0] = missing * inverse % np.uint64(shamir.PRIME)
    assert joined(found, [0, 1, 2]) == wish


@given(st.integers(0, 3), st.integers(0, shamir.LIMBS - 1), st.integers(1, shamir.PRIME - 1))
def test_a_wrong_share_never_gives_the_secret_back(holder, limb, error):
    secret = os.urandom(32)
    found = shamir.split([secret], 4, places(*range(4)))
    found[holder, 0, limb] = (found[holder, 0, limb] + np.uint64(error)) % np.uint64(shamir.PRIME)
    assert joined(found, range(4)) != secret


def test_shares_travel_as_bytes():
    share = shamir.split([os.urandom(32)], 2, places(0, 1))[0, 0]
    assert len(shamir.to_bytes(share)) == shamir.SHARE
    assert np.array_equal(shamir.from_bytes(shamir.to_bytes(share)), share)


@pytest.mark.parametrize("threshold", [1, 2, 5])
def test_secrets_come_from_the_operating_system(monkeypatch, threshold):
    """With the system's randomness replaced, the shares are the same again: nothing else went into them."""
    monkeypatch.setattr(shamir.os, "urandom", lambda n: bytes(n))
    secret = bytes(range(32))
    one, other = (shamir.split([secret], threshold, places(*range(6))) for _ in range(2))
    assert np.array_equal(one, other)

"""The pieces of two-party computation, each against what it should be in the clear."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import require

from fedveil.transport.duo import bits, check, fixed, wide
from fedveil.transport.duo.dealer import Dealer
from fedveil.transport.duo.lattice import product, ring
from fedveil.transport.duo.link import pair, together
from fedveil.transport.duo.material import KINDS, Material
from fedveil.transport.duo.parameters import RESULTS, SCALARS, VECTORS
from fedveil.transport.duo.party import Party

require("tenseal")
ONE, TWO = bytes(32), bytes([1] * 32)
FEW = settings(max_examples=20, deadline=None)
I62 = st.integers(-(2**62) + 1, 2**62 - 1)


def run(program, *shared):
    """Run a program at both parties; each argument is a pair of shares."""
    ends, mend = pair(), Dealer(ONE, TWO).mend("0/0/test")
    one, two = Party(True, ends[0], Material(ONE, "0/0/test")), Party(False, ends[1], Material(TWO, "0/0/test", mend))
    return together(lambda: program(one, *[s[0] for s in shared]), lambda: program(two, *[s[1] for s in shared]), ends)


def share(values, seed=0):
    whole = np.array([int(v) % 2**64 for v in values], np.uint64)
    first = np.random.default_rng(seed).integers(0, 2**64, len(whole), dtype=np.uint64)
    return first, whole - first


def share_wide(values, seed=0):
    rng = np.random.default_rng(seed)
    first = wide.wide(int.from_bytes(rng.bytes(24), "little") for _ in values)
    return first, (wide.wide(values) - first) % wide.RING


def flat(pair_of, count):
    return np.unpackbits(pair_of[0] ^ pair_of[1], bitorder="little")[:count].tolist()


def total(pair_of):
    if pair_of[0].dtype == object:
        return wide.signed((pair_of[0] + pair_of[1]) % wide.RING)
    return (pair_of[0] + pair_of[1]).view(np.int64).tolist()


@FEW
@given(st.lists(I62, min_size=1, max_size=20), st.integers(0, 2**32))
def test_signs(values, seed):
    found = run(lambda p, x: bits.negative(p, x, 64), share(values, seed))
    assert flat(found, len(values)) == [int(v < 0) for v in values]


@FEW
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.integers(0, 2**62 - 1))
def test_inside_holds_for_any_number(values, top):
    found = run(lambda p, x: bits.inside(p, x, top), share(values))
    assert flat(found, len(values)) == [int(0 <= v <= top) for v in values]


def test_inside_at_its_ends():
    values = [-1, 0, 1, 999, 1000, 1001, 2**63 - 1, -(2**63), -(2**63) + 1]
    assert flat(run(lambda p, x: bits.inside(p, x, 1000), share(values)), 9) == [0, 1, 1, 1, 1, 0, 0, 0, 0]


@FEW
@given(st.lists(I62, min_size=1, max_size=9), st.integers(0, 2**32), st.integers(1, 40))
def test_lifted_halved_and_shifted(values, seed, places):
    assert total(run(lambda p, x: p.lifted(x), share(values, seed))) == values
    halves = total(run(lambda p, x: p.halved(x, places), share(values, seed)))
    assert all(abs(h - (v >> places)) <= 1 for h, v in zip(halves, values, strict=True))
    cut = total(run(lambda p, x: p.shifted(x, places), share_wide(values, seed)))
    assert all(abs(c - (v >> places)) <= 1 for c, v in zip(cut, values, strict=True))


@FEW
@given(st.lists(st.tuples(I62, I62), min_size=1, max_size=9), st.integers(0, 2**32))
def test_products(pairs, seed):
    x, y = [a for a, _ in pairs], [b for _, b in pairs]
    narrow = total(run(lambda p, a, b: p.product(a, b), share(x, seed), share(y, seed + 1)))
    assert [v % 2**64 for v in narrow] == [a * b % 2**64 for a, b in pairs]
    assert total(run(lambda p, a, b: p.product(a, b), share_wide(x, seed), share_wide(y, seed + 1))) == [
        a * b for a, b in pairs
    ]


@pytest.mark.parametrize("width", [1, 8, 24])
def test_bits_as_numbers(width):
    rng = np.random.default_rng(width)
    plain, mask = rng.integers(0, 2, 77), rng.integers(0, 256, 10, dtype=np.uint8)
    packed = np.packbits(plain.astype(np.uint8), bitorder="little")
    found = run(lambda p, b: p.numbers(b, 77, width), (mask, packed ^ mask))
    assert [int(v) % 2 ** (8 * width) for v in found[0] + found[1]] == plain.tolist()


@FEW
@given(st.integers(2, 9), st.integers(1, 12), st.integers(0, 2**32))
def test_ranks_of_columns(n, columns, seed):
    values = np.random.default_rng(seed).integers(-4, 4, (n, columns))  # ties are frequent
    one, two = share(values.reshape(-1), seed)
    found = run(lambda p, x: bits.ranks(p, x, 10), (one.reshape(n, -1), two.reshape(n, -1)))
    wanted = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0, kind="stable")
    assert np.array_equal(found[0] + found[1], wanted)
    kept = run(lambda p, r: bits.between(p, r, 1, n - 1), found)
    met = np.unpackbits(kept[0] ^ kept[1], axis=1, bitorder="little")[:, :columns]
    assert np.array_equal(met, (wanted >= 1) & (wanted < n - 1))


@FEW
@given(st.lists(st.integers(1, 2**74), min_size=1, max_size=6), st.integers(0, 2**32))
def test_inverse_roots(values, seed):
    found = total(run(fixed.inverse_roots, share_wide(values, seed)))
    assert [v / 2.0**fixed.ROOT for v in found] == pytest.approx([v**-0.5 for v in values], rel=1e-8)


def test_the_root_of_nothing_is_harmless():
    assert total(run(fixed.inverse_roots, share_wide([0]))) == [0]


@FEW
@given(st.lists(st.integers(0, 2**60), min_size=2, max_size=9), st.integers(0, 2**32))
def test_weights_of_centered_clipping(values, seed):
    import torch

    from fedveil.aggregate.centered_clipping import factors

    found = np.array(total(run(fixed.weights, share_wide(values, seed)))) / 2.0**fixed.SHARE
    wanted = factors(torch.tensor(values, dtype=torch.float64).sqrt(), None).numpy()
    positive = np.array(values) > 0  # where x is its centre, its weight does not matter
    assert found[positive] == pytest.approx(wanted[positive], abs=1e-6)


@FEW
@given(st.lists(st.integers(0, 2**60), min_size=2, max_size=9), st.integers(0, 2**32))
def test_shares_of_a_whole(values, seed):
    values[0] += 1
    found = run(lambda p, x: fixed.shares_of_one(p, x, wide.wide([x.sum()])), share_wide(values, seed))
    assert np.array(total(found)) / 2.0**fixed.SHARE == pytest.approx(np.array(values) / sum(values), abs=1e-7)


@pytest.mark.parametrize("lattice", [VECTORS, SCALARS, RESULTS])
def test_residues_are_exact(lattice):
    place, rng = ring(lattice), np.random.default_rng(0)
    a, b = (
        np.stack([rng.integers(0, q, (3, place.degree), dtype=np.uint64) for q in place.primes[: place.levels]], 1)
        for _ in range(2)
    )
    moduli = np.array(place.primes[: place.levels], object)[:, None]
    few = slice(0, 500)
    assert np.array_equal(place.times(a, b)[..., few], (a[..., few].astype(object) * b[..., few]) % moduli)
    assert np.array_equal(place.plus(a, b), (a.astype(object) + b) % moduli)
    assert np.array_equal(place.minus(a, b), (a.astype(object) - b) % moduli)
    assert np.array_equal(place.backward(place.forward(a)), a)
    assert np.array_equal(place.unpacked(place.packed(a), 3, place.levels), a)
    assert place.constants(place.forward(a)[1]) == a[1, :, 0].tolist()
    value = -(2**80) + 12345
    assert place.joined([value % q for q in place.primes[: place.levels]]) == value


def test_products_modulo_large_primes_at_their_ends():
    for q in (*ring(SCALARS).primes, *ring(VECTORS).primes):
        ends = np.array([0, 1, 2, q // 2, q - 2, q - 1], np.uint64)
        x, y = (m.reshape(-1) for m in np.meshgrid(ends, ends))
        assert product(x, y, q).tolist() == [int(a) * int(b) % q for a, b in zip(x, y, strict=True)]


def test_the_bound_holds_where_squares_wrap_around():
    """Rows whose squares are short modulo 2^64 and long in truth, all of which a client could send."""
    longest, d = 2**26, 64
    rows = np.zeros((8, d), np.uint64)
    rows[0, 0] = 2**26  # at the bound
    rows[1, 0] = 2**26 + 1
    rows[2, 3] = 2**32  # square 0
    rows[3, :4] = 2**31  # square 0, from four
    rows[4, 5] = 2**63  # p + x = p − x
    rows[5, :] = 2**58
    rows[6, :2] = [2**64 - 2**32, 5]
    rows[7, :] = 2**23  # d·2^46 = 2^52: at the bound
    first = np.random.default_rng(0).integers(0, 2**64, rows.shape, dtype=np.uint64)
    squares = (rows * rows).sum(1, dtype=np.uint64)
    for drawn in (bytes([seed] * 32) for seed in range(5)):
        found = run(
            lambda p, x, s, drawn=drawn: check.within(p, x, s, longest, drawn),
            (first, rows - first),
            (squares, 0 * squares),
        )
        assert flat(found, 8) == [1, 0, 0, 0, 0, 0, 0, 1]


def test_combinations_are_those_of_whole_numbers():
    rows = np.random.default_rng(0).integers(0, 2**64, (3, 20_000), dtype=np.uint64)
    ones = np.ones((1, 20_000), np.uint64)
    seed = bytes(32)
    found = check.combined(np.concatenate([rows, ones, rows[:1] + rows[1:2]]), seed)
    assert np.array_equal(found[:, 0] + found[:, 1], found[:, 4])
    assert np.abs(found[:, 3].view(np.int64)).max() < 6 * (20_000 / 2) ** 0.5
    single = np.zeros((1, 20_000), np.uint64)
    single[0, -1] = 2**63 + 12345
    values = set(check.combined(single, seed)[:, 0].tolist())
    assert values == {0, 2**63 + 12345, 2**64 - 2**63 - 12345}


def test_every_kind_of_randomness_fits_together_and_differs_between_labels():
    from fedveil.transport.duo.stream import Stream

    sizes = {"and": (9,), "cross": (9,), "bit": (20, 8), "product": (5, 24), "mask": (3, 8), "scale": (2, 8)}
    sizes |= {"mix": (3, 8), "select": (16,), "shift": (6, 3)}
    assert sizes.keys() == KINDS.keys()
    for kind, numbers in sizes.items():
        drawn = [KINDS[kind].draw(Stream(ONE, label), True, numbers) for label in ("a", "a", "b")]
        assert all(np.array_equal(x, y) for x, y in zip(drawn[0], drawn[1], strict=True))
        assert not any(np.array_equal(x, y) for x, y in zip(drawn[0], drawn[2], strict=True))

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedveil.core.errors import Refused
from fedveil.data import partition as ways

RANDOM = ["iid", "dirichlet", "shards", "classes", "quantity"]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels(rows: int = 2000, classes: int = 10) -> np.ndarray:
    return rng(1).integers(0, classes, rows)


def skew(parts: list[np.ndarray], y: np.ndarray) -> float:
    """Mean total variation between a client's labels and everybody's."""
    whole = np.bincount(y) / len(y)
    own = [np.bincount(y[part], minlength=len(whole)) / len(part) for part in parts]
    return float(np.mean([np.abs(p - whole).sum() / 2 for p in own]))


@given(
    way=st.sampled_from(RANDOM),
    rows=st.integers(1, 300),
    classes=st.integers(1, 6),
    population=st.integers(1, 12),
    min_samples=st.integers(1, 12),
    seed=st.integers(0, 1000),
    parameter=st.sampled_from([None, 1, 2, 3]),
)
def test_a_partition_is_disjoint_covers_everything_and_meets_the_minimum(
    way: str, rows: int, classes: int, population: int, min_samples: int, seed: int, parameter: int | None
) -> None:
    y = rng(seed).integers(0, classes, rows)
    own = {"shards": "shards", "classes": "classes_per_client", "dirichlet": "alpha", "quantity": "alpha"}
    settings: dict[str, Any] = {"min_samples": min_samples}
    if parameter is not None and way in own:
        settings[own[way]] = parameter
    try:
        parts = ways.PARTITIONS[way](y, population, rng(seed), **settings)
    except Refused:
        assume(False)
    assert len(parts) == population
    assert all(part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(rows))
    assert min(map(len, parts)) >= min_samples
    again = ways.PARTITIONS[way](y, population, rng(seed), **settings)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("way", RANDOM)
def test_another_seed_gives_another_partition(way: str) -> None:
    one, two = (ways.PARTITIONS[way](labels(), 10, rng(seed)) for seed in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("way", RANDOM)
def test_the_rows_of_a_client_do_not_depend_on_how_labels_are_numbered(way: str) -> None:
    one = ways.PARTITIONS[way](labels(), 10, rng(0))
    two = ways.PARTITIONS[way](labels() * 7 + 3, 10, rng(0))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_iid_sizes_differ_by_at_most_one() -> None:
    sizes = [len(part) for part in ways.iid(labels(1003), 10, rng())]
    assert max(sizes) - min(sizes) == 1


def test_dirichlet_skew_grows_as_alpha_falls() -> None:
    y = labels(20_000)
    found = [
        np.mean([skew(ways.dirichlet(y, 20, rng(s), alpha=alpha, min_samples=1), y) for s in range(5)])
        for alpha in (100.0, 1.0, 0.3, 0.1)
    ]
    assert found == sorted(found)
    assert found[0] < 0.1
    assert found[-1] > 0.6


def test_dirichlet_shares_have_the_variance_of_the_distribution() -> None:
    y = np.zeros(100_000, np.int64)
    population, alpha = 50, 0.5
    shares = [
        [len(p) / len(y) for p in ways.dirichlet(y, population, rng(s), alpha=alpha, min_samples=1)]
        for s in range(40)
        if _possible(y, population, alpha, s)
    ]
    mean = 1 / population
    expected = mean * (1 - mean) / (population * alpha + 1)
    # conditioning on no empty client (alpha is well above 0) moves the variance little
    assert np.var(shares) == pytest.approx(expected, rel=0.15)


def _possible(y: np.ndarray, population: int, alpha: float, seed: int) -> bool:
    try:
        ways.dirichlet(y, population, rng(seed), alpha=alpha, min_samples=1)
    except Refused:
        return False
    return True


def test_dirichlet_is_fast_for_60000_rows_and_1000_clients() -> None:
    y = labels(60_000)
    start = time.perf_counter()
    parts = ways.dirichlet(y, 1000, rng(), alpha=0.5, min_samples=1)
    assert len(parts) == 1000
    assert time.perf_counter() - start < 5  # takes 0.1 s; a loaded machine may take longer


def test_a_client_with_two_shards_sees_few_classes() -> None:
    y = np.repeat(np.arange(10), 100)
    parts = ways.shards(y, 50, rng(), shards=2)
    assert max(len(np.unique(y[part])) for part in parts) <= 2
    assert {len(part) for part in parts} == {20}


def test_shards_split_a_regression_by_value() -> None:
    y = rng().normal(size=400)
    parts = ways.shards(y, 20, rng(), shards=1)
    assert np.mean([np.ptp(y[part]) for part in parts]) < 0.5 * np.ptp(y)


@pytest.mark.parametrize(("population", "each"), [(20, 1), (5, 2), (10, 3), (3, 4), (7, 10)])
def test_each_client_sees_exactly_its_number_of_classes(population: int, each: int) -> None:
    y = np.repeat(np.arange(10), 50)
    for seed in range(5):
        parts = ways.classes(y, population, rng(seed), classes_per_client=each)
        assert {len(np.unique(y[part])) for part in parts} == {each}


def test_quantity_changes_sizes_but_not_labels() -> None:
    y = labels(20_000)
    parts = ways.quantity(y, 10, rng(), alpha=0.5)
    sizes = np.array([len(part) for part in parts])
    assert sizes.max() > 5 * sizes.min() >= 50
    assert skew([part for part in parts if len(part) > 1000], y) < 0.06


def test_natural_gives_each_group_its_rows() -> None:
    groups = np.array([2, 0, 1, 0])
    assert [part.tolist() for part in ways.natural(groups)] == [[1, 3], [2], [0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ways.iid(labels(5), 6, rng()), "population: 6 clients are more than the 5 training rows"),
        (lambda: ways.iid(labels(5), 0, rng()), "population: 0 is not allowed"),
        (lambda: ways.dirichlet(labels(100), 20, rng()), "lower min_samples to 5 or use at most 10 clients"),
        (lambda: ways.quantity(labels(100), 20, rng()), "min_samples: 20 clients with at least 10 rows"),
        (
            lambda: ways.dirichlet(labels(1000), 90, rng(), alpha=0.01),
            r"in 500 draws .* raise alpha \(now 0.01\), lower min_samples, or use fewer clients \(now 90\)",
        ),
        (lambda: ways.dirichlet(labels(), 5, rng(), alpha=0.0), "alpha: 0.0 is not a positive number"),
        (lambda: ways.quantity(labels(), 5, rng(), alpha=-1.0), "alpha: -1.0 is not a positive number"),
        (lambda: ways.dirichlet(rng().normal(size=100), 5, rng()), "'dirichlet' splits by class"),
        (lambda: ways.classes(rng().normal(size=100), 5, rng()), "choose iid, shards or quantity"),
        (lambda: ways.shards(labels(10), 6, rng()), "shards: 6 clients with 2 shards each need 12 shards"),
        (lambda: ways.shards(labels(10), 2, rng(), shards=0), "shards: 0 is not allowed"),
        (
            lambda: ways.shards(labels(11), 5, rng(), shards=2, min_samples=3),
            "min_samples: 5 clients with at least 3 rows each need 15 rows",
        ),
        (
            lambda: ways.shards(labels(11), 3, rng(), shards=3, min_samples=4),
            "need 12 rows, but there are 11",
        ),
        (
            lambda: ways.shards(labels(29), 2, rng(5), shards=3, min_samples=15),
            "need 30 rows, but there are 29",
        ),
        (lambda: ways.classes(labels(), 5, rng(), classes_per_client=11), "more than the 10 classes"),
        (lambda: ways.classes(labels(), 4, rng(), classes_per_client=2), "raise classes_per_client to 3"),
        (
            lambda: ways.classes(np.array([0] * 97 + [1] * 3), 10, rng(), classes_per_client=1, min_samples=9),
            "'classes' never gave every client 9 rows",
        ),
        (
            lambda: ways.natural(np.array([0, 0, 1]), min_samples=2),
            r"leaves 1 of 2 clients with fewer than 2 rows \(the smallest has 1\)",
        ),
        (lambda: ways.iid(labels(), 5, rng(), min_samples=0), "min_samples: 0 is not allowed"),
    ],
)
def test_what_cannot_be_done_is_refused_with_advice(call: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        call()


def test_shards_of_unequal_size_may_miss_the_minimum() -> None:
    # 30 rows in 8 shards: six of 4 rows and two of 3; who is dealt both small ones has 6 rows
    unlucky = [s for s in range(50) if min(map(len, ways.shards(labels(30), 4, rng(s)))) == 6]
    assert 0 < len(unlucky) < 50
    with pytest.raises(Refused, match=r"1 of 4 clients with fewer than 7 rows \(the smallest has 6\)"):
        ways.shards(labels(30), 4, rng(unlucky[0]), min_samples=7)


@pytest.mark.parametrize(
    ("way", "given", "message"),
    [
        ("iid", {"alpha": 0.1}, "alpha: partition 'iid' does not use it; .* choose partition dirichlet or quantity"),
        ("dirichlet", {"shards": 2}, "shards: partition 'dirichlet' does not use it; .* choose partition shards"),
        ("quantity", {"classes_per_client": 2}, "classes_per_client: .* choose partition classes"),
        ("natural", {"alpha": 0.1}, "alpha: partition 'natural' does not use it"),
        ("dirichlt", {}, "partition: 'dirichlt' is unknown; did you mean 'dirichlet'"),
    ],
)
def test_a_parameter_that_is_not_used_is_refused(way: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        ways.settle(way, given)


def test_every_partition_has_its_own_defaults() -> None:
    assert ways.settle("dirichlet", {"alpha": None, "min_samples": None}) == {"alpha": 0.5, "min_samples": 10}
    assert ways.settle("quantity", {}) == {"alpha": 1.0, "min_samples": 10}
    assert ways.settle("shards", {"min_samples": 3}) == {"shards": 2, "min_samples": 3}
    assert ways.settle("classes", {}) == {"classes_per_client": 2, "min_samples": 1}
    assert ways.settle("iid", {}) == ways.settle("natural", {}) == {"min_samples": 1}

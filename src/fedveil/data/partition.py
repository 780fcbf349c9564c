"""Who owns which row: ways to split one data set among clients.

Every function takes the targets ``y``, the number of clients, a generator and its own parameters, and gives
one int64 array of row numbers per client: disjoint, together all rows, at least ``min_samples`` each, or it
refuses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedveil.core.errors import Refused, one_of, positive
from fedveil.data.raw import AnyArray, IntArray

TRIES = 500
"""Draws that a random partition may take until every client has its minimum."""


def iid(y: AnyArray, population: int, rng: np.random.Generator, *, min_samples: int = 1) -> list[IntArray]:
    """Rows at random, sizes equal to within one.

    >>> [len(rows) for rows in iid(np.zeros(10), 3, np.random.default_rng(0))]
    [4, 3, 3]
    """
    _room("iid", len(y), population, min_samples)
    return np.array_split(rng.permutation(len(y)), population)


def dirichlet(
    y: AnyArray, population: int, rng: np.random.Generator, *, alpha: float = 0.5, min_samples: int = 10
) -> list[IntArray]:
    """Each class is shared out by a draw from Dirichlet(alpha): the smaller alpha, the more clients differ.

    Yurochkin et al. 2019, as in Flower's and FL-bench's partitioners; the draw is repeated, at most ``TRIES``
    times, until every client has ``min_samples`` rows.
    """
    positive(alpha=alpha)
    _room("dirichlet", len(y), population, min_samples)
    labels, counts = _labels("dirichlet", y)

    def draw() -> IntArray:
        shares = rng.dirichlet(np.full(population, alpha), size=len(counts))
        cuts = np.rint(np.cumsum(shares, axis=1) * counts[:, None]).astype(np.int64)
        cuts[:, -1] = counts
        return np.diff(cuts, axis=1, prepend=0)

    advice = f"raise alpha (now {alpha:g}), lower min_samples, or use fewer clients (now {population})"
    return _deal(labels, _redraw("dirichlet", draw, min_samples, advice), rng)


def shards(
    y: AnyArray, population: int, rng: np.random.Generator, *, shards: int = 2, min_samples: int = 1
) -> list[IntArray]:
    """Rows sorted by target, cut into equal shards, ``shards`` of them per client (McMahan et al. 2017)."""
    _whole("shards", shards)
    _room("shards", len(y), population, min_samples)
    if population * shards > len(y):
        raise Refused(
            f"shards: {population} clients with {shards} shards each need {population * shards} shards, but "
            f"there are {len(y)} rows; use fewer shards or fewer clients"
        )
    by_target = np.lexsort((rng.random(len(y)), y))
    pieces = np.array_split(by_target, population * shards)
    hands = rng.permutation(len(pieces)).reshape(population, shards)
    parts = [np.concatenate([pieces[piece] for piece in hand]) for hand in hands]
    _enough("shards", parts, min_samples, "lower min_samples, or use fewer clients")
    return parts


def classes(
    y: AnyArray,
    population: int,
    rng: np.random.Generator,
    *,
    classes_per_client: int = 2,
    min_samples: int = 1,
) -> list[IntArray]:
    """Each client sees ``classes_per_client`` random classes; a class is shared equally by those who see it.

    Every class that occurs is given to at least one client.
    """
    _whole("classes_per_client", classes_per_client)
    _room("classes", len(y), population, min_samples)
    labels, counts = _labels("classes", y)
    if classes_per_client > len(counts):
        raise Refused(
            f"classes_per_client: {classes_per_client} is more than the {len(counts)} classes that occur; "
            f"give at most {len(counts)}"
        )
    if population * classes_per_client < len(counts):
        raise Refused(
            f"classes_per_client: {population} clients with {classes_per_client} classes each cannot cover "
            f"{len(counts)} classes; raise classes_per_client to {-(-len(counts) // population)} or use more "
            "clients"
        )

    def draw() -> IntArray:
        sees = _choose(len(counts), population, classes_per_client, rng)
        rank = np.cumsum(sees, axis=1) - 1  # place of a client among those who see the class
        each, rest = np.divmod(counts, sees.sum(axis=1))
        return np.where(sees, each[:, None] + (rank < rest[:, None]), 0)

    advice = "lower min_samples, or use fewer clients"
    return _deal(labels, _redraw("classes", draw, min_samples, advice), rng)


def quantity(
    y: AnyArray, population: int, rng: np.random.Generator, *, alpha: float = 1.0, min_samples: int = 10
) -> list[IntArray]:
    """Sizes differ, labels do not: ``min_samples`` rows for everyone, the rest by Dirichlet(alpha)."""
    positive(alpha=alpha)
    _room("quantity", len(y), population, min_samples)
    rest = len(y) - population * min_samples
    cuts = np.rint(np.cumsum(rng.dirichlet(np.full(population, alpha))) * rest).astype(np.int64)
    cuts[-1] = rest
    sizes = np.diff(cuts, prepend=0) + min_samples
    return np.split(rng.permutation(len(y)), np.cumsum(sizes)[:-1])


def natural(groups: IntArray, *, min_samples: int = 1) -> list[IntArray]:
    """Rows of each natural client, who are numbered ``0 .. G - 1``.

    >>> [rows.tolist() for rows in natural(np.array([1, 0, 1]))]
    [[1], [0, 2]]
    """
    _whole("min_samples", min_samples)
    parts = _gather(groups, int(groups.max()) + 1)
    _enough("natural", parts, min_samples, "lower min_samples, or leave these clients out")
    return parts


PARTITIONS: dict[str, Callable[..., list[IntArray]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "shards": shards,
    "classes": classes,
    "quantity": quantity,
    "natural": natural,
}


def parameters(partition: str) -> dict[str, Any]:
    """A partition's own parameters and their defaults.

    >>> parameters("dirichlet")
    {'alpha': 0.5, 'min_samples': 10}
    """
    signature = inspect.signature(PARTITIONS[partition])
    return {p.name: p.default for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}


def settle(partition: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in a partition's defaults; a parameter that it does not use is refused, naming those that do."""
    one_of("partition", partition, PARTITIONS)
    chosen = {name: value for name, value in given.items() if value is not None}
    known = parameters(partition)
    for name in chosen:
        if name not in known:
            users = [other for other in PARTITIONS if name in parameters(other)]
            raise Refused(
                f"{name}: partition {partition!r} does not use it; leave it out, or choose partition "
                f"{' or '.join(users)}"
            )
    return known | chosen


def _whole(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise Refused(f"{name}: {value!r} is not allowed; give a whole number from 1 up")


def _room(partition: str, rows: int, population: int, min_samples: int) -> None:
    _whole("population", population)
    _whole("min_samples", min_samples)
    if population > rows:
        raise Refused(
            f"population: {population} clients are more than the {rows} training rows; use at most {rows} clients"
        )
    if population * min_samples > rows:
        raise Refused(
            f"min_samples: {population} clients with at least {min_samples} rows each need "
            f"{population * min_samples} rows, but there are {rows}; lower min_samples to "
            f"{rows // population} or use at most {rows // min_samples} clients"
        )


def _labels(partition: str, y: AnyArray) -> tuple[IntArray, IntArray]:
    """Number the classes that occur without gaps, and count them."""
    if y.dtype.kind not in "iu":
        raise Refused(
            f"partition: {partition!r} splits by class, but the target is a number; choose iid, shards or quantity"
        )
    _, numbered, counts = np.unique(y, return_inverse=True, return_counts=True)
    return numbered, counts


def _redraw(partition: str, draw: Callable[[], IntArray], min_samples: int, advice: str) -> IntArray:
    """Draw ``(classes, population)`` counts until everyone has the minimum; only then are rows dealt."""
    for _ in range(TRIES):
        counts = draw()
        if counts.sum(axis=0).min() >= min_samples:
            return counts
    raise Refused(
        f"min_samples: in {TRIES} draws partition {partition!r} never gave every client {min_samples} rows; {advice}"
    )


def _deal(labels: IntArray, counts: IntArray, rng: np.random.Generator) -> list[IntArray]:
    """Deal random rows of each class by ``counts``, shape ``(classes, population)``."""
    population = counts.shape[1]
    shuffled = np.lexsort((rng.random(len(labels)), labels))
    owners = np.empty(len(labels), dtype=np.int64)
    owners[shuffled] = np.repeat(np.tile(np.arange(population), len(counts)), counts.ravel())
    return _gather(owners, population)


def _gather(owners: IntArray, population: int) -> list[IntArray]:
    order = np.argsort(owners, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owners, minlength=population))[:-1])


def _choose(count: int, population: int, each: int, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Random ``each`` of ``count`` classes per client, every class chosen by somebody."""
    sees = np.zeros((count, population), dtype=bool)
    favourites = np.argsort(rng.random((count, population)), axis=0)[:each]
    sees[favourites, np.arange(population)] = True
    for missing in np.flatnonzero(~sees.any(axis=1)):
        spare = rng.choice(np.argwhere(sees & (sees.sum(axis=1) > 1)[:, None]))
        sees[spare[0], spare[1]], sees[missing, spare[1]] = False, True
    return sees


def _enough(partition: str, parts: list[IntArray], min_samples: int, advice: str) -> None:
    sizes = np.array([len(part) for part in parts])
    if sizes.min() < min_samples:
        raise Refused(
            f"min_samples: partition {partition!r} leaves {int((sizes < min_samples).sum())} of {len(sizes)} "
            f"clients with fewer than {min_samples} rows (the smallest has {sizes.min()}); {advice}"
        )

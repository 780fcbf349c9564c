"""Share a data set out among clients; test rows and held-out rows are kept apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedveil.core.errors import Refused, fraction
from fedveil.core.federation import Examples
from fedveil.core.streams import stream
from fedveil.data import partition as ways
from fedveil.data.pooled import Pooled
from fedveil.data.raw import AnyArray, FloatArray, IntArray, Raw

POPULATION = 20
"""Clients when nobody says how many and the data has no natural clients."""


def federate(
    raw: Raw,
    *,
    seed: int,
    population: int | None = None,
    partition: str | None = None,
    alpha: float | None = None,
    shards: int | None = None,
    classes_per_client: int | None = None,
    min_samples: int | None = None,
    holdout: float = 0.1,
    test_fraction: float = 0.2,
) -> Pooled:
    """Share ``raw`` out among clients; the same seed gives the same federation.

    partition
        natural (the default where the data has natural clients), iid (the default elsewhere), dirichlet,
        shards, classes or quantity; ``min_samples`` counts a client's rows before ``holdout`` is taken off.
    holdout
        share of each client's rows that it keeps to measure its own accuracy; with two rows or more at least
        one is held out and one is left for training.
    test_fraction
        share of the rows that becomes the common test set, equal in every class and natural client; not used
        when the source has an official test set.

    >>> from fedveil.data.bundled import digits
    >>> data = federate(digits(), seed=1, population=10, partition="dirichlet", alpha=0.3)
    >>> data.population, len(data.test), int(data.sizes.min()) >= 9
    (10, 360, True)
    """
    fraction(holdout=holdout, test_fraction=test_fraction)
    way = partition if partition is not None else ("iid" if raw.groups is None else "natural")
    given = {
        "alpha": alpha,
        "shards": shards,
        "classes_per_client": classes_per_client,
        "min_samples": min_samples,
    }
    chosen = ways.settle(way, given)
    count = _population(raw, way, population)

    rows, test_rows = _split_test(raw, way, test_fraction, seed)
    y = raw.y.numpy()
    if way == "natural" and raw.groups is not None:
        parts = ways.natural(raw.groups[rows], **chosen)
    else:
        parts = ways.PARTITIONS[way](y[rows], count, stream(seed, "partition", "clients"), **chosen)
    owned = rows[np.concatenate(parts)]
    train, sizes, kept, kept_sizes = _keep(owned, np.array([len(p) for p in parts]), holdout, seed)

    test = raw.test if raw.test is not None else _take(raw, test_rows)
    return Pooled(
        name=raw.name,
        input_shape=tuple(raw.x.shape[1:]),
        classes=raw.classes,
        sizes=sizes,
        test=test,
        private_statistics=raw.private_statistics,
        pool=_take(raw, train),
        starts=_starts(sizes),
        kept=_take(raw, kept),
        kept_starts=_starts(kept_sizes),
        names=raw.group_names if way == "natural" else None,
        about={
            "source": raw.name,
            "population": count,
            "classes": raw.classes,
            "input_shape": list(raw.x.shape[1:]),
            "partition": way,
            **chosen,
            "seed": seed,
            "train_rows": len(train),
            "holdout_rows": len(kept),
            "test_rows": len(test),
            "test_set": "official" if raw.test is not None else "random",
            "holdout": holdout,
            "test_fraction": None if raw.test is not None else test_fraction,
            **({"labels": list(raw.labels)} if raw.labels else {}),
            **({"columns": list(raw.columns)} if raw.columns else {}),
            "smallest_client": int(sizes.min()),
            "median_client": float(np.median(sizes)),
            "largest_client": int(sizes.max()),
            "private_statistics": raw.private_statistics,
        },
    )


def _population(raw: Raw, way: str, population: int | None) -> int:
    if way != "natural":
        return POPULATION if population is None else population
    others = ", ".join(name for name in ways.PARTITIONS if name != "natural")
    if raw.groups is None:
        raise Refused(f"partition: {raw.name} has no natural clients; choose one of {others}")
    count = int(raw.groups.max()) + 1
    if population not in (None, count):
        raise Refused(
            f"population: {population} clients, but {raw.name} has {count} natural clients; leave population "
            f"out, or choose another partition: {others}"
        )
    return count


def _split_test(raw: Raw, way: str, test_fraction: float, seed: int) -> tuple[IntArray, IntArray]:
    """Row numbers for the clients and for the test set, both in ascending order."""
    every = np.arange(len(raw))
    if raw.test is not None:
        return every, every[:0]
    groups = np.zeros(len(raw), np.int64) if raw.groups is None else raw.groups
    strata = groups * raw.classes + raw.y.numpy() if raw.classes else groups
    rng = stream(seed, "partition", "test")
    chosen = _systematic(strata, test_fraction, rng)
    if way == "natural":  # a client whose every row was chosen gets one back
        emptied = np.flatnonzero(np.bincount(groups[~chosen], minlength=int(groups.max()) + 1) == 0)
        _, first = np.unique(groups, return_index=True)
        chosen[first[emptied]] = False
    if not chosen.any() or chosen.all():
        raise Refused(
            f"test_fraction: {test_fraction:g} of {len(raw)} rows leaves no test rows or no training rows; "
            "give a share such as 0.2, or more rows"
        )
    return every[~chosen], every[chosen]


def _systematic(strata: AnyArray, share: float, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Choose a share of the rows at random, to within one row in every stratum and in total.

    Rows are shuffled inside their stratum, laid out stratum after stratum, and every (1/share)-th is taken.
    """
    order = np.lexsort((rng.random(len(strata)), strata))
    steps = np.floor(np.arange(len(strata) + 1) * share + rng.random())
    chosen = np.zeros(len(strata), dtype=bool)
    chosen[order[np.diff(steps) > 0]] = True
    return chosen


def _keep(owned: IntArray, sizes: IntArray, holdout: float, seed: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Split each client's rows at random: rows and sizes for training, rows and sizes held out."""
    kept_sizes = np.rint(sizes * holdout).astype(np.int64)
    if holdout > 0:
        kept_sizes = np.clip(kept_sizes, np.minimum(1, sizes - 1), sizes - 1)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    draw: FloatArray = stream(seed, "partition", "holdout").random(len(owned))
    shuffled = owned[np.lexsort((draw, owner))]
    place = np.arange(len(owned)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    held = place < np.repeat(kept_sizes, sizes)
    return shuffled[~held], sizes - kept_sizes, shuffled[held], kept_sizes


def _starts(sizes: IntArray) -> IntArray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _take(raw: Raw, rows: IntArray) -> Examples:
    index = torch.from_numpy(rows)
    return Examples(raw.x[index], raw.y[index])

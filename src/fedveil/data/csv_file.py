"""A user's own table in a CSV file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Refused, one_of, suggest
from fedveil.core.federation import Examples
from fedveil.data.encode import one_hot, scaled
from fedveil.data.raw import FloatArray, IntArray, Raw
from fedveil.data.scale import SCALINGS, ordered, private_statistics
from fedveil.data.table import Table, absent, codes, numeric, read_table

MISSING = ("?", "-9", "")


@dataclass(frozen=True)
class _Schema:
    """How each column becomes inputs, settled on the training table and used for the test table too."""

    markers: tuple[str, ...]
    scaling: str
    numeric: dict[str, tuple[tuple[float, float] | None, bool]]
    categorical: dict[str, tuple[str, ...]]

    @property
    def names(self) -> tuple[str, ...]:
        """What each input stands for."""
        plain = [
            n for name, (_, gaps) in self.numeric.items() for n in ((name, f"{name} missing") if gaps else (name,))
        ]
        return (*plain, *(f"{name}={value}" for name, known in self.categorical.items() for value in known))


def csv(
    *,
    path: str,
    label: str,
    target: str = "class",
    labels: list[str | float] | None = None,
    categorical: list[str] | None = None,
    categories: dict[str, list[str | float]] | None = None,
    missing: list[str] | None = None,
    gaps: list[str] | None = None,
    bounds: dict[str, list[float]] | None = None,
    client: str | None = None,
    drop: list[str] | None = None,
    scaling: str = "bounds",
    delimiter: str = ",",
    test: str | None = None,
) -> Raw:
    """A table with a header line: one row per example, the label in column ``label``.

    target
        ``class`` (labels are numbered in sorted order) or ``number`` (a regression).
    labels
        the public list of labels, numbered in this order; needed where a file may lack some of them, as each of many
        sites' files may.
    categorical, categories
        columns to one-hot encode, and the public list of categories of a column. Without a list the
        categories found in the file count as public schema.
    missing
        texts that mean "not known" (``?``, ``-9`` and empty). A missing number becomes the midpoint of its
        bounds and gets an indicator column; a missing category is a row of zeros; a missing label is refused.
    gaps
        the numeric columns that may lack values and have an indicator column, in every file alike; null: those that
        lack some in this file.
    bounds, scaling
        ``bounds`` maps the public range ``[low, high]`` of each numeric column to 0..1 and clips; ``pooled``
        standardises with the statistics of all rows, which is not private and is declared; ``none`` leaves
        numbers.
    client
        the column that says whose row it is. ``drop`` names columns that are no inputs, ``test`` a second
        file with the same columns to be the test set.
    """
    one_of("scaling", scaling, SCALINGS)
    one_of("target", target, ("class", "number"))
    if test is not None and scaling == "pooled":
        raise Refused(
            "scaling: 'pooled' statistics are not carried over to a test file; give bounds, or leave test out"
        )
    table = read_table(Path(path).expanduser(), delimiter)
    markers = tuple(MISSING if missing is None else missing)
    table.column("label", label)
    for name in drop or ():
        table.column("drop", name)
    if client is not None:
        table.column("client", client)
    inputs = [name for name in table.columns if name not in {label, client, *(drop or ())}]
    if not inputs:
        raise Refused(f"path: {path} has no column left for inputs; add one, or drop fewer")
    schema = _settle(table, inputs, markers, scaling, categorical or [], categories or {}, bounds or {}, gaps)
    listed = None if labels is None else tuple(str(value) for value in labels)
    if listed is not None and (target != "class" or len(set(listed)) < len(listed) or not listed):
        raise Refused("labels: they name the classes of target=class, each once; leave them out, or mend the list")
    y, names = _labels(table, label, markers, target, listed, listed is not None)
    held: Examples | None = None
    if test is not None:
        other = read_table(Path(test).expanduser(), delimiter)
        held = Examples(_encode(other, schema), _labels(other, label, markers, target, names, listed is not None)[0])
    groups, group_names = (None, None) if client is None else _owners(table, client, markers)
    return Raw(
        name=Path(path).stem,
        x=_encode(table, schema),
        y=y,
        classes=len(names),
        test=held,
        groups=groups,
        group_names=group_names,
        private_statistics=private_statistics(scaling),
        labels=names or None,
        columns=schema.names,
    )


def _settle(
    table: Table,
    inputs: list[str],
    markers: tuple[str, ...],
    scaling: str,
    categorical: Sequence[str],
    categories: dict[str, list[str | float]],
    bounds: dict[str, list[float]],
    gaps: Sequence[str] | None,
) -> _Schema:
    options = (("categorical", categorical), ("categories", categories), ("bounds", bounds), ("gaps", gaps or ()))
    for setting, named in options:
        for name in named:
            if name not in inputs:
                raise Refused(f"{setting}: {name!r} is not an input column; {suggest(name, inputs)}")
    kinds = {*categorical, *categories}
    for setting, named in (("bounds", bounds), ("gaps", gaps or ())):
        for name in named:
            if name in kinds:
                raise Refused(
                    f"{setting}: column {name!r} is categorical and has no numbers; remove it from one of the two"
                )
    known: dict[str, tuple[str, ...]] = {}
    for name in (column for column in inputs if column in kinds):
        texts = table.column("categorical", name)
        listed = categories.get(name)
        known[name] = codes(
            texts[~absent(texts, markers)], None if listed is None else [str(value) for value in listed]
        )[1]
    ranges: dict[str, tuple[tuple[float, float] | None, bool]] = {}
    for name in (column for column in inputs if column not in kinds):
        values = numeric(table, name, markers)
        if scaling == "bounds" and name not in bounds:
            wanted = ", ".join(f"{c}: [low, high]" for c in inputs if c not in {*kinds, *bounds})
            raise Refused(
                f"bounds: numeric column {name!r} has no public range; give 'data.bounds={{{wanted}}}' (in quotes, for "
                "the shell), name it in data.categorical or data.drop, or set data.scaling=pooled (not private) or none"
            )
        lacking = bool(np.isnan(values).any())
        if gaps is not None and lacking and name not in gaps:
            row = int(np.argmax(np.isnan(values))) + 1
            raise Refused(
                f"gaps: row {row} of {table.path.name} has no value in column {name!r}, which is not among the columns "
                "that may lack some; add it to gaps, or fill the value in"
            )
        ranges[name] = (
            ordered(name, bounds[name]) if name in bounds and scaling == "bounds" else None,
            lacking if gaps is None else name in gaps,
        )
    return _Schema(markers, scaling, ranges, known)


def _encode(table: Table, schema: _Schema) -> Tensor:
    blocks: list[FloatArray] = []
    for name, (bounds, indicator) in schema.numeric.items():
        values = numeric(table, name, schema.markers)
        if np.isnan(values).any() and not indicator:
            raise Refused(
                f"test: {table.path.name} lacks values in column {name!r}, which is complete in the training "
                "file; fill them in or leave these rows out"
            )
        blocks.append(scaled(values, schema.scaling, bounds, indicator))
    for name, known in schema.categorical.items():
        texts = table.column("categorical", name)
        code, _, other = codes(texts, known)
        wrong = other & ~absent(texts, schema.markers)
        if wrong.any():
            raise Refused(
                f"categories: row {int(np.argmax(wrong)) + 1} of {table.path.name} holds "
                f"{str(texts[wrong][0])!r} in column {name!r}; allowed: {', '.join(known)}; add it to "
                "categories or to missing"
            )
        blocks.append(one_hot(code, len(known)))
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is refused in words
        return torch.from_numpy(np.concatenate(blocks, axis=1).astype(np.float32))


def _labels(
    table: Table, label: str, markers: tuple[str, ...], target: str, known: tuple[str, ...] | None, listed: bool = False
) -> tuple[Tensor, tuple[str, ...]]:
    texts = table.column("label", label)
    none = absent(texts, markers)
    if none.any():
        raise Refused(
            f"label: row {int(np.argmax(none)) + 1} of {table.path.name} has no label in column {label!r} "
            f"({str(texts[none][0])!r}); remove the rows without a label, or take that text out of missing"
        )
    if target == "number":
        return torch.from_numpy(numeric(table, label, ()).astype(np.float32)), ()
    code, names, other = codes(texts, known)
    if other.any():
        setting, where = ("labels", "the list") if listed else ("test", "the training file")
        raise Refused(
            f"{setting}: row {int(np.argmax(other)) + 1} of {table.path.name} has the label "
            f"{str(texts[other][0])!r}, which {where} does not have; mend the row, or add the label to {where}"
        )
    return torch.from_numpy(code), names


def _owners(table: Table, client: str, markers: tuple[str, ...]) -> tuple[IntArray, tuple[str, ...]]:
    texts = table.column("client", client)
    none = absent(texts, markers)
    if none.any():
        raise Refused(
            f"client: row {int(np.argmax(none)) + 1} of {table.path.name} names no client in column "
            f"{client!r} ({str(texts[none][0])!r}); give every row an owner"
        )
    names, groups = np.unique(texts, return_inverse=True)
    return groups.astype(np.int64), tuple(names.tolist())

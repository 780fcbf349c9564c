"""Read a table of text and turn its columns into numbers, one whole column at a time."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedveil.core.errors import Refused, suggest
from fedveil.data.raw import AnyArray, FloatArray, IntArray, TextArray

Flags = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of text by name, in the order of the file; each has ``rows`` entries, stripped of blanks."""

    path: Path
    columns: dict[str, TextArray]
    rows: int

    def column(self, setting: str, name: str) -> TextArray:
        """One column; a name that the table does not have is refused with a suggestion."""
        if name not in self.columns:
            raise Refused(f"{setting}: {self.path.name} has no column {name!r}; {suggest(name, self.columns)}")
        return self.columns[name]


def read_table(path: Path, delimiter: str = ",") -> Table:
    """Read a file of separated values with a header line; ragged, empty and undecodable files are refused."""
    if len(delimiter) != 1:
        raise Refused(f"delimiter: {delimiter!r} is not one character; give one, such as ',' or ';'")
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = [row for row in csv.reader(lines, delimiter=delimiter, strict=True) if row]
    except FileNotFoundError as error:
        raise Refused(f"path: there is no file {path}; give the path of a file that exists") from error
    except OSError as error:
        raise Refused(f"path: {path} cannot be read ({error.strerror}); give a readable file") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise Refused(f"path: {path} is not a table of UTF-8 text ({error}); save it as CSV in UTF-8") from error
    if len(rows) < 2:
        raise Refused(f"path: {path} has no rows; give a header line with column names, then one line per row")
    header = [name.strip() for name in rows[0]]
    if len(set(header)) < len(header) or "" in header:
        raise Refused(f"path: the header of {path} names a column twice or not at all; give each column its own name")
    widths = np.fromiter(map(len, rows), np.int64, len(rows))
    if (widths != len(header)).any():
        row = int(np.argmax(widths != len(header)))
        raise Refused(
            f"path: row {row} of {path} has {widths[row]} values, but the header names {len(header)} "
            "columns; repair that row (rows are counted from 1 after the header)"
        )
    columns = zip(*rows[1:], strict=True)
    stripped = {name: np.strings.strip(np.array(values)) for name, values in zip(header, columns, strict=True)}
    return Table(path, stripped, len(rows) - 1)


def numbers(texts: AnyArray) -> FloatArray | None:
    """The column as numbers, or None if any entry is not one.

    >>> numbers(np.array(["1", "2.5"])).tolist(), numbers(np.array(["1", "x"]))
    ([1.0, 2.5], None)
    """
    try:
        return texts.astype(np.float64)
    except ValueError:
        return None


def absent(texts: TextArray, markers: Sequence[str]) -> Flags:
    """Which entries are missing; a marker that is a number also matches other spellings of it.

    >>> absent(np.array(["?", "-9.0", "3"]), ["?", "-9"]).tolist()
    [True, True, False]
    """
    missing: Flags = np.isin(texts, np.array(list(markers), dtype=np.str_))
    values = np.array([float(m) for m in markers if numbers(np.array([m])) is not None])
    if values.size and not missing.all():
        unique, inverse = np.unique(texts, return_inverse=True)
        parsed = [_number(text) for text in unique.tolist()]  # distinct spellings only, not rows
        missing = missing | np.isin(np.array(parsed), values)[inverse]
    return missing


def numeric(table: Table, name: str, markers: Sequence[str]) -> FloatArray:
    """A numeric column with NaN where it is missing; text in it is refused with its row."""
    texts = table.column("columns", name)
    missing = absent(texts, markers)
    known = np.where(missing, "0", texts)
    values = numbers(known)
    if values is None or not np.isfinite(values).all():
        row = next(i for i, text in enumerate(known.tolist()) if not np.isfinite(_number(text)))
        raise Refused(
            f"column {name!r}: row {row + 1} of {table.path.name} holds {str(texts[row])!r}, which is not a "
            "number; name the column in data.categorical, or as data.client if it says whose row this is, or add the "
            "value to data.missing"
        )
    return np.where(missing, np.nan, values)


def codes(texts: TextArray, known: Sequence[str] | None = None) -> tuple[IntArray, tuple[str, ...], Flags]:
    """Number the categories of a column: codes, category names, and which entries are in no known category.

    Without ``known`` the categories found are taken, sorted (by value when all are numbers); numbers match in
    any spelling. An entry in no category has code -1.

    >>> codes(np.array(["b", "a", "b"]))[:2]
    (array([1, 0, 1]), ('a', 'b'))
    >>> codes(np.array(["10", "9.0", "9"]))[:2]
    (array([1, 0, 0]), ('9', '10'))
    """
    unique, inverse = np.unique(texts, return_inverse=True)
    spelled = [_spell(text) for text in unique.tolist()]  # distinct spellings only, not rows
    if known is None:
        names = sorted(set(spelled), key=_order) if numbers(unique) is not None else sorted(set(spelled))
    else:
        names = [_spell(str(category)) for category in known]
        if len(set(names)) < len(names):
            raise Refused(f"categories: {list(known)} names a category twice; name each once")
    place = {name: i for i, name in enumerate(names)}
    code = np.array([place.get(name, -1) for name in spelled], dtype=np.int64)[inverse]
    return code, tuple(names), code < 0


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _order(text: str) -> float:
    return float(text)


def _spell(text: str) -> str:
    value = _number(text)
    return f"{value:.15g}" if np.isfinite(value) else text

"""UCI Heart Disease: 920 patients of four hospitals, a natural federation of four clients.

Ranges and categories are public medical knowledge (the documentation of the data set and physiology), written
down here and never computed from the patients, so that preparing the inputs costs no privacy.
"""

from __future__ import annotations

import numpy as np
import torch

from fedveil.core.errors import Refused
from fedveil.data.encode import one_hot, scaled
from fedveil.data.raw import FloatArray, IntArray, Raw
from fedveil.data.root import find
from fedveil.data.table import Table, absent, codes, numeric, read_table

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
MISSING = ("?", "-9", "")

# Column: meaning, bounds, whether it may be missing (and so has an indicator column).
NUMERIC: dict[str, tuple[str, tuple[float, float], bool]] = {
    "X1": ("age in years", (0.0, 100.0), False),
    "X4": ("resting blood pressure, mm Hg", (60.0, 220.0), True),
    "X5": ("serum cholesterol, mg/dl", (80.0, 600.0), True),
    "X8": ("highest heart rate reached, 1/min", (50.0, 220.0), True),
    "X10": ("ST depression under exercise, mm", (-3.0, 7.0), True),
}
# Nobody alive has a blood pressure or a cholesterol of 0, and 0 is no thallium finding: the files write 0
# there where nothing was measured.
ZERO_IS_MISSING = ("X4", "X5", "X13")
# Column: meaning, categories. A missing category is a row of zeros.
CATEGORICAL: dict[str, tuple[str, tuple[str, ...]]] = {
    "X2": ("sex", ("0", "1")),
    "X3": ("chest pain type", ("1", "2", "3", "4")),
    "X6": ("fasting blood sugar above 120 mg/dl", ("0", "1")),
    "X7": ("resting electrocardiogram", ("0", "1", "2")),
    "X9": ("angina under exercise", ("0", "1")),
    "X11": ("slope of the ST segment", ("1", "2", "3")),
    "X12": ("vessels coloured by fluoroscopy", ("0", "1", "2", "3")),
    "X13": ("thallium scan", ("3", "6", "7")),
}


def heart_disease(*, root: str | None = None) -> Raw:
    """Heart disease (class 1: some narrowing, X14 > 0) in four hospitals, as 32 inputs between 0 and 1."""
    paths = find(root, ("heart-disease", "heart_disease"), [f"processed.{name}.data" for name in HOSPITALS])
    tables = [read_table(path) for path in paths]
    x = np.concatenate([_inputs(table) for table in tables])
    y = np.concatenate([_labels(table) for table in tables])
    return Raw(
        name="heart_disease",
        x=torch.from_numpy(x.astype(np.float32)),
        y=torch.from_numpy(y),
        classes=2,
        groups=np.repeat(np.arange(len(tables)), [table.rows for table in tables]),
        group_names=HOSPITALS,
    )


def _inputs(table: Table) -> FloatArray:
    blocks = []
    for name, (_, bounds, indicator) in NUMERIC.items():
        values = numeric(table, name, MISSING)
        if name in ZERO_IS_MISSING:
            values = np.where(values == 0, np.nan, values)
        if not indicator and np.isnan(values).any():
            raise Refused(f"data.root: {table.path} lacks a value in column {name!r}; every patient has one")
        blocks.append(scaled(values, "bounds", bounds, indicator))
    for name, (meaning, known) in CATEGORICAL.items():
        texts = table.column("data.root", name)
        code, _, other = codes(texts, known)
        wrong = other & ~absent(texts, (*MISSING, "0") if name in ZERO_IS_MISSING else MISSING)
        if wrong.any():
            raise Refused(
                f"data.root: row {int(np.argmax(wrong)) + 1} of {table.path} holds {str(texts[wrong][0])!r} "
                f"in column {name!r} ({meaning}); allowed: {', '.join(known)}"
            )
        blocks.append(one_hot(code, len(known)))
    return np.concatenate(blocks, axis=1)


def _labels(table: Table) -> IntArray:
    values = numeric(table, "X14", MISSING)
    if np.isnan(values).any():
        raise Refused(f"data.root: {table.path} lacks a label in column 'X14'; every patient has one")
    return (values > 0).astype(np.int64)

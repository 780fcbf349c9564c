"""One cell: a run with canaries and its audit, kept as one JSON file that is whole or not there."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import fedveil
from experiments.audit.grid import Cell
from experiments.cache import Record
from experiments.dp_methods.cell import NEVER, source
from fedveil.runtime.audit import audit

KEPT = ("claim", "bound", "strict", "chance", "cap", "estimate", "cosine", "canaries", "guesses", "right", "verdict")
KEPT = (*KEPT, "unit", "observer", "accuracy")


def compute(cell: Cell) -> Record:
    """The cell's result; training and audit together took ``seconds`` of the processor and ``wall`` of a clock."""
    started, clock = time.process_time(), time.perf_counter()
    settings = json.loads(cell.settings)
    with tempfile.TemporaryDirectory(prefix="fedveil-audit-") as folder:
        place = Path(folder) / "run"
        fedveil.run(
            out=place, evaluate={"every": settings["rounds"]}, checkpoint={"every": NEVER}, threads=1, **settings
        )
        found = audit(place).to_json()
    seconds = {"seconds": time.process_time() - started, "wall": time.perf_counter() - clock}
    return {name: found[name] for name in KEPT} | seconds | {"key": cell.key, "cell": str(cell), "source": source()}

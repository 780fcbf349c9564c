"""Cells computed by ``fedveil.run``, kept as one JSON file each."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

import fedveil
from experiments.cache import Record
from experiments.ldp_fl.grid import Cell
from fedveil.local.engine import Diverged


def compute(cell: Cell, device: str = "cpu") -> Record:
    """Run the cell on one thread, or on a GPU; a run that diverges is a result."""
    engine = {"device": device, "engine": "fold"} if device != "cpu" else {}
    started, threads = time.process_time(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = fedveil.run(out=Path(folder) / "run", **cell.settings, **engine)
            found = {
                "status": result.summary["status"],
                "accuracy": result.summary["accuracy"],
                "parameters": result.summary["parameters"],
                "bytes_up": result.history[-1]["bytes_up"],
                "statement": result.statement.to_json()["rows"],
            }
    except Diverged as problem:
        found = {"status": f"diverged: {problem}", "accuracy": None, "parameters": 0, "bytes_up": 0, "statement": []}
    finally:
        torch.set_num_threads(threads)
    seconds = time.process_time() - started
    return found | {"key": cell.key, "cell": str(cell), "settings": cell.settings, "seconds": seconds, "device": device}

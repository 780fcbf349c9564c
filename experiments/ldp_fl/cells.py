"""Cells computed by ``fedveil.run``, kept as one JSON file each."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import fedveil
from experiments.ldp_fl.grid import Cell
from fedveil.core.files import write_bytes
from fedveil.local.engine import Diverged

Record = dict[str, Any]


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


class Cache:
    """Finished cells in a folder, named by their key."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def read(self, cell: Cell) -> Record | None:
        """The cell's record; None where there is none, or where its file is damaged."""
        try:
            record = json.loads((self.folder / f"{cell.key}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) and record.get("key") == cell.key else None

    def write(self, record: Record) -> None:
        """Keep a record."""
        write_bytes(self.folder / f"{record['key']}.json", json.dumps(record, indent=1, sort_keys=True).encode())

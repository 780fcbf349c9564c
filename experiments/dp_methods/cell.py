"""One cell: computed by ``fedveil.run`` (or the peer), kept as one JSON file that is whole or not there."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import fedveil
from experiments.dp_methods import opacus_peer
from experiments.dp_methods.grid import Cell
from fedveil.core.files import write_bytes
from fedveil.local.engine import Diverged

Record = dict[str, Any]
NEVER = 1_000_000
FIELDS = ("key", "status", "accuracy", "worst10", "loss", "rounds", "seconds", "lr", "statement", "sigma", "source")


def compute(cell: Cell) -> Record:
    """Run the cell; a run that diverges is a result, any other error is the caller's to report."""
    started = time.process_time()
    settings = json.loads(cell.settings)
    try:
        found = opacus_peer.train(**settings) if cell.entry.kind == "peer" else _run(settings)
    except Diverged as problem:
        found = dict.fromkeys(FIELDS) | {"status": "diverged", "why": str(problem), "rounds": 0, "statement": []}
    return found | {
        "key": cell.key,
        "label": cell.entry.label,
        "cell": str(cell),
        "lr": cell.lr,
        "source": source(),
        "settings": settings,
        "seconds": time.process_time() - started,
    }


def _run(settings: dict[str, Any]) -> Record:
    rounds = settings["rounds"]
    with tempfile.TemporaryDirectory(prefix="fedveil-cell-") as folder:
        result = fedveil.run(
            out=Path(folder) / "run", evaluate={"every": rounds}, checkpoint={"every": NEVER}, threads=1, **settings
        )
        summary = result.summary
        return {
            "status": summary["status"],
            "accuracy": summary["accuracy"],
            "worst10": summary["worst10_accuracy"],
            "loss": summary["loss"],
            "rounds": summary["rounds"],
            "statement": result.statement.to_json()["rows"],
            "sigma": _sigma(Path(folder) / "run" / "ledger.jsonl"),
        }


def _sigma(ledger: Path) -> list[float] | None:
    """The least and the largest noise multiplier of the first round's releases."""
    lines = ledger.read_text().splitlines() if ledger.is_file() else []
    releases = json.loads(lines[0]).get("releases", []) if lines else []
    found = [r["noise_std"] / r["bound"] for r in releases if r.get("noise_std") and r.get("bound")]
    return [min(found), max(found)] if found else None


@cache
def source() -> str:
    """A digest of the source that runs; the version alone does not tell while it is being worked on."""
    root = Path(fedveil.__file__).parent
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


class Cache:
    """Finished cells in a folder, one file each, named by their key."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._known: dict[str, Record] = {}

    def read(self, cell: Cell) -> Record | None:
        """The cell's record; None where there is none, or where its file is damaged."""
        if cell.key not in self._known:
            try:
                record = json.loads((self.folder / f"{cell.key}.json").read_bytes())
            except (OSError, ValueError):
                return None
            if not _whole(record, cell):
                return None
            self._known[cell.key] = record
        return self._known[cell.key]

    def write(self, record: Record) -> None:
        """Keep a record."""
        text = json.dumps(record, indent=1, sort_keys=True)
        write_bytes(self.folder / f"{record['key']}.json", text.encode())
        self._known[record["key"]] = record

    def forget(self, labels: Collection[str], datasets: Collection[str]) -> None:
        """Remove the cells of these rows on these data sets, and damaged ones."""
        self._known.clear()
        for path in self.folder.glob("*.json"):
            try:
                record = json.loads(path.read_bytes())
                label, data = record["label"], record["settings"]["data"]
                chosen = label in labels and (data["name"] if isinstance(data, dict) else data) in datasets
            except (ValueError, KeyError, TypeError):
                chosen = True
            if chosen:
                path.unlink()


def _whole(record: object, cell: Cell) -> bool:
    if not isinstance(record, dict) or record.get("key") != cell.key or any(f not in record for f in FIELDS):
        return False
    accuracy = record["accuracy"]
    return record["status"] == "diverged" or (isinstance(accuracy, float) and 0 <= accuracy <= 1)

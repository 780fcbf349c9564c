"""Finished cells of a study in a folder, one JSON file each, named by their key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from fedveil.core.files import write_bytes

Record = dict[str, Any]


class Keyed(Protocol):
    """A cell: its key changes with whatever shapes its result."""

    @property
    def key(self) -> str:
        """The name of its file."""
        ...


class Cache:
    """The folder that keeps them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def read(self, cell: Keyed) -> Record | None:
        """The cell's record; None where there is none, or where its file is damaged."""
        try:
            record = json.loads((self.folder / f"{cell.key}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) and record.get("key") == cell.key else None

    def write(self, record: Record) -> None:
        """Keep a record."""
        text = json.dumps(record, indent=1, sort_keys=True)
        write_bytes(self.folder / f"{record['key']}.json", text.encode())

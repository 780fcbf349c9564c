"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from fedveil.core.errors import Refused


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file in one step: readers see the old one or the new one, whatever happens in between."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as problem:
        raise Refused(f"{path}: cannot be written ({problem.strerror}); make room, or give another place") from None

"""FedVeil: federated learning that stays private, survives attackers, and proves what it claims."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedveil import data
    from fedveil.api import audit, evaluate, load, resume, run
    from fedveil.core.errors import Refused

__version__ = "0.1.0"
__all__ = ["Refused", "audit", "data", "evaluate", "load", "resume", "run"]

_HOMES = {"Refused": "fedveil.core.errors"} | dict.fromkeys(
    ("audit", "evaluate", "load", "resume", "run"), "fedveil.api"
)


def __getattr__(name: str) -> Any:
    """Import the Python interface when it is first used, so that the command line starts at once."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in ("data", "flower"):
        return importlib.import_module(f"fedveil.{name}")
    raise AttributeError(f"module 'fedveil' has no attribute {name!r}")

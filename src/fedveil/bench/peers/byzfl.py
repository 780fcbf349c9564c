"""byzfl's aggregators alone: the package as a whole imports torchvision, which only its data sets need."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


def installed() -> bool:
    """Whether it can be had."""
    return importlib.util.find_spec("byzfl") is not None


def load() -> Any:
    """The module with all rules, imported without what ``byzfl/__init__.py`` imports besides."""
    if "byzfl" not in sys.modules:
        spec = importlib.util.find_spec("byzfl")
        assert spec is not None
        bare = ModuleType("byzfl")
        bare.__path__ = list(spec.submodule_search_locations or ())
        bare.__spec__ = spec
        sys.modules["byzfl"] = bare
    return importlib.import_module("byzfl.aggregators")

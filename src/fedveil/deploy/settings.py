"""The settings of a run between real sites: looked at before anybody is asked to train."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedveil.core.errors import Refused
from fedveil.runtime.settings import Settings


def read(path: Path) -> dict[str, Any]:
    """The whole configuration; refused where sites could understand it differently."""
    if find_spec("flwr") is None:
        raise Refused("flwr: it is not installed; run pip install 'fedveil[flower]'")
    from fedveil.runtime.flower.server_app import configuration
    from fedveil.runtime.flower.sites import settled

    config = configuration(path)
    Settings.read(config)
    settled(config["data"])
    return config

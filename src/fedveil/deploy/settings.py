"""The settings of a run between real sites: looked at before anybody is asked to train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedveil.core.errors import Refused
from fedveil.runtime.flower.server_app import configuration
from fedveil.runtime.settings import Settings


def read(path: Path) -> dict[str, Any]:
    """The whole configuration; refused where sites could understand it differently."""
    config = configuration(path)
    Settings.read(config)
    node = config["data"]
    if "path" not in node:
        return config
    if node["source"] == "npz" and node["classes"] is None:
        raise Refused("data.classes: a site's file may lack a class; give the number of classes (0: a number)")
    if node["source"] == "csv":
        _check_table(node)
    return config


def _check_table(node: dict[str, Any]) -> None:
    if node["label"] is None:
        raise Refused("data.label: which column is to be predicted? give data.label=...")
    if node["target"] == "class" and node["labels"] is None:
        raise Refused("data.labels: a site's file may lack a class; give the list, such as data.labels=[0,1]")
    if node["scaling"] == "pooled":
        raise Refused("data.scaling: each site would scale by its own rows; use data.bounds, or scaling=none")
    for name in node["categorical"] or ():
        if name not in (node["categories"] or {}):
            raise Refused(
                f"data.categories: sites' files may hold different values in column {name!r}; give them all, as "
                f"data.categories={{{name}: [...]}}"
            )
    if node["gaps"] is None:
        raise Refused(
            "data.gaps: which numeric columns may lack values at a site? give the list, or data.gaps=[] for none"
        )

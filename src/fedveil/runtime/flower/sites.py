"""Data that never leaves its site: what a node has of a federation, and what the server has (DESIGN 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedveil.core.arguments import required, settings
from fedveil.core.errors import Refused, one_of
from fedveil.core.federation import Examples
from fedveil.data import SOURCES
from fedveil.data.raw import IntArray, Raw
from fedveil.runtime.flower.messages import Present
from fedveil.runtime.prepare import build_federation


@dataclass(eq=False, kw_only=True)
class Sites:
    """A federation of which the sizes are known, and the examples of one client (at its node) or none (at the server).

    Examples of others are not there: their number here is zero.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    sizes: IntArray
    test: Examples
    private_statistics: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    own: dict[int, Examples] = field(default_factory=dict, repr=False)
    names: tuple[str, ...] | None = None

    @property
    def population(self) -> int:
        """Number of clients."""
        return len(self.sizes)

    def train(self, client: int) -> Examples:
        """A client's training examples, where they are here."""
        found = self.own.get(client)
        return Examples(self.test.x[:0], self.test.y[:0]) if found is None else found

    def holdout(self, client: int) -> Examples:
        """None are held out: what a site wants to measure it measures itself."""
        return Examples(self.test.x[:0], self.test.y[:0])

    def client_names(self) -> Sequence[str] | None:
        """Names of sites, where they have told them."""
        return self.names

    def label_counts(self) -> IntArray | None:
        """Not known: nobody tells."""
        return None

    def facts(self) -> Mapping[str, Any]:
        """What everybody agrees on."""
        return self.about


@dataclass(frozen=True, eq=False)
class Own:
    """A site's own examples, and what it says about them."""

    examples: Examples
    facts: dict[str, Any]


def own_data(config: Mapping[str, Any], client: int, path: str | None) -> Own:
    """A node's own examples: of its own file, read as the data settings say; else its part of a known data set."""
    if path is None:
        if "path" in config["data"]:
            raise Refused("site.toml: data is missing; a file is read where this site says, and not where a run does")
        whole = build_federation(config)
        if client >= whole.population:
            raise Refused(f"node config: client {client} does not exist; {whole.name} has {whole.population} clients")
        about = whole.facts()
        facts = _facts(whole.name, whole.train(client), whole.classes, about.get("labels"), about.get("columns"))
        return Own(whole.train(client), facts | {"private_statistics": whole.private_statistics})
    raw = _read(config, path)
    examples = Examples(raw.x, raw.y)
    facts = _facts(str(config["data"]["source"]), examples, raw.classes, raw.labels, raw.columns)
    return Own(examples, facts | {"private_statistics": raw.private_statistics})


def settled(node: Mapping[str, Any]) -> None:
    """Refuse data settings that leave something to a site's file, so that sites could understand them differently.

    What a site would have to tell about its file then is also nothing that its budget covers.
    """
    if "path" not in node:
        return
    if node["source"] == "npz" and node["classes"] is None:
        raise Refused("data.classes: a site's file may lack a class; give the number of classes (0: a number)")
    if node["source"] != "csv":
        return
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


def _read(config: Mapping[str, Any], path: str) -> Raw:
    node = {k: v for k, v in config["data"].items() if k != "source"} | {"path": path, "test": None}
    source = str(config["data"]["source"])
    one_of("data", source, [name for name, found in SOURCES.items() if "path" in settings(found.function)])
    function = SOURCES[source].function
    known = settings(function)
    for name in required(function):
        if node.get(name) is None:
            raise Refused(f"data.{name}: sites need it to read their files; give data.{name}=...")
    raw = function(**{name: value for name, value in node.items() if name in known})
    assert isinstance(raw, Raw)
    return raw


def _facts(name: str, examples: Examples, classes: int, labels: Any, columns: Any) -> dict[str, Any]:
    return {
        "name": name,
        "shape": list(examples.x.shape[1:]),
        "classes": classes,
        "tokens": not examples.x.is_floating_point(),
        "labels": list(labels) if labels else None,
        "columns": list(columns) if columns else None,
    }


def at_server(config: Mapping[str, Any], present: Sequence[Present]) -> Sites:
    """The federation of these clients, in order; refused where their data does not mean the same everywhere."""
    found = [agreed(one) for one in present]
    first = found[0]
    for one, facts in zip(present, found, strict=True):
        for what in ("shape", "tokens", "labels", "columns"):
            if facts[what] != first[what]:
                raise Refused(
                    f"data: client {one.client} has {what} {facts[what]}, and client {present[0].client} has "
                    f"{first[what]}; give all sites data alike"
                )
        if one.examples < 1:
            raise Refused(f"data: client {one.client} has no training examples; leave it out")
    classes = max(int(facts["classes"]) for facts in found)
    test = _test(config, first, classes)
    return Sites(
        name=str(first["name"]),
        input_shape=tuple(first["shape"]),
        classes=classes,
        sizes=np.array([one.examples for one in present], dtype=np.int64),
        test=test,
        private_statistics=next((f["private_statistics"] for f in found if f["private_statistics"]), None),
        about={
            "source": first["name"],
            "population": len(present),
            "classes": classes,
            "input_shape": first["shape"],
            "partition": "sites",
            "test_rows": len(test),
            **({"labels": first["labels"]} if first["labels"] else {}),
            **({"columns": first["columns"]} if first["columns"] else {}),
        },
        names=tuple(str(f.get("site") or one.client) for one, f in zip(present, found, strict=True)),
    )


def agreed(one: Present) -> dict[str, Any]:
    """What a node says about its data, if it has the right form."""
    facts = one.facts
    shape = facts.get("shape")
    fine = isinstance(shape, tuple) and all(type(n) is int and n > 0 for n in shape)
    fine = fine and type(facts.get("classes")) is int and 0 <= facts["classes"] < 2**20
    if not fine or one.examples >= 2**40:
        raise Refused(f"data: client {one.client} tells facts about its data that make no sense; leave it out")
    return {"labels": None, "columns": None, "tokens": False, "private_statistics": None, "name": "sites"} | facts


def _test(config: Mapping[str, Any], facts: Mapping[str, Any], classes: int) -> Examples:
    """The server's own test set: a file of its own, the known data set's, or none."""
    path = config["data"].get("test")
    if isinstance(path, str):
        raw = _read(config, str(Path(path).expanduser()))
        shape, labels = list(raw.x.shape[1:]), list(raw.labels or ())
        if shape != list(facts["shape"]) or (facts["labels"] and labels != list(facts["labels"])):
            raise Refused("data.test: its columns or labels are others than those of the sites; give a file alike")
        return Examples(raw.x, raw.y)
    if "path" not in config["data"]:
        return build_federation(config).test
    x = torch.zeros(0, *facts["shape"], dtype=torch.int64 if facts["tokens"] else torch.float32)
    return Examples(x, torch.zeros(0, dtype=torch.int64 if classes else torch.float32))


def at_node(task: Mapping[str, Any], client: int, own: Own) -> Sites:
    """The same federation as a node sees it: sizes of all, examples of its own."""
    x, y = own.examples.x[:0], own.examples.y[:0]
    return Sites(
        name=str(task["name"]),
        input_shape=tuple(task["shape"]),
        classes=int(task["classes"]),
        sizes=np.array(task["sizes"], dtype=np.int64),
        test=Examples(x, y),
        private_statistics=own.facts["private_statistics"],
        own={client: own.examples},
    )


def nothing(task: Mapping[str, Any]) -> Own:
    """What a party has that has no examples."""
    kind = torch.float32 if task["classes"] == 0 else torch.int64
    return Own(Examples(torch.zeros(0, *task["shape"]), torch.zeros(0, dtype=kind)), {"private_statistics": None})


def task_of(sites: Sites) -> dict[str, Any]:
    """What nodes must know of the whole federation."""
    return {
        "name": sites.name,
        "shape": list(sites.input_shape),
        "classes": sites.classes,
        "sizes": sites.sizes.tolist(),
    }

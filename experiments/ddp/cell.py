"""One cell: a run or a measurement, kept as one JSON file that is whole or not there."""

from __future__ import annotations

import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedveil
from experiments.cache import Record
from experiments.ddp.grid import BITS, DELTA, Cell, NoiseCell
from experiments.dp_methods.cell import NEVER, source
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.privacy.clip import clip
from fedveil.privacy.distributed import distribute, finest
from fedveil.privacy.events import Event
from fedveil.privacy.search import noise_multiplier, smallest_multiplier
from fedveil.transport.masks import Masks


def compute(cell: Cell | NoiseCell) -> Record:
    """The cell's result."""
    started = time.process_time()
    found = _run(cell) if isinstance(cell, Cell) else _noise(cell)
    return found | {"key": cell.key, "source": source(), "seconds": time.process_time() - started}


def _run(cell: Cell) -> Record:
    settings = json.loads(cell.settings)
    with tempfile.TemporaryDirectory(prefix="fedveil-cell-") as folder:
        result = fedveil.run(
            *_choices(settings),
            out=Path(folder) / "run",
            evaluate={"every": settings["rounds"]},
            checkpoint={"every": NEVER},
            threads=1,
            **settings,
        )
        events = result.history
        line = json.loads((Path(folder) / "run" / "ledger.jsonl").read_text().splitlines()[0])["releases"][0]
        return {
            "settings": json.loads(cell.settings),
            "accuracy": result.summary["accuracy"],
            "rounds": result.summary["rounds"],
            "aborted": sum("aborted" in e for e in events),
            "bytes_up": sum(e["bytes_up"] for e in events),
            "statement": result.statement.to_json()["rows"],
            "pool": line["pool"],
            "sigma": line["noise_std"] / line["bound"],
        }


def _choices(settings: dict[str, Any]) -> list[str]:
    """A transport's name and its settings, as on the command line."""
    transport = settings.pop("transport", None)
    if transport is None:
        return []
    return [f"transport={transport.pop('name')}", *(f"transport.{name}={value}" for name, value in transport.items())]


def _noise(cell: NoiseCell) -> Record:
    """Deviation of the sum of clients' noises after the whole journey, in units of the clip norm."""
    central = noise_multiplier(cell.epsilon, DELTA, 1.0, cell.rounds)

    def at(sigma: float) -> dict[Event, int]:
        grid = finest(sigma, cell.dim, cell.clients, cell.clients, BITS)
        return {Event("skellam", sigma, grid_std=grid.noise, dim=cell.dim): cell.rounds}

    sigma = smallest_multiplier(at, cell.epsilon, DELTA)
    masks = Masks(bits=BITS, max_dropout=0.0, collusion=0.0)
    client, server = distribute(sigma, norm=1.0, fewest=cell.clients, most=cell.clients, transport=masks)
    layout, everybody = Layout(("w",), ((cell.dim,),)), list(range(cell.clients))
    nothing = Signal(torch.zeros(cell.clients, cell.dim))
    weights, squares, release = torch.ones(cell.clients, dtype=torch.float64), [], None
    for round in range(1, cell.rounds + 1):
        streams = [stream(0, "noise", round, k) for k in everybody]
        ctx = Context(round, layout, everybody, streams, slot="on_delta", server=stream(0, "server", round))
        sent = client(clip(1.0)(nothing, ctx), ctx)
        total = sent.mean(weights, masks.carry({"move": sent}, weights, ctx).uploads["move"])
        squares.append(float(server(total, ctx.at_server()).value.double().square().mean()))
        release = ctx.releases[0]
    assert release is not None
    grid = client.grid(1.0, cell.dim)
    return {
        "central": central,
        "charged": release.noise_std,
        "measured": math.sqrt(float(np.mean(squares))),
        "standard_error": 1 / math.sqrt(2 * cell.rounds * cell.dim),
        "steps_per_unit": grid.per_unit,
        "rounding": release.bound - 1.0,
        "wrap_log2": math.log2(grid.wrap),
    }

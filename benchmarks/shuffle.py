"""LDP-FL's journey: perturb, pack, seal, shuffle, open, aggregate; seconds, bytes a part, and microseconds a weight.

    python benchmarks/shuffle.py [--json FILE] [--only layer|weight]

``layer``: 100 clients x 100,000 weights, a part for each layer. ``weight``: 100 clients x 2,000 weights, each part
sealed alone. Everything runs in one process, so that all clients seal one after another. A goal that is missed is
printed as missed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, chain
from fedveil.core.streams import stream
from fedveil.privacy.perturb import PerWeight
from fedveil.privacy.ranges import Ranges
from fedveil.transport.shuffle import Shuffle

CLIENTS = 100
LAYERS = {
    "layer": Layout(("w1", "b1", "w2", "b2"), ((784, 126), (126,), (126, 8), (82,))),
    "weight": Layout(("w", "b"), ((199, 10), (10,))),
}
GOAL = {"layer": 2.0, "weight": 30.0}


def measure(split: str, clients: int = CLIENTS) -> dict[str, Any]:
    """One round of that split, with random moves."""
    layout = LAYERS[split]
    torch.set_num_threads(2)
    moves = torch.from_numpy(np.random.default_rng(0).normal(0, 0.01, (clients, layout.dim))).float()
    stage = chain(PerWeight("two_point", 1.0, "delta", Ranges("fixed", (0.02,)), clients))
    ctx = Context(1, layout, list(range(clients)), [stream(0, "noise", k) for k in range(clients)], slot="on_delta")
    transport = Shuffle(split=split)  # type: ignore[arg-type]
    weights = torch.full((clients,), 1 / clients, dtype=torch.float64)
    processor, started = time.process_time(), time.perf_counter()
    told = stage(Signal(moves), ctx)
    perturbed = time.perf_counter()
    delivery = transport.carry({"move": told}, weights, ctx)
    done = time.perf_counter()
    assert torch.allclose(delivery.uploads["move"], told.value.mean(dim=0, keepdim=True), atol=1e-6)
    parts = ctx.log["parts"]["sent"]
    return {
        "split": split,
        "clients": clients,
        "weights": layout.dim,
        "seconds": done - started,
        "processor_seconds": time.process_time() - processor,
        "perturb_seconds": perturbed - started,
        "goal_seconds": GOAL[split],
        "microseconds_per_weight": 1e6 * (done - started) / (clients * layout.dim),
        "bytes_up": delivery.bytes_up,
        "parts": parts,
        "bytes_per_part": delivery.bytes_up / parts,
        "bytes_per_weight": delivery.bytes_up / (clients * layout.dim),
        "goal_bytes": clients * layout.dim * 4 / 30 + 64 * parts,
    }


def main() -> None:
    """Measure, print, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=sorted(LAYERS))
    args = parser.parse_args()
    found = [measure(split) for split in LAYERS if args.only in (None, split)]
    for one in found:
        late = "" if one["seconds"] <= one["goal_seconds"] else "  MISSED"
        heavy = "" if one["bytes_up"] <= one["goal_bytes"] else "  MISSED"
        print(
            f"split={one['split']}: {one['clients']} clients x {one['weights']:,} weights, {one['parts']:,} parts\n"
            f"  {one['seconds']:.2f} s (goal {one['goal_seconds']:g} s{late}), {one['processor_seconds']:.2f} s of "
            f"processor time; the mechanism {one['perturb_seconds']:.2f} s; "
            f"{one['microseconds_per_weight']:.3f} us a weight\n"
            f"  {one['bytes_up']:,} bytes (float32 {4 * one['clients'] * one['weights']:,}; goal "
            f"{one['goal_bytes']:,.0f}{heavy}); {one['bytes_per_part']:.1f} bytes a part, "
            f"{one['bytes_per_weight']:.3f} bytes a weight"
        )
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Distributed against central noise: trains what is missing in the cache, then writes docs/results/distributed-dp.md.

    python -m experiments.ddp [--data digits,mnist] [--quick] [--fresh]

MNIST lies under the data root, FEDVEIL_DATA; a data set that is not there is left out.

Interrupt it at will; the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import fedveil
from experiments.cache import Cache
from experiments.ddp.cell import compute
from experiments.ddp.grid import CLIENTS, SCHEDULES, Cell, NoiseCell, Schedule, quick, runs, tuning
from experiments.ddp.page import Found, write_page
from fedveil.core.errors import Refused

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run the study."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.ddp", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", default=",".join(SCHEDULES), help="data sets, with commas between (all)")
    parser.add_argument("--out", type=Path, default=Path("runs/studies/ddp"), help="where cells are kept")
    parser.add_argument("--page", type=Path, help="folder of the page (docs/results; with --quick: OUT/quick)")
    parser.add_argument("--quick", action="store_true", help="a reduced study of a minute")
    parser.add_argument("--fresh", action="store_true", help="forget the cells that are kept")
    args = parser.parse_args(arguments)
    names = args.data.split(",")
    if unknown := [name for name in names if name not in SCHEDULES]:
        parser.error(f"--data: no data set is called {unknown[0]}; there are {', '.join(SCHEDULES)}")
    schedules = [quick(SCHEDULES[name]) if args.quick else SCHEDULES[name] for name in names]
    folder = args.out / "quick" if args.quick else args.out
    cache = Cache(folder)
    if args.fresh:
        for path in folder.glob("*.json"):
            path.unlink()
    torch.set_num_threads(1)
    noise = NoiseCell(dim=2**10, rounds=2) if args.quick else NoiseCell()
    try:
        found = Found(noise, _of(noise, cache), [_study(s, cache) for s in schedules if _there(s)])
    except KeyboardInterrupt:
        print("Interrupted. Finished cells are kept; the same command goes on.")
        return INTERRUPTED
    page = write_page(found, args.page or (folder if args.quick else Path("docs/results")))
    print(f"Written: {page}")
    return 0


def _there(s: Schedule) -> bool:
    try:
        fedveil.data.load(s.data, seed=0, population=CLIENTS, partition="iid")
    except Refused as problem:
        print(f"{s.title} is left out: {problem}")
        return False
    return True


def _study(s: Schedule, cache: Cache) -> tuple[Schedule, dict[float, float], dict[Cell, dict[str, object]]]:
    looked = _all(tuning(s), cache)
    lrs = {
        epsilon: max((c for c in looked if c.epsilon == epsilon), key=lambda c: looked[c]["accuracy"]).lr
        for epsilon in s.epsilons
    }
    return s, lrs, looked | _all(runs(s, lrs), cache)


def _all(cells: Sequence[Cell], cache: Cache) -> dict[Cell, dict[str, object]]:
    return {cell: _of(cell, cache) for cell in cells}


def _of(cell: Cell | NoiseCell, cache: Cache) -> dict[str, object]:
    record = cache.read(cell)
    if record is None:
        record = compute(cell)
        cache.write(record)
        what = (
            f"{cell.data}, {cell.label}, ε = {cell.epsilon:g}, seed {cell.seed}" if isinstance(cell, Cell) else "noise"
        )
        print(f"{what}: {record['seconds']:.1f} s", flush=True)
    return record


if __name__ == "__main__":
    sys.exit(main())

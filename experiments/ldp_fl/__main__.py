"""LDP-FL on MNIST and Fashion-MNIST: trains what is missing in the cache, then writes docs/results/ldp-fl.md.

    python -m experiments.ldp_fl [--data mnist,fashion_mnist] [--out FOLDER] [--page FILE] [--page-only] [--quick]
                                [--device cuda]

The data lie under the data root, FEDVEIL_DATA; a data set that is not there is left out. Interrupt it at will; the same
command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import fedveil
from experiments.cache import Cache
from experiments.ldp_fl.cells import compute
from experiments.ldp_fl.grid import TASKS, Task
from experiments.ldp_fl.page import write_page
from fedveil.core.errors import Refused
from fedveil.core.files import write_bytes

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run the study."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.ldp_fl", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", default=",".join(task.name for task in TASKS), help="data sets, with commas between")
    parser.add_argument("--out", type=Path, default=Path("runs/studies/ldp_fl"), help="where cells are kept")
    parser.add_argument("--page", type=Path, help="the page (docs/results/ldp-fl.md; with --quick: in OUT)")
    parser.add_argument("--page-only", action="store_true", help="train nothing, write the page from what is there")
    parser.add_argument("--quick", action="store_true", help="one seed and one round, to see that it works")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the cells are trained")
    args = parser.parse_args(arguments)
    known = {task.name: task for task in TASKS}
    if unknown := [name for name in args.data.split(",") if name not in known]:
        parser.error(f"--data: no data set is called {unknown[0]}; there are {', '.join(known)}")
    tasks = [known[name] for name in args.data.split(",")]
    if args.quick:
        tasks = [replace(task, seeds=(0,), rounds=1, clients=10) for task in tasks]
    cache = Cache(args.out / "quick" if args.quick else args.out)
    page = args.page or (args.out / "quick" / "ldp-fl.md" if args.quick else Path("docs/results/ldp-fl.md"))
    try:
        if not args.page_only:
            train(tasks, cache, args.device)
    except KeyboardInterrupt:
        print("Interrupted. Finished cells are kept; the same command goes on.")
        return INTERRUPTED
    finally:
        write_bytes(page, write_page(tasks, cache.read).encode())
        print(f"Written: {page}", flush=True)
    return 0


def train(tasks: Sequence[Task], cache: Cache, device: str) -> None:
    """Compute the cells that are missing: row by row, the data sets in turn."""
    cells = [cell for task in tasks if present(task) for cell in task.cells()]
    order = {id(cell): i for task in tasks for i, cell in enumerate(c for c in cells if c.task is task)}
    cells.sort(key=lambda cell: order[id(cell)])
    missing = [cell for cell in cells if cache.read(cell) is None]
    print(f"{len(cells) - len(missing)} of {len(cells)} cells are there", flush=True)
    started = time.perf_counter()
    for done, cell in enumerate(missing, 1):
        record = compute(cell, device)
        cache.write(record)
        left = (time.perf_counter() - started) / done * (len(missing) - done)
        score = record["status"] if record["accuracy"] is None else f"{100 * record['accuracy']:.2f} %"
        print(f"[{done}/{len(missing)}] {cell}: {score} ({left / 60:.0f} min left)", flush=True)


def present(task: Task) -> bool:
    """Whether the data set is there; if not, says why."""
    try:
        fedveil.data.load(task.name, seed=0, population=task.clients, partition="iid")
    except Refused as problem:
        print(f"{task.title} is left out: {problem}.", flush=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())

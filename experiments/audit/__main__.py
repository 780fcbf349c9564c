"""Audits of honest and of spoilt runs: computes what is missing in the cache, then writes docs/results/audit.md.

    python -m experiments.audit [--quick] [--fresh]

Interrupt it at will; the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from experiments.audit.cell import compute
from experiments.audit.grid import main_cells, other_cells
from experiments.audit.page import write_page
from experiments.cache import Cache
from experiments.dp_methods.progress import duration

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run the study."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.audit", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/studies/audit"), help="where cells are kept")
    parser.add_argument("--page", type=Path, help="folder of the page (docs/results; with --quick: OUT/quick)")
    parser.add_argument("--quick", action="store_true", help="one seed of the main methods")
    parser.add_argument("--fresh", action="store_true", help="forget the cells that are kept")
    args = parser.parse_args(arguments)
    folder = args.out / "quick" if args.quick else args.out
    cache = Cache(folder)
    if args.fresh:
        for path in folder.glob("*.json"):
            path.unlink()
    torch.set_num_threads(1)
    cells = main_cells((0,)) if args.quick else [*main_cells(), *other_cells()]
    missing = [cell for cell in cells if cache.read(cell) is None]
    started = time.perf_counter()
    try:
        for i, cell in enumerate(missing, start=1):
            record = compute(cell)
            cache.write(record)
            left = (time.perf_counter() - started) / i * (len(missing) - i)
            print(
                f"[{i}/{len(missing)}] {cell}: claim {record['claim']:.3f}, bound {record['bound']:.3f} "
                f"({record['seconds']:.1f} s, {duration(left)} left)",
                flush=True,
            )
    except KeyboardInterrupt:
        print("Interrupted. Finished cells are kept; the same command goes on.")
        return INTERRUPTED
    found = {cell: record for cell in cells if (record := cache.read(cell)) is not None}
    page = write_page(found, args.page or (folder if args.quick else Path("docs/results")))
    print(f"Written: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

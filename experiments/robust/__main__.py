"""Attacks, rules and detectors measured: computes what is missing in the cache, then writes docs/results/robust.md.

    python -m experiments.robust [--only detection,clean,private] [--out DIR] [--page FILE] [--quick]

Fashion-MNIST lies under the data root, FEDVEIL_DATA. Interrupt it at will; the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from rich.console import Console

from experiments.robust.detection import trajectories
from experiments.robust.loop import matrix
from experiments.robust.page import write_page
from fedveil.report.matrix_terminal import compute, write
from fedveil.runtime.matrix import Cells

PARTS = ("detection", "clean", "private")
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run the studies."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.robust", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts of the study, with commas between (all)")
    parser.add_argument("--out", type=Path, default=Path("runs/studies/robust"), help="where results are kept")
    parser.add_argument("--page", type=Path, help="the page (docs/results/robust.md; with --quick: OUT/robust.md)")
    parser.add_argument("--quick", action="store_true", help="one seed and few attacks, to see that it works")
    args = parser.parse_args(arguments)
    chosen = args.only.split(",")
    if unknown := [part for part in chosen if part not in PARTS]:
        parser.error(f"--only: there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    root = args.out / "quick" if args.quick else args.out
    page = args.page or (root / "robust.md" if args.quick else Path("docs/results/robust.md"))
    console, failed = Console(), []
    torch.set_num_threads(1)
    try:
        if "detection" in chosen:
            trajectories(console, root / "trajectories", quick=args.quick)
        for part, budget in (("clean", "none"), ("private", "8")):
            wanted = matrix(root, budget, quick=args.quick)
            cells = Cells(root / part)
            if part in chosen:
                failed += compute(console, wanted, cells, {})
            write(wanted, cells, root / part)
    except KeyboardInterrupt:
        console.print("Interrupted. What is finished is kept; the same command goes on.")
        return INTERRUPTED
    write_page(root, page, quick=args.quick)
    console.print(f"Written: {page}", highlight=False, soft_wrap=True)
    for place, why in failed:
        console.print(f"FAILED: {place}: {why}", highlight=False, markup=False, soft_wrap=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

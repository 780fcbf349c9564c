"""APA-FL beside the same run in the clear: computes what is missing, then writes docs/results/apa-fl.md.

    python -m experiments.apa_fl [--only digits,fashion_mnist] [--out DIR] [--page FILE] [--pages-only]

Fashion-MNIST lies under the data root, FEDVEIL_DATA. Interrupt it at will; the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from experiments.apa_fl.cells import DATA, cells
from experiments.apa_fl.page import write_page

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run what is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.apa_fl", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default=",".join(DATA), help="data sets, with commas between (all)")
    parser.add_argument("--out", type=Path, default=Path("runs/studies/apa_fl"), help="where runs are kept")
    parser.add_argument("--page", type=Path, default=Path("docs/results/apa-fl.md"), help="the page")
    parser.add_argument("--pages-only", action="store_true", help="run nothing")
    args = parser.parse_args(arguments)
    chosen = args.only.split(",")
    if unknown := [name for name in chosen if name not in DATA]:
        parser.error(f"--only: there is no data set {unknown[0]}; there are {', '.join(DATA)}")
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = [cell for cell in cells() if cell.data in chosen and not args.pages_only]
    try:
        for place, cell in enumerate(wanted, start=1):
            if cell.result(args.out) is None:
                print(f"[{place}/{len(wanted)}] {cell.data}, {cell.attack}, {cell.way}", flush=True)
                cell.run(args.out)
    except KeyboardInterrupt:
        print("Interrupted. What is finished is kept; the same command goes on.")
        return INTERRUPTED
    finally:
        write_page(args.out, args.page)
    print(f"Written: {args.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Private methods compared: trains what is missing in the cache, then writes docs/results/dp-methods.md.

    python -m experiments.dp_methods [--jobs 2] [--only PATTERN] [--quick] [--fresh]

Interrupt it at will; the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from fnmatch import fnmatch
from pathlib import Path

from experiments.dp_methods import opacus_peer
from experiments.dp_methods.cell import Cache
from experiments.dp_methods.grid import ENTRIES, FORMS, FULL, QUICK
from experiments.dp_methods.study import study


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run the study."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.dp_methods", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (2)")
    parser.add_argument("--out", type=Path, default=Path("runs/studies/dp_methods"), help="where cells are kept")
    parser.add_argument("--page", type=Path, help="folder of the page (docs/results; with --quick: OUT/quick)")
    parser.add_argument("--only", metavar="PATTERN", help="compute only these rows, such as 'dp_scaffold*'")
    parser.add_argument("--quick", action="store_true", help="a reduced study of a few minutes")
    parser.add_argument(
        "--fresh", action="store_true", help="forget the cells that are kept (with --only: of these rows)"
    )
    args = parser.parse_args(arguments)
    if args.jobs < 1:
        parser.error("--jobs: at least one process")
    schedule = QUICK if args.quick else FULL
    page = args.page or (args.out / "quick" if args.quick else Path("docs/results"))
    shown = [e for e in (*ENTRIES, *FORMS) if e.kind != "peer" or opacus_peer.available()]
    chosen = [e for e in shown if args.only is None or fnmatch(e.label, args.only)]
    if not chosen:
        parser.error(f"--only: no row is called {args.only}; there are {', '.join(e.label for e in shown)}")
    cache = Cache(args.out / "quick" if args.quick else args.out)
    if args.fresh:
        cache.forget([e.label for e in chosen])
    return study(schedule, chosen, shown, cache, page, args.jobs)


if __name__ == "__main__":
    sys.exit(main())

"""Private methods compared: trains what is missing in the cache, then writes docs/results/dp-methods*.md.

    python -m experiments.dp_methods [--data digits,mnist] [--jobs 2] [--only PATTERN] [--quick] [--fresh]

MNIST and Fashion-MNIST lie under the data root, FEDVEIL_DATA; a data set that is not there is left out.

Interrupt it at will; the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from fnmatch import fnmatch
from pathlib import Path

from experiments.dp_methods import opacus_peer
from experiments.dp_methods.cell import Cache
from experiments.dp_methods.grid import SCHEDULES, quick
from experiments.dp_methods.study import INTERRUPTED, study


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run the study."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.dp_methods", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", default=",".join(SCHEDULES), help="data sets, with commas between (all)")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (2)")
    parser.add_argument("--out", type=Path, default=Path("runs/studies/dp_methods"), help="where cells are kept")
    parser.add_argument("--page", type=Path, help="folder of the pages (docs/results; with --quick: OUT/quick)")
    parser.add_argument("--only", metavar="PATTERN", help="compute only these rows, such as 'dp_scaffold*'")
    parser.add_argument("--quick", action="store_true", help="a reduced study of a few minutes")
    parser.add_argument(
        "--fresh", action="store_true", help="forget the cells that are kept, of these data sets and rows"
    )
    args = parser.parse_args(arguments)
    if args.jobs < 1:
        parser.error("--jobs: at least one process")
    names = args.data.split(",")
    if unknown := [name for name in names if name not in SCHEDULES]:
        parser.error(f"--data: no data set is called {unknown[0]}; there are {', '.join(SCHEDULES)}")
    schedules = [quick(SCHEDULES[name]) if args.quick else SCHEDULES[name] for name in names]
    page = args.page or (args.out / "quick" if args.quick else Path("docs/results"))
    pattern = args.only or "*"
    cache = Cache(args.out / "quick" if args.quick else args.out)
    work = []
    for schedule in schedules:
        shown = [e for e in schedule.entries if e.kind != "peer" or opacus_peer.available()]
        chosen = [e for e in shown if fnmatch(e.label, pattern)]
        if chosen:
            work.append((schedule, chosen, shown))
    if not work:
        labels = dict.fromkeys(e.label for schedule in schedules for e in schedule.entries)
        parser.error(f"--only: no row is called {args.only}; there are {', '.join(labels)}")
    if args.fresh:
        for schedule, chosen, _ in work:
            cache.forget([e.label for e in chosen], [schedule.dataset])
    worst = 0
    for schedule, chosen, shown in work:
        code = study(schedule, chosen, shown, cache, page, args.jobs)
        if code == INTERRUPTED:
            return code
        worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main())

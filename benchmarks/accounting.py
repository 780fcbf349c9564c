"""What epsilon after every round costs: ours, Opacus and dp-accounting as a newcomer would call them.

python benchmarks/accounting.py [--rounds 1000] [--json FILE]

All three run in one process, one after the other, on the same setting (q = 0.01, multiplier 1.1, delta = 1e-5);
compare the ratios, not the seconds. Opacus and the newcomer's dp-accounting recompute what ours keeps.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import dp_accounting
from dp_accounting.rdp import RdpAccountant

from fedveil.privacy.accountants import Spent
from fedveil.privacy.events import Event, Poisson
from fedveil.privacy.rdp import one_step

RATE, MULTIPLIER, DELTA = 0.01, 1.1, 1e-5


def ours(rounds: int) -> float:
    one_step.cache_clear()  # the first round pays for the curve
    spent, epsilon = Spent(), 0.0
    for _ in range(rounds):
        spent.add(Event("gaussian", MULTIPLIER, Poisson(RATE)))
        epsilon = spent.epsilon(DELTA)
    return epsilon


def naive_dp_accounting(rounds: int) -> float:
    accountant, epsilon = RdpAccountant(), 0.0
    event = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(MULTIPLIER))
    for _ in range(rounds):
        accountant.compose(event)
        epsilon = accountant.get_epsilon(DELTA)
    return float(epsilon)


def opacus(rounds: int) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import RDPAccountant

        accountant, epsilon = RDPAccountant(), 0.0
        for _ in range(rounds):
            accountant.step(noise_multiplier=MULTIPLIER, sample_rate=RATE)
            epsilon = accountant.get_epsilon(delta=DELTA)
    return float(epsilon)


def measure(ways: dict[str, Callable[[int], float]], rounds: int) -> dict[str, dict[str, float]]:
    found = {}
    for name, way in ways.items():
        way(1)  # imports and first calls
        start = time.process_time()
        epsilon = way(rounds)
        found[name] = {"cpu_seconds": time.process_time() - start, "epsilon": epsilon}
    for row in found.values():
        row["times_ours"] = row["cpu_seconds"] / found["fedveil"]["cpu_seconds"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    ways = {"fedveil": ours, "dp-accounting": naive_dp_accounting, "opacus": opacus}
    try:
        import opacus as _  # noqa: F401
    except ImportError:
        del ways["opacus"]
    found = measure(ways, arguments.rounds)
    print(f"epsilon after each of {arguments.rounds} rounds (q={RATE}, multiplier={MULTIPLIER}, delta={DELTA:g})")
    for name, row in found.items():
        print(
            f"{name:14} {row['cpu_seconds']:8.3f} CPU s  {1e3 * row['cpu_seconds'] / arguments.rounds:8.3f} ms/round  "
            f"{row['times_ours']:8.1f} x ours   epsilon {row['epsilon']:.5f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rounds": arguments.rounds, "results": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()

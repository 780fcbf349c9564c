"""A contender in a process of its own: for peak memory, for growth, and for peers that bring processes along.

``python -m fedveil.bench.alone '{"scenario": {...}, "contender": "ours", "rounds": 3}'`` prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedveil.bench.machine import highest_resident, resident, timed
from fedveil.bench.scenario import Scenario, Setting

TIME_LIMIT = 1800


class Failed(Exception):
    """The process ended without a result; the message is the last line that it wrote."""


def alone(scenario: Scenario, contender: str, rounds: int, threads: int) -> dict[str, Any]:
    """What a fresh process measured: seconds of each round after the first, and bytes of main memory."""
    order = {"scenario": scenario.to_json(), "contender": contender, "rounds": rounds, "threads": threads}
    here = str(Path(__file__).resolve().parents[2])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "fedveil.bench.alone", json.dumps(order)],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        words = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise Failed(f"{contender} failed on {scenario.name}: {words}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def measure(scenario: Scenario, contender: str, rounds: int, threads: int) -> dict[str, Any]:
    """The same in this process."""
    import torch

    from fedveil.bench.rivals import FLOWER, named

    torch.set_num_threads(threads)
    if contender == FLOWER:
        from fedveil.bench.peers.flower import simulate

        return simulate(scenario, rounds, threads)
    setting = Setting(scenario)
    build = named(contender).build
    assert build is not None
    made = build(setting)
    for client in setting.clients(1) if scenario.data == "images" else ():
        setting.federation.train(client)
    before, seconds = resident(), []
    for number in range(1, rounds + 1):
        clients = setting.clients(number)
        seconds.append(timed(lambda n=number, c=clients: made.round(n, c), "cpu"))  # type: ignore[misc]
    return {"first": seconds[0], "seconds": seconds[1:], "memory": {"before": before, "peak": highest_resident()}}


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    print(json.dumps(measure(Scenario(**wanted.pop("scenario")), **wanted)))

"""A round over Flower's simulation: FedVeil's runtime beside Flower's own FedAvg quick start, doing the same training.

    python benchmarks/flower_round.py [--json FILE] [--rounds 6] [--samples 320] [--workers 2]

Ten nodes, a CNN of a million parameters, one local epoch of batches of 32, images made up once and read by both. The
quick start is that of Flower's documentation: a DataLoader, ``torch.optim.SGD``, FedAvg, ``run_simulation``; to its
advantage each worker reads the images once, and nobody is evaluated. Each contender runs in a process of its own, its
workers at its own priority. A round is timed from the end of the one before; the time to the first includes imports,
Ray and the first round. The goal is a round of at most 1.3 times the quick start's; a goal that is missed is printed as
missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()
NODES, BATCH, LR, GOAL = 10, 32, 0.05, 1.3


def images(folder: Path, samples: int) -> Path:
    """A file with every client's images, and a few for a test set."""
    import numpy as np

    rng = np.random.default_rng(0)
    count = NODES * samples
    path = folder / "images.npz"
    np.savez(
        path, x=rng.random((count, 1, 28, 28), dtype=np.float32), y=rng.integers(0, 10, count),
        clients=np.repeat(np.arange(NODES), samples), test_x=rng.random((20, 1, 28, 28), dtype=np.float32),
        test_y=rng.integers(0, 10, 20),
    )  # fmt: skip
    return path


def ours(path: Path, rounds: int, workers: int) -> list[float]:
    """When each of FedVeil's rounds ended."""
    import fedveil

    ends: list[float] = []

    class Clock:
        def opened(self, training: Any, folder: Any, done: int, notes: Any) -> None: ...

        def round(self, record: dict[str, Any]) -> None:
            ends.append(time.perf_counter())

        def closed(self, summary: Any) -> None: ...

    fedveil.run(
        *("data=npz", "data.x=x", "data.y=y", "data.client=clients", "data.holdout=0"),
        *("data.test_x=test_x", "data.test_y=test_y", f"data.path={path}", "model=cnn_large", "method=fedavg"),
        *(f"batch={BATCH}", f"lr={LR}", f"rounds={rounds}", f"cohort={NODES}", f"evaluate.every={rounds}"),
        *("runtime=flower", f"runtime.workers={workers}"),
        out=path.parent / "run",
        listeners=[Clock()],
    )
    return ends


_KEPT: dict[str, Any] = {}


def quick_start(path: Path, rounds: int, workers: int) -> list[float]:
    """When each of the quick start's rounds ended."""
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    ends: list[float] = []

    class Timed(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            found = list(replies)
            if len(found) != NODES or any(message.has_error() for message in found):
                raise RuntimeError("flower: a client failed")
            result = super().aggregate_train(server_round, found)
            ends.append(time.perf_counter())
            return result

    def serve(grid: Any, context: Any) -> None:
        strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES)
        first = ArrayRecord(net().state_dict())
        strategy.start(grid, first, num_rounds=rounds, train_config=ConfigRecord({"path": str(path)}))

    server, client = ServerApp(), ClientApp()
    server.main()(serve)
    client.train()(train)
    run_simulation(
        server_app=server, client_app=client, num_supernodes=NODES,
        backend_config={
            "init_args": {"num_cpus": workers, "include_dashboard": False, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )  # fmt: skip
    return ends


def net() -> Any:
    """The model of both."""
    from fedveil.local.models import cnn_large

    return cnn_large((1, 28, 28), 10)


def train(message: Any, context: Any) -> Any:
    """The quick start's client: one epoch of SGD over a DataLoader."""
    import numpy as np
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from torch.utils.data import DataLoader, TensorDataset

    if not _KEPT:
        torch.set_num_threads(1)
        _KEPT.update(np.load(message.content["config"]["path"]))
    mine = _KEPT["clients"] == context.node_config["partition-id"]
    data = TensorDataset(torch.from_numpy(_KEPT["x"][mine]), torch.from_numpy(_KEPT["y"][mine]))
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    criterion, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=LR)
    model.train()
    total = 0.0
    for x, y in DataLoader(data, batch_size=BATCH, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    metrics = MetricRecord({"train_loss": total, "num-examples": len(data)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def alone(name: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A contender in a process of its own."""
    here = folder / name
    here.mkdir()
    images(here, arguments.samples)
    command = [sys.executable, __file__, "--contender", name, "--folder", str(here), "--rounds", str(arguments.rounds)]
    done = subprocess.run(
        [*command, "--workers", str(arguments.workers)], capture_output=True, text=True, check=False, timeout=600,
        env=os.environ | {"RAY_worker_niceness": "0"},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{name} failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Measure both and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--samples", type=int, default=320)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--contender", choices=["fedveil", "quickstart"])
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.contender:
        work = ours if arguments.contender == "fedveil" else quick_start
        ends = work(arguments.folder / "images.npz", arguments.rounds, arguments.workers)
        seconds = [after - before for before, after in itertools.pairwise(ends)]
        print(json.dumps({"first": ends[0] - BEGAN, "seconds": seconds}))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = {name: alone(name, arguments, Path(folder)) for name in ("quickstart", "fedveil")}
    medians = {name: statistics.median(one["seconds"]) for name, one in found.items()}
    ratio = medians["fedveil"] / medians["quickstart"]
    for name, one in found.items():
        each = ", ".join(f"{s:.2f}" for s in one["seconds"])
        print(f"{name:>10}: a round {medians[name]:.2f} s (each: {each}); first round after {one['first']:.1f} s")
    print(f"ratio {ratio:.2f}, goal at most {GOAL}: {'met' if ratio <= GOAL else 'MISSED'}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found | {"ratio": ratio, "goal": GOAL}, indent=2))


if __name__ == "__main__":
    main()

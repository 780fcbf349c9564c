"""FedAvg: FedVeil's whole run (folder, checkpoints, evaluation) against a hand-written loop, same seed, same result.

    python benchmarks/fedavg_loop.py [--rounds 20] [--repeats 5] [--json FILE]

Both sides evaluate after every round. The two alternate, so that a busy machine slows both alike; what counts is
the ratio within a repetition. The benchmark fails if the two models differ in a single bit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedveil
from fedveil.core.federation import Federation
from fedveil.core.streams import stream, torch_seed
from fedveil.data.cohorts import draw
from fedveil.local.batches import Batching
from fedveil.local.models import mlp


def hand_written(
    data: Federation, model: nn.Module, *, rounds: int, cohort: int, batching: Batching, lr: float, seed: int
) -> list[Tensor]:
    """What a careful person writes without any framework: deep copies, torch.optim.SGD, a weighted average."""
    clients = [data.train(k) for k in range(data.population)]
    holdouts = [data.holdout(k) for k in range(data.population)]
    held_x, held_y = torch.cat([h.x for h in holdouts]), torch.cat([h.y for h in holdouts])
    for number in range(1, rounds + 1):
        chosen = draw(seed, number, data.population, cohort, "fixed").tolist()
        counts = torch.tensor([len(clients[k]) for k in chosen], dtype=torch.float64)
        weights = (counts / counts.sum()).float()
        moves = []
        for k in chosen:
            local = deepcopy(model)
            optimiser = torch.optim.SGD(local.parameters(), lr=lr)
            order, ends = batching.batches(len(clients[k]), stream(seed, "batches", number, k))
            x, y = clients[k].x[torch.from_numpy(order)], clients[k].y[torch.from_numpy(order)]
            start = 0
            for end in ends.tolist():
                optimiser.zero_grad()
                F.cross_entropy(local(x[start:end]), y[start:end]).backward()
                optimiser.step()
                start = end
            moves.append([(a - b).detach() for a, b in zip(local.parameters(), model.parameters(), strict=True)])
        with torch.no_grad():
            for i, parameter in enumerate(model.parameters()):
                stacked = torch.stack([m[i].reshape(-1) for m in moves])
                parameter += (weights @ stacked).view_as(parameter)
            for x, y in ((data.test.x, data.test.y), (held_x, held_y)):
                answers = torch.cat([model(part) for part in x.split(1000)])
                answers.argmax(1).eq(y).double().mean()
                F.cross_entropy(answers, y)
    return [p.detach() for p in model.parameters()]


def initial(data: Federation, seed: int) -> nn.Module:
    """The model with which a FedVeil run of this seed starts."""
    torch.manual_seed(torch_seed(seed, "initial weights"))
    return mlp(data.input_shape, data.classes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)  # both sides alike
    # 100 clients of 600 examples shaped like MNIST: nothing to download, the arithmetic of the real thing.
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(70_000, 784, generator=generator), torch.randint(0, 10, (70_000,), generator=generator)
    clients = torch.arange(60_000) % 100
    data = fedveil.data.from_arrays(
        x[:60_000], y[:60_000], test_x=x[60_000:], test_y=y[60_000:], clients=clients, classes=10, holdout=0.1
    )
    ratios, ours, theirs = [], [], []
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            result = fedveil.run(
                data=data,
                model="mlp",
                rounds=args.rounds,
                cohort=10,
                lr=0.1,
                engine="sequential",
                out=folder + "/run",
                threads=1,
            )
            whole = time.perf_counter() - started
            ours.append(result.summary["seconds_per_round"])
        started = time.perf_counter()
        plain = hand_written(
            data, initial(data, 0), rounds=args.rounds, cohort=10, batching=Batching(32, None, 1), lr=0.1, seed=0
        )
        theirs.append((time.perf_counter() - started) / args.rounds)
        ratios.append(whole / args.rounds / theirs[-1])
        if not all(torch.equal(a, b) for a, b in zip(plain, result.model.parameters(), strict=True)):
            raise SystemExit("the two models differ")
    training = [a / b for a, b in zip(ours, theirs, strict=True)]
    outcome = {
        "model": "mlp 784-128-10, 100 clients of 540 examples, cohort 10, batch 32, one epoch, evaluation every round",
        "rounds": args.rounds,
        "ours_seconds_per_round": statistics.median(ours),
        "hand_written_seconds_per_round": statistics.median(theirs),
        "ratio_of_training": statistics.median(training),
        "ratio_with_set_up_and_report": statistics.median(ratios),
        "ratio_spread": [min(training), max(training)],
    }
    print(json.dumps(outcome, indent=2))
    if args.json:
        args.json.write_text(json.dumps(outcome, indent=2))


if __name__ == "__main__":
    main()

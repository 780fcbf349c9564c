"""Flower's simulation: FedAvg by its own strategy over Ray actors, one CPU each, as many as there are threads.

Favourable: each actor keeps its module and the clients' data between rounds, nothing is evaluated, and the time of a
round starts after the first one, when Ray and the actors are up. Flower draws the cohort itself, so that the clients of
a round are others, with just as many examples.
"""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import os
import time
import warnings
from typing import Any

import torch
from torch.nn import functional as F

from fedveil.bench.loops import add_
from fedveil.bench.scenario import Scenario, Setting

_KEPT: dict[str, Any] = {}
"""What an actor keeps between messages."""


def simulate(scenario: Scenario, rounds: int, threads: int) -> dict[str, Any]:
    """Seconds of each round from the second on, and how long it took until the end of the first."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    warnings.simplefilter("ignore")
    started = time.perf_counter()
    simulation: Any = importlib.import_module("flwr.simulation")
    serverapp: Any = importlib.import_module("flwr.serverapp")
    strategies: Any = importlib.import_module("flwr.serverapp.strategy")
    clientapp: Any = importlib.import_module("flwr.clientapp")
    app: Any = importlib.import_module("flwr.app")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    ends: list[float] = []

    class Timed(strategies.FedAvg):  # type: ignore[misc]
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            found = list(replies)
            failed = sum(message.has_error() for message in found)
            if failed or len(found) != scenario.cohort:
                raise RuntimeError(f"flower: {failed} of {len(found)} clients failed, {scenario.cohort} were asked")
            result = super().aggregate_train(server_round, found)
            ends.append(time.perf_counter())
            return result

    def serve(grid: Any, context: Any) -> None:
        strategy = Timed(
            fraction_train=scenario.cohort / scenario.population,
            fraction_evaluate=0.0,
            min_train_nodes=scenario.cohort,
            min_available_nodes=scenario.population,
        )
        first = app.ArrayRecord(Setting(scenario).module().state_dict())
        config = app.ConfigRecord({"scenario": json.dumps(scenario.to_json())})
        strategy.start(grid, first, num_rounds=rounds, train_config=config)

    server, client = serverapp.ServerApp(), clientapp.ClientApp()
    server.main()(serve)
    client.train()(train)
    simulation.run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=scenario.population,
        backend_config={
            "init_args": {"num_cpus": threads, "include_dashboard": False, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    if len(ends) < rounds:
        raise RuntimeError(f"flower: only {len(ends)} of {rounds} rounds ended")
    return {
        "seconds": [after - before for before, after in itertools.pairwise(ends)],
        "first": ends[0] - started,
    }


def train(message: Any, context: Any) -> Any:
    """A client's round inside an actor."""
    app: Any = importlib.import_module("flwr.app")
    config = message.content["config"]
    setting = _setting(config["scenario"])
    module, client = _KEPT["module"], int(context.node_config["partition-id"])
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    here: list[torch.Tensor] = list(module.parameters())
    for x, y in setting.visits(int(config["server-round"]), client):
        gradients = torch.autograd.grad(F.cross_entropy(module(x), y), here)
        with torch.no_grad():
            add_(here, gradients, alpha=-setting.scenario.lr)
    examples = app.MetricRecord({"num-examples": int(setting.federation.sizes[client])})
    content = app.RecordDict({"arrays": app.ArrayRecord(module.state_dict()), "metrics": examples})
    return app.Message(content=content, reply_to=message)


def _setting(text: str) -> Setting:
    if _KEPT.get("text") != text:
        torch.set_num_threads(1)
        setting = Setting(Scenario(**json.loads(text)))
        _KEPT.update(text=text, setting=setting, module=setting.module().train())
    found: Setting = _KEPT["setting"]
    return found

"""One scenario: everybody computes the same rounds in turns, ours first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fedveil.bench.agreement import agree
from fedveil.bench.alone import Failed, alone
from fedveil.bench.clock import Runner, ratios, spread
from fedveil.bench.flops import of_round
from fedveil.bench.machine import timed
from fedveil.bench.ours import Ours
from fedveil.bench.rivals import FLOWER, OURS, Rival, rivals
from fedveil.bench.scenario import Scenario, Setting
from fedveil.local.precision import products

Tell = Callable[[str], None]


@dataclass(frozen=True)
class How:
    """How thoroughly to measure."""

    device: str = "cpu"
    threads: int = 1
    precision: str = "float32"
    repeats: int = 5
    turn: float = 0.5
    """Seconds of one contender's turn; a round that takes longer is a turn of its own."""
    limit: float = 120.0
    """Seconds after which no further repetition starts; there are always at least two (on a GPU one)."""
    memory: bool = True
    """Whether peak memory is measured (on a CPU: a process for each contender)."""
    flower_rounds: int = 6
    check: bool = True


def compare(scenario: Scenario, how: How, tell: Tell) -> dict[str, Any]:
    """The row of a scenario: seconds and ratios of all who are installed, and a sentence about those who are not."""
    who = rivals(scenario, how.device)
    present = [rival for rival in who if rival.installed]
    agreement = None
    if how.check:
        tell("comparing weights")
        agreement = agree(scenario, present, how.device)
    setting = Setting(scenario, how.device, precision=how.precision)
    example = setting.examples(0)[0][:1]
    flops = of_round(scenario, setting.module(), example)
    # Everybody's products have the same format; torch alone would let a loop's convolutions use tf32 on a GPU.
    with products("float32" if how.precision == "float32" else "tf32"):
        runners, table = _warm(scenario, [r for r in present if r.build is not None], setting, how, tell)
        _take_turns(runners, how, tell)
    mine = runners[0]
    for runner in runners:
        table[runner.name] |= _row(runner.seconds, mine.seconds)
        if runner.name == OURS:
            table[OURS]["flops_per_second"] = flops / table[OURS]["seconds"]["median"]
    engine = mine.contender
    assert isinstance(engine, Ours)
    if any(rival.name == FLOWER for rival in present):
        left_out = {"missing": "left out by --quick"}
        table[FLOWER] = _flower(scenario, mine, how, tell) if how.flower_rounds else left_out
    if how.memory and how.device == "cpu":
        _memory(scenario, [runner.name for runner in runners], table, how, tell)
    table |= {rival.name: {"missing": rival.missing} for rival in who if not rival.installed}
    return {
        "scenario": scenario.to_json(),
        "parameters": engine.objective.layout.dim,
        "flops": flops,
        "engine": engine.engine.name,
        "engine_reason": engine.reason,
        "agreement": agreement,
        "contenders": {rival.name: table[rival.name] for rival in who},
    }


def _warm(
    scenario: Scenario, who: list[Rival], setting: Setting, how: How, tell: Tell
) -> tuple[list[Runner], dict[str, dict[str, Any]]]:
    """Build everybody and let them compute what does not count: compilation, graphs, first allocations."""
    table: dict[str, dict[str, Any]] = {}
    runners = []
    cuda = how.device == "cuda"
    for client in range(scenario.population):
        setting.examples(client)  # ready on the device for all, before memory is looked at
    for rival in who:
        tell(f"warming up {rival.name}")
        held = _allocated(how.device)
        made: list[Any] = []
        assert rival.build is not None
        build = rival.build
        building = timed(lambda build=build, made=made: made.append(build(setting)), how.device)  # type: ignore[misc]
        runner = Runner(rival.name, made[0], setting)
        ours = rival.name.startswith(OURS)
        # A loop on a GPU needs seconds for a round, and two clients show it all its kernels.
        clients = setting.clients(1)[: 2 if cuda and not ours else None]
        runner.warm_up(clients, 3 if cuda else 2, how.turn)
        table[rival.name] = {"build_seconds": building, "first_round": runner.first}
        if cuda:
            table[rival.name]["memory"] = {"peak": torch.cuda.max_memory_allocated() - held}
        runners.append(runner)
    return runners, table


def _allocated(device: str) -> int:
    if device != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _take_turns(runners: list[Runner], how: How, tell: Tell) -> None:
    spent, least = 0.0, 1 if how.device == "cuda" else 2
    for repeat in range(how.repeats):
        if spent > how.limit and repeat >= least:
            return
        tell(f"repetition {repeat + 1} of {how.repeats}")
        for runner in runners:
            spent += runner.turn() * runner.rounds


def _row(seconds: list[float], ours: list[float]) -> dict[str, Any]:
    middle = spread(seconds)
    return {
        "seconds": middle,
        "all_seconds": seconds,
        "rounds_per_second": 1 / middle["median"],
        "times_ours": ratios(seconds, ours),
    }


def _flower(scenario: Scenario, ours: Runner, how: How, tell: Tell) -> dict[str, Any]:
    """Flower brings processes along; ours is timed right before and after it."""
    tell(FLOWER)
    before = ours.turn()
    try:
        found = alone(scenario, FLOWER, how.flower_rounds, how.threads)
    except Failed as failure:
        return {"missing": str(failure)}
    around = (before + ours.turn()) / 2
    return {"first_round": found["first"], **_row(found["seconds"], [around] * len(found["seconds"]))}


def _memory(scenario: Scenario, names: list[str], table: dict[str, dict[str, Any]], how: How, tell: Tell) -> None:
    for name in names:
        tell(f"memory of {name}")
        try:
            table[name]["memory"] = alone(scenario, name, 1, how.threads)["memory"]
        except Failed as failure:
            table[name]["memory"] = {"missing": str(failure)}

"""For honesty: a whole run with evaluation, checkpoints, ledger and report, beside the engine's rounds."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from fedveil.bench.scenario import Scenario, Setting


def whole_run(scenario: Scenario, threads: int, rounds: int) -> dict[str, Any]:
    """Rounds per second of ``fedveil.run`` that evaluates after every round; a sentence where it cannot run here."""
    try:
        from fedveil import api
    except ImportError as problem:
        return {"missing": f"not installed; {problem.name} is needed for a whole run: pip install fedveil"}
    setting = Setting(scenario)
    for client in range(scenario.population):
        setting.federation.train(client)
    settings: dict[str, Any] = {"sampling": scenario.batching.drawing} if scenario.private else {}
    method: Any = scenario.algorithm
    if scenario.private:
        from fedveil.bench.ours import recipe

        method = recipe(scenario)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        result = api.run(
            data=setting.federation,
            model=scenario.model,
            method=method,
            rounds=rounds,
            cohort=scenario.cohort,
            batch=scenario.batch,
            local_epochs=1,
            lr=scenario.lr,
            seed=scenario.seed,
            threads=threads,
            out=Path(folder) / "run",
            **settings,
        )
        seconds = time.perf_counter() - started
    return {
        "scenario": scenario.to_json(),
        "rounds": rounds,
        "seconds_per_round": result.summary["seconds_per_round"],
        "seconds_with_start_and_report": seconds / rounds,
        "test_examples": len(setting.federation.test),
    }

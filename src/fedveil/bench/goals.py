"""What the engine is held to, and whether a report shows it; losses included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Report = dict[str, Any]
LOOPS = ("loop", "loop, channels last", "pfl", "Flower simulation")


@dataclass(frozen=True)
class Goal:
    """A sentence with a number in it, and how to read the measured one off a report."""

    device: str
    words: str
    target: float
    unit: str
    measured: Callable[[Report], dict[str, float] | None]
    least: bool = True
    """Whether the number must be at least the target; else at most."""

    def verdict(self, report: Report) -> str:
        """``met``, ``missed`` or ``not measured``."""
        found = self.measured(report)
        if found is None:
            return "not measured"
        return "met" if (found["median"] >= self.target) == self.least else "**missed**"

    def shown(self, report: Report) -> str:
        """The measured number with its spread."""
        found = self.measured(report)
        if found is None:
            return "-"
        if found["min"] == found["max"]:
            return f"{found['median']:.3g}{self.unit}"
        return f"{found['median']:.3g}{self.unit} ({found['min']:.3g} to {found['max']:.3g})"


def ratio(scenario: str, contender: str) -> Callable[[Report], dict[str, float] | None]:
    """How many times as long a contender takes."""

    def read(report: Report) -> dict[str, float] | None:
        row = _contender(report, scenario, contender)
        found: dict[str, float] | None = row.get("times_ours") if row else None
        return found

    return read


def fastest(scenario: str) -> Callable[[Report], dict[str, float] | None]:
    """The ratio of the fastest of the others."""

    def read(report: Report) -> dict[str, float] | None:
        found = [r for r in (ratio(scenario, name)(report) for name in LOOPS) if r is not None]
        return min(found, key=lambda r: r["median"], default=None)

    return read


def milliseconds(scenario: str) -> Callable[[Report], dict[str, float] | None]:
    """Our round."""

    def read(report: Report) -> dict[str, float] | None:
        row = _contender(report, scenario, "ours")
        return {k: 1e3 * v for k, v in row["seconds"].items()} if row else None

    return read


def share_of_peak(scenario: str) -> Callable[[Report], dict[str, float] | None]:
    """Useful FLOP/s of our round, in percent of the measured limit of its number format."""

    def read(report: Report) -> dict[str, float] | None:
        row = _contender(report, scenario, "ours")
        if not row:
            return None
        share = 100 * row["flops_per_second"] / limit(report)
        return {"median": share, "min": share, "max": share}

    return read


def limit(report: Report) -> float:
    """FLOP/s of the largest matrix product in the number format of our rounds."""
    peaks: dict[str, float] = report["peaks"]
    return peaks[report["about"]["precision"]]


def _contender(report: Report, scenario: str, name: str) -> Report | None:
    row = report["scenarios"].get(scenario, {}).get("contenders", {}).get(name)
    return row if row and "seconds" in row else None


def _cpu() -> Iterator[Goal]:
    for name, target in (("loop", 3), ("pfl", 4), ("Flower simulation", 10)):
        yield Goal("cpu", f"MLP, FedAvg: rounds per second against {name}", target, "x", ratio("mlp/fedavg/10", name))
    yield Goal("cpu", "CNN, FedAvg: against the fastest of loop, pfl and Flower", 1, "x", fastest("cnn/fedavg/10"))
    for scenario, words, hooks, ghost in (
        ("mlp/step_noise/10", "MLP, noise in every step", 10, 2.5),
        ("mlp/last_noise/10", "MLP, noise on the move", 20, 4),
        ("cnn_large/step_noise/10", "1 M-parameter CNN, noise in every step", 6, 1.8),
    ):
        yield Goal("cpu", f"{words}: against Opacus hooks", hooks, "x", ratio(scenario, "Opacus hooks"))
        yield Goal("cpu", f"{words}: against Opacus ghost clipping", ghost, "x", ratio(scenario, "Opacus ghost"))


def _cuda() -> Iterator[Goal]:
    for model, name in (("mlp", "MLP"), ("cnn", "CNN")):
        yield Goal(
            "cuda", f"{name}, FedAvg, cohort 100: against the loop", 35, "x", ratio(f"{model}/fedavg/100", "loop")
        )
        for algorithm, words in (("step_noise", "noise in every step"), ("last_noise", "noise on the move")):
            read = ratio(f"{model}/{algorithm}/100", "loop, torch.func")
            yield Goal("cuda", f"{name}, {words}, cohort 100: against the loop that clips each example", 100, "x", read)
    for algorithm in ("fedavg", "scaffold", "step_noise", "last_noise"):
        read = milliseconds(f"mlp/{algorithm}/10")
        yield Goal("cuda", f"MLP, {algorithm}, cohort 10: one round", 15, " ms", read, least=False)
    for algorithm in ("fedavg", "last_noise"):
        read = share_of_peak(f"cnn_large/{algorithm}/100")
        yield Goal(
            "cuda", f"1 M-parameter CNN, {algorithm}, cohort 100: share of the peak of a matrix product", 40, " %", read
        )


GOALS: tuple[Goal, ...] = (*_cpu(), *_cuda())

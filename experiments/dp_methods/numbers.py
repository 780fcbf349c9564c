"""From kept cells to the numbers on the page: means over seeds, paired differences, and what is proved."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from experiments.dp_methods.cell import Record
from experiments.dp_methods.grid import Entry, Pair, Schedule, budgets
from experiments.dp_methods.tuning import Look, Tuned, evaluation, survey, tune

Place = tuple[str, str, float | None]
"""A label, a partition and a budget."""
Accuracies = Mapping[Place, Mapping[int, float]]
"""Accuracy in percent by seed."""
Verdict = Literal["better", "worse", "level"]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    sd: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value; the deviation of a single one is 0."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))

    @property
    def verdict(self) -> Verdict:
        """Of a difference: level unless its mean is larger than its standard deviation over the seeds.

        >>> Spread(1.0, 0.5, 3).verdict, Spread(-1.0, 0.5, 3).verdict, Spread(0.4, 0.5, 3).verdict
        ('better', 'worse', 'level')
        """
        if abs(self.mean) <= self.sd or self.mean == 0:
            return "level"
        return "better" if self.mean > 0 else "worse"

    def text(self, form: str = ".1f") -> str:
        """As ``91.2 ± 0.4``."""
        return f"{self.mean:{form}}" if self.n == 1 else f"{self.mean:{form}} ± {self.sd:.1f}"


@dataclass(frozen=True)
class Results:
    """Everything that the page shows."""

    schedule: Schedule
    entries: tuple[Entry, ...]
    accuracy: dict[Place, dict[int, float]] = field(default_factory=dict)
    diverged: dict[Place, int] = field(default_factory=dict)
    tuned: dict[tuple[str, float | None], Tuned] = field(default_factory=dict)
    records: dict[str, list[Record]] = field(default_factory=dict)
    cells: int = 0
    missing: int = 0
    seconds: float = 0.0
    sources: frozenset[str] = frozenset()
    """States of the source that the cells were computed with."""

    @property
    def rows(self) -> tuple[Entry, ...]:
        """The entries of the main tables: those with the default form of shrinkage."""
        return tuple(entry for entry in self.entries if entry.form is None)

    def spread(self, label: str, partition: str, epsilon: float | None) -> Spread | None:
        """Accuracy in percent at a place; None where a seed is missing or diverged."""
        found = self.accuracy.get((label, partition, epsilon), {})
        whole = set(found) >= set(self.schedule.seeds)
        return Spread.of(list(found.values())) if found and whole else None

    def claims(self, label: str) -> list[tuple[str, str]]:
        """(unit, observer) for which the statements of all runs of this row prove at most their budget."""
        proved = [
            {(r["unit"], r["observer"]) for r in record["statement"] if within(r, record)}
            for record in self.records.get(label, [])
            if record["status"] != "diverged"
        ]
        return sorted(set.intersection(*proved)) if proved else []

    def best(self, partition: str, epsilon: float | None) -> tuple[str, Spread] | None:
        """The most accurate row among those that protect records from the server."""
        found = [
            (entry.label, spread)
            for entry in self.rows
            if entry.kind == "record"
            and entry.promise in self.claims(entry.label)
            and (spread := self.spread(entry.label, partition, epsilon)) is not None
        ]
        return max(found, key=lambda pair: pair[1].mean, default=None)


def budget(record: Record) -> float | None:
    """The epsilon that a run was given."""
    settings = record["settings"]
    value = settings["epsilon"] if "peer" in settings else settings["privacy"].get("epsilon")
    return None if value is None else float(value)


def within(row: Record, record: Record) -> bool:
    """Whether a row of a run's statement proves no more than the run's budget."""
    given = budget(record)
    return row["status"] == "proved" and given is not None and row["epsilon"] <= given * (1 + 1e-6)


def gather(s: Schedule, entries: Sequence[Entry], look: Look) -> Results:
    """The results of all cells that are there."""
    view = survey(s, entries, look)
    kept = [record for c in view.cells if (record := look(c)) is not None]
    found = Results(
        s,
        tuple(entries),
        cells=view.done,
        missing=view.total - view.done,
        seconds=sum(record["seconds"] for record in kept),
        sources=frozenset(record["source"] for record in kept),
    )
    for entry in entries:
        for epsilon in budgets(s, entry):
            tuned = found.tuned[entry.label, epsilon] = tune(s, entry, epsilon, look)
            for cell in [] if tuned.lr is None else evaluation(s, entry, epsilon, tuned.lr):
                record = look(cell)
                if record is None:
                    continue
                found.records.setdefault(entry.label, []).append(record)
                place = (entry.label, cell.partition, epsilon)
                if record["status"] == "diverged":
                    found.diverged[place] = found.diverged.get(place, 0) + 1
                    continue
                found.accuracy.setdefault(place, {})[cell.seed] = 100 * record["accuracy"]
    return found


def paired(accuracy: Accuracies, pair: Pair, partition: str, epsilon: float | None) -> Spread | None:
    """Points by which the first of a pair is ahead of the second, seed by seed.

    >>> table = {("a", "iid", 1.0): {0: 90.0, 1: 92.0}, ("b", "iid", 1.0): {0: 89.0, 1: 89.0, 2: 10.0}}
    >>> paired(table, ("a", "b"), "iid", 1.0).text("+.1f")
    '+2.0 ± 1.4'
    """
    one, other = (accuracy.get((label, partition, epsilon), {}) for label in pair)
    shared = sorted(set(one) & set(other))
    return Spread.of([one[seed] - other[seed] for seed in shared]) if shared else None


@dataclass(frozen=True)
class Comparison:
    """A pair over all settings that were measured for both."""

    pair: Pair
    differences: dict[tuple[str, float], Spread]
    settings: int
    """How many there are; fewer are measured while cells are missing, or where a run diverged."""

    def where(self, verdict: Verdict) -> dict[tuple[str, float], Spread]:
        """The settings with this verdict."""
        return {place: d for place, d in self.differences.items() if d.verdict == verdict}

    def sentence(self) -> str:
        """What was found, in words."""
        n = len(self.differences)
        if not n:
            return "not measured."
        parts = [self._most("better", "helps"), self._most("worse", "hurts")]
        if level := len(self.where("level")):
            parts.append(f"no clear difference in {level}")
        if n < self.settings:
            parts.append(f"{self.settings - n} settings left out, where a run diverged or is missing")
        return "; ".join(parts) + "."

    def _most(self, verdict: Verdict, word: str) -> str:
        found = self.where(verdict)
        if not found:
            return f"{word} nowhere"
        (partition, epsilon), most = max(found.items(), key=lambda item: abs(item[1].mean))
        size = Spread(abs(most.mean), most.sd, most.n).text()
        return (
            f"{word} in {len(found)} of {len(self.differences)} settings, at most by {size} points "
            f"({partition}, ε = {epsilon:g})"
        )


def compare(results: Results, pair: Pair) -> Comparison:
    """A pair at every partition and budget where both are whole."""
    s = results.schedule
    differences = {
        (partition, epsilon): difference
        for partition in s.partitions
        for epsilon in s.epsilons
        if all(results.spread(label, partition, epsilon) is not None for label in pair)
        and (difference := paired(results.accuracy, pair, partition, epsilon)) is not None
    }
    return Comparison(pair, differences, len(s.partitions) * len(s.epsilons))

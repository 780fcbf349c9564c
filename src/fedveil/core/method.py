"""A federated method as a recipe of parts (DESIGN: Method)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

import torch
from torch import Tensor

from fedveil.core.errors import Refused, one_of
from fedveil.core.flat import Layout
from fedveil.core.parts import MOVE, Aggregator, LocalRule, Moves, Transport
from fedveil.core.round import arrive, depart
from fedveil.core.signal import Signal
from fedveil.core.stage import Chain, Context, PerSample, Release, chain
from fedveil.core.streams import stream

Weights = Literal["uniform", "examples"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """Which part stands at which station of a round; building one checks that the parts fit.

    on_step
        acts on each local gradient; a leading per-sample stage sees single examples, all others see the
        batch's gradient (its mean, or what the per-sample stage summed), one row per client.
    on_delta
        acts on the whole local move Δ = y − w, before control variates are made of it.
    on_upload
        acts on Δ as it leaves the client: post-processing only.
    on_mean
        acts on the aggregate, at the server.
    weights
        how much an upload counts in a mean: ``uniform``, or by the client's number of ``examples`` (SPEC 1).

    A method is ``private`` when some stage is a privacy mechanism; then everything that the server keeps must
    have passed one.
    """

    name: str
    local: LocalRule
    transport: Transport
    aggregate: Aggregator
    on_step: Chain = field(default_factory=chain)
    on_delta: Chain = field(default_factory=chain)
    on_upload: Chain = field(default_factory=chain)
    on_mean: Chain = field(default_factory=chain)
    weights: Weights = "uniform"
    private: bool = field(init=False)

    def __post_init__(self) -> None:
        for f in fields(self):
            if f.name.startswith("on_") and not isinstance(getattr(self, f.name), Chain):
                object.__setattr__(self, f.name, chain(getattr(self, f.name)))
        one_of(f"{self.name}.weights", self.weights, ("uniform", "examples"))
        object.__setattr__(self, "private", bool(self.check()))

    def weigh(self, sizes: Tensor) -> Tensor:
        """Weights of the uploads of clients with these numbers of examples; they sum to one (float64)."""
        raw = sizes.double() if self.weights == "examples" else torch.ones(len(sizes), dtype=torch.float64)
        return raw / raw.sum()

    def share(self, cohort: Tensor, population: Tensor) -> float:
        """The cohort's weight in the population: n/N when uniform (SPEC 2)."""
        if self.weights == "examples":
            return float(cohort.sum() / population.sum())
        return len(cohort) / len(population)

    def check(self) -> list[Release]:
        """Push a dummy cohort through every slot; refuse parts that do not fit, and return what was released."""
        self._check_views()
        self._check_slots()
        layout = Layout(("matrix", "vector"), ((4, 3), (12,)))
        rows, w = 2, torch.zeros(layout.dim)
        server = self.local.start(w)
        memory = torch.zeros(rows, layout.dim) if self.local.remembers else None
        ctx = Context(0, layout, range(rows), [stream(0, "check", i) for i in range(rows)])
        gradient = torch.linspace(-1, 1, rows * layout.dim).view(rows, layout.dim)
        first = self.on_step.per_sample
        step = self.on_step(first.summed(gradient) if first else Signal(gradient), ctx.at("on_step"))
        travel = torch.ones(rows, 1)
        moves = Moves((step * -1.0).unbounded(), travel, torch.ones(rows), torch.zeros(rows))
        try:
            uploads, _ = depart(self, moves, memory, server, ctx)
            at_server = Context(0, layout, [None], [stream(0, "check")], releases=ctx.releases)
            arrive(self, uploads, torch.full((rows,), 10), 1.0, server, at_server)
        except Refused:
            raise
        except ValueError as problem:
            raise Refused(f"{self.name}: {problem}") from problem
        if ctx.releases and self.weights == "examples":
            raise Refused(
                f"{self.name}: weights by private example counts are not covered by the noise of a private "
                "method; set weights=uniform"
            )
        return ctx.releases

    def _check_views(self) -> None:
        if self.aggregate.needs not in self.transport.reveals:
            raise Refused(
                f"{self.name}: {_name(self.aggregate)} needs to see {self.aggregate.needs!r} of the uploads but "
                f"{_name(self.transport)} reveals only {', '.join(sorted(self.transport.reveals))}; choose an "
                "aggregator that works on the sum, such as mean, or transport=plain"
            )
        if not self.local.channels or self.local.channels[0] != MOVE:
            raise Refused(f"{self.name}: {_name(self.local)} must list {MOVE!r} as its first channel")

    def _check_slots(self) -> None:
        for slot in ("on_step", "on_delta", "on_upload", "on_mean"):
            stages = tuple(getattr(self, slot))
            allowed = 1 if slot == "on_step" else 0
            for stage in stages[allowed:]:
                if isinstance(stage, PerSample):
                    raise Refused(
                        f"{self.name}: {_name(stage)} looks at single examples and stands at {slot}; "
                        "put it first in on_step"
                    )


def _name(part: object) -> str:
    return getattr(part, "name", None) or type(part).__name__

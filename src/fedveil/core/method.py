"""A federated method as a recipe of parts (DESIGN: Method)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import torch
from torch import Tensor

from fedveil.core.errors import Refused, one_of
from fedveil.core.flat import Layout
from fedveil.core.parts import MOVE, Aggregator, Calculating, Controller, Delivery, LocalRule, Moves, Transport
from fedveil.core.round import Shares, depart, land
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
        acts on each client's Δ after it was released and packed: post-processing only.
    on_mean
        acts on the aggregate, at the server.
    weights
        how much an upload counts in a mean: ``uniform``, or by the client's number of ``examples`` (SPEC 1).

    allow_leak
        whether a channel may leave the clients with no mechanism beside one that has one; then nothing is claimed.
    epsilon_per_weight
        what ``privacy.epsilon`` says where it is the mechanism's own, per weight and round, and no budget of the run.

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
    allow_leak: bool = False
    epsilon_per_weight: float | None = None
    private: bool = field(init=False)
    local_privacy: bool = field(init=False)
    """Every upload has passed a mechanism before it leaves the client: private towards the server as well."""

    def __post_init__(self) -> None:
        for f in fields(self):
            if f.name.startswith("on_") and not isinstance(getattr(self, f.name), Chain):
                object.__setattr__(self, f.name, chain(getattr(self, f.name)))
        one_of(f"{self.name}.weights", self.weights, ("uniform", "examples"))
        self._check_views()
        self._check_slots()
        if self.weights == "examples" and not self.aggregate.weighted:
            raise Refused(
                f"{self.name}.weights: {_name(self.aggregate)} counts every upload once, since an attacker could claim "
                "any number of examples; set weights=uniform"
            )
        releases, local = self.rehearse(DUMMY)
        object.__setattr__(self, "private", bool(releases))
        object.__setattr__(self, "local_privacy", local)
        self._check_unlinked()
        self._check_calculated()

    @property
    def derives(self) -> bool:
        """Whether the server computes some channels by itself, from moves that it sees one by one."""
        return bool(self.local.derived) and "each" in self.transport.reveals

    @property
    def reads_public(self) -> bool:
        """Whether somebody behind packing asks which part of a move is public: a stage, or the next round."""
        return bool(len(self.on_upload) or len(self.on_mean) or self.looks_back)

    @property
    def looks_back(self) -> bool:
        """Whether a stage or the aggregator asks for the mean move of the last round."""
        return _looks_back(self.aggregate) or self.sends_back

    @property
    def sends_back(self) -> bool:
        """Whether clients are told the mean move of the last round: a stage asks for it."""
        slots = (self.on_step, self.on_delta, self.on_upload, self.on_mean)
        return any(_looks_back(stage) for slot in slots for stage in slot)

    @property
    def sums_only(self) -> bool:
        """Whether clients share out their noise, so that it protects the sum of the uploads and no single one."""
        return any(getattr(stage, "sums_only", False) for stage in self.on_delta)

    @property
    def fixed_divisor(self) -> bool:
        """Whether a mean is divided by the expected cohort, because who takes part is a secret (SPEC 1)."""
        return self.private and not self.local_privacy and not self.allow_leak

    def weigh(self, sizes: Tensor, cohort: int) -> Tensor:
        """Weights of the uploads of clients with these numbers of examples; float64.

        They sum to one, except that under ``fixed_divisor`` each one is 1/cohort, whoever came.
        """
        if self.fixed_divisor:
            return torch.full((len(sizes),), 1.0 / cohort, dtype=torch.float64)
        raw = sizes.double() if self.weights == "examples" else torch.ones(len(sizes), dtype=torch.float64)
        return raw / raw.sum()

    def share(self, sizes: Tensor, population: Tensor, cohort: int) -> float:
        """The cohort's weight in the population: n/N when uniform (SPEC 2); n is expected under ``fixed_divisor``."""
        if self.weights == "examples":
            return float(sizes.sum()) / float(population.sum())
        return (cohort if self.fixed_divisor else len(sizes)) / len(population)

    def rehearse(
        self, layout: Layout, cohort: int = 1, known: Mapping[str, Tensor] | None = None, client: int = 0
    ) -> tuple[list[Release], bool]:
        """Push a dummy client through every slot, refuse parts that do not fit; what it released, and whether
        every upload had passed a mechanism before it left the client. The mean is
        over ``cohort`` clients alike (a robust rule gets as many rows); ``known`` is what stages remember by now;
        ``client`` is whose noise it has.
        """
        w = torch.zeros(layout.dim)
        server = self.local.start(w)
        memory = torch.zeros(1, layout.dim) if self.local.remembers else None
        own, servers = stream(0, "rehearsal"), stream(0, "rehearsal", "server")
        ctx = Context(0, layout, [client], [own], memory=dict(known or {}), server=servers)
        gradient = torch.linspace(-1, 1, layout.dim)[None, :]
        first = self.on_step.per_sample
        try:
            step = self.on_step(first.summed(gradient) if first else Signal(gradient), ctx.at("on_step"))
            moves = Moves((step * -1.0).unbounded(), torch.ones(1, 1), torch.ones(1), torch.zeros(1))
            uploads, _ = depart(self, moves, memory, server, ctx)
            shares = Shares(torch.full((1,), 1.0 / cohort), moves.travel, 1.0, 1.0)
            rows = {name: s.value for name, s in uploads.items()}  # one row is its own sum, so no transport is needed
            if isinstance(self.transport, Calculating):
                pass
            elif "each" not in self.transport.reveals:
                rows = {name: value / cohort for name, value in rows.items()}
            elif not self.aggregate.weighted:
                count = max(self.aggregate.least, 1 if uploads[MOVE].released else cohort)
                rows = {name: value.expand(count, -1) for name, value in rows.items()}
                shares = replace(shares, weights=torch.full((count,), 1.0 / count))
            land(self, uploads, Delivery(rows, 0), shares, server, ctx)
        except Refused:
            raise
        except ValueError as problem:
            raise Refused(f"{self.name}: {problem}") from problem
        except OverflowError:
            raise Refused(f"{self.name}: norms or noise are beyond what numbers hold; lower them") from None
        if ctx.releases and self.weights == "examples":
            raise Refused(
                f"{self.name}: weights by private example counts are not covered by the noise of a private "
                "method; set weights=uniform"
            )
        local = all(upload.released for upload in uploads.values())
        counts = any(r.clients is None and r.slot != "on_mean" for r in ctx.releases)
        if counts and "each" not in self.transport.reveals:
            raise Refused(
                f"{self.name}: a stage with memory counts over single clients, and {_name(self.transport)} brings only "
                "the sum of the uploads; use a fixed clip, or transport=plain"
            )
        if local and counts:
            raise Refused(
                f"{self.name}: a stage with memory tells the server about single clients without noise, which the "
                "clients' own noise does not cover; use a fixed clip, or noise at on_mean"
            )
        return ctx.releases, local

    def _check_views(self) -> None:
        if isinstance(self.transport, Calculating):
            self._check_rules(self.transport)
        elif self.aggregate.needs not in self.transport.reveals:
            raise Refused(
                f"{self.name}: {_name(self.aggregate)} needs to see {self.aggregate.needs!r} of the uploads but "
                f"{_name(self.transport)} reveals only {', '.join(sorted(self.transport.reveals))}; choose an "
                "aggregator that works on the sum, such as mean, or transport=plain"
            )
        if self.sums_only and "each" in self.transport.reveals:
            raise Refused(
                f"{self.name}: clients share out the noise, which protects their sum only, and {_name(self.transport)} "
                "shows the server every single upload; set transport=masks"
            )
        if self.sums_only and self.local.remembers:
            raise Refused(
                f"{self.name}: clients share out the noise of their sum, and {_name(self.local)} makes what a client "
                "remembers of its own upload; use local steps without control variates, such as FedAvg"
            )
        if not self.local.channels or self.local.channels[0] != MOVE:
            raise Refused(f"{self.name}: {_name(self.local)} must list {MOVE!r} as its first channel")

    def _check_rules(self, transport: Calculating) -> None:
        """Servers that see no upload carry out the rule, chosen from what they may open."""
        rule = self.aggregate
        if isinstance(rule, Controller) and not (rule.reads and rule.reads <= transport.opens):
            raise Refused(
                f"{self.name}: {_name(rule)} looks at every single upload to choose a rule, and {_name(transport)} "
                f"opens only {', '.join(sorted(transport.opens))}; set aggregate.detector=calibrated"
            )
        for one in rule.rules if isinstance(rule, Controller) else (rule,):
            if can := transport.serves(one):
                raise Refused(f"{self.name}: {_name(transport)} cannot carry out {_name(one)}; {can}")
        if len(self.local.channels) > 1:
            raise Refused(
                f"{self.name}: {_name(transport)} carries one vector of each client, and {_name(self.local)} sends "
                f"{' and '.join(self.local.channels)}; use local steps without control variates, such as FedAvg"
            )

    def _check_calculated(self) -> None:
        if not isinstance(self.transport, Calculating):
            return
        if self.weights != "uniform":
            raise Refused(
                f"{self.name}.weights: {_name(self.transport)} counts every client once, since nobody can check a "
                "number of examples there; set weights=uniform"
            )
        if self.private and not self.local_privacy:
            raise Refused(
                f"{self.name}: numbers about the uploads are opened to the servers of {_name(self.transport)} before "
                "noise at the server would act, so that it would not cover them; let the clients add the noise, as "
                "apa_fl and dp_fedavg_local do"
            )

    def _check_unlinked(self) -> None:
        if not getattr(self.transport, "unlinks", False):
            return
        if self.weights != "uniform":
            raise Refused(
                f"{self.name}: {_name(self.transport)} loses whose upload is whose, so that all count alike; set "
                "weights=uniform"
            )
        if self.private and not self.local_privacy:
            raise Refused(
                f"{self.name}: {_name(self.transport)} averages what arrived, which noise at the server does not "
                "cover; use a method whose clients add their own noise, such as ldp_fl, or transport=plain"
            )

    def _check_slots(self) -> None:
        if any(map(_looks_back, self.on_step)) and not self.local.drift_is_public:
            raise Refused(
                f"{self.name}: a stage of on_step looks back at the last mean move, which holds a drift correction "
                "that nobody can take out, so that it would count twice; use shrink.target=zero"
            )
        for slot in ("on_step", "on_delta", "on_upload", "on_mean"):
            stages = tuple(getattr(self, slot))
            allowed = 1 if slot == "on_step" else 0
            for stage in stages[allowed:]:
                if isinstance(stage, PerSample):
                    raise Refused(
                        f"{self.name}: {_name(stage)} looks at single examples and stands at {slot}; "
                        "put it first in on_step"
                    )


DUMMY = Layout(("matrix", "vector"), ((4, 3), (12,)))
"""Stands for a model where parts are tried out before there is one."""


def _looks_back(stage: object) -> bool:
    return bool(getattr(stage, "looks_back", False))


def _name(part: object) -> str:
    return getattr(part, "name", None) or type(part).__name__

"""FedVeil's rules and stages as a Flower strategy (message API, flwr 1.41)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from logging import INFO, WARNING
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import FedAvg
from flwr.supercore import log
from flwr.supercore.privacy_accounting import SamplingMethod
from torch import Tensor

from fedveil.aggregate.mean import Mean
from fedveil.core.errors import Aborted, Refused, one_of
from fedveil.core.parts import Aggregator, Controller, Randomised, State
from fedveil.core.round import MISSING
from fedveil.core.secret import secure_generator
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, PerSample, Release, Remembering, Stage, chain
from fedveil.core.streams import stream
from fedveil.flower.accountant import LedgerAccountant
from fedveil.flower.arrays import alike, layout_of, move, moved, plain
from fedveil.privacy.events import Poisson, Sampling, WithoutReplacement
from fedveil.privacy.ledger import Line

Selection = Literal["fixed", "poisson"]
WAIT = 1.0


class FedVeilStrategy(FedAvg):
    """FedAvg's round trip with one of FedVeil's rules in its middle, on the clients' moves.

    ``FedVeilStrategy(Krum(1))``, or with privacy towards everybody who sees the models, by noise at the server:
    ``FedVeilStrategy(Mean(), on_upload=clip(norm=1.0), on_mean=gaussian(multiplier=1.0), population=100, cohort=10,
    selection="poisson", accountant=LedgerAccountant(...))``.

    rule
        any of :mod:`fedveil.aggregate`, a controller (``Adaptive``) included; it sees one row per client.
    on_upload, on_mean
        stages on each client's move as it arrives, and on the aggregate. Noise without a bound before it is refused.
    population, cohort, selection
        who is asked in a round, out of how many: ``fixed`` as many, or ``poisson``: each by itself, with probability
        cohort / population, by a generator that nobody can repeat. Needed for an accountant; without them, as FedAvg.
    accountant
        every release of ``on_mean`` is charged before the new model leaves this strategy; a round that would exceed
        its budget ends the run with Flower's ``PrivacyBudgetExhausted`` before anything of it is released. Its
        configuration must say how clients are really drawn.
    seed
        for experiments: who is drawn, and what noise, can then be repeated, and nothing is private.

    A reply that has other arrays than the client was sent, or what is no finite number, takes no part and is logged.
    Under noise the mean is divided by ``cohort``, whoever came (SPEC 1), and the metrics of clients are not averaged:
    they would leave with no noise in them. Other options are FedAvg's.
    """

    def __init__(
        self,
        rule: Aggregator | None = None,
        *,
        on_upload: Stage | None = None,
        on_mean: Stage | None = None,
        population: int | None = None,
        cohort: int | None = None,
        selection: Selection = "fixed",
        accountant: LedgerAccountant | None = None,
        weights: Literal["examples", "uniform"] | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.rule: Aggregator = Mean() if rule is None else rule
        self.on_upload, self.on_mean = chain(*filter(None, [on_upload])), chain(*filter(None, [on_mean]))
        self.population, self.cohort, self.selection, self.seed = population, cohort, selection, seed
        self.accountant, self.learned = accountant, State()
        one_of("selection", selection, ("fixed", "poisson"))
        self.private = self._rehearse()
        self.weights = weights or ("examples" if self.rule.weighted and not self.private else "uniform")
        self._check()
        self._before: ArrayRecord | None = None
        self._round = 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw who takes part, and send them the model."""
        self._before, self._round = arrays, server_round
        books = self.accountant
        limit = None if books is None else books.config.max_epsilon
        if books is not None and limit is not None and books.exceeded_by(self._lines(self._planned)):
            spent = books.get_privacy_spent().epsilon
            raise PrivacyBudgetExhausted(f"round {server_round} would exceed epsilon {limit:g}; {spent:.4g} is spent")
        if self.cohort is None or self.population is None:
            return super().configure_train(server_round, arrays, config, grid)
        nodes = self._present(grid)
        rng = secure_generator() if self.seed is None else stream(self.seed, "cohort", server_round)
        if self.selection == "poisson":
            drawn = [node for node in nodes if rng.random() < self.cohort / self.population]
        else:
            drawn = self._drawn(nodes, rng)
        log(INFO, "configure_train: %s of %s nodes drawn (%s)", len(drawn), len(nodes), self.selection)
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return list(self._construct_messages(record, drawn, MessageType.TRAIN))

    def _drawn(self, nodes: list[int], rng: np.random.Generator) -> list[int]:
        """A fixed number of nodes; where the claim counts on the draw, out of all the population, absent ones too."""
        assert self.cohort is not None
        assert self.population is not None
        books = self.accountant
        if books is None or books.config.sampling_method is not SamplingMethod.WITHOUT_REPLACEMENT:
            return [int(k) for k in rng.choice(nodes, size=min(self.cohort, len(nodes)), replace=False)]
        seats = rng.choice(self.population, size=self.cohort, replace=False)
        return [nodes[seat] for seat in seats.tolist() if seat < len(nodes)]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new model out of what arrived; what cannot be used is left out and logged."""
        if self._before is None or self._round != server_round:
            raise Refused(
                "FedVeilStrategy: a round was aggregated that it did not configure; use one strategy for both"
            )
        before = plain(self._before)
        layout = layout_of(before)
        usable, nodes = self._usable(replies, before)
        if not usable and not self.private:
            return None, None
        rows = [move(arrays, before, layout) for arrays, _ in usable] or [torch.zeros(layout.dim, dtype=torch.float64)]
        ctx = Context(
            server_round, layout, nodes or [None], self._streams("upload", nodes or [None]), slot="on_upload",
            server=self._streams("server", [None])[0],
        )  # fmt: skip
        uploads = self.on_upload(Signal(torch.stack(rows)), ctx)
        weights = self._weigh([content for _, content in usable], len(rows))
        try:
            if self.private and not self.rule.weighted and len(usable) != self.cohort:
                raise Aborted(MISSING)
            mean = self._combine(uploads, weights, ctx)
        except Aborted as why:
            log(WARNING, "aggregate_train: %s; the model stays as it is", why)
            return None, None
        at_server = ctx.at_server()
        mean = self.on_mean(mean, at_server)
        if self.accountant is not None:
            self.accountant.charge(self._lines(at_server.releases))
        others = self._counters([arrays for arrays, _ in usable], before)
        metrics = None
        if usable and not self.private:
            metrics = self.train_metrics_aggr_fn([content for _, content in usable], self.weighted_by_key)
        return moved(before, mean.value[0], layout, others), metrics

    def summary(self) -> None:
        """Log the rule and the stages before FedAvg's own settings."""
        log(INFO, "\t├──> FedVeil: %s, weights %s", type(self.rule).__name__, self.weights)
        for slot, stages in (("on_upload", self.on_upload), ("on_mean", self.on_mean)):
            log(INFO, "\t│\t├── %s: %s", slot, ", ".join(type(s).__name__ for s in stages) or "nothing")
        super().summary()

    def _usable(
        self, replies: Iterable[Message], before: dict[str, Any]
    ) -> tuple[list[tuple[dict[str, Any], RecordDict]], list[int | None]]:
        """Replies that can be aggregated, in the order of their nodes, so that sums can be repeated."""
        found: list[tuple[dict[str, Any], RecordDict]] = []
        nodes: list[int | None] = []
        for message in sorted(replies, key=lambda m: m.metadata.src_node_id):
            why = None
            if message.has_error():
                why = str(message.error.reason)
            elif len(message.content.array_records) != 1:
                why = f"{len(message.content.array_records)} sets of arrays instead of one"
            else:
                try:
                    arrays = plain(next(iter(message.content.array_records.values())))
                    why = alike(arrays, before)
                except Exception as problem:  # whatever a node sends must not end the run
                    why = f"arrays that cannot be read ({type(problem).__name__})"
            if why is None:
                found.append((arrays, message.content))
                nodes.append(message.metadata.src_node_id)
            else:
                log(WARNING, "aggregate_train: node %s is left out: %s", message.metadata.src_node_id, why)
        return found, nodes

    def _weigh(self, contents: list[RecordDict], rows: int) -> Tensor:
        if self.private:
            assert self.cohort is not None
            return torch.full((rows,), 1 / self.cohort, dtype=torch.float64)
        if self.weights == "uniform":
            return torch.full((rows,), 1 / rows, dtype=torch.float64)
        counts = []
        for content in contents:
            values = [record.get(self.weighted_by_key) for record in content.metric_records.values()]
            value = values[0] if values else None
            if not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise Refused(
                    f"weights: a client's {self.weighted_by_key!r} is {value!r}; let clients report it, or set "
                    "weights='uniform'"
                )
            counts.append(float(value))
        raw = torch.tensor(counts, dtype=torch.float64)
        return raw / raw.sum()

    def _combine(self, uploads: Signal, weights: Tensor, ctx: Context) -> Signal:
        rule = self.rule
        if isinstance(rule, Controller):
            chosen, self.learned = rule.choose(self.learned or rule.init(), uploads, ctx)
            log(INFO, "aggregate_train: %s", ctx.log)
            return chosen(uploads, weights)
        if isinstance(rule, Randomised):
            assert ctx.server is not None
            rule = rule.drawn(ctx.server)
        return rule(uploads, weights)

    def _lines(self, releases: Iterable[Release]) -> list[Line]:
        return [Line(release, None, self._sampling, ("public",)) for release in releases]

    @property
    def _sampling(self) -> Sampling:
        if self.accountant is None or self.cohort is None or self.population is None:
            return None
        how = self.accountant.config.sampling_method.value
        if how == "poisson":
            return Poisson(self.cohort / self.population)
        return WithoutReplacement(self.cohort, self.population) if how == "without-replacement" else None

    def _streams(self, what: str, owners: list[int | None]) -> list[np.random.Generator]:
        if self.seed is None:
            return [secure_generator() for _ in owners]
        return [stream(self.seed, what, self._round, -1 if k is None else k) for k in owners]

    def _counters(self, usable: list[dict[str, Any]], before: dict[str, Any]) -> dict[str, Any]:
        """What is no real number, such as a counter of batches: the middle value; under privacy it stays."""
        if not usable or self.private:
            return before
        other = [name for name, array in before.items() if array.dtype.kind != "f"]
        return {name: np.sort(np.stack([a[name] for a in usable]), axis=0)[len(usable) // 2] for name in other}

    def _present(self, grid: Grid) -> list[int]:
        while len(nodes := sorted(grid.get_node_ids())) < self.min_available_nodes:
            log(INFO, "configure_train: %s of %s nodes are there", len(nodes), self.min_available_nodes)
            time.sleep(WAIT)
        assert self.population is not None
        if len(nodes) > self.population:
            raise Refused(
                f"population: {len(nodes)} nodes are connected, and the claim speaks of {self.population}; raise it"
            )
        return nodes

    def _rehearse(self) -> bool:
        """Push a dummy row through the stages; whether the aggregate is released with noise."""
        from fedveil.core.method import DUMMY

        for stage in (*self.on_upload, *self.on_mean):
            if isinstance(stage, PerSample | Remembering) or getattr(stage, "looks_back", False):
                raise Refused(
                    f"FedVeilStrategy: {type(stage).__name__} needs FedVeil's own round loop; use a fixed clip, "
                    "shrink(target='zero'), or `fedveil run runtime=flower`"
                )
        rows = max(self.rule.least, 1 if self.cohort is None else self.cohort)
        gens = [stream(0, "rehearsal", k) for k in range(rows)]
        ctx = Context(0, DUMMY, list(range(rows)), gens, slot="on_upload", server=stream(0, "rehearsal"))
        trial = self.on_upload(Signal(torch.ones(rows, DUMMY.dim, dtype=torch.float64)), ctx)
        if ctx.releases:
            raise Refused(
                "on_upload: noise at the server that hides single uploads protects them from nobody who has not seen "
                "them; put it into a StagesMod at the clients, or at on_mean"
            )
        rule = self.rule
        if isinstance(rule, Controller):
            if len(self.on_mean):
                raise Refused(
                    "rule: it is chosen by looking at uploads before any noise, which noise at the server does not "
                    "cover; use one rule for all rounds, or noise at the clients"
                )
            return False
        if isinstance(rule, Randomised):
            rule = rule.drawn(stream(0, "rehearsal"))
        at_server = ctx.at_server()
        self.on_mean(rule(trial, torch.full((rows,), 1 / rows, dtype=torch.float64)), at_server)
        self._planned: list[Release] = at_server.releases
        return bool(at_server.releases)

    def _check(self) -> None:
        if self.population is not None and self.cohort is not None and self.cohort > self.population:
            raise Refused(f"cohort: {self.cohort} of a population of {self.population}; give at most that")
        if (self.population is None) != (self.cohort is None):
            raise Refused("population, cohort: one of the two is missing; give both or neither")
        if self.cohort is not None:
            self.rule.check(self.cohort)
        if self.weights == "examples" and (self.private or not self.rule.weighted):
            raise Refused("weights: neither noise nor a rule that counts uploads goes with 'examples'; use 'uniform'")
        if self.private and self.cohort is None:
            raise Refused("cohort: the noise is measured against it; give population and cohort")
        if self.private and not self.rule.weighted and self.selection == "poisson":
            raise Refused(
                "selection: the rule depends on how many take part, which the noise does not cover; use 'fixed'"
            )
        if self.accountant is None:
            return
        if not self.private:
            raise Refused("accountant: nothing is released under a mechanism; put noise at on_mean, behind a clip")
        if self.seed is not None:
            raise Refused("seed: noise and draws that can be repeated protect nothing; leave seed out")
        config = self.accountant.config
        if config.population_size != self.population:
            raise Refused(f"population: {self.population} here, {config.population_size} in the accountant; give one")
        wanted = {"poisson": ("poisson", "no-amplification"), "fixed": ("without-replacement", "no-amplification")}
        if config.sampling_method.value not in wanted[self.selection]:
            raise Refused(
                f"accountant: it counts {config.sampling_method.value} draws, and this strategy draws "
                f"{self.selection}; give it one of {', '.join(wanted[self.selection])}"
            )

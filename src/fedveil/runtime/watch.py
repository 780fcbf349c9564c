"""A run with canaries: who is in by a fair coin, where they join, and what the observer's view says of them (SPEC 8).

Canaries ride along with the run: they take nobody's place, and no size, divisor or cohort changes, so that the run's
claim stays what it is. Where they join follows from where the noise stands:

- ``on_step`` (record unit, towards the server): a canary is one more record of a client. It joins a step when the
  client's own sampler draws it, and its score is its inner product with the client's upload, after what the same client
  would have sent without noise and canaries has been taken out: the auditor knows everybody else's data.
- ``on_delta`` (client unit, towards the server): a canary is one more client, which joins when a real client does; its
  score is its inner product with its own uploads.
- ``on_mean`` (client unit, towards the public): a canary is one more client in the sum to which the server adds noise,
  drawn as clients are; its score is its inner product with the released mean, after the real clients' part has been
  taken out. The cosine with the released mean itself is kept as well (Andrew et al. 2023).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Refused
from fedveil.core.method import Method
from fedveil.core.parts import MOVE, Moves, State, Uploads
from fedveil.core.round import Arrival, depart
from fedveil.core.scale import Scale
from fedveil.core.signal import Signal
from fedveil.core.stage import Chain, Context, PerSample, Slot, chain
from fedveil.core.streams import stream
from fedveil.data.cohorts import draw
from fedveil.privacy.canaries import LONG, Directions, Plant, noisy, planted, room, tampered

if TYPE_CHECKING:
    from fedveil.runtime.prepare import Training

Places = np.ndarray[Any, np.dtype[np.int64]]
HEARD = "canaries."
"""What a run has heard of its canaries stands under such names in the server's state; it is never sent to clients."""
SUM, VARIANCE, COSINE = (HEARD + name for name in ("sum", "variance", "cosine"))

USUAL = 5000
"""Canaries where nobody says how many: enough to exceed a claim of 4 when the noise is off, and still quick."""
ROWS = 64
"""Canary clients whose uploads are made at a time."""


class Watch:
    """The canaries of one run; made of public settings and the seed alone, so that a resumed run has the same."""

    def __init__(self, training: Training) -> None:
        self.training, self.settings = training, training.settings.audit
        self.slot = _slot(training)
        population, dim, seed = training.federation.population, training.objective.layout.dim, training.settings.seed
        most = {"on_step": room(dim) * population, "on_delta": USUAL, "on_mean": room(dim)}[self.slot]
        count = min(USUAL, most) if self.settings.canaries == "auto" else self.settings.canaries
        if count < 2:
            raise Refused(f"audit.canaries: {count} cannot be told from chance; give at least 2, better 1000")
        self.count = count
        self.holders = np.arange(count) % population
        """The client that each canary belongs to, or whose taking part it shares."""
        self.place = np.arange(count) // population if self.slot == "on_step" else np.arange(count)
        """The direction of each canary: clients send apart, so that each has all directions for itself."""
        needed = {"on_step": -(-count // population), "on_delta": 1, "on_mean": count}[self.slot]
        if needed > room(dim):
            raise Refused(
                f"audit.canaries: {count} do not fit into a model of {dim:,} parameters; "
                f"give at most {most:,}, or take a larger model"
            )
        self.directions = Directions.drawn(dim, needed, stream(seed, "canary directions"))
        self.inside = stream(seed, "canary coins").random(count) < 0.5
        self.plant = Plant(self.directions, self._share())
        self.method = self._method()
        self.quiet = self._quiet() if self.slot == "on_step" else self.method
        """For records: the same local training without noise and canaries, clipped as before."""
        self.bare = replace(self.method, on_upload=chain()) if self.slot == "on_step" else self.method
        """For records: without post-processing of uploads, which would hide what is taken out again."""

    @property
    def unit(self) -> str:
        """What a canary stands for."""
        return "record" if self.slot == "on_step" else "client"

    @property
    def observer(self) -> str:
        """Who is to tell whether it is in."""
        return "public" if self.slot == "on_mean" else "server"

    @property
    def remarks(self) -> list[str]:
        """What a person should know before the first round."""
        factor = self.settings.noise
        weak = (
            f"WARNING: only {factor:g} of the noise is added, unknown to the ledger (audit.noise); nothing is claimed"
        )
        return [
            f"audit: {self.count:,} canaries ({self.unit}s, towards {self.observer}) ride along, in or out by a coin",
            *([weak] if factor != 1 else []),
        ]

    def _method(self) -> Method:
        """The method that really runs: canaries before the noise, and so much of it as the settings say."""
        method, factor = self.training.method, self.settings.noise
        slots: dict[str, Chain] = {
            name: tampered(getattr(method, name), factor) for name in ("on_step", "on_delta", "on_mean")
        }
        if self.slot != "on_delta":
            slots[self.slot] = tampered(planted(getattr(method, self.slot), self.plant), factor)
        return replace(method, **slots)  # type: ignore[arg-type]

    def _quiet(self) -> Method:
        steps = (stage for stage in self.training.method.on_step if isinstance(stage, PerSample | Scale))
        return replace(self.training.method, on_step=chain(*steps), on_upload=chain(), on_mean=chain())

    def _share(self) -> float:
        """What the method's own clip leaves of a canary that is ``LONG`` times as long as it may be."""
        method, dim = self.training.method, self.training.objective.layout.dim
        if self.slot == "on_step":
            each = method.on_step.per_sample
            assert each is not None
            bound = each.summed(torch.zeros(1, 1)).bound
            assert bound is not None
            long = torch.tensor([LONG * bound], dtype=torch.float64)
            return float(each.factors(long)) * LONG
        if self.slot == "on_delta" or method.on_delta.remembers:
            return 1.0
        row = torch.zeros(1, dim)
        ctx = Context(0, self.training.objective.layout, [0], [stream(0, "canary clip")], slot="on_delta")
        bound = method.on_delta(Signal(row), ctx).bound
        assert bound is not None
        self.directions.add(row[0], torch.tensor([0]), LONG * bound)
        return float(method.on_delta(Signal(row), ctx).value.norm()) / bound

    def begin(self, number: int, cohort: Sequence[int]) -> Method:
        """The method of one round, with everybody's canaries on their way."""
        self.plant.before = None
        if self.slot == "on_step":
            self.plant.walks = {k: self._records(number, k) for k in cohort}
        elif self.slot == "on_mean":
            self.plant.walks = {None: iter([self._clients(number)])}
        return self.method

    def _records(self, number: int, client: int) -> Iterator[Tensor]:
        """Which canaries of a client join each of its steps, drawn by the client's own sampler.

        They take the places of records in data sets of the client's size, as many as it takes.
        """
        examples, batching = int(self.training.federation.sizes[client]), self.training.batching
        mine = np.flatnonzero(self.holders == client)
        joined: list[list[Any]] = [[] for _ in range(batching.steps_for(examples))]
        for group in range(-(-len(mine) // examples)):
            own = mine[group * examples : (group + 1) * examples]
            rng = stream(self.training.settings.seed, "canary batches", number, client, group)
            order, ends = batching.batches(examples, rng)
            for step, drawn in enumerate(np.split(order, ends[:-1])):
                taken = own[drawn[drawn < len(own)]]
                joined[step].append(self.place[taken[self.inside[taken]]])
        return iter([torch.from_numpy(np.concatenate(parts)) for parts in joined])

    def _clients(self, number: int) -> Tensor:
        """Which canary clients that are in take part in a round, drawn as clients are."""
        settings, population = self.training.settings, self.training.federation.population
        chosen = []
        for group in range(-(-self.count // population)):
            rng = stream(settings.seed, "canary cohort", number, group)
            drawn = draw(settings.seed, number, population, self.training.cohort, settings.selection, rng)
            chosen.append(group * population + drawn)
        found = np.concatenate(chosen)
        found = found[found < self.count]
        return torch.from_numpy(self.place[found[self.inside[found]]])

    def replay(self, ctx: Context) -> Context:
        """A context in which the same batches are drawn once more; to be made before training draws them."""
        return replace(
            ctx,
            batches=[copy.deepcopy(rng) for rng in ctx.batches],
            releases=[],
            log={},
            memory=dict(ctx.memory),
            lenient=True,
        )

    def hear(
        self,
        server: State,
        moves: Moves | None,
        uploads: Uploads,
        arrival: Arrival,
        held: Tensor | None,
        again: Context,
    ) -> State:
        """What a round tells of the canaries, beside what was heard before it; ``again`` is its context as it began."""
        heard = self._heard(server)
        cohort = np.array([k for k in again.clients if k is not None], dtype=np.int64)
        if self.slot == "on_mean":
            return self._hear_release(heard, arrival)
        if moves is None or not len(cohort):
            return heard
        if self.slot == "on_delta":
            return self._hear_clients(heard, cohort, again)
        return self._hear_records(heard, cohort, server, moves, uploads, held, again)

    def _hear_records(
        self,
        heard: State,
        cohort: Places,
        server: State,
        moves: Moves,
        uploads: Uploads,
        held: Tensor | None,
        again: Context,
    ) -> State:
        """What clients' uploads tell of their canaries, beside what they would have sent without."""
        drift = self.training.method.local.drift(held, server)
        calm = self.training.engine.train(self.quiet, server, drift, again)
        clean, _ = depart(self.quiet, calm, held, server, again)
        if len(self.method.on_upload) and not self.method.derives:
            uploads, _ = depart(self.bare, moves, held, server, self.replay(again))
        found = self.directions.products(uploads[MOVE].value - clean[MOVE].value).nan_to_num(0.0, 0.0, 0.0)
        variances = _per_row(moves.delta, len(cohort))
        rows = np.full(self.training.federation.population, -1)
        rows[cohort] = np.arange(len(cohort))
        mine = np.flatnonzero(rows[self.holders] >= 0)
        row = rows[self.holders[mine]]
        # A gradient moves a client the other way.
        heard[SUM][mine] -= found[row, self.place[mine]]
        heard[VARIANCE][mine] += variances[row]
        return heard

    def _hear_clients(self, heard: State, cohort: Places, again: Context) -> State:
        """Uploads of canary clients, which nobody aggregates: a long direction or zero, clipped and noised."""
        mine = np.flatnonzero(np.isin(self.holders, cohort)).tolist()
        for start in range(0, len(mine), ROWS):
            some = mine[start : start + ROWS]
            streams = [stream(self.training.settings.seed, "canary noise", again.round, i) for i in some]
            ctx = replace(again, clients=[int(self.holders[i]) for i in some], streams=streams, batches=[], releases=[])
            value = torch.zeros(len(some), self.directions.dim)
            for row, i in enumerate(some):
                if self.inside[i]:
                    self.directions.add(value[row], torch.tensor([0]), LONG * self._length)
            sent = self.method.on_delta(Signal(value), ctx.at("on_delta"))
            heard[SUM][some] += self.directions.products(sent.value)[:, 0]
            heard[VARIANCE][some] += _per_row(sent, len(some))
        return heard

    @cached_property
    def _length(self) -> float:
        """The bound of a whole move."""
        ctx = Context(0, self.training.objective.layout, [0], [stream(0, "canary clip")], slot="on_delta")
        bound = self.training.method.on_delta(Signal(torch.zeros(1, self.directions.dim)), ctx).bound
        assert bound is not None
        return bound

    def _hear_release(self, heard: State, arrival: Arrival) -> State:
        """What the released mean tells of canary clients."""
        if self.plant.before is None:
            return heard
        released = arrival.mean[MOVE]
        before, self.plant.before = self.plant.before, None
        products = self.directions.products(released.value)[0]
        found = self.directions.products(released.value - before)[0]
        heard[SUM] += found
        heard[VARIANCE] += _per_row(released, 1)
        # Given the others, a canary that is out points anywhere in what they leave of its block: they are taken out.
        lengths = self.directions.lengths(released.value).square()
        blocks = torch.arange(self.count) // self.directions.basis.shape[1]
        taken = torch.zeros(int(blocks[-1]) + 1, dtype=torch.float64).index_add_(0, blocks, products.square())
        left = (lengths - taken[blocks]).clamp_min(0) + products.square()
        heard[COSINE] = torch.maximum(heard[COSINE], products / left.sqrt().clamp_min(1e-300))
        return heard

    def _heard(self, server: State) -> State:
        """Sum of scores, sum of their variances, largest cosine, by canary."""
        start = {SUM: 0.0, VARIANCE: 0.0, COSINE: -1.0}
        return {
            name: server[name].cpu().clone()
            if name in server
            else torch.full((self.count,), value, dtype=torch.float64)
            for name, value in start.items()
        }

    def evidence(self, server: State) -> dict[str, Any]:
        """What the run folder keeps: settings, coins, scores in deviations of their noise."""
        heard = self._heard(server)
        scores = heard[SUM] / heard[VARIANCE].clamp_min(1e-300).sqrt()
        return {
            "unit": self.unit,
            "observer": self.observer,
            "slot": self.slot,
            "noise": self.settings.noise,
            "inside": self.inside.tolist(),
            "scores": [float(f"{x:.9g}") for x in scores.tolist()],
            "cosines": [float(f"{x:.9g}") for x in heard[COSINE].tolist()] if self.slot == "on_mean" else None,
            "sphere": self.directions.sphere,
        }


def _slot(training: Training) -> Slot:
    """The slot whose noise carries the claim that is audited."""
    method, name = training.method, training.method.name
    if training.config["runtime"].get("name") != "inline":
        raise Refused("audit.canaries: canaries ride along in this process only; set runtime=inline")
    if not method.private or method.allow_leak:
        raise Refused(f"audit.canaries: {name} claims nothing that could be audited; use a private method")
    if training.attackers is not None:
        raise Refused("audit.canaries: attackers send what they like, which no claim covers; set attack=none")
    if method.sums_only or method.epsilon_per_weight is not None:
        raise Refused(
            f"audit.canaries: there are no canaries for the mechanism of {name}; audit dp_fedavg_local, "
            "dp_fedavg_central, or another method with Gaussian noise in the steps, on moves or at the server"
        )
    if not method.local_privacy:
        if not noisy(method.on_mean):
            raise Refused(f"audit.canaries: {name} adds its noise in a way that canaries do not know; leave them out")
        if not method.aggregate.weighted:
            raise Refused("audit.canaries: canary clients are added to a sum; use aggregate=mean")
        return "on_mean"
    if noisy(method.on_step) and method.on_step.per_sample is not None:
        return "on_step"
    if noisy(method.on_delta):
        return "on_delta"
    raise Refused(f"audit.canaries: {name} adds its noise in a way that canaries do not know; leave them out")


def _per_row(signal: Signal, rows: int) -> Tensor:
    """The variance of the noise in each row, in float64; 1 where it is not known, so that rounds count alike."""
    variance = signal.noise_var
    if variance is None or not bool(torch.as_tensor(variance).any()):
        return torch.ones(rows, dtype=torch.float64)
    if not isinstance(variance, Tensor):
        return torch.full((rows,), float(variance), dtype=torch.float64)
    return (
        variance.double().cpu().mean(dim=1).expand(rows)
        if variance.dim() == 2
        else torch.full((rows,), float(variance.mean()), dtype=torch.float64)
    )

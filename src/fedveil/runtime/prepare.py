"""From a resolved configuration to the parts of a run."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedveil import data as data_room
from fedveil.core.arguments import fit
from fedveil.core.errors import Refused
from fedveil.core.federation import Federation
from fedveil.core.flat import read_buffers
from fedveil.core.method import Method
from fedveil.core.parts import Moves, State
from fedveil.core.round import BUFFERS, Shares
from fedveil.core.walk import travel
from fedveil.data.cohorts import usual_sizes
from fedveil.local.attackers import Attackers, drawn
from fedveil.local.batches import Batching, Drawing
from fedveil.local.choice import Facts, choose
from fedveil.local.engine import Engine
from fedveil.local.objective import Loss, Objective
from fedveil.local.poison import Poisoned
from fedveil.privacy.noise import Multiplier, PerClient
from fedveil.runtime.build import build, build_aggregate
from fedveil.runtime.leaks import refuse_leaks
from fedveil.runtime.model import OWN, Task, build_objective
from fedveil.runtime.settings import Settings
from fedveil.runtime.watch import Watch
from fedveil.transport.duo.transport import Duo

COHORT = 10
LEAK = (
    "nothing is claimed: this run sends control variates made of clean moves (control_update=clean), from which the "
    "server solves for every client's clean move exactly"
)
SMALL = 500_000
"""Parameters below which one thread is the default."""


@dataclass(frozen=True, eq=False)
class Training:
    """Everything a runtime needs; built once, never changed."""

    config: Mapping[str, Any]
    settings: Settings
    method: Method
    federation: Federation
    objective: Objective
    engine: Engine
    engine_reason: str
    cohort: int
    batching: Batching
    sigma: Multiplier | None = None
    """The multiplier that was calibrated to the budget, where it was."""
    attackers: Attackers | None = None

    @cached_property
    def sizes(self) -> Tensor:
        """Training examples of every client."""
        return torch.tensor(self.federation.sizes)

    @cached_property
    def initial_digest(self) -> str:
        """A digest of the weights that training starts from."""
        return hashlib.blake2b(self.objective.initial().cpu().numpy().tobytes(), digest_size=16).hexdigest()

    def start(self) -> State:
        """The server's state before the first round."""
        server = self.method.local.start(self.objective.initial())
        if self.objective.buffers.dim:
            server[BUFFERS] = read_buffers(self.objective.module, self.objective.buffers)
        return server

    @cached_property
    def mean_travel(self) -> float:
        """How far gradients carry a client in a round, averaged over the population."""
        sizes, counts = np.unique(self.federation.sizes, return_counts=True)
        far = [travel_of(self.settings, self.batching, int(size)) for size in sizes]
        return float(np.average(far, weights=counts))

    def shares(self, cohort: Sequence[int], moves: Moves | None) -> Shares:
        """What the server weighs this cohort's uploads with."""
        sizes, method = self.sizes[list(cohort)], self.method
        return Shares(
            method.weigh(sizes, self.cohort),
            torch.empty(0, 1) if moves is None else moves.travel,
            method.share(sizes, self.sizes, self.cohort),
            self.mean_travel,
            1.0 / self.cohort,
        )

    @cached_property
    def watch(self) -> Watch | None:
        """The canaries that ride along, where the settings ask for any."""
        return Watch(self) if self.settings.audit.canaries else None

    @property
    def threads(self) -> int:
        """Torch threads: what was asked for, or one for a small model.

        Small models gain little from a second thread, and where something else keeps a core busy the threads
        wait for each other: measured, a 20 k CNN step took 2.6 ms with one thread and 300 ms with two.
        """
        if self.settings.threads is not None:
            return self.settings.threads
        return 1 if self.objective.layout.dim < SMALL else torch.get_num_threads()

    @property
    def opening(self) -> list[str]:
        """What a person should know before the first round."""
        f, s = self.federation, self.settings
        sizes = f.sizes
        leak = [f"WARNING: {LEAK}"] if self.method.allow_leak else []
        them = self.attackers
        canaries = [] if self.watch is None else self.watch.remarks
        attack = [] if them is None else [f"{them.name}: {len(them.clients)} clients attack from round {them.onset} on"]
        return [
            *leak,
            *self.method.transport.remarks(self.cohort),
            f"{self.method.name} on {f.name}: {f.population} clients with {sizes.min()} to {sizes.max()} examples, "
            f"{self.cohort} per round ({s.selection}), {s.rounds} rounds",
            f"{self.batching.describe(sizes)}; model of {self.objective.layout.dim:,} parameters; "
            f"engine {self.engine.name} ({self.engine_reason})",
            *attack,
            *canaries,
        ]


def prepare(
    config: Mapping[str, Any],
    *,
    method: Method | None = None,
    model: nn.Module | None = None,
    data: Federation | None = None,
    loss: Loss | None = None,
    calibrated: Multiplier | None = None,
) -> Training:
    """Build the parts that the configuration names, except those that are handed in ready-made.

    ``calibrated`` is the noise that an earlier calibration of the same run found: other noise for more rounds would be
    another run, which could not claim what was charged so far.
    """
    settings = Settings.read(config)
    _check_kinds(method, data)
    if config.get("cwd") and config["cwd"] not in sys.path:
        sys.path.append(config["cwd"])  # import paths were written for the folder where the run began
    federation = data if data is not None else build_federation(config)
    cohort = _cohort(settings, federation)
    make = maker(config, settings, federation, cohort)
    sigma = fit("sigma", config["method"].get("sigma"), float | None)
    searched = method is None and sigma is None and "sigma" in config["method"]
    if searched:
        if settings.privacy.epsilon is None:
            raise Refused(
                f"sigma: {config['method']['build'].split(':')[-1]} adds noise, but nothing says how much; "
                "set sigma (a multiplier), or privacy.epsilon, to which it is then calibrated"
            )
        sigma = 1.0
    recipe = method if method is not None else make(sigma)
    recipe.aggregate.check(cohort)
    batching = replace(settings.batching, drawing=_drawing(settings, recipe))
    objective = build_objective(config, settings, Task.of(federation), model=model, loss=loss)
    if settings.stop.accuracy is not None and not federation.classes:
        raise Refused("stop.accuracy: there is no accuracy where the target is a number; use stop.patience")
    refuse_leaks(settings, recipe, federation, objective)
    recipe.transport.remarks(cohort)  # refuses a cohort that it cannot serve
    facts = Facts(objective, federation, batching, settings.sgd, settings.seed, settings.precision)
    if settings.engine == "auto" and config["runtime"].get("name") == "flower":
        engine, reason = choose("sequential", facts, recipe)[0], "a node trains one client"
    else:
        engine, reason = choose(settings.engine, facts, recipe)
    attackers = _attackers(config, facts, recipe, settings.engine)
    training = Training(
        config, settings, recipe, federation, objective, engine, reason, cohort, batching, attackers=attackers
    )
    if not searched:
        if settings.sigma_per_client:
            raise Refused("sigma_per_client: it calibrates noise to a budget; leave sigma out and set privacy.epsilon")
        return _watched(training)
    each = _each_its_own(settings, make, recipe)
    if calibrated is None:
        from fedveil.runtime.calibrate import calibrate

        calibrated = calibrate(training, make, per_client=each)
    if isinstance(calibrated, PerClient) and len(calibrated.values) != federation.population:
        raise Refused(
            f"resume: this run began with {len(calibrated.values)} clients, and the data has {federation.population}; "
            "resume it with the data that it began with"
        )
    return _watched(replace(training, method=make(calibrated), sigma=calibrated))


def _watched(training: Training) -> Training:
    """The same, after canaries that do not fit have been refused."""
    training.watch  # noqa: B018
    return training


def _attackers(config: Mapping[str, Any], facts: Facts, recipe: Method, wanted: str) -> Attackers | None:
    """The dishonest clients that the configuration asks for; None where everybody is honest."""
    node = dict(config["attack"])
    if node.get("build") is None:
        return None
    share, onset = fit("attack.share", node.pop("share"), float), fit("attack.onset", node.pop("onset"), int)
    clients = drawn(share, facts.federation.population, facts.seed)
    name = str(node.pop("name"))
    attack = build(node, "attack")
    if not clients:
        return None
    rounds = fit("rounds", config["rounds"], int)
    if onset > rounds:
        raise Refused(
            f"attack.onset: round {onset} never comes in a run of {rounds} rounds, and nobody would attack; "
            "give an earlier one, or more rounds"
        )
    if recipe.sums_only:
        raise Refused(
            f"attack: the clients of {recipe.name} share out the noise, and attackers bring no share of theirs, so "
            "that the claim would not hold; use attack=none, or a method whose clients each add their own noise"
        )
    engine = None
    if attack.poison is not None:
        attack.poison.fits(facts.federation)
        poisoned = Poisoned(facts.federation, clients, attack.poison, facts.seed)
        engine, _ = choose(wanted, replace(facts, federation=poisoned), recipe)
    return Attackers(name, attack, clients, onset, share, facts.seed, engine)


def _each_its_own(settings: Settings, make: Callable[[Multiplier | None], Method], recipe: Method) -> bool:
    """Whether every client gets noise of its own: as asked, else wherever the recipe can."""
    if settings.sigma_per_client is False:
        return False
    try:
        make(PerClient((1.0,)))
    except Refused:
        if settings.sigma_per_client:
            raise Refused(
                f"sigma_per_client: {recipe.name} has one noise for all clients here; leave sigma_per_client out"
            ) from None
        return False
    return True


def _drawing(settings: Settings, method: Method) -> Drawing:
    """How batches are drawn: as asked, else the way in which single examples are protected best."""
    if settings.sampling is not None:
        return settings.sampling
    return "shuffled" if method.on_step.per_sample is None else "poisson"


def travel_of(settings: Settings, batching: Batching, examples: int) -> float:
    """How far gradients carry a client with this many examples (K·η without momentum)."""
    return travel(settings.lr, settings.momentum, batching.steps_for(examples))


def build_federation(config: Mapping[str, Any]) -> Federation:
    """The data that the configuration names, partitioned by the run's seed."""
    node = dict(config["data"])
    if OWN in node:
        raise Refused("data: this run's data was handed in from Python; hand it in again, as data=...")
    source = str(node.pop("source", None))
    try:
        return data_room.load(source, seed=config["seed"], population=config["population"], **node)
    except Refused as refusal:
        # The data room speaks of its own settings; a person knows them as data.alpha, data.path, ...
        raise Refused(f"data.{refusal}" if str(refusal).split(":")[0] in node else str(refusal)) from None


def _check_kinds(method: object, data: object) -> None:
    if method is not None and not isinstance(method, Method):
        raise Refused(f"method: {method!r} is not a Method; hand in what a recipe returns, or a name")
    if data is not None and not all(hasattr(data, name) for name in ("train", "holdout", "sizes", "test")):
        raise Refused(
            f"data: a {type(data).__name__} is not a federation; make one with fedveil.data.from_arrays or from_clients"
        )


def _cohort(settings: Settings, federation: Federation) -> int:
    population = federation.population
    if settings.population is not None and settings.population != population:
        raise Refused(f"population: {settings.population} was asked for, but the data has {population} clients")
    cohort = min(COHORT, population) if settings.cohort is None else settings.cohort
    if cohort > population:
        raise Refused(
            f"cohort: {cohort} clients per round are more than the population of {population}; "
            f"give at most {population}"
        )
    if int(federation.sizes.min()) < 1:
        empty = int(np.argmin(federation.sizes))
        raise Refused(f"data.min_samples: client {empty} has no training examples; set data.min_samples=1 or more")
    return cohort


def maker(
    config: Mapping[str, Any], settings: Settings, federation: Federation, cohort: int
) -> Callable[[Multiplier | None], Method]:
    """The recipe that the configuration names, with its parts, as a function of the noise."""
    sizes = np.unique(federation.sizes)
    steps = {settings.batching.steps_for(int(size)) for size in sizes}
    fewest, most = usual_sizes(federation.population, cohort, settings.selection)
    public: dict[str, Any] = {
        "server_lr": settings.server_lr,
        "server_momentum": settings.server_momentum,
        "batch": settings.batch,
        "cohort": cohort,
        "fewest": fewest,
        "most": most,
        "epsilon": settings.privacy.epsilon,
        "steps": steps.pop() if len(steps) == 1 else None,
        "travel": max(travel_of(settings, settings.batching, int(size)) for size in sizes),
    }

    def make(sigma: Multiplier | None) -> Method:
        if OWN in config["method"]:
            raise Refused("method: this run's method was handed in from Python; hand it in again, as method=...")
        node = dict(config["method"])
        node.pop("sigma", None)
        recipe = build(
            node,
            "method",
            transport=_transport(config),
            aggregate=build_aggregate(
                config["aggregate"], cohort, fit("client_momentum", node.get("client_momentum", 0.0), float)
            ),
            **public,
            **({"sigma": sigma} if sigma is not None else {}),
        )
        if not isinstance(recipe, Method):
            raise Refused(f"method.build: {node['build']} returned {type(recipe).__name__}; return a Method")
        return recipe

    return make


def _transport(config: Mapping[str, Any]) -> Any:
    """The transport, which says of itself where its parties are."""
    found = build(config["transport"], "transport")
    return replace(found, apart=config["runtime"].get("name") == "flower") if isinstance(found, Duo) else found

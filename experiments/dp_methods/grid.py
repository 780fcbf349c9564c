"""What the study compares, under which settings; every number that shapes it stands here."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

STUDY = 1
"""Raise it when cells must be computed anew although no setting has changed."""

Kind = Literal["record", "central", "ceiling", "peer"]
Settings = dict[str, Any]

POOLED = "pooled"
PARTITIONS: dict[str, Settings] = {
    "dirichlet 0.1": {"partition": "dirichlet", "alpha": 0.1},
    "dirichlet 0.5": {"partition": "dirichlet", "alpha": 0.5},
    "iid": {"partition": "iid"},
}
MODELS: dict[str, Settings] = {"small_cnn": {"name": "custom", "build": "experiments.dp_methods.model:small_cnn"}}
"""Models that are not FedVeil's; raise ``STUDY`` when one changes."""
TITLES = {"digits": "digits", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The settings of the study; a cell's result depends on those that reach its own settings, and on nothing else."""

    name: str = "full"
    dataset: str = "digits"
    model: str = "logistic"
    population: int = 20
    cohort: int = 20
    rounds: int = 60
    steps: int = 3
    batch: int = 128
    server_lr: float = 1.0
    """Above 1, local steps are shorter on the same way, and a client is led astray less by its own noise."""
    clip_norm: float = 0.5
    """Largest norm of one example's gradient."""
    move_norm: float = 0.5
    """Largest norm of a client's whole move, for dp_fedavg_central."""
    pooled_batch: int = 256
    """Expected batch of central DP-SGD; it takes rounds·steps steps."""
    delta: float = 1e-5
    accountant: str = "rdp"
    partitions: tuple[str, ...] = tuple(PARTITIONS)
    epsilons: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    seeds: tuple[int, ...] = (0, 1, 2)
    tuning_seed: int = 100
    tuning_partition: str = "dirichlet 0.5"
    lrs: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    extensions: int = 3
    """How often the grid may grow by a factor of 2 while the best learning rate lies at its edge."""
    form_epsilons: tuple[float, ...] = (2.0, 8.0)
    """Budgets at which the forms of shrinkage are compared, on the tuning partition alone."""
    twins_once: bool = False
    """Run the two step-noise variants of dp_scaffold once: without shrinkage they are one method."""
    goal: float | None = None
    """Accuracy in percent that the best row should reach at the largest budget on the tuning partition."""

    @property
    def title(self) -> str:
        """The data set's name."""
        return TITLES[self.dataset]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The rows of the study."""
        return (*ENTRIES, *(FORMS if self.form_epsilons else ()))


FULL = Schedule()
MNIST = Schedule(
    dataset="mnist",
    model="small_cnn",
    population=60,
    cohort=60,
    rounds=30,
    steps=2,
    batch=48,
    server_lr=4.0,
    clip_norm=1.0,
    pooled_batch=60 * 48,
    partitions=("dirichlet 0.1", "dirichlet 0.5"),
    epsilons=(2.0, 8.0),
    lrs=(0.5, 1.0, 2.0),
    form_epsilons=(),
    twins_once=True,
    goal=92.0,
)
SCHEDULES = {s.dataset: s for s in (FULL, MNIST, replace(MNIST, dataset="fashion_mnist", goal=None))}


def quick(s: Schedule) -> Schedule:
    """A reduced version that shows that the study runs, no more."""
    return replace(
        s,
        name="quick",
        rounds=5,
        partitions=("dirichlet 0.5",),
        epsilons=(2.0, 8.0),
        seeds=(0,),
        lrs=s.lrs[-3:-1],
        extensions=0,
        goal=None,
    )


@dataclass(frozen=True)
class Entry:
    """One row of the comparison: a method in one of its variants."""

    method: str
    variant: str | None = None
    kind: Kind = "record"
    form: tuple[str, str] | None = None
    """Scope and target of the shrinkage, where they are not the default ones."""

    @property
    def label(self) -> str:
        """The row's name."""
        name = self.method if self.variant is None else f"{self.method}/{self.variant}"
        return name if self.form is None else f"{name}, {self.form[0]}, {self.form[1]}"

    @property
    def promise(self) -> tuple[str, str]:
        """The unit and the observer that epsilon is about."""
        return ("client" if self.kind == "central" else "record"), ("server" if self.kind == "record" else "public")

    @property
    def budgeted(self) -> bool:
        """Whether it depends on epsilon."""
        return self.kind != "ceiling"


LAST, STEP, FINAL = "last_noise_server_jse", "step_noise_step_jse", "step_noise_final_jse"
OPACUS = Entry("Opacus DP-SGD", None, "peer")
ENTRIES: tuple[Entry, ...] = (
    Entry("dp_fedavg_local", "last_noise"),
    Entry("dp_fedavg_local", "step_noise"),
    *(Entry(m, v) for m in ("dp_fed_stein", "dp_scaffold", "dp_scaffold_stein") for v in (LAST, STEP, FINAL)),
    Entry("dp_fedavg_central", None, "central"),
    Entry("fedavg", None, "ceiling"),
    Entry("scaffold", None, "ceiling"),
    OPACUS,
)
DEFAULT_FORM = ("model", "previous")
FORMS: tuple[Entry, ...] = tuple(
    Entry("dp_fed_stein", variant, form=(scope, target))
    for variant in (LAST, STEP, FINAL)
    for scope in ("layer", "model")
    for target in ("zero", "previous")
    if (scope, target) != DEFAULT_FORM
)
"""The other forms of shrinkage; the default one stands among ENTRIES."""

Pair = tuple[str, str]
"""A label, and the label of what it is compared with."""


def _local(variant: str) -> str:
    return "dp_fedavg_local/last_noise" if variant == LAST else "dp_fedavg_local/step_noise"


STEIN_PAIRS: tuple[Pair, ...] = (
    *((f"dp_fed_stein/{v}", _local(v)) for v in (LAST, STEP, FINAL)),
    *((f"dp_scaffold_stein/{v}", f"dp_scaffold/{v}") for v in (LAST, STEP, FINAL)),
)
SCAFFOLD_PAIRS: tuple[Pair, ...] = (
    *((f"dp_scaffold/{v}", _local(v)) for v in (LAST, STEP)),  # without shrinkage FINAL is STEP
    *((f"dp_scaffold_stein/{v}", f"dp_fed_stein/{v}") for v in (LAST, STEP, FINAL)),
)


@dataclass(frozen=True)
class Cell:
    """One run: a row of the comparison at one partition, budget, learning rate and seed."""

    entry: Entry
    dataset: str
    partition: str
    epsilon: float | None
    lr: float
    seed: int
    settings: str
    """Everything that shapes the run, as JSON."""

    @cached_property
    def key(self) -> str:
        """A name for its result that changes when anything does that shapes it."""
        names = ("fedveil", "torch", "opacus") if self.entry.kind == "peer" else ("fedveil", "torch")
        shape = {"study": STUDY, "settings": json.loads(self.settings)} | {name: installed(name) for name in names}
        return hashlib.blake2b(json.dumps(shape, sort_keys=True).encode(), digest_size=12).hexdigest()

    @property
    def group(self) -> tuple[str, str, int, float]:
        """Cells of a group meet the same sampling rates and budget: what accountants remember serves all of them."""
        return self.dataset, self.partition, self.seed, self.epsilon or 0.0

    def __str__(self) -> str:
        budget = "" if self.epsilon is None else f", epsilon {self.epsilon:g}"
        return f"{self.dataset}, {self.entry.label}, {self.partition}{budget}, seed {self.seed}, lr {self.lr:g}"


@lru_cache
def installed(name: str) -> str | None:
    """The version of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cell(s: Schedule, entry: Entry, partition: str, epsilon: float | None, lr: float, seed: int) -> Cell:
    """The cell at this place of the grid."""
    where = POOLED if entry.kind == "peer" else partition
    settings = _peer(s, epsilon) if entry.kind == "peer" else _run(s, entry, where, epsilon)
    text = json.dumps(settings | {"lr": lr, "seed": seed}, sort_keys=True)
    return Cell(entry, s.dataset, where, epsilon if entry.budgeted else None, lr, seed, text)


def places(s: Schedule, entry: Entry) -> tuple[str, ...]:
    """The partitions on which an entry is evaluated; pooled data has none."""
    if entry.form is not None:
        return (s.tuning_partition,)
    return (POOLED,) if entry.kind == "peer" else s.partitions


def budgets(s: Schedule, entry: Entry) -> tuple[float | None, ...]:
    """The budgets at which an entry is evaluated."""
    if entry.form is not None:
        return tuple(e for e in s.epsilons if e in s.form_epsilons)
    return s.epsilons if entry.budgeted else (None,)


def _run(s: Schedule, entry: Entry, partition: str, epsilon: float | None) -> Settings:
    """What ``fedveil.run`` is called with."""
    method: Settings = {"name": entry.method}
    if entry.kind == "ceiling":
        method |= {"weights": "uniform"}
    else:
        method |= {"clip_norm": s.move_norm if entry.kind == "central" else s.clip_norm}
    if entry.variant is not None:
        twin = s.twins_once and (entry.method, entry.variant) == ("dp_scaffold", FINAL)
        method |= {"algorithm_variant": STEP if twin else entry.variant}
    if entry.method == "dp_scaffold":
        method |= {"jse_enabled": False}
    if entry.form is not None:
        method |= {"shrink": {"scope": entry.form[0], "target": entry.form[1]}}
    privacy: Settings = {}
    if entry.budgeted:
        privacy = {"epsilon": epsilon, "delta": s.delta, "accountant": s.accountant, "unit": entry.promise[0]}
    server: Settings = {} if s.server_lr == 1 else {"server_lr": s.server_lr}
    return {
        "method": method,
        "model": MODELS.get(s.model, s.model),
        "data": {"name": s.dataset, **PARTITIONS[partition]},
        "population": s.population,
        "cohort": s.cohort,
        "rounds": s.rounds,
        "steps": s.steps,
        "batch": s.batch,
        "privacy": privacy,
        **server,
    }


def _peer(s: Schedule, epsilon: float | None) -> Settings:
    return {
        "peer": "opacus",
        "data": s.dataset,
        "model": s.model,
        "population": s.population,
        "steps": s.rounds * s.steps,
        "batch": s.pooled_batch,
        "clip_norm": s.clip_norm,
        "epsilon": epsilon,
        "delta": s.delta,
        "accountant": s.accountant,
    }

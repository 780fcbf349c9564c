"""The settings that every run has, whatever its method, data and model (DESIGN 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from fedveil.core.errors import Refused, fraction, not_negative, one_of, positive
from fedveil.local.batches import Batching, Drawing
from fedveil.local.objective import Sgd
from fedveil.local.precision import Precision
from fedveil.privacy.events import ACCOUNTANT_NAMES, Adjacency
from fedveil.privacy.rng import Rng
from fedveil.runtime.build import call

LOGGERS = ("tensorboard", "mlflow")
GROUPS = ("method", "data", "model", "attack", "aggregate", "transport", "runtime")


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """When the global model is looked at."""

    every: int = 1

    def __post_init__(self) -> None:
        positive(**{"evaluate.every": self.every})


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """When a run saves itself."""

    every: int = 1

    def __post_init__(self) -> None:
        positive(**{"checkpoint.every": self.every})


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When a run ends before its last round."""

    patience: int | None = None
    accuracy: float | None = None
    public_test: bool = False

    def __post_init__(self) -> None:
        if self.patience is not None:
            positive(**{"stop.patience": self.patience})
        if self.accuracy is not None and not 0 < self.accuracy <= 1:
            raise Refused(f"stop.accuracy: {self.accuracy} is not an accuracy; give a number above 0, at most 1")

    @property
    def wanted(self) -> bool:
        """Whether the test set can end the run."""
        return self.patience is not None or self.accuracy is not None


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The budget, and how it is counted."""

    epsilon: float | None = None
    delta: float = 1e-5
    unit: Literal["record", "client"] | None = None
    accountant: str = "rdp"
    adjacency: Adjacency = "zero_out"
    rng: Rng = "seeded"

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            positive(**{"privacy.epsilon": self.epsilon})
        if not 0 < self.delta < 1:
            raise Refused(f"privacy.delta: {self.delta} is outside (0, 1); give a small probability, such as 1e-5")
        one_of("privacy.accountant", self.accountant, ACCOUNTANT_NAMES)


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Canaries that ride along, so that the run's claim can be audited afterwards."""

    canaries: int | Literal["auto"] = 0
    noise: float = 1.0

    def __post_init__(self) -> None:
        not_negative(**{"audit.noise": self.noise})
        if self.canaries != "auto":
            not_negative(**{"audit.canaries": self.canaries})
        if self.noise != 1 and not self.canaries:
            raise Refused("audit.noise: it spoils a claim to see whether an audit notices; set audit.canaries as well")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Checked values of the top-level settings; see conf/config.yaml for their meaning."""

    rounds: int
    population: int | None = None
    cohort: int | None = None
    selection: Literal["fixed", "poisson"] = "fixed"
    steps: int | None = None
    local_epochs: int | None = None
    batch: int = 32
    sampling: Drawing | None = None
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    loss: str | None = None
    server_lr: float = 1.0
    server_momentum: float = 0.0
    seed: int = 0
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Precision = "float32"
    batch_norm: Literal["keep", "group_norm"] = "keep"
    sigma_per_client: bool | None = None
    engine: Literal["auto", "fold", "vmap", "sequential"] = "auto"
    threads: int | None = None
    logger: str | list[str] | None = None
    evaluate: Evaluate = field(default_factory=Evaluate)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    stop: Stop = field(default_factory=Stop)
    privacy: Privacy = field(default_factory=Privacy)
    audit: Audit = field(default_factory=Audit)

    def __post_init__(self) -> None:
        positive(rounds=self.rounds, lr=self.lr, server_lr=self.server_lr)
        not_negative(weight_decay=self.weight_decay)
        if not 0 <= self.seed < 2**63:
            raise Refused(f"seed: {self.seed} is out of range; give a whole number from 0 to 2^63 - 1")
        fraction(momentum=self.momentum, server_momentum=self.server_momentum)
        for name in [self.logger] if isinstance(self.logger, str) else self.logger or []:
            one_of("logger", name, LOGGERS)
        for name in ("population", "cohort", "threads"):
            if getattr(self, name) is not None:
                positive(**{name: getattr(self, name)})
        if self.precision != "float32" and (self.torch_device.type == "cpu" or self.dtype != "float32"):
            raise Refused(
                f"precision: {self.precision} is a faster way to multiply float32 numbers on a CUDA device; "
                "set device=cuda and dtype=float32, or precision=float32"
            )
        self.batching  # noqa: B018  (refuses a wrong batch, steps or local_epochs)

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Settings:
        """The settings of a resolved configuration."""
        own = {k: v for k, v in config.items() if k not in (*GROUPS, "out", "overrides", "version", "cwd")}
        parts = {"evaluate": Evaluate, "checkpoint": Checkpoint, "stop": Stop, "privacy": Privacy, "audit": Audit}
        for name, kind in parts.items():
            own[name] = call(kind, name, own.get(name, {}), {})
        settings = call(cls, "", own, {})
        assert isinstance(settings, cls)
        return settings

    @property
    def batching(self) -> Batching:
        """How clients walk through their examples; one epoch unless something else was asked for."""
        epochs = 1 if self.steps is None and self.local_epochs is None else self.local_epochs
        return Batching(self.batch, self.steps, epochs)

    @property
    def sgd(self) -> Sgd:
        """The local optimiser."""
        return Sgd(self.lr, self.momentum, self.weight_decay)

    @property
    def torch_device(self) -> torch.device:
        """The device, or a refusal when it is not there."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise Refused("device: cuda was asked for but torch sees no CUDA device; set device=cpu or device=auto")
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The number format of weights and inputs."""
        return torch.float64 if self.dtype == "float64" else torch.float32

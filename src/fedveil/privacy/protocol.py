"""The stand-alone protocol, for people who bring their own training loop (SPEC 4).

Names and fields are the source's. Two defaults are better than its own: the Rényi orders (its six orders report
11.83 where 7.90 is true: they give a warning with the loss), and the accountants ``optimal`` and ``pld`` exist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from torch import Tensor

from fedveil.core.errors import Refused, positive
from fedveil.privacy.analytic import check_delta
from fedveil.privacy.events import Event, Poisson
from fedveil.privacy.rdp import ORDERS

Array = TypeVar("Array", np.ndarray[Any, Any], Tensor)
"""Gradients may be numpy arrays or torch tensors; what goes in comes out."""


class NoiseMechanism(Enum):
    """Where the noise comes from."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    DISCRETE_GAUSSIAN = "discrete_gaussian"
    SKELLAM = "skellam"


class AccountingMethod(Enum):
    """Who counts."""

    MOMENTS = "moments"
    RENYI = "renyi"
    BASIC_COMPOSITION = "basic"
    ADVANCED_COMPOSITION = "advanced"
    OPTIMAL_COMPOSITION = "optimal"
    PLD = "pld"

    @property
    def accountant(self) -> str:
        """The accountant's name in this package."""
        return "rdp" if self is AccountingMethod.RENYI else self.value


@dataclass(frozen=True)
class PrivacyBudget:
    """How much may be spent, and how much has been."""

    epsilon: float
    delta: float = 1e-5
    consumed_epsilon: float = 0.0
    consumed_delta: float = 0.0
    rounds_consumed: int = 0
    events: tuple[Event, ...] = ()
    """What the consumed part consists of, so that steps of different configurations add up rightly."""

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        check_delta(self.delta)
        for name in ("consumed_epsilon", "consumed_delta", "rounds_consumed"):
            value = getattr(self, name)
            if not value >= 0:
                raise Refused(f"{name}: {value} cannot have been spent; give 0 or a positive number")


@dataclass(frozen=True)
class DPConfig:
    """One differentially private training: mechanism, sampling, and the target that its budget holds.

    ``noise_multiplier`` is the noise's deviation over the sensitivity ``max_grad_norm`` (Laplace: scale over l1
    sensitivity, which is √d times the l2 norm); ``sampling_rate`` is the Poisson rate that batches are drawn with.
    """

    mechanism: NoiseMechanism = NoiseMechanism.GAUSSIAN
    accounting: AccountingMethod = AccountingMethod.RENYI
    target_epsilon: float = 8.0
    target_delta: float = 1e-5
    max_grad_norm: float = 1.0
    noise_multiplier: float = 1.1
    sampling_rate: float = 0.01
    renyi_orders: tuple[float, ...] = ORDERS

    def __post_init__(self) -> None:
        positive(target_epsilon=self.target_epsilon, max_grad_norm=self.max_grad_norm)
        check_delta(self.target_delta)
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise Refused(
                f"noise_multiplier: {self.noise_multiplier} gives no privacy; give a finite number above 0, "
                "such as get_noise_multiplier finds"
            )
        Poisson(self.sampling_rate)
        if not self.renyi_orders or not all(order > 1 for order in self.renyi_orders):
            raise Refused("renyi_orders: Rényi orders lie above 1; leave them out for the default ones")


@dataclass(frozen=True)
class PrivacyReport:
    """What a number of steps has cost, and what is left of the target."""

    epsilon_spent: float
    delta_spent: float
    noise_scale: float
    num_compositions: int
    budget_remaining: float
    estimated_rounds_left: int
    accounting_method: AccountingMethod


@runtime_checkable
class DifferentialPrivacyProtocol(Protocol):
    """The source's six methods."""

    def add_noise(self, gradients: Mapping[str, Array], config: DPConfig) -> dict[str, Array]:
        """Noise for a sum of clipped gradients."""
        ...

    def clip_gradients(self, gradients: Mapping[str, Array], max_norm: float) -> tuple[dict[str, Array], float]:
        """Gradients no longer than ``max_norm``, and how long they were."""
        ...

    def compute_privacy_spent(self, config: DPConfig, num_steps: int) -> PrivacyReport:
        """What ``num_steps`` releases cost."""
        ...

    def get_noise_multiplier(
        self, target_epsilon: float, target_delta: float, sampling_rate: float, num_steps: int
    ) -> float:
        """The smallest multiplier that keeps the target."""
        ...

    def check_budget(self, budget: PrivacyBudget) -> bool:
        """Whether anything is left."""
        ...

    def renyi_divergence(self, alpha: float, sigma: float) -> float:
        """Rényi divergence of one Gaussian release."""
        ...

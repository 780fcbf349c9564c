"""A differential privacy engine that stands alone: bring your own training loop (SPEC 4).

>>> engine = DifferentialPrivacyEngine(rng="seeded", seed=0)
>>> config = DPConfig(noise_multiplier=1.1, sampling_rate=0.01)
>>> budget = PrivacyBudget(epsilon=1.0)
>>> gradients, length = engine.clip_gradients({"w": np.array([3.0, 4.0])}, config.max_grad_norm)
>>> budget = engine.spend(budget, config)  # charge first; refused when the round would exceed the budget
>>> noisy = engine.add_noise(gradients, config)
>>> length, round(budget.consumed_epsilon, 3), engine.check_budget(budget)
(5.0, 0.775, True)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Refused, positive
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, Stage
from fedveil.privacy import analytic
from fedveil.privacy.accountants import ACCOUNTANTS, Accountant, epsilon
from fedveil.privacy.clip import factors
from fedveil.privacy.events import SKELLAM_STEPS, Event, Poisson, tally
from fedveil.privacy.noise import discrete_gaussian, gaussian, laplace, skellam
from fedveil.privacy.protocol import (
    AccountingMethod,
    Array,
    DifferentialPrivacyProtocol,
    DPConfig,
    NoiseMechanism,
    PrivacyBudget,
    PrivacyReport,
)
from fedveil.privacy.rdp import ORDERS, rdp_epsilon
from fedveil.privacy.rng import generator
from fedveil.privacy.search import check_steps, noise_multiplier, rounds_left

STAGES: dict[NoiseMechanism, Callable[[float], Stage]] = {
    NoiseMechanism.GAUSSIAN: gaussian,
    NoiseMechanism.LAPLACE: laplace,
    NoiseMechanism.DISCRETE_GAUSSIAN: discrete_gaussian,
    NoiseMechanism.SKELLAM: skellam,
}


class DifferentialPrivacyEngine:
    """Clipping, noise, accounting and budget in one object, on numpy arrays and torch tensors.

    ``rng="secure"`` (the default) draws noise that nobody can draw again; ``"seeded"`` is for experiments.
    Adjacency is ``zero_out`` / add-or-remove (SPEC 0), with batches drawn by Poisson sampling.
    """

    def __init__(self, rng: str = "secure", seed: int | None = None) -> None:
        self._noise = generator(rng, seed, "engine")

    def add_noise(self, gradients: Mapping[str, Array], config: DPConfig) -> dict[str, Array]:
        """Noise for a *sum* of gradients clipped to ``config.max_grad_norm`` (or for one clipped update).

        All arrays are one vector to the mechanism. Divide afterwards, by a constant: that is post-processing.
        """
        flat = _flatten(gradients)
        signal = Signal(flat[None, :], bound=config.max_grad_norm, unit="record")
        stage = STAGES[config.mechanism](config.noise_multiplier)
        noisy = stage(signal, Context(0, Layout((), ()), [None], [self._noise])).value[0]
        return _shape_like(noisy, gradients)

    def clip_gradients(self, gradients: Mapping[str, Array], max_norm: float) -> tuple[dict[str, Array], float]:
        """One gradient, scaled down to ``max_norm`` over all arrays together; and its norm before."""
        positive(max_norm=max_norm)
        norm = float(torch.linalg.vector_norm(_flatten(gradients)))
        return {name: _scaled(value, norm, max_norm) for name, value in gradients.items()}, norm

    def clip_per_sample(
        self, gradients: Mapping[str, Array], max_norm: float
    ) -> tuple[dict[str, Array], np.ndarray[Any, Any]]:
        """Per-sample gradients, the first axis counting samples, each scaled down to ``max_norm``; and the norms."""
        positive(max_norm=max_norm)
        sizes = {len(value) for value in gradients.values()}
        if len(sizes) != 1:
            raise Refused(f"gradients: arrays of {sorted(sizes)} samples; give one first axis to all of them")
        _flatten(gradients)
        rows = [_wide(value).reshape(len(value), -1) for value in gradients.values()]
        norms = torch.linalg.vector_norm(torch.cat(rows, dim=1), dim=1)
        return {name: _scaled(value, norms, max_norm) for name, value in gradients.items()}, norms.numpy()

    def compute_privacy_spent(self, config: DPConfig, num_steps: int) -> PrivacyReport:
        """What ``num_steps`` releases cost, and how many more fit into the target: exact for this accountant.

        ``noise_scale`` is deviation (Laplace: scale) per coordinate, for a vector of one coordinate under Laplace.
        """
        check_steps(num_steps)
        spent = self._spent(config, num_steps)
        left = 0
        if spent <= config.target_epsilon:
            done = _event(config, num_steps)
            target = (config.target_epsilon, config.target_delta)
            left = rounds_left(done, done.one, *target, _accountant(config))
        return PrivacyReport(
            epsilon_spent=spent,
            delta_spent=config.target_delta,
            noise_scale=config.noise_multiplier * config.max_grad_norm,
            num_compositions=num_steps,
            budget_remaining=max(0.0, config.target_epsilon - spent),
            estimated_rounds_left=left,
            accounting_method=config.accounting,
        )

    def get_noise_multiplier(
        self,
        target_epsilon: float,
        target_delta: float,
        sampling_rate: float,
        num_steps: int,
        accounting: AccountingMethod = AccountingMethod.RENYI,
    ) -> float:
        """The smallest Gaussian multiplier whose ``num_steps`` steps keep the target."""
        return noise_multiplier(target_epsilon, target_delta, sampling_rate, num_steps, accounting.accountant)

    def check_budget(self, budget: PrivacyBudget) -> bool:
        """Whether anything is left to spend."""
        return budget.consumed_epsilon < budget.epsilon and budget.consumed_delta <= budget.delta

    def spend(self, budget: PrivacyBudget, config: DPConfig, num_steps: int = 1) -> PrivacyBudget:
        """Charge ``num_steps`` more releases; refused, with nothing charged, when they would exceed the budget."""
        check_steps(num_steps)
        if not self.check_budget(budget):
            raise Refused(
                f"budget: epsilon {budget.consumed_epsilon:.4g} of {budget.epsilon:g} is already spent; "
                "stop here, or ask for a new budget"
            )
        if budget.consumed_epsilon and not budget.events:
            raise Refused(
                f"budget: nobody knows what the epsilon of {budget.consumed_epsilon:.4g} was spent on; "
                "go on with the budget that spend() returned, or account with fedveil.privacy.accountants.Spent"
            )
        config = replace(config, target_delta=budget.delta)
        counts = tally((*budget.events, _event(config, num_steps)))
        events = tuple(replace(event, count=times) for event, times in counts.items())
        after = self._cost(config, events)
        if after > budget.epsilon:
            raise Refused(
                f"budget: {num_steps} more step(s) would spend epsilon {after:.4g} of {budget.epsilon:g}; "
                "stop here with the last model, or add noise"
            )
        return replace(
            budget,
            consumed_epsilon=after,
            consumed_delta=budget.delta,
            rounds_consumed=budget.rounds_consumed + num_steps,
            events=events,
        )

    def renyi_divergence(self, alpha: float, sigma: float) -> float:
        """α/(2σ²): the Rényi divergence of order α of one unsampled Gaussian release (Mironov 2017)."""
        positive(sigma=sigma)
        if not (alpha > 1 and math.isfinite(alpha)):
            raise Refused(f"alpha: Rényi orders lie above 1, not at {alpha}; give a number such as 2 or 32")
        return alpha / (2 * sigma**2)

    def calibrated_scale(
        self, mechanism: NoiseMechanism, *, epsilon: float, delta: float, sensitivity: float, classic: bool = False
    ) -> float:
        """Noise for one release: Laplace Δ/ε; Gaussian by Balle and Wang, or by the classic rule (ε ≤ 1 only)."""
        if mechanism is NoiseMechanism.LAPLACE:
            return analytic.laplace_scale(epsilon=epsilon, sensitivity=sensitivity)
        if mechanism is not NoiseMechanism.GAUSSIAN:
            raise Refused(f"{mechanism.value}: no closed form; use get_noise_multiplier")
        rule = analytic.classic_gaussian if classic else analytic.analytic_gaussian
        return rule(epsilon=epsilon, delta=delta, sensitivity=sensitivity)

    def _spent(self, config: DPConfig, num_steps: int) -> float:
        return self._cost(config, (_event(config, num_steps),))

    def _cost(self, config: DPConfig, events: tuple[Event, ...]) -> float:
        orders = None
        if config.accounting is AccountingMethod.RENYI and config.renyi_orders != ORDERS:
            orders = config.renyi_orders
        return epsilon(events, config.target_delta, config.accounting.accountant, orders)


def _event(config: DPConfig, count: int) -> Event:
    grid = SKELLAM_STEPS if config.mechanism is NoiseMechanism.SKELLAM else None
    sampling = Poisson(config.sampling_rate)
    return Event(config.mechanism.value, config.noise_multiplier, sampling, count, grid_std=grid)


def _accountant(config: DPConfig) -> Accountant | str:
    if config.accounting is AccountingMethod.RENYI and config.renyi_orders != ORDERS:
        return partial(rdp_epsilon, orders=config.renyi_orders, warn=False)
    name = config.accounting.accountant
    assert name in ACCOUNTANTS
    return name


def _wide(value: np.ndarray[Any, Any] | Tensor) -> Tensor:
    tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))
    return tensor.double()


def _flatten(gradients: Mapping[str, Array]) -> Tensor:
    """All arrays as one vector in float64; anything that is no finite number is refused."""
    if not gradients:
        raise Refused("gradients: there are none; give at least one named array")
    for name, value in gradients.items():
        floating = value.is_floating_point() if isinstance(value, Tensor) else value.dtype.kind == "f"
        if not floating:
            raise Refused(f"gradients: {name!r} holds {value.dtype}, not floating-point numbers; convert it first")
        if not bool(torch.isfinite(_wide(value)).all()):
            raise Refused(f"gradients: {name!r} holds infinite or undefined values; drop this batch or lower the lr")
    return torch.cat([_wide(value).reshape(-1) for value in gradients.values()])


def _shape_like(flat: Tensor, gradients: Mapping[str, Array]) -> dict[str, Array]:
    """Cut a vector into arrays of the same kind, shape, dtype and device as the given ones."""
    parts = torch.split(flat, [math.prod(value.shape) for value in gradients.values()])
    out: dict[str, Array] = {}
    for (name, value), part in zip(gradients.items(), parts, strict=True):
        shaped = part.reshape(tuple(value.shape))
        if isinstance(value, Tensor):
            out[name] = shaped.to(value.device, value.dtype)
        else:
            out[name] = shaped.numpy().astype(value.dtype)
    return out


def _scaled(value: Array, norm: float | Tensor, max_norm: float) -> Array:
    """An array times min(1, C/norm); one norm, or one per sample."""
    wide = _wide(value)
    dtype = value.dtype if isinstance(value, Tensor) else torch.from_numpy(np.empty(0, value.dtype)).dtype
    scale = factors(torch.as_tensor(norm, dtype=torch.float64), max_norm, dtype)
    if scale.dim():
        scale = scale.reshape((-1,) + (1,) * (wide.dim() - 1))
    return _shape_like((wide * scale).reshape(-1), {"": value})[""]


__all__ = [
    "AccountingMethod",
    "DPConfig",
    "DifferentialPrivacyEngine",
    "DifferentialPrivacyProtocol",
    "NoiseMechanism",
    "PrivacyBudget",
    "PrivacyReport",
]

"""The model of a run: built or handed in, and tried out before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedveil.core.errors import Refused, one_of
from fedveil.core.federation import Federation
from fedveil.core.streams import torch_seed
from fedveil.local.objective import LOSSES, Loss, Objective
from fedveil.runtime.build import build
from fedveil.runtime.settings import Settings

OWN = "own"
"""Marks a part in ``config.yaml`` that was handed in from Python and is no setting."""


@dataclass(frozen=True)
class Task:
    """What a model must fit: shape of an input, number of classes (0: a number), whole-number inputs (tokens)."""

    input_shape: tuple[int, ...]
    classes: int
    tokens: bool = False

    @classmethod
    def of(cls, federation: Federation) -> Task:
        """The task of this data."""
        return cls(tuple(federation.input_shape), federation.classes, not federation.test.x.is_floating_point())

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        """The task that a summary names."""
        return cls(tuple(data["input_shape"]), int(data["classes"]), bool(data["tokens"]))

    def inputs(self, like: Tensor) -> Tensor:
        """Two examples of zeros, of the type that the model will see."""
        dtype = torch.int64 if self.tokens else like.dtype
        return torch.zeros(2, *self.input_shape, dtype=dtype, device=like.device)

    def targets(self, like: Tensor) -> Tensor:
        """Two targets."""
        dtype = torch.int64 if self.classes else like.dtype
        return torch.zeros(2, dtype=dtype, device=like.device)


def choose_loss(settings: Settings, task: Task, loss: Loss | None) -> Loss:
    """The loss that was handed in or named; else cross entropy for classes and squared error for numbers."""
    if loss is not None:
        return loss
    if settings.loss is None:
        return LOSSES["cross_entropy" if task.classes else "mse"]
    if settings.loss == OWN:
        raise Refused("loss: this run's loss was handed in from Python; hand it in again, as loss=...")
    one_of("loss", settings.loss, LOSSES)
    if (settings.loss == "mse") == bool(task.classes):
        kind = f"{task.classes} classes" if task.classes else "numbers"
        fitting = "cross_entropy" if task.classes else "mse"
        raise Refused(f"loss: {settings.loss} does not fit targets that are {kind}; use {fitting}")
    return LOSSES[settings.loss]


def build_objective(
    config: Mapping[str, Any],
    settings: Settings,
    task: Task,
    *,
    model: nn.Module | None = None,
    loss: Loss | None = None,
) -> Objective:
    """The model for this task, with initial weights that belong to the run's seed; a copy where it was handed in."""
    chosen = choose_loss(settings, task, loss)
    if model is None:
        if OWN in config["model"]:
            raise Refused("model: this run's model was handed in from Python; hand it in again, as model=...")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(settings.seed, "initial weights"))
            model = build(config["model"], "model", input_shape=task.input_shape, classes=task.classes)
        if not isinstance(model, nn.Module):
            made = type(model).__name__
            raise Refused(f"model.build: {config['model']['build']} returned {made}; return a torch Module")
        _refuse_hooks(model)
    elif not isinstance(model, nn.Module):
        raise Refused(f"model: {model!r} is not a module; hand in an instance of torch.nn.Module, or a name")
    else:
        _refuse_hooks(model)
        model = _copied(model)
    if settings.batch_norm == "group_norm":
        model = without_batch_norm(model)
    objective = Objective.of(model.to(settings.torch_device, settings.torch_dtype), chosen)
    if not objective.layout.dim:
        raise Refused("model: it has no trainable parameters; give a model with requires_grad parameters")
    _try_out(objective, task)
    return objective


def without_batch_norm(module: nn.Module) -> nn.Module:
    """The module with a GroupNorm in place of every BatchNorm (groups of at least four channels, at most eight)."""
    if isinstance(module, _BatchNorm):
        channels = module.num_features
        groups = max(g for g in range(1, 9) if channels % g == 0 and (g == 1 or channels // g >= 4))
        norm = nn.GroupNorm(groups, channels, eps=module.eps, affine=module.affine)
        if module.affine:
            norm.load_state_dict({"weight": module.weight.detach(), "bias": module.bias.detach()})
        return norm
    for name, child in module.named_children():
        setattr(module, name, without_batch_norm(child))
    return module


def _refuse_hooks(model: nn.Module) -> None:
    hooked = next((name for name, p in model.named_parameters() if p._backward_hooks), None)
    if hooked is not None:
        raise Refused(
            f"model: parameter {hooked} has a hook on its gradient, which a copy of the model loses; put what it does "
            "into the model's forward"
        )


def _copied(model: nn.Module) -> nn.Module:
    try:
        return deepcopy(model)
    except RuntimeError as problem:
        raise Refused(
            f"model: it cannot be copied ({str(problem).splitlines()[0]}); if it uses torch.nn.utils.weight_norm, use "
            "torch.nn.utils.parametrizations.weight_norm instead"
        ) from None


def _try_out(objective: Objective, task: Task) -> None:
    """One forward pass and one loss, so that what does not fit fails before the run and in words."""
    module = objective.module
    like = next(module.parameters())
    training = module.training
    module.eval()
    try:
        outputs = module(task.inputs(like))
    except Exception as problem:
        raise Refused(
            f"model: it does not accept inputs of shape {task.input_shape} ({first_line(problem)}); "
            "choose another model or reshape the data"
        ) from problem
    finally:
        module.train(training)
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if task.classes and not (isinstance(outputs, Tensor) and outputs.dim() == 2 and outputs.shape[1] >= task.classes):
        raise Refused(
            f"model: for two examples its output is {shape}, but the data has {task.classes} classes; "
            "give one score per class"
        )
    if not task.classes and not (isinstance(outputs, Tensor) and outputs.numel() == 2):
        raise Refused(f"model: for two examples its output is {shape}; where the target is a number, give one each")
    try:
        value = objective.loss(outputs, task.targets(like))
    except Exception as problem:
        raise Refused(f"loss: it does not accept the model's outputs ({first_line(problem)}); check both") from problem
    if not isinstance(value, Tensor) or value.dim() != 0 or not value.requires_grad:
        raise Refused("loss: it must return one number per batch that gradients flow through; return a mean")


def first_line(problem: BaseException) -> str:
    """The first line of somebody else's error message, or its type where there is none."""
    lines = str(problem).strip().splitlines()
    return lines[0] if lines else type(problem).__name__

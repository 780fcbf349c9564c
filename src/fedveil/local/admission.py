"""May a model train many clients at once? Found out by looking at it, and proved by a step (DESIGN 3)."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedveil.core.federation import Federation
from fedveil.core.flat import bind_parameters
from fedveil.core.method import Method
from fedveil.core.signal import Signal
from fedveil.local.cohort import Gradients
from fedveil.local.examples import ExampleGradients
from fedveil.local.fold import LAYERS
from fedveil.local.objective import Objective
from fedveil.local.precision import Precision
from fedveil.local.schedule import Step
from fedveil.local.steps import Into

COUNTS = (3, 2)
"""Examples of the two clients of the trial."""
CLOSE = 1e-9
"""How far a trial in float64 may be from the sequential engine, relative to the largest gradient."""

ROUNDING = {"float32": 1e-3, "tf32": 2e-2, "bf16": 1e-1}
"""How far the same step may be in a run's own number format, relative to all gradients; a ReLU may flip."""


class Unfit(Exception):
    """Why a tier cannot train this model."""


class _Softened:
    """A smooth stand-in for a clip, so that every norm shows in the result."""

    def factors(self, norms: Tensor) -> Tensor:
        return 1 / (1 + norms)

    def summed(self, total: Tensor) -> Signal:
        return Signal(total)


def inspect(objective: Objective) -> None:
    """Refuse what no batched tier can train: state that a step leaves behind."""
    buffer = next((name for name, _ in objective.module.named_buffers()), None)
    if buffer is not None:
        raise Unfit(f"the model keeps a buffer ({buffer})")
    noisy = next(
        (n for n, m in objective.module.named_modules() if getattr(m, "p", 0) and isinstance(m, _DropoutNd)), None
    )
    if noisy is not None:
        raise Unfit(f"{noisy} draws numbers (Dropout), and each client's must be its own")
    mixing = next((n for n, m in objective.module.named_modules() if isinstance(m, _BatchNorm)), None)
    if mixing is not None:
        raise Unfit(f"{mixing} is a BatchNorm, which mixes the examples of a batch")


def inspect_layers(objective: Objective) -> None:
    """Refuse a model whose trained parameters are not all held by layers that can be folded, each by one."""
    seen: dict[int, str] = {}
    for name, parameter in objective.module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad and id(parameter) in seen:
            raise Unfit(f"{name} and {seen[id(parameter)]} are the same weights")
        seen[id(parameter)] = name
    for name in objective.layout.names:
        place = name.rpartition(".")[0]
        layer = objective.module.get_submodule(place)
        what = type(layer).__name__
        if type(layer) not in LAYERS:
            raise Unfit(f"parameter {name} belongs to {what}, which has no folded layer")
        problem = LAYERS[type(layer)].problem(layer)
        if problem is None and (
            layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
        ):
            problem = "has hooks"
        if problem is None and any(not p.requires_grad for p in layer.parameters()):
            problem = "is frozen in part"
        if problem is not None:
            raise Unfit(f"{place or what} {problem}")


class _Asked(TorchFunctionMode):
    """Notices a forward pass that takes values out of tensors by their methods."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in TAKES:
            raise Unfit("forward looks at values of tensors")
        return func(*args, **(kwargs or {}))


TAKES = (
    Tensor.tolist,
    Tensor.numpy,
    Tensor.item,
    Tensor.__array__,
    Tensor.__bool__,
    Tensor.__float__,
    Tensor.__int__,
    Tensor.__index__,
)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices a forward pass that reads values out of tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            raise Unfit("forward looks at values of tensors")
        return func(*args, **(kwargs or {}))


READS = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
)
"""What .item(), bool(), indexing by a mask and the like come down to."""


def rehearse(objective: Objective, x: Tensor) -> None:
    """Refuse a model whose forward pass draws numbers or decides by values: on other data it may do otherwise."""
    before = torch.get_rng_state()
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), torch.no_grad():
        try:
            with _Watch(), _Asked():  # type: ignore[no-untyped-call]
                objective.module(x)
        except Unfit:
            raise
        except Exception as problem:
            raise Unfit(f"a trial pass failed ({first_line(problem)})") from problem
        if not torch.equal(before, torch.get_rng_state()):
            raise Unfit("forward draws numbers, and each client's must be its own")


OTHERS = (1e3, -1e6, torch.inf, torch.nan)
"""What the other examples are multiplied with, to see whether one of them shows in an answer that is not its own."""


def refuse_mixing(objective: Objective, x: Tensor) -> None:
    """Refuse a model whose answer for an example depends on the others beside it."""
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), torch.no_grad():
        answer = objective.module(x)
        if not isinstance(answer, Tensor) or len(answer) != len(x):
            return  # what it is good for, the trial step tells
        for row in (0, len(x) - 1):
            for factor in OTHERS if x.is_floating_point() else (0,):
                others = x * factor
                others[row] = x[row]
                found = objective.module(others)[row]
                if not torch.allclose(found, answer[row], rtol=1e-9, atol=1e-9, equal_nan=True):
                    raise Unfit("the answer for an example depends on the others of its batch")


def rewritten(objective: Objective, federation: Federation) -> str | None:
    """The first parameter that a forward pass writes to, such as an Embedding with ``max_norm`` does; None if none."""
    module = deepcopy(objective.module).train()
    like = next(module.parameters())
    x = federation.test.x[:8].to(like.device)
    with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []), torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1e3)  # norms that some modules cut down
        before = [parameter.clone() for parameter in module.parameters()]
        try:
            module(x.to(like.dtype) if x.is_floating_point() else x)
        except Exception:  # what else is wrong with it shows elsewhere
            return None
        pairs = zip(module.named_parameters(), before, strict=True)
        return next((name for (name, now), then in pairs if not torch.equal(now, then)), None)


def first_line(problem: BaseException) -> str:
    """What went wrong, in a line."""
    return f"{type(problem).__name__}: {(str(problem).strip().splitlines() or [''])[0]}"


def prove(
    make: Callable[..., Gradients],
    objective: Objective,
    federation: Federation,
    method: Method,
    precision: Precision = "float32",
    *,
    together: bool = True,
) -> Gradients:
    """Gradients of many clients that equal those of the sequential engine on a trial step; or :class:`Unfit`.

    ``together`` says that examples meet in one forward pass, so that none may show in another's answer.
    The step is one of two clients with different weights and batches of different sizes, in float64, on examples of
    the test set. On a CUDA device it is then taken in the run's own number format, by the kernels that will run.
    """
    each = None if method.on_step.per_sample is None else _Softened()
    double = Objective.of(deepcopy(objective.module).double().train(), objective.loss)
    x, y = _examples(federation, double)
    rehearse(double, x)
    if together:
        refuse_mixing(double, x)
    here = _weights(double)
    expected = _reference(double, here, x, y, each)
    width = max(COUNTS)
    step = Step(np.arange(len(COUNTS) * width), np.array(COUNTS), width)
    rows = torch.zeros_like(here)
    try:
        trial = make(double)
        losses = trial(here, x, y, step.marks(here.device), each, Into(rows))
    except Unfit:
        raise
    except Exception as problem:
        raise Unfit(f"a trial step failed ({first_line(problem)})") from problem
    for found, right in zip((rows, losses), expected, strict=True):
        if not bool(torch.isfinite(found).all()) or float((found - right).abs().max()) > CLOSE * (
            1 + float(right.abs().max())
        ):
            raise Unfit(
                "a trial step differs from the sequential engine's; does the model mix the examples of a batch?"
            )
    admitted = make(objective, precision)
    admitted.held = trial.held
    like = next(objective.module.parameters())
    if like.is_cuda and like.dtype != torch.float64:
        again = torch.zeros_like(rows, dtype=like.dtype)
        x = x.to(like.dtype) if x.is_floating_point() else x
        y = y.to(like.dtype) if y.is_floating_point() else y
        admitted(here.to(like.dtype), x, y, step.marks(here.device), each, Into(again))
        far = float((again.double() - rows).norm()) / max(float(rows.norm()), 1e-30)
        if not far <= ROUNDING[precision]:
            raise Unfit(f"the same step in {precision} is {far:.1e} from it")
    return admitted


def _examples(federation: Federation, objective: Objective) -> tuple[Tensor, Tensor]:
    like = next(objective.module.parameters())
    test = federation.test
    if not len(test):
        raise Unfit("there are no test examples to try it on")
    index = torch.arange(len(COUNTS) * max(COUNTS)) % len(test)
    index[max(COUNTS) + COUNTS[1] :] = index[max(COUNTS)]  # padding repeats a batch's first example
    x, y = test.x[index].to(like.device), test.y[index].to(like.device)
    return tuple(v.double() if v.is_floating_point() else v for v in (x, y))  # type: ignore[return-value]


def _weights(objective: Objective) -> Tensor:
    w = objective.initial()
    noise = torch.randn(len(COUNTS), len(w), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return w + 0.05 * noise.to(w.device)


def _reference(
    objective: Objective, here: Tensor, x: Tensor, y: Tensor, each: _Softened | None
) -> tuple[Tensor, Tensor]:
    rows, losses = torch.zeros_like(here), here.new_zeros(len(here))
    examples, width = ExampleGradients(objective), max(COUNTS)
    for i, count in enumerate(COUNTS):
        own = slice(i * width, i * width + count)
        w, grad = here[i].clone(), torch.zeros_like(here[i])
        bind_parameters(objective.module, objective.layout, w, grad)
        if each is not None:
            rows[i], losses[i] = examples.clipped_sum(w, x[own], y[own], each)
            continue
        loss = objective.loss(objective.module(x[own]), y[own])
        loss.backward()  # type: ignore[no-untyped-call]
        rows[i], losses[i] = grad, loss.detach() * count
    return rows, losses

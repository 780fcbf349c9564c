"""One model, one flat vector: the layout that ties named tensors to positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Names and shapes in order; position i of the flat vector always means the same weight.

    >>> layout = Layout.of_parameters(nn.Linear(2, 1))
    >>> layout.names, layout.dim
    (('weight', 'bias'), 3)
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, named: Iterable[tuple[str, Tensor]]) -> Layout:
        """The layout of named tensors, in their order."""
        pairs = list(named)
        return cls(tuple(n for n, _ in pairs), tuple(tuple(t.shape) for _, t in pairs))

    @classmethod
    def of_parameters(cls, module: nn.Module) -> Layout:
        """The trainable parameters; tied weights appear once."""
        return cls.of((n, p) for n, p in module.named_parameters() if p.requires_grad)

    @classmethod
    def of_buffers(cls, module: nn.Module) -> Layout:
        """The floating-point buffers (running statistics); counters are left out."""
        return cls.of((n, b) for n, b in module.named_buffers() if b.is_floating_point())

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of elements of each tensor."""
        return tuple(prod(shape) for shape in self.shapes)

    @cached_property
    def dim(self) -> int:
        """Length of the flat vector."""
        return sum(self.sizes)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views into a flat vector ``(dim,)``, by name; writing to one writes to the vector."""
        if flat.shape != (self.dim,):
            raise ValueError(f"layout: vector of shape {tuple(flat.shape)} does not fit {self.dim} parameters")
        parts = torch.split(flat, list(self.sizes))
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """Copy named tensors into one new flat vector; names and shapes must match."""
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in named or tuple(named[name].shape) != shape:
                found = tuple(named[name].shape) if name in named else "nothing"
                raise ValueError(f"layout: {name} should have shape {shape}, found {found}")
        if not self.names:
            return torch.zeros(0)
        return torch.cat([named[n].detach().reshape(-1) for n in self.names])


def bind_parameters(module: nn.Module, layout: Layout, flat: Tensor, grad: Tensor | None = None) -> None:
    """Make the module's parameters (and their gradients) views of flat vectors, so that both move as one."""
    views = layout.named(flat)
    grads = layout.named(grad) if grad is not None else {}
    parameters = dict(module.named_parameters())
    for name, view in views.items():
        parameters[name].data = view
        parameters[name].grad = grads.get(name)


def read_buffers(module: nn.Module, layout: Layout) -> Tensor:
    """The floating-point buffers as one new flat vector."""
    return layout.flatten(dict(module.named_buffers()))


def write_buffers(module: nn.Module, layout: Layout, flat: Tensor) -> None:
    """Copy a flat vector into the module's floating-point buffers."""
    buffers = dict(module.named_buffers())
    with torch.no_grad():
        for name, value in layout.named(flat).items():
            buffers[name].copy_(value)

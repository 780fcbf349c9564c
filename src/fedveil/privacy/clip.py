"""Clipping: the bound that noise is measured against (SPEC 4).

min(1, C/‖x‖)·x, with norms in float64. A vector that is too long is scaled to just below C, so that rounding its
coordinates cannot carry it over; a shorter one stays bit for bit. A row that is not finite becomes zero: the bound
must hold for *every* input, and an error message would tell who diverged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil.core.errors import Refused, positive
from fedveil.core.flat import Layout
from fedveil.core.native import squared_rows
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, Replay


def margin(dtype: torch.dtype) -> float:
    """How far below the norm a scaled vector is aimed: a few units of rounding."""
    return 1 - 4 * torch.finfo(dtype).eps


def factors(norms: Tensor, norm: float, dtype: torch.dtype) -> Tensor:
    """min(1, C/norm) in float64; 0 where a norm is not finite, or the factor is denormal, which rounds coarsely."""
    wide = norms.double()
    scale = torch.where(wide > norm, margin(dtype) * norm / wide, torch.ones_like(wide))
    return torch.where(torch.isfinite(wide) & (scale >= torch.finfo(dtype).tiny), scale, torch.zeros_like(wide))


def row_norms(value: Tensor) -> Tensor:
    """The l2 norm of each row, in float64."""
    if value.is_cuda or value.dtype != torch.float32:
        norms: Tensor = torch.linalg.vector_norm(value, dim=1, dtype=torch.float64)
        return norms
    return squared_rows(value).sqrt_()


def shorten(value: Tensor, norm: float) -> Tensor:
    """Rows no longer than ``norm``, in their own dtype: the margin allows for its rounding."""
    scale = factors(row_norms(value), norm, value.dtype)[:, None]
    scaled = value * scale.to(value.dtype)  # a factor of 1 changes no bit
    broken = scale == 0
    return scaled.masked_fill_(broken, 0) if bool(broken.any()) else scaled


def _clipped(signal: Signal, value: Tensor, bound: float, ctx: Context | None) -> Signal:
    """A clipped row: a whole client fits into the bound; noise that went through a clip has no known variance."""
    if ctx is not None and ctx.slot == "on_mean":
        raise Refused(
            "clip: at on_mean it bounds the mean's length, not what one client changes in it; clip at on_delta"
        )
    noise = signal.noise_var
    silent = noise is not None and not bool(torch.as_tensor(noise).any())
    return Signal(value, bound, "client", 0.0 if silent else None, signal.released)


@dataclass(frozen=True)
class Clip:
    """Shortens whole rows to ``norm``: one client's move, client unit."""

    norm: float

    def __post_init__(self) -> None:
        positive(norm=self.norm)

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """All rows at once."""
        return _clipped(signal, shorten(signal.value, self.norm), self.norm, ctx)


@dataclass(frozen=True)
class ClipEach:
    """Shortens every training example's gradient to ``norm``: record unit (Abadi et al. 2016; core ``PerSample``)."""

    norm: float

    def __post_init__(self) -> None:
        positive(norm=self.norm)

    @property
    def replay(self) -> Replay:
        """Products and comparisons."""
        return "quiet"

    def factors(self, norms: Tensor) -> Tensor:
        """min(1, C/‖g_i‖), in the shape and dtype of the norms; 0 where a norm is not finite."""
        return factors(norms, self.norm, norms.dtype).to(norms.dtype)

    def summed(self, total: Tensor) -> Signal:
        """Σ a_i·g_i moves by at most C when one record goes."""
        return Signal(total, bound=self.norm, unit="record")


@dataclass(frozen=True)
class ClipLayers:
    """Shortens each layer of a row to its own norm C_l; the whole row is bounded by √Σ C_l² (McMahan et al. 2018)."""

    norms: float | tuple[float, ...] | tuple[tuple[str, float], ...]

    def each(self, layout: Layout) -> tuple[float, ...]:
        """The norm of every layer, in the layout's order."""
        if isinstance(self.norms, float | int):
            return (self.norms / math.sqrt(len(layout.names)),) * len(layout.names)
        named = [pair for pair in self.norms if isinstance(pair, tuple)]
        if named:
            if {name for name, _ in named} != set(layout.names):
                raise Refused(
                    f"clip_layers: norms for {[name for name, _ in named]} but layers {list(layout.names)}; "
                    "name each layer once"
                )
            return tuple(dict(named)[name] for name in layout.names)
        plain = tuple(norm for norm in self.norms if not isinstance(norm, tuple))
        if len(plain) != len(layout.names):
            raise Refused(f"clip_layers: {len(plain)} norms for {len(layout.names)} layers; give one per layer")
        return plain

    def __call__(self, signal: Signal, ctx: Context) -> Signal:
        """All rows at once, layer by layer."""
        norms = self.each(ctx.layout)
        parts = torch.split(signal.value, list(ctx.layout.sizes), dim=1)
        value = torch.cat([shorten(part, norm) for part, norm in zip(parts, norms, strict=True)], dim=1)
        bound = float(self.norms) if isinstance(self.norms, float | int) else math.hypot(*norms)
        return _clipped(signal, value, bound, ctx)


def clip(norm: float) -> Clip:
    """Shorten whole rows to ``norm``.

    >>> out = clip(1.0)(Signal(torch.tensor([[3.0, 4.0]])), None)
    >>> out.bound, out.unit, round(float(out.value.norm()), 5)
    (1.0, 'client', 1.0)
    """
    return Clip(norm)


def clip_each(norm: float) -> ClipEach:
    """Shorten every per-sample gradient to ``norm``; the first stage of ``on_step``."""
    return ClipEach(norm)


def clip_layers(norms: float | Sequence[float] | Mapping[str, float]) -> ClipLayers:
    """Shorten each layer: a norm per layer, by order or by name, or one for the whole row, shared out as C/√layers.

    >>> clip_layers({"weight": 3.0, "bias": 4.0}).norms
    (('weight', 3.0), ('bias', 4.0))
    """
    if isinstance(norms, Mapping):
        positive(**{f"clip_layers.{name}": norm for name, norm in norms.items()})
        return ClipLayers(tuple(norms.items()))
    if isinstance(norms, Sequence):
        positive(**{f"clip_layers.{i}": norm for i, norm in enumerate(norms)})
        return ClipLayers(tuple(norms))
    positive(clip_layers=norms)
    return ClipLayers(norms)

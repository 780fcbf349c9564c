"""Convolutions of many clients."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.local.layers import Layer, Views, gram_is_smaller
from fedveil.local.steps import Into

Pair = tuple[int, int]


class Conv2d(Layer):
    """A convolution with a kernel per client, with any stride, zero padding, dilation and groups.

    On a CPU one client's convolution after another is fastest (70-90 GFlop/s a thread, where unfolding reaches 50); on
    a GPU all clients go through one batched product of unfolded patches (or one grouped convolution).
    """

    handles: ClassVar[type[nn.Module]] = nn.Conv2d

    @staticmethod
    def problem(original: Any) -> str | None:
        """Padding that is not zeros, or more on one side than on the other."""
        if original.padding_mode != "zeros":
            return f"has padding_mode={original.padding_mode}"
        return "pads one side more than the other" if _padding(original) is None else None

    def output(self, a: Tensor) -> Tensor:
        """Each client's kernel over its own examples."""
        weight, bias = self.views["weight"], self.views.get("bias")
        if self.frame.one_by_one:
            parts = self.by_client(a)
            return torch.cat(
                [
                    F.conv2d(x, weight[i], None if bias is None else bias[i], *self._settings)
                    for i, x in enumerate(parts)
                ]
            )
        out = self._product(weight, self._patches(a), a)
        return out if bias is None else out + self.spread(bias, a)

    def back(self, a: Tensor, g: Tensor) -> Tensor:
        """The transposed convolution."""
        weight, wanted = self.views["weight"], (True, False, False)
        if self.frame.one_by_one:
            pairs = zip(self.by_client(a), self.by_client(g), weight, strict=True)
            return torch.cat([self._backward(x, y, w, wanted)[0] for x, y, w in pairs])
        k, size = self.frame.clients, len(a) // self.frame.clients
        wide = self._backward(self._wide(a), self._wide(g), weight.reshape(-1, *weight.shape[2:]), wanted, k)[0]
        return wide.view(size, k, *a.shape[1:]).transpose(0, 1).reshape(a.shape)

    def singles(self, a: Tensor, g: Tensor) -> Views | None:
        """The gradient of each example's kernel, unless Gram matrices over places are smaller."""
        shape, rows = self.views["weight"].shape[1:], self._groups(g)
        if gram_is_smaller(rows.shape[3] * rows.shape[1], shape.numel()):
            return None
        out = {"weight": torch.matmul(rows, self._patches(a).mT).view(len(a), *shape)}
        return out | {"bias": g.flatten(2).sum(2)} if "bias" in self.views else out

    def squares(self, a: Tensor, g: Tensor) -> Tensor:
        """Gram matrices over places, in float64."""
        patches, rows = self._patches(a).double(), self._groups(g).double()
        inner = torch.matmul(patches.mT, patches)
        inner = inner + 1 if "bias" in self.views else inner
        return (inner * torch.matmul(rows.mT, rows)).sum((1, 2, 3)).clamp_min(0)

    def add(self, a: Tensor, g: Tensor, into: dict[str, Into]) -> None:
        """The convolution's own backward pass, client after client or in groups."""
        weight = self.views["weight"]
        if self.frame.one_by_one:
            pairs = enumerate(zip(self.by_client(a), self.by_client(g), weight, strict=True))
            for i, (x, y, w) in pairs:
                _, kernel, _ = self._backward(x, y, w, (False, True, False))
                Into(into["weight"].rows[i], into["weight"].beta, into["weight"].alpha).put(kernel)
        else:
            k = self.frame.clients
            # A client's examples are more places: (clients, groups, channels, examples · places).
            rows, patches = (
                x.view(k, -1, *x.shape[1:]).permute(0, 2, 3, 1, 4).flatten(3)
                for x in (self._groups(g), self._patches(a))
            )
            into["weight"].put(torch.matmul(rows, patches.mT).view(k, *weight.shape[1:]))
        if "bias" in into:
            into["bias"].put(self.by_client(g.flatten(2).sum(2)).sum(1))

    def spread(self, bias: Tensor, a: Tensor) -> Tensor:
        """A shift for every example."""
        return bias.repeat_interleave(len(a) // self.frame.clients, dim=0)[:, :, None, None]

    @property
    def _settings(self) -> tuple[Pair, Pair, Pair, int]:
        o, padding = self.original, _padding(self.original)
        assert padding is not None
        return o.stride, padding, o.dilation, o.groups

    def _patches(self, a: Tensor) -> Tensor:
        """What the kernel sees at each place, ``(examples, groups, inputs of a group, places)``."""
        o, (stride, padding, dilation, groups) = self.original, self._settings
        return F.unfold(a, o.kernel_size, dilation, padding, stride).view(len(a), groups, -1, self._places(a))

    def _groups(self, g: Tensor) -> Tensor:
        return g.reshape(len(g), self.original.groups, -1, g.shape[2] * g.shape[3])

    def _out(self, a: Tensor) -> Pair:
        stride, padding, dilation, _ = self._settings
        sizes = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(a.shape[2:], padding, dilation, self.original.kernel_size, stride, strict=True)
        ]
        return sizes[0], sizes[1]

    def _places(self, a: Tensor) -> int:
        return self._out(a)[0] * self._out(a)[1]

    def _product(self, weight: Tensor, patches: Tensor, a: Tensor) -> Tensor:
        k, groups = self.frame.clients, self.original.groups
        kernels = weight.reshape(k, 1, groups, -1, patches.shape[2])
        out = torch.matmul(kernels, patches.view(k, -1, *patches.shape[1:]))
        return out.view(len(a), -1, *self._out(a))

    def _wide(self, x: Tensor) -> Tensor:
        """Clients side by side as channels, ``(examples, clients · channels, ...)``."""
        parts = self.by_client(x).transpose(0, 1)
        return parts.reshape(len(parts), -1, *x.shape[2:])

    def _backward(
        self, a: Tensor, g: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool], clients: int = 1
    ) -> tuple[Tensor, Tensor, Tensor]:
        stride, padding, dilation, groups = self._settings
        return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
            g, a, weight, None, stride, padding, dilation, False, (0, 0), groups * clients, wanted
        )


def _padding(layer: Any) -> Pair | None:
    """Zeros on each side; None where the sides differ."""
    if layer.padding == "valid":
        return 0, 0
    if layer.padding == "same":
        total = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return None if any(t % 2 for t in total) else (total[0] // 2, total[1] // 2)
    return tuple(layer.padding)

"""Convolutions of many clients."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.local.layers import Layer, Views, gram_is_smaller
from fedveil.local.steps import Into
from fedveil.local.unfold import Pair, Window, patches


class Conv2d(Layer):
    """A convolution with a kernel per client, with any stride, zero padding, dilation and groups.

    On a CPU one client's convolution after another is fastest (70-90 GFlop/s a thread, where unfolding reaches 50). On
    a GPU all clients go through one batched product of unfolded patches, which beats a grouped convolution on every
    shape measured (docs/results/engine.md).
    """

    handles: ClassVar[type[nn.Module]] = nn.Conv2d
    _kept: Tensor | None = None
    """The patches of the forward pass, where the backward pass can use them as they are."""

    @staticmethod
    def problem(original: Any) -> str | None:
        """Padding that is not zeros, or more on one side than on the other."""
        if original.padding_mode != "zeros":
            return f"has padding_mode={original.padding_mode}"
        return "pads one side more than the other" if _padding(original) is None else None

    def output(self, a: Tensor) -> Tensor:
        """Each client's kernel over its own examples."""
        weight, bias = self.views["weight"], self.views.get("bias")
        if self.frame.in_turn:
            parts = enumerate(self.by_client(a))
            biases = [None] * len(weight) if bias is None else list(bias)
            return torch.cat([F.conv2d(x, weight[i], biases[i], *self._settings) for i, x in parts])
        seen = self._patches(a)
        if self.frame.books is None:
            self._kept = seen
        return self._images(self.frame.product(self._kernels(weight), seen), a, self._window, bias)

    def back(self, a: Tensor, g: Tensor) -> Tensor:
        """The transposed convolution."""
        weight, turned = self.views["weight"], self._window.turned
        if self.frame.in_turn or turned is None:
            pairs = zip(self.by_client(a), self.by_client(g), weight, strict=True)
            return torch.cat([self._backward(x, y, w, (True, False, False))[0] for x, y, w in pairs])
        k, groups = self.frame.clients, self.original.groups
        seen = patches(g, turned, k, self.frame.operand(g.dtype)).view(k * groups, -1, len(a) // k * a[0, 0].numel())
        kernels = weight.reshape(k * groups, -1, *weight.shape[2:]).flip(3, 4).transpose(1, 2).flatten(2)
        return self._images(self.frame.product(kernels, seen), g, turned)

    def singles(self, a: Tensor, g: Tensor) -> Views | None:
        """The gradient of each example's kernel, unless Gram matrices over places are smaller."""
        shape, rows = self.views["weight"].shape[1:], self._groups(g)
        if gram_is_smaller(rows.shape[3] * rows.shape[1], shape.numel()):
            return None
        out = {"weight": torch.matmul(rows, self._each(a).mT).view(len(a), *shape)}
        return out | {"bias": g.flatten(2).sum(2)} if "bias" in self.views else out

    def squares(self, a: Tensor, g: Tensor) -> Tensor:
        """Gram matrices over places, in float64."""
        seen, rows = self._each(a).double(), self._groups(g).double()
        inner = torch.matmul(seen.mT, seen)
        inner = inner + 1 if "bias" in self.views else inner
        return (inner * torch.matmul(rows.mT, rows)).sum((1, 2, 3)).clamp_min(0)

    def add(self, a: Tensor, g: Tensor, into: dict[str, Into]) -> None:
        """The convolution's own backward pass, client after client, or a product with the patches."""
        weight = self.views["weight"]
        if self.frame.in_turn:
            pairs = enumerate(zip(self.by_client(a), self.by_client(g), weight, strict=True))
            for i, (x, y, w) in pairs:
                _, kernel, _ = self._backward(x, y, w, (False, True, False))
                Into(into["weight"].rows[i], into["weight"].beta, into["weight"].alpha).put(kernel)
        else:
            kept, self._kept = self._kept, None
            seen = self._patches(a) if kept is None or self.frame.blank is not None else kept
            rows = self.by_client(g.flatten(2)).transpose(1, 2).reshape(len(seen), -1, seen.shape[2])
            into["weight"].put(self.frame.product(rows, seen.mT).view(weight.shape))
        if "bias" in into:
            into["bias"].put(self.by_client(g.flatten(2).sum(2)).sum(1))

    def extra(self, a: Tensor, g: Tensor) -> int:
        """Patches, twice for the input and once for the gradient."""
        taps = self._window.kernel[0] * self._window.kernel[1]
        return 0 if self.frame.in_turn else (2 * a.shape[1] + g.shape[1]) * taps * g[:, 0].numel()

    @property
    def _window(self) -> Window:
        o, padding = self.original, _padding(self.original)
        assert padding is not None
        return Window(o.kernel_size, o.stride, padding, o.dilation)

    @property
    def _settings(self) -> tuple[Pair, Pair, Pair, int]:
        window = self._window
        return window.stride, window.padding, window.dilation, self.original.groups

    def _patches(self, a: Tensor) -> Tensor:
        """What kernels see, ``(clients · groups, inputs of a group, examples · places)``."""
        k, groups = self.frame.clients, self.original.groups
        seen = patches(a, self._window, k, self.frame.operand(a.dtype))
        return seen.view(k * groups, -1, seen.shape[2])

    def _each(self, a: Tensor) -> Tensor:
        """What the kernel sees of each example, ``(examples, groups, inputs of a group, places)``."""
        seen = patches(a, self._window, len(a))
        return seen.view(len(a), self.original.groups, -1, seen.shape[2])

    def _kernels(self, weight: Tensor) -> Tensor:
        return weight.reshape(self.frame.clients * self.original.groups, -1, weight[0, 0].numel())

    def _images(self, rows: Tensor, like: Tensor, window: Window, bias: Tensor | None = None) -> Tensor:
        """Images from ``(clients · groups, channels of a group, examples · places)``."""
        k, places = self.frame.clients, window.places(like.shape[2], like.shape[3])
        out = rows.view(k, -1, len(like) // k, *places)
        out = out if bias is None else out + bias[:, :, None, None, None]
        return out.transpose(1, 2).reshape(len(like), -1, *places)

    def _groups(self, g: Tensor) -> Tensor:
        return g.reshape(len(g), self.original.groups, -1, g.shape[2] * g.shape[3])

    def _backward(
        self, a: Tensor, g: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        stride, padding, dilation, groups = self._settings
        return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
            g, a, weight, None, stride, padding, dilation, False, (0, 0), groups, wanted
        )


def _padding(layer: Any) -> Pair | None:
    """Zeros on each side; None where the sides differ."""
    if layer.padding == "valid":
        return 0, 0
    if layer.padding == "same":
        total = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return None if any(t % 2 for t in total) else (total[0] // 2, total[1] // 2)
    return tuple(layer.padding)

"""Convolutions of many clients."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.local.innermost import innermost
from fedveil.local.layers import Layer, Views, gram_is_smaller
from fedveil.local.steps import Into
from fedveil.local.unfold import Pair, Window, has_kernels, images, patches

_BACKWARD = torch.ops.aten.convolution_backward.default
FEW = 32
"""Inputs of a place up to which a kernel that reads images directly is faster than a product of patches."""


class Conv2d(Layer):
    """A convolution with a kernel per client, with any stride, zero padding, dilation and groups.

    On a CPU one client's convolution after another is fastest, channels innermost; single examples' gradients are one
    convolution whose groups are the examples (36 of them, 32 to 64 channels, 5x5 on 14x14: 3.6 ms on a core, where
    unfolding takes 5.1 and the products of the patches 7.8). On a GPU all clients go through one batched product of
    unfolded patches, which beats a grouped convolution on every shape measured (docs/results/engine.md).
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
            return _joined([F.conv2d(innermost(x), weight[i], biases[i], *self._settings) for i, x in parts])
        if self._few(a):
            from fedveil.local import device_conv

            return device_conv.forward(a, weight, bias, self._window)
        seen = self._patches(a)
        if self.frame.books is None:
            self._kept = seen
        return self._images(self.frame.product(self._kernels(weight), seen), a, bias)

    def back(self, a: Tensor, g: Tensor) -> Tensor:
        """The transposed convolution."""
        weight = self.views["weight"]
        if self.frame.in_turn:
            pairs = zip(self.by_client(a), self.by_client(g), weight, strict=True)
            return _joined([self._backward(x, y, w, (True, False, False))[0] for x, y, w in pairs])
        columns = self.frame.product(self._kernels(weight).mT, self._side_by_side(g))
        return images(columns.view(self.frame.clients, -1, columns.shape[2]), self._window, a)

    def singles(self, a: Tensor, g: Tensor) -> Views | None:
        """The gradient of each example's kernel, unless Gram matrices over places are smaller."""
        shape, rows = self.views["weight"].shape[1:], self._groups(g)
        if gram_is_smaller(rows.shape[3] * rows.shape[1], shape.numel()):
            return None
        if (found := self._singles_of_few(a, g)) is not None:
            return found
        if self.frame.in_turn:
            out = {"weight": self._one_by_one(a, g)}
        else:
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
        elif (found := self._singles_of_few(a, g)) is not None:
            for name, values in found.items():
                into[name].put(self.by_client(values).sum(1))
            return
        else:
            kept, self._kept = self._kept, None
            seen = self._patches(a) if kept is None or self.frame.blank is not None else kept
            into["weight"].put(self.frame.product(self._side_by_side(g), seen.mT).view(weight.shape))
        if "bias" in into:
            into["bias"].put(self.by_client(g.flatten(2).sum(2)).sum(1))

    def extra(self, a: Tensor, g: Tensor) -> int:
        """Patches, those of the forward pass and two more while they are worked on."""
        taps = self._window.kernel[0] * self._window.kernel[1]
        return 0 if self.frame.in_turn else 3 * a.shape[1] * taps * g[:, 0].numel()

    def _one_by_one(self, a: Tensor, g: Tensor) -> Tensor:
        """The gradient of each example's kernel: all examples as one, with channels of their own."""
        whole = self.views["weight"].shape[1:]
        kernels = a.new_empty(len(a) * whole[0], *whole[1:])  # only its shape counts
        a, g = (x.reshape(1, -1, *x.shape[2:]) for x in (a, g))
        stride, padding, dilation, groups = self._settings
        groups *= len(kernels) // whole[0]
        found = _BACKWARD(g, a, kernels, None, stride, padding, dilation, False, (0, 0), groups, (False, True, False))
        return found[1].view(-1, *whole)  # type: ignore[no-any-return]

    @property
    def _window(self) -> Window:
        o, padding = self.original, _padding(self.original)
        assert padding is not None
        return Window(o.kernel_size, o.stride, padding, o.dilation)

    @property
    def _settings(self) -> tuple[Pair, Pair, Pair, int]:
        window = self._window
        return window.stride, window.padding, window.dilation, self.original.groups

    def _few(self, a: Tensor) -> bool:
        """Whether so few numbers are seen at a place that there are kernels for it."""
        return has_kernels(a) and self.views["weight"][0, 0].numel() < FEW and self.original.groups == 1

    def _singles_of_few(self, a: Tensor, g: Tensor) -> Views | None:
        if not self._few(a):
            return None
        from fedveil.local import device_conv

        found = device_conv.weights(a, g, self._window)
        names = ("weight", "bias") if "bias" in self.views else ("weight",)
        return None if found is None else dict(zip(names, found, strict=False))

    def _side_by_side(self, g: Tensor) -> Tensor:
        """``(clients · groups, channels of a group, examples · places)``, as patches have it."""
        k, groups = self.frame.clients, self.original.groups
        rows = self.by_client(g.flatten(2)).transpose(1, 2)
        return rows.reshape(k * groups, -1, rows.shape[2] * rows.shape[3])

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

    def _images(self, rows: Tensor, like: Tensor, bias: Tensor | None) -> Tensor:
        """Images from ``(clients · groups, channels of a group, examples · places)``."""
        k, places = self.frame.clients, self._window.places(like.shape[2], like.shape[3])
        out = rows.view(k, -1, len(like) // k, *places).transpose(1, 2)
        if bias is not None:  # one pass for the shift and the order
            whole = torch.empty_like(out, memory_format=torch.contiguous_format)
            out = torch.add(out, bias[:, None, :, None, None], out=whole)
        return out.reshape(len(like), -1, *places)

    def _groups(self, g: Tensor) -> Tensor:
        return g.reshape(len(g), self.original.groups, -1, g.shape[2] * g.shape[3])

    def _backward(
        self, a: Tensor, g: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        stride, padding, dilation, groups = self._settings
        return _BACKWARD(  # type: ignore[no-any-return]
            g, innermost(a), weight, None, stride, padding, dilation, False, (0, 0), groups, wanted
        )


def _joined(parts: list[Tensor]) -> Tensor:
    """All examples, without a copy where they are one client's."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _padding(layer: Any) -> Pair | None:
    """Zeros on each side; None where the sides differ."""
    if layer.padding == "valid":
        return 0, 0
    if layer.padding == "same":
        total = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return None if any(t % 2 for t in total) else (total[0] // 2, total[1] // 2)
    return tuple(layer.padding)

"""A convolution of many clients on a GPU, every way there is: what the engine's choice rests on."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.local.conv import Conv2d
from fedveil.local.layers import Frame
from fedveil.local.precision import products
from fedveil.local.steps import Into

SHAPES = ((1, 16, 3, 28), (16, 32, 3, 14), (1, 32, 5, 28), (32, 64, 5, 14))
"""Channels in and out, kernel, and side of the image: the layers of ``cnn`` and ``cnn_large`` on MNIST."""
BATCH, REPEATS = 32, 7


@dataclass(frozen=True)
class Shape:
    """Convolutions of this shape for so many clients."""

    channels: int
    wide: int
    kernel: int
    side: int
    clients: int

    @property
    def name(self) -> str:
        """As the page has it."""
        return f"{self.channels} to {self.wide}, {self.kernel}x{self.kernel}, {self.side}x{self.side}"


def shapes(clients: int) -> Iterator[Shape]:
    """All that are measured."""
    for channels, wide, kernel, side in SHAPES:
        yield Shape(channels, wide, kernel, side, clients)


def measure(shape: Shape) -> dict[str, Any]:
    """Microseconds of forward pass, input gradient and weight gradient, each way."""
    k, pad = shape.clients, shape.kernel // 2
    x = torch.randn(k * BATCH, shape.channels, shape.side, shape.side, device="cuda")
    w = torch.randn(k, shape.wide, shape.channels, shape.kernel, shape.kernel, device="cuda")
    g = torch.randn(k * BATCH, shape.wide, shape.side, shape.side, device="cuda")

    def back(a: Tensor, h: Tensor, kernels: Tensor, wanted: tuple[bool, bool, bool], groups: int) -> Any:
        found = torch.ops.aten.convolution_backward(
            h, a, kernels, None, (1, 1), (pad, pad), (1, 1), False, (0, 0), groups, wanted
        )
        return found[0] if wanted[0] else found[1]

    pairs = list(zip(torch.split(x, BATCH), torch.split(g, BATCH), w, strict=True))
    kernels = w.flatten(0, 1)
    of_input, of_weight = (True, False, False), (False, True, False)
    layer = Conv2d(nn.Conv2d(shape.channels, shape.wide, shape.kernel, padding=pad, bias=False), "conv", Frame())
    layer.frame.clients, layer.frame.in_turn, layer.views = k, False, {"weight": w}
    rows = torch.empty_like(w)
    ways: dict[str, dict[str, Callable[[], object]]] = {
        "in turn": {
            "forward": lambda: torch.cat([F.conv2d(a, c, None, 1, pad) for a, _, c in pairs]),
            "input": lambda: torch.cat([back(a, h, c, of_input, 1) for a, h, c in pairs]),
            "weight": lambda: torch.stack([back(a, h, c, of_weight, 1) for a, h, c in pairs]),
        },
        "grouped": {
            "forward": lambda: _narrow(F.conv2d(_wide(x, k), kernels, None, 1, pad, 1, k), k),
            "input": lambda: _narrow(back(_wide(x, k), _wide(g, k), kernels, of_input, k), k),
            "weight": lambda: back(_wide(x, k), _wide(g, k), kernels, of_weight, k),
        },
        "engine": {
            "forward": lambda: layer.output(x),
            "input": lambda: layer.back(x, g),
            "weight": lambda: layer.add(x, g, {"weight": Into(rows)}),
        },
    }
    with products("float32"), torch.no_grad():
        return {
            way: {what: microseconds(work) for what, work in parts.items() if what != "input" or shape.channels > 1}
            for way, parts in ways.items()
        }


def microseconds(work: Callable[[], object]) -> float:
    """The median of several replays, so that launching costs nobody anything."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    found = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(1e3 * float(begin.elapsed_time(end)))
    return statistics.median(found)


def _wide(x: Tensor, clients: int) -> Tensor:
    """Clients side by side as channels."""
    parts = x.view(clients, -1, *x.shape[1:]).transpose(0, 1)
    return parts.reshape(len(parts), -1, *x.shape[2:])


def _narrow(x: Tensor, clients: int) -> Tensor:
    parts = x.view(len(x), clients, -1, *x.shape[2:]).transpose(0, 1)
    return parts.reshape(len(x) * clients, -1, *x.shape[2:])

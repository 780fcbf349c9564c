"""Train a model of your own: any torch module, handed in as an object.

    python examples/own_model.py

The same works on the command line with an import path: ``fedveil run model=own_model:Net`` (from this folder).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fedveil


class Net(nn.Module):
    """A small residual network for 8x8 images; GroupNorm, because batch statistics would mix clients' data."""

    def __init__(self, input_shape: tuple[int, ...] = (1, 8, 8), classes: int = 10, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(input_shape[0], width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.block = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Linear(width * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.block(x))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 4).flatten(1))


def main() -> None:
    torch.manual_seed(0)
    result = fedveil.run(model=Net(), data="digits", rounds=15, local_epochs=2, lr=0.1)
    print(f"accuracy {result.accuracy:.3f}, worst tenth of the clients {result.summary['worst10_accuracy']:.3f}")
    print(f"report: {result.folder.report}")

    # A finished run is loaded with the module that it was trained with.
    again = fedveil.load(result.folder.path, model=Net())
    print("first answers:", again.predict(torch.zeros(3, 1, 8, 8)).tolist())


if __name__ == "__main__":
    main()

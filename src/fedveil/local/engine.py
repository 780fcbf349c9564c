"""What an engine does: train a cohort, and look at a model (DESIGN 3)."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedveil.core.errors import Refused
from fedveil.core.method import Method
from fedveil.core.parts import Moves, State
from fedveil.core.stage import Context


class Diverged(Refused):
    """Training produced a number that is not finite; the message names the round and the client."""

    def __init__(self, round: int, client: int | None, what: str) -> None:
        who = "the global model" if client is None else f"client {client}"
        super().__init__(
            f"round {round}, {who}: {what} is not a finite number; lower lr (or server_lr), or check this "
            "client's data for broken values"
        )


def check_finite(round: int, client: int | None, loss: Tensor, move: Tensor) -> None:
    """Refuse a client whose training diverged."""
    if not torch.isfinite(loss):
        raise Diverged(round, client, "the training loss")
    if not torch.isfinite(move.sum()):
        raise Diverged(round, client, "the trained model")


class Engine(Protocol):
    """Trains all clients of a cohort from the same weights, and evaluates."""

    @property
    def name(self) -> str:
        """Which tier this is."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why it does not run as fast as it might, found out on the way."""
        ...

    def train(self, method: Method, server: State, drift: Tensor | None, ctx: Context) -> Moves:
        """Run the local steps of ``ctx.clients``; ``drift`` (rows, dim) is added to every gradient."""
        ...

    def bind(self, server: State) -> None:
        """Give the module the weights and statistics of this state."""
        ...

    def outputs(self, server: State, x: Tensor) -> Tensor:
        """What the model of this state answers for these inputs."""
        ...

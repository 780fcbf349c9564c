"""What a finished run gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedveil.local.objective import Objective, predict
from fedveil.privacy.statement import Statement
from fedveil.runtime.folder import Folder


@dataclass(frozen=True, eq=False)
class Result:
    """History, privacy statement, summary and model of a run, and the folder that holds them."""

    folder: Folder
    summary: dict[str, Any]
    history: list[dict[str, Any]]
    statement: Statement
    objective: Objective
    classes: int

    @property
    def model(self) -> nn.Module:
        """The trained module."""
        return self.objective.module

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the final model on the common test set."""
        value: float | None = self.summary["accuracy"]
        return value

    def outputs(self, x: Any) -> Tensor:
        """What the model answers: one row of scores per example."""
        like = next(self.model.parameters())
        inputs = torch.as_tensor(x)
        whole = self.summary["tokens"]
        return predict(self.objective, inputs.to(like.device) if whole else inputs.to(like.device, like.dtype))

    def predict(self, x: Any) -> Tensor:
        """The class number of each example (the value itself where the target is a number)."""
        scores = self.outputs(x)
        return scores.argmax(1) if self.classes else scores.squeeze(-1)

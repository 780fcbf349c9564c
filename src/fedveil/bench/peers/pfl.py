"""pfl-research: its simulated federated averaging, on the same clients in the same order.

Favourable: tensors ready in memory, no evaluation, no metrics, no callbacks; a round is the three calls that its own
loop makes.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.bench.scenario import Setting

NEVER = 10**9


class Pfl:
    """``FederatedAveraging`` over a ``SimulatedBackend``."""

    def __init__(self, setting: Setting) -> None:
        self.setting, scenario = setting, setting.scenario
        self.number = 0
        self.waiting: Iterator[int] = iter(())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            models: Any = importlib.import_module("pfl.model.pytorch")
            averaging: Any = importlib.import_module("pfl.algorithm.federated_averaging")
            base: Any = importlib.import_module("pfl.algorithm.base")
            simulate: Any = importlib.import_module("pfl.aggregate.simulate")
            federated: Any = importlib.import_module("pfl.data.federated_dataset")
            self.sets: Any = importlib.import_module("pfl.data.pytorch")
            hyper: Any = importlib.import_module("pfl.hyperparam")
        ops: Any = importlib.import_module("pfl.internal.ops.pytorch_ops")
        if ops.get_default_device().type != setting.device.type:
            raise RuntimeError(f"pfl computes on {ops.get_default_device()}, not on {setting.device}")
        self.module = Learner(setting.module())
        central = torch.optim.SGD(self.module.parameters(), lr=1.0)
        self.model = models.PyTorchModel(self.module, torch.optim.SGD, central)
        clients = federated.FederatedDataset(self._set_of, self._next_client)
        self.backend = simulate.SimulatedBackend(clients, clients)
        self.algorithm = averaging.FederatedAveraging()
        self.params = base.NNAlgorithmParams(
            central_num_iterations=NEVER,
            evaluation_frequency=NEVER,
            train_cohort_size=scenario.cohort,
            val_cohort_size=None,
        )
        self.train = hyper.NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=scenario.lr, local_batch_size=scenario.batch
        )

    def round(self, number: int, clients: list[int]) -> None:
        """One central iteration."""
        self.number, self.waiting = number, iter(clients)
        contexts, _, _ = self.algorithm.get_next_central_contexts(self.model, number, self.params, self.train)
        statistics, metrics = self.backend.gather_results(self.model, self.algorithm, central_context=contexts[0])
        self.model, _ = self.algorithm.process_aggregated_statistics_from_all_contexts(
            ((contexts[0], statistics),), metrics, self.model
        )

    def weights(self) -> Tensor:
        """The model as one vector."""
        return torch.cat([p.detach().reshape(-1) for p in self.module.parameters()])

    def _next_client(self) -> int:
        return next(self.waiting)

    def _set_of(self, client: int) -> Any:
        order, _ = self.setting.batches(self.number, client)
        x, y = self.setting.examples(client)
        index = torch.from_numpy(order).to(self.setting.device)
        return self.sets.PyTorchTensorDataset((x.index_select(0, index), y.index_select(0, index)), user_id=client)


class Learner(nn.Module):
    """A model with the two methods that pfl asks for."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module

    def forward(self, x: Tensor) -> Any:
        """The model's answer."""
        return self.inner(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What is minimised."""
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Nothing is measured."""
        return {}

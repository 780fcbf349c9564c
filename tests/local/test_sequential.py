"""The reference engine against loops written by hand."""

import pytest
import torch
from benchmarks.fedavg_loop import hand_written
from tests.support import blobs
from torch import nn
from torch.nn import functional as F

import fedveil
import fedveil.runtime.config
import fedveil.runtime.prepare
from fedveil.core.flat import Layout
from fedveil.core.streams import stream, torch_seed
from fedveil.local.batches import Batching
from fedveil.local.models import mlp


def model(seed, data, **kw):
    torch.manual_seed(torch_seed(seed, "initial weights"))
    return mlp(data.input_shape, data.classes, **kw)


@pytest.mark.parametrize("seed", [0, 1])
def test_fedavg_equals_the_hand_written_loop_bit_for_bit(tmp_path, seed):
    data = blobs(clients=6)
    settings = {"rounds": 4, "cohort": 3, "lr": 0.2, "seed": seed}
    result = fedveil.run(
        data=data, model="mlp", batch=8, local_epochs=2, engine="sequential", out=tmp_path / "r", **settings
    )
    plain = hand_written(data, model(seed, data), batching=Batching(8, None, 2), **settings)
    ours = list(result.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


def test_momentum_and_weight_decay_are_those_of_torch(tmp_path):
    data = blobs(clients=1)
    result = fedveil.run(
        data=data,
        model="mlp",
        rounds=1,
        batch=4,
        local_epochs=3,
        lr=0.05,
        momentum=0.9,
        weight_decay=0.01,
        out=tmp_path / "r",
    )
    reference = model(0, data)
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    examples, start = data.train(0), 0
    order, ends = Batching(4, None, 3).batches(len(examples), stream(0, "batches", 1, 0))
    for end in ends.tolist():
        index = torch.from_numpy(order[start:end])
        optimiser.zero_grad()
        F.cross_entropy(reference(examples.x[index]), examples.y[index]).backward()
        optimiser.step()
        start = end
    for a, b in zip(result.model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_a_client_with_dropout_draws_from_its_own_stream(tmp_path):
    """Order and company of clients change nothing: client 2 alone moves as it does in a cohort of all."""
    data = blobs(clients=3)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))

        def forward(self, x):
            return self.net(x)

    def moves(clients):
        torch.manual_seed(0)
        config = fedveil.runtime.config.resolve(["rounds=1"])
        training = fedveil.runtime.prepare.prepare(config, data=data, model=Net())
        server = {"w": training.objective.initial()}
        batches = [stream(0, "batches", 1, k) for k in clients]
        ctx = fedveil.core.stage.Context(1, training.objective.layout, clients, batches, batches=batches)
        return training.engine.train(training.method, server, None, ctx).delta.value

    assert torch.equal(moves([0, 1, 2])[2], moves([2])[0])


def test_batch_statistics_are_averaged_with_the_weights(tmp_path):
    data = blobs(clients=2)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    result = fedveil.run(data=data, model=net, rounds=3, cohort=2, batch=16, out=tmp_path / "r")
    layout = Layout.of_buffers(result.model)
    assert layout.names == ("1.running_mean", "1.running_var")
    assert float(dict(result.model.named_buffers())["1.running_mean"].abs().max()) > 0
    again = fedveil.load(
        tmp_path / "r", model=nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    )
    assert torch.equal(again.outputs(data.test.x), result.outputs(data.test.x))


def test_a_stage_on_every_step_sees_the_batch_gradient(tmp_path):
    """Scaling every gradient by two is the same as twice the learning rate."""
    import dataclasses

    from fedveil.core.stage import chain
    from fedveil.methods.fedavg import fedavg

    data = blobs()
    double = dataclasses.replace(fedavg(), on_step=chain(lambda signal, ctx: signal * 2.0))
    a = fedveil.run(data=data, method=double, model="mlp", rounds=2, lr=0.05, dtype="float64", out=tmp_path / "a")
    b = fedveil.run(data=data, method="fedavg", model="mlp", rounds=2, lr=0.1, dtype="float64", out=tmp_path / "b")
    for x, y in zip(a.model.parameters(), b.model.parameters(), strict=True):
        assert torch.allclose(x, y, atol=1e-12)

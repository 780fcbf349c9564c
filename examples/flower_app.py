"""An existing Flower app made private and robust: FedVeil's mod at the clients, its strategy at the server.

    python examples/flower_app.py

The app is an ordinary one: a ClientApp that trains a model in PyTorch, and a ServerApp that starts a strategy. Two
lines are FedVeil's: `mods=[...]` and `FedVeilStrategy(...)`.
"""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedveil.aggregate.order import TrimmedMean
from fedveil.flower import FedVeilStrategy, StagesMod
from fedveil.privacy.clip import clip
from fedveil.privacy.noise import gaussian

CLIENTS, ROUNDS = 10, 3


def examples(client):
    """A client's own data: two classes that a plane tells apart."""
    made = torch.Generator().manual_seed(client)
    x = torch.randn(200, 8, generator=made)
    return x, (x.sum(dim=1) > 0).long()


# Every upload is clipped to length 1 and gets noise, at the client; each client stops by itself at epsilon 12.
mod = StagesMod(clip(norm=1.0), gaussian(multiplier=1.0), epsilon=12.0, delta=1e-5)
client_app = ClientApp(mods=[mod])


@client_app.train()
def train(message: Message, context: Context) -> Message:
    model = torch.nn.Linear(8, 2)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = examples(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(10):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    arrays, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    # One of ten clients may send anything.
    strategy = FedVeilStrategy(TrimmedMean(1), fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    torch.manual_seed(0)
    result = strategy.start(grid, ArrayRecord(torch.nn.Linear(8, 2).state_dict()), num_rounds=ROUNDS)
    model = torch.nn.Linear(8, 2)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    x, y = examples(1000)
    accuracy = (model(x).argmax(1) == y).float().mean()
    print(f"accuracy {accuracy:.3f} after {ROUNDS} rounds, each upload private by itself")


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    run_simulation(server_app, client_app, CLIENTS)

"""The ClientApp: what a node answers (``fedveil.runtime.flower.client_app:app``).

A node is the client whose number its node config gives: ``number``, or ``partition-id`` as simulations have it. Its
``data`` names the file with its own examples; without one it takes its part of the run's data set.
"""

from __future__ import annotations

import orjson
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedveil.core.errors import Refused
from fedveil.runtime.flower.messages import Hello, Malformed, Order, Present, Trained, decode, encode
from fedveil.runtime.flower.node import made, remember, run_of, tensors_of, train
from fedveil.runtime.flower.sites import own_data

NUMBERS = ("number", "partition-id")
app = ClientApp()


def client_of(context: Context) -> int:
    """The client that this node is."""
    name = next((n for n in NUMBERS if n in context.node_config), NUMBERS[0])
    number = context.node_config.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise Refused(f"node config: {name} is {number!r}; give the client's number, from 0 up")
    return number


def data_of(context: Context) -> str | None:
    """Where the node's own examples are."""
    found = context.node_config.get("data")
    return None if found is None else str(found)


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Say who this is, and what the data looks like where it is the node's own."""
    asked, client = decode(Hello, message.content)[0], client_of(context)
    if not asked.settings:
        return Message(encode(Present(client, "", 0, b"", {})), reply_to=message)
    own = own_data(orjson.loads(asked.settings), client, data_of(context))
    site = str(context.node_config.get("site", client))
    return Message(encode(Present(client, "", len(own.examples), b"", own.facts | {"site": site})), reply_to=message)


@app.train()
def trained(message: Message, context: Context) -> Message:
    """Train one round, and send what may leave."""
    order, state = decode(Order, message.content)
    client = client_of(context)
    if order.client != client:
        raise Malformed(f"an order for client {order.client}, and this is client {client}")
    training = run_of(order.settings, client, data_of(context))
    outcome = train(training, order, state, context)
    remember(context, order, outcome.memory)
    open_book = not training.method.private
    report = Trained(
        order.round,
        client,
        outcome.forgot,
        made(outcome.ctx.releases),
        float(outcome.moves.loss[0]) if open_book else None,
        float(outcome.moves.delta.value.norm()) if open_book else None,
        b"",
    )
    return Message(encode(report, tensors_of(outcome.uploads)), reply_to=message)

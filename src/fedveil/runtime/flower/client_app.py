"""The ClientApp: what a node answers (``fedveil.runtime.flower.client_app:app``)."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedveil.core.errors import Refused
from fedveil.runtime.flower.messages import Hello, Malformed, Order, Present, Trained, decode, encode
from fedveil.runtime.flower.node import made, remember, run_of, tensors_of, train

PARTITION = "partition-id"
app = ClientApp()


def client_of(context: Context) -> int:
    """The client that this node is."""
    number = context.node_config.get(PARTITION)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise Refused(f"node config: {PARTITION} is {number!r}; give the client's number, from 0 up")
    return number


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Say who this is."""
    decode(Hello, message.content)
    return Message(encode(Present(client_of(context), "", 0, b"", b"", {})), reply_to=message)


@app.train()
def trained(message: Message, context: Context) -> Message:
    """Train one round, and send what may leave."""
    order, state = decode(Order, message.content)
    client = client_of(context)
    if order.client != client:
        raise Malformed(f"an order for client {order.client}, and this is client {client}")
    training = run_of(order.settings)
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

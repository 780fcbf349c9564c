"""The ClientApp: what a node answers (``fedveil.runtime.flower.client_app:app``).

A node is the client whose number its node config gives: ``number``, or ``partition-id`` as simulations have it. Its
``data`` names the file with its own examples; without one it takes its part of the run's data set. What a client must
remember between rounds also goes to the folder ``state``, where one is named, and survives a new start of the run.
"""

from __future__ import annotations

import orjson
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedveil.core.errors import Refused
from fedveil.core.parts import Uploads
from fedveil.runtime.flower import encrypted, masked, parties, shuffled
from fedveil.runtime.flower.keeping import remember
from fedveil.runtime.flower.messages import (
    Deal,
    Envelopes,
    Frame,
    Hello,
    Invite,
    Malformed,
    Meeting,
    Opening,
    Order,
    Present,
    Step,
    Task,
    Trained,
    decode,
    encode,
)
from fedveil.runtime.flower.node import made, place_of, run_of, tensors_of, train
from fedveil.runtime.flower.sites import own_data, settled
from fedveil.runtime.prepare import Training
from fedveil.transport.duo.transport import Duo
from fedveil.transport.he import Encrypted
from fedveil.transport.shuffle import Shuffle

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
    asked, role = decode(Hello, message.content)[0], str(context.node_config.get("role", ""))
    if role:
        return Message(encode(Present(-1, role, 0, b"", {})), reply_to=message)
    client = client_of(context)
    if not asked.settings:
        return Message(encode(Present(client, "", 0, b"", {})), reply_to=message)
    if "epsilon" in context.node_config:
        settled(orjson.loads(asked.settings)["data"])
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
    remember(context, order, place_of(order.settings, context), outcome.memory)
    open_book = not training.method.private
    each = "each" in training.method.transport.reveals
    report = Trained(
        order.round,
        client,
        outcome.forgot,
        made(outcome.ctx.releases),
        float(outcome.moves.loss[0]) if open_book else None,
        float(outcome.moves.delta.value.norm()) if open_book else None,
        b"" if each else _hidden(training, order, outcome.uploads, context),
    )
    return Message(encode(report, tensors_of(outcome.uploads) if each else None), reply_to=message)


def _hidden(training: Training, order: Order, uploads: Uploads, context: Context) -> bytes:
    """An upload that the server must not see, in a frame of its transport."""
    if isinstance(training.method.transport, Shuffle):
        return shuffled.upload(training, order, uploads, context)
    if isinstance(training.method.transport, Duo):
        return parties.upload(training, order, uploads, context)
    if isinstance(training.method.transport, Encrypted):
        return encrypted.upload(training, order, uploads, context)
    return masked.upload(training, order, uploads, context)


@app.query("invite")
def invited(message: Message, context: Context) -> Message:
    """Take a seat in a session of masks."""
    invite = decode(Invite, message.content)[0]
    training = run_of(invite.settings, client_of(context), data_of(context))
    return Message(encode(masked.accept(training, invite, context)), reply_to=message)


@app.query("masks")
def masks(message: Message, context: Context) -> Message:
    """The next stage of that session."""
    frame = decode(Frame, message.content)[0]
    training = run_of(masked.settings_of(context), client_of(context), data_of(context))
    return Message(encode(masked.answer(training, frame, context)), reply_to=message)


@app.query("open")
def opened(message: Message, context: Context) -> Message:
    """The shuffler: a round begins."""
    return Message(encode(shuffled.begin(decode(Opening, message.content)[0], context)), reply_to=message)


@app.query("shuffle")
def shuffle(message: Message, context: Context) -> Message:
    """The shuffler: the round's envelopes."""
    return Message(encode(shuffled.finish(decode(Envelopes, message.content)[0], context)), reply_to=message)


@app.query("sum")
def sums(message: Message, context: Context) -> Message:
    """The computer and the controller: their part of an encrypted sum."""
    return Message(encode(encrypted.serve(decode(Frame, message.content, limit=2**31)[0], context)), reply_to=message)


@app.query("meet")
def meets(message: Message, context: Context) -> Message:
    """S1, S2 and the key centre: a new meeting."""
    return Message(encode(parties.meet(decode(Meeting, message.content)[0], context)), reply_to=message)


@app.query("deal")
def deals(message: Message, context: Context) -> Message:
    """The key centre: keys for a round."""
    return Message(encode(parties.deal_keys(decode(Deal, message.content)[0], context)), reply_to=message)


@app.query("begin")
def begins(message: Message, context: Context) -> Message:
    """The same three: a round's program begins."""
    task = decode(Task, message.content, limit=2**31)[0]
    return Message(encode(parties.begin(task, context)), reply_to=message)


@app.query("step")
def steps(message: Message, context: Context) -> Message:
    """The same three: it goes on."""
    words = decode(Step, message.content, limit=2**31)[0]
    return Message(encode(parties.step(words, context)), reply_to=message)

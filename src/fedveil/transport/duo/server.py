"""A server as a process of its own: ``python -m fedveil.transport.duo.server S1 ORDERS PEER [DEALER]``.

The numbers are those of inherited sockets. A token of this session stands on the standard input, then the seconds for
which another party may be silent; the keys come with the first message.
"""

from __future__ import annotations

import contextlib
import socket
import sys

import msgpack

from fedveil.core.errors import Aborted
from fedveil.transport.duo.dealer import ServerKeys
from fedveil.transport.duo.parameters import Plan
from fedveil.transport.duo.serving import Asking, serve
from fedveil.transport.duo.wire import TOKEN, Wire

KEYS = "dealt:keys"


def main(arguments: list[str]) -> None:
    """Join the conversations, take the keys, serve until the end."""
    name, *numbers = arguments
    given = sys.stdin.buffer.read(TOKEN + 4)
    token, patience = given[:TOKEN], float(int.from_bytes(given[TOKEN:], "little"))
    ends = [socket.socket(fileno=int(number)) for number in numbers]
    orders = Wire(ends[0], "the runtime", token)
    peer = Wire(ends[1], "S2" if name == "S1" else "S1", token, patience)
    dealer = Wire(ends[2], "the key centre", token, patience) if len(ends) > 2 else None
    with contextlib.suppress(Aborted):  # whoever gives orders has ended
        plan, *rest = msgpack.unpackb(orders.receive(KEYS))
        keys = ServerKeys(Plan.from_json(plan), *rest)
        serve(keys, orders, peer, None if dealer is None else Asking(dealer))
    for wire in (peer, orders):
        wire.close()


if __name__ == "__main__":
    main(sys.argv[1:])

"""A server as a process of its own: ``python -m fedveil.transport.duo.server S1 ORDERS PEER [DEALER]``.

The numbers are those of inherited sockets. A token of this session stands on the standard input, then the seconds for
which another party may be silent; the keys come with the first message.
"""

from __future__ import annotations

import contextlib
import socket
import sys

from fedveil.core.errors import Aborted
from fedveil.transport.duo.given import taken
from fedveil.transport.duo.serving import KEYS, Asking, serve
from fedveil.transport.duo.wire import TOKEN, Wire


def main(arguments: list[str]) -> None:
    """Join the conversations, take the keys, serve until the end."""
    name, *numbers = arguments
    given = sys.stdin.buffer.read(TOKEN + 4)
    token, patience = given[:TOKEN], float(int.from_bytes(given[TOKEN:], "little"))
    ends = [socket.socket(fileno=int(number)) for number in numbers]
    orders = Wire(ends[0], "the runtime", token)
    peer = Wire(ends[1], "S2" if name == "S1" else "S1", token, patience)
    dealer = Wire(ends[-1], "the key centre", token, patience) if name == "S2" else orders
    with contextlib.suppress(Aborted):  # whoever gives orders has ended
        serve(*taken(orders.receive(KEYS), lambda: Asking(dealer)), orders, peer)
    for wire in (peer, orders):
        wire.close()


if __name__ == "__main__":
    main(sys.argv[1:])

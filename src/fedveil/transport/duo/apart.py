"""S1 and S2 as processes of their own, joined by sockets that nobody else can reach (SPEC 7.1).

Each process inherits its ends of socket pairs, so that no port is opened; a token, given on its standard input, begins
every conversation. Keys and seeds travel on the private conversation with whoever started it, or lie in its folder.
"""

from __future__ import annotations

import atexit
import contextlib
import secrets
import socket
import subprocess
import sys
from dataclasses import dataclass

from fedveil.transport.duo.wire import TOKEN, Lost, Wire

NAMES = ("S1", "S2")


@dataclass(eq=False)
class Apart:
    """Two running processes, and this side's ends: the orders to each, and the key centre's answers to S2."""

    processes: tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]
    orders: tuple[Wire, Wire]
    dealer: Wire

    def close(self) -> None:
        """Hang up, and end what does not end by itself."""
        for wire in (*self.orders, self.dealer):
            wire.close()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2)
            if process.poll() is None:
                process.kill()
                process.wait()
        if self in _running:
            _running.remove(self)


_running: list[Apart] = []


@atexit.register
def _stop() -> None:
    for one in list(_running):
        one.close()


def start(patience: float) -> Apart:
    """Two new processes that wait for orders."""
    token = secrets.token_bytes(TOKEN)
    orders, peers, dealer = ([socket.socketpair() for _ in NAMES], socket.socketpair(), socket.socketpair())
    processes = []
    for place, name in enumerate(NAMES):
        ends = [orders[place][1], peers[place], *([dealer[1]] if place else [])]
        numbers = [end.fileno() for end in ends]
        command = [sys.executable, "-m", "fedveil.transport.duo.server", name, *map(str, numbers)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=numbers, start_new_session=True)
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(token + int(patience).to_bytes(4, "little"))
            process.stdin.close()
        processes.append(process)
        for end in ends:
            end.close()
    try:
        wires = [Wire(orders[place][0], name, token, patience) for place, name in enumerate(NAMES)]
        found = Apart((processes[0], processes[1]), (wires[0], wires[1]), Wire(dealer[0], "S2", token))
    except Lost:
        for process in processes:
            process.kill()
            process.wait()
        raise
    _running.append(found)
    return found

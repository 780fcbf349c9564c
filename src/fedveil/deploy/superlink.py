"""``python -m fedveil.deploy.superlink``: Flower's SuperLink behind a gate that strangers pass only to the Fleet API.

Flower 1.41 serves three interfaces on one port: *Fleet* for SuperNodes, whose keys it checks; *Control*, by which
anybody may register a node or start any app at every site; and *Runtime*, for the process that trains. The last two
have no account check in the open-source SuperLink, so they are answered on the SuperLink's own machine alone.
"""

from __future__ import annotations

import importlib
import ipaddress
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedveil.core.errors import Refused

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

FLOWER = "1.41.0"
"""The version whose interfaces the gate knows; with any other one nothing is started."""
OPEN = "/v1/fleet/"
PR_SET_PDEATHSIG = 1


class Gate:
    """Middleware in front of all others: what is not the Fleet API is refused to other machines."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 where a stranger asks for more than the Fleet API."""
        if scope["type"] == "lifespan" or admitted(scope.get("path", ""), scope.get("client"), scope.get("server")):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            body = b"This interface answers on the SuperLink's own machine only.\n"
            headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        else:
            await send({"type": "websocket.close", "code": 1008})


def admitted(path: str, client: Any, server: Any) -> bool:
    """Whether a request may go on; the SuperLink's own machine is loopback, or the address that it was asked at.

    >>> admitted("/v1/fleet/pull-messages", ("192.0.2.9", 5), ("192.0.2.1", 8000))
    True
    >>> admitted("/v1/control/start-run", ("192.0.2.9", 5), ("192.0.2.1", 8000))
    False
    >>> admitted("/v1/control/start-run", ("127.0.0.1", 5), ("127.0.0.1", 8000))
    True
    """
    if path.startswith(OPEN):
        return True
    if client is None or server is None:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    return address.is_loopback or str(client[0]) == str(server[0])


def check_flower() -> None:
    """Refuse to start with a Flower that this was not written for."""
    import flwr

    if flwr.__version__ != FLOWER:
        raise Refused(
            f"flwr: version {flwr.__version__} is installed, and this deployment is made for {FLOWER}; "
            f"run pip install 'flwr=={FLOWER}'"
        )


def offline() -> None:
    """Nothing but the federation is ever called: no telemetry, no look for updates, no packages fetched for a run."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    os.environ["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Flower starts its own commands by name: those beside this Python.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def tied(module: Any) -> None:
    """Let helpers that a Flower module starts end with this process, however it ends.

    They look for it themselves, but not while they wait to try a connection once more.
    """
    import ctypes
    import signal
    import subprocess

    libc = ctypes.CDLL(None, use_errno=True)

    def ask_for_the_signal() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    start = partial(subprocess.Popen, preexec_fn=ask_for_the_signal)
    module.subprocess = SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired)


def main() -> None:
    """Start the SuperLink; options are those of ``flower-superlink``."""
    offline()
    check_flower()
    if "--insecure" in sys.argv or "--enable-supernode-auth" not in sys.argv:
        raise Refused("superlink: TLS and node authentication are not optional here; use the start script as written")
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    extensions.get_middleware = lambda: (Middleware(Gate),)
    command = importlib.import_module("flwr.superlink.cli.flower_superlink")
    tied(command)
    command.flower_superlink()


if __name__ == "__main__":
    try:
        main()
    except Refused as refusal:
        sys.exit(f"fedveil: {refusal}")

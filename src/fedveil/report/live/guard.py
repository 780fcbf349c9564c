"""Who may read the live page: a socket that other machines cannot reach, and requests that mean this machine.

A web page may point a name of its own at 127.0.0.1 and then read what is served there as if it were its own (DNS
rebinding). Its requests carry that name in their Host header, so only addresses and ``localhost`` are answered.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedveil.core.errors import Refused

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def bind(host: str, port: int, *, remote: bool) -> socket.socket:
    """A listening socket; other machines reach it only where the user said so."""
    found = address("127.0.0.1" if host == "localhost" else host)
    if found is None:
        raise Refused(f"--host: {host!r} is no address; give one such as 127.0.0.1, ::1 or 0.0.0.0")
    if not found.is_loopback and not remote:
        raise Refused(
            f"--host: {host} can be reached from other machines, and the live page asks nobody for a password; "
            "add --remote if that is what you want, or leave --host out"
        )
    try:
        return socket.create_server(
            (str(found), port), family=socket.AF_INET6 if found.version == 6 else socket.AF_INET
        )
    except (OSError, OverflowError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise Refused(f"--port: cannot listen on {host}, port {port} ({why}); give another, or 0 for any") from None


def address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """A name as an address; None for a word, which somebody could point elsewhere."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def welcome(host: str, *, remote: bool) -> bool:
    """Whether a Host header means this machine.

    >>> [welcome(h, remote=False) for h in ("127.0.0.1:8377", "localhost", "[::1]:80", "evil.example", "10.0.0.7")]
    [True, True, True, False, False]
    """
    told = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]@/]+))(?::[0-9]{1,5})?", host)
    if told is None:
        return False
    name = (told[1] or told[2]).lower()
    if name == "localhost":
        return True
    found = address(name)
    return found is not None and (remote or found.is_loopback)


class Guard:
    """Turns strangers away, and gives every answer the headers that keep it where it is."""

    def __init__(self, app: ASGIApp, remote: bool) -> None:
        self.app, self.remote = app, remote

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return  # no websockets here

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                pairs = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *pairs]
            await send(message)

        hosts = Headers(scope=scope).getlist("host")
        if len(hosts) == 1 and welcome(hosts[0], remote=self.remote):
            await self.app(scope, receive, guarded)
        else:
            text = "This page answers to its address only, such as 127.0.0.1 or localhost.\n"
            await PlainTextResponse(text, 421)(scope, receive, guarded)

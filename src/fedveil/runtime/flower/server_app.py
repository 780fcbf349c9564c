"""The ServerApp: the round loop with nodes in the place of clients (``fedveil.runtime.flower.server_app:app``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp


def serving(main: Callable[[Grid, Context], Any]) -> ServerApp:
    """A ServerApp that does this."""
    made = ServerApp()
    made.main()(main)
    return made

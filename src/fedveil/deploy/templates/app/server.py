"""The server's side: FedVeil's own."""

from fedveil.deploy.server_app import app

__all__ = ["app"]

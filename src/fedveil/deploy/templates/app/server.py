"""The server's side: FedVeil's own."""

from {{module}} import server_app as app

__all__ = ["app"]

"""A site's side: FedVeil's own."""

from {{module}} import client_app as app

__all__ = ["app"]

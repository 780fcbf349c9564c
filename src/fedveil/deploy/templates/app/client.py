"""A site's side: FedVeil's own."""

from fedveil.deploy.client_app import app

__all__ = ["app"]

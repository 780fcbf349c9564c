"""What a site's node answers."""

from fedveil.runtime.flower.client_app import app

__all__ = ["app"]

"""Secure aggregation by masks: the server learns the sum of the uploads and nothing else (SPEC 6.1).

What the rest of FedVeil sees of it:

``Masks(bits=32, step=2**-20, ...)``
    the transport. It sums whole numbers modulo 2^bits, and ``reveals`` only the ``sum``.
``Signal.grid``
    says how a channel is encoded. With a grid its values are whole multiples of it: they are summed exactly, modulo
    2^bits, and a sum beyond ±2^(bits−1) grid units wraps round (integer noise has no bound; choose ``bits`` so that
    this does not happen). All weights must then be equal. Without one, values are rounded to ``step``, towards zero so
    that no norm grows, and an upload with which a sum could wrap is refused, or clipped.
``Masks.plan(n)``
    the parameters for n invited clients. ``plan.least`` uploads stand in every sum that the server can learn, and at
    most ``plan.colluders`` of them are known to it: distributed noise counts on n_min = least − colluders (SPEC 6.3).
``Aborted``
    is what a round raises in which fewer than ``least`` uploads, or too few shares, arrived.

Weighted means: the server gets Σ c_k·x_k and Σ c_k with c_k = w_k / max w, both masked.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedveil.transport.masks.plan import Plan
    from fedveil.transport.masks.transport import Masks

__all__ = ["Masks", "Plan"]
_PLACES = {"Masks": "transport", "Plan": "plan"}


def __getattr__(name: str) -> Any:
    """Import them when they are first used: processes that only compute need no torch, and start at once."""
    if name in _PLACES:
        return getattr(importlib.import_module(f"fedveil.transport.masks.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'fedveil.transport.masks' has no attribute {name!r}")

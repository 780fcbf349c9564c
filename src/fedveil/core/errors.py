"""What goes wrong, in words a person can act on."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


class Refused(ValueError):
    """A request that FedVeil will not carry out; the message is one sentence that says what to do instead.

    The command line prints it without a traceback and exits with code 2.
    """


def suggest(word: str, known: Iterable[str]) -> str:
    """Name the closest known word, then all of them.

    >>> suggest("scafold", ["fedavg", "scaffold"])
    "did you mean 'scaffold'? allowed: fedavg, scaffold"
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}allowed: {', '.join(names)}"


def positive(**settings: float) -> None:
    """Refuse any setting that is not a finite number above zero."""
    for name, value in settings.items():
        if not (math.isfinite(value) and value > 0):
            raise Refused(f"{name}: {value} is not a positive number; give a value above 0")


def not_negative(**settings: float) -> None:
    """Refuse any setting that is not a finite number, zero or above."""
    for name, value in settings.items():
        if not (math.isfinite(value) and value >= 0):
            raise Refused(f"{name}: {value} is not allowed; give 0 or a positive number")


def fraction(**settings: float) -> None:
    """Refuse any setting outside the half-open interval [0, 1)."""
    for name, value in settings.items():
        if not 0 <= value < 1:
            raise Refused(f"{name}: {value} is not a fraction; give a number from 0 up to, but not including, 1")


def one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a word that is not in the list, and show the list."""
    if value not in set(allowed):
        raise Refused(f"{name}: {value!r} is unknown; {suggest(value, allowed)}")

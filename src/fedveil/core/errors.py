"""What goes wrong, in words a person can act on."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


class Refused(ValueError):
    """A request that FedVeil will not carry out; the message is one sentence that says what to do instead.

    The command line prints it without a traceback and exits with code 2.
    """


class Aborted(Exception):
    """A round that came to nothing, such as one in which too few clients stayed; the model stays as it is.

    What its mechanisms released stays charged. The message says why, and what would help.
    """


def suggest(word: object, known: Iterable[str]) -> str:
    """Name the known words that go on where this one ends, else the closest one; then all of them.

    >>> suggest("scafold", ["fedavg", "scaffold"])
    "did you mean 'scaffold'? allowed: fedavg, scaffold"
    >>> suggest("dp_", ["dp_a", "dp_b", "fedavg"])
    "did you mean 'dp_a' or 'dp_b'? allowed: dp_a, dp_b, fedavg"
    """
    names, text = sorted(known), word if isinstance(word, str) else ""
    close = [n for n in names if n.startswith(text)] if len(text) > 2 else []
    close = close or difflib.get_close_matches(text, names, n=1)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"{hint}allowed: {', '.join(names)}"


def shown(value: object) -> str:
    """A value as settings are written: null for None."""
    return "null" if value is None else repr(value)


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


def one_of(name: str, value: object, allowed: Iterable[str]) -> None:
    """Refuse what is not in the list of words, whatever it is, and show the list.

    >>> one_of("scope", None, ["layer", "model"])
    Traceback (most recent call last):
    ...
    fedveil.core.errors.Refused: scope: null is unknown; allowed: layer, model
    """
    words = list(allowed)
    if value not in words:
        raise Refused(f"{name}: {shown(value)} is unknown; {suggest(value, words)}")

"""Why a message was not accepted; a state machine that refuses one stays as it was."""

from __future__ import annotations


class Rejected(Exception):
    """A message that is not accepted."""


class Malformed(Rejected):
    """It does not have the shape of what it claims to be: truncated, of another version, with wrong fields."""


class Oversized(Rejected):
    """It is longer than any honest message of its kind."""


class Foreign(Rejected):
    """It belongs to another session, or comes from or goes to somebody else."""


class Replayed(Rejected):
    """It was there before, or its stage is over or has not begun."""


class Tampered(Rejected):
    """A seal or a signature does not fit."""


class Unsafe(Rejected):
    """Well made, but answering it would give away more than the sum."""

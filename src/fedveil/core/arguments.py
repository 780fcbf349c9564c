"""Settings checked against the signature of the function that they are for: names, and types as annotated."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from fedveil.core.errors import Refused, one_of, shown, suggest


def settings(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword settings of a function with their annotated types, without ``seed`` and ``population``.

    >>> def source(*, seed: int, path: str, rows: int | None = None): ...
    >>> settings(source)
    {'path': <class 'str'>, 'rows': int | None}
    """
    hints = typing.get_type_hints(vars(function)["__init__"] if isinstance(function, type) else function)
    return {name: hints[name] for name in _keywords(function) if name not in ("seed", "population")}


def required(function: Callable[..., Any]) -> list[str]:
    """The keyword settings that have no default."""
    return [name for name, p in _keywords(function).items() if p.default is p.empty and name != "seed"]


def known(owner: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuse a setting that its owner does not have, with a suggestion."""
    names = list(allowed)
    for name in given:
        if name not in names:
            raise Refused(f"{name}: {owner} has no such setting; {suggest(name, names)}")


def fit(setting: str, value: Any, hint: Any) -> Any:
    """The value as the annotated type (a whole number may stand for a number, 3.0 for 3), or a refusal.

    >>> fit("lr", 1, float | None)
    1.0
    """
    if typing.get_origin(hint) is typing.Literal:
        one_of(setting, value, typing.get_args(hint))
    if not _fits(value, hint):
        raise Refused(f"{setting}: {shown(value)} is not allowed; give {_words(hint)}")
    kinds = _kinds(hint)
    if isinstance(value, Real) and not isinstance(value, bool):
        if int in kinds and float(value).is_integer():
            return int(float(value))
        if float in kinds:
            return float(value)
    return value


def _keywords(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    every = inspect.signature(function).parameters
    return {name: p for name, p in every.items() if p.kind is p.KEYWORD_ONLY}


def _kinds(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if _is_union(hint) else (hint,)


def _is_union(hint: Any) -> bool:
    return isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union


def _fits(value: object, hint: Any) -> bool:
    if hint is Any:
        return True
    if _is_union(hint):
        return any(_fits(value, part) for part in hint.__args__)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return value in inner
    if origin is list:
        listed = isinstance(value, Sequence) and not isinstance(value, str)
        return listed and all(_fits(item, inner[0]) for item in typing.cast(Sequence[Any], value))
    if origin is dict:
        return isinstance(value, Mapping) and all(
            _fits(key, inner[0]) and _fits(item, inner[1]) for key, item in value.items()
        )
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool) and value == value
    if hint is int:
        whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
        return whole and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else True


def _words(hint: Any) -> str:
    if _is_union(hint):
        # Objects of our own cannot be written on a command line; they are named where nothing else is allowed.
        plain = [p for p in hint.__args__ if not getattr(p, "__module__", "").startswith("fedveil.")]
        return " or ".join(map(_words, plain or hint.__args__))
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(map(str, inner))
    if origin is list:
        return f"a list (each {_words(inner[0])})"
    if origin is dict:
        return "a mapping" if inner[1] is Any else f"a mapping from {_words(inner[0])} to {_words(inner[1])}"
    names = {float: "a number", int: "a whole number", str: "text", bool: "true or false", type(None): "null"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))

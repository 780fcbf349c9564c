"""From a configuration node to a part: import the builder it names and call it with checked arguments."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

from fedveil.aggregate.before import before
from fedveil.aggregate.rule import check_byzantine
from fedveil.core.arguments import fit
from fedveil.core.errors import Refused, suggest
from fedveil.core.parts import Aggregator

ALLOWED = "FEDVEIL_PARTS"
"""Where this environment variable is set, parts come from FedVeil and from the packages that it names, and from no
others: a site of a deployment builds what a server tells it to."""
OURS = ("fedveil.methods.", "fedveil.local.models", "fedveil.local.attacks", "fedveil.aggregate.", "fedveil.transport.")


def locate(path: str, setting: str) -> Callable[..., Any]:
    """Import ``package.module:name``; the working directory counts as a place to look.

    >>> locate("math:sqrt", "model")(9)
    3.0
    """
    module_name, _, name = path.partition(":")
    if not _allowed(module_name):
        raise Refused(f"{setting}: this site builds nothing from {module_name!r}; its operator can name it in PARTS")
    if not name:
        raise Refused(f"{setting}: {path!r} is not an import path; write it as package.module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as problem:
        raise Refused(
            f"{setting}: cannot import {module_name!r} ({problem}); check the spelling and PYTHONPATH"
        ) from None
    found = getattr(module, name, None)
    if not callable(found):
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise Refused(f"{setting}: {module_name!r} has no function or class {name!r}; {suggest(name, names)}")
    if not _allowed(str(getattr(found, "__module__", ""))):  # what a room of ours has imported is none of its parts
        raise Refused(f"{setting}: {name!r} is no part of {module_name!r}; name one that is")
    return typing.cast(Callable[..., Any], found)


def _allowed(module: str) -> bool:
    packages = os.environ.get(ALLOWED)
    if packages is None or module.startswith(OURS):
        return True
    return any(module == p or module.startswith(f"{p}.") for p in packages.split())


def build(node: Mapping[str, Any], group: str, **given: Any) -> Any:
    """Call the node's builder with the node's own settings, and with those ``given`` that it asks for.

    Names and types are checked against the builder's signature, so that a misspelt setting is never dropped.
    """
    if not node.get("build"):
        raise Refused(f"{group}.build: an import path is required; give {group}=package.module:name")
    builder = locate(str(node["build"]), f"{group}.build")
    own = {k: v for k, v in node.items() if k not in ("build", "open")}
    return call(builder, group, own, given)


def build_aggregate(node: Mapping[str, Any], cohort: int, momentum: float = 0.0) -> Aggregator:
    """The rule that the node names, with what comes before it, for cohorts of this size.

    ``momentum`` is that of the clients, which a detector's starting thresholds depend on.
    """
    own = dict(node)
    shared = {name: own.pop(name, None) for name in ("declared_f", "before", "bucket", "norm_bound")}
    byzantine = fit("declared_f", shared["declared_f"], int | None)
    asked = inspect.signature(locate(str(own["build"]), "aggregate.build")).parameters.get("byzantine")
    if byzantine is not None or (asked is not None and asked.default is asked.empty):
        check_byzantine(str(own["build"]).split(":")[0].split(".")[-1], byzantine)
    given = {} if byzantine is None else {"byzantine": byzantine}
    rule: Aggregator = build(own, "aggregate", cohort=cohort, momentum=momentum, **given)
    names = fit("aggregate.before", shared["before"], str | list[str] | None) or []
    bucket = fit("aggregate.bucket", shared["bucket"], int | None)
    radius = fit("aggregate.norm_bound", shared["norm_bound"], float | None)
    for setting, value, part in (("bucket", bucket, "bucketing"), ("norm_bound", radius, "norm_bound")):
        if value is not None and part not in ([names] if isinstance(names, str) else names):
            raise Refused(
                f"aggregate.{setting}: it belongs to {part}, which does not stand before the rule; "
                f"set aggregate.before={part}, or leave it out"
            )
    if names:
        rule = before(rule, names, byzantine=byzantine, bucket=2 if bucket is None else bucket, norm_bound=radius)
    return rule


def call(builder: Callable[..., Any], group: str, own: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """Call with ``own`` settings, all of which must fit, and with whatever of ``given`` the signature names."""
    parameters = dict(inspect.signature(builder).parameters)
    try:
        hints = typing.get_type_hints(builder if inspect.isfunction(builder) else builder.__init__)
    except (NameError, TypeError, AttributeError):
        hints = {}
    _unpack(parameters, hints)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    arguments = {}
    for name, value in own.items():
        setting = f"{group}.{name}" if group else name
        if name not in parameters and not open_ended:
            known = [n for n in parameters if n not in given and n not in ("args", "kwargs")]
            raise Refused(f"{setting}: there is no such setting; {suggest(name, known)}")
        arguments[name] = fit(setting, value, hints.get(name, object))
    arguments |= {name: value for name, value in given.items() if name in parameters and name not in arguments}
    missing = [
        n
        for n, p in parameters.items()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and n not in arguments
    ]
    if missing:
        raise Refused(f"{group}.{missing[0]}: a value is required; add {group}.{missing[0]}=... to the command")
    try:
        return builder(**arguments)
    except Refused:
        raise
    except Exception as problem:
        name = getattr(builder, "__name__", str(builder))
        raise Refused(
            f"{group}: {name} failed ({type(problem).__name__}: {problem}); mend it or its settings"
        ) from problem


def _unpack(parameters: dict[str, inspect.Parameter], hints: dict[str, Any]) -> None:
    """Put the keys of a ``**settings: Unpack[SomeTypedDict]`` in its place, as settings like the others."""
    for name, parameter in list(parameters.items()):
        hint = hints.get(name)
        if parameter.kind is not parameter.VAR_KEYWORD or typing.get_origin(hint) is not typing.Unpack:
            continue
        (bundle,) = typing.get_args(hint)
        del parameters[name], hints[name]
        for key, kind in typing.get_type_hints(bundle).items():
            default = parameter.empty if key in bundle.__required_keys__ else None
            parameters[key] = inspect.Parameter(key, parameter.KEYWORD_ONLY, default=default)
            hints[key] = kind

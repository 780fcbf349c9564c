"""Hydra overrides to resolved configurations, with errors in one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedveil import __version__
from fedveil.core.errors import Refused, suggest
from fedveil.runtime.settings import GROUPS

Config = dict[str, Any]

ALIASES = {"global_lr": "server_lr", "declared_f": "aggregate.declared_f"}


def options(group: str) -> list[str]:
    """Names of what a group offers, such as the methods.

    >>> "scaffold" in options("method")
    True
    """
    folder = resources.files("fedveil.conf") / group
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml") and not f.name.startswith("_"))


def resolve(overrides: Sequence[str], values: Sequence[tuple[str, Any]] = ()) -> Config:
    """The whole configuration of one run, as plain data, with every interpolation filled in.

    ``values`` are settings as Python objects; a text for the same setting counts for more.
    """
    # Where a setting is given twice the last one counts, as in Hydra.
    last = {_parse(text).key_or_group: text for text in overrides}
    parsed = [_parse(text) for text in last.values()]
    for override in parsed:
        if override.is_sweep_override():
            raise Refused(
                f"{override.key_or_group}: several values were given for one run; add -m to run them one after another"
            )
    choices = [_choice(o) for o in parsed if o.key_or_group in GROUPS]
    flat_choices = [text for choice in choices for text in choice]
    base = _compose(flat_choices)
    rest = [_place(o, base) for o in parsed if o.key_or_group not in GROUPS]
    config = _compose([*flat_choices, *rest])
    for name, value in values:
        if name not in last:
            _put(config, _full_key(name, base), _plain(name, value))
    for name in ("path", "root", "test"):
        place = config["data"].get(name)
        if isinstance(place, str) and Path(place).expanduser().exists():
            config["data"][name] = str(Path(place).expanduser().absolute())  # a run is resumed from anywhere
    config["cwd"] = str(Path.cwd())
    config["overrides"] = None if values else list(overrides)
    config["version"] = __version__
    return config


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """Every combination of a sweep, in order: commas and ``range(...)`` as Hydra writes them.

    >>> expand(["seed=range(2)", "lr=0.1,0.2"])[1]
    ['seed=0', 'lr=0.2']
    """
    lists = []
    for text in overrides:
        override = _parse(text)
        if override.is_sweep_override():
            key = override.get_key_element()
            lists.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            lists.append([text])
    return [list(combination) for combination in product(*lists)]


def load(path: Path) -> Config:
    """A configuration that an earlier run saved."""
    try:
        config = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except FileNotFoundError:
        raise Refused(f"{path.parent}: this is no run folder (no config.yaml); give the folder of a run") from None
    except Exception as problem:
        raise Refused(f"{path}: cannot be read ({str(problem).splitlines()[0]}); the run folder is damaged") from None
    wanted = _compose([])
    missing = [k for k in wanted if not isinstance(config, dict) or k not in config]
    if missing or not isinstance(config, dict):
        raise Refused(f"{path}: {missing[0]!r} is missing; the run folder is damaged, or of another version")
    for group in GROUPS:
        if not isinstance(config[group], dict):
            raise Refused(f"{path}: {group} is not a group of settings; the run folder is damaged")
    return {str(k): v for k, v in config.items()}


def _parse(text: str) -> Override:
    """One override; a value with special characters needs no quotes of its own where it can only be a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise Refused(f"{text!r}: a setting is written name=value, such as rounds=10")
    parser = OverridesParser.create()
    try:
        return parser.parse_override(text)
    except HydraException:
        pass
    try:
        if value[:1] not in tuple("[{'\""):
            return parser.parse_override(f"{name}={quoted(value)}")
    except HydraException:
        pass
    raise Refused(f"{name}: {value!r} cannot be read as a value; check brackets and quotes")


def quoted(text: str) -> str:
    """A text as Hydra reads it back unchanged.

    >>> print(quoted("it's"))
    'it\\'s'
    """
    body = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{body}'"


def _choice(override: Override) -> list[str]:
    """A group's choice; import paths and data files are choices too (``model=my.nets:Net``, ``data=x.csv``)."""
    group, value = override.key_or_group, override.value()
    if not isinstance(value, str):
        value = str(value)
    if group in ("method", "model") and ":" in value:
        return [f"{group}=custom", f"{group}.build={quoted(value)}"]
    if group == "data" and value.endswith((".csv", ".npz")):
        return [f"data={value[-3:]}", f"data.path={quoted(value)}"]
    if value not in options(group):
        raise Refused(f"{group}: {value!r} is unknown; {suggest(value, options(group))}")
    return [f"{group}={value}"]


def _place(override: Override, base: Config) -> str:
    """The override under its full key: aliases resolved, and ``method.`` in front where the method owns it."""
    text = override.input_line or ""
    if override.is_delete() or override.package is not None:
        raise Refused(f"{text}: only name=value is understood here")
    path = _full_key(override.key_or_group, base)
    given, held = override.value(), _get(base, path)
    _check_keys(override.key_or_group, given, held)
    value = text.partition("=")[2]
    if isinstance(given, float) and not math.isfinite(given) and isinstance(held, str):
        value = quoted(value)  # a word such as attack.kind=inf, which Hydra takes for a number
    return f"{'' if _has(base, path) else '++'}{path}={value}"


def _check_keys(name: str, given: Any, held: Any) -> None:
    """Refuse keys of a mapping that the group of settings it is laid over does not have."""
    if not isinstance(given, dict) or not isinstance(held, dict) or not held:
        return
    for key, value in given.items():
        if key not in held:
            raise Refused(f"{name}.{key}: there is no such setting; {suggest(key, map(str, held))}")
        _check_keys(f"{name}.{key}", value, held[key])


def _full_key(key: str, base: Config) -> str:
    path = ALIASES.get(key, key)
    if not _has(base, path) and _has(base["method"], path):
        path = f"method.{path}"
    free = path.startswith(("method.", "model.")) and base[path.split(".")[0]].get("open", False)
    if not _has(base, path) and not free:
        owner, _, last = path.rpartition(".")
        inside = {**base["method"], **base}
        if owner:
            inside = _get(base, owner) if _has(base, owner) else _get(base["method"], owner)
        if isinstance(inside, dict):
            known = [k for k in inside if k not in ("build", "source", "open")]
            where = f"{owner}.{last}" if owner else last
            raise Refused(f"{where}: there is no such setting; {suggest(last, known)}")
        raise Refused(f"{path}: there is no such setting; {suggest(path.split('.')[0], base)}")
    return path


def _put(config: Config, path: str, value: Any) -> None:
    owner, _, last = path.rpartition(".")
    node = _get(config, owner) if owner else config
    node[last] = value


def _plain(name: str, value: Any) -> Any:
    """The value as plain data, so that it can be saved with the run."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(name, v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, v) for v in value]
    raise Refused(f"{name}: a {type(value).__name__} cannot be a setting; give a number, a text, a list or a mapping")


_MISSING = object()


def _get(config: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(config, dict) or part not in config:
            return _MISSING
        config = config[part]
    return config


def _has(config: Any, path: str) -> bool:
    return _get(config, path) is not _MISSING


def _compose(overrides: list[str]) -> Config:
    try:
        with initialize_config_module("fedveil.conf", version_base="1.3"):
            config = OmegaConf.to_container(compose("config", overrides), resolve=True)
    except (HydraException, OmegaConfBaseException) as problem:
        raise Refused(f"settings: {str(problem).splitlines()[0]}") from None
    assert isinstance(config, dict)
    return {str(k): v for k, v in config.items()}


def catalogue(group: str) -> dict[str, str]:
    """What a group offers, with the first comment line of each file as its description."""
    folder = resources.files("fedveil.conf") / group
    first = {name: (folder / f"{name}.yaml").read_text().splitlines()[0] for name in options(group)}
    return {name: line.removeprefix("#").strip() if line.startswith("#") else "" for name, line in first.items()}

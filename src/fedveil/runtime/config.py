"""Hydra overrides to resolved configurations, with errors in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
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

ALIASES = {"global_lr": "server_lr"}


def options(group: str) -> list[str]:
    """Names of what a group offers, such as the methods.

    >>> "scaffold" in options("method")
    True
    """
    folder = resources.files("fedveil.conf") / group
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml") and not f.name.startswith("_"))


def resolve(overrides: Sequence[str]) -> Config:
    """The whole configuration of one run, as plain data, with every interpolation filled in."""
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
    config["overrides"] = list(overrides)
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
    if not isinstance(config, dict) or "method" not in config:
        raise Refused(f"{path}: this is not the configuration of a run; give the folder of a run")
    return {str(k): v for k, v in config.items()}


def _parse(text: str) -> Override:
    if "=" not in text:
        raise Refused(f"{text!r}: a setting is written name=value, such as rounds=10")
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException:
        name, _, value = text.partition("=")
        raise Refused(
            f"{name}: {value!r} cannot be read as a value; put it in quotes if it has special characters, "
            f"as in {name}=\\'{value}\\'"
        ) from None


def _choice(override: Override) -> list[str]:
    """A group's choice; import paths and data files are choices too (``model=my.nets:Net``, ``data=x.csv``)."""
    group, value = override.key_or_group, override.value()
    if not isinstance(value, str):
        value = str(value)
    if group in ("method", "model") and ":" in value:
        return [f"{group}=custom", f"{group}.build='{value}'"]
    if group == "data" and value.endswith((".csv", ".npz")):
        return [f"data={value[-3:]}", f"data.path='{value}'"]
    if value not in options(group):
        raise Refused(f"{group}: {value!r} is unknown; {suggest(value, options(group))}")
    return [f"{group}={value}"]


def _place(override: Override, base: Config) -> str:
    """The override under its full key: aliases resolved, and ``method.`` in front where the method owns it."""
    text = override.input_line or ""
    key = override.key_or_group
    path = ALIASES.get(key, key)
    if override.is_delete() or override.package is not None:
        raise Refused(f"{text}: only name=value is understood here")
    if not _has(base, path) and _has(base["method"], path):
        path = f"method.{path}"
    free = path.startswith(("method.", "model.")) and base[path.split(".")[0]].get("open", False)
    if not _has(base, path) and not free:
        owner, _, last = path.rpartition(".")
        inside = _get(base, owner) if owner else {**base["method"], **base}
        if isinstance(inside, dict):
            known = [k for k in inside if k not in ("build", "source", "open")]
            where = f"{owner}.{last}" if owner else last
            raise Refused(f"{where}: there is no such setting; {suggest(last, known)}")
        raise Refused(f"{path}: there is no such setting; {suggest(path.split('.')[0], base)}")
    value = text.partition("=")[2]
    return f"{'++' if free else ''}{path}={value}"


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

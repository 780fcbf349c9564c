"""FedVeil from Python: run, resume, load and evaluate in one call each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import nn

from fedveil.core.errors import Refused
from fedveil.core.federation import Federation
from fedveil.core.flat import bind_parameters, write_buffers
from fedveil.core.method import Method
from fedveil.local.objective import Loss
from fedveil.privacy.statement import Statement
from fedveil.report.html import write_report
from fedveil.runtime.config import Config, resolve
from fedveil.runtime.config import load as load_config
from fedveil.runtime.evaluate import score
from fedveil.runtime.folder import Folder, read_json
from fedveil.runtime.inline import Listener, train
from fedveil.runtime.prepare import OWN, Training, build_federation, build_objective, prepare
from fedveil.runtime.result import Result
from fedveil.runtime.settings import Settings


def run(
    *overrides: str,
    method: str | Mapping[str, Any] | Method | None = None,
    model: str | Mapping[str, Any] | nn.Module | None = None,
    data: str | Mapping[str, Any] | Federation | None = None,
    loss: str | Loss | None = None,
    out: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    **settings: Any,
) -> Result:
    """Train, and write a run folder with a report; every setting of the command line works here too.

    ``method``, ``model`` and ``data`` are names, mappings (``data={"name": "digits", "alpha": 0.1}``) or your own
    objects; other settings are keywords, nested ones as mappings (``stop={"patience": 5}``), or texts as on the
    command line (``"data.alpha=0.1"``).
    """
    texts: list[str] = []
    own: dict[str, Any] = {}
    for name, value in (("method", method), ("model", model), ("data", data), ("loss", loss)):
        if isinstance(value, str):
            texts.append(f"{name}={value}")
        elif isinstance(value, Mapping):
            texts += [f"{name}={value['name']}"] if "name" in value else []
            texts += _as_overrides(name, {k: v for k, v in value.items() if k != "name"})
        elif value is not None:
            own[name] = value
    for name, value in settings.items():
        texts += _as_overrides(name, value)
    return start(resolve([*texts, *overrides]), out=out, listeners=listeners, **own)


def start(config: Config, *, out: str | Path | None = None, listeners: Sequence[Listener] = (), **own: Any) -> Result:
    """Run a resolved configuration, with parts of your own (method, model, data, loss) in place of those it names."""
    for name, value in own.items():
        config[name] = OWN if name == "loss" else {OWN: type(value).__name__}
    training = prepare(config, **own)
    label = f"{training.method.name}-{training.federation.name}-s{training.settings.seed}"
    folder = Folder.create(out if out is not None else config.get("out"), label)
    folder.save_config(config)
    return _carry_out(training, folder, resume=False, listeners=listeners)


def resume(folder: str | Path, *, listeners: Sequence[Listener] = (), **own: Any) -> Result:
    """Go on with an interrupted run; parts that were handed in from Python must be handed in again."""
    place = Folder.existing(folder)
    training = prepare(load_config(place.config), **own)
    return _carry_out(training, place, resume=True, listeners=listeners)


def load(folder: str | Path, **own: Any) -> Result:
    """A finished run with its model ready to predict; hand in ``model`` (and ``loss``) where they were your own."""
    place = Folder.existing(folder)
    if not place.summary.is_file():
        raise Refused(f"{folder}: the run has not finished; go on with `fedveil resume {folder}`")
    config, summary = load_config(place.config), read_json(place.summary)
    shape, classes = tuple(summary["input_shape"]), summary["classes"]
    objective = build_objective(config, Settings.read(config), shape, classes, **own)
    try:
        tensors = load_tensors(place.model.read_bytes())
        bind_parameters(objective.module, objective.layout, objective.layout.flatten(tensors))
        write_buffers(objective.module, objective.buffers, objective.buffers.flatten(tensors))
    except (OSError, SafetensorError, ValueError) as problem:
        raise Refused(f"{place.model}: cannot be used ({problem}); the run folder is damaged") from None
    statement = Statement.from_json(read_json(place.statement))
    return Result(place, summary, place.read_events(), statement, objective, classes)


def evaluate(
    folder: str | Path, overrides: Sequence[str] = (), *, data: Federation | None = None, **own: Any
) -> dict[str, Any]:
    """Accuracy and loss of a finished model on its own test set, or on the test set of other data.

    Overrides are laid over the run's own configuration where they concern the same data set, so that
    ``data.root=...`` alone points to a new place; ``data=other`` starts from that data set's defaults.
    """
    finished = load(folder, **own)
    config = load_config(finished.folder.config)
    if overrides:
        config = resolve([f"seed={config['seed']}", *_data_overrides(config), *overrides])
    federation = data if data is not None else build_federation(config)
    if federation.input_shape != tuple(finished.summary["input_shape"]) or federation.classes != finished.classes:
        raise Refused(
            f"data: {federation.name} has inputs {federation.input_shape} and {federation.classes} classes, but the "
            f"model was trained on {tuple(finished.summary['input_shape'])} and {finished.classes}; give data alike"
        )
    test = federation.test
    scores = score(finished.outputs(test.x), test.y, finished.objective.loss)
    return {"folder": str(folder), "data": federation.name, "examples": len(test), **scores}


def _carry_out(training: Training, folder: Folder, *, resume: bool, listeners: Sequence[Listener]) -> Result:
    progress, summary = train(training, folder, resume=resume, listeners=listeners)
    write_report(folder.path)
    objective = training.objective
    bind_parameters(objective.module, objective.layout, progress.server["w"])
    statement = Statement.from_json(read_json(folder.statement))
    return Result(folder, summary, folder.read_events(), statement, objective, training.federation.classes)


def _as_overrides(name: str, value: Any) -> list[str]:
    """A Python value in the words of the command line.

    >>> _as_overrides("stop", {"patience": 5})
    ['stop.patience=5']
    """
    if isinstance(value, Mapping):
        return [text for key, inner in value.items() for text in _as_overrides(f"{name}.{key}", inner)]
    if value is None:
        return [f"{name}=null"]
    if isinstance(value, bool):
        return [f"{name}={str(value).lower()}"]
    if isinstance(value, str | Path):
        quoted = str(value).replace("\\", "\\\\").replace("'", "\\'")
        return [f"{name}='{quoted}'"]
    if isinstance(value, list | tuple):
        return [f"{name}=[{','.join(_as_overrides('', v)[0][1:] for v in value)}]"]
    return [f"{name}={value}"]


def _data_overrides(config: Config) -> list[str]:
    return [t for t in config.get("overrides", []) if t.split("=")[0] == "data" or t.startswith("data.")]

"""FedVeil from Python: run, resume, load and evaluate in one call each."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import nn

from fedveil.core.errors import Refused
from fedveil.core.federation import Federation
from fedveil.core.method import Method
from fedveil.local.objective import Loss
from fedveil.privacy.statement import Statement
from fedveil.report.audit import write_audit_page
from fedveil.report.html import write_report
from fedveil.report.loggers import loggers
from fedveil.runtime import audit as audits
from fedveil.runtime.calibrate import load_noise, save_noise
from fedveil.runtime.choice import carry_out, ready
from fedveil.runtime.config import Config, resolve
from fedveil.runtime.config import load as load_config
from fedveil.runtime.evaluate import score
from fedveil.runtime.folder import Folder, read_json, write_json
from fedveil.runtime.inline import Listener, train
from fedveil.runtime.model import OWN, Task, build_objective, first_line
from fedveil.runtime.prepare import Training, build_federation, prepare
from fedveil.runtime.result import Result
from fedveil.runtime.settings import GROUPS, Settings


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
    values: list[tuple[str, Any]] = []
    own: dict[str, Any] = {}
    for name, value in (("method", method), ("model", model), ("data", data), ("loss", loss)):
        if isinstance(value, str):
            texts.append(f"{name}={value}")
        elif isinstance(value, Mapping):
            texts += [f"{name}={value['name']}"] if "name" in value else []
            values += _flat(name, {k: v for k, v in value.items() if k != "name"})
        elif value is not None:
            own[name] = value
    for name, value in settings.items():
        group = name in GROUPS
        if group and isinstance(value, str):
            texts.append(f"{name}={value}")
        elif group and isinstance(value, Mapping) and "name" in value:
            texts.append(f"{name}={value['name']}")
            values += _flat(name, {k: v for k, v in value.items() if k != "name"})
        else:
            values += _flat(name, value)
    return start(resolve([*texts, *overrides], values), out=out, listeners=listeners, **own)


def start(config: Config, *, out: str | Path | None = None, listeners: Sequence[Listener] = (), **own: Any) -> Result:
    """Run a resolved configuration, with parts of your own (method, model, data, loss) in place of those it names."""
    if own:
        config["overrides"] = None  # no command line says all of it
    for name, value in own.items():
        config[name] = OWN if name == "loss" else {OWN: type(value).__name__}
    training = ready(prepare(config, **own))
    config["threads"] = training.threads  # sums depend on it, so a resumed run must use as many
    followers = [*listeners, *loggers(training.settings.logger)]
    label = f"{training.method.name}-{training.federation.name}-s{training.settings.seed}"
    folder = Folder.create(out if out is not None else config.get("out"), label)
    folder.save_config(config)
    if training.sigma is not None:
        save_noise(folder, training.sigma)
    return _carry_out(training, folder, resume=False, listeners=followers)


def resume(folder: str | Path, *, listeners: Sequence[Listener] = (), **own: Any) -> Result:
    """Go on with an interrupted run; parts that were handed in from Python must be handed in again.

    With more ``rounds`` or a larger ``privacy.epsilon`` in its config.yaml a finished run goes on, under the noise that
    it began with, as far as the budget reaches.
    """
    place = Folder.existing(folder)
    training = ready(prepare(load_config(place.config), calibrated=load_noise(place), **own))
    followers = [*listeners, *loggers(training.settings.logger)]
    return _carry_out(training, place, resume=True, listeners=followers)


def load(folder: str | Path, **own: Any) -> Result:
    """A finished run with its model ready to predict; hand in ``model`` (and ``loss``) where they were your own."""
    place = Folder.existing(folder)
    if not place.summary.is_file():
        raise Refused(f"{folder}: the run has not finished; go on with `fedveil resume {folder}`")
    config, summary = load_config(place.config), read_json(place.summary, "input_shape", "classes", "tokens")
    objective = build_objective(config, Settings.read(config), Task.from_json(summary), **own)
    try:
        objective.module.load_state_dict(load_tensors(place.model.read_bytes()))
    except (OSError, SafetensorError, RuntimeError) as problem:
        raise Refused(
            f"{place.model}: does not fit the model ({first_line(problem)}); the run folder is damaged"
        ) from None
    statement = Statement.from_json(read_json(place.statement, "rows", "notes"))
    return Result(place, summary, place.read_events(), statement, objective, summary["classes"])


def evaluate(
    folder: str | Path, overrides: Sequence[str] = (), *, data: Federation | None = None, **own: Any
) -> dict[str, Any]:
    """Accuracy and loss of a finished model on its own test set, or on the test set of other data.

    Overrides of single data settings, such as ``data.path=...``, are laid over those of the run; ``data=other``
    starts from that data set's defaults. Only ``data``, ``data.*``, ``population`` and ``seed`` mean anything here.
    """
    finished = load(folder, **own)
    config = load_config(finished.folder.config)
    for text in overrides:
        name = text.split("=")[0]
        if name not in ("data", "population", "seed") and not name.startswith("data."):
            raise Refused(f"{name}: has no effect on an evaluation; only data, data.*, population and seed do")
    if overrides:
        kept: list[tuple[str, Any]] = [("seed", config["seed"])]
        texts = list(overrides)
        if not any(text.startswith("data=") for text in overrides):
            node = dict(config["data"])
            texts.insert(0, f"data={node.pop('source')}")
            kept += [("population", config["population"]), *_flat("data", node)]
        config = resolve(texts, kept)
    federation = data if data is not None else build_federation(config)
    _check_alike(finished, federation)
    test = federation.test
    scores = score(finished.outputs(test.x), test.y, finished.objective.loss)
    return {"folder": str(folder), "data": federation.name, "examples": len(test), **scores}


def audit(
    folder: str | Path,
    *,
    guesses: int | None = None,
    power: bool = False,
    listeners: Sequence[Listener] = (),
    **own: Any,
) -> audits.Audited:
    """Try to refute the privacy claim of a run that was trained with ``audit.canaries``; writes ``audit.html`` there.

    ``guesses`` is fixed beforehand, by default from the claim and the number of canaries. ``power`` trains the same run
    once more without its noise, in a folder that is thrown away: an audit that sees nothing wrong with that is blind.
    It is left out where the claim is above the cap, so that no audit of this size could refute it.
    """
    found = audits.audit(folder, guesses)
    if power and found.claim < found.cap:
        found = audits.with_power(found, _without_noise(Folder.existing(folder), found.guesses, listeners, own))
    place = Folder.existing(folder)
    write_json(place.path / "audit.json", found.to_json())
    write_audit_page(place.path / "audit.html", found)
    write_report(place.path)
    return found


def _without_noise(place: Folder, guesses: int, listeners: Sequence[Listener], own: Mapping[str, Any]) -> float:
    """The lower bound that the same audit finds for the same run without noise."""
    config = load_config(place.config)
    config["audit"] = {**config["audit"], "noise": 0.0}
    config["evaluate"] = config["checkpoint"] = {"every": config["rounds"]}
    training = prepare(config, calibrated=load_noise(place), **own)
    with tempfile.TemporaryDirectory(prefix="fedveil-audit-") as folder:
        quiet = Folder.create(Path(folder) / "run", "power")
        quiet.save_config(config)
        train(training, quiet, listeners=listeners)
        return audits.audit(quiet.path, guesses).bound


def _check_alike(finished: Result, federation: Federation) -> None:
    """Refuse data whose inputs or classes mean something else than those the model was trained on."""
    known, found = Task.from_json(finished.summary), Task.of(federation)
    if known != found:
        raise Refused(
            f"data: {federation.name} has inputs {found.input_shape} and {found.classes} classes, but the "
            f"model was trained on {known.input_shape} and {known.classes}; give data alike"
        )
    facts = read_json(finished.folder.clients, "facts")["facts"]
    for what in ("labels", "columns"):
        before, now = facts.get(what), federation.facts().get(what)
        if before is not None and now is not None and list(before) != list(now):
            raise Refused(
                f"data: the {what} of {federation.name} are {', '.join(now)}, but the model was trained on "
                f"{', '.join(before)}; give data with the same {what}"
            )


def _carry_out(training: Training, folder: Folder, *, resume: bool, listeners: Sequence[Listener]) -> Result:
    progress, summary = carry_out(training, folder, resume=resume, listeners=listeners)
    write_report(folder.path)
    training.engine.bind(progress.server)
    statement = Statement.from_json(read_json(folder.statement, "rows", "notes"))
    return Result(folder, summary, folder.read_events(), statement, training.objective, training.federation.classes)


def _flat(name: str, value: Any) -> list[tuple[str, Any]]:
    """Settings by their full names; a mapping one level deep names the settings of a group.

    >>> _flat("data", {"alpha": 0.1, "bounds": {"age": [0, 120]}})
    [('data.alpha', 0.1), ('data.bounds', {'age': [0, 120]})]
    """
    if isinstance(value, Mapping) and "." not in name:
        return [pair for key, inner in value.items() for pair in _flat(f"{name}.{key}", inner)]
    return [(name, value)]

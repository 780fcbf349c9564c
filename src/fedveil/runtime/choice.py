"""Which runtime carries out a run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from fedveil.core.errors import Refused, one_of
from fedveil.runtime.checkpoint import Progress
from fedveil.runtime.folder import Folder
from fedveil.runtime.inline import Listener, Record, train
from fedveil.runtime.model import OWN
from fedveil.runtime.prepare import Training


def ready(training: Training) -> Training:
    """The same, or a refusal where its runtime is not there or cannot carry it out; nothing is started yet."""
    name = training.config["runtime"].get("name", "inline")
    one_of("runtime", name, ("inline", "flower"))
    if name == "inline":
        return training
    if find_spec("flwr") is None or find_spec("ray") is None:
        raise Refused("runtime: flower is not installed; run pip install 'fedveil[flower]', or set runtime=inline")
    for part in ("method", "model", "data", "loss"):
        found = training.config[part]
        if found == OWN or (isinstance(found, dict) and OWN in found):
            raise Refused(
                f"{part}: nodes build their parts themselves, and cannot get one from this Python session; give a name "
                "or an import path, or set runtime=inline"
            )
    from fedveil.runtime.flower.simulation import check

    check(training)
    return training


def carry_out(
    training: Training, folder: Folder, *, resume: bool = False, listeners: Sequence[Listener] = ()
) -> tuple[Progress, Record]:
    """Train in this process, or over Flower."""
    if training.config["runtime"].get("name", "inline") == "inline":
        return train(training, folder, resume=resume, listeners=listeners)
    from fedveil.runtime.flower.simulation import simulate

    return simulate(training, folder, resume=resume, listeners=listeners)

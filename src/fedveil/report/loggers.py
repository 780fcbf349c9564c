"""``logger=tensorboard`` and ``logger=mlflow``: every number of every round where other tools look for it.

A logger is a listener: it hears of a round once it is saved, so its trouble never costs a run more than its log.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fedveil.core.errors import Refused
from fedveil.report.read import number
from fedveil.runtime.folder import Folder
from fedveil.runtime.inline import Listener, Record
from fedveil.runtime.prepare import Training

PAUSE = 1.0
"""Seconds between two messages to MLflow; what came in between goes out together."""
LONGEST = 500
"""Characters of a setting that MLflow keeps."""
ABSENT = (ImportError, AttributeError)


def loggers(names: str | Sequence[str] | None) -> list[Listener]:
    """The loggers of a run by their names, or a refusal in words where one is not installed."""
    wanted = [names] if isinstance(names, str) else list(names or ())
    return [LOGGERS[name]() for name in dict.fromkeys(wanted)]


def scalars(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a record by its place in it.

    >>> dict(scalars({"round": 3, "loss": 0.5, "train_loss": {"mean": 0.7, "min": None}, "clients": [1, 2]}))
    {'loss': 0.5, 'train_loss/mean': 0.7}
    """
    for key, value in record.items():
        place = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from scalars(value, f"{place}/")
        elif place != "round" and (found := number(value)) is not None:
            yield place, found


def settings(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every setting of a run by its full name."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from settings(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", str(value)[:LONGEST]


class TensorBoard:
    """Writes to ``tensorboard/`` in the run folder: ``tensorboard --logdir runs`` shows all runs."""

    def __init__(self) -> None:
        try:
            self.module = import_module("torch.utils.tensorboard")
        except ABSENT:
            raise _missing("tensorboard") from None
        self.writer: Any = None

    def opened(self, training: Training, folder: Folder, done: int, notes: Sequence[str]) -> None:
        """Open the log; a resumed run replaces what it had written for rounds that run again."""
        purge = done + 1 if done else None
        self.writer = self.module.SummaryWriter(str(folder.path / "tensorboard"), purge_step=purge)

    def round(self, record: Record) -> None:
        """Write one round."""
        for name, value in scalars(record):
            self._write("add_scalar", name, value, record["round"])

    def closed(self, summary: Record | None) -> None:
        """Write what came of it, and close the log."""
        if summary is not None:
            self._write("add_text", "statement", str(summary["statement"]), summary["rounds"])
        self._write("close")

    def _write(self, what: str, *values: Any) -> None:
        """Write it; at the first failure say so and write no more."""
        if self.writer is None:
            return
        try:
            getattr(self.writer, what)(*values)
        except Exception as problem:
            self.writer = None
            warnings.warn(f"tensorboard stopped taking the log of this run: {_line(problem)}", stacklevel=2)


class MLflow:
    """Sends to the tracking store that MLFLOW_TRACKING_URI names, or to MLflow's own default in the working folder.

    A resumed run goes on in the MLflow run that it began. MLflow's reports to its makers are switched off.
    """

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            self.client = import_module("mlflow.tracking").MlflowClient()
            self.metric = import_module("mlflow.entities").Metric
            self.parameter = import_module("mlflow.entities").Param
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedveil")
            found = self.client.get_experiment_by_name(name)
            self.experiment = self.client.create_experiment(name) if found is None else found.experiment_id
        except ABSENT:
            raise _missing("mlflow") from None
        except Exception as problem:
            raise Refused(
                f"logger: mlflow's tracking store does not answer ({_line(problem)}); check MLFLOW_TRACKING_URI"
            ) from None
        self.waiting: list[Any] = []
        self.sent = 0.0
        self.run: str | None = None

    def opened(self, training: Training, folder: Folder, done: int, notes: Sequence[str]) -> None:
        """Begin a run with its settings, or go on with the one that this folder began."""
        self.folder, mark = folder, folder.path / "mlflow.run"

        def begin() -> None:
            if done and mark.is_file():
                self.run = mark.read_text().strip()
                self.client.update_run(self.run, status="RUNNING")
                return
            self.run = self.client.create_run(self.experiment, run_name=folder.path.name).info.run_id
            mark.write_text(f"{self.run}\n")
            pairs = list(settings(_config(folder.config)))
            for i in range(0, len(pairs), 100):
                self.client.log_batch(self.run, params=[self.parameter(*pair) for pair in pairs[i : i + 100]])

        self._try(begin)

    def round(self, record: Record) -> None:
        """Keep one round, and send what waits from time to time."""
        now = int(time.time() * 1000)
        self.waiting += [self.metric(name, value, now, record["round"]) for name, value in scalars(record)]
        if time.monotonic() - self.sent > PAUSE:
            self._send()

    def closed(self, summary: Record | None) -> None:
        """Send the rest, the statement and how it ended."""
        self._send()
        if summary is not None:
            ending = [(f"final/{name}", value) for name, value in scalars(summary)]
            self.waiting += [
                self.metric(name, value, int(time.time() * 1000), summary["rounds"]) for name, value in ending
            ]
            self._send()
            text = self.folder.statement.with_suffix(".md").read_text("utf-8")
            self._try(lambda: self.client.log_text(self.run, text, "statement.md"))
        self._try(lambda: self.client.set_terminated(self.run, "FINISHED" if summary is not None else "KILLED"))

    def _send(self) -> None:
        for i in range(0, len(self.waiting), 1000):
            some = self.waiting[i : i + 1000]
            self._try(lambda some=some: self.client.log_batch(self.run, metrics=some))
        self.waiting, self.sent = [], time.monotonic()

    def _try(self, work: Any) -> None:
        """Do it; at the first failure say so and send no more, since training matters more than its log."""
        if self.client is None:
            return
        try:
            work()
        except Exception as problem:
            self.client = None
            warnings.warn(f"mlflow stopped taking the log of this run: {_line(problem)}", stacklevel=2)


LOGGERS: dict[str, Any] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def _config(path: Path) -> dict[str, Any]:
    from omegaconf import OmegaConf

    found = OmegaConf.to_container(OmegaConf.load(path))
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def _missing(name: str) -> Refused:
    return Refused(
        f"logger: {name} is not installed; install it with `pip install 'fedveil[{name}]'`, or leave logger out"
    )


def _line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]

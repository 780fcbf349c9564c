"""A run over Flower's simulation: Ray is started with what the machine has, and everything that was started ends.

Ray hands Flower's messages and contexts to its workers by pickle, in one trust domain on machines of one owner; what
FedVeil puts into them is typed bytes all the same, as in a deployment.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from fedveil.core.arguments import fit
from fedveil.core.errors import Refused, not_negative, positive
from fedveil.runtime.checkpoint import Progress
from fedveil.runtime.flower.processes import nothing_left
from fedveil.runtime.folder import Folder
from fedveil.runtime.inline import Listener, Record, train
from fedveil.runtime.interrupt import SIGNALS
from fedveil.runtime.prepare import Training

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # workers are the run, and no background of it
}
PATIENCE = 10.0
"""Seconds that threads have to end by themselves."""


@dataclass(frozen=True)
class Resources:
    """The settings of ``runtime=flower``."""

    workers: int | None = None
    cpus: float = 1
    gpus: float = 0
    ray_address: str | None = None
    timeout: float | None = None

    @classmethod
    def read(cls, training: Training) -> Resources:
        """Those of a run."""
        node = {k: v for k, v in training.config["runtime"].items() if k not in ("name", "id")}
        hints: dict[str, Any] = {
            "workers": int | None,
            "cpus": float,
            "gpus": float,
            "ray_address": str | None,
            "timeout": float | None,
        }
        found = cls(**{name: fit(f"runtime.{name}", node[name], hint) for name, hint in hints.items() if name in node})
        positive(**{"runtime.cpus": found.cpus})
        not_negative(**{"runtime.gpus": found.gpus})
        for name in ("workers", "timeout"):
            if getattr(found, name) is not None:
                positive(**{f"runtime.{name}": getattr(found, name)})
        if training.settings.torch_device.type == "cuda" and not found.gpus:
            raise Refused(
                "runtime.gpus: device=cuda needs a share of a GPU for each worker; give runtime.gpus=0.25 or so"
            )
        return found

    @property
    def each(self) -> dict[str, float]:
        """What a worker gets."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus}

    def ray(self, place: str | None) -> dict[str, Any]:
        """How Ray is started, with its files in ``place``, or joined."""
        paths = os.pathsep.join([*filter(None, sys.path), os.environ.get("PYTHONPATH", "")])
        init: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "runtime_env": {"env_vars": {**QUIET, "PYTHONPATH": paths}},
        }
        if self.ray_address is not None:
            init["address"] = self.ray_address
        else:
            side_by_side = self.workers or max(1, int((os.cpu_count() or 1) // self.cpus))
            init |= {
                "num_cpus": max(1, round(side_by_side * self.cpus)),
                "num_gpus": torch.cuda.device_count() if self.gpus else 0,
                "include_dashboard": False,
                "_temp_dir": place,
                "object_store_memory": 256 * 2**20,
            }
        return init


def simulate(
    training: Training, folder: Folder, *, resume: bool = False, listeners: Sequence[Listener] = ()
) -> tuple[Progress, Record]:
    """Train with every client as a virtual SuperNode."""
    resources = Resources.read(training)
    with _environment():
        from fedveil.runtime.flower.client_app import app
        from fedveil.runtime.flower.cohort import NodeCohort, roles
        from fedveil.runtime.flower.nodes import Nodes
        from fedveil.runtime.flower.server_app import serving

        stop, population, parties = threading.Event(), training.federation.population, roles(training)
        outcome: list[tuple[Progress, Record] | BaseException] = []

        def main(grid: Any, context: Any) -> None:
            try:
                nodes = Nodes(grid, timeout=resources.timeout, stop=stop, extra=parties, population=population)
                cohort = NodeCohort(training, nodes, folder.nodes)
                nodes.wait_for(population, frozenset(parties))
                outcome.append(train(training, folder, resume=resume, listeners=listeners, clients=cohort))
            except BaseException as problem:
                outcome.append(problem)

        _run(serving(main), app, population + len(parties), resources, stop)
        if not outcome:
            raise Refused("runtime: the simulation ended before training began; see the messages above")
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]


def _run(server: Any, client: Any, nodes: int, resources: Resources, stop: threading.Event) -> None:
    from flwr.simulation import run_simulation

    place = None if resources.ray_address else tempfile.mkdtemp(prefix="fv")
    before = threading.enumerate()
    with nothing_left() if place is not None else nullcontext():  # a cluster's processes are not ours
        try:
            _start_ray(resources, place)
            backend: Any = {"client_resources": resources.each}
            with _politely(stop):
                run_simulation(server_app=server, client_app=client, num_supernodes=nodes, backend_config=backend)
        except (RuntimeError, ValueError) as problem:
            if isinstance(problem, Refused):
                raise
            if not stop.is_set():
                raise Refused(f"runtime: Flower's simulation could not run ({_root(problem)})") from problem
        finally:
            stop.set()
            _shut_down()
            for thread in threading.enumerate():
                if thread not in before and not thread.daemon:
                    thread.join(PATIENCE)
    if place is not None:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _politely(stop: threading.Event) -> Iterator[None]:
    """An interrupt ends the server's loop, and that ends the simulation; a second one does not wait for it.

    Flower's main thread must not be torn out of its loop: its workers would wait for actors that are gone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = {number: signal.getsignal(number) for number in SIGNALS}

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


def _start_ray(resources: Resources, place: str | None) -> None:
    """Start Ray, or join a cluster; signals are ours again afterwards, and a run ends as politely as without Ray."""
    import ray

    ours = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        if resources.ray_address is not None:  # Ray would try for minutes
            host, _, port = resources.ray_address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=5).close()
        ray.init(**resources.ray(place))
    except (OSError, RuntimeError, ValueError) as problem:
        where = resources.ray_address or "this machine"
        raise Refused(f"runtime.ray_address: no Ray on {where} ({_root(problem)}); look after it") from problem
    if threading.current_thread() is threading.main_thread():
        for number, handler in ours.items():
            signal.signal(number, handler)


def _shut_down() -> None:
    import ray

    if ray.is_initialized():
        ray.shutdown()


def _root(problem: BaseException) -> str:
    while problem.__cause__ is not None:
        problem = problem.__cause__
    return str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__


def check(training: Training) -> None:
    """Refuse what nodes cannot do, before anything is started."""
    Resources.read(training)
    with _environment():
        from fedveil.runtime.flower import cohort

        cohort.check(training)


@contextmanager
def _environment() -> Iterator[None]:
    """No telemetry, no installing, no chatter; afterwards the environment is as it was."""
    before = dict(os.environ)
    os.environ.update(QUIET)
    import ray

    if ray.is_initialized():
        raise Refused("runtime: this process runs Ray already, which would end with the run; call ray.shutdown() first")
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        os.environ.clear()
        os.environ.update(before)

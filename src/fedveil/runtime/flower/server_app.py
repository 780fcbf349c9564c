"""The ServerApp: the round loop with nodes in the place of clients (``fedveil.runtime.flower.server_app:app``).

Its run config names ``settings`` (a text file with one ``name=value`` a line, as ``fedveil run`` takes them),
``folder`` (the run folder; one that was begun is gone on with), ``clients`` (how many nodes take part), ``sites`` (the
names under which they are registered, in order, with commas between) and ``wait`` (seconds to wait for them). Relative
paths begin at the folder that the environment variable ``FEDVEIL_FEDERATION`` names, or else where the SuperLink was
started.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

import orjson
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedveil.core.errors import Refused
from fedveil.runtime.calibrate import load_noise, save_noise
from fedveil.runtime.config import load, resolve
from fedveil.runtime.flower.cohort import NodeCohort, roles
from fedveil.runtime.flower.nodes import Nodes
from fedveil.runtime.flower.sites import at_server
from fedveil.runtime.folder import Folder
from fedveil.runtime.inline import Listener, Record, train
from fedveil.runtime.prepare import Training, prepare
from fedveil.transport.duo.transport import Duo
from fedveil.transport.he import Encrypted

WAIT = 300.0
PATIENCE = 600.0
"""Seconds that a site has to answer, where ``runtime.timeout`` does not say."""
POLL = 1.0

app = ServerApp()


def serving(main: Callable[[Grid, Context], Any]) -> ServerApp:
    """A ServerApp that does this."""
    made = ServerApp()
    made.main()(main)
    return made


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out, or go on with, the run that the run config names."""
    deploy(grid, context.run_config, listeners=[Lines()])


def deploy(grid: Any, run_config: Any, listeners: Sequence[Listener] = ()) -> Folder:
    """Train over nodes that have their own data; returns the run folder, to which a report can be added."""
    place = _path(run_config.get("folder", "run"))
    begun = (place / "config.yaml").is_file()
    config = load(place / "config.yaml") if begun else configuration(_path(run_config.get("settings", "settings.txt")))
    known = {k: v for k, v in config["runtime"].items() if k != "name"}
    config["runtime"] = {"id": token_hex(8), **known, "name": "flower"}
    patience = config["runtime"].get("timeout") or PATIENCE
    count = int(run_config.get("clients") or config["population"] or 0)
    if count < 1:
        raise Refused(
            "clients: how many sites take part? give population=... in the settings, or clients=... in the app"
        )
    config["population"] = count
    names = tuple(str(run_config.get("sites", "")).split(",")) if run_config.get("sites") else ()
    nodes = Nodes(grid, timeout=float(patience), poll=POLL, settings=orjson.dumps(config), names=names)
    wait = float(run_config.get("wait", WAIT))
    nodes.wait_for(count, seconds=wait)
    present = [nodes.present[nodes.clients[k]] for k in sorted(nodes.clients)]
    if [one.client for one in present] != list(range(count)):
        raise Refused(f"clients: {count} sites are numbered 0 to {count - 1}, and {[p.client for p in present]} came")
    folder = Folder(place) if begun else Folder.create(place, "federation")
    training = prepare(config, data=at_server(config, present), calibrated=load_noise(folder))
    if training.method.private and training.settings.privacy.rng != "secure":
        raise Refused(
            "privacy.rng: seeded noise is known to everybody who knows the seed, such as the server; set "
            "privacy.rng=secure between real sites"
        )
    if isinstance(training.method.transport, Duo):
        raise Refused(
            "transport: two servers exchange some hundred messages a round, for each of which a SuperNode starts a "
            "process; use masks between real sites, and duo in a simulation or with runtime=inline"
        )
    nodes.wait_for(count, frozenset(roles(training)), seconds=wait)
    if isinstance(training.method.transport, Encrypted):
        raise Refused(
            "transport: he has its keys in one folder, which would give this server both shares of the secret key; use "
            "masks between real sites, and he in a simulation"
        )
    config["threads"] = training.threads
    if not begun:
        folder.save_config(config)
        if training.sigma is not None:
            save_noise(folder, training.sigma)
    train(training, folder, resume=begun, listeners=listeners, clients=NodeCohort(training, nodes))
    return folder


class Lines:
    """Progress in plain lines, for `flwr log`."""

    def opened(self, training: Training, folder: Folder, done: int, notes: Sequence[str]) -> None:
        """What is about to happen."""
        for line in (*training.opening, *notes, f"folder: {folder.path}"):
            print(line, flush=True)

    def round(self, record: Record) -> None:
        """One line a round."""
        words = [f"round {record['round']}"]
        words += [f"{name} {record[name]:.4f}" for name in ("accuracy", "loss") if record.get(name) is not None]
        words += [f"excluded {e['client']}: {e['why']}" for e in record.get("excluded", ())]
        words += [f"aborted: {record['aborted']}"] if record.get("aborted") else []
        print("  ".join(words), flush=True)

    def closed(self, summary: Record | None) -> None:
        """How it ended."""
        print("interrupted" if summary is None else f"{summary['status']}: {summary['statement']}", flush=True)


def _path(text: Any) -> Path:
    return Path(os.environ.get("FEDVEIL_FEDERATION", ".")) / Path(str(text)).expanduser()


def configuration(path: Path) -> dict[str, Any]:
    """What the settings in a file say; empty lines and those that begin with # are for people."""
    try:
        texts = [line.strip() for line in path.read_text().splitlines()]
    except OSError as problem:
        raise Refused(
            f"{path}: the settings of the run cannot be read ({problem.strerror}); write them there"
        ) from None
    return resolve(["runtime=flower", *(text for text in texts if text and not text.startswith("#"))])

"""``python -m fedveil.deploy.supernode``: Flower's SuperNode, which runs no app but those that its site has approved.

A SuperLink sends its SuperNodes the app that they run. Without a list of its own a site would run whatever program
the SuperLink's operator, or whoever takes that machine over, sends it. ``APPROVED`` names a file with one SHA-256 of
an app bundle per line; anything else is neither stored nor run, and the request for it is left unanswered. FedVeil's
app builds methods and models by the names that a run's settings give; it takes them from FedVeil, and from packages
that the site has named, alone.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedveil.core.errors import Refused
from fedveil.deploy.superlink import check_flower, offline, tied

APPROVED = "FEDVEIL_APPROVED_APPS"
PARTS = "FEDVEIL_PARTS"
"""Read where parts are built; named here once more, so that a SuperNode need not load what trains."""
GET_FAB = 4
"""Where a connection's function that fetches an app stands in what Flower 1.41 makes of it."""


def approved(path: Path) -> frozenset[str]:
    """The check sums in a file, one a line; what follows a check sum or # is for people."""
    try:
        lines = [line.split("#")[0].split() for line in path.read_text().splitlines()]
    except OSError as problem:
        raise Refused(f"{path}: cannot be read ({problem.strerror}); it lists the apps that this site runs") from None
    sums = [line[0].lower() for line in lines if line]
    for text in sums:
        if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
            raise Refused(f"{path}: {text!r} is no SHA-256 of an app; write 64 hexadecimal digits per line")
    return frozenset(sums)


def guarded(connect: Callable[..., Any], path: Path) -> Callable[..., Any]:
    """Flower's connection to the SuperLink, of which an app comes only when the list in this file names it."""
    from flwr.supercore import log
    from flwr.supercore.run import RunNotRunningException

    @contextmanager
    def connection(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with connect(*args, **kwargs) as parts:
            fetch = parts[GET_FAB]

            def get_fab(fab_hash: str, run_id: int) -> Any:
                fab = fetch(fab_hash, run_id)
                found = hashlib.sha256(fab.content).hexdigest()
                if found not in approved(path):
                    log(40, "App %s is not in %s: run %s is ignored", found, path, run_id)
                    raise RunNotRunningException
                return fab

            yield (*parts[:GET_FAB], get_fab, *parts[GET_FAB + 1 :])

    return connection


def main() -> None:
    """Start the SuperNode; options are those of ``flower-supernode``."""
    offline()
    check_flower()
    if "--insecure" in sys.argv or "--auth-supernode-private-key" not in sys.argv:
        raise Refused("supernode: TLS and the site's key are not optional here; use the start script as written")
    os.environ.setdefault(PARTS, "")
    place = os.environ.get(APPROVED)
    if place is None:
        raise Refused(f"supernode: {APPROVED} is not set; use the start script as written")
    approved(Path(place))
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    start_client_internal._init_connection = guarded(start_client_internal._init_connection, Path(place))
    tied(start_client_internal)
    flower_supernode()


if __name__ == "__main__":
    try:
        main()
    except Refused as refusal:
        sys.exit(f"fedveil: {refusal}")

"""A site's own budget: what its node may release of it in all runs together, whatever a server asks for.

``epsilon`` in the node's config is the most that anybody, the server included, may ever learn about one record of this
site (``delta`` beside it, 10⁻⁵ if it is not there). The node keeps a ledger of its own beside its memory, charges a
release before it is made, and answers no order that would exceed the budget, or that releases with no mechanism.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from flwr.app import Context

from fedveil.core.errors import Refused
from fedveil.core.parts import State
from fedveil.privacy.claims import Accounts
from fedveil.privacy.ledger import Ledger, Line
from fedveil.runtime.flower.messages import Order
from fedveil.runtime.planning import Planner
from fedveil.runtime.prepare import Training

FILE = "releases.jsonl"


def charge(training: Training, order: Order, server: State, context: Context) -> tuple[Line, ...] | None:
    """Charge what this order will release; None where the site has no budget. Refused where it does not reach."""
    limit = context.node_config.get("epsilon")
    if limit is None:
        return None
    delta, place = context.node_config.get("delta", 1e-5), context.node_config.get("state")
    if not isinstance(limit, int | float) or not isinstance(delta, float) or not (limit > 0 and 0 < delta < 1):
        raise Refused(f"site.toml: epsilon {limit!r} and delta {delta!r} are no budget; give, say, 8.0 and 1e-5")
    if place is None:
        raise Refused("site.toml: a budget needs a place for its ledger; give state")
    method, held = training.method, len(training.federation.train(order.client))
    if not method.local_privacy or method.allow_leak:
        raise Refused(
            f"this site has a budget, and {method.name} would send what no mechanism of its own has passed; use a "
            "method with noise at the clients"
        )
    if training.settings.privacy.rng != "secure":
        raise Refused("this site has a budget, and noise from a known seed spends all of it; set privacy.rng=secure")
    if held != int(training.federation.sizes[order.client]):
        raise Refused(f"the server speaks of {training.federation.sizes[order.client]} examples, and there are {held}")
    planner, path = Planner(training), Path(str(place)) / FILE
    lines = tuple(x for x in planner.lines([order.client], server) if x.clients is not None)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _alone(path):
        ledger = Ledger.replay(path)
        accounts = Accounts(delta, True, adjacency=training.settings.privacy.adjacency)
        for entry in ledger.entries:
            accounts.add(_ours(entry.lines))
        after = accounts.spent("server", "record", _ours(lines))
        if after > limit:
            spent = accounts.spent("server", "record")
            raise Refused(
                f"this site's budget is epsilon {limit:g}: {spent:.4g} is spent, this round would make it {after:.4g}"
            )
        ledger.charge(order.round, lines)
    return lines


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Orders of two runs are answered by two processes: one after the other looks what is left, and takes of it."""
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _ours(lines: Sequence[Line]) -> list[Line]:
    """Whatever number the site had in a run: it is one site."""
    return [replace(line, clients=(0,)) for line in lines]

"""What a private run must not contain: parts that tell of data which no noise covers."""

from __future__ import annotations

from torch.nn.modules.batchnorm import _BatchNorm

from fedveil.core.errors import Refused
from fedveil.core.federation import Federation
from fedveil.core.method import Method
from fedveil.local.admission import rewritten
from fedveil.local.objective import Objective
from fedveil.runtime.settings import Settings


def refuse_leaks(settings: Settings, method: Method, federation: Federation, objective: Objective) -> None:
    """Refuse a budget that nothing keeps, and whatever a private method would let out beside its noise."""
    if settings.privacy.epsilon is not None and (method.allow_leak or not method.private):
        why = "sends what it protects in the clear" if method.allow_leak else "has no privacy mechanism"
        raise Refused(
            f"privacy.epsilon: {method.name} {why}, so that no budget can hold; "
            "choose a private method, or leave the budget out"
        )
    if not method.private:
        return
    parts = dict(objective.module.named_modules())
    mixing = [name for name, part in parts.items() if isinstance(part, _BatchNorm)]
    others = [b for b in objective.buffers.names if b.rpartition(".")[0] not in mixing]
    if others:
        kind = type(parts.get(others[0].rpartition(".")[0], objective.module)).__name__
        raise Refused(
            f"model: {others[0]} is a running statistic of the clients' data, kept by {kind}, which {method.name} does "
            "not protect; use GroupNorm, or a layer that keeps none (track_running_stats=False)"
        )
    if mixing:
        what = (
            f"{objective.buffers.names[0]} is a running statistic of the clients' data"
            if objective.buffers.dim
            else f"{mixing[0]} is a BatchNorm, which mixes the examples of a batch"
        )
        raise Refused(
            f"model: {what}, which {method.name} does not protect; use GroupNorm, or set batch_norm=group_norm to "
            "have every BatchNorm replaced by it"
        )
    written = None if method.on_step.per_sample is None else rewritten(objective, federation)
    if written is not None:
        raise Refused(
            f"model: a forward pass writes to {written} (as max_norm of an Embedding does), which is outside what "
            f"{method.name} clips and covers with noise; leave it out"
        )
    if federation.private_statistics:
        raise Refused(
            f"data.scaling: {federation.private_statistics}, which {method.name} does not protect; "
            "scale by public bounds"
        )
    if settings.privacy.adjacency == "add_remove" and method.local_privacy:
        raise Refused(
            "privacy.adjacency: under add_remove a unit's presence is secret, but the server sees who takes part; "
            "use zero_out or replace"
        )
    if method.fixed_divisor and not method.aggregate.weighted:
        secret = {
            "selection": settings.selection == "poisson",
            "privacy.adjacency": settings.privacy.adjacency == "add_remove",
        }
        for name, hides in secret.items():
            if hides:
                raise Refused(
                    f"{name}: it makes the number of clients a secret, and what the aggregator makes of their uploads "
                    "depends on that number, which the noise does not cover; use aggregate=mean, or "
                    "selection=fixed with another privacy.adjacency"
                )
    if settings.stop.wanted and not settings.stop.public_test:
        raise Refused(
            "stop: stopping early on the test set reveals something about it; set stop.public_test=true if that "
            "set is public, or leave stop.patience and stop.accuracy out"
        )

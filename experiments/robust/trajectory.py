"""One clean training run, and what detectors would have seen of every attack in each of its rounds.

The attacks are injected freshly into the honest uploads of a round and never reach the model, so that one trajectory
serves all of them, and the score of a round is compared with clean ones of the same training. That is a detector's
upper bound; the closed loop is another study.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from experiments.robust.task import CLIENTS, federation
from fedveil.aggregate.evidence import entropy, nearest, sums
from fedveil.core.parts import MOVE
from fedveil.core.round import arrive, depart
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.local.attackers import Attackers
from fedveil.local.attacks import Alie, Attack, GaussianNoise, Ipm, LabelFlip, MinMax, Scaling, Sight, SignFlip, Zero
from fedveil.runtime.config import resolve
from fedveil.runtime.prepare import Training, prepare

CALIBRATION = 125
ROUNDS = 205
DECLARED = (1, 2, 4)
ATTACKS: dict[str, Attack] = {
    "sign_flip": SignFlip(),
    "gaussian 1x": GaussianNoise(factor=1.0),
    "gaussian 10x": GaussianNoise(factor=10.0),
    "label_flip": LabelFlip(),
    "zero": Zero(),
    "scaling": Scaling(),
    "alie 1.5": Alie(z=1.5),
    "ipm 0.5": Ipm(factor=0.5),
    "ipm 2": Ipm(factor=2.0),
    "min_max": MinMax(),
}
"""SPEC 7.7 but for the backdoor."""

Row = list[float]
"""E, M, Q, A, ‖r‖, H and the nearest-neighbour ratio of one round."""


def record(alpha: float, seed: int, momentum: float = 0.9) -> dict[str, Any]:
    """The rows of every round: clean, and from the end of the calibration phase on under each attack and f."""
    training = setting(alpha, seed, momentum)
    method, order = training.method, stream(seed, "attackers").permutation(CLIENTS).tolist()
    worst = order[: max(DECLARED)]
    flippers = Attackers("label_flip", LabelFlip(), frozenset(worst), 1, 0.4, seed, _flipping(training, worst))
    server, held = training.start(), torch.zeros(CLIENTS, training.objective.layout.dim)
    lying, previous = held.clone(), None
    rows: dict[str, list[Row]] = {"clean": []}
    for number in range(1, ROUNDS + 1):
        clients = list(range(CLIENTS))
        ctx = Context(
            number, training.objective.layout, clients, _streams(seed, "noise", number, clients),
            server=stream(seed, "server noise", number), batches=_streams(seed, "batches", number, clients),
        )  # fmt: skip
        moves = training.engine.train(method, server, None, ctx)
        own = held if method.local.remembers else None
        uploads, memory = depart(method, moves, own, server, ctx)
        g = uploads[MOVE].value
        rows["clean"].append(_row(g, previous))
        if number > CALIBRATION:
            wrong = flippers.retrain(
                method, server, None, moves, ctx, lambda what, who, t=number: _streams(seed, what, t, who)
            )
            flipped, lies = depart(method, wrong, lying if method.local.remembers else None, server, ctx)
            for name, attack in ATTACKS.items():
                for f in DECLARED:
                    rows.setdefault(f"{name}, {f}", []).append(
                        _row(_attacked(attack, g, flipped[MOVE].value, worst[:f], seed, number), previous)
                    )
            lying = lying if lies is None else lies
        else:
            lying = held if memory is None else memory
        after = arrive(method, uploads, training.shares(clients, moves), server, ctx).server
        previous, server, held = after["w"] - server["w"], after, held if memory is None else memory
    return {"rows": rows, "n": CLIENTS}


def setting(alpha: float, seed: int, momentum: float) -> Training:
    """K = 5 steps of 32 examples at lr 0.1, ten clients in every round, momentum at the clients."""
    config = resolve(
        ["method=fedavg", "weights=uniform", f"client_momentum={momentum}", "steps=5", "batch=32", "lr=0.1",
         "engine=fold", "threads=1", f"rounds={ROUNDS}", f"seed={seed}",
         "model=experiments.robust.task:model"]
    )  # fmt: skip
    return prepare(config, data=federation(alpha, seed))


def _attacked(attack: Attack, g: Tensor, flipped: Tensor, who: list[int], seed: int, number: int) -> Tensor:
    others = [k for k in range(CLIENTS) if k not in who]
    own = flipped[who] if attack.poison is not None else g[who]
    honest = g[others] if attack.omniscient else g.new_empty(len(others), 0)
    forged = attack.forge(Sight(own, honest, [stream(seed, "attack", number, k) for k in who]))
    assert forged is not None
    out = g.clone()
    out[who] = forged
    return out


def _row(g: Tensor, previous: Tensor | None) -> Row:
    found, deviations = sums(g, previous)
    return [
        found.energy, found.common, found.quartic, found.along, found.reference, entropy(deviations), nearest(g)
    ]  # fmt: skip


def _flipping(training: Training, who: list[int]) -> Any:
    from fedveil.local.choice import Facts, choose
    from fedveil.local.poison import FlipLabels, Poisoned

    t = training
    poisoned = Poisoned(t.federation, frozenset(who), FlipLabels(), t.settings.seed)
    return choose("fold", Facts(t.objective, poisoned, t.batching, t.settings.sgd, t.settings.seed), t.method)[0]


def _streams(seed: int, what: str, number: int, clients: Any) -> list[Any]:
    return [stream(seed, what, number, k) for k in clients]

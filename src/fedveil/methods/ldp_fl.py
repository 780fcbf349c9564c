"""LDP-FL: every weight is reported by a private mechanism of its own (Sun, Qian and Chen 2021; SPEC 5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fedveil.aggregate.mean import Mean
from fedveil.core.errors import Refused, one_of
from fedveil.core.method import Method
from fedveil.core.parts import Aggregator, Transport
from fedveil.core.stage import chain
from fedveil.local.rules import FedAvg
from fedveil.privacy.per_weight import Mechanism
from fedveil.privacy.perturb import PerWeight, Target
from fedveil.privacy.ranges import Radius, Ranges
from fedveil.transport.plain import Plain
from fedveil.transport.shuffle import Shuffle, Split

WIDTH = 0.5
"""An adaptive range's radius, in deviations of a layer's weights."""


def ldp_fl(
    *,
    epsilon: float | None,
    cohort: int,
    mechanism: Mechanism = "two_point",
    perturb: Target = "delta",
    range: Literal["fixed", "adaptive"] = "adaptive",
    radius: Radius = 0.02,
    centre: Radius = 0.0,
    width: float | None = None,
    decay: float = 1.0,
    split: Split | None = None,
    delay: float | None = None,
    server_lr: float = 1.0,
    server_momentum: float = 0.0,
    transport: Transport = Plain(),
    aggregate: Aggregator = Mean(),
) -> Method:
    """FedAvg whose clients report every weight (or its move) by one of two public values.

    ``epsilon`` is ``privacy.epsilon``, and means epsilon per weight and round here; it is no budget of the run.
    """
    one_of("range", range, ("fixed", "adaptive"))
    if isinstance(transport, Shuffle):
        transport = replace(
            transport,
            split=transport.split if split is None else split,
            delay=transport.delay if delay is None else delay,
        )
    elif split is not None or delay is not None:
        name = "delay" if split is None else "split"
        raise Refused(
            f"{name}: only transport=shuffle sends parts on their own; set transport=shuffle, or leave it out"
        )
    if range == "fixed" and width is not None:
        raise Refused("width: a fixed range is as wide as radius says; set range=adaptive, or leave it out")
    if range == "adaptive" and any(_numbers(centre)):
        raise Refused("centre: an adaptive range finds its own; set range=fixed, or leave it out")
    ranges = Ranges(range, _numbers(radius), _numbers(centre), WIDTH if width is None else width, decay)
    return Method(
        name="ldp_fl",
        local=FedAvg(server_lr, server_momentum),
        transport=transport,
        aggregate=aggregate,
        on_delta=chain(PerWeight(mechanism, epsilon, perturb, ranges, cohort)),
        epsilon_per_weight=epsilon,
    )


def _numbers(value: Radius) -> tuple[float, ...]:
    return tuple(map(float, value)) if isinstance(value, list) else (float(value),)

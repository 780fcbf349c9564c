"""Whether contenders compute the same thing, before anybody is timed."""

from __future__ import annotations

from typing import Any

import torch

from fedveil.bench.rivals import OURS, SECURE, Rival, named
from fedveil.bench.scenario import Scenario, Setting

TOLERANCE = 1e-5
ROUNDS = 2


class Disagreement(Exception):
    """Two contenders ended with different weights, so that comparing their speed would mean nothing."""


def agree(scenario: Scenario, who: list[Rival], device: str) -> dict[str, Any]:
    """The largest difference of each contender's weights to ours, after two rounds in float64 with the noise off."""
    small = scenario.quiet_and_small()
    ours = _weights(small, named(OURS), device)
    found = {}
    for rival in who:
        if rival.name in (OURS, SECURE) or rival.build is None:
            continue
        theirs = _weights(small, rival, device)
        found[rival.name] = float((theirs - ours).abs().max())
        if not found[rival.name] <= TOLERANCE:
            raise Disagreement(
                f"{scenario.name}: after {ROUNDS} rounds the weights of {rival.name} and ours differ by "
                f"{found[rival.name]:.1e}, more than {TOLERANCE:g}; nothing was timed"
            )
    return found


def _weights(scenario: Scenario, rival: Rival, device: str) -> torch.Tensor:
    assert rival.build is not None
    setting = Setting(scenario, device, torch.float64)
    contender = rival.build(setting)
    for number in range(1, ROUNDS + 1):
        contender.round(number, setting.clients(number))
    return contender.weights().double()

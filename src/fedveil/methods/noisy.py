"""Where the noise and the shrinkage of the local methods stand: their variants, as slots of a method (SPEC 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, Required, TypedDict, Unpack

from fedveil.core.arguments import known
from fedveil.core.errors import Refused, one_of, positive
from fedveil.core.scale import scale
from fedveil.core.stage import Chain, chain
from fedveil.local.rules import Control
from fedveil.privacy.clip import clip, clip_each
from fedveil.privacy.noise import Gaussian, Multiplier, PerClient, check_multiplier, gaussian
from fedveil.privacy.shrink import Shrink

PLAIN = ("last_noise", "step_noise")
STEIN = ("last_noise_server_jse", "step_noise_step_jse", "step_noise_final_jse")

Calibration = Literal["proved", "source"]


class LocalNoise(TypedDict):
    """The settings that all methods with noise at the clients share.

    ``travel`` is K·η of the client that moves farthest, ``steps`` is K where all clients have the same; both, and
    ``batch``, are those of the run.
    """

    clip_norm: Required[float]
    sigma: Required[Multiplier]
    batch: Required[int]
    travel: Required[float]
    steps: NotRequired[int | None]
    calibration: NotRequired[Calibration]
    move_norm: NotRequired[float | None]


class Slots(TypedDict, total=False):
    """The slots that a variant fills."""

    on_step: Chain
    on_delta: Chain
    on_upload: Chain
    on_mean: Chain


def variant(given: str | int, allowed: tuple[str, ...]) -> str:
    """The variant's name, from its name or its number.

    >>> variant(2, STEIN), variant("last_noise", PLAIN)
    ('step_noise_step_jse', 'last_noise')
    """
    numbers = {str(i): name for i, name in enumerate(allowed, 1)}
    name = numbers.get(str(given), str(given))
    if name not in allowed:
        listed = ", ".join(f"{name} (or {i})" for i, name in numbers.items())
        raise Refused(f"algorithm_variant: {given!r} is unknown; allowed: {listed}")
    return name


def slots(name: str, jse: Shrink | None, **noise: Unpack[LocalNoise]) -> Slots:
    """The slots of a variant: per-sample clip → noise → shrink in every step, or clip → noise on the whole move.

    With one step and ``calibration: source`` the noise on the move *is* noise on its only step: it is put there,
    where it is proved.
    """
    clip_norm, sigma, steps = noise["clip_norm"], noise["sigma"], noise.get("steps")
    source = noise.get("calibration", "proved") == "source"
    positive(clip_norm=clip_norm, travel=noise["travel"])
    check_multiplier(sigma, "sigma")
    if source and name.startswith("step_noise"):
        raise Refused(
            f"calibration: source says how much noise a whole move gets, and {name} adds it in every step; "
            "use a last_noise variant, or leave calibration out"
        )
    each, mean = clip_each(clip_norm), scale(1 / noise["batch"])
    after = chain() if jse is None else chain(jse)
    if name.startswith("step_noise") or (source and steps == 1):
        if noise.get("move_norm") is not None:
            raise Refused(
                "move_norm: it clips a whole move before its noise, and here the noise is in the steps; "
                "use a last_noise variant with calibration=proved, or leave move_norm out"
            )
        noisy = chain(each, gaussian(sigma), mean)
        if name == "step_noise_step_jse":
            return Slots(on_step=chain(noisy, after))
        if name == "last_noise_server_jse":
            return Slots(on_step=noisy, on_mean=after)
        return Slots(on_step=noisy, on_upload=after)
    given = noise.get("move_norm")
    bound = noise["travel"] * clip_norm if given is None else given
    positive(move_norm=bound)
    last = gaussian(sigma) if not source else _source(bound, **noise)
    return Slots(on_step=chain(each, mean), on_delta=chain(clip(bound), last), on_mean=after)


def _source(bound: float, **noise: Unpack[LocalNoise]) -> Gaussian:
    """The deviation s = C·K·η·σ/b of the source; the ledger keeps what it really protects, and the claim beside it."""
    sigma = noise["sigma"]
    if noise.get("steps") is None:
        raise Refused("calibration: source needs the same number of steps for every client; set steps")
    if isinstance(sigma, PerClient):
        raise Refused("calibration: source has one sigma for all clients; give one number")
    std = noise["clip_norm"] * noise["travel"] * sigma / noise["batch"]
    return gaussian(std / bound, claimed=sigma)


def shrinkage(enabled: bool, given: Shrink | Mapping[str, Any]) -> Shrink | None:
    """The shrinkage that the settings ask for."""
    if not isinstance(given, Shrink):
        known("shrink", given, ("scope", "target"))
        given = Shrink(**given)
    if enabled:
        return given
    if given != Shrink():
        raise Refused(
            "shrink: nothing is shrunk with jse_enabled=false; set jse_enabled=true, or leave shrink.scope and "
            "shrink.target out"
        )
    return None


def control(update: Literal["noisy", "clean"], allow_leak: bool, chosen: str) -> Control:
    """Whether control variates are made of released moves, or (to show that it leaks) of clean ones (SPEC 3.4)."""
    one_of("control_update", update, ("noisy", "clean"))
    if update == "noisy":
        if allow_leak:
            raise Refused("allow_leak: nothing leaks with control_update=noisy; leave allow_leak out")
        return "released"
    if not chosen.startswith("last_noise"):
        raise Refused(
            "control_update: clean has a meaning only where the noise comes after the steps; use a last_noise variant"
        )
    if not allow_leak:
        raise Refused(
            "control_update: with clean moves the server solves for them exactly, so that nothing is private; "
            "use noisy, or allow_leak=true to watch it happen"
        )
    return "clean"

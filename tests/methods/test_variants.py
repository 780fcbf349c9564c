"""Noise of every variant at gradient, move and mean: measured, and as the signal's own bookkeeping has it."""

import math
from dataclasses import replace

import pytest
import torch
from tests.methods.common import BATCH, CLIP, IDS, LR, MOVE, SIGMA, STEPS, VARIANTS, one_round, silent, training

from fedveil.core.errors import Refused
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, chain
from fedveil.core.streams import stream
from fedveil.methods.noisy import STEIN, variant
from fedveil.privacy.shrink import Shrink, blocks, factors

DIM = 60_000
GRADIENT = (SIGMA * CLIP / BATCH) ** 2
"""Variance of a gradient under step noise."""
MOVED = STEPS * LR**2 * GRADIENT
"""Variance of a move after K noisy steps."""
LAST = (SIGMA * STEPS * LR * CLIP) ** 2
"""Variance of a move under last noise: sigma times its norm bound K·η·C."""


def agrees(values, variance):
    """Mean and variance of independent normal draws within three standard errors."""
    n = values.numel()
    mean = float(values.double().mean())
    measured = float(values.double().var())
    return abs(mean) < 3 * math.sqrt(variance / n) and abs(measured / variance - 1) < 3 * math.sqrt(2 / n)


def without_shrinkage(method):
    """The same recipe with every James-Stein stage taken out, to see the noise that it reads."""
    slots = {
        s: tuple(x for x in getattr(method, s) if not isinstance(x, Shrink))
        for s in ("on_step", "on_upload", "on_mean")
    }
    return replace(method, **{name: chain(*stages) for name, stages in slots.items()})


@pytest.mark.parametrize(("method", "name"), VARIANTS, ids=IDS)
def test_noise_at_gradient_move_and_mean(method, name):
    parts = training(method, name, silent(DIM), DIM)
    plain = without_shrinkage(parts.method)
    step = name.startswith("step")

    rows = 3
    streams = [stream(1, k) for k in range(rows)]
    ctx = Context(1, parts.objective.layout, range(rows), streams)
    gradient = plain.on_step(plain.on_step.per_sample.summed(torch.zeros(rows, DIM, dtype=torch.float64)), ctx)
    assert gradient.noise_var == pytest.approx(GRADIENT if step else 0.0)
    assert agrees(gradient.value, GRADIENT) if step else not gradient.value.any()

    moves, uploads, arrival, _, _ = one_round(parts, plain)
    clients = moves.delta.rows
    expected = MOVED if step else LAST
    for row in range(clients):
        assert agrees(uploads[MOVE].value[row], expected), "the upload of one client"
    held = torch.as_tensor(uploads[MOVE].noise_var).expand(clients, 1) if step else uploads[MOVE].noise_var
    assert torch.allclose(torch.as_tensor(held, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64))
    mean = arrival.mean[MOVE]
    assert float(mean.noise_var) == pytest.approx(expected / clients)
    assert agrees(mean.value, expected / clients)


@pytest.mark.parametrize(("method", "name"), [(m, v) for m, v in VARIANTS if "stein" in m], ids=lambda x: x)
def test_shrinkage_stands_where_the_variant_says_and_reads_that_variance(method, name):
    """The James-Stein factor recomputed by hand from the noisy value and the variance above."""
    parts = training(method, name, silent(DIM), DIM)
    plain = without_shrinkage(parts.method)
    noisy_uploads, shrunk_uploads = (one_round(parts, m)[1][MOVE].value for m in (plain, parts.method))
    noisy_mean, shrunk_mean = (one_round(parts, m)[2].mean[MOVE].value for m in (plain, parts.method))

    def shrunk(x, variance):
        return x * (1 - (DIM - 2) * variance / x.square().sum(dim=1, keepdim=True)).clamp_min(0)

    if name == "last_noise_server_jse":
        assert torch.equal(noisy_uploads, shrunk_uploads)
        assert torch.allclose(shrunk_mean, shrunk(noisy_mean, LAST / 3))
    elif name == "step_noise_final_jse":
        each = shrunk(noisy_uploads, MOVED)
        assert torch.allclose(shrunk_mean, each.mean(dim=0, keepdim=True))
        if method == "dp_scaffold_stein":
            assert torch.equal(noisy_uploads, shrunk_uploads), "the server derives control variates from unshrunk moves"
    else:
        assert shrunk_uploads.square().sum() < 0.2 * noisy_uploads.square().sum(), "pure noise is shrunk in every step"
        assert torch.allclose(shrunk_mean, shrunk_uploads.mean(dim=0, keepdim=True))


def test_step_shrinkage_acts_on_the_noisy_gradient_before_the_correction():
    """Order in a step: clip, noise, shrink, + c − c_k, SGD (SPEC 3.3)."""
    parts = training("dp_scaffold_stein", "step_noise_step_jse", silent(DIM), DIM)
    server = parts.start()
    server["c"] = torch.full_like(server["c"], 0.3)
    moves, *_ = one_round(parts, server=server)
    plain_moves, *_ = one_round(parts)
    drift = -STEPS * LR * 0.3
    assert torch.allclose(moves.delta.value, plain_moves.delta.value + drift), "the correction is not shrunk"


@pytest.mark.parametrize("name", ["last_noise_server_jse", "step_noise_final_jse"])
def test_old_noise_in_control_variates_is_neither_clipped_nor_shrunk(name):
    """Shrinkage acts on Δ − Kη(c_k − c): with c − c_k far from zero the data part comes out the same (SPEC 3.2)."""
    parts = training("dp_scaffold_stein", name, silent(DIM), DIM)
    memory = torch.randn(3, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, uploads, arrival, after, _ = one_round(parts, memory=memory)
    _, plain_uploads, plain_arrival, plain_after, _ = one_round(parts)
    known = STEPS * LR * memory  # −travel·(c − c_k)
    assert torch.allclose(uploads[MOVE].value, plain_uploads[MOVE].value + known)
    assert torch.allclose(arrival.mean[MOVE].value, plain_arrival.mean[MOVE].value + known.mean(dim=0))
    # c_k⁺ = −(data part)/(Kη): the old c_k is gone from it
    assert torch.allclose(after, plain_after, atol=1e-9)


def test_the_upload_halves_because_the_server_derives_the_control_variates():
    parts = training("dp_scaffold", "step_noise_final_jse", silent(DIM), DIM)
    _, uploads, arrival, memory, _ = one_round(parts)
    assert set(uploads) == {MOVE}
    assert arrival.bytes_up == 3 * DIM * 8
    assert torch.allclose(arrival.server["c"], memory.mean(dim=0)), "c and c_k agree after full participation"


def test_unequal_noise_shrinks_each_upload_by_its_own_variance():
    layout = training("dp_fed_stein", 3, silent(50), 50).objective.layout
    value = torch.randn(2, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3
    variances = torch.tensor([[0.5], [4.0]], dtype=torch.float64)
    signal = Signal(value, noise_var=variances, released=True)
    out = Shrink()(signal, Context(1, layout, [0, 1], []))
    for row in range(2):
        alone = Signal(value[row : row + 1], noise_var=float(variances[row]), released=True)
        assert torch.allclose(out.value[row], Shrink()(alone, Context(1, layout, [0], [])).value[0])


def test_names_numbers_and_what_is_allowed():
    assert [variant(i, STEIN) for i in (1, 2, 3)] == list(STEIN)
    assert [variant(str(i), STEIN) for i in (1, 2, 3)] == list(STEIN)
    for wrong in ("last_noise", 4, 0, "step"):
        with pytest.raises(Refused, match=r"algorithm_variant: .*last_noise_server_jse \(or 1\), step_noise_step_jse"):
            variant(wrong, STEIN)
    assert blocks.cache_info is not None
    assert factors(torch.tensor([[1.0]]), torch.tensor([[2]]), torch.tensor([[9.0]])).item() == 1.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["clip_norm=0"], "clip_norm: 0"),
        (["sigma=-1"], "sigma: -1"),
        (["sigma=much"], "sigma: 'much' is not allowed; give a number"),
        (["global_lr=0"], "server_lr: 0"),
        (["jse_enabled=maybe"], "jse_enabled: 'maybe' is not allowed; give true or false"),
        (["shrink.scope=row"], "shrink.scope: 'row' is unknown; allowed: layer, model"),
        (["shrink.target=mean"], "shrink.target: 'mean' is unknown; allowed: previous, zero"),
        (["calibration=wishful"], "calibration: 'wishful' is unknown.*allowed: proved, source"),
        (["algorithm_variant=last_noise"], "algorithm_variant: 'last_noise' is unknown; allowed:"),
        (["control_update=clean"], "control_update: with clean moves the server solves for them"),
        (["control_update=clean", "algorithm_variant=2", "allow_leak=true"], "clean has a meaning only"),
        (["allow_leak=true"], "allow_leak: nothing leaks with control_update=noisy"),
        (["calibration=source", "steps=null", "local_epochs=1"], "calibration: source needs the same number of steps"),
        (["sigma=null"], "sigma: dp_scaffold_stein adds noise, but nothing says how much"),
        (["sigma_per_client=true"], "sigma_per_client: it calibrates noise to a budget"),
    ],
)
def test_what_is_wrong_is_refused_in_words(overrides, message):
    with pytest.raises(Refused, match=message):
        training("dp_scaffold_stein", "1", silent(4), 4, *overrides)

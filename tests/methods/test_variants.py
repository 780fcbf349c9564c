"""Noise of every variant at gradient, move and mean: measured, and as the signal's own bookkeeping has it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.methods.common import (
    BATCH,
    CLIP,
    IDS,
    LR,
    MOVE,
    SIGMA,
    STEPS,
    VARIANTS,
    constant,
    context,
    one_round,
    silent,
    training,
)

import fedveil
from fedveil.aggregate.mean import Mean
from fedveil.core.errors import Refused
from fedveil.core.method import Method
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, chain
from fedveil.core.streams import stream
from fedveil.core.walk import energy, travel
from fedveil.local.rules import Scaffold
from fedveil.methods.noisy import STEIN, variant
from fedveil.privacy.clip import clip, clip_each
from fedveil.privacy.noise import PerClient, gaussian
from fedveil.privacy.shrink import Shrink, blocks, factors
from fedveil.runtime.config import resolve
from fedveil.runtime.prepare import maker, prepare
from fedveil.transport.plain import Plain

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


NORM = 0.5
"""Length of a constant gradient; below the clip."""


def directions(dim: int, clients: int = 3) -> np.ndarray:
    """A gradient for each client, mostly in common."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=dim) + 0.3 * rng.normal(size=(clients, dim))
    return NORM * rows / np.linalg.norm(rows, axis=1, keepdims=True)


def shrunk(x, centre, variance):
    """The formula by hand, and its factors."""
    rest = x - centre
    factor = (1 - (x.shape[1] - 2) * variance / rest.square().sum(dim=1, keepdim=True)).clamp_min(0)
    return centre + factor * rest, factor


def steps_by_hand(parts, server, number, gradients, centre):
    """Moves of step_jse: each noisy gradient drawn by hand, shrunk by hand; and all the factors."""
    noisy = without_shrinkage(parts.method).on_step
    clients, dim = gradients.shape
    ctx = context(parts, server, number, list(range(clients)))
    moved, factors = torch.zeros(clients, dim, dtype=torch.float64), []
    for _ in range(STEPS):
        gradient = noisy(noisy.per_sample.summed(torch.from_numpy(BATCH * gradients)), ctx)
        step, factor = shrunk(gradient.value, centre, gradient.noise_var)
        moved -= LR * step
        factors.append(factor)
    return moved, torch.cat(factors)


LOUD = {
    "last_noise_server_jse": 3**0.5 / CLIP,
    "step_noise_step_jse": BATCH / CLIP,
    "step_noise_final_jse": STEPS**0.5 * BATCH / CLIP,
}
"""sigma·√dim/‖gradient‖ at which noise is as long as what is shrunk, so that half of it is left."""


@pytest.mark.parametrize(("method", "name"), [(m, v) for m, v in VARIANTS if "stein" in m], ids=lambda x: x)
def test_shrinkage_stands_where_the_variant_says_and_reads_that_variance(method, name):
    """The James-Stein factor recomputed by hand from the noisy value and the variance above: about a half."""
    dim, sigma = 4000, LOUD[name] * NORM / 4000**0.5
    gradients = directions(dim)
    parts = training(method, name, constant(gradients), dim, f"sigma={sigma}")
    plain = without_shrinkage(parts.method)
    noisy_uploads, shrunk_uploads = (one_round(parts, m)[1][MOVE].value for m in (plain, parts.method))
    noisy_mean, shrunk_mean = (one_round(parts, m)[2].mean[MOVE].value for m in (plain, parts.method))
    gradient_variance = (sigma * CLIP / BATCH) ** 2

    if name == "last_noise_server_jse":
        assert torch.equal(noisy_uploads, shrunk_uploads)
        expected, factor = shrunk(noisy_mean, 0.0, (sigma * STEPS * LR * CLIP) ** 2 / 3)
        assert torch.allclose(shrunk_mean, expected)
    elif name == "step_noise_final_jse":
        each, factor = shrunk(noisy_uploads, 0.0, STEPS * LR**2 * gradient_variance)
        assert torch.allclose(shrunk_mean, each.mean(dim=0, keepdim=True))
        if method == "dp_scaffold_stein":
            assert torch.equal(noisy_uploads, shrunk_uploads), "the server derives control variates from unshrunk moves"
    else:
        expected, factor = steps_by_hand(parts, parts.start(), 1, gradients, 0.0)
        assert torch.allclose(shrunk_uploads, expected)
        assert torch.allclose(shrunk_mean, expected.mean(dim=0, keepdim=True))
    assert 0.4 < float(factor.min()) <= float(factor.max()) < 0.6


@pytest.mark.parametrize("engine", ["sequential", "vmap"])
def test_step_shrinkage_heads_for_the_gradient_that_made_the_last_mean_move(engine):
    """Target previous in a step: −(last mean move)/(K·η), by hand, in the second round (SPEC 3.2)."""
    dim = 1000
    gradients = directions(dim)
    sigma = 0.5 * LOUD["step_noise_step_jse"] * NORM / dim**0.5
    parts = training(
        "dp_fed_stein", "step_noise_step_jse", constant(gradients), dim,
        f"sigma={sigma}", "shrink.target=previous", f"engine={engine}",
    )  # fmt: skip
    first = one_round(parts)[2]
    moves, *_ = one_round(parts, server=first.server, number=2)
    centre = -first.mean[MOVE].value / (STEPS * LR)
    expected, factor = steps_by_hand(parts, first.server, 2, gradients, centre)
    assert torch.allclose(moves.delta.value, expected)
    assert 0 < float(factor.max()) < 0.9, "the target matters"


@pytest.mark.parametrize("name", STEIN)
def test_the_previous_move_is_what_the_data_did_without_the_correction(name, monkeypatch):
    """SPEC 3.2 shrinks the data's part: if that is the same in every round, its target is met, whoever takes part."""
    dim = 2000
    gradients = np.tile(directions(dim, 1), (4, 1))
    parts = training("dp_scaffold_stein", name, constant(gradients), dim, "sigma=0.0001", "shrink.target=previous")
    seen, look = [], Shrink._centre

    def spy(self, signal, ctx):
        centre = look(self, signal, ctx)
        seen.append((signal.value - centre, signal.value - signal.public))
        return centre

    monkeypatch.setattr(Shrink, "_centre", spy)
    server, memory, drifts = parts.start(), torch.zeros(4, dim, dtype=torch.float64), []
    for number, cohort in enumerate(([0, 1], [1, 2], [0, 3], [1, 3]), 1):
        drifts.append(float((server["c"] - memory[cohort].mean(dim=0)).norm()))
        seen.clear()
        _, _, arrival, memory[cohort], _ = one_round(
            parts, server=server, memory=memory[cohort], number=number, cohort=cohort
        )
        server = arrival.server
        for away, own in seen:
            ratio = float((away.norm(dim=1) / own.norm(dim=1)).max())
            assert ratio < 0.01 if number > 1 else ratio > 0.9, (number, ratio)
        assert torch.allclose(server["previous"], -STEPS * LR * torch.from_numpy(gradients[0]), atol=1e-4)
    assert max(drifts) > 0.1 * NORM, "there is a correction that could be counted twice"


def test_a_correction_that_nobody_knows_is_never_counted_twice():
    """Private c_k: whole moves head for the whole last move; steps, which add the correction again, are refused."""
    dim = 500
    parts = training("dp_fedavg_local", "1", constant(np.tile(directions(dim, 1), (4, 1))), dim)
    shape = {"name": "hidden", "local": Scaffold(control="private"), "transport": Plain(), "aggregate": Mean()}
    method = Method(on_delta=clip(1.0), on_mean=chain(gaussian(1e-4), Shrink(target="previous")), **shape)
    server, memory = method.local.start(parts.start()["w"]), torch.zeros(4, dim, dtype=torch.float64)
    for number, cohort in enumerate(([0, 1], [1, 2], [0, 3]), 1):
        _, uploads, arrival, memory[cohort], _ = one_round(
            parts, method, server=server, memory=memory[cohort], number=number, cohort=cohort
        )
        server = arrival.server
        assert uploads[MOVE].public == 0.0
        assert torch.equal(server["previous"], arrival.mean[MOVE].value[0])
    noise = chain(clip_each(1.0), gaussian(1.0))
    with pytest.raises(Refused, match="holds a drift correction that nobody can take out.*use shrink.target=zero"):
        Method(on_step=chain(noise, Shrink(target="previous")), **shape)


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


def test_control_variates_come_from_the_unshrunk_uploads():
    """final_jse: the server shrinks each upload, and moves c by what the clients made of the unshrunk one (SPEC 3.3)."""
    dim = 1000
    data = constant(directions(dim))
    sigma = LOUD["step_noise_final_jse"] * NORM / dim**0.5
    parts = training("dp_scaffold_stein", "step_noise_final_jse", data, dim, f"sigma={sigma}")
    _, uploads, arrival, memory, _ = one_round(parts)
    left = arrival.mean[MOVE].value.norm() / uploads[MOVE].value.mean(dim=0).norm()
    assert 0.3 < float(left) < 0.7, "the moves are shrunk, not to zero"
    assert torch.allclose(arrival.server["c"], memory.mean(dim=0)), "c is the mean of the c_k that the clients keep"


@pytest.mark.parametrize("engine", ["sequential", "vmap", "fold"])
@pytest.mark.parametrize("name", ["step_noise", "last_noise"])
def test_every_row_has_its_own_clients_noise_and_steps(engine, name):
    """A multiplier for each client, and numbers of steps that differ: variances stand in the rows of their clients."""
    dim, sizes, sigma, momentum = 8000, (40, 8, 23, 10), PerClient((0.5, 5.0, 1.0, 2.0)), 0.5
    rows = [(np.zeros((n, dim)), np.arange(n) % 2) for n in sizes]
    data = fedveil.data.from_clients(rows, test=rows[0], classes=2, name="zeros", holdout=0.0)
    texts = ["method=dp_fedavg_local", f"algorithm_variant={name}", "sigma=1", f"clip_norm={CLIP}", f"batch={BATCH}"]
    texts += ["local_epochs=2", f"lr={LR}", f"momentum={momentum}", "cohort=4", "dtype=float64", "model=logistic"]
    parts = prepare(resolve([*texts, f"engine={engine}"]), data=data)
    method = maker(parts.config, parts.settings, parts.federation, parts.cohort)(sigma)
    steps = [2 * math.ceil(n / BATCH) for n in sizes]
    assert len(set(steps)) == 4 and steps != sorted(steps)
    if name == "step_noise":
        expected = [(z * CLIP / BATCH) ** 2 * energy(LR, momentum, k) for z, k in zip(sigma.values, steps, strict=True)]
    else:
        expected = [(z * CLIP * travel(LR, momentum, max(steps))) ** 2 for z in sigma.values]
    _, uploads, arrival, _, _ = one_round(parts, method)
    kept = torch.as_tensor(uploads[MOVE].noise_var).reshape(-1)
    assert kept.tolist() == pytest.approx(expected)
    weights = uploads[MOVE].value[:, : 2 * dim]  # inputs are zero, so that these are noise and nothing else
    for row, variance in zip(weights, expected, strict=True):
        assert agrees(row, variance)
    assert float(arrival.mean[MOVE].noise_var) == pytest.approx(sum(expected) / 16)


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
        (["shrink.scope=null"], "shrink.scope: null is unknown; allowed: layer, model"),
        (["shrink.scope=[layer]"], r"shrink.scope: \['layer'\] is unknown; allowed: layer, model"),
        (["shrink.foo=1"], "shrink.foo: there is no such setting; allowed: scope, target"),
        (["shrink={scop:layer}"], "shrink.scop: there is no such setting; did you mean 'scope'"),
        (["shrink=layer"], "shrink: 'layer' is not allowed; give a mapping"),
        (["jse_enabled=false", "shrink.scope=layer"], "shrink: nothing is shrunk with jse_enabled=false; set jse_en"),
        (["sigma=1e300"], r"sigma: 1e\+300 leaves nothing but noise; give at most 1e\+09"),
        (["clip_norm=1e300"], "norms or noise are beyond what numbers hold; lower them"),
        (["algorithm_variant=2", "calibration=source"], "calibration: source says how much noise.*use a last_noise"),
        (["algorithm_variant=3", "calibration=source", "steps=1"], "calibration: source says how much noise"),
        (["algorithm_variant=2", "move_norm=3"], "move_norm: it clips a whole move.*or leave move_norm out"),
        (["calibration=source", "steps=1", "move_norm=3"], "move_norm: it clips a whole move"),
        (["control_update=null"], "control_update: null is unknown; allowed: clean, noisy"),
    ],
)
def test_what_is_wrong_is_refused_in_words(overrides, message):
    with pytest.raises(Refused, match=message):
        training("dp_scaffold_stein", "1", silent(4), 4, *overrides)


@pytest.mark.parametrize(
    ("variant_", "overrides"),
    [
        ("1", ["shrink={scope:layer}"]),
        ("1", ["calibration=source", "move_norm=3"]),
        ("1", ["calibration=source", "steps=1"]),
        ("1", ["calibration=source", "sigma=null", "privacy.epsilon=8"]),
        ("2", ["shrink={target:zero}"]),
    ],
)
def test_what_means_something_is_taken(variant_, overrides):
    training("dp_scaffold_stein", variant_, silent(4), 4, *overrides)

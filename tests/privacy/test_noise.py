"""Noise stages: facts equal measurements, the ledger is written, and released values lie on one grid."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch
from scipy.stats import kstest

import fedveil.privacy.noise as noise_module
from fedveil.core.errors import Refused
from fedveil.core.signal import Signal
from fedveil.core.stage import chain
from fedveil.privacy.clip import clip, row_norms
from fedveil.privacy.events import event_of
from fedveil.privacy.noise import BLOCK, FINE, LONG, discrete_gaussian, gaussian, laplace, power_of_two, skellam

STAGES = [gaussian, laplace, discrete_gaussian, skellam]
each = pytest.mark.parametrize("make", STAGES, ids=lambda m: m.__name__)


def grid_of(make, multiplier: float, bound: float, dim: int) -> float:
    """The grid, from public numbers alone."""
    if make is gaussian:
        return power_of_two(multiplier * bound * FINE)
    if make is laplace:
        return power_of_two(multiplier * bound * math.sqrt(dim) * FINE)
    return make(multiplier).grid(bound, dim)


@each
def test_variance_and_mean_are_the_facts(make, at):
    dim, x = 1_000_000, 0.37
    signal = Signal(torch.full((1, dim), x, dtype=torch.float64), bound=2.0, unit="record", noise_var=0.5)
    out = make(1.3)(signal, at(seed=4))
    noise = (out.value - x).numpy()
    grid = grid_of(make, 1.3, 2.0, dim)
    variance = float(out.noise_var) - 0.5
    kurtosis = 6.0 if make is laplace else 3.0
    assert out.released
    assert abs(noise.mean()) <= 3 * math.sqrt(variance / dim) + grid / 2
    assert abs(noise.var() / variance - 1) <= 3 * math.sqrt((kurtosis - 1) / dim)


@each
def test_rows_and_columns_are_independent(make, at):
    out = make(1.0)(Signal(torch.zeros(3, 50_000), bound=1.0, unit="client"), at(3))
    correlation = np.corrcoef(out.value.numpy())
    assert np.abs(correlation - np.eye(3)).max() < 4 / math.sqrt(50_000)
    row = out.value[0].numpy()
    assert abs(np.corrcoef(row[:-1], row[1:])[0, 1]) < 4 / math.sqrt(50_000)


@each
def test_a_row_draws_from_its_own_stream_only(make, at):
    value = torch.linspace(-1, 1, 12).view(3, 4)
    together = make(1.0)(Signal(value, bound=1.0, unit="client"), at(3))
    for row in range(3):
        alone = make(1.0)(Signal(value[row : row + 1], bound=1.0, unit="client"), at(3).row(row))
        assert torch.equal(alone.value[0], together.value[row])


@pytest.fixture(params=["compiled", "torch"])
def built(request, monkeypatch):
    """With and without the kernel that is compiled where there is a compiler."""
    if request.param == "torch":
        monkeypatch.setattr(noise_module, "kernel", None)
    elif noise_module.kernel is None:
        reason = "the noise kernel was not compiled; is there a C compiler?"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [LONG + 1, BLOCK + 3, 3 * BLOCK])
def test_the_compiled_kernel_gives_the_noise_that_torch_gives(dim, dtype, at, monkeypatch):
    if noise_module.kernel is None:
        pytest.skip("the noise kernel was not compiled")
    value = torch.linspace(-3, 3, 2 * dim, dtype=dtype).view(2, dim)
    signal, grid = Signal(value, bound=1.0, unit="client"), power_of_two(FINE)
    compiled = gaussian(1.0)(signal, at(2)).value
    monkeypatch.setattr(noise_module, "kernel", None)
    plain = gaussian(1.0)(signal, at(2)).value
    apart = (compiled.double() - plain.double()).abs()
    # Logarithms and cosines differ in their last bits, which now and then rounds to the next place on the grid.
    assert float(apart.max()) <= grid * (1 + 1e-6)
    assert float((apart > 0).double().mean()) < 1e-3
    assert torch.equal(compiled.double() / grid, (compiled.double() / grid).round())


def test_the_kernel_refuses_what_does_not_fit():
    if noise_module.kernel is None:
        pytest.skip("the noise kernel was not compiled")
    wide, narrow = np.zeros(4), np.zeros(4, dtype=np.float32)
    for wrong in ((wide, narrow, wide, 1.0), (narrow[:3], narrow, wide, 1.0), (narrow, narrow, narrow, 1.0)):
        with pytest.raises(ValueError, match="onto"):
            noise_module.kernel.onto(*wrong)
    with pytest.raises(ValueError, match="float64"):
        noise_module.kernel.box_muller(narrow, 1.0)
    edge = np.array([0.0, 1 - 2.0**-53, 0.5, 0.0, 0.25, 1 - 2.0**-53])
    noise_module.kernel.box_muller(edge, 1.0)
    assert np.isfinite(edge).all()
    assert np.abs(edge).max() < 8.7


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("dim", [LONG - 1, LONG, LONG + 1, BLOCK + 3])
def test_long_rows_are_normal_and_their_own(dim, at):
    """Long rows are drawn another way: the same law, and still from one's own stream only."""
    value = torch.zeros(3, dim, dtype=torch.float64)
    together = gaussian(1.0)(Signal(value, bound=2.0, unit="client"), at(3)).value
    alone = gaussian(1.0)(Signal(value[1:2], bound=2.0, unit="client"), at(3).row(1)).value
    assert torch.equal(alone[0], together[1])
    for row in together.numpy():
        assert kstest(row, "norm", (0, 2.0)).pvalue > 1e-3
        halves = row[: dim // 2], row[dim // 2 : 2 * (dim // 2)]
        for power in (1, 2):  # a pair shares its radius: no trace of it may be left
            assert abs(np.corrcoef(halves[0] ** power, halves[1] ** power)[0, 1]) < 4 / math.sqrt(dim // 2)


@each
def test_the_ledger_line_prices_the_release(make, at):
    ctx = at(2)
    out = make(1.7)(Signal(torch.zeros(2, 9), bound=0.5, unit="client"), ctx)
    assert [r.clients for r in ctx.releases] == [(0, 1)]
    line = ctx.releases[0]
    assert (line.unit, line.mechanism, line.slot, line.channel, line.round) == (
        "client",
        make.__name__,
        "on_delta",
        "move",
        3,
    )
    assert event_of(line).multiplier == pytest.approx(1.7)
    assert line.noise_std**2 == pytest.approx(float(out.noise_var))
    if make is not laplace:
        assert line.bound == out.bound


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_released_values_lie_on_one_grid_for_any_input(make, dtype, at):
    dim, bound, multiplier = 20_000, 1.0, 1.0
    grid = grid_of(make, multiplier, bound, dim)
    assert math.frexp(grid)[0] == 0.5
    inputs = [
        torch.zeros(dim, dtype=dtype),
        torch.ones(dim, dtype=dtype),
        torch.full((dim,), 1 / 3, dtype=dtype),
        torch.linspace(-1, 1, dim, dtype=dtype) * math.pi,
        torch.full((dim,), 1e-9, dtype=dtype),
        torch.full((dim,), 12345.678, dtype=dtype),
    ]
    for seed, x in enumerate(inputs):
        out = make(multiplier)(Signal(x[None, :], bound=bound, unit="record"), at(seed=seed)).value
        assert out.dtype == dtype
        steps = out.double() / grid
        assert torch.equal(steps, steps.round())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_naive_float_mechanism_fails_the_same_test(dtype):
    grid = power_of_two(FINE)
    rng = np.random.default_rng(0)

    def naive(x: float) -> np.ndarray:
        return (dtype(x) + rng.standard_normal(20_000).astype(dtype)).astype(np.float64)

    off = [np.mean(y / grid != np.round(y / grid)) for y in (naive(0.0), naive(1 / 3))]
    assert min(off) > 0.5


def test_the_attack_on_naive_noise_and_its_failure_on_ours(at):
    """Mironov's event: |y| < 2 and y no multiple of 2⁻⁵³ happens for f = 0 and never for f = 1."""
    rng = np.random.default_rng(0)

    def event(y: np.ndarray) -> float:
        return float(np.mean((np.abs(y) < 2) & (y * 2.0**53 != np.round(y * 2.0**53))))

    assert event(rng.standard_normal(100_000)) > 0.2
    assert event(1.0 + rng.standard_normal(100_000)) == 0.0
    for x in (0.0, 1.0):
        signal = Signal(torch.full((1, 100_000), x, dtype=torch.float64), bound=1.0, unit="record")
        assert event(gaussian(1.0)(signal, at()).value.numpy()) == 0.0


def test_for_inputs_on_the_grid_it_is_integer_noise(at):
    """Round(x + N) = x + round(N): post-processing of a Gaussian and integer noise are one (SPEC 4)."""
    grid = grid_of(gaussian, 1.0, 1.0, 1)
    x = torch.arange(-500, 500, dtype=torch.float64)[None, :] * grid * 1024
    noisy = gaussian(1.0)(Signal(x, bound=1.0, unit="record"), at()).value
    alone = gaussian(1.0)(Signal(torch.zeros_like(x), bound=1.0, unit="record"), at()).value
    assert torch.equal(noisy, x + alone)


@pytest.mark.parametrize("make", [discrete_gaussian, skellam], ids=lambda m: m.__name__)
def test_rounding_first_keeps_the_enforced_sensitivity(make, at):
    dim = 400
    generator = torch.Generator().manual_seed(2)
    stage = make(1.0)
    grid = stage.grid(1.0, dim)
    enforced = stage(Signal(torch.zeros(1, dim), bound=1.0, unit="record"), at()).bound
    worst = 0.0
    for _ in range(300):
        x = torch.randn(1, dim, generator=generator, dtype=torch.float64)
        move = torch.randn(1, dim, generator=generator, dtype=torch.float64)
        y = x + move / row_norms(move)
        worst = max(worst, float(row_norms(((x / grid).round() - (y / grid).round()) * grid)))
    assert worst <= enforced <= 1.01
    assert enforced == pytest.approx(1.0 + grid * math.sqrt(dim))


def test_skellam_noise_spans_the_grid_that_its_accounting_assumes():
    for multiplier in (0.1, 1.0, 30.0):
        for dim in (1, 100, 10_000_000):
            steps = multiplier / skellam(multiplier).grid(1.0, dim)
            assert 2**10 <= steps <= 2**17


@each
def test_unbounded_signals_are_refused(make, at):
    with pytest.raises(Refused, match=rf"{make.__name__}: the signal has no bound; put a clip before the noise"):
        make(1.0)(Signal(torch.zeros(1, 3)), at())


@each
def test_other_bad_input(make, at):
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(Refused, match="multiplier"):
            make(bad)
    with pytest.raises(Refused, match="not finite"):
        make(1.0)(Signal(torch.tensor([[math.nan]]), bound=1.0, unit="record"), at())
    with pytest.raises(Refused, match="streams"):
        make(1.0)(Signal(torch.zeros(2, 3), bound=1.0, unit="record"), at())


def test_a_chain_of_clip_and_noise(at):
    ctx = at(2)
    out = chain(clip(1.0), gaussian(0.5))(Signal(torch.full((2, 8), 9.0)), ctx)
    assert (out.bound, out.unit, out.noise_var, out.released) == (1.0, "client", 0.25, True)
    assert [r.clients for r in ctx.releases] == [(0, 1)]


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rows_of_any_kind_get_noise(dtype, at):
    """Half precision, rows with a history, and rows that lie apart in memory."""
    wide = torch.zeros(2, 2 * BLOCK, dtype=dtype)
    for value in (wide, wide[:, ::2], wide.clone().requires_grad_(), wide.t().contiguous().t()):
        out = gaussian(1.0)(Signal(value, bound=1.0, unit="client"), at(2)).value
        assert out.dtype == dtype
        assert out.double().std().item() == pytest.approx(1.0, abs=0.05)

"""Noise that clients share out: its variance, the wire's arithmetic, the grid, and what the ledger says."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import ModularSum

from fedveil.aggregate.mean import Mean
from fedveil.core.errors import Aborted, Refused
from fedveil.core.flat import Layout
from fedveil.core.method import Method
from fedveil.core.signal import Signal
from fedveil.core.stage import Context, chain
from fedveil.core.streams import stream
from fedveil.local.rules import FedAvg, Scaffold
from fedveil.privacy import discrete, rdp
from fedveil.privacy.clip import clip
from fedveil.privacy.distributed import WRAP, distribute, finest
from fedveil.privacy.events import Event, WithoutReplacement, event_of
from fedveil.privacy.search import noise_multiplier, smallest_multiplier
from fedveil.transport.plain import Plain

NOISES = ["skellam", "discrete_gaussian"]
each = pytest.mark.parametrize("noise", NOISES)


def context(rows, dim, seed=0, round=3):
    streams = [stream(seed, "test", row) for row in range(rows)]
    return Context(round, Layout(("w",), ((dim,),)), list(range(rows)), streams, slot="on_delta")


def stages(rows, *, sigma=2.0, norm=1.0, noise="skellam", bits=18, transport=None, **kw):
    transport = transport or ModularSum(bits=bits, **kw)
    return distribute(sigma, norm=norm, fewest=rows, most=rows, transport=transport, noise=noise), transport


def journey(moves, *, seed=0, sigma=2.0, norm=1.0, noise="skellam", bits=18, weight=1.0, **kw):
    """The sum of the moves as the server gets it."""
    rows, dim = moves.shape
    (at_client, at_server), transport = stages(rows, sigma=sigma, norm=norm, noise=noise, bits=bits, **kw)
    ctx = context(rows, dim, seed)
    sent = at_client(clip(norm)(Signal(moves), ctx), ctx)
    delivery = transport.carry({"move": sent}, torch.full((rows,), weight, dtype=torch.float64), ctx)
    mean = sent.rows_at(delivery.arrived).mean(
        torch.full((len(delivery.arrived),), weight, dtype=torch.float64), delivery.uploads["move"]
    )
    server = replace(ctx, clients=[None], streams=[stream(seed, "server")], slot="on_mean")
    return sent, at_server(mean, server), ctx


def moves(rows, dim, seed=1):
    drawn = torch.from_numpy(stream(seed, "moves").normal(size=(rows, dim)))
    return drawn / drawn.norm(dim=1, keepdim=True) * 0.8


@each
def test_the_noise_has_the_variance_that_the_ledger_says(noise):
    """3 standard errors; the sum of a whole cohort, of which none is lost."""
    rows, dim, sigma = 20, 2**15, 2.0
    x = moves(rows, dim)
    _, total, ctx = journey(x, sigma=sigma, noise=noise)
    noise_left = (total.value - x.sum(0)).numpy()
    release = ctx.releases[0]
    assert release.noise_std / release.bound == pytest.approx(sigma)
    # the rounding of each client adds at most a quarter of a step squared
    step = 1 / stages(rows, sigma=sigma, noise=noise)[0][0].grid(1.0, dim).per_unit
    assert abs(noise_left.mean()) <= 4 * release.noise_std / math.sqrt(dim)
    assert abs(noise_left.var() / (release.noise_std**2 + rows * step**2 / 6) - 1) <= 3 * math.sqrt(2 / dim)
    assert float(total.noise_var) == pytest.approx(release.noise_std**2)
    assert total.value.shape == (1, dim) and total.released and total.grid is None


@each
def test_noise_of_eight_tenths_is_caught(noise, monkeypatch):
    """The test above has the power to see a mutant."""
    from fedveil.privacy import distributed

    honest = distributed._SAMPLERS[noise]
    monkeypatch.setitem(distributed._SAMPLERS, noise, lambda rng, std, size: honest(rng, 0.8 * std, size))
    with pytest.raises(AssertionError):
        test_the_noise_has_the_variance_that_the_ledger_says(noise)


def test_whoever_is_lost_and_whoever_colludes_has_been_made_up_for():
    """The honest shares of the smallest sum have the deviation that is charged: 20 − 4 lost − 3 colluding."""
    rows, dim = 20, 2**15
    sent, _, ctx = journey(torch.zeros(rows, dim), max_lost=4, colluding=3, lost=4)
    (pool,) = {r.pool for r in ctx.releases}
    assert (pool.honest, pool.colluding) == (13, 3)
    grid = stages(rows, max_lost=4, colluding=3)[0][0].grid(1.0, dim)
    assert grid.share * math.sqrt(13) == pytest.approx(2.0 * grid.norm) == pytest.approx(pool.steps)
    honest = sent.value[:13].sum(0).double().numpy()
    assert abs(honest.var() / pool.steps**2 - 1) <= 3 * math.sqrt(2 / dim)


@each
def test_what_travels_is_whole_bounded_and_sums_exactly(noise):
    rows, dim = 12, 3000
    x = moves(rows, dim)
    sent, total, _ = journey(x, noise=noise, weight=0.25)
    assert sent.grid == 1.0 and sent.released and sent.unit == "client"
    whole = sent.value.numpy().astype(object)
    assert np.all(sent.value.numpy() == np.floor(sent.value.numpy()))
    exact = whole.sum(0)
    assert max(abs(int(v)) for v in exact) < 2**17
    # Python's integers modulo 2^18, centred, are what the server undoes
    wrapped = [((int(v) + 2**17) % 2**18) - 2**17 for v in exact]
    from fedveil.privacy.rotation import unrotate

    grid = stages(rows, noise=noise)[0][0].grid(1.0, 4096)
    expected = unrotate(torch.tensor([wrapped], dtype=torch.float64), dim, 3) / grid.per_unit * 0.25
    assert torch.allclose(total.value.double(), expected, atol=1e-12)


def test_the_sensitivity_is_the_norm_after_rounding(monkeypatch):
    """Without its noise, no upload is longer than the bound that is charged, whatever the move."""
    from fedveil.privacy import distributed

    monkeypatch.setitem(distributed._SAMPLERS, "skellam", lambda rng, std, size: np.zeros(size, np.int64))
    x = torch.cat([moves(3, 1000) * 100, torch.full((1, 1000), math.nan, dtype=torch.float64), torch.zeros(1, 1000)])
    sent, _, ctx = journey(x)
    grid = stages(5)[0][0].grid(1.0, 1024)
    assert torch.all(sent.value.double().norm(dim=1) <= grid.norm)
    assert sent.value[:3].double().norm(dim=1).min() > 0.99 * grid.norm
    assert not sent.value[3:].any()
    assert sent.bound == grid.norm
    assert ctx.releases[0].bound == pytest.approx(grid.norm / grid.per_unit)


def test_a_ledger_line_is_priced_by_the_skellam_bound():
    _, _, ctx = journey(moves(10, 500), max_lost=2, colluding=1)
    event = event_of(ctx.releases[0])
    pool = ctx.releases[0].pool
    assert (event.mechanism, event.dim, event.grid_std) == ("skellam", 512, pool.steps)
    two, mu, a = pool.steps / 2.0, pool.steps**2, 8
    one = two * min(math.sqrt(512), two)
    expected = a * two**2 / (2 * mu) + min(((2 * a - 1) * two**2 + 6 * one) / (4 * mu**2), 3 * one / (2 * mu))
    assert rdp.plain(event, np.array([8.0]))[0] == pytest.approx(expected, rel=1e-12)
    assert np.isinf(rdp.plain(event, np.array([8.5]))[0])


@given(st.integers(0, 20), st.integers(2, 300), st.floats(0.3, 20), st.integers(14, 24), st.floats(0.3, 1.0))
@settings(max_examples=100)
def test_the_grid_is_as_fine_as_wrapping_allows(log_dim, most, sigma, bits, share):
    dim, honest = 2**log_dim, max(1, int(share * most))
    try:
        grid = finest(sigma, dim, most, honest, bits)
    except Refused:
        return
    assert grid.wrap <= WRAP
    assert grid.share**2 * honest == pytest.approx(grid.noise**2)
    # far more room than the deviations of everything that is in it
    spread = math.hypot(grid.share * math.sqrt(most), most * grid.per_unit / math.sqrt(dim))
    assert 7 * spread + most < 2 ** (bits - 1)


def test_wrapping_is_as_rare_as_is_said():
    """At a chance of 2⁻³ instead of 2⁻⁴⁰ the bound is loose enough to be seen to hold: 400 rounds."""
    rows, dim, rng = 30, 64, stream(6, "wrap")
    import fedveil.privacy.distributed as distributed

    before, wraps = distributed.WRAP, 0
    try:
        distributed.WRAP = 2.0**-3
        finest.cache_clear()
        grid = finest(1.0, dim, rows, rows, 14)
        assert grid.wrap <= 2.0**-3
        for _ in range(400):
            signs = rng.choice([-1.0, 1.0], size=dim)
            total = rows * grid.per_unit * signs / math.sqrt(dim)  # all clients alike, one coordinate, spread
            total = total + sum(discrete.skellam(rng, grid.share, dim) for _ in range(rows))
            wraps += bool(np.abs(total).max() >= 2**13)
        assert wraps <= 400 * 2**-3
    finally:
        distributed.WRAP = before
        finest.cache_clear()


def test_too_few_bits_are_refused_with_the_number_that_is_enough():
    with pytest.raises(Refused, match=r"transport\.bits: 12 bits .* give 13 or more"):
        journey(moves(50, 2000), bits=12, sigma=4.0)
    journey(moves(50, 2000), bits=13, sigma=4.0)
    with pytest.raises(Refused, match=r"transport\.bits: 7 bits hold no sum"):
        journey(moves(5, 20), bits=7)
    with pytest.raises(Refused, match=r"transport\.collusion: of 5 clients 5 may collude .* -1 honest"):
        journey(moves(5, 20), colluding=5, max_lost=1)
    with pytest.raises(Refused, match="discrete Gaussian would span"):
        journey(moves(300, 20), bits=14, sigma=0.5, noise="discrete_gaussian")


def test_cohorts_of_another_size_come_to_nothing():
    (at_client, _), _ = stages(5)
    ctx = context(4, 20)
    with pytest.raises(Aborted, match="4 clients were drawn"):
        at_client(clip(1.0)(Signal(moves(4, 20)), ctx), ctx)


def recipe(transport, local=None):
    at_client, at_server = distribute(1.0, norm=1.0, fewest=4, most=4, transport=ModularSum())
    return Method(
        name="mine",
        local=local or FedAvg(),
        on_delta=chain(clip(1.0), at_client),
        on_mean=at_server,
        transport=transport,
        aggregate=Mean(),
    )


def test_shared_noise_needs_a_transport_that_shows_sums_alone():
    assert recipe(ModularSum()).local_privacy
    with pytest.raises(Refused, match="Plain shows the server every single upload; set transport=masks"):
        recipe(Plain())
    with pytest.raises(Refused, match="remembers"):
        recipe(ModularSum(), Scaffold(control="private"))


@pytest.mark.parametrize(("clients", "dim", "rounds"), [(100, 2**15, 50), (30, 2**15, 50), (100, 2**15, 1)])
def test_the_noise_is_within_a_hundredth_of_central_gaussian_noise(clients, dim, rounds):
    """18 bits, epsilon 8, delta 1e-5: the deviation on the sum, in units of the clip norm, measured on a sum."""
    central = noise_multiplier(8.0, 1e-5, 1.0, rounds)

    def at(sigma):
        grid = finest(sigma, dim, clients, clients, 18)
        return {Event("skellam", sigma, grid_std=grid.noise, dim=dim): rounds}

    sigma = smallest_multiplier(at, 8.0, 1e-5)
    sums = [journey(torch.zeros(clients, dim), sigma=sigma, seed=seed) for seed in range(4)]
    measured = math.sqrt(np.mean([float(total.value.double().square().mean()) for _, total, _ in sums]))
    assert sums[0][2].releases[0].noise_std / central < 1.0025
    assert abs(measured / central - 1) < 0.01  # 3.6 standard errors and a half


def test_drawing_without_replacement_amplifies_any_mechanism_by_the_theorem():
    """On the Gaussian, the general bound lies between the library's own and no amplification at all."""
    orders = np.array([2.0, 3.0, 8.0, 20.0, 64.0])
    drawn = WithoutReplacement(5, 100)
    gaussian, fine = Event("gaussian", 4.0, drawn), Event("skellam", 4.0, drawn, grid_std=1e6)
    library = rdp_privacy_accountant.RdpAccountant(orders, rdp.REPLACE_ONE).compose(
        dp_event.SampledWithoutReplacementDpEvent(100, 5, dp_event.GaussianDpEvent(2.0))
    ).rdp  # fmt: skip
    ours = rdp._drawn(fine, orders)
    assert np.all(ours >= np.asarray(library) * (1 - 1e-9))
    assert ours[0] < 0.1 * rdp.plain(replace(gaussian, sampling=None), orders)[0]
    assert np.all(rdp.one_step(fine, (2.0, 3.0, 8.0)) <= rdp.plain(replace(fine, sampling=None), orders[:3]))


def test_the_theorem_by_hand():
    event = Event("discrete_gaussian", 3.0, WithoutReplacement(1, 10))
    e2, e3 = 2 * 4 / (2 * 9), 3 * 4 / (2 * 9)  # replacing: twice the sensitivity
    inside = 1 + 0.01 * 3 * min(4 * math.expm1(e2), 2 * math.exp(e2)) + 2 * 0.001 * math.exp(2 * e3)
    assert rdp._drawn(event, np.array([3.0]))[0] == pytest.approx(math.log(inside) / 2, rel=1e-12)

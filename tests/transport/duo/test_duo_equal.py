"""Encrypted equals plaintext, and an upload that is too long counts as zeros."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.support import require
from tests.transport.duo.duet import Duet, cohort, keys

from fedveil.aggregate.centered_clipping import centered_clipping
from fedveil.aggregate.evidence import entropy, sums
from fedveil.aggregate.krum import krum
from fedveil.aggregate.order import trimmed_mean
from fedveil.transport.duo import fixed, wide
from fedveil.transport.duo.client import decrypt, unsealed
from fedveil.transport.duo.lattice import ring
from fedveil.transport.duo.parameters import VECTORS

require("tenseal")
ROUNDS = [
    (n, d, attackers, kind, seed)
    for n, d, few in ((5, 60, 1), (5, 9000, 1), (10, 500, 2), (10, 2500, 3), (20, 130, 4), (20, 1100, 4))
    for seed, (attackers, kind) in enumerate(((0, "none"), (few, "sign_flip"), (few, "alie")))
] + [(10, 20_000, 2, "gaussian", 7), (20, 4000, 4, "gaussian", 8)]
"""20 rounds: with and without attackers, of 5, 10 and 20 clients."""


def reference(x: torch.Tensor, f: int) -> dict[str, np.ndarray]:
    found = {"mean": x.mean(0), "trimmed_mean": trimmed_mean(x, f), "krum": krum(x, f)}
    found["centered_clipping"] = centered_clipping(x, iterations=1)
    return {name: value.numpy() for name, value in found.items()}


def check_round(duet: Duet, x: np.ndarray, number: int, last=(None, None), before: np.ndarray | None = None):
    """One round, all statistics and rules, against the rules that see everything."""
    n, f = len(x), duet.plan.byzantine
    clear = torch.from_numpy(x)
    round = duet.begin(x, number, last)
    known, deviations = sums(clear, None if before is None else torch.from_numpy(before))
    seen = duet.both(lambda r: r.sense(), round)[0]
    for name in ("energy", "common", "quartic", "spread"):
        found = seen.energy - seen.common / n if name == "spread" else getattr(seen, name)
        assert found == pytest.approx(getattr(known, name), rel=1e-4)
    assert seen.along == pytest.approx(known.along, rel=1e-4, abs=1e-6)
    assert seen.reference == pytest.approx(known.reference, rel=1e-4)
    one, two = duet.both(lambda r: fixed.deviations(r.party("test").lifted(r._products[:n, :n].copy())), round)
    shared = np.array(wide.signed((one + two) % wide.RING), float) * (duet.plan.unit / n) ** 2
    assert shared == pytest.approx(deviations.numpy(), rel=1e-5)
    results = {}
    for name, wanted in reference(clear, f).items():
        found, updates = duet.result(round, name)
        results[name] = found, updates
        assert found == pytest.approx(wanted, abs={"mean": 1e-6, "centered_clipping": 1e-4}.get(name, 1e-5)), name
        if name == "krum":
            assert np.linalg.norm(x - found, axis=1).argmin() == np.linalg.norm(x - wanted, axis=1).argmin()
    return round, results


@pytest.mark.parametrize(("n", "d", "attackers", "kind", "seed"), ROUNDS)
def test_a_round_equals_the_plaintext_rules(n, d, attackers, kind, seed):
    rng = np.random.default_rng(100 * n + seed)
    duet = Duet(keys(n, d, byzantine=1 if n == 5 else n // 5))
    _, results = check_round(duet, cohort(rng, n, d, attackers, kind), 0)
    before, updates = results["trimmed_mean"]
    check_round(duet, cohort(rng, n, d, attackers, kind), 1, updates, before)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "attackers"), [(10, 2), (20, 4), (20, 0)])
def test_long_uploads_equal_the_plaintext_rules(n, attackers):
    duet = Duet(keys(n, 100_000, byzantine=n // 5))
    check_round(duet, cohort(np.random.default_rng(n), n, 100_000, attackers), 0)


@pytest.mark.parametrize(("n", "hide"), [(5, False), (10, True), (20, False)])
def test_the_entropy_is_the_plaintext_one(n, hide):
    for number, attackers in enumerate((0, n // 5)):
        x = cohort(np.random.default_rng(n + number), n, 400, attackers)
        duet = Duet(keys(n, 400, byzantine=1, entropy=True))
        round = duet.begin(x, number)
        seen, nothing = duet.both(lambda r: r.indicate(hide_s=hide), round)
        deviations = sums(torch.from_numpy(x))[1]
        assert nothing is None
        assert seen.entropy == pytest.approx(entropy(deviations), abs=2e-3)
        assert (seen.entropy * 2**10) % 1 == 0  # rounded before it is opened
        names = duet.ends[0].record.names()
        assert ("spread" in names) is not hide
        assert hide or seen.spread == pytest.approx(float(deviations.sum()), rel=1e-4)


@pytest.mark.parametrize("rule", ["mean", "trimmed_mean", "krum", "centered_clipping"])
@pytest.mark.parametrize("long", [1.001, 3.0, 64.0, 200.0, 30_000.0])
def test_an_upload_beyond_the_bound_counts_as_zeros(rule, long):
    """64 bounds are 2^32 units, whose square is 0 modulo 2^64: the check must not fall for it."""
    n, d, f = 7, 40, 2
    x = cohort(np.random.default_rng(3), n, d)
    x[4] = 0
    x[4, 17] = long
    duet = Duet(keys(n, d, byzantine=f))
    round = duet.begin(x)
    seen = duet.both(lambda r: r.sense(), round)[0]
    found, _ = duet.result(round, rule)
    x[4] = 0
    assert found == pytest.approx(reference(torch.from_numpy(x), f)[rule], abs=1e-5)
    assert seen.energy == pytest.approx((x**2).sum(), rel=1e-6)


def test_an_upload_at_the_bound_counts_and_nothing_tells_who_did_not():
    x = np.zeros((3, 50))
    x[0, 0], x[1, 1], x[2, 2] = 1.0, -1.0, 1.1
    duet = Duet(keys(3, 50))
    round = duet.begin(x)
    found, _ = duet.result(round, "mean")
    assert found[:3] == pytest.approx([1 / 3, -1 / 3, 0], abs=1e-6)  # n stays
    assert duet.ends[0].record.names() == ["seats"]
    assert duet.ends[1].record.names() == []


@pytest.mark.parametrize(("n", "d"), [(2, 1), (3, 7), (100, 3)])
def test_small_and_large_cohorts(n, d):
    x = cohort(np.random.default_rng(n), n, d)
    duet = Duet(keys(n, d, bound=2.5, byzantine=(n - 1) // 2 if n < 100 else 8))
    round = duet.begin(2.5 * x)
    for rule in ("mean", "centered_clipping", *(("trimmed_mean",) if n > 2 else ()), *(("krum",) if n > 99 else ())):
        clear = torch.from_numpy(2.5 * x)
        wanted = {
            "mean": lambda c: c.mean(0),
            "centered_clipping": lambda c: centered_clipping(c, iterations=1),
            "trimmed_mean": lambda c: trimmed_mean(c, duet.plan.byzantine),
            "krum": lambda c: krum(c, duet.plan.byzantine),
        }[rule](clear)
        assert duet.result(round, rule)[0] == pytest.approx(wanted.numpy(), abs=1e-5), rule


def test_equal_uploads_and_zeros():
    for value in (0.0, 0.3):
        x = np.full((6, 9), value) / 3
        duet = Duet(keys(6, 9, byzantine=1))
        round = duet.begin(x)
        for rule in ("mean", "trimmed_mean", "krum", "centered_clipping"):
            assert duet.result(round, rule)[0] == pytest.approx(x[0], abs=1e-6), rule


def test_equal_uploads_have_the_entropy_of_calm():
    duet = Duet(keys(5, 40, entropy=True))
    round = duet.begin(np.zeros((5, 40)))
    seen = duet.both(lambda r: r.indicate(), round)[0]
    assert math.isfinite(seen.entropy)


def test_results_are_switched_to_the_clients_key():
    x = cohort(np.random.default_rng(1), 5, 9000)
    duet = Duet(keys(5, 9000, byzantine=1))
    round = duet.begin(x)
    for rule in ("mean", "trimmed_mean"):
        found, updates = duet.result(round, rule)
        body, nothing = duet.both(lambda r, update: r.deliver(update, "switch"), round, updates)
        assert nothing is None
        assert np.array_equal(decrypt(duet.keys.clients, body), found)


def test_noise_of_a_server_is_in_the_result_and_not_in_the_reference():
    x = cohort(np.random.default_rng(2), 4, 30)
    duet = Duet(keys(4, 30))
    round = duet.begin(x)
    found, updates = duet.result(round, "mean")
    noise = np.arange(30, dtype=np.uint64) << np.uint64(20)
    parts = duet.both(lambda r, u, extra: r.deliver(u, noise=extra), round, updates, (noise, None))
    from fedveil.transport.duo.client import combine

    assert combine(*parts) - found == pytest.approx(noise.astype(float) * updates[0].unit)


@pytest.mark.parametrize("kind", ["residues at random", "half the modulus", "2^64 more"])
def test_a_ciphertext_of_what_no_client_may_send_counts_as_zeros(kind):
    """Well-formed, and beyond all that a sealer would encrypt; a number that is an honest one modulo 2^64 is that."""
    duet, rng = Duet(keys(4, 300)), np.random.default_rng(0)
    x, place = cohort(rng, 4, 300), ring(VECTORS)
    parts = [unsealed(duet.plan, duet.seal(row)) for row in x]
    primes = place.primes[: VECTORS.levels]
    if kind == "residues at random":
        parts[1] = np.stack([rng.integers(0, q, (1, 2, place.degree), dtype=np.uint64) for q in primes], axis=2)
    else:
        more = math.prod(primes) // 2 if kind == "half the modulus" else primes[2] << 64
        lies = np.array([[[more % q] * place.degree for q in primes]], np.uint64)
        parts[1][:, 0] = place.plus(parts[1][:, 0], place.forward(lies))
    given = (None, list(enumerate(parts)))
    round = duet.both(lambda server, uploads: server.round(0, uploads), (duet.one, duet.two), given)
    kept = x.copy()
    kept[1] *= kind == "2^64 more"
    assert duet.result(round, "mean")[0] == pytest.approx(kept.mean(0), abs=1e-6)
    seen, _ = duet.both(lambda r: r.sense(), round)
    assert seen.energy == pytest.approx(float((kept**2).sum()), rel=1e-5)


def test_krum_that_picks_an_upload_beyond_the_bound_returns_zeros():
    """Zeros in its place are nearest to uploads that point everywhere: what is returned must be those zeros."""
    duet, x = Duet(keys(5, 400, byzantine=1)), np.random.default_rng(1).normal(size=(5, 400))
    x *= 0.9 / np.linalg.norm(x, axis=1)[:, None]
    x[2] *= 1000
    assert (duet.result(duet.begin(x), "krum")[0] == 0).all()

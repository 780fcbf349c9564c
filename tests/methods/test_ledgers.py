"""For every variant the ledger is a hand count: steps, rounds joined, rates, noise; and the statement follows from it."""

import math
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from tests.methods.common import IDS, VARIANTS
from tests.support import blobs

import fedveil
from fedveil.aggregate.order import Median
from fedveil.core.parts import Delivery
from fedveil.methods.dp_fedavg_local import dp_fedavg_local
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.rdp import ORDERS
from fedveil.transport.plain import Plain

BATCH, STEPS, LR, CLIP, SIGMA, ROUNDS = 8, 3, 0.1, 0.7, 1.5, 4


def run(tmp_path, method, *overrides, rounds=ROUNDS, cohort=2, **kw):
    texts = [f"sigma={SIGMA}", f"clip_norm={CLIP}", f"batch={BATCH}", f"lr={LR}"]
    settings = {"model": "logistic", "rounds": rounds, "cohort": cohort, "out": tmp_path / "r", "data": blobs()} | kw
    return fedveil.run(*texts, *overrides, method=method, **settings)


def reference(rate, multiplier, times):
    """Another implementation: dp-accounting, composed directly."""
    accountant = rdp_privacy_accountant.RdpAccountant(list(ORDERS))
    event = dp_event.GaussianDpEvent(multiplier)
    accountant.compose(event if rate == 1 else dp_event.PoissonSampledDpEvent(rate, event), times)
    return accountant.get_epsilon(1e-5)


def joined(result):
    return Counter(k for event in result.history for k in event["clients"])


def rows(result):
    return {(r.observer, r.unit): r for r in result.statement.rows if r.status != "nominal"}


@pytest.mark.parametrize(("method", "variant"), VARIANTS, ids=IDS)
def test_the_ledger_is_a_hand_count(tmp_path, method, variant):
    result = run(tmp_path, method, f"algorithm_variant={variant}", f"steps={STEPS}")
    sizes = blobs().sizes
    counts, rates = Counter(), {}
    for entry, event in zip(Ledger.replay(result.folder.ledger).entries, result.history, strict=True):
        assert sorted(k for line in entry.lines for k in line.clients) == event["clients"], "each client once"
        for line in entry.lines:
            made = line.release
            assert (made.mechanism, line.observers) == ("gaussian", ("server", "public"))
            assert made.noise_std / made.bound == pytest.approx(SIGMA)
            if variant.startswith("step"):
                assert (made.slot, made.unit, made.count, made.bound) == ("on_step", "record", STEPS, CLIP)
            else:
                assert (made.slot, made.unit, made.count) == ("on_delta", "client", 1)
                assert made.bound == pytest.approx(STEPS * LR * CLIP)
                assert line.sampling is None, "batches amplify nothing here"
            for k in line.clients:
                counts[k] += made.count
                rates[k] = 1.0 if line.sampling is None else line.sampling.rate
    times = joined(result)
    if variant.startswith("step"):
        assert rates == {k: pytest.approx(min(1.0, BATCH / sizes[k])) for k in times}
        assert counts == {k: STEPS * t for k, t in times.items()}
        expected = max(reference(rates[k], SIGMA, counts[k]) for k in times)
        assert rows(result)["server", "record"].epsilon == pytest.approx(expected, rel=2e-3)
        assert rows(result)["server", "client"].status == "none"
    else:
        assert counts == times
        assert rows(result)["server", "client"].epsilon == pytest.approx(
            reference(1, SIGMA, max(times.values())), rel=2e-3
        )


def test_epochs_become_steps_and_differ_by_client(tmp_path):
    result = run(tmp_path, "dp_fedavg_local", "local_epochs=2", cohort=4, rounds=2)
    (lines, _) = (entry.lines for entry in Ledger.replay(result.folder.ledger).entries)
    counted = {k: line.release.count for line in lines for k in line.clients}
    assert counted == {k: 2 * math.ceil(n / BATCH) for k, n in enumerate(blobs().sizes)}
    note = rows(result)["server", "record"].note
    assert "worst of 4 clients" in note
    assert "range from" in note


def test_shuffled_batches_are_counted_without_amplification(tmp_path):
    result = run(tmp_path, "dp_fedavg_local", f"steps={STEPS}", "sampling=shuffled", cohort=4)
    assert rows(result)["server", "record"].epsilon == pytest.approx(reference(1, SIGMA, STEPS * ROUNDS), rel=2e-3)


def test_central_noise_counts_every_round_for_everybody(tmp_path):
    result = run(tmp_path, "dp_fedavg_central", "steps=2", "selection=poisson")
    claim = rows(result)["public", "client"]
    assert claim.epsilon == pytest.approx(reference(0.5, SIGMA, ROUNDS), rel=2e-3)
    assert claim.sampling == "Poisson clients, rate 0.5"
    assert rows(result)["server", "client"].status == "none"
    for entry in Ledger.replay(result.folder.ledger).entries:
        (line,) = entry.lines
        assert (line.release.slot, line.clients, line.release.bound) == ("on_mean", None, pytest.approx(CLIP / 2))


def test_a_poisson_round_to_which_nobody_comes_is_noise_like_any_other(tmp_path):
    """Rate 1/4 of four clients for 12 rounds: some are empty, and the model moves in every one of them."""
    result = run(tmp_path, "dp_fedavg_central", "steps=1", "selection=poisson", cohort=1, rounds=12)
    empty = [e["round"] for e in result.history if not e["clients"]]
    assert empty, "this seed has an empty round"
    assert len(Ledger.replay(result.folder.ledger).entries) == 12
    before = next(e for e in result.history if e["round"] == empty[0] - 1) if empty[0] > 1 else None
    here = next(e for e in result.history if e["round"] == empty[0])
    assert before is None or here["loss"] != before["loss"], "the model moved"


def test_control_variates_under_central_noise_never_leave_the_clients(tmp_path):
    result = run(tmp_path, "dp_fedavg_central", "steps=2", "drift=scaffold", "selection=poisson")
    dim = sum(p.numel() for p in result.model.parameters())
    assert all(e["bytes_up"] == len(e["clients"]) * dim * 4 for e in result.history), "one vector each"
    plain = run(tmp_path / "b", "dp_fedavg_central", "steps=2", "selection=poisson")
    assert rows(result)["public", "client"].epsilon == rows(plain)["public", "client"].epsilon


def test_hidden_control_variates_leave_no_draw_without_replacement_to_count(tmp_path):
    """c_k says when its client was drawn before, which the theorem about such draws does not allow for."""
    result = run(tmp_path / "a", "dp_fedavg_central", "steps=2", "drift=scaffold")
    claim, record = rows(result)["public", "client"], rows(result)["public", "record"]
    assert claim.epsilon == pytest.approx(reference(1, SIGMA, ROUNDS), rel=2e-3), "every round, nothing amplified"
    assert record.epsilon == pytest.approx(reference(1, SIGMA / 2, ROUNDS), rel=2e-3), "replacing: twice the bound"
    assert claim.sampling == "2 of 4 clients without replacement (not counted)"
    assert "depends on when it was drawn before" in claim.note
    plain = rows(run(tmp_path / "b", "dp_fedavg_central", "steps=2"))["public", "client"]
    assert plain.sampling == "2 of 4 clients without replacement"
    found = run(tmp_path / "c", "dp_fedavg_central", "steps=2", "drift=scaffold", "sigma=null", "privacy.epsilon=6")
    assert 5.9 < rows(found)["public", "client"].epsilon <= 6.0


def test_hidden_control_variates_and_independent_draws(tmp_path):
    """Poisson draws are independent of the past: they count for a zeroed client, not for a record (replacing)."""
    result = run(tmp_path, "dp_fedavg_central", "steps=2", "drift=scaffold", "selection=poisson")
    claim, record = rows(result)["public", "client"], rows(result)["public", "record"]
    assert claim.epsilon == pytest.approx(reference(0.5, SIGMA, ROUNDS), rel=2e-3)
    assert claim.sampling == "Poisson clients, rate 0.5"
    assert record.epsilon == pytest.approx(reference(1, SIGMA / 2, ROUNDS), rel=2e-3)
    assert record.sampling == "Poisson clients, rate 0.5 (not counted)"


def test_central_control_variates_move_by_the_noisy_mean_alone():
    """c ← c + (n/N)(−c − Δ̃/(Kη)) (SPEC 3.1)."""
    from fedveil.core.signal import Signal
    from fedveil.local.rules import Scaffold

    rule = Scaffold(1.0, 0.0, "private")
    server = {"w": torch.zeros(3), "c": torch.tensor([1.0, 2.0, 3.0])}
    mean = {"move": Signal(torch.tensor([[0.3, -0.6, 0.9]]))}
    after = rule.absorb(server, mean, 0.25, 0.5)
    assert torch.allclose(after["c"], server["c"] + 0.25 * (-server["c"] - mean["move"].value[0] / 0.5))
    assert torch.equal(after["w"], mean["move"].value[0])


def test_one_step_and_a_plain_mean_protect_better_against_the_public(tmp_path):
    """Multiplier σ√(n − 1): the cohort's noises, less that of one participant (SPEC 3.1)."""
    result = run(tmp_path, "dp_fedavg_local", "steps=1", cohort=4)
    sizes = blobs().sizes
    public = rows(result)["public", "record"]
    expected = max(reference(BATCH / n, SIGMA * math.sqrt(3), ROUNDS) for n in sizes)
    assert public.status == "proved"
    assert public.epsilon == pytest.approx(expected, rel=2e-3)
    assert public.epsilon < rows(result)["server", "record"].epsilon


def test_the_smallest_cohort_counts_where_cohorts_are_drawn_by_coins(tmp_path):
    """Poisson selection: n_t differs from round to round, and a client's records are charged for the smallest."""
    result = run(tmp_path, "dp_fedavg_local", "steps=1", "selection=poisson", data=blobs(8), cohort=5, rounds=8)
    cohorts = [e["clients"] for e in result.history]
    least = {k: min(len(c) for c in cohorts if k in c) for c in cohorts for k in c}
    assert len({len(c) for c in cohorts}) > 2 and min(least.values()) > 1
    public = rows(result)["public", "record"]
    expected = max(
        reference(BATCH / n, SIGMA * math.sqrt(least[k] - 1), joined(result)[k])
        for k, n in enumerate(blobs(8).sizes)
        if k in least
    )
    assert public.status == "proved"
    assert public.epsilon == pytest.approx(expected, rel=2e-3)


def test_only_a_plain_mean_averages_noises(tmp_path):
    shape = {"clip_norm": CLIP, "sigma": SIGMA, "batch": BATCH, "travel": LR, "steps": 1}
    method = dp_fedavg_local(**shape, aggregate=Median())
    settings = {"model": "logistic", "rounds": 2, "cohort": 4, "steps": 1, "lr": LR, "batch": BATCH}
    result = fedveil.run(method=method, data=blobs(), out=tmp_path / "r", **settings)
    assert {r.status for r in result.statement.rows} == {"proved", "none"}, "nothing is claimed of an average"
    assert rows(result)["public", "record"].epsilon == rows(result)["server", "record"].epsilon


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("dp_fedavg_local", ["steps=1", "sigma=null", "privacy.epsilon=4"]),  # each client its own noise
        ("dp_fedavg_local", ["steps=2"]),
        ("dp_fed_stein", ["steps=1", "algorithm_variant=step_noise_step_jse"]),
        ("dp_fed_stein", ["steps=1", "algorithm_variant=step_noise_final_jse"]),
        ("dp_scaffold", ["steps=1"]),
    ],
)
def test_anything_more_is_a_papers_claim(tmp_path, method, overrides):
    result = run(tmp_path, method, *overrides, cohort=4)
    server, public = rows(result)["server", "record"], rows(result)["public", "record"]
    assert public.epsilon == server.epsilon, "what is proved is the server's figure"
    (nominal,) = [r for r in result.statement.rows if r.status == "nominal"]
    assert (nominal.observer, nominal.unit) == ("public", "record")
    assert nominal.epsilon < public.epsilon
    assert nominal.note.startswith("nominal")


@dataclass(frozen=True)
class Lossy(Plain):
    """Loses every upload but the first two."""

    def carry(self, uploads, weights, ctx):
        here = torch.arange(2)
        return Delivery({name: s.value[here] for name, s in uploads.items()}, 0, here)


@pytest.mark.parametrize(("transport", "averaged"), [(Plain(), True), (Lossy(), False)])
def test_noise_that_did_not_arrive_protects_nobody(transport, averaged, tmp_path):
    """A mean over two uploads holds the noise of two clients, whoever was invited."""
    method = dp_fedavg_local(clip_norm=1.0, sigma=2.0, batch=16, travel=0.1, steps=1, transport=transport)
    result = fedveil.run(
        method=method,
        data=blobs(clients=8),
        model="logistic",
        cohort=8,
        rounds=2,
        steps=1,
        batch=16,
        out=tmp_path / "r",
    )
    rows = {(r.observer, r.unit): r for r in result.statement.rows if r.status == "proved"}
    public, server = rows["public", "record"].epsilon, rows["server", "record"].epsilon
    assert (public < server) == averaged
    assert public <= server

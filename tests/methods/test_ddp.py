"""Distributed DP-FedAvg as runs: what is refused, charged, stated, resumed and planned."""

from __future__ import annotations

import math
import re

import orjson
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from tests.support import blobs

import fedveil
from fedveil.core.errors import Refused
from fedveil.privacy.ledger import Ledger
from fedveil.runtime import inline
from fedveil.runtime.config import resolve
from fedveil.runtime.plan import plan
from fedveil.runtime.planning import Planner
from fedveil.runtime.prepare import prepare

CLIENTS = 20
SETTINGS = ["method=ddp_fedavg", "transport=masks", "model=logistic", "rounds=4", "steps=2"]


def run(folder, *overrides, cohort=CLIENTS, data=None, **settings):
    return fedveil.run(*SETTINGS, *overrides, cohort=cohort, data=data or blobs(CLIENTS), out=folder, **settings)


def rows(result):
    return {(r.observer, r.unit): r for r in result.statement.rows}


def lines(result):
    return [line for entry in Ledger.replay(result.folder.ledger).entries for line in entry.lines]


def gaussian(multiplier, rounds):
    accountant = rdp_privacy_accountant.RdpAccountant()
    accountant.compose(dp_event.GaussianDpEvent(multiplier), rounds)
    return accountant.get_epsilon(1e-5)


@pytest.mark.parametrize("noise", ["skellam", "discrete_gaussian"])
def test_the_ledger_counts_the_honest_shares_of_the_smallest_sum(tmp_path, noise):
    """20 clients, at most 4 lost and 2 colluding: n_min = 14, in every line, and in every row's words."""
    result = run(tmp_path / "run", "sigma=3", f"noise={noise}", "transport.dropout=0.2")
    assert len(lines(result)) == 4
    for line in lines(result):
        assert (line.release.pool.honest, line.release.pool.colluding) == (14, 2)
        assert line.release.noise_std == pytest.approx(3 * line.release.bound)
        assert 1.0 < line.release.bound < 1.002  # the clip norm, as rounding may lengthen it
        assert line.observers == ("server", "public")
    for row in rows(result).values():
        assert row.status == "proved" and row.accountant == "rdp"
        for words in ("at least 16 uploads", "a = 2", "n_min = 14", "semi-honest", "2021"):
            assert words in row.note
    found = rows(result)
    assert found["server", "client"].epsilon == pytest.approx(gaussian(3, 4), rel=5e-3)
    assert found["server", "record"].epsilon == pytest.approx(gaussian(1.5, 4), rel=1e-2)
    assert found["public", "client"].epsilon == found["server", "client"].epsilon
    assert found["public", "client"].sampling == "none"


def test_a_client_sends_noise_for_the_smallest_sum(tmp_path, monkeypatch):
    """√(1/14) of what is charged, measured on what leaves a client."""
    from fedveil.transport.masks.transport import Masks

    sent, carry = [], Masks.carry
    monkeypatch.setattr(
        Masks, "carry", lambda self, uploads, *a: (sent.append(uploads["move"]), carry(self, uploads, *a))[1]
    )
    result = run(tmp_path / "run", "sigma=30")
    pool = lines(result)[0].release.pool
    values = sent[0].value.double()
    spread = math.sqrt(2 / values.numel())
    # a move of norm 1 over 32 coordinates is small beside noise of deviation 8, and random in sign
    assert float(values.square().mean()) * 14 / pool.steps**2 == pytest.approx(1, abs=4 * spread + 0.01)


def test_plain_transport_is_refused_in_words(tmp_path):
    with pytest.raises(Refused, match=r"transport: .*their sum only.*transport=masks"):
        run(tmp_path / "run", "transport=plain", "sigma=1")
    with pytest.raises(Refused, match="one noise; give one number|sigma_per_client"):
        run(tmp_path / "run", "privacy.epsilon=8", "sigma_per_client=true")


def test_noise_is_calibrated_to_a_budget_that_it_then_fills(tmp_path):
    result = run(tmp_path / "run", "privacy.epsilon=6")
    assert rows(result)["server", "client"].epsilon == pytest.approx(6, rel=1e-3)
    assert result.summary["rounds_left"] == 0
    assert result.summary["epsilon"]["observer"] == "server"
    found = plan(prepare(resolve([*SETTINGS, "privacy.epsilon=6", f"cohort={CLIENTS}"]), data=blobs(CLIENTS)))
    assert (found.rounds, found.stopped) == (4, None)
    assert found.statement.rows == result.statement.rows
    assert found.noise[0].mechanism == "skellam"


@pytest.mark.parametrize("transport", ["masks", "he"])
def test_a_plan_takes_losses_and_aborted_trials_as_they_come(transport):
    """Whoever drops out of the trial round, or if it comes to nothing: the plan is there."""
    for dropout in (0.3, 0.95):
        method = ["sigma=3"] if transport == "masks" else ["method=fedavg"]
        texts = [*SETTINGS, f"transport={transport}", f"transport.dropout={dropout}", *method, f"cohort={CLIENTS}"]
        assert plan(prepare(resolve(texts), data=blobs(CLIENTS))).rounds == 4


def test_a_budget_ends_the_run(tmp_path):
    result = run(tmp_path / "run", "sigma=3", f"privacy.epsilon={gaussian(3, 2) * 1.01}")
    assert result.summary["rounds"] == 2
    assert "budget" in result.summary["status"] or "epsilon" in result.summary["status"]


def test_a_resumed_run_is_the_same_run(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", "sigma=3", "transport.dropout=0.1")
    commit, seen = inline._commit, []

    def interrupt(progress, after, stop):
        commit(progress, after, stop)
        seen.append(progress.round)
        if progress.round == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(inline, "_commit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", "sigma=3", "transport.dropout=0.1")
    monkeypatch.setattr(inline, "_commit", commit)
    resumed = fedveil.resume(tmp_path / "cut", data=blobs(CLIENTS))
    assert seen == [1, 2]
    assert resumed.summary["model_hash"] == whole.summary["model_hash"]
    assert resumed.statement.rows == whole.statement.rows
    assert len(lines(resumed)) == 4


def test_the_draw_of_clients_amplifies_towards_the_public_alone(tmp_path):
    result = run(tmp_path / "run", "sigma=2", "rounds=30", cohort=10, data=blobs(80, examples=2))
    found, drawn = rows(result), lines(result)
    count = max(sum(k in line.clients for line in drawn) for k in range(80))
    assert count < 15  # of 30
    assert found["server", "client"].epsilon == pytest.approx(gaussian(2, count), rel=5e-3)
    assert found["server", "client"].sampling == "none"
    assert found["public", "record"].epsilon < found["server", "record"].epsilon
    assert found["public", "record"].sampling == "10 of 80 clients without replacement"
    assert "only while it stays secret" in found["public", "record"].note
    assert found["public", "client"].epsilon <= found["server", "client"].epsilon


def test_a_poisson_cohort_counts_as_one_of_its_size(tmp_path):
    result = run(tmp_path / "run", "sigma=2", "selection=poisson", "rounds=8", cohort=20, data=blobs(60, examples=2))
    cohorts = {e["round"]: e["clients"] for e in result.history}
    for line in lines(result):
        assert line.sampling.size == len(cohorts[line.release.round]) == len(line.clients)
    assert len({len(c) for c in cohorts.values()}) > 2
    (pool,) = {line.release.pool for line in lines(result)}
    assert (pool.honest, pool.colluding) == (5, 3)  # 9 to 32 clients: 8 are left of the fewest, 3 collude of the most


def test_too_many_losses_abort_the_round_and_leave_the_model(tmp_path):
    result = run(tmp_path / "run", "sigma=3", "transport.dropout=0.5")
    events = [orjson.loads(x) for x in (result.folder.path / "events.jsonl").read_bytes().splitlines()]
    assert all("aborted" in e for e in events)
    assert len({e["loss"] for e in events}) == 1
    assert len(lines(result)) == 4  # charged all the same


def test_secret_cohorts_do_not_follow_from_the_seed(tmp_path):
    settings = ["privacy.rng=secure", "privacy.epsilon=8", "rounds=3"]
    data = blobs(60, examples=2)
    training = prepare(resolve([*SETTINGS, *settings, "cohort=10"]), data=data)
    planner = Planner(training)
    assert planner.secret_cohorts
    assert planner.cohort(1) == planner.cohort(2) == list(range(10))  # the worst case: the same clients every time
    first = run(tmp_path / "a", *settings, cohort=10, data=data)
    second = run(tmp_path / "b", *settings, cohort=10, data=data)
    drawn = [[e["clients"] for e in r.history] for r in (first, second)]
    assert drawn[0] != drawn[1]
    assert rows(first)["server", "client"].epsilon <= 8


def test_the_statement_is_readable(tmp_path):
    result = run(tmp_path / "run", "privacy.epsilon=6", "transport.active_server=true")
    text = result.folder.statement.with_suffix(".md").read_text()
    assert re.search(r"\| server \| client \| 6\.000 \| 1e-05 \| proved \| skellam \(client, shared by clients\)", text)
    assert "a server that may lie about who dropped out" in text

"""A run with a mechanism: charged before it releases, stopped by its budget, stated as the ledger has it."""

import math

import orjson
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from tests.support import blobs

import fedveil
from fedveil.aggregate.mean import Mean
from fedveil.core.errors import Refused
from fedveil.core.method import Method
from fedveil.core.stage import chain
from fedveil.local.rules import FedAvg, Scaffold
from fedveil.privacy.adaptive import adaptive_clip
from fedveil.privacy.clip import clip
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.noise import gaussian
from fedveil.runtime import inline
from fedveil.transport.plain import Plain

DELTA = 1e-5


def local(multiplier=2.0, rule=None):
    """Each client noises its own clipped move."""
    return Method(
        name="local",
        local=rule or FedAvg(),
        on_delta=chain(clip(1.0), gaussian(multiplier)),
        transport=Plain(),
        aggregate=Mean(),
    )


def central(multiplier=2.0):
    """The server noises the mean of clipped moves."""
    return Method(
        name="central",
        local=FedAvg(),
        on_delta=clip(1.0),
        on_mean=gaussian(multiplier),
        transport=Plain(),
        aggregate=Mean(),
    )


def adaptive(multiplier=2.0):
    """Central noise under a clip that learns its norm; move and count share a cohort and cost one release of z."""
    stage = adaptive_clip(cohort=4, count_std=1.5, start=0.05, lr=0.5)
    return Method(
        name="adaptive",
        local=FedAvg(),
        on_delta=stage,
        on_mean=gaussian(stage.remaining(multiplier)),
        transport=Plain(),
        aggregate=Mean(),
    )


def run(folder, method, *overrides, rounds=6, cohort=2, **kw):
    return fedveil.run(
        *overrides, method=method, data=blobs(), model="logistic", rounds=rounds, cohort=cohort, out=folder, **kw
    )


def reference(multiplier, times):
    accountant = rdp_privacy_accountant.RdpAccountant()
    accountant.compose(dp_event.GaussianDpEvent(multiplier), times)
    return accountant.get_epsilon(DELTA)


def rows(result):
    return {(r.observer, r.unit): r for r in result.statement.rows}


def test_local_noise_protects_clients_and_records_against_the_server(tmp_path):
    result = run(tmp_path / "r", local())
    joined = [sum(k in e["clients"] for e in result.history) for k in range(4)]
    expected = reference(2.0, max(joined))
    for row in rows(result).values():
        assert row.status == "proved"
        assert row.sampling == "none"
        # One record may turn a whole move round: twice the sensitivity of zeroing a client.
        of_unit = expected if row.unit == "client" else reference(1.0, max(joined))
        assert row.epsilon == pytest.approx(of_unit, rel=1e-3)
    assert "worst of" in rows(result)["server", "client"].note
    assert result.history[-1]["epsilon"]["epsilon"] == pytest.approx(expected, rel=1e-3)
    assert result.history[-1]["epsilon"]["observer"] == "server"


def test_central_noise_protects_only_against_the_public(tmp_path):
    result = run(tmp_path / "r", central())
    found = rows(result)
    assert (found["server", "client"].status, found["server", "record"].status) == ("none", "none")
    assert "before any noise" in found["server", "client"].note
    claim = found["public", "client"]
    assert claim.status == "proved"
    assert claim.sampling == "2 of 4 clients without replacement"
    assert math.isfinite(claim.epsilon)
    assert claim.epsilon < found["public", "record"].epsilon < math.inf
    assert "counted as replacing the client" in found["public", "record"].note


def test_the_ledger_is_a_hand_count(tmp_path):
    result = run(tmp_path / "r", local(rule=Scaffold()), rounds=5)
    ledger = Ledger.replay(result.folder.ledger)
    assert [e.round for e in ledger.entries] == [1, 2, 3, 4, 5]
    for entry, event in zip(ledger.entries, result.history, strict=True):
        (line,) = entry.lines
        assert sorted(line.clients) == event["clients"]
        assert (line.release.count, line.release.unit, line.release.mechanism) == (1, "client", "gaussian")
        assert (line.release.bound, line.release.noise_std) == (1.0, 2.0)
        assert (line.release.slot, line.observers) == ("on_delta", ("server", "public"))


def test_the_budget_ends_the_run_with_the_last_affordable_model(tmp_path):
    """Full participation: after t rounds ε is that of t Gaussians; the first t above the budget is not run."""
    budget = 4.0
    affordable = next(t for t in range(1, 100) if reference(2.0, t + 1) > budget)
    result = run(tmp_path / "r", local(), f"privacy.epsilon={budget}", rounds=100, cohort=4)
    assert result.summary["rounds"] == affordable < 100
    assert result.summary["rounds_left"] == 0
    assert "stopped early: the next round would spend epsilon" in result.summary["status"]
    assert rows(result)["server", "client"].epsilon <= budget
    shorter = run(tmp_path / "s", local(), rounds=affordable, cohort=4)
    assert shorter.summary["model_hash"] == result.summary["model_hash"]


def test_a_tighter_accountant_affords_more(tmp_path):
    by = {
        a: run(tmp_path / a, local(), "privacy.epsilon=4", f"privacy.accountant={a}", rounds=60, cohort=4).summary[
            "rounds"
        ]
        for a in ("rdp", "pld", "basic")
    }
    assert by["basic"] < by["rdp"] <= by["pld"]


def test_the_budget_holds_across_resumed_runs(tmp_path):
    whole = run(tmp_path / "whole", local(), "privacy.epsilon=4", rounds=100, cohort=4)
    run(tmp_path / "r", local(), "privacy.epsilon=4", rounds=3, cohort=4)
    config = tmp_path / "r/config.yaml"
    config.write_text(config.read_text().replace("rounds: 3", "rounds: 100"))
    resumed = fedveil.resume(tmp_path / "r", method=local(), data=blobs())
    assert resumed.summary["rounds"] == whole.summary["rounds"]
    assert resumed.summary["model_hash"] == whole.summary["model_hash"]
    assert resumed.statement == whole.statement


class Killed(BaseException):
    """Stands for a process that is gone."""


def killed_in_round(monkeypatch, number, when="after"):
    """Die in a round: before anything of it was computed, or after all of it was, with nothing saved."""
    compute = inline._round

    def die(training, progress, *rest):
        if progress.round + 1 == number and when == "before":
            raise Killed
        done = compute(training, progress, *rest)
        if progress.round + 1 == number:
            raise Killed
        return done

    monkeypatch.setattr(inline, "_round", die)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("rng", ["seeded", "secure"])
def test_an_interrupted_round_is_charged_exactly_as_often_as_it_released(tmp_path, monkeypatch, rng, when):
    with monkeypatch.context() as patch:
        killed_in_round(patch, 3, when)
        with pytest.raises(Killed):
            run(tmp_path / "r", local(), f"privacy.rng={rng}", rounds=5, cohort=4)
    assert [e.round for e in Ledger.replay(tmp_path / "r/ledger.jsonl").entries] == [1, 2, 3], "charged before it ran"
    result = fedveil.resume(tmp_path / "r", method=local(), data=blobs())
    entries = Ledger.replay(tmp_path / "r/ledger.jsonl").entries
    if rng == "seeded":
        assert [(e.round, e.status) for e in entries] == [(r, "charged") for r in range(1, 6)]
        assert result.summary["model_hash"] == run(tmp_path / "s", local(), rounds=5, cohort=4).summary["model_hash"]
        charged = 5
    else:
        assert [(e.round, e.status) for e in entries][2:4] == [(3, "interrupted"), (3, "charged")]
        assert any("Interrupted rounds" in n for n in result.statement.notes)
        charged = 6
    assert rows(result)["server", "client"].epsilon == pytest.approx(reference(2.0, charged), rel=1e-3)


def test_secure_noise_differs_from_run_to_run_and_seeded_noise_does_not(tmp_path):
    hashes = {
        rng: [
            run(tmp_path / f"{rng}{i}", local(), f"privacy.rng={rng}", rounds=2).summary["model_hash"] for i in (0, 1)
        ]
        for rng in ("seeded", "secure")
    }
    assert hashes["seeded"][0] == hashes["seeded"][1]
    assert hashes["secure"][0] != hashes["secure"][1]


def test_the_statement_says_what_is_not_covered(tmp_path):
    result = run(tmp_path / "r", local())
    text = (tmp_path / "r/statement.md").read_text()
    assert "Not covered: what this run folder says" in text
    assert "privacy.rng=seeded" in text
    assert "zero_out" in text
    data = orjson.loads((tmp_path / "r/statement.json").read_bytes())
    assert {r["status"] for r in data["rows"]} == {"proved"}
    assert type(result.statement).from_json(data) == result.statement
    assert not any("seeded" in n for n in run(tmp_path / "s", local(), "privacy.rng=secure").statement.notes)


def test_replacing_costs_more_than_zeroing(tmp_path):
    zero = run(tmp_path / "a", local(), rounds=3, cohort=4)
    replace = run(tmp_path / "b", local(), "privacy.adjacency=replace", rounds=3, cohort=4)
    assert rows(replace)["server", "client"].epsilon == pytest.approx(reference(1.0, 3), rel=1e-3)
    assert rows(replace)["server", "client"].epsilon > rows(zero)["server", "client"].epsilon


@pytest.mark.parametrize(
    ("method", "overrides", "message"),
    [
        ("fedavg", ["privacy.epsilon=1"], "privacy.epsilon: fedavg has no privacy mechanism"),
        (local(), ["privacy.epsilon=0"], "privacy.epsilon: 0.0 is not a positive number"),
        (local(), ["privacy.delta=1"], "privacy.delta: 1.0 is outside"),
        (local(), ["privacy.accountant=magic"], "privacy.accountant: 'magic' is unknown"),
        (local(), ["privacy.rng=dice"], "privacy.rng: 'dice' is unknown"),
        (local(), ["stop.patience=3"], "stop: stopping early on the test set reveals something"),
        (local(), ["privacy.epsilon=0.01"], "privacy.epsilon: the first round alone would spend"),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path, method, overrides, message):
    with pytest.raises(Refused, match=message):
        run(tmp_path / "r", method, *overrides)


def test_batch_statistics_and_pooled_scaling_are_refused_under_privacy(tmp_path):
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with pytest.raises(Refused, match="running statistic.*use GroupNorm, or set batch_norm=group_norm"):
        fedveil.run(method=local(), data=blobs(), model=net, out=tmp_path / "a")
    keeps = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten(), net)
    with pytest.raises(Refused, match="kept by InstanceNorm1d.*use GroupNorm, or a layer that keeps none") as refusal:
        fedveil.run("batch_norm=group_norm", method=local(), data=blobs(), model=keeps, out=tmp_path / "c")
    assert "batch_norm" not in str(refusal.value), "which would be in vain"
    with pytest.raises(Refused, match="data.scaling"):
        fedveil.run("data.scaling=pooled", method=local(), data="breast_cancer", model="logistic", out=tmp_path / "b")


def test_a_release_that_was_not_charged_stops_everything(tmp_path, monkeypatch):
    """A mechanism that does something else in the run than it did in the rehearsal is a bug; no claim survives it."""
    from fedveil.runtime.planning import Planner

    weaker = Planner.lines

    def understate(self, cohort, server):
        return weaker(self, cohort[:-1], server)

    monkeypatch.setattr(Planner, "lines", understate)
    with pytest.raises(RuntimeError, match="was not charged"):
        run(tmp_path / "r", local())


def test_adaptive_clipping_learns_and_its_count_is_charged(tmp_path):
    result = run(tmp_path / "r", adaptive(), rounds=20, cohort=4)
    lines = [line for e in Ledger.replay(result.folder.ledger).entries for line in e.lines]
    counts = [x for x in lines if x.release.channel == "unclipped"]
    moves = [x for x in lines if x.release.channel == "move"]
    assert len(counts) == len(moves) == 20
    assert counts[0].release.noise_std / counts[0].release.bound == 3.0
    norms = [x.release.bound * 4 for x in moves]
    assert norms[0] == pytest.approx(0.05)
    assert max(norms) > 1.8 * norms[0], "the norm grew towards the moves"
    assert 0.5 < norms[-1] / result.history[-1]["move_norm"]["mean"] < 2, "and follows them as they shrink"
    central_run = run(tmp_path / "c", central(), rounds=20, cohort=4)
    together, plain = rows(result)["public", "client"], rows(central_run)["public", "client"]
    assert together.epsilon == pytest.approx(plain.epsilon, rel=1e-6), "count and move together cost z"
    assert together.mechanism == plain.mechanism


def test_adaptive_clipping_resumes_with_its_norm(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", adaptive(), rounds=6, cohort=4)
    with monkeypatch.context() as patch:
        killed_in_round(patch, 4)
        with pytest.raises(Killed):
            run(tmp_path / "r", adaptive(), rounds=6, cohort=4)
    resumed = fedveil.resume(tmp_path / "r", method=adaptive(), data=blobs())
    assert resumed.summary["model_hash"] == whole.summary["model_hash"]


def test_bits_without_noise_are_not_covered_by_local_noise():
    with pytest.raises(Refused, match="a stage with memory tells the server about single clients without noise"):
        Method(
            name="bits",
            local=FedAvg(),
            on_delta=chain(adaptive_clip(cohort=4), gaussian(1.0)),
            transport=Plain(),
            aggregate=Mean(),
        )


def test_an_accountant_that_cannot_count_these_events_says_so_before_the_first_round(tmp_path):
    with pytest.raises(Refused, match="without replacement"):
        run(tmp_path / "r", central(), "privacy.accountant=pld")
    assert (tmp_path / "r/events.jsonl").read_bytes() == b""


def stopped_early(tmp_path, monkeypatch, *overrides, method=None, at=6):
    """A run that died in round 6 with its last checkpoint at round 4, and its configuration as text."""
    with monkeypatch.context() as patch:
        killed_in_round(patch, at)
        # A real kill leaves no time to save; an exception would.
        patch.setattr(inline, "save_progress", only_every(4, inline.save_progress))
        with pytest.raises(Killed):
            run(tmp_path / "r", method or local(), *overrides, rounds=8, cohort=4)
    return tmp_path / "r/config.yaml"


def only_every(rounds, save):
    def sometimes(root, progress):
        if progress.round % rounds == 0:
            save(root, progress)

    return sometimes


def test_several_lost_rounds_are_replayed_at_one_charge_when_seeded(tmp_path, monkeypatch):
    stopped_early(tmp_path, monkeypatch)
    result = fedveil.resume(tmp_path / "r", method=local(), data=blobs())
    assert [e.round for e in Ledger.replay(result.folder.ledger).entries] == list(range(1, 9))
    assert result.summary["model_hash"] == run(tmp_path / "s", local(), rounds=8, cohort=4).summary["model_hash"]


@pytest.mark.parametrize(
    "edit", [("rng: seeded", "rng: secure"), ("seed: 0", "seed: 1"), ("lr: 0.1", "lr: 0.3"), ("cohort: 4", "cohort: 3")]
)
def test_a_changed_run_is_not_resumed_under_its_old_charges(tmp_path, monkeypatch, edit):
    """Another seed releases twice; other moves under the same noise would cancel it out."""
    config = stopped_early(tmp_path, monkeypatch)
    assert edit[0] in config.read_text()
    config.write_text(config.read_text().replace(*edit))
    with pytest.raises(Refused, match="resume: settings, method, model or data are not those"):
        fedveil.resume(tmp_path / "r", method=local(), data=blobs())


def test_secure_charges_are_not_forgotten_by_calling_them_seeded(tmp_path, monkeypatch):
    config = stopped_early(tmp_path, monkeypatch, "privacy.rng=secure")
    config.write_text(config.read_text().replace("rng: secure", "rng: seeded"))
    with pytest.raises(Refused, match="resume: settings, method"):
        fedveil.resume(tmp_path / "r", method=local(), data=blobs())


def test_another_method_or_other_data_does_not_inherit_the_claims(tmp_path, monkeypatch):
    stopped_early(tmp_path, monkeypatch)
    for parts in ({"method": local(8.0), "data": blobs()}, {"method": local(), "data": blobs(seed=1)}):
        with pytest.raises(Refused, match="resume: settings, method"):
            fedveil.resume(tmp_path / "r", **parts)


def test_a_single_changed_example_of_any_client_is_noticed(tmp_path, monkeypatch):
    stopped_early(tmp_path, monkeypatch)
    data = blobs()
    data.train(3).x[-1, 0] += 1.0
    with pytest.raises(Refused, match="resume: settings, method"):
        fedveil.resume(tmp_path / "r", method=local(), data=data)


def test_unprotected_rounds_are_not_claimed_by_a_private_method(tmp_path):
    from fedveil.methods.fedavg import fedavg

    run(tmp_path / "r", fedavg(), rounds=2, cohort=4)
    config = tmp_path / "r/config.yaml"
    config.write_text(config.read_text().replace("rounds: 2", "rounds: 4"))
    with pytest.raises(Refused, match="resume: settings, method"):
        fedveil.resume(tmp_path / "r", method=local(), data=blobs())


@pytest.mark.parametrize("how", ["delete", "cut", "edit"])
def test_a_lost_or_edited_ledger_supports_no_claim(tmp_path, how):
    result = run(tmp_path / "r", local(), rounds=3, cohort=4)
    ledger = result.folder.ledger
    lines = ledger.read_bytes().splitlines(keepends=True)
    if how == "delete":
        ledger.unlink()
    elif how == "cut":
        ledger.write_bytes(lines[0])
    else:
        ledger.write_bytes(b"".join(lines).replace(b'"noise_std":2.0', b'"noise_std":9.0'))
    with pytest.raises(Refused, match="no claim"):
        fedveil.resume(tmp_path / "r", method=local(), data=blobs())


def test_falling_back_to_an_older_checkpoint_keeps_the_charges_right(tmp_path):
    result = run(tmp_path / "r", local(), rounds=5, cohort=4)
    whole = result.summary["model_hash"]
    newest = max(result.folder.checkpoint.glob("round-*"))
    (newest / "state.json").write_bytes(b"{")
    again = fedveil.resume(tmp_path / "r", method=local(), data=blobs())
    assert again.summary["model_hash"] == whole
    assert [e.round for e in Ledger.replay(result.folder.ledger).entries] == [1, 2, 3, 4, 5]
    assert rows(again)["server", "client"].epsilon == rows(result)["server", "client"].epsilon


def test_under_secure_the_cohorts_of_a_central_claim_are_secret(tmp_path):
    drawn = [
        [e["clients"] for e in run(tmp_path / str(i), central(), "privacy.rng=secure", rounds=12).history]
        for i in range(2)
    ]
    assert drawn[0] != drawn[1]
    seeded = [[e["clients"] for e in run(tmp_path / f"s{i}", central(), rounds=12).history] for i in range(2)]
    assert seeded[0] == seeded[1]


def test_secure_server_noise_differs_from_run_to_run(tmp_path):
    hashes = [
        run(tmp_path / str(i), central(), "privacy.rng=secure", rounds=1, cohort=4).summary["model_hash"]
        for i in range(2)
    ]
    assert hashes[0] != hashes[1]


def test_a_central_claim_states_its_premises(tmp_path):
    claim = rows(run(tmp_path / "r", central()))["public", "client"]
    assert "the server is trusted" in claim.note
    assert "secret from the public" in claim.note
    everybody = rows(run(tmp_path / "s", central(), cohort=4))["public", "client"]
    assert everybody.sampling == "none"
    assert everybody.epsilon == pytest.approx(reference(2.0, 6), rel=1e-3), "nobody is drawn, nothing is doubled"


def test_a_clip_at_the_mean_is_no_clip_of_a_client():
    """Means of {10, −9} and {0, −9}, clipped to 1, differ by 1.5: the length is bounded, the change is not."""
    for stage in (clip(1.0), adaptive_clip(cohort=4)):
        with pytest.raises(Refused, match="at on_mean it bounds the mean's length"):
            Method(name="bad", local=FedAvg(), on_mean=chain(stage, gaussian(2.0)), transport=Plain(), aggregate=Mean())


def test_presence_is_no_secret_from_the_server(tmp_path):
    with pytest.raises(Refused, match="privacy.adjacency: under add_remove"):
        run(tmp_path / "r", local(), "privacy.adjacency=add_remove")
    with pytest.raises(Refused, match="privacy.unit: 'records' is not allowed; give record or client"):
        run(tmp_path / "r", local(), "privacy.unit=records")


@pytest.mark.parametrize("noise", ["laplace", "discrete_gaussian", "skellam"])
def test_other_mechanisms_run_centrally_with_everybody(tmp_path, noise):
    from fedveil.privacy import noise as mechanisms

    method = Method(
        name=noise,
        local=FedAvg(),
        on_delta=clip(1.0),
        on_mean=getattr(mechanisms, noise)(4.0),
        transport=Plain(),
        aggregate=Mean(),
    )
    claim = rows(run(tmp_path / "r", method, cohort=4, rounds=2))["public", "client"]
    assert (claim.status, claim.mechanism) == ("proved", f"{noise} (client)")
    assert math.isfinite(claim.epsilon)


def test_the_summary_and_the_statement_tell_the_same_epsilon(tmp_path):
    result = run(tmp_path / "r", local(), "privacy.accountant=pld", cohort=4)
    assert result.summary["epsilon"]["epsilon"] == rows(result)["server", "client"].epsilon
    assert result.history[-1]["epsilon"]["accountant"] == "rdp"

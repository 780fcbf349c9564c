"""APA-FL as a method: the same decisions as in the clear, what is claimed towards whom, what is refused, what breaks."""

import orjson
import pytest
import torch
from safetensors.torch import load_file
from tests.support import blobs, require

import fedveil
from fedveil.core.errors import Refused
from fedveil.privacy.ledger import Ledger
from fedveil.runtime import inline
from fedveil.runtime.config import resolve
from fedveil.runtime.prepare import prepare
from fedveil.transport.duo import session, transport

require("tenseal")
ATTACK = ("attack=sign_flip", "attack.factor=4", "attack.share=0.25", "attack.onset=5")
SENSE = ("aggregate=adaptive", "aggregate.window=2", "aggregate.iterations=1", "declared_f=2", "client_momentum=0.9")
TOY = {"model": "logistic", "rounds": 8, "cohort": 8, "lr": 0.2}


@pytest.fixture(autouse=True)
def _nobody_stays():
    yield
    for key in list(transport._sessions):
        transport._sessions.pop(key).close()


def data():
    return blobs(clients=8, examples=24)


def vector(result):
    model = load_file(result.folder.model)
    return torch.cat([model[key].flatten() for key in sorted(model)])


def told(result, *keys):
    return [tuple(event["detector"][key] for key in keys) for event in result.history]


def test_encrypted_and_plain_runs_decide_alike_and_end_at_the_same_model(tmp_path):
    plain = fedveil.run(*SENSE, *ATTACK, method="fedavg", weights="uniform", data=data(), out=tmp_path / "a", **TOY)
    ours = fedveil.run(
        *SENSE, *ATTACK, "sigma=0", "transport.norm_bound=50", method="apa_fl", data=data(), out=tmp_path / "b", **TOY
    )
    assert told(plain, "rule", "why") == told(ours, "rule", "why")
    assert {rule for (rule,) in told(ours, "rule")} == {"mean", "centered_clipping"}
    for (a,), (b,) in zip(told(plain, "score"), told(ours, "score"), strict=True):
        assert a is b is None or b == pytest.approx(a, rel=1e-2, abs=1e-2)
    assert torch.allclose(vector(plain), vector(ours), atol=1e-4)
    assert abs(plain.accuracy - ours.accuracy) <= 0.01


def test_the_published_ladder_runs_on_opened_entropy(tmp_path):
    settings = dict(TOY, rounds=3)
    ladder = ("aggregate=source", "declared_f=2")
    plain = fedveil.run(*ladder, method="fedavg", weights="uniform", data=data(), out=tmp_path / "a", **settings)
    ours = fedveil.run(
        *ladder, "sigma=0", "transport.norm_bound=50", method="apa_fl", data=data(), out=tmp_path / "b", **settings
    )
    assert told(plain, "rule") == told(ours, "rule")
    assert all(
        b == pytest.approx(a, abs=2e-3) for (a,), (b,) in zip(told(plain, "score"), told(ours, "score"), strict=True)
    )
    seen = {row["what"] for row in ours.history[0]["leakage"] if (row["party"], row["how"]) == ("S1", "opened")}
    assert {text[:2] for text in seen} == {"S,", "H,", "wh"}
    hidden = fedveil.run(
        *ladder, "sigma=0", "transport.norm_bound=50", "transport.hide_s=true", method="apa_fl", data=data(),
        out=tmp_path / "c", **dict(TOY, rounds=1),
    )  # fmt: skip
    assert told(hidden, "rule") == told(ours, "rule")[:1]
    assert not any(row["what"].startswith("S,") for row in hidden.history[0]["leakage"])


def test_the_statement_names_both_servers_and_the_public(tmp_path):
    ours = fedveil.run("sigma=2", method="apa_fl", data=data(), out=tmp_path / "a", **dict(TOY, rounds=2))
    plain = fedveil.run(
        "sigma=2", "algorithm_variant=last_noise", method="dp_fedavg_local", data=data(), out=tmp_path / "b",
        **dict(TOY, rounds=2),
    )  # fmt: skip
    rows = {(r.observer, r.unit): r for r in ours.statement.rows}
    assert set(rows) == {(o, u) for o in ("S1", "S2", "public") for u in ("record", "client")}
    assert all(r.status == "proved" for r in rows.values())
    expected = {(r.observer, r.unit): r.epsilon for r in plain.statement.rows if r.status == "proved"}
    for (observer, unit), row in rows.items():
        assert row.epsilon == expected["public" if observer == "public" else "server", unit]
    text = (ours.folder.path / "statement.md").read_text()
    assert "a server that deviates is not caught" in text and "clients' own noise covers them" in text


def test_noise_in_the_steps_is_claimed_for_records_alone_and_none_for_none(tmp_path):
    step = fedveil.run(
        "sigma=2", "algorithm_variant=step_noise", method="apa_fl", data=data(), out=tmp_path / "a",
        **dict(TOY, rounds=1),
    )  # fmt: skip
    assert {(r.observer, r.unit): r.status for r in step.statement.rows if r.observer == "S1"} == {
        ("S1", "record"): "proved",
        ("S1", "client"): "none",
    }
    quiet = fedveil.run("sigma=0", method="apa_fl", data=data(), out=tmp_path / "b", **dict(TOY, rounds=1))
    assert {(r.observer, r.status) for r in quiet.statement.rows} == {(o, "none") for o in ("S1", "S2", "public")}


def test_raised_noise_follows_the_last_round_and_costs_nothing_more(tmp_path):
    def run(out, *more):
        return fedveil.run("sigma=2", *more, method="apa_fl", data=data(), out=tmp_path / out, **dict(TOY, rounds=3))

    flat, raised = run("a"), run("b", "noise_alpha=5", "noise_cap=1.5")
    told_clients = [event["noise"] for event in raised.history]
    assert [n["now"] for n in told_clients] == [1.0, told_clients[0]["next"], told_clients[1]["next"]]
    assert all(n["next"] == 1.5 for n in told_clients), "calm rounds have an entropy above 0.1"
    assert "noise" not in flat.history[0]
    entries = [orjson.loads(line) for line in (raised.folder.path / "ledger.jsonl").read_bytes().splitlines()]
    assert entries
    assert [r.epsilon for r in flat.statement.rows] == [r.epsilon for r in raised.statement.rows]
    assert not torch.allclose(vector(flat), vector(raised), atol=1e-3)
    last = {(r["party"], r["what"]): r for r in raised.history[-1]["leakage"]}
    assert last["clients", "how many times the noise, in the next round"]["value"] == 1.5


def test_a_lost_server_leaves_model_and_controller_at_the_last_complete_round(tmp_path, monkeypatch):
    rounds, honest = [], session.Session.round

    def losing(self, *arguments, **settings):
        rounds.append(len(rounds) + 1)
        if rounds[-1] == 2:
            self.processes[1].kill()
            self.processes[1].wait()
        return honest(self, *arguments, **settings)

    monkeypatch.setattr(session.Session, "round", losing)
    settings = ("sigma=2", "transport.processes=true", "transport.retries=0")
    ours = fedveil.run(*settings, method="apa_fl", data=data(), out=tmp_path / "a", **dict(TOY, rounds=2))
    assert "has ended" in ours.history[1]["aborted"] and "detector" not in ours.history[1]
    monkeypatch.undo()
    one = fedveil.run("sigma=2", method="apa_fl", data=data(), out=tmp_path / "b", **dict(TOY, rounds=1))
    assert torch.allclose(vector(ours), vector(one), atol=1e-4), "the model of the first round"
    assert ours.statement.rows[0].epsilon > one.statement.rows[0].epsilon, "what clients released stays charged"


def test_a_resumed_run_decides_as_if_nothing_had_happened(tmp_path):
    class Stop:
        def opened(self, *_): ...

        def round(self, record):
            if record["round"] == 4:
                raise KeyboardInterrupt

        def closed(self, _): ...

    arguments = (*SENSE, *ATTACK, "sigma=0", "transport.norm_bound=50")
    whole = fedveil.run(*arguments, method="apa_fl", data=data(), out=tmp_path / "a", **TOY)
    with pytest.raises(KeyboardInterrupt):
        fedveil.run(*arguments, method="apa_fl", data=data(), out=tmp_path / "b", listeners=[Stop()], **TOY)
    resumed = fedveil.resume(tmp_path / "b", data=data())
    assert told(whole, "rule", "why") == told(resumed, "rule", "why")
    assert torch.allclose(vector(whole), vector(resumed), atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("transport=plain",), "transport: apa_fl senses attackers on uploads that no server sees"),
        (("transport=he",), "transport: apa_fl senses attackers"),
        (("aggregate=median",), "cannot carry out median; on shares there are"),
        (("aggregate=krum", "declared_f=1", "aggregate.before=nnm"), "cannot carry out"),
        (
            ("aggregate.detector=neighbour", "aggregate.theta1=0.5", "aggregate.theta2=0.6"),
            "looks at every single upload",
        ),
        (("noise_alpha=1",), "noise_alpha: with sigma=0"),
        (("noise_alpha=1", "sigma=1", "aggregate=krum", "declared_f=1"), "noise follows what a controller reads"),
        (("noise_alpha=1", "sigma=1", "noise_cap=0.5"), "noise_cap"),
        (("aggregate.iterations=3",), "the servers take one step"),
        (("declared_f=5",), "declared_f"),
        (("sigma=null",), "set sigma"),
        (
            ("method=dp_fedavg_central", "transport=duo", "transport.norm_bound=9", "sigma=1"),
            "let the clients add the noise",
        ),
        (("method=scaffold", "transport=duo", "transport.norm_bound=9", "weights=uniform"), "carries one vector"),
        (("method=fedavg", "transport=duo", "transport.norm_bound=9"), "counts every client once"),
        (("privacy.epsilon=8",), "privacy.epsilon"),
    ],
)
def test_mistakes_are_refused_in_words(settings, words):
    own = [s for s in ("method=apa_fl", "sigma=0") if not any(t.startswith(s.split("=")[0] + "=") for t in settings)]
    if any(s.startswith("method=") for s in settings):
        own = [s for s in own if not s.startswith("sigma")]
    with pytest.raises(Refused, match=words):
        prepare(resolve([*own, *settings]), data=data())


def test_another_method_may_travel_this_way_too(tmp_path):
    ours = fedveil.run(
        "transport=duo", "transport.norm_bound=50", "aggregate=krum", "declared_f=1", method="fedavg", data=data(),
        out=tmp_path / "a", **dict(TOY, rounds=1),
    )  # fmt: skip
    assert ours.history[0]["duo"]["arrived"] == 8 and "detector" not in ours.history[0]


@pytest.mark.parametrize("lost", [1, 3])
def test_seeded_noise_stands_on_one_move_alone_when_rounds_run_again(tmp_path, monkeypatch, lost):
    """Servers round at random: behind the first lost round moves differ, and must not meet the same noise again.

    Where one round was lost its uploads are the same ones, and are charged once.
    """
    sent, honest = [], transport.sealed
    monkeypatch.setattr(transport, "sealed", lambda servers, rows: sent.append(rows.copy()) or honest(servers, rows))

    class Crash:
        def opened(self, *_):
            patch.setattr(inline, "save_progress", lambda *_: None)

        def round(self, record):
            if record["round"] == lost:
                raise KeyboardInterrupt

        def closed(self, _): ...

    settings = dict(TOY, rounds=3)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        fedveil.run(
            "sigma=2", "privacy.rng=seeded", "checkpoint.every=50", method="apa_fl", data=data(), out=tmp_path / "a",
            listeners=[Crash()], **settings,
        )  # fmt: skip
    result = fedveil.resume(tmp_path / "a", data=data())
    entries = Ledger.replay(tmp_path / "a" / "ledger.jsonl").entries
    assert len(sent) == lost + 3
    if lost == 1:
        assert (sent[0] == sent[1]).all() and [e.status for e in entries] == ["charged"] * 3
        return
    assert [(e.round, e.status) for e in entries] == [
        *((n, "interrupted") for n in (1, 2, 3)),
        *((n, "charged") for n in (1, 2, 3)),
    ]
    for first, again in zip(sent[:3], sent[3:], strict=True):
        assert abs(first - again).mean() > 0.1 * abs(first).mean(), "noise of its own"
    assert any("Interrupted rounds" in note for note in result.statement.notes)


def test_honest_uploads_are_within_the_bound_under_the_most_noise_that_clients_may_add():
    """R allows for raised noise: without that every upload would count as zeros, and nobody would be told."""
    for variant in ("last_noise", "step_noise"):
        given = ["method=apa_fl", "sigma=3", "noise_alpha=9", "noise_cap=4", f"algorithm_variant={variant}"]
        method = prepare(resolve([*given, *(f"{k}={v}" for k, v in TOY.items())]), data=data()).method
        bound = method.transport.longest(2000, 8)
        assert bound > method.transport.clip + method.transport.noise_std * 2000**0.5
        quiet = prepare(resolve([*given[:2], *given[4:], *(f"{k}={v}" for k, v in TOY.items())]), data=data()).method
        assert quiet.transport.noise_std > 0
        assert method.transport.noise_std == pytest.approx(4 * quiet.transport.noise_std)

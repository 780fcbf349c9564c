"""Nodes that send what they should not, or nothing; runs that end in the middle and go on."""

from dataclasses import replace

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from tests.flower.common import SMALL, grid_for, in_process, over_nodes, releases, same, training_of

import fedveil
from fedveil.core.errors import Refused
from fedveil.privacy.ledger import Ledger
from fedveil.runtime import choice
from fedveil.runtime.flower.cohort import check
from fedveil.runtime.flower.messages import RAW, Trained, decode, encode, written

LIAR = 0


def lying(change, kind="train"):
    """Client 0's answers of this kind become what ``change`` makes of them."""

    def tamper(message, reply):
        if message.metadata.message_type != kind or reply.has_error() or reply.metadata.src_node_id != 100 + LIAR:
            return reply
        return Message(change(reply.content), reply_to=message)

    return tamper


def tensors(**given):
    def change(content):
        record = dict(content.array_records["tensors"]) | given
        return RecordDict({"fedveil": content.config_records["fedveil"], "tensors": ArrayRecord(record)})

    return change


def words(**given):
    def change(content):
        report, found = decode(Trained, content)
        return encode(replace(report, **given), found)

    return change


def other(content):
    return RecordDict(dict(content) | {"fedveil": ConfigRecord({"words": b"\x80\x04."})})


def raw(dtype, shape, data):
    return Array(dtype=dtype, shape=shape, stype=RAW, data=data)


MALFORMED = {
    "wrong shape": (tensors(move=written(torch.zeros(7))), "move: shape (7,) instead of (650,)"),
    "nan": (tensors(move=written(torch.full((650,), torch.nan))), "move: not finite"),
    "infinite": (tensors(move=written(torch.full((650,), torch.inf))), "move: not finite"),
    "giant numbers": (tensors(move=written(torch.full((650,), 3e38))), "move: too large"),
    "giant message": (tensors(move=raw("float32", (650,), bytes(10_000_000))), "move: 10000000 bytes instead of 2600"),
    "other type": (tensors(move=written(torch.zeros(650).double())), "move: numbers of type float64"),
    "pickle": (tensors(move=Array(torch.zeros(650).numpy())), "move: no tensor as FedVeil writes them"),
    "one more tensor": (tensors(more=written(torch.zeros(1))), "more: not asked for"),
    "no tensor": (lambda c: RecordDict({"fedveil": c.config_records["fedveil"]}), "move: missing"),
    "no words": (lambda c: RecordDict({}), "no message of FedVeil"),
    "other words": (other, "no msgpack|another version"),
    "many words": (words(frame=bytes(2**21)), "more than the 1048576"),
    "somebody else": (words(client=3), "an answer of client 3"),
    "another round": (words(round=9), "for round 9"),
    "other releases": (words(releases=()), None),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_replies_are_excluded_and_logged(tmp_path, what):
    change, why = MALFORMED[what]
    private = ("method=dp_fedavg_local", "algorithm_variant=last_noise", "clip_norm=1", "sigma=1")
    method = ("method=fedavg",) if why else private
    training = training_of(*method, "cohort=6", "rounds=2")
    grid = grid_for(training, tamper=lying(change))
    _, summary, folder, _ = over_nodes(training, tmp_path / "run", grid)
    for event in folder.read_events():
        (found,) = event["excluded"]
        assert found["client"] == LIAR
        assert any(part in found["why"] for part in (why or "released other things than were charged").split("|"))
    assert summary["excluded"] == 2 and summary["rounds"] == 2


def test_a_liar_about_its_loss_harms_a_number_in_the_log_alone(tmp_path):
    training = training_of("method=fedavg", "cohort=6", "rounds=2")
    _, _, honest, _ = over_nodes(training, tmp_path / "honest")
    _, _, lied, _ = over_nodes(training, tmp_path / "lied", grid_for(training, tamper=lying(words(loss=1e300))))
    same(honest, lied, 0.0)


HIDDEN = ("transport=masks", "transport.max_dropout=0.34", "transport.collusion=0")


@pytest.mark.parametrize("transport", [(), HIDDEN])
def test_a_node_that_is_gone_does_not_stop_the_round(tmp_path, transport):
    training = training_of("method=fedavg", "cohort=6", "rounds=2", *transport)
    whole = over_nodes(training, tmp_path / "whole")[1]
    _, summary, folder, _ = over_nodes(training, tmp_path / "run", grid_for(training, tamper=without(2)))
    assert summary["rounds"] == 2 and summary["model_hash"] != whole["model_hash"]
    for event in folder.read_events():
        assert [found["client"] for found in event["excluded"]] == [2] and "switched off" in event["excluded"][0]["why"]


def test_a_node_that_never_answers_is_waited_for_no_longer_than_the_time_out(tmp_path):
    training = training_of("method=fedavg", "cohort=6", "rounds=1")
    grid = grid_for(training)
    grid.silent = {("train", 103)}
    _, _, folder, _ = over_nodes(training, tmp_path / "run", grid)
    assert folder.read_events()[0]["excluded"] == [{"client": 3, "why": "no answer within 0.2 s"}]


def without(client):
    """This client's node is lost when it should train."""

    def tamper(message, reply):
        lost = message.metadata.message_type == "train" and reply.metadata.src_node_id == 100 + client
        return Message(Error(code=0, reason="the node was switched off"), reply_to=message) if lost else reply

    return tamper


def test_the_sum_under_masks_is_right_without_a_node_that_is_lost_at_the_mask_stage(tmp_path):
    settings = ("method=fedavg", "cohort=6", "rounds=1")
    hidden, clear = training_of(*settings, *HIDDEN), training_of(*settings)
    over = over_nodes(hidden, tmp_path / "masks", grid_for(hidden, tamper=without(2)))
    plain = over_nodes(clear, tmp_path / "plain", grid_for(clear, tamper=without(2)))
    assert torch.allclose(over[0].server["w"], plain[0].server["w"], atol=1e-5)
    assert over[2].read_events()[0]["missing"] == 1


def test_a_round_that_nobody_answers_is_aborted_and_the_run_goes_on(tmp_path):
    training = training_of("method=dp_fedavg_local", "clip_norm=1", "sigma=1", "cohort=6", "rounds=3")
    grid = grid_for(training)
    rounds = []

    def tamper(message, reply):
        if message.metadata.message_type == "train":
            rounds.append(1)
            if 6 < len(rounds) <= 12:
                return Message(Error(code=0, reason="lost"), reply_to=message)
        return reply

    grid.tamper = tamper
    _, _, folder, _ = over_nodes(training, tmp_path / "run", grid)
    assert [bool(e.get("aborted")) for e in folder.read_events()] == [False, True, False]
    assert [(e.round, e.status) for e in Ledger.replay(folder.ledger).entries] == [(k, "charged") for k in (1, 2, 3)]


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("method", ["scaffold", "dp_scaffold_stein"])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(tmp_path, method, every):
    noise = ("clip_norm=1", "sigma=1") if method != "scaffold" else ()
    training = training_of(f"method={method}", *noise, "rounds=5", f"checkpoint.every={every}")
    _, _, whole = in_process(training, tmp_path / "whole")
    grid = grid_for(training)
    sent = []

    def stop(message, reply):
        sent.append(message.metadata.message_type == "train")
        if sum(sent) == 14:  # in the middle of the fourth round
            raise KeyboardInterrupt
        return reply

    grid.tamper = stop
    with pytest.raises(KeyboardInterrupt):
        over_nodes(training, tmp_path / "run", grid)
    _, _, folder, _ = over_nodes(training, tmp_path / "run", resume=True)  # nodes have begun anew as well
    same(whole, folder, 1e-6)
    assert [entry[:2] for entry in releases(folder)] == [(k, "charged") for k in range(1, 6)]


def test_with_secret_noise_an_interrupted_round_is_charged_again(tmp_path):
    training = training_of("method=dp_fedavg_local", "clip_norm=1", "sigma=1", "rounds=2", "privacy.rng=secure")
    grid = grid_for(training)
    sent = []

    def stop(message, reply):
        sent.append(message.metadata.message_type == "train")
        if sum(sent) == 6:
            raise KeyboardInterrupt
        return reply

    grid.tamper = stop
    with pytest.raises(KeyboardInterrupt):
        over_nodes(training, tmp_path / "run", grid)
    _, summary, folder, _ = over_nodes(training, tmp_path / "run", resume=True)
    charged = [(e.round, e.status) for e in Ledger.replay(folder.ledger).entries]
    assert charged == [(1, "charged"), (2, "interrupted"), (2, "charged")] and summary["rounds"] == 2


def test_a_budget_ends_a_run_as_in_process(tmp_path):
    settings = ("method=dp_fedavg_local", "clip_norm=1", "sigma=1.1", "privacy.epsilon=2.5", "rounds=30")
    training = training_of(*settings)
    _, here, _ = in_process(training, tmp_path / "here")
    _, there, _, _ = over_nodes(training, tmp_path / "there")
    assert here["rounds"] == there["rounds"] < 30 and here["epsilon"] == there["epsilon"]
    assert there["status"].startswith("stopped early")


def test_under_privacy_nothing_about_a_client_is_told_beside_its_upload(tmp_path):
    training = training_of("method=dp_fedavg_local", "clip_norm=1", "sigma=1", "rounds=1")
    _, _, folder, grid = over_nodes(training, tmp_path / "run")
    for kind, _, reply in grid.seen:
        if kind == "train":
            report, found = decode(Trained, reply.content)
            assert report.loss is None and report.norm is None and set(found) == {"move"}
    assert folder.read_events()[0]["train_loss"] is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("attack=sign_flip", "attack.share=0.4"), "attack: attackers are simulated in process"),
        (("method=dp_fedavg_central", "clip_norm=1", "sigma=1", "clipping=adaptive"), "counts over all clients"),
        (("transport=masks", "transport.active_server=true"), "transport.active_server"),
        (
            ("method=ldp_fl", "transport=shuffle", "privacy.epsilon=1", "transport.loss=0.1", "transport.least=0.5"),
            "lost parts",
        ),
    ],
)
def test_what_nodes_cannot_do_is_refused_in_one_sentence(settings, words):
    with pytest.raises(Refused, match=words):
        check(training_of(*settings))


def test_without_flower_a_person_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"pip install 'fedveil\[flower\]'"):
        fedveil.run("runtime=flower", *SMALL)


def test_parts_from_a_python_session_are_refused_before_anything_is_started(tmp_path):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    own = ("method=apa_fl", "move_norm=1", "sigma=1", "transport.processes=true")
    with pytest.raises(Refused, match="model: nodes build their parts themselves"):
        fedveil.run("runtime=flower", *SMALL, model=net, out=tmp_path / "run")
    with pytest.raises(Refused, match=r"leave transport\.keys and transport\.processes out"):
        fedveil.run("runtime=flower", *SMALL, *own, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()

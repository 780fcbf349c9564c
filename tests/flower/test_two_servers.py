"""APA-FL with S1, S2 and the key centre on nodes: the same run, over a server that reads none of what they say."""

import os
from dataclasses import replace

import msgpack
import orjson
import pytest
from flwr.app import Error, Message
from tests.flower.common import grid_for, in_process, over_nodes, releases, same, training_of
from tests.flower.loopback import Loopback
from tests.support import require

from fedveil.core.errors import Refused
from fedveil.runtime.flower import parties
from fedveil.runtime.flower.client_app import app
from fedveil.runtime.flower.cohort import check
from fedveil.runtime.flower.messages import Dealt, Here, Spoken, Trained, decode, encode

require("tenseal")
APA = ("method=apa_fl", "sigma=0.1", "clip_norm=1", "declared_f=1", "cohort=5", "aggregate.window=2")
S1, S2, CENTRE = 106, 107, 108


def everything(grid):
    """All that passed through the server, as bytes."""
    for _, message, reply in grid.seen:
        for content in (message.content, None if reply.has_error() else reply.content):
            for record in content.config_records.values() if content else ():
                yield from (value for value in record.values() if isinstance(value, bytes))


def test_the_same_run_and_nothing_that_the_server_could_read(tmp_path):
    training = training_of(*APA)
    here = in_process(training, tmp_path / "here")[2]
    progress, _, there, grid = over_nodes(training, tmp_path / "there")
    same(here, there, 1e-6)
    events = there.read_events()
    assert [e["duo"]["arrived"] for e in events] == [5, 5, 5] and not any("detector" in e for e in events)
    logged = [orjson.loads(line) for line in (there.nodes / "S1.jsonl").read_bytes().splitlines()]
    for mine, event in zip(logged, here.read_events(), strict=True):
        assert mine["detector"]["rule"] == event["detector"]["rule"]
        assert mine["detector"]["why"] == event["detector"]["why"]
        assert mine["opened"].keys() == {"E", "M", "Q", "A", "R"}
    assert logged[-1]["detector"]["why"].startswith("warm-up: 2 of 2")  # it remembers what it saw
    said = {row["what"] for e in events for row in e["leakage"] if row["party"] == "S1" and row["how"] == "opened"}
    assert "E, the sum of squared lengths" in said
    assert not any("value" in row or "said" in row for e in events for row in e["leakage"])
    assert {n for n in progress.server if n.startswith("aggregate.")} == {"aggregate.sealed"}
    secrets = msgpack.unpackb(grid.contexts[CENTRE].state.config_records[parties.DEALT]["keys"])[2:]
    secrets = [bytes(part) for message in secrets[:2] for part in msgpack.unpackb(message)[2:4]] + secrets[2:]
    assert len(secrets) == 6 and all(len(secret) >= 32 for secret in secrets)
    assert not any(secret[:32] in data for data in everything(grid) for secret in secrets)


def test_a_program_goes_on_in_another_process(tmp_path):
    training = training_of(*APA, "rounds=2")
    here = in_process(training, tmp_path / "here")[2]
    grid, count = grid_for(training), []

    def elsewhere(message, reply):
        count.append(message.metadata.message_type == "query.step")
        if sum(count) % 150 == 149:
            parties._held_here.clear()
        return reply

    grid.tamper = elsewhere
    there = over_nodes(training, tmp_path / "there", grid)[2]
    same(here, there, 1e-6)
    assert sum(count) > 600 and all(e["duo"]["lost"] == 0 for e in there.read_events())


def switched_off(node, at):
    """This node is lost at its steps with these numbers."""
    steps = []

    def tamper(message, reply):
        if message.metadata.message_type == "query.step" and reply.metadata.src_node_id == node:
            steps.append(1)
            if len(steps) in at:
                return Message(Error(code=0, reason="the node was switched off"), reply_to=message)
        return reply

    return tamper


@pytest.mark.parametrize("node", [S2, CENTRE])
def test_a_round_in_which_a_party_is_lost_is_begun_again(tmp_path, node):
    training = training_of(*APA, "rounds=1")
    here = in_process(training, tmp_path / "here")[2]
    there = over_nodes(training, tmp_path / "run", grid_for(training, tamper=switched_off(node, {30})))[2]
    same(here, there, 1e-6)
    assert there.read_events()[0]["duo"]["lost"] == 1


def test_a_round_without_a_server_is_aborted_in_words_and_the_run_goes_on(tmp_path):
    training = training_of(*APA, "rounds=2")
    grid = grid_for(training, tamper=switched_off(S2, {150, 151}))  # after S1 has seen the numbers
    _, summary, folder, _ = over_nodes(training, tmp_path / "run", grid)
    first, second = folder.read_events()
    assert first["aborted"].startswith("no answer from S2 (error: the node was switched off)")
    assert "the model is that of the last complete round" in first["aborted"] and "aborted" not in second
    assert [orjson.loads(x)["round"] for x in (folder.nodes / "S1.jsonl").read_bytes().splitlines()] == [1, 2]
    assert summary["rounds"] == 2 and [entry[:2] for entry in releases(folder)] == [(1, "charged"), (2, "charged")]


def test_a_run_ends_properly_when_a_server_is_gone_for_good(tmp_path):
    training = training_of(*APA, "rounds=2")
    grid = grid_for(training)
    grid.silent = {("query.meet", S1)}
    _, summary, folder, _ = over_nodes(training, tmp_path / "run", grid)
    assert all(e["aborted"].startswith("no answer from S1 (no answer within 0.2 s)") for e in folder.read_events())
    assert summary["rounds"] == 2 and len(releases(folder)) == 2


def tampered(kind, words, change, node):
    def tamper(message, reply):
        ours = message.metadata.message_type == kind and reply.metadata.src_node_id == node and not reply.has_error()
        if not ours:
            return reply
        return Message(encode(change(decode(words, reply.content, limit=2**31)[0])), reply_to=message)

    return tamper


def flipped(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def impostor(found):
    return replace(found, met=(parties.Identity(bytes(32)).public, found.met[1]))


def other_box(found):
    boxes = tuple((receiver, flipped(box)) for receiver, box in found.boxes)
    return replace(found, boxes=boxes)


def other_key(found):
    return replace(found, public=flipped(found.public))


def pinned(place, tamper=None):
    """Parties with keys in files, whose public halves everybody was told beforehand."""
    public, configs = {}, [{"partition-id": k} for k in range(6)]
    for pin in parties.PINS.values():
        (place / pin).write_bytes(os.urandom(32))
        public[pin] = parties.Identity((place / pin).read_bytes()).public.hex()
    configs = [config | {"centre": public["centre"]} for config in configs]
    configs += [{"role": role, "key": str(place / pin)} | public for role, pin in parties.PINS.items()]
    return Loopback(app, configs, tamper=tamper)


def test_away_from_a_simulation_nobody_believes_the_server_who_a_party_is(tmp_path):
    training, grid = training_of(*APA, "rounds=1", "transport.retries=0"), pinned(tmp_path)
    del grid.contexts[S1].node_config["S2"]
    (event,) = over_nodes(training, tmp_path / "run", grid)[2].read_events()
    assert "the node config does not say who the S2 is" in event["aborted"]


def test_a_run_goes_on_with_what_s1_remembers(tmp_path):
    grid = pinned(tmp_path)
    over_nodes(training_of(*APA, "rounds=1"), tmp_path / "run", grid)
    for context in grid.contexts.values():
        context.state.clear()
    folder = over_nodes(training_of(*APA, "rounds=2"), tmp_path / "run", grid, resume=True)[2]
    second = orjson.loads((folder.nodes / "S1.jsonl").read_bytes().splitlines()[1])
    assert second["round"] == 2 and second["detector"]["why"].startswith("warm-up: 1 of 2")
    assert "forgot" not in folder.read_events()[1]["duo"]


@pytest.mark.parametrize(
    ("tamper", "why"),
    [
        (tampered("query.step", Spoken, other_box, S2), "a box that its seal does not fit"),
        (tampered("query.meet", Here, impostor, S2), "S2's identity is not the one"),
        (tampered("query.meet", Here, impostor, CENTRE), "the key centre's identity is not the one"),
        (tampered("query.deal", Dealt, other_key, CENTRE), "0 clients sent an upload"),
    ],
    ids=["box", "impostor", "false centre", "key of its own"],
)
def test_a_server_that_changes_what_it_carries_gets_nothing(tmp_path, tamper, why):
    training = training_of(*APA, "rounds=1", "transport.retries=0")
    grid = pinned(tmp_path, tamper)
    folder = over_nodes(training, tmp_path / "run", grid)[2]
    (event,) = folder.read_events()
    heard = [str(reply.error.reason) for _, _, reply in grid.seen if reply.has_error()]
    assert "aborted" in event and any(why in text for text in (event["aborted"], *heard)), (event, heard)


def test_an_upload_that_is_none_is_excluded(tmp_path):
    training = training_of(*APA, "rounds=1", "cohort=6")
    cut = tampered("train", Trained, lambda found: replace(found, frame=found.frame[:1000]), 100)
    folder = over_nodes(training, tmp_path / "run", grid_for(training, tamper=cut))[2]
    (event,) = folder.read_events()
    (out,) = event["excluded"]
    assert out["client"] == 0 and "cut short" in out["why"] and event["missing"] == 1
    assert event["duo"]["arrived"] == 5


@pytest.mark.slow
def test_the_entropy_switched_results_and_announced_noise(tmp_path):
    more = ("aggregate=source", "transport.delivery=switch", "noise_alpha=0.5", "rounds=3")
    training = training_of(*[s for s in APA if not s.startswith("aggregate")], *more)
    here = in_process(training, tmp_path / "here")[2]
    there = over_nodes(training, tmp_path / "there")[2]
    same(here, there, 1e-6)
    assert [e["noise"] for e in here.read_events()] == [e["noise"] for e in there.read_events()]


def test_what_nodes_cannot_do_is_refused():
    for setting in ("transport.processes=true", "transport.keys=somewhere"):
        with pytest.raises(Refused, match=r"transport\.processes out"):
            check(training_of(*APA, setting) if "keys" not in setting else _with_keys())


def _with_keys():
    training = training_of(*APA)
    transport = replace(training.method.transport, keys="somewhere")
    return replace(training, method=replace(training.method, transport=transport))

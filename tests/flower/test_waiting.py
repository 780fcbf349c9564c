"""Rounds that hang on who is there: charged when somebody comes, never computed twice with other people."""

import shutil
import time

import pytest
import torch
from flwr.app import Error, Message
from tests.flower.common import grid_for, in_process, over_nodes, releases, training_of

from fedveil.core.errors import Refused
from fedveil.runtime.flower.messages import Order, decode
from fedveil.runtime.flower.nodes import Nodes
from fedveil.runtime.folder import Folder
from fedveil.runtime.inline import train

PRIVATE = ("method=dp_fedavg_local", "clip_norm=1", "sigma=1", "cohort=6")


def told(grid, round):
    """What was sent to whom in this round."""
    found = [decode(Order, sent.content) for kind, sent, _ in grid.seen if kind == "train"]
    return {order.client: state["w"] for order, state in found if order.round == round}


def test_seeded_noise_never_falls_on_other_numbers_when_a_run_goes_on(tmp_path):
    training = training_of(*PRIVATE, "rounds=3", "checkpoint.every=3")
    first, sent = grid_for(training), []

    def tamper(message, reply):
        sent.append(message.metadata.message_type == "train")
        if sum(sent) == 9:  # in the second round
            shutil.copytree(tmp_path / "run", tmp_path / "left")  # as after kill -9: nothing is saved on the way out
            raise KeyboardInterrupt
        lost = sum(sent) <= 6 and reply.metadata.src_node_id == 102 and sent[-1]
        return Message(Error(code=0, reason="lost"), reply_to=message) if lost else reply

    first.tamper = tamper
    with pytest.raises(KeyboardInterrupt):
        over_nodes(training, tmp_path / "run", first)
    second = grid_for(training)  # now everybody answers
    _, _, folder, _ = over_nodes(training, tmp_path / "left", second, resume=True)
    before, after = told(first, 2), told(second, 2)
    assert before and all(torch.equal(before[k], after[k]) for k in before)
    assert not told(second, 1) and folder.read_events()[0]["excluded"][0]["client"] == 2
    assert [entry[:2] for entry in releases(folder)] == [(k, "charged") for k in (1, 2, 3)]


def test_a_round_to_which_nobody_comes_is_neither_charged_nor_made(tmp_path):
    training = training_of(*PRIVATE, "rounds=5")
    grid = grid_for(training)
    everybody = dict(grid.contexts)

    def tamper(message, reply):
        if message.metadata.message_type == "train" and decode(Order, message.content)[0].round == 2:
            grid.contexts = {}
        return reply

    grid.tamper = tamper
    ask = grid.push_messages
    grid.push_messages = lambda messages: ask(messages) if grid.contexts else [None for _ in messages]
    with pytest.raises(Refused, match="0 of 1 clients are connected"):
        over_nodes(training, tmp_path / "run", grid)
    assert [e[0] for e in releases(Folder(tmp_path / "run"))] == [1, 2]
    grid.contexts, grid.tamper = everybody, None
    _, summary, folder, _ = over_nodes(training, tmp_path / "run", grid, resume=True)
    assert summary["rounds"] == 5 and [e[0] for e in releases(folder)] == [1, 2, 3, 4, 5]


def test_a_round_under_masks_waits_for_as_many_as_its_sum_needs(tmp_path):
    training = training_of("method=fedavg", "transport=masks", "transport.max_dropout=0.34", "transport.collusion=0",
                           "cohort=6", "rounds=1")  # fmt: skip
    grid = grid_for(training)
    over_nodes(training, tmp_path / "all", grid)
    few = grid_for(training)
    nodes = Nodes(few, timeout=0.2, poll=0.001)
    nodes.wait_for(6)
    few.contexts = {k: v for k, v in few.contexts.items() if k < 102}
    from fedveil.runtime.flower.cohort import NodeCohort

    with pytest.raises(Refused, match="2 of 4 clients"):
        train(training, Folder.create(tmp_path / "few", "run"), clients=NodeCohort(training, nodes))


def test_a_node_that_never_says_who_it_is_holds_nobody_up(tmp_path):
    training = training_of("method=fedavg", "cohort=6", "rounds=4")
    grid = grid_for(training)
    nodes = Nodes(grid, timeout=60.0, poll=0.001)
    nodes.wait_for(6)
    grid.contexts[200] = grid.contexts[100]
    grid.silent = {("query.hello", 200)}
    from fedveil.runtime.flower import nodes as module
    from fedveil.runtime.flower.cohort import NodeCohort

    began, before = time.monotonic(), module.GREETING
    module.GREETING = 0.5
    try:
        train(training, Folder.create(tmp_path / "run", "run"), clients=NodeCohort(training, nodes))
    finally:
        module.GREETING = before
    assert time.monotonic() - began < 15


def test_a_run_is_gone_on_with_under_the_runtime_that_keeps_its_memories(tmp_path):
    training = training_of("method=scaffold", "rounds=2")
    _, _, folder = in_process(training, tmp_path / "here")
    more = training_of("method=scaffold", "rounds=3")
    with pytest.raises(Refused, match="runtime that it began with"):
        over_nodes(more, folder.path, resume=True)
    _, _, folder, _ = over_nodes(training, tmp_path / "there")
    with pytest.raises(Refused, match="runtime that it began with"):
        train(more, folder, resume=True)

"""A shuffler opens every envelope once, whatever the server asks of it."""

from flwr.app import Context, Message, RecordDict
from tests.flower.common import grid_for, over_nodes, training_of

from fedveil.runtime.flower.client_app import app
from fedveil.runtime.flower.messages import Envelopes, Opening, Shuffled, decode, encode


def test_envelopes_that_were_opened_before_are_not_opened_again(tmp_path):
    training = training_of("method=ldp_fl", "transport=shuffle", "privacy.epsilon=2", "rounds=1")
    for number, own in enumerate(({}, {"state": str(tmp_path / "own"), "key": str(tmp_path / "key")})):
        (tmp_path / "key").write_bytes(bytes(range(32)))
        grid = grid_for(training)
        (node,) = (n for n, c in grid.contexts.items() if c.node_config.get("role") == "shuffler")
        grid.contexts[node].node_config |= own
        over_nodes(training, tmp_path / f"run{number}", grid)
        sent = {kind: message for kind, message, _ in grid.seen}
        opening = decode(Opening, sent["query.open"].content)[0]
        envelopes = decode(Envelopes, sent["query.shuffle"].content)[0].envelopes
        without = dict(list(envelopes.items())[1:])
        config = grid.contexts[node].node_config
        # Another run has a state of its own; what must outlive this one lies in the node's folder.
        context = Context(2, node, config, RecordDict(), {}) if own else grid.contexts[node]
        for again in (without, {seat + 1: envelope for seat, envelope in without.items()}):
            for kind, words in (("query.open", opening), ("query.shuffle", Envelopes(again))):
                reply = app(Message(encode(words), dst_node_id=node, message_type=kind), context)
            found = decode(Shuffled, reply.content)[0]
            assert found.batches == () and found.refused["opened before"] == 3

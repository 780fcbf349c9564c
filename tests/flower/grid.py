"""A grid without a network: each message is answered by a ClientApp in this process, with its own node's state."""

from collections.abc import Callable, Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity


class LocalGrid:
    def __init__(
        self, app: ClientApp, nodes: Iterable[int], broken: dict[int, Callable[[Message], Message]] | None = None
    ):
        self.app, self.broken = app, broken or {}
        self.contexts = {n: Context(1, n, {"partition-id": n}, RecordDict(), {}) for n in nodes}
        self.asked: list[list[int]] = []
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.asked.append([m.metadata.dst_node_id for m in messages])
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            copy = Message(
                RecordDict({k: type(v)(v) if k != "arrays" else v for k, v in message.content.items()}),
                dst_node_id=node,
                message_type=message.metadata.message_type,
            )
            copy.metadata.__dict__.update(_src_node_id=1, _message_id=f"m{node}", _run_id=1)
            if node in self.broken:
                reply = self.broken[node](copy)
            else:
                try:
                    reply = self.app(copy, self.contexts[node])
                except Exception as problem:
                    reply = Message(Error(code=1, reason=str(problem)), reply_to=copy)
            reply.metadata.__dict__["_src_node_id"] = node
            replies.append(reply)
        return replies

"""A grid whose nodes live in this process: the very messages of a federation, through Flower's wire format and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.task_identity import TaskIdentity

Tamper = Callable[[Message, Message], Message]
"""What somebody makes of a node's reply to a message."""


@dataclass
class Loopback:
    """As much of Flower's grid as the server uses; each node has a context of its own.

    ``silent`` are kinds of messages that a node never answers; ``tamper`` changes what nodes answer; ``seen`` lists what passed.
    """

    app: ClientApp
    configs: list[dict[str, int | float | str]]
    tamper: Tamper | None = None
    silent: set[tuple[str, int]] = field(default_factory=set)
    seen: list[tuple[str, Message, Message]] = field(default_factory=list)

    def __post_init__(self) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.contexts = {
            100 + i: Context(1, 100 + i, config, RecordDict(), {}) for i, config in enumerate(self.configs)
        }
        self.replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            names.append(message.metadata.message_id)
            node = message.metadata.dst_node_id
            if (message.metadata.message_type, node) in self.silent:
                continue
            there = message_from_proto(message_to_proto(message))
            try:
                reply = self.app(there, self.contexts[node])
            except Exception as problem:
                reply = Message(Error(code=1, reason=f"{type(problem).__name__}: {problem}"), reply_to=there)
            if self.tamper is not None:
                reply = self.tamper(there, reply)
            reply = message_from_proto(message_to_proto(reply))
            self.seen.append((message.metadata.message_type, there, reply))
            self.replies[names[-1]] = reply
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

"""The nodes of a federation as the server sees them: who is there, and one exchange of messages with some of them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import Message, RecordDict

from fedveil.core.errors import Aborted, Refused
from fedveil.runtime.flower.messages import Hello, Malformed, Present, decode, encode

Answers = dict[int, RecordDict | str]
"""By node: what came back, or in words why nothing did."""


GREETING = 5.0
"""Seconds that a round waits for a new node to say who it is; whoever takes longer is heard in a later one."""
NOBODY = -1
"""The number of a node that is none of the clients."""


@dataclass(eq=False)
class Nodes:
    """A Flower grid whose nodes have said who they are.

    ``timeout`` is how long a node may take to answer (None: as long as it takes), ``poll`` how often the server looks.
    """

    grid: Any
    timeout: float | None = None
    poll: float = 0.02
    stop: threading.Event = field(default_factory=threading.Event)
    settings: bytes = b""
    extra: tuple[str, ...] = ()
    """Roles of nodes that a simulation numbers after its ``population`` clients."""
    population: int | None = None
    names: tuple[str, ...] = ()
    """Where nodes are registered by name: those of the clients, in order. Nobody else is the client that it says."""
    clients: dict[int, int] = field(default_factory=dict, init=False)
    """The node of each client, by the client's number."""
    roles: dict[str, int] = field(default_factory=dict, init=False)
    present: dict[int, Present] = field(default_factory=dict, init=False)
    """What each node has said of itself."""
    greeted: dict[str, tuple[int, float]] = field(default_factory=dict, init=False)
    """Hellos under way: to which node, and since when."""
    trouble: dict[int, str] = field(default_factory=dict, init=False)
    """Why a node could not say it, in its words."""

    def meet(self) -> None:
        """Ask nodes that are new who they are, and forget those that have left."""
        here, now = set(self.grid.get_node_ids()), time.monotonic()
        for node in self.present.keys() - here:
            del self.present[node]
        life = math.inf if self.timeout is None else self.timeout
        self.greeted = {name: (node, when) for name, (node, when) in self.greeted.items()
                        if node in here and now - when <= life}  # fmt: skip
        strangers = sorted(here - self.present.keys() - {node for node, _ in self.greeted.values()})
        fresh = self._push("query.hello", dict.fromkeys(strangers, encode(Hello(self.settings))))[0]
        self.greeted |= {name: (node, now) for name, node in fresh.items()}
        self._hear()
        while fresh.keys() & self.greeted.keys() and time.monotonic() - now < min(GREETING, life):
            self._rest(self.poll)
            self._hear()
        # A node that came back under another number takes its place again.
        self.clients = {found.client: node for node, found in sorted(self.present.items()) if not found.role}
        self.clients.pop(NOBODY, None)
        self.roles = {found.role: node for node, found in sorted(self.present.items()) if found.role}

    def _hear(self) -> None:
        """Whoever has answered a hello by now is present."""
        if not self.greeted:
            return
        registered = {info.node_id: info.name for info in self.grid.get_nodes()} if self.names else {}
        for reply in self.grid.pull_messages(list(self.greeted)):
            node, _ = self.greeted.pop(reply.metadata.reply_to_message_id, (None, 0.0))
            if node is None:
                continue
            if reply.has_error():
                self.trouble[node] = f"error: {_reason(reply)}"
                continue
            try:
                found = self._placed(decode(Present, reply.content, {})[0])
            except Malformed as why:
                self.trouble[node] = str(why)
                continue
            self.trouble.pop(node, None)
            fits = not self.names or self._is(found, registered.get(node))
            self.present[node] = found if fits else replace(found, client=NOBODY, role="")

    def _is(self, found: Present, name: str | None) -> bool:
        if found.role:
            return found.role == name
        return 0 <= found.client < len(self.names) and self.names[found.client] == name

    def _placed(self, found: Present) -> Present:
        behind = -1 if self.population is None else found.client - self.population
        return replace(found, client=-1, role=self.extra[behind]) if 0 <= behind < len(self.extra) else found

    def wait_for(
        self,
        clients: int,
        roles: frozenset[str] = frozenset(),
        seconds: float | None = None,
        among: Sequence[int] | None = None,
    ) -> None:
        """Until so many clients (of ``among``), and these roles, are there."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            self.meet()
            here = len(self.clients) if among is None else len(self.clients.keys() & set(among))
            if here >= clients and roles <= self.roles.keys():
                return
            if end is not None and time.monotonic() > end:
                missing = ", ".join(sorted(roles - self.roles.keys()))
                raise Refused(
                    f"runtime: {here} of {clients} clients are connected"
                    f"{f', and no node is the {missing}' if missing else ''}; start the missing SuperNodes"
                    + "".join(f"; a node says: {words}" for words in dict.fromkeys(self.trouble.values()))
                )
            self._rest(max(self.poll, 0.2))

    def exchange(self, kind: str, contents: Mapping[int, RecordDict]) -> Answers:
        """Send each node its message and wait for the answers, no longer than the time-out."""
        waiting, out = self._push(kind, contents)
        limit = self.timeout
        end = None if limit is None else time.monotonic() + limit
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                whose = waiting.pop(reply.metadata.reply_to_message_id, None)
                if whose is not None:
                    out[whose] = f"error: {_reason(reply)}" if reply.has_error() else reply.content
            if not waiting:
                break
            if end is not None and time.monotonic() > end:
                out |= dict.fromkeys(waiting.values(), f"no answer within {limit:g} s")
                break
            self._rest(self.poll)
        return out

    def _push(self, kind: str, contents: Mapping[int, RecordDict]) -> tuple[dict[str, int], Answers]:
        """Send; the node of each message that is under way, and who did not get one."""
        waiting: dict[str, int] = {}
        out: Answers = {}
        for node, content in contents.items():
            # One by one: of several, Flower does not say which it did not take.
            numbers = list(self.grid.push_messages([Message(content, dst_node_id=node, message_type=kind)]))
            if numbers and numbers[0]:
                waiting[numbers[0]] = node
            else:
                out[node] = "its node has left"
        return waiting, out

    def ask(
        self, kind: str, clients: Mapping[int, int | None], contents: Mapping[int, RecordDict]
    ) -> dict[int, RecordDict | str]:
        """The same by rows: who each is, what it is sent, and what came back or why nothing did."""
        nodes = {row: self.clients.get(-1 if client is None else client) for row, client in clients.items()}
        found = self.exchange(kind, {node: contents[row] for row, node in nodes.items() if node is not None})
        return {row: "its node is not connected" if node is None else found[node] for row, node in nodes.items()}

    def ask_role(self, role: str, kind: str, content: RecordDict) -> RecordDict:
        """One exchange with the node that has this role; a round without it is aborted."""
        node = self.roles.get(role)
        answer = "it is not connected" if node is None else self.exchange(kind, {node: content})[node]
        if isinstance(answer, str):
            raise Aborted(f"no answer from the {role} ({answer}); start its SuperNode")
        return answer

    def _rest(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise KeyboardInterrupt


def _reason(reply: Message) -> str:
    words = str(reply.error.reason or "").strip().splitlines()
    return (words[-1] if words else f"code {reply.error.code}")[:200]

"""FedVeil's stages as a mod of a Flower ClientApp: they act on what a client sends, with a budget of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from logging import ERROR, INFO
from pathlib import Path
from typing import Literal

import orjson
import torch
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord
from flwr.clientapp.typing import ClientAppCallable
from flwr.supercore import log

from fedveil.core.errors import Refused, one_of
from fedveil.core.method import DUMMY
from fedveil.core.secret import secure_generator
from fedveil.core.signal import Signal
from fedveil.core.stage import Context as Round
from fedveil.core.stage import PerSample, Release, Remembering, Stage, chain
from fedveil.core.streams import stream
from fedveil.flower.arrays import alike, layout_of, move, moved, plain
from fedveil.privacy.accountants import epsilon as cost
from fedveil.privacy.events import event_of
from fedveil.privacy.ledger import Ledger, Line

STATE = "fedveil.released"
"""Where a node keeps what it has released, in the state that Flower holds for it."""
REFUSED = 200
"""The code of the error message of a client whose budget is spent."""


class StagesMod:
    """Runs stages over a client's move (what training changed), before anything leaves the client.

    ``StagesMod(clip(norm=1.0), gaussian(multiplier=2.0), epsilon=8, delta=1e-5)`` makes each upload private towards the
    server: unit client, adjacency zero_out, no amplification. With ``epsilon`` a client answers with an error instead
    of a release that would exceed its budget. What it has released stands in the node's Flower state, or, given a
    ``journal``, in a file of its own, which outlives the SuperNode (one mod with a journal serves one node).

    Whatever else a reply says is outside of the stages: where a stage is a mechanism, ``metrics`` ``hide`` (the
    default) puts ``num-examples = 1`` in place of all metrics, in answers to every kind of message, and lets no arrays
    leave but those of training; ``declare`` leaves both, and no claim covers them.
    """

    def __init__(
        self,
        *stages: Stage,
        epsilon: float | None = None,
        delta: float = 1e-5,
        accountant: str = "rdp",
        metrics: Literal["hide", "declare"] = "hide",
        weight_key: str = "num-examples",
        journal: str | Path | None = None,
        seed: int | None = None,
    ) -> None:
        self.stages, self.epsilon, self.delta, self.accountant = chain(*stages), epsilon, delta, accountant
        one_of("metrics", metrics, ("hide", "declare"))
        for stage in self.stages:
            if isinstance(stage, PerSample):
                raise Refused(
                    f"StagesMod: {type(stage).__name__} looks at single examples, which are gone when a client "
                    "replies; use clip, which bounds the whole move"
                )
            if isinstance(stage, Remembering) or getattr(stage, "looks_back", False):
                raise Refused(
                    f"StagesMod: {type(stage).__name__} learns from round to round, which only FedVeil's own round "
                    "loop lets it; use a fixed clip, shrink(target='zero'), or `fedveil run runtime=flower`"
                )
        if epsilon is not None and seed is not None:
            raise Refused("seed: noise that can be drawn again spends every budget; leave seed or epsilon out")
        cost((), delta, accountant)  # refuses what it does not know
        self.metrics, self.weight_key, self.seed = metrics, weight_key, seed
        self.journal = None if journal is None else Ledger.replay(Path(journal))
        trial = Round(0, DUMMY, [None], [stream(0, "rehearsal")], slot="on_delta")
        out = self.stages(Signal(torch.ones(1, DUMMY.dim)), trial)
        self.private = out.released
        if epsilon is not None and not self.private:
            raise Refused(
                "epsilon: no stage is a privacy mechanism, so that no budget can hold; add noise after a clip"
            )

    def __call__(self, msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
        """Let the app train, then run the stages over its move."""
        sent = list(msg.content.array_records.values()) if msg.has_content() else []
        if not msg.metadata.message_type.startswith("train"):
            return self._beside(msg, call_next(msg, ctxt))
        if len(sent) != 1:
            return _refuse(msg, f"StagesMod: an order to train has one set of arrays, and this one {len(sent)}")
        before, number = plain(sent[0]), _round(msg)
        reply = call_next(msg, ctxt)
        if reply.has_error():
            return reply
        records = list(reply.content.array_records.items())
        if len(records) != 1:
            return _refuse(msg, f"StagesMod: a reply has one set of arrays, and this one {len(records)}")
        name, after = records[0][0], plain(records[0][1])
        if wrong := alike(after, before, finite=False):  # what is not finite is a clip's to deal with
            return _refuse(msg, f"StagesMod: the reply cannot be used: {wrong}")
        layout = layout_of(before)
        delta = move(after, before, layout)[None, :]
        generator = secure_generator() if self.seed is None else stream(self.seed, "mod", number, ctxt.node_id)
        here = Round(number, layout, [None], [generator], slot="on_delta")
        try:
            signal = self.stages(Signal(delta), here)
        except Refused as refusal:
            return _refuse(msg, str(refusal))
        lines = [Line(replace(r, round=number), (0,), None, ("server", "public")) for r in here.releases]
        if lines and not self._charge(ctxt, number, lines):
            return _refuse(msg, f"StagesMod: this client's budget of epsilon {self.epsilon:g} is spent")
        # What is no real number (a counter) goes back as it came: it tells how long a client has trained.
        reply.content[name] = moved(before, signal.value[0], layout, before if self.private else after)
        return self._hidden(reply)

    def _beside(self, msg: Message, reply: Message) -> Message:
        """What a client answers to something else than an order to train: under a mechanism no arrays, no metrics."""
        if not self.private or reply.has_error() or self.metrics == "declare":
            return reply
        if reply.content.array_records:
            return _refuse(msg, "StagesMod: arrays leave in answer to an order to train alone")
        return self._hidden(reply)

    def _hidden(self, reply: Message) -> Message:
        if self.private and self.metrics == "hide":
            for key in [*reply.content.metric_records, *reply.content.config_records]:
                del reply.content[key]
            reply.content["metrics"] = MetricRecord({self.weight_key: 1})
        return reply

    def spent(self, ctxt: Context) -> float:
        """ε of everything that this client has released."""
        return self._cost(self._released(ctxt))

    def _charge(self, ctxt: Context, number: int, lines: Sequence[Line]) -> bool:
        """Write releases down before they leave; False, and nothing written, where the budget does not reach."""
        known = self._released(ctxt)
        coming = [line.release for line in lines]
        if self.epsilon is not None and self._cost([*known, *coming]) > self.epsilon:
            return False
        if self.journal is not None:
            self.journal.charge(number, lines)
        else:
            texts = list(_texts(ctxt)) + [orjson.dumps([number, line.to_json()]).decode() for line in lines]
            ctxt.state[STATE] = ConfigRecord({"lines": texts})
        log(INFO, "StagesMod: epsilon %.4g at delta %g so far", self._cost([*known, *coming]), self.delta)
        return True

    def _released(self, ctxt: Context) -> list[Release]:
        if self.journal is not None:
            return [line.release for entry in self.journal.entries for line in entry.lines]
        pairs = [orjson.loads(text) for text in _texts(ctxt)]
        return [Line.from_json(line, number).release for number, line in pairs]

    def _cost(self, releases: Sequence[Release]) -> float:
        return cost([event_of(r) for r in releases], self.delta, self.accountant)


def _texts(ctxt: Context) -> list[str]:
    record = ctxt.state.config_records.get(STATE)
    found = [] if record is None else record["lines"]
    assert isinstance(found, list)
    return [str(text) for text in found]


def _round(msg: Message) -> int:
    for record in msg.content.config_records.values():
        number = record.get("server-round")
        if isinstance(number, int):
            return number
    return 0


def _refuse(msg: Message, why: str) -> Message:
    log(ERROR, why)
    return Message(Error(code=REFUSED, reason=why), reply_to=msg)

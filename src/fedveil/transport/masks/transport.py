"""The masks transport: how signals become whole numbers, and their sum a delivery (SPEC 6.1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import Aborted, Refused, fraction, one_of, positive
from fedveil.core.parts import Delivery, View
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.transport.masks.crypto import Words
from fedveil.transport.masks.encoding import Integers, centred, word
from fedveil.transport.masks.plan import Plan, choose
from fedveil.transport.masks.server import STAGES
from fedveil.transport.masks.simulate import Traffic, summed

Overflow = Literal["refuse", "clip"]


@dataclass(frozen=True)
class Masks:
    """Secure aggregation: uploads are summed under masks, modulo 2^``bits``, in units of ``step``.

    max_dropout
        the share of clients that may drop out of a round; with more it is aborted. ``dropout`` of them do in a
        simulation, each before a random stage.
    collusion
        the share of clients that may work with the server.
    active_server
        whether the server may lie about who dropped out: clients then sign its list of survivors.
    degree
        neighbours of a client; None: as few as keep either failure below 2^−40.
    overflow
        what happens to an upload with which a sum could wrap round: ``refuse`` ends the run, ``clip`` limits it.
    """

    bits: int = 32
    step: float = 2.0**-20
    dropout: float = 0.0
    max_dropout: float = 0.2
    collusion: float = 0.1
    active_server: bool = False
    degree: int | None = None
    overflow: Overflow = "refuse"

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 62:
            raise Refused(f"transport.bits: {self.bits} is not allowed; give a whole number from 2 to 62")
        positive(**{"transport.step": self.step})
        fraction(
            **{
                "transport.dropout": self.dropout,
                "transport.max_dropout": self.max_dropout,
                "transport.collusion": self.collusion,
            }
        )
        one_of("transport.overflow", self.overflow, ("refuse", "clip"))

    @property
    def reveals(self) -> frozenset[View]:
        """The sum."""
        return frozenset({"sum"})

    @property
    def trust(self) -> str:
        """What hides single uploads, for a statement."""
        server = "a server that may lie about who dropped out" if self.active_server else "a semi-honest server"
        return f"secure aggregation by masks against {server}"

    def plan(self, clients: int) -> Plan:
        """The parameters of a round to which this many clients are invited."""
        return choose(
            clients,
            max_dropout=self.max_dropout,
            collusion=self.collusion,
            active=self.active_server,
            degree=self.degree,
        )

    def remarks(self, cohort: int) -> list[str]:
        """What the server sees, under which assumptions, and how likely they are to fail."""
        server = "may lie about who dropped out" if self.active_server else "follows the protocol"
        return [
            "Secure aggregation by masks: the server sees sums of uploads and no single one, as long as it "
            f"{server}: {self.plan(cohort).words()}."
        ]

    def carry(self, uploads: Mapping[str, Signal], weights: Tensor, ctx: Context) -> Delivery:
        """The weighted sum over the clients whose uploads arrived, and the sum of their weights.

        The server gets Σ c_k x_k and Σ c_k with c_k = w_k / max w, both masked, so that it need not know weights.
        """
        if list(ctx.clients) == [None]:  # nobody came: there is nobody to run the protocol with
            return Delivery({name: s.value * float(weights[0]) for name, s in uploads.items()}, 0)
        n = len(weights)
        plan, counts = self.planned(n), counted(weights)
        rows, cut = self.words(uploads, counts, n)
        leaving, traffic = self.leaving(n, ctx), Traffic()
        ctx.log["masks"] = note(plan, leaving, traffic) | {"clipped": cut}
        total, survivors = summed(plan, self.bits, rows, leaving, traffic)
        return self.delivery(total, survivors, uploads, weights, traffic.up)

    def planned(self, n: int) -> Plan:
        """The plan of a round; a Poisson cohort may be smaller than the one that the run was planned for."""
        try:
            return self.plan(n)
        except Refused as why:
            raise Aborted(str(why)) from None

    def words(self, uploads: Mapping[str, Signal], counts: Tensor | None, n: int) -> tuple[Words, int]:
        """Rows as whole numbers modulo 2^bits for a sum of ``n`` of them, and how many had to be clipped.

        ``counts`` are the rows' c_k where these differ; they come last in each row then.
        """
        encoded = [self._encode(name, signal, counts, n) for name, signal in uploads.items()]
        pieces = [whole for whole, _ in encoded]
        if counts is not None:
            pieces.append((counts * self._top(n)).round().to(torch.int64).numpy()[:, None])
        return _residues(np.concatenate(pieces, axis=1), self.bits), sum(cut for _, cut in encoded)

    def delivery(
        self, total: Words, survivors: list[int], uploads: Mapping[str, Signal], weights: Tensor, sent: int
    ) -> Delivery:
        """What the sum over the survivors' rows says; of ``uploads`` it reads lengths and grids alone."""
        n, top = len(weights), float(weights.max())
        whole, start, sums = centred(total, self.bits), 0, {}
        for name, signal in uploads.items():
            part = torch.from_numpy(whole[start : start + signal.dim].copy()).double()
            unit = self.step if signal.grid is None else signal.grid
            sums[name] = (part * (unit * top))[None, :].to(signal.value)
            start += signal.dim
        arrived = None if len(survivors) == n else torch.tensor(survivors)
        equal = counted(weights) is None
        weight = len(survivors) * top if equal else float(whole[-1]) / self._top(n) * top
        return Delivery(sums, sent, arrived, weight)

    def _top(self, n: int) -> int:
        """The largest whole number that n clients may send without a wrap."""
        return int((2 ** (self.bits - 1) - 1) // n)

    def _encode(self, name: str, signal: Signal, counts: Tensor | None, n: int) -> tuple[Integers, int]:
        """One channel as whole numbers, and how many of them had to be clipped."""
        value = signal.value.detach().double().cpu()
        if signal.grid is not None:
            if counts is not None:
                raise Refused(
                    f"weights: channel {name!r} lies on a grid, whose sum has no weights; set weights=uniform"
                )
            units = value / signal.grid
            whole = units.round()
            if not torch.all((units - whole).abs() <= 1e-3):
                raise Refused(
                    f"transport: channel {name!r} has values off its grid of {signal.grid:g}; mend its stages"
                )
            return whole.to(torch.int64).numpy(), 0
        if counts is not None:
            value = value * counts[:, None]
        # Towards zero: no vector gets longer, so that a clip still bounds it.
        units = (value / self.step).trunc()
        far, top = float(units.abs().max()) if units.numel() else 0.0, self._top(n)
        if not math.isfinite(far):
            raise Refused(f"transport: channel {name!r} has values that are no numbers; lower lr, or clip")
        cut = 0
        if far > top:
            if self.overflow == "refuse":
                raise Refused(
                    f"transport.bits: channel {name!r} holds {far * self.step:.4g}, but {n} clients in {self.bits} "
                    f"bits of step {self.step:.3g} have room for {top * self.step:.4g} each; raise transport.bits or "
                    "transport.step, or set transport.overflow=clip"
                )
            cut = int((units.abs() > top).sum())
            units = units.clamp(-top, top)
        return units.to(torch.int64).numpy(), cut

    def leaving(self, n: int, ctx: Context) -> dict[int, str]:
        """Who drops out of this simulated round, and before which stage."""
        if not self.dropout:
            return {}
        assert ctx.chance is not None
        expected = self.dropout * n
        count = math.floor(expected) + int(ctx.chance.random() < expected % 1)
        stages = [stage for stage in STAGES if stage != "sign" or self.active_server]
        who = ctx.chance.choice(n, count, replace=False)
        return {int(k): stages[int(ctx.chance.integers(len(stages)))] for k in who}


def counted(weights: Tensor) -> Tensor | None:
    """c_k = w_k / max w of each upload; None where all are equal and need not travel."""
    return None if bool(torch.all(weights == weights[0])) else weights / float(weights.max())


def note(plan: Plan, leaving: Mapping[int, str], traffic: Traffic) -> dict[str, Any]:
    """What the round's line says of a session; the traffic is counted while it lasts."""
    return {
        "degree": plan.degree,
        "threshold": plan.threshold,
        "least": plan.least,
        "dropped": dict(Counter(leaving.values())),
        "stages": traffic.stages,
    }


def _residues(values: Integers, bits: int) -> Words:
    """Whole numbers modulo 2^bits."""
    return (values & np.int64(2**bits - 1)).astype(word(bits))

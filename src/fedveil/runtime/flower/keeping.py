"""What a client remembers between rounds, in its node's own state: the vectors of a few rounds, newest last.

A node does not know whether the server will use its upload, nor from which checkpoint a run may be gone on with: an
order says which round's vector counts, and until which round everything is on the server's disk. What neither needs is
dropped. Flower keeps a node's state as long as the run; a copy in a folder of the node's own outlives it.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord, Context
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedveil.core.files import write_bytes
from fedveil.runtime.flower.messages import Order, read_tensor, written

STATE = "fedveil.memory"


def recall(context: Context, order: Order, place: Path | None) -> Tensor | None:
    """What this client remembered after the round that counts, as one row; None where it has nothing."""
    found = _versions(context, order.client, place).get(order.remembered)
    return None if found is None else found[None, :]


def remember(context: Context, order: Order, place: Path | None, memory: Tensor | None) -> None:
    """Keep one more vector beside those that may still be asked for."""
    if memory is None:
        return
    known = _versions(context, order.client, place)
    used = [round for round in sorted(known) if round <= order.remembered]
    before = [round for round in used if round <= order.saved][-1:]
    kept = {round: known[round] for round in used if round > order.saved or round in (*before, order.remembered)}
    kept[order.round] = memory[0]
    context.state[STATE] = ArrayRecord({str(round): written(value) for round, value in kept.items()})
    if place is not None:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_bytes(_file(place, order.client), save({str(r): v.contiguous() for r, v in kept.items()}))


def _versions(context: Context, client: int, place: Path | None) -> dict[int, Tensor]:
    record = context.state.array_records.get(STATE)
    if record is not None:
        return {int(name): read_tensor(STATE, array) for name, array in record.items()}
    if place is None:
        return {}
    try:
        return {int(name): value for name, value in load(_file(place, client).read_bytes()).items()}
    except (OSError, SafetensorError, ValueError):
        return {}


def _file(place: Path, client: int) -> Path:
    return place / f"client-{client}.safetensors"

"""The in-process runtime: the round loop (DESIGN 1)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from safetensors.torch import save
from torch import Tensor

from fedveil.core.errors import Aborted, Refused
from fedveil.core.files import write_bytes
from fedveil.core.method import Method
from fedveil.core.parts import ANNOUNCED, State
from fedveil.core.round import LEARNED, PREVIOUS, Arrival
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.data.cohorts import draw
from fedveil.local.engine import Diverged
from fedveil.privacy.ledger import Line
from fedveil.privacy.statement import Statement
from fedveil.runtime.accounting import Bookkeeper
from fedveil.runtime.checkpoint import Progress, load_progress, save_progress
from fedveil.runtime.evaluate import accuracy_by_client, attack_success, spread, test_scores
from fedveil.runtime.folder import Folder, write_json
from fedveil.runtime.in_process import InProcess
from fedveil.runtime.interrupt import undivided
from fedveil.runtime.memory import Memory
from fedveil.runtime.planning import remembered
from fedveil.runtime.prepare import Training
from fedveil.runtime.settings import Stop
from fedveil.runtime.watch import HEARD

Record = dict[str, Any]
TAMPERED = (
    "nothing is claimed: less noise was added than the ledger says (audit.noise), to see whether an audit notices"
)


class Listener(Protocol):
    """Somebody who follows a run: the terminal, a logger, a notebook."""

    def opened(self, training: Training, folder: Folder, done: int, notes: Sequence[str]) -> None:
        """Training is about to start after ``done`` rounds."""
        ...

    def round(self, record: Record) -> None:
        """A round is complete and saved."""
        ...

    def closed(self, summary: Record | None) -> None:
        """The run has ended; no summary means that it was interrupted."""
        ...


class Clients(Protocol):
    """Whoever trains: clients in this process, or nodes elsewhere."""

    @property
    def lenient(self) -> bool:
        """Whether a client that sends what is no number is left out; if not, the run ends with its number."""
        ...

    def memory_size(self, dim: int) -> int:
        """How many numbers the server keeps of what one client remembers, in a model of ``dim`` parameters."""
        ...

    def muster(self, number: int, cohort: Sequence[int]) -> None:
        """Wait until this round can be had, before it is charged; refused where nobody comes."""
        ...

    def carry_out(
        self, progress: Progress, ctx: Context, books: Bookkeeper, lines: Sequence[Line], record: Record
    ) -> tuple[Arrival, Tensor | None]:
        """Train ``ctx.clients`` from where ``progress`` stands and bring in what they send.

        Adds to the round's ``record``, and to ``ctx.releases`` what was released. Returns the arrival and what to
        remember of each client (a row each), where anything is. A round that fails raises
        :class:`~fedveil.core.errors.Aborted`.
        """
        ...


def train(
    training: Training,
    folder: Folder,
    *,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
    clients: Clients | None = None,
) -> tuple[Progress, Record]:
    """Run (or go on with) all rounds, saving as it goes; returns where it ended and the summary."""
    clients = clients or InProcess(training)
    with folder.locked(), torch.random.fork_rng(devices=[]), _threads(training.threads):
        progress, notes = _begin(training, folder, resume)
        if any(row.numel() != clients.memory_size(progress.memory.dim) for row in progress.memory.rows.values()):
            raise Refused(
                "runtime: clients' memories were kept by another runtime than this one, and would be lost; resume the "
                "run with the runtime that it began with"
            )
        books = Bookkeeper(training, folder, progress)
        saved, spent = progress.round, None
        for listener in listeners:
            listener.opened(training, folder, progress.round, notes)
        summary = None
        try:
            while progress.round < training.settings.rounds and progress.stopped is None:
                cohort = _cohort(training, progress.round + 1, books)
                lines = books.planner.lines(cohort, progress.server)
                spent = books.afford(lines)
                if spent:  # not kept with the progress: the budget may grow before the run is resumed
                    if progress.round == 0:
                        raise Refused(f"privacy.epsilon: {spent}; allow more, or add more noise")
                    break
                clients.muster(progress.round + 1, cohort)
                books.charge(progress.round + 1, lines)
                after, record = _round(training, progress, books, cohort, lines, clients)
                with undivided():
                    progress.ledger = books.ledger.head
                    _commit(progress, after, training.settings.stop)
                    folder.append_event(record)
                    due = progress.round % training.settings.checkpoint.every == 0
                    if due or progress.stopped or not repeatable(record):
                        save_progress(folder.checkpoint, progress)
                        saved = progress.round
                for listener in listeners:
                    listener.round(record)
            summary = _finish(training, progress, folder, books, progress.stopped or spent)
        finally:
            if saved < progress.round:
                save_progress(folder.checkpoint, progress)
            for listener in listeners:
                listener.closed(summary)
    return progress, summary


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _begin(training: Training, folder: Folder, resume: bool) -> tuple[Progress, list[str]]:
    objective, settings = training.objective, training.settings
    memory = Memory(objective.layout.dim, settings.torch_dtype, settings.torch_device)
    if resume and any(folder.checkpoint.glob("round-*")):
        progress, notes = load_progress(folder.checkpoint, memory)
        events = folder.read_events(up_to=progress.round)
        if len(events) < progress.round:
            notes.append(f"events.jsonl has lost {progress.round - len(events)} of {progress.round} rounds")
        folder.rewrite_events(events)
        return progress, notes
    folder.rewrite_events([])
    progress = Progress(0, training.start(), memory)
    save_progress(folder.checkpoint, progress)
    write_json(folder.clients, _client_facts(training))
    return progress, []


@dataclass(eq=False)
class _After:
    """What a round changes; nothing of it counts before all of it is there."""

    server: State
    cohort: list[int]
    memory: Tensor | None
    seconds: float
    quality: float | None


def _cohort(training: Training, number: int, books: Bookkeeper) -> list[int]:
    settings, population = training.settings, training.federation.population
    chosen = draw(settings.seed, number, population, training.cohort, settings.selection, books.cohort_draw())
    return [int(k) for k in chosen]


def _round(
    training: Training,
    progress: Progress,
    books: Bookkeeper,
    cohort: list[int],
    lines: Sequence[Line],
    clients: Clients,
) -> tuple[_After, Record]:
    """Compute one round; ``progress`` stays as it is, so that an interrupt loses no more than this round."""
    started = time.perf_counter()
    settings, method, federation = training.settings, training.method, training.federation
    number, server = progress.round + 1, progress.server
    record: Record = {"round": number, "clients": cohort, "bytes_up": 0, "bytes_down": 0}
    record |= dict.fromkeys(("train_loss", "move_norm", "steps", "accuracy", "loss", "client_accuracy", "missing"))
    memory = None
    if cohort or method.fixed_divisor:
        ctx = Context(
            number,
            training.objective.layout,
            cohort,
            books.streams("noise", number, cohort),
            memory=remembered(server),
            server=books.server_noise(number),
            batches=books.streams("batches", number, cohort),
            previous=server[PREVIOUS][None, :] if PREVIOUS in server else None,
            announced={n.removeprefix(ANNOUNCED): float(v) for n, v in server.items() if n.startswith(ANNOUNCED)},
            lenient=clients.lenient,
            chance=stream(settings.seed, "chance", number),
            weights=server["w"],
        )
        down = len(cohort) * sum(v.numel() * v.element_size() for n, v in server.items() if sent_down(method, n))
        record["bytes_down"] = down
        try:
            arrival, memory = clients.carry_out(progress, ctx, books, lines, record)
        except Aborted as why:  # charged all the same: what clients released may have been seen
            record["aborted"], memory = str(why), None
        else:
            books.check(lines, ctx.releases)
            record["bytes_up"], server = arrival.bytes_up, arrival.server
            if arrival.arrived is not None:
                record["missing"] = len(cohort) - len(arrival.arrived)
                cohort = [cohort[i] for i in arrival.arrived.tolist()]
                memory = None if memory is None else memory[arrival.arrived.to(memory.device)]
        record |= ctx.log
        if not torch.isfinite(server["w"].sum()):
            if not clients.lenient:
                raise Diverged(number, None, "a weight")
            record["aborted"], memory, server = "the new model is not finite", None, progress.server
    if number == settings.rounds or number % settings.evaluate.every == 0:
        record |= test_scores(training, server) | attack_success(training, server)
        record["client_accuracy"] = spread(accuracy_by_client(training, server))
    record["epsilon"] = books.spent()
    record["seconds"] = time.perf_counter() - started
    # What early stopping looks at: higher is better.
    quality = record["accuracy"] if federation.classes or record["loss"] is None else -record["loss"]
    return _After(server, cohort, memory, record["seconds"], quality), record


def _commit(progress: Progress, after: _After, stop: Stop) -> None:
    progress.server = after.server
    progress.round += 1
    progress.seconds += after.seconds
    if after.memory is not None:
        progress.memory.store(after.cohort, after.memory)
    quality = after.quality
    if quality is None:
        return
    if progress.best is None or quality > progress.best:
        progress.best, progress.stale = quality, 0
    else:
        progress.stale += 1
    if stop.accuracy is not None and quality >= stop.accuracy:
        progress.stopped = f"the test accuracy reached {quality:.4f} (stop.accuracy={stop.accuracy})"
    elif stop.patience is not None and progress.stale >= stop.patience:
        progress.stopped = f"{progress.stale} evaluations without a better test score (stop.patience)"


def sent_down(method: Method, name: str) -> bool:
    """Whether clients get this part of the server's state."""
    return method.sends_back if name == PREVIOUS else not name.startswith((LEARNED, HEARD))


def repeatable(record: Record) -> bool:
    """Whether a round would come out the same again: not where it hung on who answered.

    Seeded noise is drawn again with a round that is computed again, and must not fall on other numbers than before.
    """
    return not any(record.get(name) for name in ("excluded", "aborted", "forgot"))


def _client_facts(training: Training) -> Record:
    federation = training.federation
    counts = federation.label_counts()
    return {
        "names": list(names) if (names := federation.client_names()) else None,
        "sizes": federation.sizes.tolist(),
        "label_counts": None if counts is None else counts.tolist(),
        "accuracy": None,
        "facts": dict(federation.facts()),
    }


def _notes(training: Training) -> list[str]:
    notes = []
    if training.attackers is not None and training.method.private:
        notes.append(
            f"{len(training.attackers.clients)} clients attacked ({training.attackers.name}, simulated). The ledger "
            "and this statement speak of honest clients: what an attacker sends need not be clipped, nor hold noise."
        )
    if training.watch is not None:
        notes.append(
            f"{training.watch.count:,} canaries rode along, made-up {training.watch.unit}s that `fedveil audit` looks "
            "for: the model has learned from them as well."
        )
        if training.watch.slot != "on_delta":
            notes.append(
                "canaries.json was written with the knowledge of everybody's data: whoever has it, and what an "
                "observer saw, can take some of the noise out again. Keep it where the data are."
            )
    if training.settings.stop.wanted:
        declared = "was declared public" if training.settings.stop.public_test else "was used"
        notes.append(f"The test set {declared} to decide when to stop.")
    return notes


def _statement(training: Training, folder: Folder, server: State, books: Bookkeeper) -> Statement:
    """The statement of a run; with canaries their evidence is kept beside it, and with the claim that it is about."""
    notes, watch = _notes(training), training.watch
    statement = books.statement(notes)
    if watch is None:
        return statement
    write_json(folder.canaries, watch.evidence(server) | {"claims": statement.to_json()["rows"]})
    return Statement.void(TAMPERED, notes) if training.settings.audit.noise != 1 else statement


def _finish(training: Training, progress: Progress, folder: Folder, books: Bookkeeper, stopped: str | None) -> Record:
    objective, server = training.objective, progress.server
    training.engine.bind(server)
    write_bytes(folder.model, save(objective.tensors()))
    by_client = accuracy_by_client(training, server)
    accuracies = None if by_client is None else [None if a != a else round(a, 6) for a in by_client.tolist()]
    write_json(folder.clients, _client_facts(training) | {"accuracy": accuracies})
    statement = _statement(training, folder, server, books)
    write_json(folder.statement, statement.to_json())
    write_bytes(folder.statement.with_suffix(".md"), statement.to_markdown().encode())
    scores = test_scores(training, server) | attack_success(training, server)
    clients = spread(by_client)
    attackers = training.attackers
    summary: Record = {
        "status": "finished" if stopped is None else f"stopped early: {stopped}",
        "method": training.method.name,
        "data": training.federation.name,
        "rounds": progress.round,
        "accuracy": scores["accuracy"],
        "loss": scores["loss"],
        "best_accuracy": progress.best if training.federation.classes else None,
        "client_accuracy": clients,
        "worst10_accuracy": None if clients is None else clients["worst10"],
        "seconds": progress.seconds,
        "seconds_per_round": progress.seconds / max(progress.round, 1),
        "engine": training.engine.name,
        "engine_reason": "; ".join(filter(None, (training.engine_reason, training.engine.trouble))),
        "threads": training.threads,
        "input_shape": list(training.federation.input_shape),
        "tokens": not training.federation.test.x.is_floating_point(),
        "classes": training.federation.classes,
        "parameters": objective.layout.dim,
        "population": training.federation.population,
        "cohort": training.cohort,
        "attack": None if attackers is None else attackers.facts() | {"success": scores.get("attack_success")},
        "excluded": sum(len(event.get("excluded") or ()) for event in folder.read_events(up_to=progress.round)),
        "seed": training.settings.seed,
        "model_hash": hashlib.blake2b(server["w"].cpu().numpy().tobytes(), digest_size=16).hexdigest(),
        "epsilon": books.final(),
        "rounds_left": books.rounds_left(),
        "statement": statement.headline(),
        "folder": str(folder.path),
    }
    write_json(folder.summary, summary)
    return summary

"""The privacy statement: what is proved towards whom, computed from the ledger (SPEC 0)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fedveil.core.errors import Refused
from fedveil.core.signal import Unit
from fedveil.core.stage import Pool
from fedveil.privacy.averaging import Averaging, averaged, claimed
from fedveil.privacy.claims import OBSERVERS, UNITS, Accounts, Observer, Tally
from fedveil.privacy.events import Poisson, Sampling, WithoutReplacement
from fedveil.privacy.ledger import Entry, Line

Status = Literal["proved", "nominal", "none"]

HEADS = ("observer", "unit", "epsilon", "delta", "status", "mechanism", "sampling", "accountant")

ADJACENCY = {
    "zero_out": "Neighbours (zero_out): one unit's gradient or move is replaced by zero; data-set sizes and the number "
    "of clients in a round are public and unchanged.",
    "add_remove": "Neighbours (add_remove): one unit comes or goes.",
    "replace": "Neighbours (replace): one unit is exchanged for any other; this doubles the sensitivity.",
}
NOT_COVERED = (
    "Not covered: what this run folder says beside the model (accuracies, losses, norms of moves, class counts, "
    "data-set sizes, who took part), and the choice of settings by looking at results of other runs."
)
SEEDED = (
    "Noise and cohorts were drawn from the run's seed (privacy.rng=seeded): whoever knows or guesses the seed can "
    "subtract the noise and tell who took part. Set privacy.rng=secure for data that matters."
)


SOURCE = (
    "nominal: takes C·K·η/b for what one record can change in a move; with more than one step it can change far more, "
    "and the row above says what the noise really protects"
)


HIDDEN = (
    "clients keep control variates between rounds, so that what one sends depends on when it "
    "was drawn before, and the draw of clients is not counted"
)


@dataclass(frozen=True)
class Row:
    """What one observer can learn about one unit: epsilon at delta, and the theorem's premises."""

    observer: str
    unit: Unit
    epsilon: float
    delta: float | None
    status: Status
    mechanism: str
    sampling: str
    accountant: str
    note: str = ""


@dataclass(frozen=True)
class Statement:
    """All rows of a run, and notes on what they do not cover."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def void(cls, why: str, notes: Sequence[str] = ()) -> Statement:
        """The statement of a run that leaks: nothing is claimed, whatever was charged."""
        return cls(tuple(_nothing(o, u) for o in OBSERVERS for u in UNITS), (why, *notes))

    @classmethod
    def of(
        cls,
        accounts: Accounts,
        entries: Sequence[Entry],
        notes: Sequence[str] = (),
        *,
        rng: str = "secure",
        averaging: Averaging | None = None,
        summed: bool = False,
        servers: Sequence[str] = (),
    ) -> Statement:
        """The statement that these accounts support: a row for each observer and unit, then what papers claim.

        ``summed`` says that the server sees sums of uploads only. ``servers`` stand in the place of one server, each
        an observer of its own: everything that they receive is made of what left the clients.
        """
        lines = [line for entry in entries for line in entry.lines]
        if not lines:
            return cls(
                tuple(_nothing(o, u) for o in (*(servers or ("server",)), "public") for u in UNITS), tuple(notes)
            )
        rows = [_row(accounts, lines, observer, unit, summed) for observer in OBSERVERS for unit in UNITS]
        if averaging is not None and accounts.local and not accounts.covers("public", "client"):
            rows = _with_averages(rows, accounts, averaged(entries, accounts.adjacency), averaging)
        papers = claimed(entries, accounts.adjacency)
        if papers:
            rows.append(_source(rows[0], accounts, papers))
        if servers:
            rows = [
                *(replace(row, observer=one) for one in servers for row in rows if row.observer == "server"),
                *(row for row in rows if row.observer != "server"),
            ]
        remarks = [ADJACENCY[accounts.adjacency], NOT_COVERED]
        if rng == "seeded":
            remarks.append(SEEDED)
        lost = sorted({e.round for e in entries if e.status == "interrupted"})
        if lost:
            remarks.append(f"Interrupted rounds that were charged and ran again: {', '.join(map(str, lost))}.")
        return cls(tuple(rows), (*remarks, *notes))

    def headline(self) -> str:
        """The statement in one line.

        >>> Statement.of(Accounts(delta=1e-5, local=False), []).headline()
        'no privacy is claimed (server, public: none)'
        """
        claims = [r for r in self.rows if r.status == "proved"]
        if not claims:
            return f"no privacy is claimed ({', '.join(dict.fromkeys(r.observer for r in self.rows))}: none)"
        return "; ".join(f"({r.epsilon:.3g}, {r.delta:g})-DP per {r.unit} towards {r.observer}, proved" for r in claims)

    def to_json(self) -> dict[str, Any]:
        """A mapping for ``statement.json``; an infinite epsilon is null."""
        rows = [asdict(r) | {"epsilon": r.epsilon if math.isfinite(r.epsilon) else None} for r in self.rows]
        return {"rows": rows, "notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Statement:
        """The inverse of :meth:`to_json`."""
        rows = (Row(**(r | {"epsilon": math.inf if r["epsilon"] is None else r["epsilon"]})) for r in data["rows"])
        return cls(tuple(rows), tuple(data["notes"]))

    def to_markdown(self) -> str:
        """A table for ``statement.md``."""
        lines = ["# Privacy statement", "", "| " + " | ".join(HEADS) + " |", "|" + " --- |" * len(HEADS)]
        lines += ["| " + " | ".join(cells(r)) + " |" for r in self.rows]
        lines += ["", *(f"- {r.observer}, {r.unit}: {r.note}" for r in self.rows if r.note)]
        lines += [f"- {note}" for note in self.notes]
        return "\n".join(lines).rstrip() + "\n"


def cells(row: Row) -> list[str]:
    """A row as words, for tables."""
    epsilon = f"{row.epsilon:.3f}" if math.isfinite(row.epsilon) else "infinite"
    delta = "-" if row.delta is None else f"{row.delta:g}"
    return [row.observer, row.unit, epsilon, delta, row.status, row.mechanism, row.sampling, row.accountant]


def _nothing(observer: str, unit: Unit, note: str = "") -> Row:
    return Row(observer, unit, math.inf, None, "none", "none", "none", "none", note)


def _row(accounts: Accounts, lines: Sequence[Line], observer: Observer, unit: Unit, summed: bool) -> Row:
    try:
        epsilon = accounts.tight(observer, unit)
    except Refused as refusal:  # another unit or observer may have a claim all the same
        return _nothing(observer, unit, str(refusal))
    if not math.isfinite(epsilon):
        return _nothing(observer, unit, _why_not(accounts, observer, unit, summed))
    trusted = "the server, which sees sums of uploads only, is trusted" if summed else "the server is trusted"
    counted = [x for x in lines if (x.clients is not None) == accounts.local]
    mechanisms = dict.fromkeys(_mechanism(x) for x in counted)
    drawn = observer == "public" and accounts.drawn(unit)
    samplings = _samplings(counted if drawn else [_undrawn(x) for x in counted])
    spread = accounts.spread(unit)
    note = ""
    if drawn:
        note = "the draw of clients counts only while it stays secret from the public, and losses are independent of it"
    elif spread is not None:
        note = (
            f"the worst of {spread.clients} clients that released anything; by rdp they range from {spread.least:.3g} "
            f"over {spread.median:.3g} (median) to {spread.worst:.3g}"
        )
    elif any(accounts.amplifying(x, unit) != x.sampling for x in counted):
        samplings += " (not counted)"
        note = f"{trusted}; {HIDDEN}"
    elif any(x.sampling is not None for x in counted):
        note = (
            f"{trusted}, and the draw of clients counts only while it stays secret from the public: keep "
            "events.jsonl and ledger.jsonl with the server"
        )
    else:
        note = trusted
    if unit == "record" and any(x.release.unit == "client" and x.release.epsilon is None for x in counted):
        note += (
            "; a record may turn its client's whole move into another, so it is counted as replacing the client: twice "
            "the sensitivity"
        )
    pools = [x.release.pool for x in counted if x.release.pool is not None]
    if pools:
        note += "; " + _shared(pools, {x.release.mechanism for x in counted})
    return Row(
        observer,
        unit,
        epsilon,
        accounts.delta,
        "proved",
        ", ".join(mechanisms),
        samplings,
        accounts.accountant,
        note,
    )


THEOREMS = {
    "skellam": "Agarwal, Kairouz and Liu 2021, shares of which add up to one; numpy's Poisson is taken as exact",
    "discrete_gaussian": "Kairouz, Liu and Steinke 2021, theorem 1 on sums of discrete Gaussians",
}


def _mechanism(line: Line) -> str:
    together = "" if line.release.pool is None else ", shared by clients"
    return f"{line.release.mechanism} ({line.release.unit}{together})"


def _undrawn(line: Line) -> Line:
    """The line without a draw that is no secret here."""
    return line if line.release.pool is None else replace(line, sampling=None)


def _shared(pools: Sequence[Pool], mechanisms: Iterable[str]) -> str:
    """Whose noise counts, and under which trust."""
    honest, colluding = min(p.honest for p in pools), max(p.colluding for p in pools)
    by, least = "; ".join(THEOREMS[m] for m in sorted(mechanisms)), min(p.honest + p.colluding for p in pools)
    return (
        f"every sum holds at least {least} uploads, at most a = {colluding} clients "
        f"collude with the observer, and the noise of n_min = {honest} honest ones is counted ({by}); "
        + "; ".join(dict.fromkeys(p.trust for p in pools))
    )


def _with_averages(rows: list[Row], accounts: Accounts, tallies: dict[int, Tally], averaging: Averaging) -> list[Row]:
    """The public's row about records by the averaged noise where that is proved, else as a row of its own."""
    worst = max(accounts.cost(tally) for tally in tallies.values())
    place = next(i for i, row in enumerate(rows) if (row.observer, row.unit) == ("public", "record"))
    row = replace(
        rows[place], epsilon=worst, status=averaging.status, note=averaging.why, mechanism="mean of a cohort's noises"
    )
    if averaging.status == "nominal":
        return [*rows, row]
    return [*rows[:place], row, *rows[place + 1 :]] if worst < rows[place].epsilon else rows


def _source(server: Row, accounts: Accounts, tallies: dict[int, Tally]) -> Row:
    """The source's figure for noise after the last step, beside the one that holds."""
    return replace(
        server,
        epsilon=max(accounts.cost(tally) for tally in tallies.values()),
        status="nominal",
        sampling="none",
        note=SOURCE,
    )


def _why_not(accounts: Accounts, observer: str, unit: str, summed: bool) -> str:
    if not accounts.local and observer == "server":
        return f"the server sees {'the sum of the uploads' if summed else 'uploads'} before any noise"
    return "records are protected one by one; nothing bounds what all records of a client do together"


def _samplings(lines: Sequence[Line]) -> str:
    """Every way in which units came into these releases; Poisson rates that differ by client as a range."""
    sizes = sorted({x.sampling.size for x in lines if isinstance(x.sampling, WithoutReplacement)})
    if len(sizes) > 2:
        drawn = next(x.sampling for x in lines if isinstance(x.sampling, WithoutReplacement))
        return f"{sizes[0]} to {sizes[-1]} of {drawn.population} clients without replacement"
    rates = sorted({x.sampling.rate for x in lines if isinstance(x.sampling, Poisson)})
    if len(rates) < 3:
        return "; ".join(dict.fromkeys(_words(x.sampling, x.release.unit) for x in lines))
    whose = next(x.release.unit for x in lines if isinstance(x.sampling, Poisson))
    words = [f"Poisson {whose}s, rates {rates[0]:.4g} to {rates[-1]:.4g} by client"]
    others = [_words(x.sampling, x.release.unit) for x in lines if not isinstance(x.sampling, Poisson)]
    return "; ".join(dict.fromkeys(words + [f"{other} (all records in every step)" for other in others]))


def _words(sampling: Sampling, unit: Unit) -> str:
    whose = "records" if unit == "record" else "clients"
    if isinstance(sampling, Poisson):
        return f"Poisson {whose}, rate {sampling.rate:.4g}"
    if isinstance(sampling, WithoutReplacement):
        return f"{sampling.size} of {sampling.population} {whose} without replacement"
    return "none"

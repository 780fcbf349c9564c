"""The page about aggregation under encryption, written from a report: every number on it is computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedveil.bench.he import Report
from fedveil.bench.page import opening, table

BEFORE = ("read uploads", "shares, norm check")
NAMES = {"mean": "mean", "trimmed_mean": "trimmed mean", "krum": "Krum", "centered_clipping": "centered clipping"}
GOALS = {10: {"trimmed_mean": 8.0, "krum": 5.0, "centered_clipping": 8.0}, 20: {"trimmed_mean": 20.0}}
"""CPU seconds of both servers in a round of so many clients with 100,000 parameters."""

RULES = """\
- **CPU seconds** of one process in which both servers run, each in a thread of its own, so that what both compute is
  counted. A round is: uploads are read, taken to shares and checked against the norm bound; statistics; one rule;
  shares of the result for the clients. Every result is compared with the plaintext rule's in every repetition.
- **Not in a server's seconds**: the dealer's, which makes correlated randomness before the round (its own column), and
  the network; what travels between the servers is given in megabytes, both directions together.
- **Mean alone** is `transport=he`: the encrypted sum, opened by two servers, with nothing sensed or checked.
- **TenSEAL** is its own `CKKSVector` (8192, 60+40+40 bits, 2^40), where all clients share the secret key and one server
  adds: a weaker setting, since whoever has that key reads every upload. Its mean is the adding and one decryption.
- **In the clear** is FedVeil's plaintext statistics and rules in float64.
- Contenders take turns; numbers stand as median (least to most)."""


def seconds(row: Report, rule: str, sensing: str = "statistics") -> dict[str, float]:
    """CPU seconds of both servers in a round with this rule."""
    found = row["ours"]["seconds"]
    parts = [found[name] for name in (*BEFORE, *((sensing,) if sensing else ()), rule, "deliver shares")]
    return {key: sum(part[key] for part in parts) for key in ("median", "min", "max")}


def goals(report: Report) -> list[tuple[str, str, str, str]]:
    """What was asked, what was measured, and whether that is enough."""
    out = []
    for row in report["rows"]:
        n, d = row["setting"]["clients"], row["setting"]["length"]
        if d != 100_000 and not report["quick"]:
            continue
        where = f"{n} clients, {d:,} parameters: "
        for rule, limit in GOALS.get(n, {}).items():
            found = seconds(row, rule)
            words = f"{where}statistics and {NAMES[rule]}, both servers, CPU s"
            out.append((words, f"below {limit:g}", _shown(found), _verdict(found, limit)))
        for words, key, limit in (
            ("client encrypts, CPU s", "client", 0.3),
            ("upload, bytes a parameter", "bytes", 55.0),
        ):
            found = row["ours"]["seconds"][key]
            out.append((where + words, f"at most {limit:g}", _shown(found), _verdict(found, limit)))
    return out


def overhead(row: Report) -> list[tuple[str, str, str]]:
    """What sensing adds to the encrypted mean, in percent: at the servers, and with the clients' encryption."""
    mine, alone, n = row["ours"]["seconds"], row["he"]["seconds"], row["setting"]["clients"]

    def more(extra: float, base: float) -> str:
        return f"{100 * extra / base:+.1f} %"

    mean, sensed = seconds(row, "mean", "")["median"], mine["statistics"]["median"]
    clients, theirs = n * mine["client"]["median"], n * alone["client"]["median"]
    servers = alone["servers"]["median"]
    return [
        ("statistics E, M, Q, A beside the checked mean on shares", more(sensed, mean), more(sensed, mean + clients)),
        (
            "entropy H under encryption beside the checked mean on shares",
            more(mine["entropy"]["median"], mean),
            more(mine["entropy"]["median"], mean + clients),
        ),
        (
            "norm check, statistics and mean on shares beside `transport=he`",
            more(mean + sensed - servers, servers),
            more(mean + sensed + clients - servers - theirs, servers + theirs),
        ),
    ]


def page(report: Report) -> str:
    """The page as Markdown."""
    lines = opening("Robust aggregation under encryption", "he", RULES, report, goals(report))
    for row in report["rows"]:
        lines += ["", *_section(row)]
    return "\n".join(lines).rstrip() + "\n"


def _section(row: dict[str, Any]) -> Iterator[str]:
    s, mine, found = row["setting"], row["ours"], row["ours"]["seconds"]
    yield f"## {s['clients']} clients, {s['length']:,} parameters, {s['byzantine']} attackers declared"
    yield ""
    stages = (*BEFORE, "statistics", "entropy", *NAMES, "deliver shares", "deliver switched")
    cells = []
    for stage in stages:
        sent, made = mine["megabytes"].get(stage), mine["dealer"].get(stage)
        megabytes = "-" if sent is None else f"{sent['median']:.2f}"
        cells.append((NAMES.get(stage, stage), _shown(found[stage]), megabytes, _shown(made) if made else "-"))
    yield from table(("step", "both servers, CPU s", "between them, MB", "dealer, CPU s"), cells)
    yield ""
    dealt = mine["megabytes"]["from the dealer"]["median"]
    yield f"From the dealer to S2 for all of these: {dealt:.1f} MB; S1 has seeds."
    yield ""
    clear, tenseal, alone = (row[name]["seconds"] for name in ("plain", "tenseal", "he"))
    added = {k: tenseal["servers"][k] + tenseal["client decrypts"][k] for k in ("median", "min", "max")}
    rounds = []
    for rule, name in NAMES.items():
        whole = seconds(row, rule)
        base = clear["statistics"]["median"] + clear[rule]["median"]
        by = [whole["median"] / other for other in (base, alone["servers"]["median"], added["median"])]
        rounds.append((f"statistics and {name}", _shown(whole), *(f"{ratio:.3g}x" for ratio in by)))
    yield from table(
        ("a round at the servers", "CPU s", "over the same in the clear", "over the mean alone", "over TenSEAL's mean"),
        rounds,
    )
    yield ""
    yield from table(
        ("a client", "encrypts, CPU s", "bytes a parameter", "reads the result, CPU s"),
        [
            ("ours", _shown(found["client"]), _shown(found["bytes"]), _shown(found["client combines"])),
            ("ours, switched", "the same", "the same", _shown(found["client decrypts"])),
            ("mean alone", _shown(alone["client"]), _shown(alone["bytes"]), "-"),
            ("TenSEAL", _shown(tenseal["client"]), _shown(tenseal["bytes"]), _shown(tenseal["client decrypts"])),
        ],
    )
    yield ""
    yield from table(
        ("what sensing adds (the source: 30 to 50 %)", "servers", "servers and clients' encryption"), overhead(row)
    )


def _verdict(found: dict[str, float], limit: float) -> str:
    return "met" if found["median"] <= limit else "**missed**"


def _shown(found: dict[str, float]) -> str:
    if found["min"] == found["max"]:
        return f"{found['median']:.3g}"
    return f"{found['median']:.3g} ({found['min']:.3g} to {found['max']:.3g})"

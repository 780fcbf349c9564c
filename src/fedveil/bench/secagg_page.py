"""The page about secure aggregation, written from a report: every number on it is computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedveil.bench.page import opening, table
from fedveil.bench.secagg import Report

RULES = """\
- **CPU seconds** of one process: of a client (the mean of all), and of the server, in one round. Clients who drop out
  do so after sharing their secrets, which costs the server most.
- **Ours** is all of the protocol: keys, shares, encoding, masks, sealed and packed frames, checks of every message.
  The sum is compared with the sum in the clear in every repetition.
- **Flower** is its own primitives (1.41), put together as its client and its workflow do, without messages and
  records, on the same graph and threshold. Its masks come from a generator with a 32-bit seed, so that the faster side
  here is also the one that hides something.
- **Floor**: the bare AES-128-CTR stream of as many bytes as a client's masks have, one call for each mask.
- Contenders take turns; ratios are taken within a turn, and stand as median (least to most)."""


def goals(report: Report) -> list[tuple[str, str, str, str]]:
    """What was asked, what was measured, and whether that is enough."""
    first, last = report["rows"][0], report["rows"][-1]
    rows: list[tuple[str, float, bool, dict[str, float] | None, str]] = [
        ("client, ms", 15, False, _milli(first["ours"]["client"]["total"]), ""),
        ("server, ms", 100, False, _milli(first["ours"]["server"]["total"]), ""),
        ("a client's masks over the bare cipher", 2, False, first["masks"]["ratio"], "x"),
    ]
    for who in ("client", "server"):
        found = first["flower"][who]["times_ours"] if "flower" in first else None
        rows.append((f"Flower's primitives over ours, {who}", 5, True, found, "x"))
    if last is not first:
        grown = last["setting"]["length"] / first["setting"]["length"]
        for who in ("client", "server"):
            by = last["ours"][who]["total"]["median"] / first["ours"][who]["total"]["median"] / grown
            words = f"{who} per parameter, {grown:g} times as many over as few"
            rows.append((words, 1.2, False, {"median": by, "min": by, "max": by}, "x"))
    out = []
    for words, target, least, found, unit in rows:
        verdict = "not measured"
        if found is not None:
            verdict = "met" if (found["median"] >= target) == least else "**missed**"
        out.append((words, f"{'at least' if least else 'at most'} {target:g}{unit}", _shown(found, unit), verdict))
    return out


def page(report: Report) -> str:
    """The page as Markdown."""
    lines = opening("Secure aggregation", "secagg", RULES, report, goals(report))
    if "missing" in report:
        lines += ["", report["missing"]]
    for row in report["rows"]:
        lines += ["", *_section(row)]
    return "\n".join(lines).rstrip() + "\n"


def _section(row: dict[str, Any]) -> Iterator[str]:
    s = row["setting"]
    yield (
        f"## {s['clients']} clients, {s['length']:,} parameters, {s['dropout']:.0%} drop out, {s['degree']} neighbours"
    )
    yield ""
    stages = ("advertise", "share", "mask", "unmask")
    rows = []
    for name in ("ours", "flower"):
        for who in ("client", "server"):
            if name in row:
                found = row[name][who]
                times = [f"{1e3 * found['stages'][k]:.2f}" if k in found["stages"] else "-" for k in stages]
                ratio = _shown(found.get("times_ours"), "x") if name == "flower" else "1"
                rows.append((f"{name}, {who}", *times, _shown(_milli(found["total"]), ""), ratio))
    yield from table(("CPU ms", *stages, "all", "times ours"), rows)
    masks = {name: _shown(_milli(row["masks"][name]), "") for name in ("masks", "floor")}
    yield ""
    yield (
        f"A client's masks take {masks['masks']} ms, the bare cipher {masks['floor']} ms; a client sends "
        f"{row['bytes_up']:,.0f} bytes, of which {s['length'] * s['bits'] // 8:,} are its masked upload."
    )


def _milli(found: dict[str, float]) -> dict[str, float]:
    return {name: 1e3 * value for name, value in found.items()}


def _shown(found: dict[str, float] | None, unit: str) -> str:
    if found is None:
        return "-"
    if found["min"] == found["max"]:
        return f"{found['median']:.3g}{unit}"
    return f"{found['median']:.3g}{unit} ({found['min']:.3g} to {found['max']:.3g})"

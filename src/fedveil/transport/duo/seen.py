"""What each party saw in a round, read off the records of its conversations (SPEC 7.6)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from fedveil.transport.duo.link import Link

OPENED, TOLD = "opened", "told"
PROTECTED = {
    "masked": "masked: uniform to it",
    "cipher": "encrypted",
    "reveal": "share of an opened value",
    "tell": TOLD,
    "own": "its own decision",
}
"""How a message is protected, by the first word of its kind."""
NAMES = {
    "energy": "E, the sum of squared lengths",
    "common": "M, the squared length of the sum",
    "quartic": "Q, the sum of squared squared deviations",
    "along": "A, the sum along the previous update",
    "reference": "length of the previous update",
    "spread": "S, the sum of squared deviations",
    "entropy": "H, the entropy of the deviations, rounded",
    "seats": "who took part",
    "rule": "the rule",
    "combinations": "seed of random combinations",
}
"""In words, what a server opens or says by these names."""

Row = dict[str, Any]


def numbers(links: Iterable[tuple[str, Link]]) -> list[Row]:
    """Rows of one party from its conversations: every value that it opened, every kind of message that it received."""
    rows: list[Row] = []
    for other, link in links:
        rows += [opened(name, value) for name, value in link.record.values]
        for kind, size in link.traffic.received.items():
            word, _, name = kind.partition(":")
            what = f"{NAMES.get(name, name) if name else 'messages'}, from {other}"
            if size:
                rows.append({"what": what, "how": PROTECTED.get(word, word), "bytes": size})
    return rows


def opened(name: str, value: object) -> Row:
    """A value as it was opened; one that is no finite number is described by its kind alone."""
    row: Row = {"what": NAMES.get(name, name), "how": OPENED}
    if isinstance(value, bool) or not isinstance(value, int | float):
        return row if not isinstance(value, str) else row | {"said": value}
    return row | ({"value": float(value)} if math.isfinite(value) else {})


def table(parties: Mapping[str, Iterable[Row]], earlier: Iterable[Row] = ()) -> list[Row]:
    """All parties' rows of one round, alike ones added up; ``earlier`` are those of attempts that were lost."""
    found: dict[tuple[str, str, str], Row] = {}
    for party, rows in (*parties.items(), ("S1", earlier)):
        for row in rows:
            key = (row.get("party", party), row["what"], row["how"])
            if key not in found:
                found[key] = {"party": key[0], **row}
            elif "bytes" in row:
                found[key]["bytes"] = found[key].get("bytes", 0) + row["bytes"]
                found[key]["count"] = found[key].get("count", 1) + 1
            else:
                found[key]["count"] = found[key].get("count", 1) + 1
    return list(found.values())

"""Whatever JSON the files of a run hold, its report, its row and its comparison are made."""

import json
import math
import random
import re

import pytest
from tests.report.conftest import SUMMARY, build, event, people, statement

from fedveil.report import html
from fedveil.report.compare import comparison
from fedveil.report.read import read_run
from fedveil.report.rows import row

ANYTHING = [None, True, 0, -3, 10**20, 10**400, 1e308, math.nan, math.inf, -2.5, "", "x", "\ud800", "<b>", "1" * 5000]
ANYTHING += [[], [1], ["a", None], {}, {"a": 1}, {"": [{}]}, [[]], [{}], [1, 2, 3]]
CONFIG = {"method": {"build": "a:B"}, "data": {"source": "x"}, "attack": {"build": None}, "rounds": 3, "seed": 1}
CONFIG |= {"privacy": {"adjacency": "zero_out"}, "aggregate": {"build": "a:Mean"}, "overrides": ["a=b"]}
TOLD = SUMMARY | {"epsilon": {"epsilon": 1.0, "unit": "record", "observer": "public"}, "population": 3}


def harmed(chance, value):
    """The value with some others in its place, at any depth; hypothesis takes minutes for values of this size."""
    if chance.random() < 0.12:
        return chance.choice(ANYTHING)
    if isinstance(value, dict):
        return {k: harmed(chance, v) for k, v in value.items() if chance.random() > 0.03}
    return [harmed(chance, v) for v in value[:5]] if isinstance(value, list) else value


def mapping(chance, value):
    found = harmed(chance, value)
    return found if isinstance(found, dict) else {}


@pytest.mark.parametrize("seed", range(2))
def test_a_page_is_made_of_anything(tmp_path, seed):
    folder, chance = build(tmp_path / "r", rounds=1), random.Random(seed)
    for _ in range(40):
        (folder / "config.yaml").write_text(json.dumps({**mapping(chance, CONFIG), "kept": 1}))
        for name, value in (("summary", TOLD), ("statement", statement()), ("clients", people(4, 3))):
            (folder / f"{name}.json").write_text(json.dumps(mapping(chance, value)))
        events = [{**mapping(chance, event(i)), "round": i} for i in range(1, 4)]
        (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
        run = read_run(folder)
        row(run, "r")
        for page in (html.page(run, linked=True), comparison({"r": run}, linked=True)):
            for block in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page):
                json.loads(block, parse_constant=lambda word: pytest.fail(f"{word} is no JSON for a browser"))
            assert page.encode("utf-8", "replace").endswith(b"</html>\n")

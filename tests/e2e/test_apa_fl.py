"""APA-FL from the command line: servers as processes, the leakage table in the report, a model that only clients hold."""

import re

import orjson
from tests.e2e.test_command_line import good
from tests.support import require

require("tenseal")
TOY = ("data=breast_cancer", "population=6", "cohort=6", "model=logistic", "rounds=3")


def test_a_run_with_attackers_and_two_server_processes(tmp_path):
    attack = ("attack=scaling", "attack.share=0.34", "attack.onset=2", "declared_f=2", "aggregate.window=2")
    out = good(
        "run", "method=apa_fl", "sigma=0.5", "transport.processes=true", *TOY, *attack, "out=a", cwd=tmp_path
    )  # fmt: skip
    assert "each in a process of its own" in out and "round 3/3" in out and re.search(r"S1 +record", out)
    events = [orjson.loads(x) for x in (tmp_path / "a" / "events.jsonl").read_bytes().splitlines()]
    assert len(events) == 3 and all(e["detector"]["rule"] and e["duo"]["lost"] == 0 for e in events)
    assert (tmp_path / "a" / "model.safetensors").is_file()
    page = (tmp_path / "a" / "report.html").read_text("utf-8")
    table = page[page.index('id="leakage"') :]
    for party in ("S1", "S2", "clients", "key centre"):
        assert f'<th scope="row">{party}</th>' in table
    assert "E, the sum of squared lengths" in table and "masked: uniform to it" in table
    rows = orjson.loads((tmp_path / "a" / "statement.json").read_bytes())["rows"]
    assert {(r["observer"], r["status"]) for r in rows} == {(o, "proved") for o in ("S1", "S2", "public")}

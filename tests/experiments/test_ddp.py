"""The study of distributed noise: resumable, and a page that is written from what was found."""

import json

import pytest
from experiments.cache import Cache
from experiments.ddp.__main__ import main
from experiments.ddp.cell import compute
from experiments.ddp.grid import CENTRAL, ROWS, SCHEDULES, NoiseCell, cell, quick, runs, tuning
from experiments.ddp.page import Found, write_page

from fedveil.runtime.config import resolve


def test_a_quick_study_is_computed_once(tmp_path, capsys):
    command = ["--quick", "--data", "digits", "--out", str(tmp_path)]
    assert main(command) == 0
    first = capsys.readouterr().out
    page = (tmp_path / "quick" / "distributed-dp.md").read_text()
    assert first.count(" s\n") == len(list((tmp_path / "quick").glob("*.json"))) == 7
    for words in ("central Gaussian", "2^18", "85 (a = 5)", "8.000, proved", "### digits: 2 rounds", "± 0.0"):
        assert words in page
    assert main(command) == 0
    assert " s\n" not in capsys.readouterr().out
    assert (tmp_path / "quick" / "distributed-dp.md").read_text() == page


def test_every_cell_has_a_name_and_settings_of_its_own():
    s = SCHEDULES["mnist"]
    cells = [*tuning(s), *runs(s, {2.0: 0.1, 8.0: 1.0})]
    assert len({c.key for c in cells}) == len(cells) == 8 + 10 + 5 * len(ROWS)
    assert NoiseCell().key != NoiseCell(rounds=2).key
    for row in ROWS:
        settings = json.loads(cell(s, row, 8.0, 0, 1.0).settings)
        assert settings["cohort"] == settings["population"] == 100
        resolve([f"method={settings['method']['name']}"])


def made_up(central, distributed, measured):
    """A study's results in which every run of a kind has the same accuracy."""
    s = quick(SCHEDULES["digits"])
    row = {"observer": "server", "unit": "client", "epsilon": 8.0, "status": "proved"}
    base = {"source": "a", "seconds": 1.0, "bytes_up": 1000, "sigma": 1.0, "pool": None}
    base["statement"] = [row, row | {"observer": "public"}]
    looked = {c: base | {"accuracy": central} for c in tuning(s)}
    found = {c: base | {"accuracy": central if c.label == CENTRAL.label else distributed} for c in runs(s, {8.0: 1.0})}
    noise = {"central": 4.5, "charged": 4.51, "measured": measured, "standard_error": 1e-3, "steps_per_unit": 2900.0}
    noise |= {"rounding": 1e-3, "wrap_log2": -40.0, "source": "a", "seconds": 1.0}
    return Found(NoiseCell(), noise, [(s, {8.0: 1.0}, looked | found)])


@pytest.mark.parametrize(
    ("central", "distributed", "measured", "verdicts"),
    [(0.9, 0.895, 4.52, ["yes", "yes", "yes"]), (0.7, 0.68, 4.6, ["no", "no", "no"]), (0.9, 0.92, 4.5, ["yes", "yes", "no"])],
)  # fmt: skip
def test_the_verdicts_follow_from_the_numbers(tmp_path, central, distributed, measured, verdicts):
    text = write_page(made_up(central, distributed, measured), tmp_path).read_text()
    assert [word for word in text.split("**") if word in ("yes", "no")] == verdicts


def test_a_damaged_cell_is_computed_anew(tmp_path):
    cache, small = Cache(tmp_path), NoiseCell(dim=64, rounds=1, clients=10)
    cache.write(compute(small))
    assert cache.read(small)["measured"] > 0
    (tmp_path / f"{small.key}.json").write_text("{")
    assert cache.read(small) is None

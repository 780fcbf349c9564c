"""The study of audits: resumable, and a page that is written from what was found."""

import pytest
from experiments.audit.__main__ import main
from experiments.audit.cell import compute
from experiments.audit.grid import (
    CENTRAL,
    CONDITIONS,
    HALF,
    HONEST,
    MAIN,
    OFF,
    QUARTER,
    SMALL,
    cell,
    main_cells,
    other_cells,
)
from experiments.audit.page import write_page
from experiments.cache import Cache


def test_every_cell_has_settings_of_its_own():
    cells = [*main_cells(), *other_cells()]
    assert len({c.key for c in cells}) == len(cells) == 2 * len(CONDITIONS) * 20 + 9 * 2 * 5


def test_a_cell_is_an_audited_run(tmp_path):
    cache, one = Cache(tmp_path), cell("central", CENTRAL | {"rounds": 2}, OFF, 0, canaries=400)
    record = compute(one)
    assert record["right"] == record["guesses"] and record["bound"] == record["cap"]
    cache.write(record)
    assert cache.read(one) == record
    (tmp_path / f"{one.key}.json").write_text("{")
    assert cache.read(one) is None


BOUNDS = {HONEST: 1.5, OFF: 5.0, HALF: 3.0, SMALL: 0.4, QUARTER: 1.8}
BASE = {"strict": 0.0, "chance": 1.0, "cap": 5.0, "estimate": 3.0, "cosine": None, "canaries": 5000, "guesses": 500}
BASE |= {"right": 400, "verdict": "holds", "unit": "record", "observer": "server", "accuracy": 0.5, "source": "a"}


def made_up(**changed):
    bounds = BOUNDS | {next(c for c in CONDITIONS if c.label == label): b for label, b in changed.items()}
    records = {}
    for c in [*main_cells((0, 1)), *other_cells((0,))]:
        records[c] = BASE | {"claim": c.condition.epsilon, "bound": bounds[c.condition], "seconds": 1.0, "wall": 2.0}
    return records


@pytest.mark.parametrize(
    ("changed", "no"),
    [({}, 0), ({"honest": 4.5}, 4 + 9), ({"noise off": 3.0}, 2 + 9), ({"half the noise": 2.0}, 2)],
)
def test_the_verdicts_follow_from_the_numbers(tmp_path, changed, no):
    text = write_page(made_up(**changed), tmp_path).read_text()
    words = [word for word in text.split("**") if word in ("yes", "no")]
    assert words.count("no") == no and len(words) == 5 * len(MAIN) + 1 + 2 * 9


def test_a_finished_study_is_not_computed_again(tmp_path, capsys, monkeypatch):
    cache = Cache(tmp_path / "quick")
    for one, record in made_up().items():
        cache.write(record | {"key": one.key})
    assert main(["--quick", "--out", str(tmp_path)]) == 0
    assert "left)" not in capsys.readouterr().out
    assert "digits" in (tmp_path / "quick" / "audit.md").read_text()

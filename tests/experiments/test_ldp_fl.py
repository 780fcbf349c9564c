"""The study of LDP-FL: resumable, and a page that says only what is in the cache."""

from dataclasses import replace

import pytest
from experiments.cache import Cache
from experiments.ldp_fl import __main__ as study
from experiments.ldp_fl.cells import compute
from experiments.ldp_fl.grid import FASHION, MNIST, Cell, Task
from experiments.ldp_fl.page import command, write_page

from fedveil.privacy.ldp_budget import ldp_budget

TINY = replace(
    MNIST,
    name="digits",
    title="Digits",
    clients=10,
    rounds=2,
    seeds=(0,),
    sweep=(1.0,),
    settings=(("model", {"name": "logistic"}), ("local_epochs", 1)),
)


def record(cell, accuracy):
    found = {"key": cell.key, "settings": cell.settings, "accuracy": accuracy, "parameters": 1000}
    return found | {"bytes_up": 1, "status": "finished", "device": "cpu"}


def reader(task: Task, ours, clamped, seeds=None):
    """A cache with the first two rows only."""
    first, second = list(task.rows())[:2]
    kept = {}
    for seed in task.seeds if seeds is None else seeds:
        kept[Cell(task, first, seed).key] = record(Cell(task, first, seed), ours)
        kept[Cell(task, second, seed).key] = record(Cell(task, second, seed), clamped)
    return lambda cell: kept.get(cell.key)


@pytest.mark.parametrize(
    ("ours", "clamped", "words"),
    [
        (0.965, 0.97, ["96.50 %", "is reached", "0.50 points", "within"]),
        (0.95, 0.97, ["95.00 %", "is missed", "2.00 points", "beyond"]),
    ],
)
def test_the_verdict_follows_the_numbers(ours, clamped, words):
    page = write_page([MNIST], reader(MNIST, ours, clamped))
    for word in words:
        assert word in page
    assert "Not all seeds" not in page
    assert page.count("not run") == len(list(MNIST.rows())) - 2
    spent = ldp_budget(clients=100, epsilon=1.0, dim=1000, rounds=MNIST.rounds)
    assert f"| {spent[2].epsilon:,.0f} | {spent[-1].epsilon:,.0f} |" in page


def test_a_page_of_few_seeds_says_so():
    assert "Not all seeds" in write_page([FASHION], reader(FASHION, 0.87, 0.87, seeds=(0,)))


def test_cells_of_other_settings_are_other_cells():
    keys = [cell.key for task in (MNIST, FASHION) for cell in task.cells()]
    assert len(set(keys)) == len(keys)


def test_a_cell_is_computed_kept_and_found_again(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "TASKS", (TINY,))
    arguments = ["--data", "digits", "--out", str(tmp_path / "cells"), "--page", str(tmp_path / "page.md")]
    assert study.main(arguments) == 0
    page = (tmp_path / "page.md").read_text()
    assert "not run" not in page and "Digits, 10 clients" in page
    monkeypatch.setattr(study, "compute", lambda *_: pytest.fail("it was there already"))
    assert study.main(arguments) == 0
    assert (tmp_path / "page.md").read_text() == page
    cell = next(TINY.cells())
    (tmp_path / "cells" / f"{cell.key}.json").write_text("{broken")
    assert Cache(tmp_path / "cells").read(cell) is None


def test_the_command_on_the_page_runs_the_same_cell():
    import shlex

    from fedveil.runtime.config import resolve

    words = shlex.split(command(MNIST))
    assert words[:2] == ["fedveil", "run"]
    config = resolve(words[2:])
    wanted = Cell(MNIST, next(MNIST.rows()), 0).settings
    assert config["method"]["radius"] == wanted["method"]["radius"]
    assert config["privacy"]["epsilon"] == 1.0
    assert (config["rounds"], config["population"], config["cohort"]) == (MNIST.rounds, 100, 100)
    assert config["model"]["build"] == f"fedveil.local.models:{wanted['model']['name']}"
    assert (config["lr"], config["local_epochs"]) == (wanted["lr"], wanted["local_epochs"])


def test_compute_says_what_a_run_did():
    found = compute(next(TINY.cells()))
    assert found["parameters"] == 650
    assert any(row["status"] == "nominal" for row in found["statement"])

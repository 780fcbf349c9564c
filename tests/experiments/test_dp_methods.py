"""The study of private methods: resumable, tuned alike, and honest about what it has."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import torch
from experiments.dp_methods import cell as cells
from experiments.dp_methods import opacus_peer
from experiments.dp_methods.__main__ import main
from experiments.dp_methods.cell import Cache
from experiments.dp_methods.grid import (
    ENTRIES,
    FINAL,
    FORMS,
    FULL,
    MNIST,
    POOLED,
    SCHEDULES,
    STEIN_PAIRS,
    STEP,
    cell,
    quick,
)
from experiments.dp_methods.numbers import Results, Spread, compare, gather, paired
from experiments.dp_methods.page import write_page
from experiments.dp_methods.study import study
from experiments.dp_methods.tables import forms, privacy, table
from experiments.dp_methods.tuning import survey, tune
from experiments.dp_methods.workers import results

import fedveil
from fedveil.core.federation import Examples

BY_LABEL = {entry.label: entry for entry in ENTRIES}
LOCAL, STEIN = BY_LABEL["dp_fedavg_local/last_noise"], BY_LABEL["dp_fed_stein/last_noise_server_jse"]
TINY = replace(
    FULL, rounds=2, partitions=("iid",), tuning_partition="iid", epsilons=(8.0,), seeds=(0,), lrs=(4.0,), extensions=0
)


def record(of, accuracy, status="finished"):
    settings = json.loads(of.settings)
    claim = {"unit": "record", "observer": "server", "epsilon": of.epsilon, "status": "proved"}
    return {
        **dict.fromkeys(cells.FIELDS),
        "key": of.key,
        "label": of.entry.label,
        "settings": settings,
        "status": status,
        "accuracy": accuracy,
        "lr": of.lr,
        "seconds": 1.0,
        "statement": [claim] if of.entry.kind == "record" else [],
        "sigma": [1.0, 2.0],
    }


def simulate(schedule, entries, result):
    """What is found when every cell that the survey names has this result; all of them as a lookup."""
    have = {}

    def look(c):
        return have.get(c.key)

    while wanted := survey(schedule, entries, look).wanted:
        have |= {c.key: result(c) for c in wanted}
    return look


@pytest.fixture
def computed(monkeypatch):
    """The cells that are computed from now on."""
    seen = []
    real = cells.compute
    monkeypatch.setattr(cells, "compute", lambda c: seen.append(c) or real(c))
    return seen


def test_a_tiny_grid_runs_to_its_page_and_nothing_is_computed_twice(tmp_path, computed):
    entries = (LOCAL, STEIN)

    def again():
        return study(TINY, entries, entries, Cache(tmp_path / "cells"), tmp_path / "page", 1)

    assert again() == 0
    assert len(computed) == 4  # two methods, one for tuning and one for evaluation each
    page = (tmp_path / "page" / "dp-methods.md").read_text()
    assert "Opacus was not installed" in page and "client and record, server" in page and "Incomplete" not in page
    for target in re.findall(r"\]\((.*?\.svg)\)", page):
        ET.parse(tmp_path / "page" / target)
    kept = json.loads((tmp_path / "cells" / f"{computed[-1].key}.json").read_text())
    assert f"{100 * kept['accuracy']:.1f}" in page
    promise = next(r for r in kept["statement"] if (r["unit"], r["observer"]) == STEIN.promise)
    assert promise["status"] == "proved" and promise["epsilon"] == pytest.approx(8, abs=1e-3)

    assert again() == 0
    assert len(computed) == 4

    path = tmp_path / "cells" / f"{computed[-1].key}.json"
    path.write_bytes(path.read_bytes()[:100])
    assert again() == 0
    assert len(computed) == 5 and computed[-1] == computed[-2]
    assert json.loads(path.read_text())["accuracy"] == kept["accuracy"]
    assert page == (tmp_path / "page" / "dp-methods.md").read_text()


@pytest.mark.parametrize(
    "damage",
    [b"", b"[]", b"{}", pytest.param(None, id="another cell's")],
)
def test_a_damaged_cell_counts_as_missing(tmp_path, damage):
    one, other = (cell(TINY, LOCAL, "iid", 8.0, lr, 0) for lr in (1.0, 2.0))
    Cache(tmp_path).write(record(one, 0.5))
    assert Cache(tmp_path).read(one)["accuracy"] == 0.5
    text = json.dumps(record(other, 0.5)).encode() if damage is None else damage
    (tmp_path / f"{one.key}.json").write_bytes(text)
    assert Cache(tmp_path).read(one) is None


def test_whatever_shapes_a_cell_changes_its_key(monkeypatch):
    def key(schedule=TINY, entry=STEIN, partition="iid", epsilon=8.0, lr=1.0, seed=0):
        return cell(schedule, entry, partition, epsilon, lr, seed).key

    keys = {key(), key(entry=LOCAL), key(partition="dirichlet 0.1"), key(epsilon=4.0), key(lr=2.0), key(seed=1)}
    keys |= {key(replace(TINY, **{name: 5})) for name in ("rounds", "steps", "batch", "clip_norm", "population")}
    monkeypatch.setattr("experiments.dp_methods.grid.STUDY", 99)
    keys.add(key())
    assert len(keys) == 12
    assert key(replace(TINY, lrs=(7.0,), seeds=(4, 5), extensions=9)) == key()


@pytest.mark.parametrize(
    ("optimum", "tried", "lr"),
    [
        (2.0, [1, 2, 4], 2),
        (8.0, [1, 2, 4, 8, 16], 8),
        (1000.0, [1, 2, 4, 8, 16, 32], 32),
        (0.001, [0.125, 0.25, 0.5, 1, 2, 4], 0.125),
    ],
)
def test_the_grid_grows_at_most_three_times_while_the_best_lies_at_its_edge(optimum, tried, lr):
    s = replace(TINY, lrs=(1.0, 2.0, 4.0), extensions=3)
    look = simulate(s, [LOCAL], lambda c: record(c, 1 / (1 + abs(c.lr - optimum))))
    found = tune(s, LOCAL, 8.0, look)
    assert list(found.tried) == tried and found.lr == lr
    assert found.at_edge == (optimum in (1000.0, 0.001))


def test_a_run_that_diverged_never_wins_and_is_shown():
    s = replace(TINY, lrs=(1.0, 2.0))
    lost = (1.0, 0), (2.0, 100)
    look = simulate(s, [LOCAL], lambda c: record(c, None, "diverged") if (c.lr, c.seed) in lost else record(c, 0.0))
    view = survey(s, [LOCAL], look)
    assert view.total == view.done == 3
    found = gather(s, [LOCAL], look)
    assert found.tuned[LOCAL.label, 8.0].lr == 1
    assert found.diverged == {(LOCAL.label, "iid", 8.0): 1}
    assert found.spread(LOCAL.label, "iid", 8.0) is None


def test_paired_differences_are_taken_seed_by_seed():
    pair = STEIN_PAIRS[0]
    schedule = replace(TINY, seeds=(0, 1, 2), epsilons=(1.0, 8.0))
    table = {
        (pair[0], "iid", 1.0): {0: 80.0, 1: 70.0, 2: 60.0},
        (pair[1], "iid", 1.0): {0: 78.0, 1: 67.0, 2: 56.0},
        (pair[0], "iid", 8.0): {0: 90.0, 1: 90.0},
        (pair[1], "iid", 8.0): {0: 91.0, 1: 93.0, 2: 90.0},
    }
    assert paired(table, pair, "iid", 1.0) == Spread(3.0, 1.0, 3)
    assert paired(table, pair, "iid", 8.0).mean == -2.0
    assert paired(table, pair, "iid", 4.0) is None
    found = compare(Results(schedule, (LOCAL, STEIN), accuracy=table), pair)
    assert list(found.differences) == [("iid", 1.0)]  # a seed is missing at 8
    assert found.sentence() == (
        "helps in 1 of 1 settings, at most by 3.0 ± 1.0 points (iid, ε = 1); hurts nowhere; "
        "1 settings left out, where a run diverged or is missing."
    )


def test_only_rows_that_protect_records_from_the_server_can_be_best():
    entries = [LOCAL, BY_LABEL["dp_fedavg_central"], BY_LABEL["fedavg"], BY_LABEL["Opacus DP-SGD"]]
    look = simulate(TINY, entries, lambda c: record(c, 0.5 if c.entry is LOCAL else 0.9))
    found = gather(TINY, entries, look)
    assert found.best("iid", 8.0) == (LOCAL.label, Spread(50.0, 0.0, 1))
    assert found.spread("Opacus DP-SGD", POOLED, 8.0).mean == 90.0


def test_a_statement_that_costs_more_than_its_budget_is_not_a_claim():
    def dear(c):
        made = record(c, 0.5)
        made["statement"][0]["epsilon"] = 8.1
        return made

    found = gather(TINY, [LOCAL], simulate(TINY, [LOCAL], dear))
    assert found.claims(LOCAL.label) == [] and found.best("iid", 8.0) is None
    assert any("record towards the server is not proved within ε" in line for line in table(found, "iid"))


def test_failed_cells_are_reported_and_the_others_kept(tmp_path, monkeypatch, capsys):
    def compute(c):
        if c.entry is STEIN:
            raise RuntimeError("broken on purpose")
        return record(c, 0.5)

    monkeypatch.setattr(cells, "compute", compute)
    assert study(TINY, [LOCAL, STEIN], [LOCAL, STEIN], Cache(tmp_path), tmp_path / "page", 1) == 1
    out = capsys.readouterr().out
    assert "broken on purpose" in out and "1 cells failed" in out
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert "Incomplete" in (tmp_path / "page" / "dp-methods.md").read_text()


def test_an_interrupt_keeps_what_is_finished(tmp_path, monkeypatch):
    def compute(c):
        if c.seed == 0:
            raise KeyboardInterrupt
        return record(c, 0.5)

    monkeypatch.setattr(cells, "compute", compute)
    assert study(TINY, [LOCAL], [LOCAL], Cache(tmp_path), tmp_path / "page", 1) == 130
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_fresh_forgets_the_chosen_rows_only(tmp_path):
    cache = Cache(tmp_path)
    for entry in (LOCAL, STEIN):
        cache.write(record(cell(TINY, entry, "iid", 8.0, 1.0, 0), 0.5))
    cache.forget([LOCAL.label], ["digits"])
    assert [json.loads(p.read_text())["label"] for p in tmp_path.glob("*.json")] == [STEIN.label]


def test_fresh_forgets_the_chosen_data_sets_only(tmp_path):
    cache = Cache(tmp_path)
    opacus = BY_LABEL["Opacus DP-SGD"]
    for s in SCHEDULES.values():
        for entry in (LOCAL, opacus):
            cache.write(record(cell(s, entry, "dirichlet 0.5", 8.0, 1.0, 0), 0.5))
    cache.forget([LOCAL.label, opacus.label], ["mnist", "fashion_mnist"])
    left = [json.loads(p.read_text())["settings"]["data"] for p in tmp_path.glob("*.json")]
    assert len(left) == 2 and all("digits" in (data, data["name"] if isinstance(data, dict) else "") for data in left)


def test_learning_rates_are_found_before_anything_is_evaluated(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(cells, "compute", lambda c: seen.append(c) or record(c, c.lr / 100))
    entries = [LOCAL, STEIN]
    s = replace(TINY, lrs=(1.0, 2.0), extensions=2)
    assert study(s, entries, entries, Cache(tmp_path), tmp_path / "page", 1) == 0
    assert [c.seed for c in seen] == [s.tuning_seed] * 8 + [0, 0]


def test_digits_are_run_as_ever_and_images_with_their_own_model():
    digits, mnist = (
        json.loads(cell(s, BY_LABEL["dp_fedavg_local/step_noise"], "dirichlet 0.5", 8.0, 4.0, 0).settings)
        for s in (FULL, MNIST)
    )
    assert digits == {
        "method": {"name": "dp_fedavg_local", "clip_norm": 0.5, "algorithm_variant": "step_noise"},
        "model": "logistic",
        "data": {"name": "digits", "partition": "dirichlet", "alpha": 0.5},
        "population": 20,
        "cohort": 20,
        "rounds": 60,
        "steps": 3,
        "batch": 128,
        "privacy": {"epsilon": 8.0, "delta": 1e-5, "accountant": "rdp", "unit": "record"},
        "lr": 4.0,
        "seed": 0,
    }
    assert mnist["model"]["name"] == "custom" and mnist["server_lr"] == 4 and mnist["data"]["name"] == "mnist"


def test_twins_are_run_once_where_the_schedule_says_so():
    twins = [BY_LABEL[f"dp_scaffold/{variant}"] for variant in (STEP, FINAL)]
    for once, runs in ((False, 4), (True, 2)):
        s = replace(TINY, twins_once=once)
        look = simulate(s, twins, lambda c: record(c, 0.5))
        assert survey(s, twins, look).total == runs
        found = gather(s, twins, look)
        assert found.spread(twins[0].label, "iid", 8.0) == found.spread(twins[1].label, "iid", 8.0) == Spread(50, 0, 1)
        assert any(("one run stands for both" in line) == once for line in privacy(found) if "are one method" in line)


def test_the_image_model_is_trained_privately_by_the_fold_engine(tmp_path):
    settings = json.loads(cell(MNIST, BY_LABEL["dp_fedavg_local/step_noise"], "iid", 8.0, 1.0, 0).settings)
    settings |= {"data": {"name": "synthetic", "shape": "image", "size": 28, "test_samples": 20}, "engine": "fold"}
    settings |= {"population": 2, "cohort": 2, "rounds": 1, "batch": 8}
    assert fedveil.run(out=tmp_path / "run", **settings).summary["status"] == "finished"


@pytest.mark.skipif(not opacus_peer.available(), reason="needs opacus")
def test_the_peer_trains_the_image_model(monkeypatch):
    test = Examples(torch.rand(20, 1, 28, 28), torch.arange(20) % 10)
    monkeypatch.setattr(opacus_peer, "_pooled", lambda *_: (torch.rand(60, 1, 28, 28), torch.arange(60) % 10, test))
    settings = json.loads(cell(quick(MNIST), BY_LABEL["Opacus DP-SGD"], POOLED, 8.0, 1.0, 0).settings)
    found = opacus_peer.train(**settings | {"batch": 30, "steps": 2})
    assert found["status"] == "finished" and found["statement"][0]["epsilon"] <= 8


@pytest.mark.parametrize("data", ["mnist", "digits,mnist,fashion_mnist"])
def test_a_data_set_that_is_not_there_is_left_out_in_words(tmp_path, monkeypatch, capsys, data):
    monkeypatch.delenv("FEDVEIL_DATA", raising=False)
    monkeypatch.setattr(cells, "compute", lambda c: record(c, 0.5))
    where = ["--out", str(tmp_path), "--page", str(tmp_path / "page")]
    assert main(["--data", data, "--quick", "--jobs", "1", "--only", LOCAL.label, *where]) == 0
    out = capsys.readouterr().out
    assert "MNIST is left out" in out and "FEDVEIL_DATA" in out and "Traceback" not in out
    pages = [p.name for p in (tmp_path / "page").glob("*.md")]
    assert pages == (["dp-methods.md"] if "digits" in data else [])


def test_each_data_set_has_its_page_and_the_goal_is_judged(tmp_path):
    s = replace(MNIST, partitions=("dirichlet 0.5",), seeds=(0,), lrs=(1.0,), extensions=0)
    entries = [LOCAL, BY_LABEL["fedavg"], BY_LABEL["Opacus DP-SGD"]]
    for accuracy, verdict in ((0.925, "reached"), (0.9, "missed by 2.0 points")):
        look = simulate(s, entries, lambda c, a=accuracy: record(c, a if c.entry is LOCAL else 0.95))
        path = write_page(gather(s, entries, look), tmp_path)
        page = path.read_text()
        assert path.name == "dp-methods-mnist.md"
        assert f"Goal: 92 % with records protected from the server: {verdict}." in page
        assert "- small_cnn: 2x2 pixels pooled" in page and "server learning rate 4" in page
        assert "](dp-methods.md)" in page and "](dp-methods-fashion-mnist.md)" in page
        for target in re.findall(r"\]\((.*?\.svg)\)", page):
            ET.parse(tmp_path / target)


def test_two_processes_give_what_one_gives():
    work = [cell(TINY, BY_LABEL["fedavg"], "iid", None, lr, 0) for lr in (1.0, 2.0)]
    one, two = ({c: (r["accuracy"], r["loss"]) for c, r, _ in results(work, jobs)} for jobs in (1, 2))
    assert one == two


def test_an_unknown_data_set_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--data", "mnits"])
    assert "no data set is called mnits; there are digits, mnist, fashion_mnist" in capsys.readouterr().err


def test_an_unknown_row_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "no such row"])
    assert "dp_scaffold_stein/last_noise_server_jse" in capsys.readouterr().err


@pytest.mark.parametrize("states", [1, 2])
def test_cells_of_more_than_one_state_of_the_source_are_announced(tmp_path, states):
    look = simulate(TINY, [LOCAL], lambda c: record(c, 0.5) | {"source": str(c.seed if states == 2 else 0)})
    page = write_page(gather(TINY, [LOCAL], look), tmp_path).read_text()
    assert ("2 states of FedVeil's source" in page) == (states == 2)


def test_forms_of_shrinkage_have_their_own_table_and_never_win_the_main_one():
    s = replace(TINY, form_epsilons=(8.0,))
    variant = STEIN.variant
    entries = [LOCAL, STEIN, *(e for e in FORMS if e.variant == variant)]
    look = simulate(s, entries, lambda c: record(c, 0.9 if c.entry.form == ("model", "zero") else 0.5))
    found = gather(s, entries, look)
    assert found.best("iid", 8.0) == (LOCAL.label, Spread(50.0, 0.0, 1))
    lines = forms(found)
    assert any("| model | zero | 90.0 |" in line for line in lines)
    assert any("| model | previous | 50.0 |" in line for line in lines), "the default form is best of nothing here"
    assert not any("model, zero" in line for line in table(found, "iid"))
    assert json.loads(cell(s, entries[2], "iid", 8.0, 1.0, 0).settings)["method"]["shrink"] == {
        "scope": "layer",
        "target": "zero",
    }

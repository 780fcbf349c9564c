"""The matrix: cells in order and cached, the same number as a single run, a page that needs nothing else."""

import json
import sys

import pytest
from rich.console import Console
from tests.report.pages import Page

import fedveil
from fedveil.core.errors import Refused
from fedveil.report.matrix import auc, detection, page, summarise
from fedveil.report.matrix_terminal import carry_out
from fedveil.runtime.matrix import Cells, lay_out

AXES = ("attack=none,gaussian:factor=50", "aggregate=mean,median", "privacy=none,8")
SHARED = ("data=breast_cancer", "population=5", "model=logistic", "rounds=3", "attack.share=0.2", "attack.onset=2")


def test_axes_may_carry_settings_and_budgets_bring_their_method():
    matrix = lay_out([*AXES, "seed=3,4", "lr=0.3", *SHARED], under_privacy=["batch=64"])
    assert len(matrix.places) == 2 * 2 * 2 * 2 and len({p.key for p in matrix.places}) == 16
    assert [p.seed for p in matrix.places[:8]] == [3] * 8, "one seed is complete before the next begins"
    for place in matrix.places:
        config = place.config
        assert (config["attack"]["build"] is None) == (place.attack == "none")
        assert config["attack"].get("factor", 50) == 50 and config["lr"] == 0.3
        assert config["method"]["build"].endswith("dp_fedavg_local" if place.privacy == "8" else "fedavg")
        assert config["privacy"]["epsilon"] == (8 if place.privacy == "8" else None)
        assert config["batch"] == (64 if place.privacy == "8" else 32)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["privacy=much"], "privacy: 'much' is no budget"),
        (["lr=0.1,0.2"], "lr: a matrix sweeps attack, aggregate, privacy and seed"),
        (["seed=first"], "seed: 'first' is no whole number"),
        (["attack=alie:zz=1"], "attack.zz: there is no such setting"),
        (["aggregate=krumm"], "did you mean 'krum'"),
        (["attack="], "attack: no value"),
        (["out=runs/a"], "out: a matrix keeps cells"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(texts, words):
    with pytest.raises(Refused, match=words):
        lay_out(texts)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("matrix")
    return out, carry_out(Console(quiet=True), [*AXES, *SHARED], out, json=out / "copy.json")


def test_a_cell_is_what_a_run_of_its_settings_says(tmp_path, made):
    _, summary = made
    cells = {(c["attack"], c["aggregate"], c["privacy"]): c for c in summary["cells"]}
    attack = {"name": "gaussian", "factor": 50.0, "share": 0.2, "onset": 2}
    kept = {"data": "breast_cancer", "population": 5, "model": "logistic", "rounds": 3}
    plain = fedveil.run(aggregate="median", attack=attack, out=tmp_path / "a", **kept)
    accuracies = [e["accuracy"] for e in plain.history]
    assert cells["gaussian:factor=50", "median", "none"]["accuracy"] == pytest.approx(sum(accuracies) / 3)
    private = fedveil.run(method="dp_fedavg_local", privacy={"epsilon": 8}, attack=attack, out=tmp_path / "b", **kept)
    cell = cells["gaussian:factor=50", "mean", "8"]
    assert cell["epsilon"] == private.summary["epsilon"]["epsilon"] <= 8
    least, median, worst = cell["spread"]
    assert 0 < least <= median <= worst <= 8 and cell["promise"] == "record, server"
    assert cells["none", "mean", "none"]["epsilon"] is None
    for worst in summary["worst"]:
        assert worst["attack"] == "gaussian:factor=50"


def test_cells_are_kept_and_only_missing_or_damaged_ones_computed(made, monkeypatch):
    out, summary = made
    asked = []
    compute = Cells.compute
    monkeypatch.setattr(Cells, "compute", lambda self, p, parts: asked.append(p) or compute(self, p, parts))
    assert carry_out(Console(quiet=True), [*AXES, *SHARED], out) == summary and asked == []
    files = sorted((out / "cells").glob("*.json"))
    files[0].write_text('{"key": ')
    assert len(files) == 8
    again = carry_out(Console(quiet=True), [*AXES, *SHARED], out)
    assert len(asked) == 1 and again["cells"] == summary["cells"]


def test_the_page_holds_every_number_and_loads_nothing(made):
    out, summary = made
    text = (out / "matrix.html").read_text("utf-8")
    shown = Page(text)
    for cell in summary["cells"]:
        assert f"{cell['accuracy']:.3f}" in shown.text
    assert "worst attack" in shown.text and "ε" in shown.text and "honest clients" in shown.text
    assert "src=" not in text and "http" not in text.replace("http-equiv", "")
    assert json.loads((out / "copy.json").read_text()) == json.loads((out / "matrix.json").read_text())


def test_each_attack_is_measured_from_its_own_onset():
    matrix = lay_out(["attack=none,zero:onset=2,zero:onset=3", "aggregate=adaptive", *SHARED[:4]])
    scores = {"none": (0.1, 0.2, 0.3), "zero:onset=2": (0.1, 9.0, 9.0), "zero:onset=3": (0.1, 0.2, 9.0)}

    def read(place):
        facts = None if place.attack == "none" else {"onset": int(place.attack[-1])}
        kept = dict.fromkeys(("accuracy", "epsilon", "spread", "success")) | {"excluded": 0, "aborted": 0}
        return kept | {"facts": facts} | rows(*scores[place.attack])

    found = {c["attack"]: c["detection"] for c in summarise(matrix, read)["cells"]}
    for attack in ("zero:onset=2", "zero:onset=3"):
        assert (found[attack]["auc"], found[attack]["delay"], found[attack]["false_alarms"]) == (1.0, 0.0, 0.0)


def test_an_epsilon_per_weight_is_no_budget_of_a_cell(tmp_path):
    with pytest.raises(Refused, match="ldp_fl takes epsilon per weight and round, which is no budget"):
        carry_out(Console(quiet=True), ["privacy=1", *SHARED[:4]], tmp_path, private="ldp_fl")


def test_an_unfinished_matrix_says_so(tmp_path):
    matrix = lay_out([*AXES, *SHARED])
    summary = summarise(matrix, lambda place: None)
    assert "0 of 8 cells are there" in Page(page(summary)).text


def rows(*scores, start=1, above=2.0):
    return {"detector": [[start + i, s, s is not None and s > above, "mean"] for i, s in enumerate(scores)]}


def test_detection_by_hand():
    clean, lying = rows(None, 1.0, 1.2, 3.0), rows(None, 1.0, 1.5, 9.0)
    found = detection([lying], [clean], onset=3, attacked=True)
    assert found == {"auc": 0.75, "delay": 1, "missed": 0, "false_alarms": 0.0, "robust": 0.0}
    quiet = detection([clean], [clean], onset=3, attacked=False)
    assert (quiet["auc"], quiet["false_alarms"]) == (None, 0.5)
    assert detection([{"detector": None}], [clean], 3, attacked=True) is None
    assert detection([rows(1.0, 1.0, 1.0)], [], 3, attacked=True)["missed"] == 1
    assert auc([1.0], []) is None


def test_on_the_command_line(tmp_path, capsys, monkeypatch):
    from fedveil.cli import main

    monkeypatch.chdir(tmp_path)
    arguments = ["matrix", "attack=none,zero", "aggregate=median", *SHARED, "--out", "m", "--json", "m.json"]
    monkeypatch.setattr(sys, "argv", ["fedveil", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    told = capsys.readouterr().out
    assert "0 of 2 cells are there" in told and "worst" in told and "m/matrix.html" in told.replace("\n", "")
    assert len(json.loads((tmp_path / "m.json").read_text())["cells"]) == 2

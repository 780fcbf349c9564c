"""The comparison without a browser: rows, promises, the front, CSV, and the attack matrix."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.conftest import build, statement
from tests.report.pages import Page

from fedveil.core.errors import Refused
from fedveil.report.compare import _combined, as_csv, comparison, read_all, write_comparison
from fedveil.report.read import read_run
from fedveil.report.rows import Row, pareto, promised, row

PROMISE = "record towards server, δ = 1e-05, proved"


def a_row(name: str, epsilon: float | None = None, accuracy: float | None = 0.5, **other) -> Row:
    kept = dict.fromkeys(("seed", "planned", "worst10", "loss"))
    kept |= dict.fromkeys(("status", "method", "data", "model", "attack", "aggregate", "transport"), "x")
    promises = {} if epsilon is None else {PROMISE: epsilon}
    kept |= {"epsilon": epsilon, "promise": PROMISE if promises else None, "promises": promises}
    return Row(**{**kept, "run": name, "rounds": 1, "accuracy": accuracy, "bytes": 0, "seconds": 0.0, **other})


points = st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0, 8.0]), st.sampled_from([0.1, 0.5, 0.7, 0.9])), max_size=12)


@given(points)
def test_the_front_is_what_nobody_beats(values):
    rows = [a_row(str(i), e, a) for i, (e, a) in enumerate(values)] + [a_row("none"), a_row("unfinished", 1.0, None)]
    front = {(r.epsilon, r.accuracy) for r in pareto(rows, PROMISE)}
    beaten = {(e, a) for e, a in values if any((f <= e and b >= a) and (f, b) != (e, a) for f, b in values)}
    assert front == set(values) - beaten
    assert pareto(rows, "another promise") == []


def test_promises_of_different_words_are_kept_apart(run_folder):
    folder = run_folder()
    (run,) = read_all([folder])[0].values()
    assert promised(run) == {
        "record towards public, δ = 1e-05, proved": 3.87,
        "client towards public, δ = 1e-05, nominal": 42.0,
    }
    mine = row(run, "r")
    assert (mine.promise, mine.epsilon) == ("record towards public, δ = 1e-05, proved", 3.87)
    config = folder / "config.yaml"
    config.write_text(config.read_text() + "privacy: {adjacency: replace}\n")
    assert "record towards public, δ = 1e-05, proved, replace" in promised(next(iter(read_all([folder])[0].values())))
    assert (mine.attack, mine.method, mine.rounds, mine.bytes) == ("alie", "fedavg", 30, 30 * 270_000 + 465)


def test_nominal_values_are_never_a_headline_nor_a_front(run_folder):
    folder = run_folder()
    told = statement()
    del told["rows"][0]
    (folder / "statement.json").write_text(json.dumps(told))
    mine = row(next(iter(read_all([folder])[0].values())), "r")
    assert (
        mine.epsilon is None
        and mine.promise is None
        and list(mine.promises) == ["client towards public, δ = 1e-05, nominal"]
    )


def test_csv_reads_back_and_holds_no_formula():
    rows = [a_row('=cmd|"x"', 2.0, 0.25, method="a,b\nc"), a_row("-1"), a_row("fine", 1.0, 1 / 3)]
    found = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert [r["run"] for r in found] == ['\'=cmd|"x"', "'-1", "fine"]
    assert found[0]["method"] == "a,b\nc" and float(found[2]["accuracy"]) == pytest.approx(1 / 3)
    assert [r["front"] for r in found] == ["0", "", "1"] and found[1]["epsilon"] == ""


def test_folders_of_runs_are_opened_and_names_stay_short(tmp_path):
    for place in ("a/x", "a/y", "b/x", "deep/er/z"):
        build(tmp_path / place, rounds=2)
    (tmp_path / "a/y/config.yaml").write_text("a: [")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    runs, left = read_all([tmp_path, tmp_path / "b" / "x"])
    assert sorted(runs) == ["a/x", "b/x", "z"] and len(left) == 1 and "damaged" in left[0]
    with pytest.raises(Refused, match="damaged"):
        read_all([tmp_path / "a" / "y"])
    with pytest.raises(Refused, match="not a run folder"):
        read_all([tmp_path / "a", tmp_path / "nowhere"])


def test_an_attack_matrix_where_the_runs_form_one(tmp_path):
    for i, (attack, rule, accuracy) in enumerate(
        [("none", "mean", 0.9), ("none", "median", 0.8), ("ipm", "mean", 0.2)]
    ):
        folder = build(tmp_path / f"r{i}", rounds=2)
        named = {"name": attack} if attack != "none" else None
        made = json.loads((folder / "summary.json").read_text()) | {"attack": named, "accuracy": accuracy}
        (folder / "summary.json").write_text(json.dumps(made))
        (folder / "config.yaml").write_text(f"method: fedavg\ndata: digits\nmodel: mlp\naggregate: {rule}\n")
    runs = read_all([tmp_path])[0]
    assert 'id="attacks"' not in comparison(runs), "median never met the attack: no matrix"
    last = build(tmp_path / "r3", rounds=2)
    (last / "summary.json").write_text((tmp_path / "r2" / "summary.json").read_text().replace("0.2", "0.75"))
    (last / "config.yaml").write_text((tmp_path / "r1" / "config.yaml").read_text())
    text = Page(comparison(read_all([tmp_path])[0])).text
    assert "worst attack0.200ipm0.750ipm" in text.replace("\n", "")


def test_a_matrix_does_not_mix_promises(tmp_path):
    def made(epsilons):
        group = [a_row(str(i), e, 0.5, attack="ipm", aggregate="mean", promise=p) for i, (e, p) in enumerate(epsilons)]
        run = read_run(build(tmp_path / "r", rounds=1))
        return _combined("ipm", "mean", group, {r.run: run for r in group})["epsilon"]

    assert made([(1.0, "a"), (2.0, "a")]) == 2.0
    assert made([(1.0, "a"), (2.0, "b")]) is None, "values of different promises do not compare"
    assert made([(1.0, "a"), (None, None)]) is None, "one of the runs promises nothing"


def test_hostile_names_are_text_and_the_page_stays_small(tmp_path):
    for i in range(60):
        build(tmp_path / (f"<img src=x onerror=alert({i})>" if i == 0 else f"r{i}"), rounds=3 if i else 1000, clients=3)
    text = comparison(read_all([tmp_path])[0])
    assert len(text.encode()) < 6_000_000
    page = Page(text)
    assert "<img src=x" in page.text and not any(tag == "img" for tag, _ in page.tags)
    assert "src=" not in text.split("</style>")[1].split("<script")[0].replace("&lt;img src=x", "")


def test_nothing_to_compare_is_a_page_too():
    assert "No run to compare" in Page(comparison({})).text


def test_on_the_command_line(tmp_path: Path):
    build(tmp_path / "runs" / "a", rounds=2)
    (build(tmp_path / "runs" / "b", rounds=2) / "config.yaml").unlink()
    command = [sys.executable, "-m", "fedveil", "compare", "runs", "--out", "c.html", "--csv", "c.csv"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "comparison of 1 runs: c.html\n")
    assert done.stderr.startswith("left out: runs/b: ") and len((tmp_path / "c.csv").read_text().splitlines()) == 2
    with pytest.raises(Refused, match="cannot write"):
        write_comparison([tmp_path / "runs" / "a"], tmp_path / "runs")

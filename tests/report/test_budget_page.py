import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.report.pages import Page

from fedveil.core.errors import Refused
from fedveil.privacy.budget import BudgetRow, BudgetTable, budget, curve
from fedveil.privacy.events import Poisson, Sampling, WithoutReplacement
from fedveil.report.budget import write_budget_page

EVIL = "<script>alert(1)</script>"
LINES = {"rdp": [(1, 0.5), (10, 1.5)], "pld": [(1, 0.4), (10, 1.2)]}


def made(*rows: BudgetRow, sampling: Sampling = Poisson(0.01), **changes: Any) -> BudgetTable:  # noqa: B008
    rows = rows or (BudgetRow("rdp", 1.5, 1.1, 10_000), BudgetRow("gdp", None, 1.1, 10_000, "gdp: no such sampling"))
    about: dict[str, Any] = {"solved": "epsilon", "delta": 1e-5, "mechanism": "gaussian", "adjacency": "zero_out"}
    return BudgetTable(sampling=sampling, rows=rows, **about | changes)


def written(path: Path, table: BudgetTable, lines: Any) -> Page:
    assert write_budget_page(path, table, lines) == path
    return Page(path.read_text("utf-8"))


def test_page_shows_answers_premises_and_lines(tmp_path: Path) -> None:
    page = written(tmp_path / "out.html", made(), LINES)
    assert [attrs["id"] for tag, attrs in page.tags if tag == "section"] == ["answers", "premises", "plot"]
    for words in ("gdp: no such sampling", "10,000", "1.1", "zero_out: what one unit", "probability 0.01", "1e-05"):
        assert words in page.text
    (figure,) = page.figures()
    assert figure["layout"]["xaxis"]["type"] == "log"
    assert [(t["name"], t["x"], t["y"]) for t in figure["data"]] == [
        ("rdp", [1, 10], [0.5, 1.5]),
        ("pld", [1, 10], [0.4, 1.2]),
    ]
    assert "plot-1" in page.ids()
    assert [p.name for p in tmp_path.iterdir()] == ["out.html"]


def test_page_of_a_real_budget(tmp_path: Path) -> None:
    table = budget(multiplier=1.1, steps=100, sampling=0.01, accountants=("rdp", "moments"))
    lines = curve(multiplier=1.1, steps=100, sampling=0.01, accountants=("rdp", "moments"), points=4)
    page = written(tmp_path / "out.html", table, lines)
    (figure,) = page.figures()
    ends = [trace["y"][-1] for trace in figure["data"]]
    assert ends == pytest.approx([row.epsilon for row in table.rows], rel=1e-3)
    assert "the same noise multiplier 1.1, at" in page.text


def test_page_loads_nothing(tmp_path: Path) -> None:
    page = written(tmp_path / "out.html", made(), LINES)
    for tag, attrs in page.tags:
        for key in ("src", "href"):
            assert re.match(r"#|data:|$", attrs.get(key) or ""), (tag, attrs)
    assert {str(a["href"])[1:] for tag, a in page.tags if tag == "a"} <= set(page.ids())


@pytest.mark.parametrize("lines", [{}, {"rdp": []}, {"rdp": [(1, float("inf"))]}])
def test_without_a_line_there_is_no_plot(tmp_path: Path, lines: Any) -> None:
    page = written(tmp_path / "out.html", made(), lines)
    assert page.figures() == []
    assert "No accountant has a line to draw" in page.text


def test_infinite_epsilon_is_said_and_not_drawn(tmp_path: Path) -> None:
    lines = {"rdp": [(1, 0.5), (10, float("inf"))]}
    page = written(tmp_path / "out.html", made(BudgetRow("rdp", float("inf"), 1.1, 10)), lines)
    assert "Infinity" not in page.scripts[0]
    assert page.figures()[0]["data"][0]["x"] == [1]
    assert "infinite" in page.text


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        (None, "every unit takes part"),
        (Poisson(1.0), "every unit takes part"),
        (WithoutReplacement(10, 2000), "exactly 10 of 2,000 units"),
    ],
)
def test_sampling_is_put_in_words(tmp_path: Path, sampling: Sampling, words: str) -> None:
    assert words in written(tmp_path / "out.html", made(sampling=sampling), LINES).text


def test_one_multiplier_is_claimed_only_where_there_is_one(tmp_path: Path) -> None:
    table = made(BudgetRow("rdp", 2.0, 1.25, 10), BudgetRow("pld", 2.0, 1.125, 10), solved="multiplier")
    page = written(tmp_path / "out.html", table, LINES)
    assert "the same noise multiplier, at" in page.text
    assert "computed: noise multiplier" in page.text
    assert "Refused because" not in page.text


def test_texts_are_escaped(tmp_path: Path) -> None:
    table = made(BudgetRow(EVIL, None, None, None, EVIL), mechanism=EVIL, adjacency=EVIL)
    page = written(tmp_path / "out.html", table, {EVIL: [(1, 1.0)]})
    assert page.text.count(EVIL) >= 5
    assert len(page.scripts) == 3
    assert "<" not in page.scripts[0]
    assert "&lt;script" in page.figures()[0]["data"][0]["name"]


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    reasons = {
        "none/out.html": "No such file or directory",
        "file/out.html": "Not a directory",
        ".": "Is a directory",
        "x" * 300: "File name too long",
    }
    for name, why in reasons.items():
        path = tmp_path / name
        with pytest.raises(Refused) as refusal:
            write_budget_page(path, made(), {})
        assert str(refusal.value) == f"plot: cannot write {path} ({why}); give another path"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_page_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.html"
    path.write_text("before")

    def fail(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(Refused, match="No space left on device"):
        write_budget_page(path, made(), {})
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("out.html", "before")]


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_budget_page(pipe, made(), {})
        assert os.read(reader, 15) == b"<!DOCTYPE html>"
    finally:
        os.close(reader)
    assert pipe.is_fifo()

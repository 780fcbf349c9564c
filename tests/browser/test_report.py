"""The report and the comparison as a browser shows them."""

import json

import pytest
from tests.browser.checks import clean, drawn, first_paint, readable, usable
from tests.report.conftest import build, statement

from fedveil.report.compare import read_all, write_comparison
from fedveil.report.html import write_report
from fedveil.report.plots import PLOTS
from fedveil.report.rows import pareto, row


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A report with every section."""
    folder = build(tmp_path_factory.mktemp("report") / "a-run")
    return write_report(folder)


def test_every_plot_is_drawn_and_the_statement_is_there(browser, made):
    page = browser.open(made.as_uri())
    assert drawn(page) == len(PLOTS)
    assert page.run("document.querySelectorAll('table.statement tr.claim').length") == 4
    assert page.run("document.querySelectorAll('table.statement tr.why').length") == 4
    usable(page)
    clean(page)
    assert [u for u in page.requests if not u.startswith("data:")] == [made.as_uri()], "one file, and nothing beside it"
    assert made.stat().st_size < 6_000_000
    assert first_paint(page) < 1000
    page.close()


@pytest.mark.parametrize("dark", [False, True])
def test_colours_can_be_read_and_chosen_by_keyboard(browser, made, dark):
    page = browser.open(made.as_uri(), dark=dark)
    drawn(page)
    readable(page)
    colour = "getComputedStyle(document.body).backgroundColor"
    ink = "document.querySelector('.plot .xtitle').style.fill"
    before, axis = page.run(colour), page.run(ink)
    for _ in range(4):
        page.key("Tab")
        if page.run("document.activeElement.className") == "theme":
            break
    assert page.run("document.activeElement.matches('button.theme:focus-visible')")
    page.key("Enter")
    page.until(f"{colour} !== {json.dumps(before)} && {ink} !== {json.dumps(axis)}")
    readable(page)
    page.goto(made.as_uri())
    assert page.run(colour) != before, "the choice stays"
    page.run("localStorage.clear()")
    clean(page)
    page.close()


def test_on_a_phone_and_on_paper(browser, made):
    page = browser.open(made.as_uri(), width=390, height=844)
    drawn(page)
    usable(page)
    page.send("Emulation.setEmulatedMedia", media="print")
    assert page.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert len(page.send("Page.printToPDF")["data"]) > 50_000
    clean(page)
    page.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Twelve runs: two methods under three budgets, and two attacks on two rules."""
    root = tmp_path_factory.mktemp("compare")
    for i in range(12):
        folder = build(root / f"run-{i:02d}", rounds=4 + i)
        summary = json.loads((folder / "summary.json").read_text())
        private = i < 6
        summary |= {"method": ("alpha", "beta")[i % 2], "accuracy": 0.6 + 0.02 * (i * 7 % 11), "attack": None}
        told = statement()
        told["rows"][0]["epsilon"] = (1.0, 2.0, 4.0)[i // 2 % 3]
        told["rows"] = told["rows"] if private else told["rows"][2:]
        config = "method: {name: fedavg}\ndata: {name: digits}\nmodel: mlp\nrounds: 30\nseed: 7\n"
        if not private:
            summary |= {"method": "fedavg", "attack": {"name": ("ipm", "alie")[i % 2], "clients": [1]}}
            config += f"aggregate: {{name: {('mean', 'median')[i // 2 % 2]}}}\n"
        (folder / "config.yaml").write_text(config)
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "statement.json").write_text(json.dumps(told))
    return root


def test_the_comparison_is_drawn_filtered_and_saved(browser, runs, tmp_path):
    out, table = tmp_path / "compare.html", tmp_path / "runs.csv"
    assert write_comparison([runs], out, table) == (12, [])
    page = browser.open(out.as_uri())
    assert drawn(page) == 4
    promise = page.run("document.getElementById('promise').value")
    rows = [row(run, label) for label, run in read_all([runs])[0].items()]
    front = [[r.promises[promise], r.accuracy] for r in pareto(rows, promise)]
    find = "document.getElementById('plot-epsilon').data.find(t => t.name.startsWith('Pareto'))"
    assert page.run(f"(t => t.x.map((x, i) => [x, t.y[i]]))({find})") == front and 0 < len(front) < 6
    assert page.run("document.querySelectorAll('#attacks table tbody tr').length") == 3, "two attacks and the worst"
    page.run("document.querySelector('input[value=alpha]').focus()")
    page.key(" ")
    assert page.run("document.getElementById('count').textContent") == "9 of 12 runs shown"
    assert page.run("[...document.querySelectorAll('table.compared tbody tr')].filter(r => !r.hidden).length") == 9
    assert "alpha" not in page.run("document.getElementById('plot-epsilon').data.map(t => t.name).join()")
    page.run("document.getElementById('all').click()")
    page.run("""(() => { window.saved = null; const keep = URL.createObjectURL;
      URL.createObjectURL = (blob) => { blob.text().then(t => { window.saved = t; }); return keep(blob); };
      document.getElementById('csv').click(); })()""")
    assert page.until("window.saved") == table.read_text(), "the button and --csv write the same"
    usable(page)
    readable(page)
    clean(page)
    page.close()

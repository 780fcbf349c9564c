import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.report.pages import Page

from fedveil.core.errors import Refused
from fedveil.report import html
from fedveil.report.html import write_report
from fedveil.report.plots import PLOTS, draw
from fedveil.report.read import read_run
from fedveil.report.statement import explain

Build = Callable[..., Path]
EVIL = "<script>alert(1)</script>"


def report(folder: Path) -> Page:
    return Page(write_report(folder).read_text("utf-8"))


def change(folder: Path, name: str, **values: Any) -> None:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")


def test_page_has_every_section_and_plot(run_folder: Build) -> None:
    folder = run_folder()
    page = report(folder)
    sections = [attrs.get("id") for tag, attrs in page.tags if tag == "section"]
    assert sections == ["privacy", "learning", "defence", "clients", "cost", "rounds", "data", "settings", "reproduce"]
    assert len(page.figures()) == len(PLOTS) == sum(attrs.get("class") == "plot" for _, attrs in page.tags)
    assert len(page.ids()) == len(set(page.ids()))
    assert ("html", {"lang": "en"}) in page.tags
    for words in ("93.4 %", "81.0 %", "0.217", "1 min 15 s", "Proved in part", "of 30 planned", "partition.alpha"):
        assert words in page.text
    assert "not finished" not in page.text
    assert sum(tag == "tr" for tag, _ in page.tags) > 30 + 12 + 8
    assert sorted(p.name for p in folder.iterdir() if "report" in p.name) == ["report.html"]


def test_what_the_server_did_about_attackers_is_shown(run_folder: Build) -> None:
    page = report(run_folder())
    for words in ("alie", "excluded 15 uploads", "hospital 2", "not finite", "centered_clipping", "Rule and score"):
        assert words in page.text
    assert "<b>alarm</b>" in page.text, "what a file says is text"
    folder = run_folder()
    events = [json.loads(x) for x in (folder / "events.jsonl").read_text().splitlines()]
    for e in events:
        del e["detector"], e["excluded"]
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    change(folder, "summary", attack=None)
    assert "defence" not in report(folder).ids()


def test_the_headline_says_how_good_how_private_and_under_which_attack(run_folder: Build) -> None:
    folder = run_folder()
    text = report(folder).text
    assert "Privacyε = 3.87 Proved in part" in text, "the row of the statement that the budget speaks of"
    assert "Attackalie2 clients from round 3 on; aggregated by mean, which raised the alarm in" in text
    (folder / "summary.json").unlink()
    (folder / "statement.json").unlink()
    text = report(folder).text
    assert "Privacyε = 3.944spent so far per record towards public" in text
    assert "AttackNone simulated" in text


def test_every_client_has_a_row(run_folder: Build) -> None:
    text = report(run_folder()).text
    assert re.search(r"hospital 1\d+class \d \([\d.]+ %\)[\d.]+ %29attacker", text), "examples, class, accuracy, rounds"
    assert re.search(r"hospital 2\d+class \d \([\d.]+ %\)–0honest15", text), "15 uploads excluded, never asked"


def test_links_inside_the_page_lead_somewhere(run_folder: Build) -> None:
    page = report(run_folder())
    targets = [str(attrs["href"])[1:] for tag, attrs in page.tags if tag == "a"]
    assert targets
    assert set(targets) <= set(page.ids())


def test_nothing_is_fetched(run_folder: Build) -> None:
    text = write_report(run_folder()).read_text("utf-8")
    for tag, attrs in Page(text).tags:
        for key in ("src", "href", "srcset", "action", "data"):
            assert re.match(r"#|data:|$", attrs.get(key) or ""), (tag, attrs)
    scripts = Page(text).scripts
    own = text.replace(max(scripts, key=len), "")
    assert "http://" not in own
    assert "https://" not in own
    assert "@import" not in own
    assert "url(" not in own
    assert "default-src 'none'" in own


def test_plots_offer_no_upload(run_folder: Build) -> None:
    script = report(run_folder()).scripts[-1]
    assert "showSendToCloud: false" in script
    assert 'plotlyServerURL: ""' in script


def test_everything_from_files_is_escaped(run_folder: Build) -> None:
    folder = run_folder(clients=6, classes=3)
    row = dict.fromkeys(("observer", "unit", "status", "mechanism", "sampling", "accountant", "note", "delta"), EVIL)
    change(
        folder, "statement", rows=[row | {"epsilon": None}, row | {"epsilon": 1.0, "status": "proved"}], notes=[EVIL]
    )
    change(folder, "summary", method=EVIL, data=EVIL, engine=EVIL, status=f"stopped early: {EVIL}", version=EVIL)
    change(folder, "clients", facts={EVIL: {EVIL: [EVIL]}}, names=[f"{EVIL}</script><!--"] * 6)
    evil = {"epsilon": 4.0, "observer": EVIL, "unit": EVIL, "budget": EVIL, "delta": EVIL}
    with (folder / "events.jsonl").open("a") as events:
        events.write(json.dumps({"round": 31, "clients": EVIL, "loss": EVIL, "steps": EVIL, "epsilon": evil}) + "\n")
    text = write_report(folder).read_text("utf-8")
    page = Page(text)
    assert "<script>alert" not in text.lower()
    assert len(page.scripts) == 3
    assert page.text.count(EVIL) > 20
    assert "<" not in page.scripts[0]  # the numbers of the plots
    assert "<script" not in json.dumps(page.figures())  # plotly.js reads HTML in its labels


@pytest.mark.parametrize(
    ("adjacency", "mechanism", "says"),
    [
        ("zero_out", "gaussian (record)", "whether one training example of a client had a say, or zeros in its place"),
        ("add_remove", "gaussian (record)", "whether one training example of a client took part or not"),
        ("replace", "gaussian (record)", "exchanging one training example of a client for any other"),
        ("zero_out", "two_point (client)", "exchanging one training example of a client for any other"),
        ("unheard of", "gaussian (record)", "exchanging one training example of a client for any other"),
    ],
)
def test_a_claim_speaks_of_the_neighbours_of_its_run(adjacency: str, mechanism: str, says: str) -> None:
    """That a client takes part is no secret from a server, unless neighbours differ by it."""
    row = {"observer": "server", "unit": "record", "epsilon": 1.0, "delta": 1e-5, "status": "proved"}
    told = explain(row | {"mechanism": mechanism}, adjacency)
    assert f"{says} changes the chance" in told.replace("place, changes", "place changes")
    assert ("took part" in told) == (adjacency == "add_remove")
    alone = explain(row | {"observer": "server alone", "mechanism": mechanism}, adjacency)
    assert "does not work with the shuffler" in alone


def test_statement_is_explained(run_folder: Build) -> None:
    folder = run_folder()
    text = report(folder).text
    assert text.count("No privacy protection is claimed against this observer") == 2
    assert "By a published formula that we do not stand behind" in text
    assert "= 47.9" in text
    assert "nothing claimed towards server per record, server per client" in text
    rows = [
        {"observer": o, "unit": "record", "epsilon": None, "delta": None, "status": "none"} for o in ("server", "S1")
    ]
    change(folder, "statement", rows=rows)
    assert "No protection claimed" in report(folder).text


def plots_with(folder: Path, *spent: Any) -> dict[str, Any]:
    events = [{"round": r, "epsilon": value} for r, value in enumerate(spent, start=1)]
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events), "utf-8")
    return {plot.title: plot for plot in draw(read_run(folder))}


def spent(epsilon: Any, budget: Any = None) -> dict[str, Any]:
    return {"epsilon": epsilon, "observer": "server", "unit": "client", "budget": budget, "delta": 1e-5}


def test_spent_epsilon_is_drawn_up_to_its_budget(run_folder: Build) -> None:
    plot = plots_with(run_folder(), None, spent(1.5, 4.0), spent(None, 4.0), spent(2.5, 4.0))["Privacy spent"]
    line, limit = plot.traces
    assert (line["x"], line["y"]) == ([2, 4], [1.5, 2.5])
    assert (limit["x"], limit["y"], limit["mode"]) == ([2, 4], [4, 4], "lines")
    assert limit["line"]["dash"] == "dash"
    assert "after round 4: ε = 2.5 of a budget of 4 at δ = 1e-05, per client towards server." in plot.caption


def test_spent_epsilon_without_a_budget_is_one_line(run_folder: Build) -> None:
    plot = plots_with(run_folder(), spent(1.5), spent(2.5))["Privacy spent"]
    assert [trace["name"] for trace in plot.traces] == ["spent"]
    assert "a budget of" not in plot.caption


@pytest.mark.parametrize("value", [None, EVIL, {}, spent(None, 4.0), spent(EVIL, 4.0), spent(True, 4.0)])
def test_nothing_spent_is_no_plot(run_folder: Build, value: Any) -> None:
    folder = run_folder()
    assert "Privacy spent" not in plots_with(folder, value, value)
    assert '<th scope="col">ε</th></tr></thead>' not in write_report(folder).read_text("utf-8")


def test_spent_epsilon_stands_with_the_statement(run_folder: Build) -> None:
    text = write_report(run_folder()).read_text("utf-8")
    section = text[text.index('<section id="privacy"') : text.index('<section id="learning"')]
    assert "Privacy spent" in section
    assert "<td>3.944</td></tr></tbody>" in text  # the last round, in the table of rounds


def test_a_claim_without_epsilon_is_no_claim(run_folder: Build) -> None:
    folder = run_folder()
    rows = [{"observer": "server", "unit": "record", "epsilon": None, "delta": 1e-5, "status": "proved"}]
    change(folder, "statement", rows=rows)
    assert "No protection claimed" in report(folder).text


def test_torn_last_line_is_ignored(run_folder: Build) -> None:
    folder = run_folder()
    events = folder / "events.jsonl"
    events.write_bytes(events.read_bytes() + '{"round": 31, "clients": [1], "note": "é'.encode()[:-1])
    assert len(read_run(folder).events) == 30
    assert "All 30 rounds" in report(folder).text


def test_a_round_written_twice_counts_once(run_folder: Build) -> None:
    folder = run_folder(rounds=3)
    with (folder / "events.jsonl").open("a") as events:
        events.write(json.dumps({"round": 2, "accuracy": 0.5}) + "\n")
    run = read_run(folder)
    assert [event["round"] for event in run.events] == [1, 2, 3]
    assert run.events[1]["accuracy"] == 0.5


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("config.yaml", None, "no config.yaml"),
        ("events.jsonl", None, "no events.jsonl"),
        ("config.yaml", b"method: [", "config.yaml is damaged"),
        ("config.yaml", b"\xff\xfe\x00", "config.yaml is damaged"),
        ("config.yaml", b"", "config.yaml is damaged"),
        ("config.yaml", b"- 1\n- 2\n", "config.yaml is damaged"),
        ("events.jsonl", b'{"round": 1}\n{"rou\n{"round": 3}\n', "line 2 of events.jsonl is damaged"),
        ("events.jsonl", b'[1]\n{"round": 3}\n', "line 1 of events.jsonl is damaged"),
    ],
)
def test_what_is_no_run_folder_is_refused(run_folder: Build, name: str, content: bytes | None, why: str) -> None:
    folder = run_folder()
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(Refused) as refusal:
        write_report(folder)
    expected = f"report: {folder} is not a run folder ({why}); give the folder that `fedveil run` printed"
    assert str(refusal.value) == expected
    assert not (folder / "report.html").exists()


def test_unfinished_run_says_so(run_folder: Build) -> None:
    folder = run_folder(rounds=7)
    for name in ("summary", "statement", "clients"):
        (folder / f"{name}.json").unlink()
    page = report(folder)
    assert "This run is not finished: 7 of 30 rounds are done" in page.text
    assert f"fedveil resume {folder}" in page.text
    assert "holds no privacy statement" in page.text
    assert len(page.figures()) == 7


def test_unfinished_run_is_named_by_its_configuration(run_folder: Build) -> None:
    folder = run_folder(rounds=1)
    (folder / "summary.json").unlink()
    groups = "method: {build: 'fedveil.methods.scaffold:scaffold'}\ndata: {source: csv}\n"
    (folder / "config.yaml").write_text(groups)
    assert "scaffold on csv" in report(folder).text


def test_run_without_a_round(run_folder: Build) -> None:
    folder = run_folder(rounds=0)
    for name in ("summary", "clients"):
        (folder / f"{name}.json").unlink()
    page = report(folder)
    assert "No round has been finished yet" in page.text
    assert page.figures() == []


@pytest.mark.parametrize(
    ("status", "words"),
    [("interrupted", "not finished"), ("stopped early: no better accuracy", "This run was stopped early: no better")],
)
def test_status_is_shown(run_folder: Build, status: str, words: str) -> None:
    folder = run_folder()
    change(folder, "summary", status=status)
    assert words in report(folder).text


def test_damaged_optional_files_are_named(run_folder: Build) -> None:
    folder = run_folder()
    (folder / "clients.json").write_text('{"sizes": [1,')
    (folder / "statement.json").write_text("[1]")
    assert "left out here: clients.json, statement.json" in report(folder).text


def test_large_population_stays_small(run_folder: Build) -> None:
    folder = run_folder(clients=5000, rounds=3000)
    text = write_report(folder).read_text("utf-8")
    page = Page(text)
    assert len(text.encode()) < 6_000_000
    by_title = {plot.title: plot for plot in draw(read_run(folder))}
    assert len(by_title["Accuracy per client"].traces[0]["x"]) == 20
    assert sum(by_title["Accuracy per client"].traces[0]["y"]) == 4999
    assert sum(by_title["Examples per client"].traces[0]["y"]) == 5000
    assert len(by_title["Classes per client"].traces[0]["z"]) <= 100
    assert len(by_title["Time per round"].traces[0]["x"]) <= 1001
    assert "of 3,000 rounds, evenly spread" in page.text
    assert "Every client" not in page.text
    assert sum(tag == "tr" for tag, _ in page.tags) < 600


def test_many_classes_stay_small(run_folder: Build) -> None:
    folder = run_folder(clients=150, classes=1000)
    assert write_report(folder).stat().st_size < 6_000_000
    assert "the 100 most common of 1,000 classes" in report(folder).text


def test_few_classes_are_stacked_bars(run_folder: Build) -> None:
    plots = {plot.title: plot for plot in draw(read_run(run_folder(clients=6, classes=3)))}
    assert [trace["type"] for trace in plots["Classes per client"].traces] == ["bar"] * 3


def test_numbers_that_are_not_finite_are_left_out(run_folder: Build) -> None:
    folder = run_folder(rounds=2)
    with (folder / "events.jsonl").open("a") as events:
        events.write('{"round": 3, "loss": NaN, "accuracy": Infinity, "seconds": 1, "steps": {"min": 2, "max": 2}}\n')
    figures = report(folder).scripts[0]
    assert "NaN" not in figures
    assert "Infinity" not in figures


def test_reproduce_shows_the_command(run_folder: Build) -> None:
    folder = run_folder()
    assert f"fedveil run method=fedavg data=digits 'note={EVIL}'" in report(folder).text
    (folder / "config.yaml").write_text("method: fedavg\nseed: 7\n")
    assert "Run FedVeil with the configuration above" in report(folder).text


def test_a_run_with_secret_noise_does_not_promise_the_same_model_again(run_folder: Build) -> None:
    folder = run_folder()
    change(folder, "summary", model_hash="abc", seed=7)
    assert "with seed 7 give the same model" in report(folder).text
    config = folder / "config.yaml"
    config.write_text(config.read_text() + "privacy: {rng: secure}\n")
    text = report(folder).text
    assert "no other run gives the same model" in text and "with seed 7" not in text


AUDIT = {"verdict": "holds", "claim": 4.0, "delta": 1e-5, "unit": "record", "observer": "server", "bound": 1.49}
AUDIT |= {"cap": 4.98, "in_words": f"HOLDS: {EVIL}"}


def test_an_audit_is_told_and_linked(run_folder: Build) -> None:
    folder = run_folder()
    (folder / "audit.json").write_text(json.dumps(AUDIT))
    page = report(folder)
    assert "audit" in page.ids() and ("a", {"href": "audit.html"}) in page.tags
    for words in (f"HOLDS: {EVIL}", "ε = 4 (record towards server, δ = 1e-05)", "ε ≥ 1.49", "ε = 4.98"):
        assert words in page.text
    live = Page(html.page(read_run(folder), linked=True))
    assert "ε ≥ 1.49" in live.text and "audit.html" not in str(live.tags), "the live page serves no such file"


def test_yaml_that_unfolds_without_end_is_refused(run_folder: Build) -> None:
    folder = run_folder()
    unfolds = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    (folder / "config.yaml").write_text(f"a0: &a0 [x]\n{unfolds}")
    with pytest.raises(Refused, match="damaged"):
        read_run(folder)
    (folder / "config.yaml").write_text("method: fedavg\nnote: 2 * 3\n")
    assert read_run(folder).config["note"] == "2 * 3"


def test_report_is_replaced_whole(run_folder: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder()
    (folder / "report.html").write_text("before")

    def fail(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(Refused, match="No space left on device"):
        write_report(folder)
    assert (folder / "report.html").read_text() == "before"
    assert not list(folder.glob(".report*"))

"""The live page in a browser while a run goes on beside it."""

import threading

import pytest
from tests.browser.checks import clean, drawn, first_paint, readable, usable
from tests.report.serving import serving

import fedveil


class Held:
    """Lets a run go on round by round."""

    def __init__(self) -> None:
        self.go, self.done = threading.Semaphore(0), 0

    def opened(self, training, folder, done, notes):
        assert self.go.acquire(timeout=60)

    def round(self, record):
        self.done = record["round"]
        assert self.go.acquire(timeout=60)

    def closed(self, summary): ...


@pytest.fixture
def run(tmp_path):
    """A private run of eight rounds that waits after each."""
    held = Held()
    settings = {"method": "dp_fedavg_local", "data": "breast_cancer", "model": "logistic", "population": 5, "rounds": 8}
    settings |= {"privacy": {"epsilon": 8}, "out": tmp_path / "runs" / "live", "listeners": [held]}
    thread = threading.Thread(target=lambda: fedveil.run(**settings))
    (tmp_path / "runs").mkdir()
    yield tmp_path / "runs", thread, held
    for _ in range(20):
        held.go.release()
    if thread.ident:
        thread.join(60)


def test_the_pages_follow_a_run(browser, run):
    root, thread, held = run
    with serving(root) as port:
        own = f"http://127.0.0.1:{port}"
        listed = browser.open(own)
        assert "no run here yet" in listed.run("document.body.textContent")
        thread.start()
        listed.until("document.querySelector('.badge.running')")
        for _ in range(3):
            held.go.release()
        listed.until("document.querySelector('table.runs tbody').textContent.includes('3 of 8')")
        usable(listed)
        clean(listed, own)

        page = browser.open(f"{own}/runs/live")
        page.until("document.querySelector('#notices').textContent.includes('3 of 8')")
        before = drawn(page)
        page.run("document.querySelector('#rounds details').open = true")
        page.run("document.querySelector('#rounds summary').focus()")
        page.run("window.kept = document.querySelector('.plot'); window.reloaded = false")
        points = "document.querySelector('#learning .plot').data.at(-1).x.length"
        assert page.run(points) == 3
        for done in (4, 5):
            held.go.release()
            page.until(f"{points} === {done} && document.querySelectorAll('#rounds tbody tr').length === {done}")
        assert page.run("window.reloaded") is False and page.run("document.querySelector('.plot') === window.kept")
        assert page.run("document.querySelector('#rounds details').open"), "what the reader opened stays open"
        assert page.run("document.activeElement.matches('#rounds summary')"), "and the keyboard stays where it was"
        assert page.run("document.querySelector('.follow').textContent").startswith("running, 5 rounds")
        assert not page.run("document.querySelector('table.statement')")
        for _ in range(10):
            held.go.release()
        page.until("document.querySelectorAll('table.statement tr.claim').length > 3")
        page.until("document.querySelector('.follow').textContent.startsWith('finished, 8 rounds')")
        assert drawn(page) > before
        assert page.run("window.reloaded") is False
        readable(page)
        clean(page, own)
        listed.send("Page.bringToFront")
        listed.until("document.querySelector('.badge.finished')")
        listed.run("document.querySelector('input[name=run]').click()")
        listed.run("document.querySelector('form button').click()")
        listed.until("location.pathname === '/compare' && document.querySelector('#plot-rounds .main-svg')")
        assert listed.run("document.getElementById('count').textContent") == "1 of 1 runs shown"
        drawn(listed)
        clean(listed, own)
        assert first_paint(page) < 1000
        thread.join(60)
        page.goto((root / "live" / "report.html").as_uri())
        drawn(page)
        assert "ε = 8" in page.run("document.querySelector('.hero.privacy').textContent")
        assert page.errors == []
        page.close()
        listed.close()

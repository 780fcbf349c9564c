"""The live page over HTTP: what it shows, what it refuses, and that a damaged folder stays a damaged folder."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.report.conftest import build
from tests.report.pages import Page
from tests.report.serving import ask, serving

from fedveil.core.errors import Refused
from fedveil.report.live.folders import Folders, Outside
from fedveil.report.live.guard import bind, welcome
from fedveil.report.live.server import watched

SECRET = "the-secret-outside"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A root with good and bad runs, and secrets beside it."""
    top = tmp_path_factory.mktemp("live")
    (top / "secret.txt").write_text(SECRET)
    build(top / "outside" / "run", rounds=3)
    (top / "outside" / "run" / "config.yaml").write_text(f"method: {SECRET}\nrounds: 3\n")
    root = top / "runs"
    build(root / "good", rounds=6)
    build(root / "sweep" / "000", rounds=3)
    build(root / "with space & <b>", rounds=2)
    (root / "link").symlink_to(top / "outside" / "run")
    (root / "linked-folder").symlink_to(top / "outside")
    broken = {
        "no-config": lambda f: (f / "config.yaml").unlink(),
        "bad-config": lambda f: (f / "config.yaml").write_text("a: [1"),
        "bad-events": lambda f: (f / "events.jsonl").write_text('{"round": 1}\n{torn\n{"round": 2}\n'),
        "binary": lambda f: (f / "config.yaml").write_bytes(os.urandom(500)),
        "deep": lambda f: (f / "summary.json").write_text("[" * 200_000),
        "config-link": lambda f: ((f / "config.yaml").unlink(), (f / "config.yaml").symlink_to(top / "secret.txt")),
        "summary-link": lambda f: (
            (f / "summary.json").unlink(),
            (f / "summary.json").symlink_to(top / "outside" / "run" / "config.yaml"),
        ),
        "fifo": lambda f: ((f / "events.jsonl").unlink(), os.mkfifo(f / "events.jsonl")),
        "folder": lambda f: ((f / "clients.json").unlink(), (f / "clients.json").mkdir()),
    }
    for name, harm in broken.items():
        harm(build(root / name, rounds=3))
    wrong = build(root / "wrong-types", rounds=3)
    (wrong / "summary.json").write_text(json.dumps({"method": ["x"], "status": {}, "attack": [1], "epsilon": "much"}))
    strange = build(root / "strange", rounds=3)
    told = {"method": "\ud800", "data": "<i>", "status": '"><script>alert(1)</script>', "attack": {"name": "<b>"}}
    (strange / "summary.json").write_text(json.dumps(told))
    build(root / os.fsdecode(b"\xff\xfe"), rounds=1)
    (wrong / "statement.json").write_text(json.dumps({"rows": [{"epsilon": "x", "observer": {}}], "notes": 3}))
    (root / "matrix").mkdir()
    (root / "matrix" / "matrix.json").write_text("{}")
    with serving(root) as port:
        yield port, root, set(broken) - {"deep"}


def test_the_list_shows_every_run_and_marks_the_damaged(site):
    port, _, broken = site
    status, _, text = ask(port, "/")
    page = Page(text)
    assert status == 200 and "good" in page.text and "sweep/000" in page.text and "with space & <b>" in page.text
    rows = {row.split("</a>")[0].rsplit(">", 1)[1]: row for row in text.split("<tr>")[1:] if "</a>" in row}
    assert broken <= rows.keys()
    for name, row in rows.items():
        assert ("badge damaged" in row) == (name in broken), (name, row)
    assert "<script>alert" not in text and "<b>" not in text and "<i>" not in text
    assert SECRET not in text and "outside" not in text and "link<" not in text.replace("-link<", "")


def test_the_report_of_a_run_is_made_from_its_files_and_nothing_is_written(site):
    port, root, _ = site
    before = {p: p.lstat().st_mtime_ns for p in root.rglob("*")}
    status, headers, text = ask(port, "/runs/good")
    page = Page(text)
    assert status == 200 and "93.4 %" in page.text and "statement" in [a.get("class") for _, a in page.tags]
    assert "script-src 'self';" in headers["content-security-policy"] and headers["x-frame-options"] == "DENY"
    inline = [
        s
        for s in text.split("<script")[1:]
        if not s.startswith((' src="/', ' defer src="/', ' type="application/json"'))
    ]
    assert inline == [], "the content policy would block these"
    assert "onclick" not in text
    for where in (
        "/compare",
        "/compare?run=good&run=sweep/000",
        "/runs/with%20space%20%26%20%3Cb%3E",
        "/runs/wrong-types",
        "/runs/strange",
    ):
        assert ask(port, where)[0] == 200, where
    assert "2 runs on digits" in Page(ask(port, "/compare?run=good&run=sweep%2F000&run=bad-config")[2]).text
    assert {p: p.lstat().st_mtime_ns for p in root.rglob("*")} == before


def test_a_damaged_run_says_what_is_wrong_and_the_next_request_works(site):
    port, _, broken = site
    for name in sorted(broken):
        status, _, text = ask(port, f"/runs/{name}")
        assert (status == 200 and "damaged" in text) or "no plain file" in text or "no config.yaml" in text, name
        assert SECRET not in text
        assert json.loads(ask(port, f"/state/{name}")[2])["text"] == "damaged"
    assert "left out here: summary.json" in ask(port, "/runs/deep")[2]
    assert "cannot be read" in ask(port, "/matrix/matrix")[2]
    assert ask(port, "/runs/good")[0] == 200


PATHS = (
    "../secret.txt", "../outside/run", "..%2foutside%2frun", "%2e%2e/outside/run", "%2e%2e%2foutside%2frun",
    "%252e%252e%252foutside%252frun", "good/../../outside/run", "good/%2e%2e/%2e%2e/outside/run", "..%5coutside%5crun",
    "..\\outside\\run", "%c0%ae%c0%ae/outside/run", "....//outside/run", "/etc", "//etc/passwd", "%2fetc", "good/",
    "good%00", "good/.", "./good", "link", "linked-folder/run", "link/../link", "good/checkpoint", "%2e", "", "~", "good/config.yaml",
    "linked-folder%2frun", "sweep", "\uff0e\uff0e/outside/run".encode().hex("%").replace("%", "%"),
)  # fmt: skip


@pytest.mark.parametrize("where", ["/runs/", "/state/", "/matrix/", "/assets/", "/compare?run=", "/"])
def test_nothing_outside_the_root_is_answered(site, where):
    port, root, _ = site
    outside = str(root.parent / "outside" / "run")
    for path in (*PATHS, outside, outside.replace("/", "%2f"), f"file://{outside}"):
        if where == "/" and path in ("", "/etc", "//etc/passwd"):
            continue
        status, _, text = ask(port, where + path)
        if where == "/compare?run=" and path == "":
            continue
        assert status in (404, 400), (where, path, status)
        assert SECRET not in text and "root:" not in text, (where, path)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.sampled_from(["..", ".", "", "good", "link", "linked-folder", "run", "sweep", "000", "\0", "~", "a\\b"]),
        max_size=6,
    )
)
def test_a_name_never_leaves_the_root(site, parts):
    _, root, _ = site
    folders, name = Folders(root), "/".join(parts)
    try:
        place = folders.place(name)
    except Outside:
        return
    assert place.resolve().is_relative_to(root.resolve()) and place.resolve() == place.absolute()


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.7",
        "[::2]",
        "a@127.0.0.1",
        "0.0.0.0",
    ],
)
def test_a_name_that_was_pointed_here_is_turned_away(site, host):
    status, headers, text = ask(site[0], "/", host=host)
    assert status == 421 and "digits" not in text and "content-security-policy" in headers


def test_reading_is_all_one_can_do(site):
    port, _, _ = site
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert ask(port, "/runs/good", method=method)[0] == 405
    assert ask(port, "/", method="HEAD")[0] == 200
    assert ask(port, "/", host=f"localhost:{port}")[0] == 200
    assert "access-control-allow-origin" not in {k.lower() for k in ask(port, "/")[1]}


def test_other_machines_only_with_the_flag():
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(Refused, match="--remote"):
            bind(host, 0, remote=False)
    for host in ("example.org", "", "127.1.x"):
        with pytest.raises(Refused, match="no address"):
            bind(host, 0, remote=True)
    with bind("0.0.0.0", 0, remote=True) as open_to_all, pytest.raises(Refused, match="--port"):
        bind("127.0.0.1", open_to_all.getsockname()[1], remote=False)
    assert welcome("192.0.2.1:80", remote=True) and not welcome("evil.example", remote=True)


def test_the_folder_must_hold_runs(tmp_path):
    with pytest.raises(Refused, match="no folder"):
        watched(tmp_path / "nowhere")
    with pytest.raises(Refused, match="is one run"):
        watched(build(tmp_path / "one", rounds=1))


def test_a_run_whose_lock_is_held_is_running_and_its_state_changes(tmp_path):
    if not Path("/proc/locks").exists():
        pytest.skip("locks of other processes can be seen on Linux only")
    run = build(tmp_path / "runs" / "r", rounds=4)
    summary = (run / "summary.json").read_bytes()
    (run / "summary.json").unlink()
    folders = Folders(tmp_path / "runs")
    with (run / ".lock").open("w") as lock:
        assert folders.find("r").status == "unfinished"
        fcntl.flock(lock, fcntl.LOCK_EX)
        first = folders.find("r")
        assert first.status == "running" and first.row.rounds == 4
        assert folders.find("r").version == first.version
        with (run / "events.jsonl").open("a") as events:
            events.write('{"round": 5, "accuracy": 0.5}\n')
        second = folders.find("r")
        assert second.row.rounds == 5 and second.version != first.version
    (run / "summary.json").write_bytes(summary)
    assert folders.find("r").status == "finished"
    shutil.rmtree(run)
    with pytest.raises(Outside):
        folders.find("r")


def test_on_the_command_line(tmp_path):
    build(tmp_path / "runs" / "a", rounds=2)
    command = [sys.executable, "-m", "fedveil", "ui", "runs", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        told = process.stdout.readline()
        assert told.startswith("live page: http://127.0.0.1:")
        status, _, text = ask(int(told.split(":")[3].split("/")[0]), "/")
        assert status == 200 and "1 runs in" in text
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    refused = subprocess.run([*command, "--host", "0.0.0.0"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "--remote" in refused.stderr

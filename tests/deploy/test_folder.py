"""What `fedveil deploy` writes, and what it refuses to."""

import asyncio
import ipaddress
import os
import stat
import subprocess
import sys

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.verification import PolicyBuilder, Store
from tests.support import require
from typer.testing import CliRunner

require("flwr")

from fedveil.cli import app  # noqa: E402
from fedveil.core.errors import Refused  # noqa: E402
from fedveil.deploy.folder import Plan, check_sum, write  # noqa: E402
from fedveil.deploy.keys import names_in  # noqa: E402
from fedveil.deploy.settings import read  # noqa: E402
from fedveil.deploy.superlink import Gate  # noqa: E402
from fedveil.deploy.supernode import PARTS, approved, guarded  # noqa: E402
from fedveil.runtime.build import ALLOWED, locate  # noqa: E402


def command(*words):
    return CliRunner().invoke(app, ["deploy", *map(str, words)], standalone_mode=False, catch_exceptions=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("deploy") / "hospitals"
    done = command(
        "init", out, "--host", "link.example.org", "--host", "192.0.2.7", "--site", "north", "--site", "south"
    )
    assert done.exit_code == 0, done.exception
    return out


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_their_owners_alone(folder):
    secret = {p for p in folder.rglob("*") if p.suffix == ".key"}
    assert {p.name for p in secret} == {"ca.key", "server.key", "node.key"} and len(secret) == 4
    for path in folder.rglob("*"):
        if path in secret:
            assert mode(path) == 0o600
            assert mode(path.parent) == 0o700
        elif path.is_file():
            assert b"PRIVATE KEY" not in path.read_bytes(), path
        assert "{{" not in (path.read_text() if path.is_file() else ""), path


def test_the_certificate_holds_for_the_hosts_and_loopback_and_nothing_else(folder):
    authority = x509.load_pem_x509_certificate((folder / "superlink/ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((folder / "superlink/server.crt").read_bytes())
    builder = PolicyBuilder().store(Store([authority]))
    for name in ("link.example.org", "localhost"):
        builder.build_server_verifier(x509.DNSName(name)).verify(server, [])
    for address in ("192.0.2.7", "127.0.0.1", "::1"):
        builder.build_server_verifier(x509.IPAddress(ipaddress.ip_address(address))).verify(server, [])
    with pytest.raises(x509.verification.VerificationError):
        builder.build_server_verifier(x509.DNSName("other.example.org")).verify(server, [])
    for name in ("north", "south"):
        assert (folder / "sites" / name / "ca.crt").read_bytes() == (folder / "superlink/ca.crt").read_bytes()


def test_keys_are_what_flower_reads_and_each_site_has_its_own(folder):
    publics = set()
    for name in ("north", "south"):
        place = folder / "sites" / name
        private = load_ssh_private_key((place / "node.key").read_bytes(), None)
        public = load_ssh_public_key((place / "node.pub").read_bytes())
        assert isinstance(private.curve, ec.SECP384R1) and private.public_key() == public
        assert (folder / "superlink/nodes" / f"{name}.pub").read_bytes() == (place / "node.pub").read_bytes()
        publics.add((place / "node.pub").read_bytes())
    assert len(publics) == 2


def test_every_script_is_bash_and_asks_for_tls_and_authentication(folder):
    scripts = list(folder.rglob("*.sh"))
    assert len(scripts) == 7
    for script in scripts:
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
        assert mode(script) == 0o755 and "--insecure" not in script.read_text()
    link, node = ((folder / p).read_text() for p in ("superlink/start.sh", "sites/north/start.sh"))
    assert "--enable-supernode-auth" in link and "--ssl-keyfile" in link
    assert "--auth-supernode-private-key" in node and "--root-certificates" in node


@pytest.fixture
def spaced(tmp_path):
    """A federation in a folder with a space in its name, and a `flwr` that says how it was called."""
    plan = Plan(name="federation", sites=("north",), hosts=("a.example",))
    write(plan, tmp_path / "a b" / "fed")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "flwr").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    return tmp_path / "a b" / "fed" / "superlink", programs


def called(script, *words, **given):
    return subprocess.run([script, *words], env={**os.environ, **given}, capture_output=True, text=True, check=False)


def test_paths_with_spaces_reach_flower_in_one_piece(spaced):
    link, programs = spaced
    (link / "state/runs/first").mkdir(parents=True)
    (link / "state/runs/first/config.yaml").write_text("")
    found = called(link / "run.sh", "first", PATH=f"{programs}:{os.environ['PATH']}")
    assert found.stdout.splitlines() == [
        "run", str(link / "federation"), "federation", "--stream", "--run-config",
        f"settings='{link / 'settings.txt'}' folder='{link / 'state/runs/first'}'",
    ], found.stderr  # fmt: skip


def test_scripts_say_in_words_what_they_cannot_do(spaced):
    link, programs = spaced
    path = f"{programs}:{os.environ['PATH']}"
    for name in ("it's", "../../x", "a b"):
        found = called(link / "run.sh", name, PATH=path)
        assert found.returncode == 2
        assert "cannot name a run" in found.stderr
    for script in ("start.sh", "flwr.sh"):
        found = called(link / script, PYTHON="/nowhere/python", PATH=path)
        assert found.returncode == 2
        assert "there is no such program" in found.stderr


def test_settings_are_looked_at_only_where_flower_is_there(tmp_path, monkeypatch):
    (tmp_path / "settings.txt").write_text("method=fedavg\n")
    monkeypatch.setattr("fedveil.deploy.settings.find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"fedveil\[flower\]"):
        read(tmp_path / "settings.txt")


def test_the_app_is_approved_and_a_changed_one_is_not(folder, tmp_path):
    digest = check_sum(folder / "superlink/federation")
    listed = folder / "sites/north/approved.txt"
    assert approved(listed) == {digest}
    server = folder / "superlink/federation/federation/client.py"
    before = server.read_bytes()
    server.write_bytes(before + b"import os\n")
    assert check_sum(folder / "superlink/federation") not in approved(listed)
    assert command("approve", folder).exit_code == 0
    assert approved(listed) == {check_sum(folder / "superlink/federation")} != {digest}
    server.write_bytes(before)
    assert command("approve", folder).exit_code == 0
    assert approved(listed) == {digest}
    (tmp_path / "list").write_text("rubbish\n")
    with pytest.raises(Refused, match="no SHA-256"):
        approved(tmp_path / "list")


def test_a_site_takes_no_app_that_it_has_not_approved(tmp_path):
    import hashlib
    from contextlib import contextmanager

    from flwr.supercore.fab import Fab
    from flwr.supercore.run import RunNotRunningException

    @contextmanager
    def connect():
        yield (1, None, None, None, lambda digest, run: Fab(digest, digest.encode(), {}), None, None, None)

    good = "an app"
    (tmp_path / "approved.txt").write_text(hashlib.sha256(good.encode()).hexdigest() + "  the agreed app\n")
    with guarded(connect, tmp_path / "approved.txt")() as parts:
        assert len(parts) == 8 and parts[4](good, 1).content == good.encode()
        with pytest.raises(RunNotRunningException):
            parts[4]("another app", 1)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--site", "north"), "--host"),
        (("--host", "a.org"), "--site"),
        (("--host", "https://a.org", "--site", "n"), "neither a host name"),
        (("--host", "a.org:8000", "--site", "n"), "neither a host name"),
        (("--host", "a.org", "--site", "n", "--site", "n"), "two sites"),
        (("--host", "a.org", "--site", "../n"), "cannot name"),
        (("--host", "a.org", "--sites", "0"), "--sites"),
        (("--host", "a.org", "--sites", "2", "--site", "n"), "one of --site"),
        (("--host", "a.org", "--sites", "2", "--port", "70000"), "--port"),
        (("--host", "a.org", "--sites", "2", "--days", "0"), "--days"),
    ],
)
def test_mistakes_are_refused_in_words_and_leave_nothing_behind(tmp_path, words, why):
    done = command("init", tmp_path / "x", *words)
    assert isinstance(done.exception, Refused) and why in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_never_lost(tmp_path):
    plan = Plan(name="federation", sites=("one",), hosts=("a.org",))
    out = tmp_path / "fed"
    write(plan, out)
    key = (out / "ca/ca.key").read_bytes()
    with pytest.raises(Refused, match="exists already"):
        write(plan, out)
    aside = write(plan, out, force=True)
    assert (aside / "ca/ca.key").read_bytes() == key != (out / "ca/ca.key").read_bytes()
    other = tmp_path / "home"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(Refused, match="not written by"):
        write(plan, other, force=True)
    assert (other / "thesis.tex").exists()


def test_a_certificate_is_renewed_and_a_site_makes_its_own_key(folder):
    before = (folder / "superlink/server.crt").read_bytes()
    assert command("renew", folder, "--days", "30").exit_code == 0
    after = (folder / "superlink/server.crt").read_bytes()
    authority = x509.load_pem_x509_certificate((folder / "superlink/ca.crt").read_bytes())
    verifier = PolicyBuilder().store(Store([authority])).build_server_verifier(x509.DNSName("link.example.org"))
    verifier.verify(x509.load_pem_x509_certificate(after), [])
    assert len(names_in(after)) == len(names_in(before)) == 5
    assert after != before and mode(folder / "superlink/server.key") == 0o600
    place = folder / "sites/south"
    old = (place / "node.pub").read_bytes()
    assert command("key", place).exit_code == 0
    assert (place / "node.pub").read_bytes() != old and mode(place / "node.key") == 0o600
    done = command("key", folder)
    assert isinstance(done.exception, Refused) and "site.toml" in str(done.exception)


@pytest.mark.parametrize(
    ("path", "client", "passes"),
    [
        ("/v1/fleet/pull-messages", ("192.0.2.9", 4), True),
        ("/v1/control/start-run", ("192.0.2.9", 4), False),
        ("/v1/control/register-node", ("192.0.2.9", 4), False),
        ("/v1/runtime/acquire-task", ("192.0.2.9", 4), False),
        ("/docs", ("192.0.2.9", 4), False),
        ("/v1/control/start-run", ("127.0.0.1", 4), True),
        ("/v1/control/start-run", ("::1", 4), True),
        ("/v1/runtime/push-messages", ("192.0.2.1", 4), True),  # the training process, over the machine's own address
        ("/v1/control/start-run", None, False),
        ("/v1/fleet", ("192.0.2.9", 4), False),
        ("//v1/fleet/../control/start-run", ("192.0.2.9", 4), False),
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_strangers_reach_the_fleet_and_nothing_else(path, client, passes, kind):
    reached, sent = [], []

    async def inner(scope, receive, send):
        reached.append(scope["path"])

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, "client": client, "server": ("192.0.2.1", 8000)}
    asyncio.run(Gate(inner)(scope, None, send))
    assert bool(reached) == passes
    assert passes or sent[0].get("status") == 403 or sent[0].get("code") == 1008


def test_the_gate_stands_before_everything_else_in_flowers_server(monkeypatch):
    """The hook is where the launcher thinks: Flower's own server answers a stranger as the gate does."""
    from flwr.superlink import extensions, main
    from starlette.middleware import Middleware

    monkeypatch.setattr(extensions, "get_middleware", lambda: (Middleware(Gate),))
    server, answers = main.create_app(), []

    async def send(message):
        answers.append(message)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    def ask(path, client):
        scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [], "client": (client, 4), "server": ("192.0.2.1", 8000), "scheme": "https", "http_version": "1.1",
            "root_path": "", "state": {},
        }  # fmt: skip
        answers.clear()
        asyncio.run(server(scope, receive, send))
        return answers[0]["status"]

    for path in ("/v1/control/start-run", "/v1/control/register-node", "/docs", "/openapi.json"):
        assert ask(path, "192.0.2.9") == 403
        assert ask(path, "127.0.0.1") != 403
    assert ask("/v1/fleet/pull-messages", "192.0.2.9") != 403


@pytest.mark.parametrize("module", ["superlink", "supernode"])
def test_launchers_start_nothing_without_tls_and_keys(module):
    done = subprocess.run(
        [sys.executable, "-m", f"fedveil.deploy.{module}", "--insecure"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0"},
    )
    assert done.returncode == 1 and "not optional" in done.stderr and "Traceback" not in done.stderr


def test_a_site_builds_nothing_that_it_does_not_know(monkeypatch):
    assert locate("os:system", "model") is os.system and PARTS == ALLOWED
    monkeypatch.setenv(ALLOWED, "")
    for path in ("os:system", "fedveil.core.files:write_bytes", "fedveil.deploy.folder:write", "fedveilx.methods:y"):
        with pytest.raises(Refused, match="builds nothing"):
            locate(path, "model")
    assert locate("fedveil.local.models:mlp", "model")
    with pytest.raises(Refused, match="no part of"):
        locate("fedveil.aggregate.rule:Refused", "model")  # imported there
    monkeypatch.setenv(ALLOWED, "math json")
    assert locate("math:sqrt", "model")(4) == 2
    with pytest.raises(Refused, match="PARTS"):
        locate("mathx:sqrt", "model")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("data=csv\ndata.label=y\ndata.bounds={a: [0, 1]}\ndata.gaps=[]", "data.labels"),
        ("data=csv\ndata.labels=[0,1]\ndata.gaps=[]", "data.label"),
        ("data=csv\ndata.label=y\ndata.labels=[0,1]", "data.gaps"),
        ("data=csv\ndata.label=y\ndata.labels=[0,1]\ndata.gaps=[]\ndata.categorical=[sex]", "data.categories"),
        ("data=csv\ndata.label=y\ndata.labels=[0,1]\ndata.gaps=[]\ndata.scaling=pooled", "data.scaling"),
        ("data=npz", "data.classes"),
        ("data=npz\ndata.classes=2\nroundz=3", "roundz"),
        ("data=npz\ndata.classes=2\nlr=-1", "lr"),
    ],
)
def test_settings_that_sites_could_understand_differently_are_refused(tmp_path, lines, why):
    (tmp_path / "settings.txt").write_text(f"# a comment\n\n{lines}\n")
    with pytest.raises(Refused, match=why):
        read(tmp_path / "settings.txt")


def test_the_settings_that_are_written_are_in_order(folder):
    done = command("check", folder / "superlink/settings.txt")
    assert done.exit_code == 0 and "no mistake found" in done.output


def test_a_role_is_a_party_without_data(tmp_path):
    words = ("--host", "a.org", "--site", "north", "--role", "shuffler")
    assert command("init", tmp_path / "fed", *words).exit_code == 0
    toml = (tmp_path / "fed/sites/shuffler/site.toml").read_text()
    assert 'role = "shuffler"' in toml and "data =" not in toml and "number =" not in toml
    assert (tmp_path / "fed/superlink/nodes/shuffler.pub").is_file()
    assert 'sites = "north"' in (tmp_path / "fed/superlink/federation/pyproject.toml").read_text()
    done = command("init", tmp_path / "x", *words, "--site", "shuffler")
    assert isinstance(done.exception, Refused) and "role" in str(done.exception)

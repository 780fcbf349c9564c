"""Keys in files, dealing ahead, and messages that are not what they should be."""

from __future__ import annotations

import stat
import threading
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import require
from tests.transport.duo.duet import Duet, cohort, keys
from typer.testing import CliRunner

from fedveil.cli import app
from fedveil.core.errors import Aborted, Refused
from fedveil.transport.duo.ahead import deal_ahead
from fedveil.transport.duo.client import combine, decrypt, seal, unsealed, upload_bytes
from fedveil.transport.duo.dealer import (
    Dealer,
    Keys,
    asking,
    deal,
    from_files,
    read_client,
    read_dealer,
    read_server,
    serve,
    write,
)
from fedveil.transport.duo.link import pair
from fedveil.transport.duo.material import load
from fedveil.transport.duo.parameters import Plan
from fedveil.transport.duo.round import Server
from fedveil.transport.masks.rejected import Malformed, Oversized, Rejected, Replayed

require("tenseal")


def test_every_party_has_a_folder_of_its_own(tmp_path):
    dealt = keys(3, 50)
    write(dealt, tmp_path / "keys")
    for path in (tmp_path / "keys").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert read_client(tmp_path / "keys" / "clients") == dealt.clients
    assert read_server(tmp_path / "keys" / "controller") == dealt.s1
    assert read_server(tmp_path / "keys" / "computer") == dealt.s2
    with pytest.raises(Refused, match="not overwritten"):
        write(dealt, tmp_path / "keys")
    with pytest.raises(Refused, match="cannot read"):
        read_server(tmp_path / "keys" / "clients")
    damaged = tmp_path / "keys" / "computer" / "server.key"
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(Refused, match="damaged"):
        read_server(tmp_path / "keys" / "computer")


def test_no_party_has_what_another_must_keep(tmp_path):
    write(dealt := deal(Plan(3, 50)), tmp_path / "keys")
    secrets = {"controller": dealt.s1, "computer": dealt.s2}
    for party in ("clients", "controller", "computer"):
        held = b"".join(path.read_bytes() for path in (tmp_path / "keys" / party).iterdir())
        for owner, server in secrets.items():
            assert (server.seed in held) is (owner == party)
            assert (server.vectors in held) is (owner == party)
        assert (dealt.clients.results in held) is (party == "clients")


def test_rounds_dealt_ahead_need_no_dealer(tmp_path):
    dealt = keys(5, 300, byzantine=1)
    stages = ("sums", "trimmed_mean", "centered_clipping")
    deal_ahead(dealt, tmp_path, range(2), stages, attempts=2)
    duet = Duet(dealt)
    duet.two = Server(dealt.s2, duet.ends[1], from_files(tmp_path))
    rows = cohort(np.random.default_rng(0), 5, 300)
    last = (None, None)
    for number, attempt in ((0, 0), (1, 0), (1, 1)):
        round = duet.begin(rows, number, last, attempt)
        assert duet.both(lambda r: r.sense(), round)[0].energy == pytest.approx((rows**2).sum(), rel=1e-6)
        found, last = duet.result(round, "trimmed_mean" if number else "centered_clipping")
        assert np.linalg.norm(found - rows.mean(0)) < 0.3
    with pytest.raises(Refused, match=r"no randomness is left for 2/0/begin"):
        duet.begin(rows, 2)
    assert not (tmp_path / "0-0-begin.bin").exists()  # used, and gone


def test_a_dealer_in_a_place_of_its_own_serves_rounds():
    dealt = keys(5, 300, byzantine=1)
    here, there = pair()
    dealer = threading.Thread(target=serve, args=(Dealer(dealt.s1.seed, dealt.s2.seed).mend, there))
    dealer.start()
    duet = Duet(dealt)
    duet.two = Server(dealt.s2, duet.ends[1], asking(here))
    rows = cohort(np.random.default_rng(0), 5, 300)
    found, _ = duet.result(duet.begin(rows), "mean")
    here.send("ask", b"")
    dealer.join(timeout=20)
    assert not dealer.is_alive()
    assert found == pytest.approx(rows.mean(0), abs=1e-6)


@pytest.mark.parametrize("question", [b"?", b"\x93\x01\x02\x03", b"\x93\xa1a\xa3and\x91\xff"])
def test_a_dealer_rejects_what_is_no_question(question):
    here, there = pair()
    here.send("ask", question)
    with pytest.raises(Malformed, match="question"):
        serve(Dealer(bytes(32), bytes(32)).mend, there)


def test_the_key_centre_from_the_command_line(tmp_path):
    words = "keys duo --clients 4 --length 60 --declared-f 1 --rounds 2 --ahead sums --ahead mean --attempts 1 --out"
    done = CliRunner().invoke(app, [*words.split(), str(tmp_path / "keys")])
    assert done.exit_code == 0, done.output
    one, two = read_server(tmp_path / "keys" / "controller"), read_server(tmp_path / "keys" / "computer")
    duet = Duet(Keys(read_client(tmp_path / "keys" / "clients"), one, two))
    duet.two = Server(two, duet.ends[1], from_files(tmp_path / "keys" / "computer" / "rounds"))
    rows = cohort(np.random.default_rng(0), 4, 60)
    assert duet.result(duet.begin(rows, 2), "mean")[0] == pytest.approx(rows.mean(0), abs=1e-6)
    wrong = CliRunner().invoke(app, ["keys", "duo", "--clients", "4", "--length", "9", "--ahead", "max", "--out", "x"])
    assert wrong.exit_code != 0


def test_nothing_is_dealt_or_used_twice(tmp_path):
    dealt = keys(3, 50)
    dealer = Dealer(dealt.s1.seed, dealt.s2.seed)
    dealer.mend("0/0/begin")
    with pytest.raises(Replayed, match="new attempt"):
        dealer.mend("0/0/begin")
    duet = Duet(dealt)
    rows = cohort(np.random.default_rng(0), 3, 50)
    duet.begin(rows)
    with pytest.raises(Aborted, match="new attempt"):
        duet.one.material("0/0/begin")
    duet.begin(rows, attempt=1)
    write(dealt, tmp_path / "keys")
    assert read_dealer(tmp_path / "keys" / "dealer").mend("0/0/begin")("and", (8,)) == Dealer(
        dealt.s1.seed, dealt.s2.seed
    ).mend("0/0/begin")("and", (8,))


@pytest.fixture(scope="module")
def upload():
    dealt = keys(3, 50)
    return dealt.clients.plan, seal(dealt.clients.plan, dealt.clients.public, np.zeros(50))


def test_uploads_of_another_size_are_rejected(upload):
    plan, body = upload
    assert unsealed(plan, body).shape == (1, 2, 3, 8192)
    assert len(body) == upload_bytes(plan)
    with pytest.raises(Oversized):
        unsealed(plan, body + b"x")
    for wrong in (b"", body[:-1], b"XXXX" + body[4:], bytes(len(body))):
        with pytest.raises(Malformed):
            unsealed(plan, wrong)


def test_residues_out_of_range_are_rejected(upload):
    plan, body = upload
    with pytest.raises(Malformed, match="below their prime"):
        unsealed(plan, body[:4] + b"\xff" * (len(body) - 4))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_an_upload_in_which_bytes_were_changed_is_an_upload_or_rejected(upload, data):
    plan, body = upload
    changed = bytearray(body)
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=5)):
        changed[place] ^= data.draw(st.integers(1, 255))
    with suppress(Rejected):
        assert unsealed(plan, bytes(changed)).shape == (1, 2, 3, 8192)


def test_a_client_refuses_what_it_cannot_send():
    dealt = keys(3, 50)
    for values in (np.zeros(49), np.full(50, np.nan), np.full(50, 1e9)):
        with pytest.raises(Refused, match="upload"):
            seal(dealt.clients.plan, dealt.clients.public, values)


def test_parts_of_results_that_do_not_fit_are_rejected():
    duet = Duet(keys(3, 50))
    round = duet.begin(cohort(np.random.default_rng(0), 3, 50))
    updates = duet.both(lambda r: r.aggregate("mean"), round)
    one, two = (r.deliver(u) for r, u in zip(round, updates, strict=True))
    for wrong in (b"", two[:-8], b"nope" + two[4:]):
        with pytest.raises(Malformed):
            combine(one, wrong)
    with pytest.raises(Malformed, match="clients' key"):
        decrypt(duet.keys.clients, one)
    with pytest.raises(Malformed, match="rule"):
        round[0].aggregate("median")


def test_messages_that_are_none_are_rejected():
    one, two = pair()
    two.send("masked", b"1234")
    with pytest.raises(Malformed, match="expected"):
        one.receive("cipher")
    one.put(b"short")
    with pytest.raises(Malformed, match="header"):
        two.receive("masked")
    two.close()
    with pytest.raises(Aborted, match="left"):
        one.receive("masked")
    for body in (b"", bytes(7), bytes(9)):
        with pytest.raises(Malformed, match="randomness"):
            load("and", (8,), body)


def test_too_few_uploads_or_too_many_attackers_end_a_round():
    duet = Duet(keys(7, 30, byzantine=2))
    round = duet.begin(cohort(np.random.default_rng(0), 6, 30))
    with pytest.raises(Aborted, match="declared_f"):
        duet.both(lambda r: r.aggregate("krum"), round)
    with pytest.raises(Aborted, match="uploads arrived"):
        Duet(keys(7, 30)).begin(cohort(np.random.default_rng(0), 1, 30))
    with pytest.raises(Refused, match="minority"):
        Plan(4, 10, byzantine=2)


@pytest.mark.parametrize("body", [b"\xc1", b"\x92\x01\x01", b"\x92\xa1a\x02", b"\x01"])
def test_a_list_of_clients_that_is_none_is_rejected(body):
    duet = Duet(keys(3, 50))
    duet.ends[1].send("tell:seats", body)
    with pytest.raises(Malformed, match="list of clients"):
        duet.one.round(0)


def test_keys_without_the_entropy_say_so():
    duet = Duet(keys(3, 50))
    round = duet.begin(cohort(np.random.default_rng(0), 3, 50))
    with pytest.raises(Refused, match="--entropy"):
        duet.both(lambda r: r.indicate(), round)

"""The ledger keeps what happened; claims are computed from it and from nothing else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.core.errors import Refused
from fedveil.core.stage import Release
from fedveil.privacy.accountants import epsilon
from fedveil.privacy.claims import Accounts
from fedveil.privacy.events import Event, Poisson, WithoutReplacement, joint
from fedveil.privacy.ledger import Ledger, lines_of
from fedveil.privacy.statement import Statement

DELTA = 1e-5


def release(client=0, *, unit="client", std=2.0, slot="on_delta", channel="move", count=1, mechanism="gaussian"):
    return Release(unit, 1.0, std, mechanism, slot, channel, 1, None if client is None else (client,), count)


def accounts(local=True, **kw):
    return Accounts(delta=DELTA, local=local, **kw)


def lines(releases, **samplings):
    sampling = {None: None, **{k: None for r in releases for k in r.clients or (None,)}} | {
        int(k[1:]): v for k, v in samplings.items()
    }
    return lines_of(releases, sampling, ("server", "public"))


releases = st.lists(
    st.builds(
        release,
        client=st.integers(0, 5),
        unit=st.sampled_from(["record", "client"]),
        std=st.sampled_from([0.5, 1.0, 2.0]),
        slot=st.sampled_from(["on_step", "on_delta"]),
        count=st.integers(1, 4),
    ),
    min_size=1,
    max_size=12,
)


@given(st.lists(releases, max_size=4))
def test_a_replayed_journal_gives_the_same_claims(tmp_path_factory, rounds):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger, running = Ledger(path), accounts()
    for number, made in enumerate(rounds, 1):
        made = [r.__class__(**{**vars(r), "round": number}) for r in made]
        entry = ledger.charge(number, lines(made))
        running.add(entry.lines)
    again = Ledger.replay(path)
    assert again.entries == ledger.entries
    replayed = Accounts.replay(again.entries, delta=DELTA, local=True)
    for unit in ("record", "client"):
        assert replayed.spent("server", unit) == running.spent("server", unit)


@given(releases)
def test_grouping_loses_nothing(made):
    grouped = lines(made)
    total = sum(r.count for r in made)
    assert sum(x.release.count * len(x.clients) for x in grouped) == total
    for client in {k for r in made for k in r.clients}:
        ours = [r for r in made if r.clients == (client,)]
        tally = accounts()
        tally.add(grouped)
        half = {"record": 1.0, "client": 2.0}  # a record inside a client's move may turn it round
        expected = epsilon([Event("gaussian", r.noise_std / half[r.unit], None, r.count) for r in ours], DELTA)
        assert tally._cost(tally.tally("record", client), "rdp") == pytest.approx(expected)


def test_a_record_release_promises_nothing_about_clients():
    a = accounts()
    a.add(lines([release(unit="client"), release(unit="record", slot="on_step", channel="step")]))
    assert a.spent("server", "client") == math.inf
    assert a.tight("server", "client") == math.inf
    both = [Event("gaussian", 2.0), Event("gaussian", 1.0)]
    assert a.spent("server", "record") == pytest.approx(epsilon(both, DELTA))


def test_a_client_release_bounds_its_records_at_twice_the_sensitivity():
    """Zeroing a client takes its move away; changing one record may exchange it for any other move (SPEC 3.1)."""
    a = accounts()
    a.add(lines([release(unit="client")]))
    assert (
        a.spent("public", "client")
        == a.spent("server", "client")
        == pytest.approx(epsilon(Event("gaussian", 2.0), DELTA))
    )
    assert a.spent("public", "record") == a.spent("server", "record")
    assert a.spent("server", "record") == pytest.approx(epsilon(Event("gaussian", 1.0), DELTA))
    replaced = accounts(adjacency="replace")
    replaced.add(lines([release(unit="client")]))
    assert replaced.spent("server", "record") == replaced.spent("server", "client") == a.spent("server", "record")


def test_central_noise_bounds_records_at_twice_the_sensitivity_too():
    a = accounts(local=False)
    a.add(lines_of([release(None, slot="on_mean")], {None: Poisson(0.3)}, ("public",)))
    assert a.spent("public", "client") == pytest.approx(epsilon(Event("gaussian", 2.0, Poisson(0.3)), DELTA))
    expected = epsilon(Event("gaussian", 2.0, Poisson(0.3), adjacency="replace"), DELTA)
    assert a.spent("public", "record") == pytest.approx(expected)


def test_batches_amplify_for_records_and_never_for_clients():
    a = accounts()
    a.add(lines([release(unit="record", slot="on_step", count=10)], k0=Poisson(0.1)))
    assert a.spent("server", "record") == pytest.approx(epsilon(Event("gaussian", 2.0, Poisson(0.1), 10), DELTA))
    b = accounts()
    b.add(lines([release(unit="client", slot="on_delta", count=10)], k0=Poisson(0.1)))
    assert b.spent("server", "client") == pytest.approx(epsilon(Event("gaussian", 2.0, None, 10), DELTA))


def test_the_claim_is_the_worst_clients():
    a = accounts()
    a.add(lines([release(0), release(1), release(1, std=0.5)]))
    worst = epsilon([Event("gaussian", 2.0), Event("gaussian", 0.5)], DELTA)
    assert a.spent("server", "client") == pytest.approx(worst)
    assert a.worst_client("client") == 1
    spread = a.spread("client")
    assert (spread.worst, spread.clients) == (pytest.approx(worst), 2)
    assert spread.least == pytest.approx(epsilon(Event("gaussian", 2.0), DELTA))


def test_the_tight_accountant_is_asked_for_everybody_that_could_be_worst():
    a = accounts(accountant="pld")
    a.add(lines([release(k, std=1.0 + k) for k in range(4)]))
    assert a.tight("server", "client") == pytest.approx(epsilon(Event("gaussian", 1.0), DELTA, "pld"), rel=1e-6)


def test_central_releases_are_amplified_by_the_draw_of_clients_towards_the_public_alone():
    sampling = WithoutReplacement(2, 10)
    a = accounts(local=False)
    made = lines_of([release(None, slot="on_mean")], {None: sampling}, ("server", "public"))
    assert made[0].observers == ("public",)
    a.add(made)
    assert a.spent("server", "client") == math.inf
    assert a.spent("public", "client") == pytest.approx(epsilon(Event("gaussian", 2.0, sampling), DELTA))


def test_two_central_channels_of_a_round_share_its_cohort():
    """Charged one by one, each with its own amplification, they would cost too little."""
    sampling = Poisson(0.1)
    made = lines_of(
        [release(None, slot="on_mean"), release(None, slot="on_delta", channel="unclipped")],
        {None: sampling},
        ("public",),
    )
    a = accounts(local=False)
    a.add(made)
    one = Event("gaussian", 2.0, sampling)
    assert a.spent("public", "client") == pytest.approx(epsilon(joint([one, one]), DELTA))


def test_a_coming_round_is_counted_for_its_own_clients_only():
    a = accounts()
    a.add(lines([release(0, std=0.5)]))
    assert a.spent("server", "client", lines([release(1)])) == pytest.approx(epsilon(Event("gaussian", 2.0), DELTA))


def test_a_torn_last_line_was_never_a_charge(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.charge(1, lines([release()]))
    with path.open("ab") as file:
        file.write(b'{"round": 2, "status": "cha')
    assert [e.round for e in Ledger.replay(path).entries] == [1]
    Ledger.replay(path).charge(2, lines([release()]))
    assert [e.round for e in Ledger.replay(path).entries] == [1, 2]


def test_a_damaged_ledger_makes_no_claim(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for number in (1, 2):
        ledger.charge(number, lines([release()]))
    text = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"{}\n" + text[1])
    with pytest.raises(Refused, match="line 1 is not what was written; the ledger is damaged"):
        Ledger.replay(path)


def test_interrupted_rounds_stay_charged(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.charge(1, lines([release()]))
    ledger.interrupted(1)
    ledger.charge(1, lines([release()]))
    entries = Ledger.replay(ledger.path).entries
    assert [(e.round, e.status) for e in entries] == [(1, "interrupted"), (1, "charged")]
    replayed = Accounts.replay(entries, delta=DELTA, local=True)
    assert replayed.spent("server", "client") == pytest.approx(epsilon(Event("gaussian", 2.0, None, 2), DELTA))
    assert any("Interrupted rounds" in n for n in Statement.of(replayed, entries).notes)


def test_an_empty_ledger_claims_nothing():
    statement = Statement.of(accounts(local=False), [])
    assert {r.status for r in statement.rows} == {"none"}
    assert all(math.isinf(r.epsilon) for r in statement.rows)


def test_the_accountants_have_the_names_that_settings_know():
    from fedveil.privacy.accountants import ACCOUNTANTS
    from fedveil.privacy.events import ACCOUNTANT_NAMES

    assert tuple(ACCOUNTANTS) == ACCOUNTANT_NAMES


def test_two_releases_of_one_line_share_their_cohort_too():
    sampling = Poisson(0.1)
    a, b = accounts(local=False), accounts(local=False)
    a.add(lines_of([release(None, slot="on_mean", count=2)], {None: sampling}, ("public",)))
    one = Event("gaussian", 2.0, sampling)
    assert a.spent("public", "client") == pytest.approx(epsilon(joint([one, one]), DELTA))
    pair = [
        release(None, slot="on_mean", mechanism="laplace", std=2.0),
        release(None, slot="on_delta", mechanism="laplace"),
    ]
    b.add(lines_of(pair, {None: sampling}, ("public",)))
    assert all(event.sampling is None for event in b.of_all["client"]), "no joint theorem: nothing is amplified"


def test_a_ledger_is_one_chain(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for number in (1, 2, 3):
        ledger.charge(number, lines([release()]), "same")
    assert Ledger.replay(path).heads == ledger.heads
    text = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(text[0] + text[2])
    with pytest.raises(Refused, match="line 2 is not what was written"):
        Ledger.replay(path)
    path.write_bytes(b"".join(text))
    again = Ledger.replay(path)
    again.forget(ledger.heads[1])
    assert [e.round for e in again.entries] == [1]
    again.charge(2, lines([release()]), "same")
    assert Ledger.replay(path).heads == ledger.heads[:3], "the same charges give the same chain"

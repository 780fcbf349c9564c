"""Two servers in a run: what is excluded, what is retried or aborted, and that everything opened is on the table."""

import contextlib
import os
import shutil
import threading
from collections import defaultdict

import numpy as np
import pytest
import torch
from tests.support import require

from fedveil.aggregate.centered_clipping import CenteredClipping
from fedveil.aggregate.krum import Krum
from fedveil.aggregate.mean import Mean
from fedveil.aggregate.order import Median, TrimmedMean
from fedveil.core.errors import Aborted, Refused
from fedveil.core.flat import Layout
from fedveil.core.parts import MOVE
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.transport.duo import link, serving, session, transport
from fedveil.transport.duo import round as round_module
from fedveil.transport.duo.ahead import deal_ahead
from fedveil.transport.duo.dealer import Dealer, deal, write
from fedveil.transport.duo.given import Given
from fedveil.transport.duo.parameters import Plan
from fedveil.transport.duo.round import Server
from fedveil.transport.duo.seen import NAMES, OPENED
from fedveil.transport.duo.transport import Duo

require("tenseal")
N, DIM = 7, 50
SUMS = frozenset({"E", "M", "Q", "A", "R"})


@pytest.fixture(autouse=True)
def _nobody_stays():
    yield
    for key in list(transport._sessions):
        transport._sessions.pop(key).close()


def rows(seed=0, n=N):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, DIM)) * 0.05 + 0.05
    x[0] *= -4
    return torch.from_numpy(x)


def carried(duo, x, rule, reads=SUMS, previous=None, clients=None):
    seen = {}

    def decide(opened, count):
        seen.update(opened, n=count)
        return rule

    clients = list(range(100, 100 + len(x))) if clients is None else clients
    ctx = Context(1, Layout(("w",), ((DIM,),)), clients, [], previous=previous)
    weights = torch.full((len(x),), 1 / len(x), dtype=torch.float64)
    delivery = duo.calculate({MOVE: Signal(x)}, weights, ctx, reads, (rule,), decide)
    return delivery, seen, ctx.log


@pytest.mark.parametrize("delivery", ["shares", "switch"])
@pytest.mark.parametrize("rule", [Mean(), TrimmedMean(2), Krum(2), CenteredClipping(2, 1)], ids=transport.rule_name)
def test_the_result_is_that_of_the_plaintext_rule(rule, delivery):
    x = rows()
    previous = x.mean(0, keepdim=True) * 0.5
    got, seen, log = carried(Duo(norm_bound=5.0, delivery=delivery), x, rule, previous=previous)
    expected = rule(Signal(x), torch.full((N,), 1 / N, dtype=torch.float64)).value
    assert torch.allclose(got.uploads[MOVE], expected, atol=1e-5)
    total, r = x.sum(0), previous[0]
    assert seen["n"] == N and got.arrived is None and got.weight == 1.0
    assert seen["E"] == pytest.approx(float(x.square().sum()), rel=1e-5)
    assert seen["M"] == pytest.approx(float(total @ total), rel=1e-5)
    assert seen["A"] == pytest.approx(float(total @ r), rel=1e-4)
    assert seen["R"] == pytest.approx(float(r @ r), rel=1e-5)
    assert log["duo"]["lost"] == 0


def test_a_static_rule_opens_nothing_but_who_took_part():
    _, seen, log = carried(Duo(norm_bound=5.0), rows(), Mean(), reads=frozenset())
    assert seen == {"n": N}
    assert {r["what"] for r in log["leakage"] if r["party"] == "S1" and r["how"] == OPENED} == {NAMES["seats"]}


def broken(frames, how):
    frame = frames[2]
    frames[2] = {
        "short": frame[:-1],
        "long": frame + b"\0",
        "foreign": b"FVU9" + frame[4:],
        "residues": frame[:4] + b"\xff" * (len(frame) - 4),
        "empty": b"",
    }[how]
    return frames


@pytest.mark.parametrize("how", ["short", "long", "foreign", "residues", "empty"])
def test_an_upload_that_is_no_upload_excludes_its_client_with_a_line(how, monkeypatch):
    honest = transport.sealed

    def forged(*arguments):
        frames, *rest = honest(*arguments)
        return broken(frames, how), *rest

    monkeypatch.setattr(transport, "sealed", forged)
    x = rows()
    got, seen, log = carried(Duo(norm_bound=5.0), x, Mean())
    assert [e["client"] for e in log["excluded"]] == [102] and log["excluded"][0]["why"]
    others = [i for i in range(N) if i != 2]
    assert got.arrived.tolist() == others and seen["n"] == N - 1
    assert torch.allclose(got.uploads[MOVE][0], x[others].mean(0), atol=1e-5)


def test_numbers_beyond_all_keys_exclude_their_client_and_a_long_upload_counts_as_zeros():
    x = rows()
    x[3] *= 1e9
    got, _, log = carried(Duo(norm_bound=5.0), x, Mean())
    assert [e["client"] for e in log["excluded"]] == [103] and "norm bound" in log["excluded"][0]["why"]
    assert got.arrived.tolist() == [0, 1, 2, 4, 5, 6]
    x = rows()
    x[3] *= 1e3
    got, seen, log = carried(Duo(norm_bound=5.0), x, Mean())
    assert "excluded" not in log and seen["n"] == N, "nobody learns who was too long"
    kept = x.clone()
    kept[3] = 0
    assert torch.allclose(got.uploads[MOVE][0], kept.mean(0), atol=1e-5)
    assert seen["E"] == pytest.approx(float(kept.square().sum()), rel=1e-5)


def test_too_few_uploads_for_the_rule_abort_the_round_and_the_next_one_works():
    duo = Duo(norm_bound=5.0)
    with pytest.raises(Aborted, match="krum needs 7 uploads, and 6 came"):
        carried(duo, rows(n=6), Krum(2))
    got, _, _ = carried(duo, rows(), Krum(2))
    assert got.uploads[MOVE].shape == (1, DIM)


@pytest.mark.parametrize(("victim", "retries"), [(0, 1), (1, 0)])
def test_a_server_killed_in_the_middle_of_a_round(victim, retries, monkeypatch):
    """After the numbers were opened, before the rule is carried out: begun again with new servers, or aborted."""
    duo = Duo(norm_bound=5.0, processes=True, retries=retries, patience=60.0)
    killed = []

    def decide_and_kill(opened, count):
        if not killed:
            (running,) = transport._sessions.values()
            running.processes[victim].kill()
            running.processes[victim].wait()
            killed.append(running)
        return Mean()

    x = rows()
    ctx = Context(1, Layout(("w",), ((DIM,),)), list(range(N)), [])
    weights = torch.full((N,), 1 / N, dtype=torch.float64)
    arguments = ({MOVE: Signal(x)}, weights, ctx, SUMS, (Mean(),), decide_and_kill)
    if retries:
        got = duo.calculate(*arguments)
        assert torch.allclose(got.uploads[MOVE][0], x.mean(0), atol=1e-5)
        assert ctx.log["duo"]["lost"] == 1
        twice = {r["what"] for r in ctx.log["leakage"] if r.get("count") == 2}
        assert twice >= {NAMES[n] for n in ("energy", "common", "quartic", "along", "reference")}
    else:
        with pytest.raises(Aborted, match="has ended.*last complete round"):
            duo.calculate(*arguments)
        told = {r["what"] for r in ctx.log["leakage"] if (r["party"], r["how"]) == ("S1", OPENED)}
        assert told == {NAMES[n] for n in ("energy", "common", "quartic", "along", "reference")}
    assert len(killed) == 1 and all(p.poll() is not None for p in killed[0].processes)


class Tape:
    """Every frame that each end of a conversation received, in order."""

    def __init__(self, monkeypatch):
        self.frames = defaultdict(list)
        self.order = []
        taken = link.InProcess.get

        def get(end):
            frame = taken(end)
            if end not in self.order:
                self.order.append(end)
            self.frames[end].append((threading.current_thread().name, frame))
            return frame

        monkeypatch.setattr(link.InProcess, "get", get)

    def of(self, thread):
        """Conversations of a thread in which anything was said but a good-bye (to servers of an earlier test)."""
        found = [self.frames[end] for end in self.order if self.frames[end][0][0] == thread]
        return [[frame for _, frame in frames] for frames in found if len(frames) > 1]


class Replay(link.Framed):
    """A conversation with a tape: what is said to it is lost."""

    def __init__(self, frames):
        super().__init__()
        self._frames = iter(frames)

    def put(self, frame):
        pass

    def get(self):
        frame = next(self._frames, None)
        if frame is None:
            raise Aborted("the tape is at its end")
        return frame


def test_a_replayed_transcript_opens_what_the_table_says_and_nothing_else(monkeypatch):
    """S1's program is run again, alone, on the bytes that S1 received, its own keys and what it drew itself."""
    tape, keys, drawn = Tape(monkeypatch), deal(Plan(8, DIM, 5.0, 2, 20)), []
    draw = round_module.seed

    def drawing():
        drawn.append((threading.current_thread().name, draw()))
        return drawn[-1][1]

    monkeypatch.setattr(round_module, "seed", drawing)
    running = session.Session(Given.fresh(keys))
    x = rows().numpy()
    frames = [running.sealer(row) for row in x]
    outcome = running.round(frames, SUMS, lambda opened, n: "krum", reference=x.mean(0))
    running.close()
    orders, peer = sorted(tape.of("S1"), key=lambda frames: serving.ROUND.encode() not in frames[0])
    own = iter([value for thread, value in drawn if thread == "S1"])
    monkeypatch.setattr(round_module, "seed", lambda: next(own))
    names = defaultdict(list)
    opened = link.Framed.opened

    def noted(end, name, value):
        names[name].append(value)
        opened(end, name, value)

    monkeypatch.setattr(link.Framed, "opened", noted)
    replayed = Replay(peer)
    answers = []
    monkeypatch.setattr(serving, "answer", lambda end, *words: answers.append(words))
    with contextlib.suppress(Aborted):
        serving.serve(keys.s1, None, Replay(orders), replayed)
    on_table = {r["what"]: r.get("value") for r in outcome.seen if r["party"] == "S1" and r["how"] == OPENED}
    assert {NAMES[name] for name in names} == set(on_table), "everything that was opened, and nothing else"
    for name, (value,) in names.items():
        if on_table[NAMES[name]] is not None:
            assert value == pytest.approx(on_table[NAMES[name]], rel=1e-12)
    reveals = {kind.partition(":")[2] for kind in replayed.traffic.received if kind.startswith("reveal:")}
    assert reveals <= set(names), "a value whose shares were sent to S1 was opened under its name"
    assert [words[0] for words in answers] == ["opened", "result"]


def test_the_table_says_what_travelled_in_the_clear():
    _, _, log = carried(Duo(norm_bound=5.0), rows(), Mean())
    told = {(r["party"], r["what"]) for r in log["leakage"] if r["how"] == "told"}
    assert told == {
        ("S1", f"{NAMES['seats']}, from S2"),
        ("S2", f"{NAMES['combinations']}, from S1"),
        ("S2", f"{NAMES['rule']}, from S1"),
        ("clients", "result of the round"),
        ("key centre", "sizes of what the servers compute"),
    }
    assert all(r["bytes"] > 0 for r in log["leakage"] if r["how"] in ("encrypted", "masked: uniform to it"))


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "k"
    keys = deal(Plan(N, DIM, 5.0, 2, 3))
    write(keys, folder)
    deal_ahead(keys, folder / "computer" / "rounds", (1,), ("sums", "mean"), attempts=2)
    return folder


def test_keys_from_folders_with_rounds_dealt_ahead_and_a_key_centre_that_is_gone(dealt, monkeypatch):
    shutil.rmtree(dealt / "dealer")
    monkeypatch.setattr(transport, "deal", None)
    x = rows()
    duo = Duo(norm_bound=5.0, keys=str(dealt), processes=True)
    for _ in range(2):
        got, _, _ = carried(duo, x, Mean())
        assert torch.allclose(got.uploads[MOVE][0], x.mean(0), atol=1e-5)
    with pytest.raises(Aborted, match="no randomness is left for round 1"):
        carried(duo, x, Mean())


def test_keys_that_do_not_fit_are_refused_in_words(dealt):
    with pytest.raises(Refused, match="is for 7 clients, and 8 take part"):
        Duo(norm_bound=5.0, keys=str(dealt)).remarks(8)
    with pytest.raises(Refused, match="uploads of norms up to 5, and honest ones reach 6"):
        carried(Duo(norm_bound=6.0, keys=str(dealt)), rows(), TrimmedMean(2))
    with pytest.raises(Refused, match="is for declared_f=2, and this run has 1"):
        carried(Duo(norm_bound=5.0, keys=str(dealt)), rows(), TrimmedMean(1))
    with pytest.raises(Refused, match="cannot read"):
        Duo(norm_bound=5.0, keys=str(dealt / "nowhere")).remarks(5)


def test_rounds_are_counted_as_long_as_keys_live(dealt):
    """In a file, so that another run goes on counting: masks cover only so many openings under one key."""
    duo = Duo(norm_bound=5.0, keys=str(dealt))
    begun = Given.kept(dealt).begun
    before = begun.stat().st_size if begun.exists() else 0
    given = Given.kept(dealt)
    for _ in range(2):
        with contextlib.suppress(Aborted):
            given.attempt(1)
    assert Given.kept(dealt).begun.stat().st_size == before + 2 and begun.stat().st_mode & 0o077 == 0
    os.truncate(begun, given.clients.plan.most)
    with pytest.raises(Refused, match=f"{given.clients.plan.most:,} rounds were begun under these keys"):
        carried(duo, rows(), Mean())
    os.truncate(begun, before)


def test_randomness_is_dealt_once():
    keys = deal(Plan(4, DIM, 1.0, 0, 10))
    dealer, ends = Dealer(keys.s1.seed, keys.s2.seed), link.pair()
    server = Server(keys.s2, ends[1], dealer.mend)
    server.material("0/0/begin")
    with pytest.raises(Aborted, match="begun before"):
        server.material("0/0/begin")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Duo(delivery="post"), "transport.delivery"),
        (lambda: Duo(norm_bound=-1.0), "transport.norm_bound"),
        (lambda: Duo(beta=2.0), "transport.beta"),
        (lambda: Duo(retries=-1), "transport.retries"),
        (lambda: Duo().remarks(10), "transport.norm_bound: an upload without a clip"),
        (lambda: Duo(norm_bound=1.0).remarks(200), "cohort: 200 uploads"),
    ],
)
def test_mistakes_are_refused_in_words(make, words):
    with pytest.raises(Refused, match=words):
        make()


def test_what_the_servers_can_carry_out():
    duo = Duo()
    assert all(duo.serves(r) is None for r in (Mean(), TrimmedMean(1), Krum(1), CenteredClipping(1, 1)))
    assert "mean, trimmed_mean" in duo.serves(Median())
    assert "iterations=1" in duo.serves(CenteredClipping(1)) and "tau" in duo.serves(CenteredClipping(1, 1, 0.5))


def test_the_longest_upload_follows_clip_and_noise():
    duo = Duo(clip=2.0, noise_std=0.5, rounds=100, beta=1e-6)
    expected = 2.0 + 0.5 * (np.sqrt(DIM) + np.sqrt(2 * np.log(8 * 100 / 1e-6)))
    assert duo.longest(DIM, 8) == pytest.approx(expected)
    rng = np.random.default_rng(0)
    lengths = np.linalg.norm(rng.normal(size=(20_000, DIM)) * 0.5, axis=1) + 2.0
    assert lengths.max() < expected, "20,000 honest uploads pass; one fails with probability below 1e-4"

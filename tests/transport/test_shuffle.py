"""The shuffle transport: what arrives, what it weighs, what each party can see, and what happens to bad messages."""

import math
import os

import msgpack
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

from fedveil.core.errors import Aborted, Refused
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context
from fedveil.core.streams import stream
from fedveil.transport.plain import Plain
from fedveil.transport.shuffle import Shuffle, journey, shuffler
from fedveil.transport.shuffle.client import departures, parts
from fedveil.transport.shuffle.journey import open_batches, weights_on_the_wire
from fedveil.transport.shuffle.messages import LONGEST, VERSION, Batch, Malformed, Open, Part
from fedveil.transport.shuffle.reports import Codec
from fedveil.transport.shuffle.sealing import OVERHEAD, seal, unseal
from fedveil.transport.shuffle.shuffler import Shuffler

LAYOUT = Layout(("a", "b"), ((3, 7), (4,)))


def bits(clients=6, dim=LAYOUT.dim, seed=0):
    """Uploads of two values, a pair of its own for each coordinate."""
    rng = np.random.default_rng(seed)
    low = torch.from_numpy(rng.normal(size=(1, dim))).float()
    levels = (low, low + 1)
    chosen = torch.from_numpy(rng.random((clients, dim)) < 0.5)
    return Signal(torch.where(chosen, levels[1], levels[0]), levels=levels, released=True)


def numbers(clients=6, dim=LAYOUT.dim):
    return Signal(torch.randn(clients, dim, generator=torch.Generator().manual_seed(0)), released=True)


def carry(transport, signal, number=1):
    ctx = Context(number, LAYOUT, list(range(signal.rows)), [], server=stream(0, "server", number))
    weights = torch.full((signal.rows,), 1 / signal.rows, dtype=torch.float64)
    return transport.carry({"move": signal}, weights, ctx), ctx.log["parts"]


@pytest.mark.parametrize("split", ["weight", "layer"])
@pytest.mark.parametrize("make", [bits, numbers])
@pytest.mark.parametrize("how", ["sealed", "simulated"])
def test_what_arrives_is_the_mean(split, make, how):
    signal = make()
    delivery, log = carry(Shuffle(split=split, seal=how == "sealed"), signal)
    assert torch.allclose(delivery.uploads["move"], signal.value.mean(dim=0, keepdim=True), atol=1e-6)
    positions = LAYOUT.dim if split == "weight" else 2
    assert (log["sent"], log["arrived"], log["withheld"]) == (6 * positions, 6 * positions, 0)
    assert log["sealed"] == (how == "sealed")


@pytest.mark.parametrize("split", ["weight", "layer"])
@pytest.mark.parametrize("make", [bits, numbers])
def test_simulated_and_sealed_runs_agree_to_the_bit_and_the_byte(split, make):
    real, simulated = (carry(Shuffle(split=split, seal=s), make(clients=9))[0] for s in (True, False))
    assert torch.equal(real.uploads["move"], simulated.uploads["move"])
    assert real.bytes_up == simulated.bytes_up


@pytest.mark.parametrize("length", [1, 10, 207, 208, 65_487, 65_488])
@pytest.mark.parametrize("position", [0, 127, 128, 255, 256, 65_536])
def test_the_weight_of_a_message_is_its_length(length, position):
    message = Part(300, position, bytes(length + OVERHEAD)).encode()
    assert weights_on_the_wire(np.full(position + 1, length), 300)[position] == len(message)


@pytest.mark.parametrize("seal", [True, False])
def test_layers_of_bits_weigh_a_thirtieth_of_floats_and_64_bytes_a_part(seal):
    layout = Layout(("a", "b", "c"), ((40_000,), (10,), (60_000,)))
    signal = bits(clients=3, dim=layout.dim)
    ctx = Context(1, layout, [0, 1, 2], [])
    sent = Shuffle(split="layer", seal=seal).carry({"move": signal}, torch.ones(3) / 3, ctx).bytes_up
    assert sent <= 3 * layout.dim * 4 / 30 + 64 * 9
    assert sent > 3 * layout.dim / 8, "and no less than a bit each"


def test_a_process_of_its_own_shuffles_alike():
    signal = bits()
    apart, log = carry(Shuffle(split="layer", apart=True), signal)
    assert torch.equal(apart.uploads["move"], carry(Shuffle(split="layer"), signal)[0].uploads["move"])
    assert log["refused"] == {}


def test_a_shuffler_that_ended_costs_a_round_and_no_more():
    assert carry(Shuffle(split="layer", apart=True), bits())[0].bytes_up > 0
    shuffler._running[0].kill()
    shuffler._running[0].wait()
    assert carry(Shuffle(split="layer", apart=True), bits())[0].bytes_up > 0, "another one was started"
    half = shuffler.Apart(Open(1, (49,), 1))
    half.process.kill()
    half.process.wait()
    with pytest.raises(Aborted, match="ended"):
        half.release()


def test_ctrl_c_reaches_the_run_alone():
    """A process that is interrupted in the middle of a message would show a traceback to the person."""
    carry(Shuffle(split="layer", apart=True), bits())
    (process,) = shuffler._running
    assert os.getpgid(process.pid) != os.getpgrp()
    shuffler._stop()
    assert process.returncode == 0, "it ends with its input"


def test_one_process_keeps_rounds_apart():
    """Two rounds through one process: nothing of the first is left in the second."""
    first, second = bits(seed=1), bits(seed=2)
    for signal in (first, second):
        delivery, log = carry(Shuffle(split="layer", apart=True), signal)
        assert torch.allclose(delivery.uploads["move"], signal.value.mean(dim=0, keepdim=True), atol=1e-6)
        assert log["refused"] == {}


def test_a_batch_that_no_message_can_hold_is_refused():
    signal = Signal(torch.zeros(1, 1).expand(2000, 20_000))
    ctx = Context(1, Layout(("a",), ((20_000,),)), list(range(2000)), [])
    with pytest.raises(Refused, match="transport.split"):
        Shuffle(split="layer").carry({"move": signal}, torch.ones(2000) / 2000, ctx)


def test_lost_parts_are_missing_coordinate_by_coordinate():
    """Sealed or simulated, the same parts are lost; the mean is over those that came."""
    signal = bits(clients=40)
    sealed, log = carry(Shuffle(loss=0.3, stragglers=0.2, least=0.3), signal)
    simulated, again = carry(Shuffle(loss=0.3, stragglers=0.2, least=0.3, seal=False), signal)
    assert torch.equal(sealed.uploads["move"], simulated.uploads["move"])
    assert log["arrived"] == again["arrived"] < 0.8 * log["sent"]
    assert log["smallest_crowd"] == again["smallest_crowd"] >= 12
    assert not torch.equal(sealed.uploads["move"], carry(Shuffle(), signal)[0].uploads["move"])


def test_simulated_crowds_are_withheld_like_sealed_ones():
    """About half of the weights lack parts: the same ones, and as many refused, sealed or not."""
    sealed, log = carry(Shuffle(loss=0.3, least=0.7), bits(clients=40))
    simulated, again = carry(Shuffle(loss=0.3, least=0.7, seal=False), bits(clients=40))
    assert torch.equal(sealed.uploads["move"], simulated.uploads["move"])
    assert 0 < log["withheld"] == again["withheld"] < LAYOUT.dim
    assert log["smallest_crowd"] == again["smallest_crowd"] >= 28
    assert log["refused"] == again["refused"]
    assert int((simulated.uploads["move"] == 0).sum()) == again["withheld"]


def test_a_coordinate_with_too_few_parts_does_not_move():
    shuffler = Shuffler(Open(1, (49, 49), least=3))
    key = X25519PrivateKey.generate()
    for sender in range(4):
        for message in parts([b"\x01", b"\x01"][: 2 if sender < 2 else 1], key.public_key(), 1):
            shuffler.take(sender, message)
    codec = Codec((1, 1), (torch.tensor([[-1.0, -1.0]]), torch.tensor([[2.0, 2.0]])), torch.float32)
    totals, counts, spoilt = open_batches(shuffler.release(), key, [codec], [1, 1], 1)
    assert (counts.tolist(), sum(spoilt.values())) == ([4, 0], 0)
    assert codec.mean(totals, counts).tolist() == [[2.0, 0.0]]
    assert shuffler.refused == {"too few": 2}


def test_a_round_of_which_nothing_is_left_is_called_off():
    with pytest.raises(Aborted, match="least"):
        carry(Shuffle(loss=0.9, least=0.95), bits(clients=40))


def test_the_shuffler_sees_no_plaintext():
    """Its whole view is what it is sent: equal reports look unlike each other, and the same whatever they say."""
    key = X25519PrivateKey.generate().public_key()
    layer = bytes(range(64))
    views = [b"".join(parts([layer, report], key, 1)) for report in (b"\x00", b"\x01") for _ in range(200)]
    assert not any(layer[i : i + 4] in view for view in views for i in range(61))
    assert len({len(view) for view in views}) == 1
    seals = [Part.decode(m).sealed for _ in range(200) for m in parts([b"\x01"], key, 1)]
    assert len(set(seals)) == 200
    ones = np.unpackbits(np.frombuffer(b"".join(seals), dtype=np.uint8)).mean()
    assert abs(ones - 0.5) < 4 * 0.5 / math.sqrt(200 * OVERHEAD * 8), "4 deviations, but for X25519's one fixed bit"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: m[:-1],
        lambda m: m + b"\x00",
        lambda m: b"\xc1",
        lambda m: b"",
        lambda m: msgpack.packb([VERSION + 1, "p", 1, 0, bytes(49)]),
        lambda m: msgpack.packb([VERSION, "b", 1, 0, bytes(49)]),
        lambda m: msgpack.packb([VERSION, "p", 1, -1, bytes(49)]),
        lambda m: msgpack.packb([VERSION, "p", True, 0, bytes(49)]),
        lambda m: msgpack.packb([VERSION, "p", 1, 0, "text"]),
        lambda m: msgpack.packb({"a": 1}),
        lambda m: bytes(10_000),
    ],
)
def test_a_malformed_message_is_left_out_and_counted(spoil):
    shuffler = Shuffler(Open(1, (49,), least=1))
    (message,) = parts([b"\x01"], X25519PrivateKey.generate().public_key(), 1)
    shuffler.take(0, spoil(message))
    assert shuffler.refused == {"malformed": 1}
    assert shuffler.release() == []


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (Part(2, 0, bytes(49)), "another round"),
        (Part(1, 1, bytes(49)), "no such position"),
        (Part(1, 0, bytes(50)), "another length"),
    ],
)
def test_a_part_that_does_not_belong_is_left_out_and_counted(part, why):
    shuffler = Shuffler(Open(1, (49,), least=1))
    shuffler.take(0, part.encode())
    assert shuffler.refused == {why: 1}


def test_nobody_votes_twice():
    shuffler = Shuffler(Open(1, (49,), least=1))
    for _ in range(2):
        shuffler.take(7, Part(1, 0, bytes(49)).encode())
    assert shuffler.refused == {"sent twice": 1}
    assert len(Batch.decode(shuffler.release()[0]).sealed) == 1


def test_the_server_leaves_out_what_was_not_sealed_to_it_here_and_now():
    """Foreign keys, flipped bits, and seals that were made for another position or round."""
    key, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    good = [seal(b"\x01", key.public_key(), 1, 0) for _ in range(3)]
    flipped = bytearray(good[0])
    flipped[-1] ^= 1
    bad = [
        seal(b"\x01", other.public_key(), 1, 0),
        bytes(flipped),
        seal(b"\x01", key.public_key(), 1, 1),
        seal(b"\x01", key.public_key(), 2, 0),
        bytes(49),
    ]
    codec = Codec((1,), (torch.zeros(1, 1), torch.ones(1, 1)), torch.float32)
    batch = Batch(1, 0, (*good, *bad)).encode()
    totals, counts, spoilt = open_batches([batch], key, [codec], [1], 1)
    assert (totals.tolist(), counts.tolist()) == ([3.0], [3])
    assert spoilt == {"not sealed to the server": 5}
    with pytest.raises(Malformed):
        open_batches([Batch(2, 0, tuple(good)).encode()], key, [codec], [1], 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_none_does_not_spoil_the_sum(bad):
    """Reports of the hybrid are numbers, and a client may seal any bytes."""
    key = X25519PrivateKey.generate()
    sent = [np.array([x, 1.0], dtype=np.float32).tobytes() for x in (1.0, 2.0, bad)] + [b"short"]
    batch = Batch(1, 0, tuple(seal(report, key.public_key(), 1, 0) for report in sent)).encode()
    totals, counts, spoilt = open_batches([batch], key, [Codec((2,), None, torch.float32)], [8], 1)
    assert (totals.tolist(), counts.tolist()) == ([3.0, 2.0], [2])
    assert spoilt == {"not finite": 1, "another length": 1}


def test_the_order_is_nobodys_to_repeat():
    """The same parts through two shufflers: the same order once in 40! runs, and never from a seed."""
    orders = set()
    for _ in range(3):
        shuffler = Shuffler(Open(1, (49, 49), least=1))
        for sender in range(40):
            for position in (0, 1):
                shuffler.take(sender, Part(1, position, bytes([sender]) * 49).encode())
        orders |= {Batch.decode(message).sealed for message in shuffler.release()}
    assert len(orders) == 6


def test_every_round_has_a_key_of_its_own(monkeypatch):
    keys = set()

    def noted(reports, key, number):
        keys.add((number, key.public_bytes_raw()))
        return parts(reports, key, number)

    monkeypatch.setattr(journey, "parts", noted)
    for number in (1, 2):
        carry(Shuffle(split="layer"), bits(), number)
    assert len(keys) == len({key for _, key in keys}) == 2


def test_a_seal_opens_with_its_key_alone():
    key = X25519PrivateKey.generate()
    assert unseal(seal(b"secret", key.public_key(), 3, 4), key, 3, 4) == b"secret"
    with pytest.raises(Malformed):
        unseal(seal(b"secret", key.public_key(), 3, 4), X25519PrivateKey.generate(), 3, 4)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_shuffler(data):
    shuffler = Shuffler(Open(1, (49,), least=1))
    shuffler.take(0, data)
    assert sum(shuffler.refused.values()) == 1


@given(
    clients=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    levels=st.booleans(),
)
def test_reports_say_what_was_uploaded(clients, sizes, levels):
    signal = (bits if levels else numbers)(clients, sum(sizes))
    codec = Codec(tuple(sizes), signal.levels, torch.float32)
    encoded = codec.encode(signal)
    assert [len(r) for r in encoded[0]] == codec.lengths
    totals = np.concatenate([codec.total(i, [row[i] for row in encoded]) for i in range(len(sizes))])
    mean = codec.mean(totals, np.full(sum(sizes), clients))
    assert torch.allclose(mean, signal.value.mean(dim=0, keepdim=True), atol=1e-6)


def test_an_oversized_opening_or_frame_is_refused():
    with pytest.raises(Malformed):
        Open.decode(Open(1, (LONGEST + 1,), 1).encode())
    with pytest.raises(Malformed, match="longer"):
        Part.decode(bytes(100), limit=99)


def test_plain_uploads_of_two_values_are_bits_as_well():
    signal = bits(clients=5)
    ctx = Context(1, LAYOUT, list(range(5)), [])
    delivery = Plain().carry({"move": signal}, torch.ones(5) / 5, ctx)
    assert torch.equal(delivery.uploads["move"], signal.value)
    assert delivery.bytes_up == 5 * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "model"}, "split"),
        ({"delay": -1.0}, "delay"),
        ({"loss": 1.0, "least": 0.5}, "transport.loss"),
        ({"least": 0.0}, "transport.least"),
        ({"loss": 0.1}, "transport.least: with 1"),
        ({"apart": True, "seal": False}, "transport.apart"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(Refused, match=message):
        Shuffle(**settings)


def test_millions_of_seals_are_refused_with_what_to_do_instead():
    signal = Signal(torch.zeros(1, 1).expand(100_000, LAYOUT.dim))
    with pytest.raises(Refused, match="transport.seal"):
        carry(Shuffle(), signal)


# Linkage: the server tries to tell which of n parts about one weight comes from the sender of a part about another.

CLIENTS, WEIGHTS, WINDOW = 20, 60, 10.0
RISK = 1e-4


def guesses(first, second):
    """Right pairs if parts are matched in the order in which they came (each is a sender per place)."""
    return int(np.sum(np.asarray(first) == np.asarray(second)))


def no_better_than_chance(right, trials, clients=CLIENTS):
    """A matching in the dark has one right pair of n on average (Poisson); more than its 1 - 1e-4 quantile fails."""
    return right <= poisson.ppf(1 - RISK, trials / clients)


def arrivals(own, slowest, delay, seed=0):
    """Senders in the order of arrival, for each weight."""
    times = departures(np.asarray(own), slowest, delay, WEIGHTS, np.random.default_rng(seed))
    return [np.argsort(times[:, j], kind="stable") for j in range(WEIGHTS)]


def right_pairs(orders):
    return sum(guesses(orders[j], orders[j + 1]) for j in range(0, WEIGHTS, 2)), CLIENTS * WEIGHTS // 2


SPEEDS = np.linspace(0.0, 300.0, CLIENTS)


def through_the_shuffler(own, slowest, delay, batching, seed=0):
    """What the server sees: for each weight, parts in the order (or at the times) that it gets them, and opened.

    Every sender puts its own number into its reports, to tell afterwards whether a guess was right.
    """
    key = X25519PrivateKey.generate()
    times = departures(np.asarray(own), slowest, delay, WEIGHTS, np.random.default_rng(seed))
    sent = {k: list(parts([bytes([k])] * WEIGHTS, key.public_key(), 1)) for k in range(CLIENTS)}
    shuffler = Shuffler(Open(1, (49,) * WEIGHTS, least=1))
    views = [[] for _ in range(WEIGHTS)]
    for k, j in sorted(((k, j) for k in range(CLIENTS) for j in range(WEIGHTS)), key=lambda at: times[at]):
        shuffler.take(k, sent[k][j])
        if not batching:  # handed on at once
            part = Part.decode(sent[k][j])
            views[part.position].append(unseal(part.sealed, key, 1, part.position)[0])
    if batching:
        for message in shuffler.release():
            batch = Batch.decode(message)
            views[batch.position] = [unseal(s, key, 1, batch.position)[0] for s in batch.sealed]
    return views


def test_with_delays_and_batches_nobody_is_linked_by_order():
    right, trials = right_pairs(through_the_shuffler(SPEEDS, 300.0, WINDOW, batching=True))
    assert no_better_than_chance(right, trials), (right, trials)


def test_with_batches_alone_nobody_is_linked_either():
    right, trials = right_pairs(through_the_shuffler(SPEEDS, 0.0, 0.0, batching=True))
    assert no_better_than_chance(right, trials), (right, trials)


def test_with_both_off_everybody_is_linked():
    right, trials = right_pairs(through_the_shuffler(SPEEDS, 0.0, 0.0, batching=False))
    assert right == trials


def test_delays_hide_senders_only_where_the_slow_are_waited_for():
    """Times at the shuffler's door: waiting makes all clients alike; without it speed says who is who."""
    waited, trials = right_pairs(arrivals(SPEEDS, 300.0, WINDOW))
    assert no_better_than_chance(waited, trials), (waited, trials)
    hasty, _ = right_pairs(arrivals(SPEEDS, 0.0, WINDOW))
    assert hasty > 0.5 * trials


def test_parts_leave_within_the_window_after_the_slowest():
    times = departures(np.array([0.0, 2.0, 9.0]), 5.0, 3.0, 4000, np.random.default_rng(0))
    assert times[:2].min() >= 5.0 and times[:2].max() <= 8.0
    assert times[2].min() >= 9.0, "who is slower than the slowest that is waited for cannot wait"
    assert times[0].mean() == pytest.approx(6.5, abs=5 * 3 / math.sqrt(12 * 4000))


def test_matching_by_what_reports_say_is_no_better_than_chance():
    """Contents: independent reports of clients alike. Pair each 1 about a weight with a 1 about another."""
    rng = np.random.default_rng(4)
    reports = rng.random((CLIENTS, WEIGHTS)) < 0.5
    key = X25519PrivateKey.generate()
    shuffler = Shuffler(Open(1, (49,) * WEIGHTS, least=1))
    owners = {}
    for k in range(CLIENTS):
        for message in parts([bytes([int(bit)]) for bit in reports[k]], key.public_key(), 1):
            owners[Part.decode(message).sealed] = k
            shuffler.take(k, message)
    views = [None] * WEIGHTS
    for message in shuffler.release():
        batch = Batch.decode(message)
        opened = [(unseal(s, key, 1, batch.position)[0], owners[s]) for s in batch.sealed]
        views[batch.position] = [owner for _, owner in sorted(opened, key=lambda pair: pair[0])]
    right, trials = right_pairs(views)
    assert no_better_than_chance(right, trials), (right, trials)

"""What is no honest next message is refused by type, changes nothing, and crashes nothing (SPEC 6.1)."""

import random
from contextlib import suppress

import msgpack
import numpy as np
import pytest
from tests.transport.sessions import Play, numbers, plan_for, total_of

from fedveil.core.errors import Aborted
from fedveil.transport.masks.crypto import seal, unseal
from fedveil.transport.masks.messages import (
    SERVER,
    Advert,
    Boxes,
    Header,
    Masked,
    Opened,
    Roster,
    Shares,
    Signatures,
    Signed,
    Survivors,
    encode,
)
from fedveil.transport.masks.rejected import Foreign, Malformed, Oversized, Rejected, Replayed, Tampered, Unsafe

N, BITS = 5, 32
STAGES = {
    "advertise": (None, Advert),
    "share": (Roster, Shares),
    "mask": (Boxes, Masked),
    "unmask": (Survivors, Opened),
}


def playing(stage, active=False):
    plan = plan_for(N, active=active)
    return Play(plan, numbers(N, 6, BITS), BITS).until(stage)


def forged(line, kind, body, prefix=b""):
    """A frame with any body under the seal of whoever owns this end of the line: a peer that lies."""
    head = Header(kind.kind, line._me, line._other, line.sent, line._session).write() + prefix
    return head + seal(line._out, line.sent, body, head)


def asked(play, seat, message):
    """Another question than the one that the server has just sealed for a client."""
    line = play.server._lines[seat]
    line.sent -= 1
    frame = forged(line, type(message), encode(message))
    line.sent += 1
    return frame


def finishes(play):
    assert np.array_equal(play.finish(), total_of(play.rows, range(N), BITS))


@pytest.mark.parametrize("stage", STAGES)
def test_answers_to_the_server(stage):
    play, other = playing(stage), playing(stage)
    frame, foreign = play.answer(0), other.answer(0)
    for cut in {0, 1, 33, 34, 60, len(frame) // 2, len(frame) - 1} - {len(frame)}:
        with pytest.raises((Malformed, Tampered)):
            play.server.receive(frame[:cut])
    with pytest.raises(Foreign):
        play.server.receive(foreign)
    with pytest.raises(Oversized):
        play.server.receive(frame + bytes(100_000))
    stolen = Header.read(frame)
    with pytest.raises((Tampered, Malformed)):
        play.server.receive(Header(stolen.kind, 1, SERVER, stolen.number, stolen.session).write() + frame[34:])
    play.server.receive(frame)
    with pytest.raises(Replayed):
        play.server.receive(frame)
    for seat in range(1, N):
        play.server.receive(play.answer(seat))
    play.frames = play.server.close()
    with pytest.raises(Replayed):
        play.server.receive(frame)
    finishes(play)


@pytest.mark.parametrize("stage", list(STAGES)[1:])
def test_questions_to_a_client(stage):
    play, other = playing(stage), playing(stage)
    frame = play.frames[0]
    for cut in {0, 1, 33, 34, 50, len(frame) // 2, len(frame) - 1}:
        with pytest.raises((Malformed, Tampered)):
            play.answer(0, frame[:cut])
    for wrong in (other.frames[0], play.frames[1]):
        with pytest.raises(Foreign):
            play.answer(0, wrong)
    with pytest.raises(Oversized):
        play.answer(0, frame + bytes(100_000))
    answer = play.answer(0)
    with pytest.raises(Replayed):
        play.answer(0, frame)
    play.server.receive(answer)
    for seat in range(1, N):
        play.server.receive(play.answer(seat))
    play.frames = play.server.close()
    if play.frames:
        with pytest.raises(Replayed):
            play.answer(0, frame)
    finishes(play)


@pytest.mark.parametrize("stage", STAGES)
def test_every_flipped_bit_is_noticed(stage):
    play = playing(stage)
    answer = play.answer(0)
    for place in range(len(answer)):
        bad = bytearray(answer)
        bad[place] ^= 1 << (place % 8)
        with pytest.raises(Rejected):
            play.server.receive(bytes(bad))
    question = play.frames.get(1, b"")
    for place in range(len(question)):
        bad = bytearray(question)
        bad[place] ^= 1 << (place % 8)
        with pytest.raises(Rejected):
            play.answer(1, bytes(bad))
    play.server.receive(answer)
    for seat in range(1, N):
        play.server.receive(play.answer(seat))
    play.frames = play.server.close()
    finishes(play)


def test_a_flipped_bit_in_a_sealed_share_is_noticed_by_its_owner():
    play = playing("share")
    for seat in range(N):
        play.server.receive(play.answer(seat))
    shares = play.server._shares[1]
    play.server._shares[1] = Shares({k: b[:-1] + bytes([b[-1] ^ 1]) for k, b in shares.boxes.items()}, shares.promise)
    play.frames = play.server.close()
    for seat in play.server.session.neighbours(1):
        with pytest.raises(Tampered):
            play.answer(seat)


def test_a_share_for_somebody_else_is_noticed():
    """The server hands client 0 the box that client 1 sealed for client 2."""
    play = playing("share")
    for seat in range(N):
        play.server.receive(play.answer(seat))
    boxes = play.server._shares[1].boxes
    boxes[0], boxes[2] = boxes[2], boxes[0]
    play.frames = play.server.close()
    with pytest.raises(Tampered):
        play.answer(0)


def bitmaps(play, alive, gone):
    return Survivors(play.session.bitmap(set(alive)), play.session.bitmap(set(gone)))


@pytest.mark.parametrize(
    ("alive", "gone", "why"),
    [
        (range(N), [3], "both kinds of shares"),
        (range(N), range(N), "both kinds of shares"),
        (range(1, N), [0], "without this client"),
        (range(3), [3, 4], "fewer than"),
        (range(4), [], "other neighbours"),
    ],
)
def test_a_list_that_would_give_away_more_than_the_sum_is_refused(alive, gone, why):
    play = playing("unmask")
    with pytest.raises(Unsafe, match=why):
        play.answer(0, asked(play, 0, bitmaps(play, alive, gone)))
    finishes(play)


def test_both_kinds_of_shares_cannot_be_had_one_after_the_other():
    play = playing("unmask")
    play.clients[0].unmask(play.frames[0])
    line = play.server._lines[0]
    with pytest.raises(Replayed):
        play.clients[0].unmask(line.seal(bitmaps(play, [0, 1, 2, 3], [4])))


def test_a_client_refuses_to_upload_among_too_few():
    play = playing("mask")
    few = {k: play.server._shares[k].boxes[0] for k in list(play.session.neighbours(0))[:1]}
    with pytest.raises(Unsafe, match="threshold"):
        play.answer(0, asked(play, 0, Boxes(few)))
    play = playing("share")
    with pytest.raises(Unsafe, match="threshold"):
        play.answer(0, asked(play, 0, Roster({})))


def test_a_public_key_of_small_order_is_refused():
    play = playing("advertise")
    client = play.clients[0]
    line, sealing = client._line, client._sealing.public
    body = msgpack.packb([sealing, bytes(32), bytes(64)])
    with pytest.raises(Malformed):
        play.server.receive(forged(line, Advert, body, sealing))
    head = Header(Advert.kind, 0, SERVER, 0, play.session.id).write()
    with pytest.raises(Malformed):
        play.server.receive(head + bytes(32) + bytes(200))


def wild(random, depth=0):
    """Anything that msgpack can say."""
    kind = random.randrange(9 if depth < 3 else 6)
    if kind < 6:
        return [
            random.randbytes(random.choice([0, 1, 16, 31, 32, 64, 128, 144])),
            random.randint(-(2**63), 2**64 - 1),
            random.random(),
            None,
            "text",
            True,
        ][kind]
    if kind < 8:
        return [wild(random, depth + 1) for _ in range(random.randrange(4))]
    keys = [random.choice([random.randrange(N + 2), -1, 2**40, "a"]) for _ in range(random.randrange(5))]
    return {k: wild(random, depth + 1) for k in keys}


def lie(random, fields):
    """An honest body with something else in one place."""
    fields = [dict(f) if isinstance(f, dict) else f for f in fields]
    i = random.randrange(len(fields))
    way = random.randrange(6)
    if isinstance(fields[i], dict) and fields[i] and way < 4:
        key = random.choice(list(fields[i]))
        item = fields[i].pop(key)
        if way == 1:
            fields[i][random.choice([key + 1, N + 7, -3, 2**33])] = item
        elif way == 2:
            fields[i][key] = random.randbytes(len(item))
        elif way == 3:
            fields[i][key] = wild(random)
    elif way < 3 and isinstance(fields[i], bytes):
        fields[i] = random.randbytes(random.choice([len(fields[i]), 0, 1, len(fields[i]) + 1]))
    elif way == 4:
        fields.append(wild(random))
    else:
        fields[i] = wild(random)
    return fields


def broken(random, frame):
    """A frame after an accident."""
    data = bytearray(frame)
    for _ in range(random.randrange(1, 4)):
        way = random.randrange(4)
        at = random.randrange(len(data)) if data else 0
        if way == 0 and data:
            data[at] ^= 1 << random.randrange(8)
        elif way == 1:
            del data[at : at + random.randrange(1, 40)]
        elif way == 2:
            data[at:at] = random.randbytes(random.randrange(1, 40))
        else:
            data[at : at + 4] = random.randbytes(4)
    return bytes(data)


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_ten_thousand_accidents_crash_nothing(direction, active):
    """Half of them here, half of them lies (below); with both kinds of servers 10,000 in each direction."""
    rng = random.Random(f"{direction}{active}")
    stages = [*STAGES, "sign"] if active else list(STAGES)
    for stage in stages[direction == "down" :]:
        play = playing(stage, active)
        frame = play.answer(2) if direction == "up" else play.frames[2]
        sink = play.server.receive if direction == "up" else lambda data, play=play: play.answer(2, data)
        for _ in range(2500 // len(stages) + 1):
            data = rng.randbytes(rng.randrange(200)) if rng.random() < 0.1 else broken(rng, frame)
            if data != frame:
                with pytest.raises(Rejected):
                    sink(data)
        if direction == "up":
            play.server.receive(frame)
            for seat in set(range(N)) - {2}:
                play.server.receive(play.answer(seat))
            play.frames = play.server.close()
        finishes(play)


def contents(line, frame, prefix=b""):
    """The fields of the frame that this end of a line sealed last, which it then forgets."""
    line.sent -= 1
    start = 34 + len(prefix)
    return msgpack.unpackb(unseal(line._out, line.sent, frame[start:], frame[:start]), strict_map_key=False)


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("stage", ["advertise", "share", "mask", "sign", "unmask"])
def test_lies_of_a_client_crash_nothing(stage, active):
    """Well-sealed bodies with other contents: refused by type, or the round is aborted, or it ends."""
    if stage == "sign" and not active:
        pytest.skip("there is no such stage")
    kind = STAGES[stage][1] if stage != "sign" else Signed
    rng, play, accepted = random.Random(stage), None, 0
    for _ in range(550):
        if play is None:
            play = playing(stage, active)
            line = play.clients[2]._line
            prefix = play.clients[2]._sealing.public if stage == "advertise" else b""
            fields = contents(line, play.answer(2), prefix)
        body = rng.randbytes(40) if rng.random() < 0.1 else msgpack.packb(lie(rng, fields))
        try:
            play.server.receive(forged(line, kind, body, prefix))
        except Rejected:
            continue
        accepted += 1
        play.clients.pop(2)
        with suppress(Rejected, Aborted):
            play.finish()
        play = None
    assert accepted < 450


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("stage", ["share", "mask", "sign", "unmask"])
def test_lies_of_the_server_crash_nothing(stage, active):
    if stage == "sign" and not active:
        pytest.skip("there is no such stage")
    kind = Survivors if stage == "sign" else Signatures if stage == "unmask" and active else STAGES[stage][0]
    rng, play, answered = random.Random(stage), None, 0
    for _ in range(650):
        if play is None:
            play = playing(stage, active)
            line = play.server._lines[2]
            fields = contents(line, play.frames[2])
        body = rng.randbytes(40) if rng.random() < 0.1 else msgpack.packb(lie(rng, fields))
        try:
            play.answer(2, forged(line, kind, body))
        except Rejected:
            continue
        answered += 1
        play = None
    assert answered < 550

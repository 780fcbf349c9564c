"""A server that lies about who dropped out is found out before anybody hands over a share (SPEC 6.1)."""

import pytest
from tests.transport.sessions import Play, numbers, plan_for, total_of

from fedveil.core.errors import Aborted
from fedveil.transport.masks.messages import Boxes, Roster, Signatures, Signed, Survivors
from fedveil.transport.masks.rejected import Malformed, Rejected, Tampered, Unsafe

N, BITS = 8, 32


@pytest.fixture
def play():
    return Play(plan_for(N, max_dropout=0.25, collusion=0.13, active=True), numbers(N, 4, BITS), BITS)


def lists(play, alive, gone):
    return Survivors(play.session.bitmap(set(alive)), play.session.bitmap(set(gone)))


def show(play, lists_by_seat):
    """The server shows each client a list of its own, and takes what they sign as it likes."""
    signed = {}
    for seat, shown in lists_by_seat.items():
        frame = play.clients[seat].sign(play.server._lines[seat].seal(shown))
        signed[seat] = play.server._lines[seat].open(Signed, frame).signature
    return signed


def before_signing(play):
    """Uploads are in, and no list has been shown yet."""
    play.until("mask")
    for seat in range(N):
        play.server.receive(play.answer(seat))
    return play


def test_an_honest_server_gets_the_sum(play):
    assert (play.finish() == total_of(play.rows, range(N), BITS)).all()


def test_two_lists_are_never_both_signed_by_enough(play):
    """Half is told that client 7 is alive, half that it is gone: no list has the signatures that it needs."""
    before_signing(play)
    first, second = lists(play, range(N), []), lists(play, range(N - 1), [N - 1])
    signed = show(play, {seat: first if seat < 4 else second for seat in range(N - 1)})
    for seat in range(N - 1):
        mine = {k: s for k, s in signed.items() if (k < 4) == (seat < 4)}
        with pytest.raises(Unsafe, match="signatures of the list"):
            play.clients[seat].unmask(play.server._lines[seat].seal(Signatures(mine)))
        play.server._lines[seat].sent -= 1
        with pytest.raises(Tampered):
            play.clients[seat].unmask(play.server._lines[seat].seal(Signatures(signed)))


def test_a_signature_counts_for_one_client(play):
    """One colluder's signature under many names is no majority."""
    before_signing(play)
    shown = lists(play, range(N), [])
    signed = show(play, dict.fromkeys(range(2), shown))
    for table in (dict.fromkeys(range(N), signed[0]), {k: signed[k % 2] for k in range(N)}):
        with pytest.raises(Tampered):
            play.clients[0].unmask(play.server._lines[0].seal(Signatures(table)))
        play.server._lines[0].sent -= 1


def test_signatures_of_clients_that_are_gone_do_not_count(play):
    before_signing(play)
    shown = lists(play, range(N - 1), [N - 1])
    signed = show(play, dict.fromkeys(range(N - 1), shown))
    with pytest.raises(Malformed):
        play.clients[0].unmask(play.server._lines[0].seal(Signatures(signed | {N - 1: signed[0]})))


def test_a_client_signs_one_list(play):
    before_signing(play)
    show(play, {0: lists(play, range(N), [])})
    with pytest.raises(Rejected):
        show(play, {0: lists(play, range(N - 1), [N - 1])})


def test_a_list_with_too_few_is_not_signed(play):
    before_signing(play)
    with pytest.raises(Unsafe, match="fewer than"):
        show(play, {0: lists(play, range(5), range(5, N))})


def test_withheld_boxes_are_noticed(play):
    """A server that keeps boxes back would cut masks between clients that are both in the sum."""
    play.until("share")
    for seat in range(N):
        play.server.receive(play.answer(seat))
    play.frames = play.server.close()
    near = play.session.neighbours(0)
    line = play.server._lines[0]
    line.sent -= 1
    kept = {k: play.server._shares[k].boxes[0] for k in sorted(near)[1:]}
    play.clients[0].mask(line.seal(Boxes(kept)), play.rows[0])
    with pytest.raises(Unsafe, match="other neighbours"):
        play.clients[0].sign(line.seal(lists(play, range(N), [])))


def test_keys_that_the_server_puts_in_place_of_a_clients_are_noticed(play):
    play.until("share")
    line = play.server._lines[0]
    line.sent -= 1
    table = play.server._keys_for(0)
    seat = min(table)
    other = Play(play.session.plan, play.rows, BITS)
    other.until("share")
    for false in (bytes(len(table[seat])), next(iter(other.server._keys_for(0).values())), table[max(table)]):
        with pytest.raises(Tampered):
            play.clients[0].share(line.seal(Roster(table | {seat: false})))
        line.sent -= 1


def test_an_advert_of_the_same_session_among_other_members_is_no_good(play):
    """Names of sessions may come again if the server lies; signatures speak of the members as well."""
    twin = Play(play.session.plan, play.rows, BITS, name=play.session.id)
    twin.identities[0] = play.identities[0]
    twin.clients[0] = twin.client(0)
    with pytest.raises(Rejected):
        twin.server.receive(play.clients[0].advertise())
    assert twin.session.binding != play.session.binding
    words = play.session.advert_words(0, bytes(32), bytes(32)), twin.session.advert_words(0, bytes(32), bytes(32))
    assert words[0] != words[1]


def test_dropping_out_while_signing(play):
    play.until("sign")
    play.step(without=[0, 1])
    assert (play.finish() == total_of(play.rows, range(N), BITS)).all()


def test_too_few_signatures_end_the_round(play):
    play.until("sign")
    with pytest.raises(Aborted, match="stage sign"):
        play.step(without=range(4))

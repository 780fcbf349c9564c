"""The sum is exact modulo 2^b whoever drops out and when, or the round is aborted."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.transport.sessions import Play, numbers, plan_for, total_of

from fedveil.core.errors import Aborted
from fedveil.transport.masks import encoding
from fedveil.transport.masks.server import STAGES
from fedveil.transport.masks.simulate import Traffic, summed

EVERY = settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@EVERY
@given(st.data())
def test_the_sum_is_exact_whoever_drops_out_and_when(data):
    n = data.draw(st.integers(2, 8), "clients")
    bits = data.draw(st.sampled_from([3, 8, 16, 18, 32, 47, 62]), "bits")
    active = data.draw(st.booleans(), "active")
    plan = plan_for(n, max_dropout=data.draw(st.sampled_from([0.0, 0.2, 0.3])), active=active)
    rows = numbers(n, data.draw(st.integers(1, 11), "length"), bits, data.draw(st.integers(0, 2**32), "seed"))
    gone = data.draw(st.sets(st.integers(0, n - 1), max_size=plan.lost), "gone")
    stages = [s for s in STAGES if active or s != "sign"]
    leaving = {seat: data.draw(st.sampled_from(stages)) for seat in gone}
    total, survivors = summed(plan, bits, rows, leaving, Traffic())
    late = {"sign", "unmask"}
    assert survivors == [i for i in range(n) if leaving.get(i, "unmask") in late]
    assert np.array_equal(total, total_of(rows, survivors, bits))


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("stage", list(STAGES))
def test_with_too_many_losses_nothing_is_summed(stage, active):
    if stage == "sign" and not active:
        pytest.skip("there is no such stage")
    plan = plan_for(6, max_dropout=0.2, active=active)
    rows = numbers(6, 4, 32)
    leaving = dict.fromkeys(range(5), stage)
    with pytest.raises(Aborted, match="fewer than"):
        summed(plan, 32, rows, leaving, Traffic())


def test_losses_behind_the_upload_cost_no_upload():
    plan = plan_for(10)
    rows = numbers(10, 4, 32)
    total, survivors = summed(plan, 32, rows, {0: "unmask", 1: "unmask"}, Traffic())
    assert survivors == list(range(10))
    assert np.array_equal(total, total_of(rows, survivors, 32))


def test_a_ring_as_well():
    """60 clients on a ring of degree 20, two gone at each stage; longer than one block of a mask."""
    plan = plan_for(60, max_dropout=0.1, degree=20)
    assert plan.degree == 20 < 59
    rows = numbers(60, 40_000, 32)
    leaving = dict(zip(range(6), STAGES[:3] * 2, strict=True))
    total, survivors = summed(plan, 32, rows, leaving, Traffic())
    assert survivors == list(range(6, 60))
    assert np.array_equal(total, total_of(rows, survivors, 32))


def test_a_client_with_too_few_neighbours_left_leaves_as_well():
    """On a sparse ring two losses may stand beside one client: such a round is exact or aborted, never an error."""
    plan = plan_for(12, degree=4)
    assert plan.threshold == 3 and plan.lost == 2 and plan.log2_abort > -10
    rows = numbers(12, 3, 32)
    outcomes = set()
    for seed in range(40):
        leaving = {0: "share", 1: "mask" if seed % 2 else "share"}
        try:
            total, survivors = summed(plan, 32, rows, leaving, Traffic())
        except Aborted:
            outcomes.add("aborted")
        else:
            assert np.array_equal(total, total_of(rows, survivors, 32))
            outcomes.add("exact")
    assert outcomes == {"aborted", "exact"}


def test_wrong_shares_are_noticed_before_a_sum_is_given_out(monkeypatch):
    """A neighbour that hands over other shares than it was given spoils the round, and the server says so."""
    from fedveil.transport.masks import shamir

    play = Play(plan_for(5), numbers(5, 3, 32), 32).until("unmask")
    client = play.clients[2]
    client._held = {k: bytes(2 * shamir.SHARE) for k in client._held}
    with pytest.raises(Aborted, match="do not fit"):
        play.step()


def test_a_client_that_shares_a_false_key_is_noticed(monkeypatch):
    play = Play(plan_for(6, max_dropout=0.2), numbers(6, 3, 32), 32)
    monkeypatch.setattr(play.clients[1]._masking, "private", lambda: bytes(32))
    play.until("mask")
    play.step(without=[1])
    with pytest.raises(Aborted, match="client 1 do not fit"):
        play.step()


@given(st.integers(2, 62), st.integers(0, 40), st.integers(0, 2**32))
def test_packing_and_back(bits, count, seed):
    values = numbers(1, count, bits, seed)[0]
    data = encoding.pack(values, bits)
    assert len(data) == encoding.packed_size(count, bits) <= (count + 7) * bits / 8 + 8
    assert np.array_equal(encoding.unpack(data, count, bits), values)


@given(st.integers(2, 62), st.data())
def test_residues_and_back(bits, data):
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    values = np.array([*data.draw(st.lists(st.integers(low, high), max_size=5)), low, high, 0, -1], np.int64)
    residues = (values & np.int64(2**bits - 1)).astype(encoding.word(bits))
    assert np.array_equal(encoding.centred(residues, bits), values)

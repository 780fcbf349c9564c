"""Work among threads: results in order, failures and interrupts as if nobody had helped."""

from __future__ import annotations

import threading

import pytest
import torch

from fedveil.core.team import CalledOff, at_work, go_on, hands, share_out


@pytest.fixture(params=[1, 2, 4])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_order_and_each_hand_is_one_thread(threads):
    seen: dict[int, set[int]] = {}

    def work(item: int, hand: int) -> int:
        seen.setdefault(hand, set()).add(threading.get_ident())
        return item * item

    assert share_out(work, range(20)) == [i * i for i in range(20)]
    assert len(seen) <= threads
    assert all(len(who) == 1 for who in seen.values())


def test_who_works_for_others_shares_nothing_out(threads):
    def work(item: int, hand: int) -> tuple[int, list[int]]:
        return hands(8), share_out(lambda i, h: i, [item, item])

    found = share_out(work, range(threads + 1))
    assert [inner for _, inner in found] == [[i, i] for i in range(threads + 1)]
    if threads > 1:
        assert {count for count, _ in found} == {1}
    assert not at_work()


def test_the_first_failure_is_raised_and_no_more_is_begun(threads):
    begun = []

    def work(item: int, hand: int) -> int:
        begun.append(item)
        if item in (2, 3):
            raise ValueError(f"item {item}")
        return item

    with pytest.raises(ValueError, match="item 2"):
        share_out(work, range(1000))
    assert len(begun) < 1000
    assert share_out(lambda i, h: i, range(3)) == [0, 1, 2]


def test_torch_threads_are_as_before(threads):
    share_out(lambda i, h: torch.ones(10).sum(), range(8))
    assert torch.get_num_threads() == threads


def test_long_work_ends_where_it_is_not_needed_any_more(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    waiting = threading.Event()

    def work(item: int, hand: int) -> None:
        waiting.set()
        while True:
            go_on()

    def interrupted(futures):
        waiting.wait(10)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("fedveil.core.team.wait", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            share_out(work, range(4))
    finally:
        torch.set_num_threads(before)
    assert share_out(lambda i, h: i, range(3)) == [0, 1, 2]
    go_on()
    assert not issubclass(CalledOff, ValueError)

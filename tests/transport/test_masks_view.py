"""What the server sees depends on nothing but the sum: the simulator's argument, carried out (SPEC 6.1).

Masks are replaced by a table of uniform vectors, one for each secret (that AES-CTR cannot be told from such a table is
the assumption on the cipher). Then for every run on inputs x and for every x' with the same sum over the survivors,
there is exactly one change of the table, on masks that nobody outside their pair ever learns, under which the run
on x' sends the server the very same bytes. The table is uniform, so both views are equally likely; one of the x' is
"the sum, and zeros", which is all a simulator needs to know.
"""

import hashlib
from collections import defaultdict

import numpy as np
import pytest
from scipy.stats import chisquare
from tests.transport.sessions import Play, numbers, plan_for

from fedveil.transport.masks import client as client_room
from fedveil.transport.masks import crypto
from fedveil.transport.masks import server as server_room
from fedveil.transport.masks.encoding import word
from fedveil.transport.masks.messages import Masked, Opened

BITS, LENGTH = 32, 5


class Tape:
    """All randomness of a session, the same again for the same name."""

    def __init__(self, name):
        self.name, self.count = name, 0

    def __call__(self, n):
        self.count += 1
        out = b"".join(hashlib.sha256(f"{self.name}/{self.count}/{i}".encode()).digest() for i in range(n // 32 + 1))
        return out[:n]


class Table:
    """A uniform mask for each secret; notes who asked for which."""

    def __init__(self, change=None):
        self.change, self.asked = change or {}, defaultdict(set)

    def mask(self, secret):
        seed = np.frombuffer(hashlib.sha256(b"table" + secret).digest(), np.uint32)
        drawn = np.random.default_rng(seed).integers(0, 2**BITS, LENGTH, dtype=np.uint32)
        return drawn + self.change.get(secret, np.uint32(0))

    def of(self, who):
        def add_mask(total, secret, *, subtract=False):
            self.asked[who].add(secret)
            total += (0 - self.mask(secret)) if subtract else self.mask(secret)

        return add_mask


def run(monkeypatch, plan, rows, leaving, table):
    """One whole session on recorded randomness."""
    tape = Tape("one")
    with monkeypatch.context() as patch:
        patch.setattr(crypto.os, "urandom", tape)
        patch.setattr(client_room, "seed", lambda: tape(32))
        patch.setattr(client_room, "Pair", lambda key=None: crypto.Pair(key or tape(32)))
        patch.setattr(server_room, "Pair", lambda *key: crypto.Pair(*(key or [tape(32)])))
        play = Play(plan, rows, BITS, name=bytes(16))
        patch.setattr(client_room, "add_mask", table.of("clients"))
        patch.setattr(server_room, "add_mask", table.of("server"))
        while play.server.stage != "done":
            play.step(without=leaving.get(play.server.stage, ()))
    return play


def pair_secret(play, i, j, keys):
    return keys[i].agree(keys[j].public, play.session.pair_purpose, 16)


def tree(nodes, near):
    """Edges of a spanning tree, leaves first."""
    nodes = set(nodes)
    reached, edges, edge = {min(nodes)}, [], [min(nodes)]
    while edge:
        i = edge.pop(0)
        for j in sorted(near(i) & nodes - reached):
            reached.add(j)
            edges.append((j, i))
            edge.append(j)
    assert reached == nodes
    return edges[::-1]


@pytest.mark.parametrize("degree", [None, 6])
@pytest.mark.parametrize("colluders", [(), (3,)])
@pytest.mark.parametrize(
    "leaving", [{}, {"share": [1]}, {"mask": [0, 7]}, {"mask": [4], "unmask": [8]}, {"advertise": [2], "mask": [5]}]
)
def test_equal_sums_give_equal_views(monkeypatch, degree, colluders, leaving):
    n = 10
    plan = plan_for(n, degree=degree, collusion=0.1)
    x = numbers(n, LENGTH, BITS, seed=1)
    table = Table()
    first = run(monkeypatch, plan, x, leaving, table)
    survivors = first.server.survivors
    honest = [k for k in survivors if k not in colluders]

    # Other inputs with the same sum over the honest survivors; those who are gone may have held anything.
    other = numbers(n, LENGTH, BITS, seed=2)
    other[list(colluders)] = x[list(colluders)]
    other[honest[0]] += x[honest].sum(0, dtype=np.uint32) - other[honest].sum(0, dtype=np.uint32)
    simulator = np.zeros_like(x)
    simulator[list(colluders)] = x[list(colluders)]
    simulator[honest[0]] = x[honest].sum(0, dtype=np.uint32)

    tape = Tape("one")
    keys = {}
    for i in range(n):  # the order in which clients draw: seed, sealing pair, masking pair
        if i == 0:
            tape(32)  # the server's pair
        tape(32), tape(32), keys.setdefault(i, crypto.Pair(tape(32)))

    for inputs in (other, simulator):
        change = {}
        need = {k: x[k] - inputs[k] for k in honest}
        for leaf, parent in tree(honest, first.session.neighbours):
            secret = pair_secret(first, leaf, parent, keys)
            sign = 1 if leaf < parent else -1
            change[secret] = need[leaf] if sign > 0 else 0 - need[leaf]
            need[parent] = need[parent] + need[leaf]
        assert not need[min(honest)].any()

        # No mask that changes is known to the server or to a colluder.
        assert not change.keys() & table.asked["server"]
        known = {pair_secret(first, i, j, keys) for i in colluders for j in range(n) if j != i}
        assert not change.keys() & known

        second = run(monkeypatch, plan, inputs, leaving, Table(change))
        assert second.seen == first.seen
        assert np.array_equal(second.server.total, first.server.total)
        assert not np.array_equal(inputs[honest], x[honest])


def test_without_the_same_sum_no_such_change_exists(monkeypatch):
    """The argument would notice a leak: with another sum the views differ, whatever happens on the tree."""
    plan, x = plan_for(6), numbers(6, LENGTH, BITS, seed=1)
    first = run(monkeypatch, plan, x, {}, Table())
    changed = x.copy()
    changed[0, 0] += np.uint32(1)
    assert run(monkeypatch, plan, changed, {}, Table()).seen != first.seen


def test_the_server_never_holds_a_threshold_of_the_other_kind():
    """Of each client, shares of one secret only are ever opened: the key of who is gone, the seed of who is not."""
    play = Play(plan_for(8), numbers(8, 3, BITS), BITS).until("mask")
    play.step(without=[2])
    seeds, keys = defaultdict(int), defaultdict(int)
    for seat, client in play.clients.items():
        opened = play.server._lines[seat].open(Opened, client.unmask(play.frames[seat]))
        for k in opened.seeds:
            seeds[k] += 1
        for k in opened.keys:
            keys[k] += 1
    assert set(keys) == {2} and 2 not in seeds


def test_a_masked_upload_is_uniform_whatever_is_inside():
    """200,000 bytes under real masks, of zeros and of ones; each p-value is below 1e-5 once in 100,000 runs."""
    plan, length = plan_for(4, max_dropout=0.0), 50_000
    for value in (0, 2**32 - 1):
        rows = np.full((4, length), value, word(32))
        play = Play(plan, rows, 32).until("mask")
        frame = play.answer(0)
        masked = np.frombuffer(play.server._lines[0].open(Masked, frame).values, np.uint8)
        assert chisquare(np.bincount(masked, minlength=256)).pvalue > 1e-5

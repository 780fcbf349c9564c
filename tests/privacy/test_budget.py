"""Acceptance 7, the library's part: the table behind ``fedveil budget``."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from fedveil.core.errors import Refused
from fedveil.privacy.accountants import ACCOUNTANTS
from fedveil.privacy.budget import budget, curve
from fedveil.privacy.events import WithoutReplacement


def test_epsilon_by_every_accountant_in_seconds():
    start = time.process_time()
    table = budget(multiplier=1.1, steps=10_000, sampling=0.01)
    assert time.process_time() - start < 10
    found = {row.accountant: round(row.epsilon, 2) for row in table.rows}
    assert list(found) == list(ACCOUNTANTS)
    assert (found["rdp"], found["pld"], found["moments"]) == (5.63, 5.19, 6.28)
    assert table.solved == "epsilon"


def test_noise_and_steps():
    noise = budget(epsilon=8, steps=1000, sampling=0.01)
    assert noise.solved == "multiplier"
    by = {row.accountant: row.multiplier for row in noise.rows}
    assert by["pld"] < by["rdp"] < by["moments"] < by["advanced"]
    steps = budget(epsilon=8, multiplier=1.1, sampling=0.01)
    assert steps.solved == "steps"
    by = {row.accountant: row.steps for row in steps.rows}
    assert by["pld"] > by["rdp"] > by["moments"] > by["advanced"] >= by["basic"]


def test_an_accountant_that_cannot_says_so_in_its_row():
    table = budget(multiplier=1.1, steps=100, sampling=WithoutReplacement(10, 1000))
    rows = {row.accountant: row for row in table.rows}
    assert rows["rdp"].refused is None
    assert "without replacement" in rows["pld"].refused
    assert rows["pld"].epsilon is None


def test_skellam_has_a_table_too():
    rows = {r.accountant: r for r in budget(multiplier=2.0, steps=10, mechanism="skellam").rows}
    gauss = {r.accountant: r for r in budget(multiplier=2.0, steps=10, accountants=("rdp",)).rows}
    assert rows["rdp"].epsilon == pytest.approx(gauss["rdp"].epsilon, rel=2e-3)  # integer orders only


def test_curves_grow():
    lines = curve(multiplier=1.1, steps=500, sampling=0.01, points=6)
    for line in lines.values():
        assert [t for t, _ in line] == sorted({t for t, _ in line})
        assert all(a[1] < b[1] for a, b in pairwise(line))


def test_bad_questions():
    for bad, word in (
        ({"epsilon": 1}, "exactly two"),
        ({"epsilon": 1, "steps": 1, "multiplier": 1}, "exactly two"),
        ({"epsilon": -1, "steps": 1}, "epsilon"),
        ({"multiplier": 0, "steps": 1}, "noise"),
        ({"multiplier": 1, "steps": 0}, "steps"),
        ({"multiplier": 1, "steps": 1, "delta": 2}, "delta"),
        ({"multiplier": 1, "steps": 1, "sampling": 0}, "sampling"),
        ({"multiplier": 1, "steps": 1, "accountants": ("gdp",)}, "accountant"),
    ):
        with pytest.raises(Refused, match=word):
            budget(**bad)

"""Momentum at the clients: m ← β·m + (1 − β)·Δ, its own memory, and facts that stay true."""

import pytest
import torch
from tests.support import blobs

import fedveil
from fedveil.core.parts import MOVE
from fedveil.core.signal import Signal
from fedveil.local.rules import FedAvg, Momentum, averaging


def test_it_is_a_running_mean_of_the_moves():
    rule, memory = Momentum(client_momentum=0.9), torch.zeros(2, 3)
    total = torch.zeros(2, 3)
    for t in range(1, 4):
        delta = torch.full((2, 3), float(t))
        uploads, memory = rule.pack(Signal(delta), Signal(delta), torch.ones(2, 1), memory, {})
        total = 0.9 * total + 0.1 * delta
        assert torch.allclose(uploads[MOVE].value, total) and torch.equal(uploads[MOVE].value, memory)


def test_facts_say_what_is_known():
    rule = Momentum(client_momentum=0.5)
    noisy = Signal(torch.ones(1, 3), bound=1.0, unit="client", noise_var=4.0, released=True)
    made = rule.pack(noisy, noisy, torch.ones(1, 1), torch.zeros(1, 3), {})[0][MOVE]
    assert made.released and made.noise_var is None, "noise of earlier rounds is inside"
    assert (made.bound, made.unit) == (1.0, "client")
    silent = Signal(torch.ones(1, 3))
    assert rule.pack(silent, silent, torch.ones(1, 1), torch.zeros(1, 3), {})[0][MOVE].noise_var == 0.0


def test_without_it_nothing_is_remembered():
    assert averaging(1.0, 0.0, 0.0) == FedAvg(1.0, 0.0)
    assert averaging(1.0, 0.0, 0.9).remembers


@pytest.mark.parametrize("method", ["fedavg", "dp_fedavg_local"])
def test_a_run_with_it_learns_and_resumes(tmp_path, method):
    noise = ["sigma=0.05"] if method != "fedavg" else []
    kept = {"model": "logistic", "lr": 0.3, "client_momentum": 0.8, "data": blobs()}
    whole = fedveil.run(*noise, method=method, rounds=25, out=tmp_path / "a", **kept)
    assert whole.accuracy > 0.7
    plain = fedveil.run(*noise, method=method, rounds=25, out=tmp_path / "b", **(kept | {"client_momentum": 0.0}))
    assert plain.history[0]["loss"] < whole.history[0]["loss"], "the first upload is a fifth of the move"

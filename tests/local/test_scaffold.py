"""SCAFFOLD's identities, and what it does that FedAvg does not (SPEC 2)."""

import numpy as np
import pytest
import torch
from tests.support import Quadratic, blobs

import fedveil
from fedveil.runtime.checkpoint import load_progress
from fedveil.runtime.memory import Memory

DIM = 3
CURVATURE = np.array([0.5, 2.0, 1.0, 4.0])
OPTIMA = np.array([[1.0, 0.0, -1.0], [-2.0, 1.0, 0.5], [0.0, 3.0, 1.0], [0.5, -1.0, 2.0]])
STEPS, LR = 5, 0.1


def quadratics():
    """Client k minimises a_k/2·‖w − o_k‖²: scaled unit vectors under mean squared error, one full batch."""
    parts = []
    for a, o in zip(CURVATURE, OPTIMA, strict=True):
        s = np.sqrt(a * DIM / 2)
        parts.append((s * np.eye(DIM), s * o))
    return fedveil.data.from_clients(parts, test=parts[0], classes=0, holdout=0.0, name="quadratics")


def train(tmp_path, method, rounds, **settings):
    settings = {"cohort": 4, "steps": STEPS, "batch": DIM, "lr": LR, "dtype": "float64"} | settings
    result = fedveil.run(
        method=method,
        data=quadratics(),
        model=Quadratic(DIM),
        loss="mse",
        rounds=rounds,
        out=tmp_path / "run",
        **settings,
    )
    return result, result.model.w.detach().numpy()


def memories(result, dim, dtype=torch.float64):
    memory = Memory(dim, dtype)
    progress, _ = load_progress(result.folder.checkpoint, memory)
    return progress.server, memory


def test_scaffold_reaches_the_optimum_where_fedavg_keeps_its_known_bias(tmp_path):
    optimum = (CURVATURE[:, None] * OPTIMA).sum(0) / CURVATURE.sum()
    contraction = 1 - (1 - LR * CURVATURE[:, None]) ** STEPS
    biased = (contraction * OPTIMA).sum(0) / contraction.sum()
    assert np.abs(biased - optimum).max() > 0.05

    _, w = train(tmp_path / "a", "scaffold", 300)
    assert np.abs(w - optimum).max() < 1e-6
    _, w = train(tmp_path / "b", "fedavg", 300)
    assert np.abs(w - biased).max() < 1e-6


def test_scaffold_with_momentum_and_unequal_weights_reaches_the_weighted_optimum(tmp_path):
    _, w = train(tmp_path, "scaffold", 600, momentum=0.5, lr=0.05)
    assert np.abs(w - (CURVATURE[:, None] * OPTIMA).sum(0) / CURVATURE.sum()).max() < 1e-6


def test_client_controls_survive_between_rounds(tmp_path):
    """One well-known benchmark forgets them; after two rounds of half the clients, all four are still there."""
    result, _ = train(tmp_path, "scaffold", 4, cohort=2)
    seen = {k for event in result.history for k in event["clients"]}
    _, memory = memories(result, DIM)
    assert set(memory.rows) == seen
    assert all(bool(row.any()) for row in memory.rows.values())
    first = result.history[0]["clients"]
    assert len(seen - set(result.history[-1]["clients"])) > 0, "some control was kept through a round of absence"
    assert set(first) <= set(memory.rows)


def test_the_servers_control_is_the_mean_of_all_under_full_participation(tmp_path):
    result, _ = train(tmp_path, "scaffold", 7)
    server, memory = memories(result, DIM)
    mean = torch.stack([memory.rows[k] for k in range(4)]).mean(0)
    assert torch.allclose(server["c"], mean, rtol=0, atol=1e-12)
    assert float(server["c"].abs().max()) > 1e-3 or float(memory.rows[0].abs().max()) > 1e-3


def test_the_servers_control_is_the_mean_over_the_population_under_partial_participation(tmp_path):
    """c ← c + (n/N)·mean(Δc) keeps c = (1/N) Σ c_k, with zeros for those who never took part."""
    result, _ = train(tmp_path, "scaffold", 3, cohort=2)
    server, memory = memories(result, DIM)
    total = torch.stack(list(memory.rows.values())).sum(0) / 4
    assert torch.allclose(server["c"], total, rtol=0, atol=1e-12)


def test_a_control_is_the_mean_gradient_along_the_walk(tmp_path):
    """Option II: c_k⁺ = (w − y)/(Kη) + (c_k − c), which in round one is the mean gradient of the K steps."""
    result, _ = train(tmp_path, "scaffold", 1)
    _, memory = memories(result, DIM)
    for k in range(4):
        y, gradients = np.zeros(DIM), []
        for _ in range(STEPS):
            gradients.append(CURVATURE[k] * (y - OPTIMA[k]))
            y = y - LR * gradients[-1]
        assert np.allclose(memory.rows[k].numpy(), np.mean(gradients, 0), atol=1e-12)


def test_unequal_client_sizes(tmp_path):
    """Steps differ by client, so does K·η in every c_k; the server's mean identity still holds."""
    result = fedveil.run(
        method="scaffold",
        data=blobs(),
        model="logistic",
        rounds=3,
        cohort=4,
        local_epochs=2,
        batch=8,
        out=tmp_path / "run",
        dtype="float64",
    )
    assert result.history[0]["steps"]["min"] < result.history[0]["steps"]["max"]
    server, memory = memories(result, result.objective.layout.dim)
    mean = torch.stack([memory.rows[k] for k in range(4)]).mean(0)
    assert torch.allclose(server["c"], mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_weighted_controls(tmp_path, weights):
    data = blobs()
    result = fedveil.run(
        f"method.weights={weights}",
        method="scaffold",
        data=data,
        model="logistic",
        rounds=3,
        cohort=4,
        dtype="float64",
        out=tmp_path / "run",
    )
    server, memory = memories(result, result.objective.layout.dim)
    share = data.sizes / data.sizes.sum() if weights == "examples" else np.full(4, 0.25)
    mean = sum(float(p) * memory.rows[k] for k, p in enumerate(share))
    assert torch.allclose(server["c"], mean, rtol=0, atol=1e-12)

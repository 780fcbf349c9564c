"""The same method and seed give the same model and the same ledger, in process and over nodes."""

import pytest
from tests.flower.common import grid_for, in_process, over_nodes, same, training_of
from tests.support import require

from fedveil.privacy.noise import PerClient
from fedveil.transport.he.keys import deal, write
from fedveil.transport.he.parameters import Parameters

require("flwr")

PLAIN = {
    "fedavg": ("method=fedavg",),
    "scaffold": ("method=scaffold",),
    "dp_fedavg_local": ("method=dp_fedavg_local", "algorithm_variant=step_noise", "clip_norm=1", "sigma=1"),
    "dp_scaffold_stein": ("method=dp_scaffold_stein", "clip_norm=1", "sigma=1"),
    "dp_fedavg_central": ("method=dp_fedavg_central", "clip_norm=1", "sigma=1"),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-10)])
@pytest.mark.parametrize("method", PLAIN)
def test_plain_uploads(tmp_path, method, dtype, tolerance):
    training = training_of(*PLAIN[method], f"dtype={dtype}")
    _, _, here = in_process(training, tmp_path / "here")
    _, _, there, _ = over_nodes(training, tmp_path / "there")
    same(here, there, tolerance)


DISTRIBUTED = ("method=ddp_fedavg", "transport=masks", "clip_norm=1", "sigma=1", "population=12", "cohort=10")


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-10)])
def test_distributed_noise_under_masks(tmp_path, dtype, tolerance):
    training = training_of(*DISTRIBUTED, f"dtype={dtype}")
    _, _, here = in_process(training, tmp_path / "here")
    _, _, there, _ = over_nodes(training, tmp_path / "there")
    same(here, there, tolerance)


def test_weighted_means_under_masks_with_clients_that_drop_out(tmp_path):
    training = training_of("method=fedavg", "transport=masks", "transport.dropout=0.2", "population=12", "cohort=10")
    _, _, here = in_process(training, tmp_path / "here")
    _, _, there, _ = over_nodes(training, tmp_path / "there")
    same(here, there, 1e-6)
    one, other = ([e["masks"]["dropped"] for e in f.read_events()] for f in (here, there))
    assert one == other and any(one)


@pytest.mark.parametrize("perturb", ["weights", "delta"])
@pytest.mark.parametrize("mechanism", ["two_point", "hybrid"])
def test_ldp_fl_with_a_shuffler_on_a_node(tmp_path, mechanism, perturb):
    settings = ("method=ldp_fl", "transport=shuffle", "privacy.epsilon=2", f"mechanism={mechanism}", "split=layer")
    training = training_of(*settings, f"perturb={perturb}")
    _, _, here = in_process(training, tmp_path / "here")
    _, _, there, grid = over_nodes(training, tmp_path / "there")
    same(here, there, 1e-6)
    assert {kind for kind, _, _ in grid.seen} == {"query.hello", "query.open", "train", "query.shuffle"}


def test_an_encrypted_sum_with_both_servers_on_nodes(tmp_path):
    require("tenseal")
    write(deal(Parameters(4, 16.0)), tmp_path / "keys")
    training = training_of("method=fedavg", "transport=he", f"transport.keys={tmp_path / 'keys'}", "rounds=2")
    _, _, here = in_process(training, tmp_path / "here")
    grid = grid_for(training)
    for context in grid.contexts.values():
        if "role" in context.node_config:
            context.node_config["keys"] = str(tmp_path / "keys")
    _, _, there, _ = over_nodes(training, tmp_path / "there", grid)
    same(here, there, 1e-5)  # floods differ
    assert there.read_events()[0]["he"]["arrived"] == 4


@pytest.mark.parametrize("method", ["fedavg", "dp_fedavg_central", "scaffold"])
def test_poisson_cohorts_to_which_nobody_may_come(tmp_path, method):
    training = training_of(*PLAIN[method], "selection=poisson", "cohort=1", "rounds=6", "seed=3")
    _, _, here = in_process(training, tmp_path / "here")
    _, _, there, _ = over_nodes(training, tmp_path / "there")
    same(here, there, 1e-6)
    assert any(not event["clients"] for event in there.read_events())


def test_statistics_of_normalisation_layers_and_momentum_at_clients(tmp_path, monkeypatch):
    (tmp_path / "normal_nets.py").write_text(
        "import torch\n"
        "def net(input_shape, classes):\n"
        "    parts = torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, classes)\n"
        "    return torch.nn.Sequential(*parts)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = ("method=fedavg", "model=normal_nets:net", "client_momentum=0.5", "server_momentum=0.5")
    _, _, here = in_process(training_of(*settings), tmp_path / "here")
    _, _, there, _ = over_nodes(training_of(*settings), tmp_path / "there")
    same(here, there, 1e-6)


@pytest.mark.slow
def test_noise_that_differs_by_client(tmp_path):
    training = training_of("method=dp_fedavg_local", "clip_norm=1", "privacy.epsilon=20", "data.partition=quantity")
    assert isinstance(training.sigma, PerClient)
    _, _, here = in_process(training, tmp_path / "here")
    _, _, there, _ = over_nodes(training, tmp_path / "there")
    same(here, there, 1e-6)

"""The same method and seed give the same model and the same ledger, in process and over nodes."""

import pytest
from tests.flower.common import in_process, over_nodes, same, training_of
from tests.support import require

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

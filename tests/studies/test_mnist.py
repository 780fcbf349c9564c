"""MNIST at the scale that papers report; minutes, so behind the slow marker."""

import pytest
from tests.support import DATA

import fedveil

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mnist,
    pytest.mark.skipif(DATA is None, reason="FEDVEIL_DATA does not name a folder with mnist/"),
]


def test_cnn_on_100_iid_clients_passes_98_percent_in_30_rounds(tmp_path):
    result = fedveil.run(
        "evaluate.every=5",
        "stop.accuracy=0.981",
        data="mnist",
        population=100,
        cohort=10,
        model="cnn",
        rounds=30,
        batch=10,
        lr=0.1,
        out=tmp_path / "run",
        threads=1,
    )
    assert result.summary["best_accuracy"] > 0.98

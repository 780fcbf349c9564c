"""What privacy costs: the best private method of the study on digits against federated averaging of the same model."""

import json

import pytest
from experiments.dp_methods.grid import ENTRIES, FULL, cell

import fedveil

ROWS = {entry.label: entry for entry in ENTRIES}
BEST, CEILING = ("dp_fedavg_local/step_noise", 4.0), ("fedavg", 16.0)
"""Rows of docs/results/dp-methods.md (digits, Dirichlet 0.5, epsilon 8), with the learning rates tuned there."""


@pytest.mark.timeout(120)
def test_records_are_protected_from_the_server_within_six_points_of_no_privacy(tmp_path):
    results = []
    for label, lr in (BEST, CEILING):
        settings = json.loads(cell(FULL, ROWS[label], "dirichlet 0.5", 8.0, lr, 0).settings)
        assert (settings["data"]["name"], settings["data"]["alpha"], settings["population"]) == ("digits", 0.5, 20)
        results.append(fedveil.run(out=tmp_path / str(lr), evaluate={"every": 60}, threads=1, **settings))
    private, ceiling = results
    proved = {(r.observer, r.unit): r for r in private.statement.rows if r.status == "proved"}
    assert 7.9 < proved["server", "record"].epsilon <= 8.0
    assert proved["server", "record"].delta == 1e-5
    assert private.summary["rounds"] == ceiling.summary["rounds"]
    assert ceiling.accuracy >= 0.94
    assert private.accuracy >= ceiling.accuracy - 0.06

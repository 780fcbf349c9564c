"""The study of attacks: what it replays is what the product does, and its page is made of results alone."""

import json

import numpy as np
import torch
from experiments.robust import detection, page
from experiments.robust.trajectory import CALIBRATION, ROUNDS, _row

from fedveil.aggregate.controllers import Adaptive
from fedveil.core.flat import Layout
from fedveil.core.signal import Signal
from fedveil.core.stage import Context


def uploads(rounds=ROUNDS, seed=0):
    """Rounds of ten clients that drift, and jump once after the calibration phase."""
    rng, common = np.random.default_rng(seed), np.ones(40)
    for t in range(rounds):
        common = common + 0.02 * rng.normal(size=40)
        scatter = 1.0 + 0.002 * t + (0.6 if CALIBRATION + 20 < t < CALIBRATION + 30 else 0.0)
        yield torch.from_numpy(common + scatter * rng.normal(size=(10, 40)))


def test_the_replayed_controller_alarms_when_the_controller_does():
    rule, previous, rows, alarms = Adaptive(momentum=0.9), None, [], []
    memory = rule.init()
    for number, x in enumerate(uploads(), start=1):
        ctx = Context(number, Layout(("w",), ((40,),)), list(range(10)), [])
        ctx.previous = None if previous is None else previous[None, :]
        _, memory = rule.choose(memory, Signal(x), ctx)
        rows.append(_row(x, previous))
        if number > CALIBRATION:
            alarms.append(ctx.log["detector"]["alarm"])
        previous = x.mean(0)
    clean = [detection.measured(row, 10) for row in rows]
    table = torch.stack([m.tensor() for m in clean])
    assert 0 < np.mean(alarms) < 1
    assert detection.alarmed(clean, table) == np.mean(alarms)
    scored = memory["scores"][~memory["scores"].isnan()].tolist()
    assert detection.thresholds(scored) == tuple(memory["thresholds"].tolist())


def test_false_alarms_and_auc_are_counted_by_hand():
    calibration = [float(i) for i in range(100)]  # thresholds 95 and 99
    one = detection.Scores(
        0.5, 1, calibration, [1.0, 96.0, 97.0, 200.0], {("zero", f): [97.0, 300.0] for f in (1, 2, 4)}
    )
    assert detection.thresholds(calibration) == (95.0, 99.0)
    assert detection.false_alarms([one]) == (0.75, 0.25)
    assert detection.aucs([one]) == {"zero": {0.5: (2.5 + 4) / 8}}


def test_a_page_without_results_says_so(tmp_path):
    page.write_page(tmp_path, tmp_path / "robust.md")
    text = (tmp_path / "robust.md").read_text()
    assert text.count("Not measured yet.") == 3 and "| met |" not in text


def test_goals_are_judged_by_the_numbers(tmp_path):
    def cell(attack, rule, accuracy):
        kept = {"attack": attack, "aggregate": rule, "privacy": "none", "runs": 3, "accuracy": accuracy}
        return kept | {"least": accuracy, "most": accuracy, "epsilon": None, "spread": None, "detection": None}

    table = {"mean": 0.3, "krum": 0.55, "source": 0.2, "centered_clipping": 0.7, "adaptive": 0.71}
    cells = [cell(a, r, v if a == "scaling" else 0.8) for a in ("none", "scaling") for r, v in table.items()]
    worst = [{"privacy": "none", "aggregate": r, "attack": "scaling", "accuracy": v} for r, v in table.items()]
    summary = {"attacks": ["none", "scaling"], "aggregates": list(table), "budgets": ["none"], "seeds": [0, 1, 2]}
    (tmp_path / "clean").mkdir()
    (tmp_path / "clean" / "matrix.json").write_text(json.dumps(summary | {"cells": cells, "worst": worst}))
    page.write_page(tmp_path, tmp_path / "robust.md")
    text = (tmp_path / "robust.md").read_text()
    assert "| worst cell above that of mean by | 0.410 | at least 0.2 | met |" in text
    assert "| worst cell above that of krum by | 0.160 | at least 0.2 | **missed** |" in text
    assert "| clean accuracy away from mean by | 0.000 | at most 0.01 | met |" in text

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONFIG = """\
method: {name: fedavg, server_lr: 1.0}
data: {name: digits, partition: dirichlet, alpha: 0.3}
model: mlp
rounds: 30
seed: 7
note: "<script>alert(1)</script>"
overrides: [method=fedavg, data=digits, 'note=<script>alert(1)</script>']
"""


def event(number: int) -> dict[str, Any]:
    evaluated = number % 3 != 2
    accuracy = 1 - 0.8 * math.exp(-number / 8)
    each = {"mean": accuracy - 0.03, "std": 0.05, "worst10": accuracy - 0.15}
    train = {
        "mean": 2 * math.exp(-number / 9),
        "min": math.exp(-number / 9),
        "max": 3 * math.exp(-number / 9),
    }
    empty = number == 5
    return {
        "round": number,
        "clients": [] if empty else [1, 3],
        "accuracy": accuracy if evaluated else None,
        "loss": 2.2 * math.exp(-number / 10) if evaluated else None,
        "client_accuracy": each if evaluated else None,
        "train_loss": None if empty else train,
        "move_norm": None if empty else {"mean": 1.2, "min": 0.7, "max": 1.9 + 1 / number},
        "steps": None if empty else {"min": 4, "max": 9},
        "bytes_up": 120_000,
        "bytes_down": 150_000 + number,
        "seconds": 0.21 + 0.01 * (number % 4),
        "detector": {
            "name": "calibrated",
            "score": None if number < 4 else 1.0 + number % 5,
            "theta1": 3.7,
            "theta2": 4.3,
            "rule": "centered_clipping" if number < 4 or number % 5 > 2 else "mean",
            "alarm": number >= 4 and number % 5 > 2,
            "why": "<b>alarm</b>: the score is above theta1",
            "values": {"D2": 0.1},
        },
        "excluded": [{"client": 2, "why": "move: not finite"}] if number % 2 else [],
        "epsilon": {
            "epsilon": 0.72 * number**0.5,
            "observer": "public",
            "unit": "record",
            "budget": 8.0,
            "delta": 1e-5,
        },
    }


def statement() -> dict[str, Any]:
    rest = {"mechanism": "Gaussian, clipped", "sampling": "Poisson 0.1", "accountant": "PLD"}
    none = {"mechanism": "none", "sampling": "none", "accountant": "none", "epsilon": None, "delta": None}
    rows = [
        {"observer": "public", "unit": "record", "epsilon": 3.87, "delta": 1e-5, "status": "proved", **rest},
        {"observer": "public", "unit": "client", "epsilon": 42.0, "delta": 1e-5, "status": "nominal", **rest},
        {"observer": "server", "unit": "record", "status": "none", **none},
        {"observer": "server", "unit": "client", "status": "none", "note": "uploads are plain", **none},
    ]
    return {"delta": 1e-5, "rows": rows, "notes": ["Sizes of the clients are public."]}


SUMMARY = {
    "method": "fedavg",
    "data": "digits",
    "rounds": 30,
    "accuracy": 0.934,
    "loss": 0.217,
    "worst10_accuracy": 0.81,
    "seconds": 75.2,
    "seconds_per_round": 2.5,
    "engine": "sequential",
    "statement": "nothing",
    "status": "finished",
    "attack": {"name": "alie", "share": 0.2, "onset": 3, "clients": [1, 4], "z": 1.5},
}


def people(count: int, classes: int) -> dict[str, Any]:
    draw = random.Random(3)
    counts = [[int(60 * draw.random() ** 4) for _ in range(classes)] for _ in range(count)]
    return {
        "names": ["<script>alert(1)</script>", *(f"hospital {i}" for i in range(1, count))] if count <= 200 else None,
        "sizes": [sum(row) for row in counts],
        "accuracy": [None if i == 2 else min(1.0, 0.7 + 0.3 * draw.random()) for i in range(count)],
        "label_counts": counts,
        "facts": {"source": "scikit-learn", "partition": {"kind": "dirichlet", "alpha": 0.3}},
    }


def build(folder: Path, *, rounds: int = 30, clients: int = 12, classes: int = 10) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG, "utf-8")
    lines = [json.dumps(event(number)) for number in range(1, rounds + 1)]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    files = {"clients": people(clients, classes), "statement": statement(), "summary": SUMMARY}
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value), "utf-8")
    return folder


@pytest.fixture
def run_folder(tmp_path: Path) -> Callable[..., Path]:
    """Builds a run folder; its size is up to the test."""
    return lambda **shape: build(tmp_path / "20250101-fedavg", **shape)

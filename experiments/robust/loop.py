"""The closed loop: seven attacks against five rules, without privacy and at epsilon 8, as two matrices."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.robust.task import pooled
from fedveil.runtime.matrix import Matrix, lay_out

ATTACKS = ("none", "sign_flip", "gaussian:factor=10", "label_flip", "alie", "ipm:factor=2", "scaling", "min_max")
RULES = ("mean", "krum", "centered_clipping", "source", "adaptive")
SEEDS = (0, 1, 2)
ONSET, ROUNDS = 126, 190
"""The calibration phase of the default controller is 125 rounds, declared free of attackers."""

PRIVATE = ("batch=128", "clip_norm=1", "privacy.delta=1e-5")


def data_file(root: Path) -> Path:
    """The task's sample as a file, so that every run names its data."""
    path = root / "fashion_mnist_14.npz"
    if not path.is_file():
        x, y, test_x, test_y = (part.numpy() for part in pooled())
        root.mkdir(parents=True, exist_ok=True)
        np.savez(path, x=x, y=y, test_x=test_x, test_y=test_y)
    return path


def matrix(root: Path, budget: str, *, quick: bool = False) -> Matrix:
    """One budget's cells: 2 of 10 clients attack from the end of the calibration phase on."""
    attacks, rules = (ATTACKS[:1] + ATTACKS[-2:], RULES[-1:]) if quick else (ATTACKS, RULES)
    seeds = SEEDS[:1] if quick else SEEDS
    shared = [
        f"data={data_file(root).absolute()}", "data.test_x=test_x", "data.test_y=test_y", "data.partition=dirichlet",
        "data.alpha=0.5", "data.min_samples=64", "data.holdout=0", "population=10",
        "model=experiments.robust.task:model",
        "weights=uniform", "client_momentum=0.9", "steps=5", "batch=32", "lr=0.1", "engine=fold", "threads=1",
        f"rounds={ROUNDS}", "declared_f=2", "attack.share=0.2", f"attack.onset={ONSET}",
    ]  # fmt: skip
    if budget != "none":
        shared.remove("weights=uniform")  # the private method has no other
    axes = [f"attack={','.join(attacks)}", f"aggregate={','.join(rules)}", f"privacy={budget}"]
    return lay_out([*axes, f"seed={','.join(map(str, seeds))}", *shared], under_privacy=PRIVATE)

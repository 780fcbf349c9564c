"""Train on data of your own: one pair of arrays per client, or one table with a column that names the client.

    python examples/own_data.py

A file needs no code at all: ``fedveil run data=patients.csv data.label=sick data.client=hospital``.
"""

from __future__ import annotations

import numpy as np

import fedveil


def hospital(rng: np.random.Generator, patients: int, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """Made-up measurements; every hospital sees somewhat different patients."""
    x = rng.normal(shift, 1.0, size=(patients, 6)).astype(np.float32)
    risk = x @ np.array([1.0, -2.0, 0.5, 0.0, 1.5, -1.0]) + rng.normal(0, 0.5, patients)
    return x, (risk > 0).astype(np.int64)


def main() -> None:
    rng = np.random.default_rng(7)
    hospitals = [hospital(rng, patients, shift) for patients, shift in ((300, 0.0), (120, 0.5), (80, -0.5))]
    data = fedveil.data.from_clients(hospitals, test=hospital(rng, 500, 0.0), classes=2, name="hospitals")
    result = fedveil.run(method="fedavg", model="logistic", data=data, rounds=20, cohort=3, lr=0.3)
    print(f"accuracy {result.accuracy:.3f} on patients that nobody trained on")

    # Or: one table, and a column that says whose row it is.
    x = np.concatenate([h[0] for h in hospitals])
    y = np.concatenate([h[1] for h in hospitals])
    owner = np.repeat([0, 1, 2], [len(h[1]) for h in hospitals])
    data = fedveil.data.from_arrays(x, y, clients=owner, classes=2, name="hospitals")
    result = fedveil.run(method="scaffold", model="logistic", data=data, rounds=20, cohort=3, lr=0.3)
    print(f"accuracy {result.accuracy:.3f} on a fifth of the rows, held out")


if __name__ == "__main__":
    main()

"""A made-up population of any size: each client's data is drawn again whenever it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedveil.core.errors import Refused, fraction, not_negative, one_of
from fedveil.core.federation import Examples
from fedveil.core.streams import stream
from fedveil.data.raw import FloatArray, IntArray

SHAPES = ("linear", "image")
COUNTED = 1000
"""Populations up to this size have their label counts worked out; beyond, that is not cheap."""


class Synthetic:
    """Classification drawn per client from ``(seed, client)``; nothing is stored for anybody.

    shape
        ``linear``: x ~ N(h v_k, I) with a direction v_k ~ N(0, I) of the client's own, and y the argmax of
        one linear map shared by all, plus noise. ``image``: a template of ``size`` x ``size`` pixels per
        class plus noise.
    heterogeneity
        h >= 0, how much clients differ. In ``linear`` it shifts the inputs; in ``image`` it skews the labels,
        which follow Dirichlet(1/h), uniform for h = 0.
    samples, holdout, test_samples
        training examples of each client, the share of that number drawn on top to hold out, size of the test
        set; each test example comes from a client of its own outside the population.
    noise
        standard deviation of the noise on the scores (``linear``, of unit variance; 0.1 by default) or on
        the pixels (``image``; 0.5 by default).

    >>> data = Synthetic(seed=0, population=100_000, samples=20)
    >>> data.train(99_999).x.shape, data.sizes.shape
    (torch.Size([20, 64]), (100000,))
    >>> bool((data.train(5).x == data.train(5).x).all())
    True
    """

    private_statistics: str | None = None

    def __init__(
        self,
        *,
        seed: int = 0,
        population: int = 100,
        samples: int = 50,
        features: int = 64,
        classes: int = 10,
        heterogeneity: float = 0.5,
        shape: str = "linear",
        size: int = 8,
        noise: float | None = None,
        holdout: float = 0.1,
        test_samples: int = 2000,
    ) -> None:
        one_of("shape", shape, SHAPES)
        noise = (0.1 if shape == "linear" else 0.5) if noise is None else noise
        not_negative(heterogeneity=heterogeneity, noise=noise)
        fraction(holdout=holdout)
        whole = {"population": population, "samples": samples, "features": features, "size": size}
        for name, value in (whole | {"test_samples": test_samples}).items():
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise Refused(f"{name}: {value!r} is not allowed; give a whole number from 1 up")
        if classes < 2:
            raise Refused(f"classes: {classes} is not enough to tell apart; give 2 or more")
        self.name = "synthetic"
        self.classes = classes
        self.input_shape: tuple[int, ...] = (features,) if shape == "linear" else (1, size, size)
        self.sizes: IntArray = np.full(population, samples, dtype=np.int64)
        self._seed, self._samples, self._shape = seed, samples, shape
        self._heterogeneity, self._noise = heterogeneity, noise
        self._held = max(1, round(samples * holdout)) if holdout > 0 else 0
        width = int(np.prod(self.input_shape))
        # A linear map with scores of unit variance, or templates of norm 1.6 whatever the image size.
        spread = width**-0.5 * (1.0 if shape == "linear" else 1.6)
        self._map: FloatArray = stream(seed, "synthetic", "map").normal(0.0, spread, (width, classes))
        self.test = self._test(test_samples)

    @property
    def population(self) -> int:
        """Number of clients."""
        return len(self.sizes)

    def train(self, client: int) -> Examples:
        """A client's training examples, the same every time."""
        return self._client(client, "train", self._samples)

    def holdout(self, client: int) -> Examples:
        """A client's own held-out examples, the same every time."""
        return self._client(client, "holdout", self._held)

    def client_names(self) -> Sequence[str] | None:
        """Nobody has a name."""
        return None

    def label_counts(self) -> IntArray | None:
        """Training examples per client and class; None for more than ``COUNTED`` clients."""
        if self.population > COUNTED:
            return None
        labels = (self.train(client).y.numpy() for client in range(self.population))
        return np.stack([np.bincount(y, minlength=self.classes) for y in labels])

    def facts(self) -> Mapping[str, Any]:
        """The settings of the draw."""
        return {
            "source": self.name,
            "population": self.population,
            "classes": self.classes,
            "input_shape": list(self.input_shape),
            "partition": "synthetic",
            "shape": self._shape,
            "heterogeneity": self._heterogeneity,
            "noise": self._noise,
            "seed": self._seed,
            "train_rows": self.population * self._samples,
            "holdout_rows": self.population * self._held,
            "test_rows": len(self.test),
            "test_set": "drawn",
            "smallest_client": self._samples,
            "median_client": float(self._samples),
            "largest_client": self._samples,
            "private_statistics": None,
        }

    def _client(self, client: int, part: str, rows: int) -> Examples:
        if not 0 <= client < self.population:
            raise IndexError(f"client {client} does not exist; clients are numbered 0 to {self.population - 1}")
        own = self._character(1, stream(self._seed, "synthetic", "client", int(client)))
        return self._draw(np.repeat(own, rows, axis=0), stream(self._seed, "synthetic", part, int(client)))

    def _test(self, rows: int) -> Examples:
        rng = stream(self._seed, "synthetic", "test")
        return self._draw(self._character(rows, rng), rng)

    def _character(self, clients: int, rng: np.random.Generator) -> FloatArray:
        """What sets a client apart: the shift of its inputs, or the cumulated shares of its labels."""
        if self._shape == "linear":
            return self._heterogeneity * rng.normal(size=(clients, len(self._map)))
        if self._heterogeneity == 0:
            shares = np.full((clients, self.classes), 1 / self.classes)
        else:
            shares = rng.dirichlet(np.full(self.classes, 1 / self._heterogeneity), size=clients)
        return np.cumsum(shares, axis=1)

    def _draw(self, character: FloatArray, rng: np.random.Generator) -> Examples:
        """One example per row of ``character``."""
        rows, width = len(character), len(self._map)
        x = rng.standard_normal((rows, width), dtype=np.float32)
        if self._shape == "linear":
            x += character.astype(np.float32)
            scores = x @ self._map.astype(np.float32)
            y = np.argmax(scores + self._noise * rng.normal(size=scores.shape), axis=1)
        else:
            y = np.minimum((character < rng.random((rows, 1))).sum(axis=1), self.classes - 1)
            x = self._map.T.astype(np.float32)[y] + np.float32(self._noise) * x
        return Examples(torch.from_numpy(x).view(rows, *self.input_shape), torch.from_numpy(y.astype(np.int64)))

"""Data sets that scikit-learn carries: nothing to download, good for a first run and for tests."""

from __future__ import annotations

import numpy as np
import torch

from fedveil.core.errors import one_of
from fedveil.data.raw import FloatArray, Raw
from fedveil.data.scale import SCALINGS, between, private_statistics, standard

# Public ranges of the breast cancer features: round numbers that hold for cell nuclei in such an image,
# written down here and never computed from the rows. One row per measurement: highest mean and worst value,
# highest standard error.
NUCLEUS_BOUNDS: dict[str, tuple[float, float]] = {
    "radius": (40.0, 4.0),
    "texture": (50.0, 6.0),
    "perimeter": (300.0, 30.0),
    "area": (5000.0, 600.0),
    "smoothness": (0.3, 0.05),
    "compactness": (1.5, 0.2),
    "concavity": (1.5, 0.5),
    "concave points": (0.4, 0.1),
    "symmetry": (0.8, 0.1),
    "fractal dimension": (0.3, 0.05),
}


def digits() -> Raw:
    """Hand-written digits, 1,797 images of 8x8, scaled from the public range 0..16 to 0..1.

    >>> raw = digits()
    >>> raw.x.shape, raw.classes, raw.private_statistics
    (torch.Size([1797, 1, 8, 8]), 10, None)
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return Raw(
        name="digits",
        x=torch.from_numpy((x / 16).astype(np.float32)).view(-1, 1, 8, 8),
        y=torch.from_numpy(y.astype(np.int64)),
        classes=10,
    )


def breast_cancer(*, scaling: str = "bounds") -> Raw:
    """Breast cancer (Wisconsin, diagnostic), 569 tumours with 30 features: class 0 malignant, 1 benign.

    ``bounds`` scales by public ranges and costs nothing; ``pooled`` standardises by the mean and standard
    deviation of all rows, which is not private and is declared; ``none`` keeps the measured units.

    >>> breast_cancer().private_statistics is None, breast_cancer(scaling="pooled").private_statistics is None
    (True, False)
    """
    from sklearn.datasets import load_breast_cancer

    one_of("scaling", scaling, SCALINGS)
    x, y = load_breast_cancer(return_X_y=True)
    if scaling == "bounds":
        x = between(x, 0.0, _breast_cancer_highs())
    elif scaling == "pooled":
        x = np.stack([standard(column) for column in x.T], axis=1)
    return Raw(
        name="breast_cancer",
        x=torch.from_numpy(x.astype(np.float32)),
        y=torch.from_numpy(y.astype(np.int64)),
        classes=2,
        private_statistics=private_statistics(scaling),
    )


def _breast_cancer_highs() -> FloatArray:
    """Upper bounds in the order of the columns: ten means, ten standard errors, ten worst values."""
    values = np.array(list(NUCLEUS_BOUNDS.values()))
    return np.concatenate([values[:, 0], values[:, 1], values[:, 0]])

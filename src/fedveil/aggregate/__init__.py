"""Rules that make one vector of many, each also a pure function on a ``(clients, parameters)`` tensor.

>>> import torch
>>> from fedveil.aggregate import krum
>>> krum(torch.tensor([[1.0, 1.0], [1.0, 2.0], [1.1, 1.5], [0.9, 1.4], [99.0, 0.0]]), byzantine=1).tolist()
[0.8999999761581421, 1.399999976158142]
"""

from fedveil.aggregate.before import bucketing, nearest_neighbour_mixing
from fedveil.aggregate.bulyan import bulyan
from fedveil.aggregate.centered_clipping import centered_clipping
from fedveil.aggregate.geometric_median import geometric_median
from fedveil.aggregate.krum import krum, multi_krum
from fedveil.aggregate.mda import mda
from fedveil.aggregate.norms import clip_norms
from fedveil.aggregate.order import median, trimmed_mean

__all__ = [
    "bucketing",
    "bulyan",
    "centered_clipping",
    "clip_norms",
    "geometric_median",
    "krum",
    "mda",
    "median",
    "multi_krum",
    "nearest_neighbour_mixing",
    "trimmed_mean",
]

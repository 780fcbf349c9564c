"""Data sets, partitions and cohorts: who holds which examples, and who takes part in a round."""

from fedveil.data.arrays import from_arrays, from_clients
from fedveil.data.pooled import Pooled
from fedveil.data.sources import SOURCES, load
from fedveil.data.synthetic import Synthetic

__all__ = ["SOURCES", "Pooled", "Synthetic", "from_arrays", "from_clients", "load"]

"""All data sets by name, and ``load``, which makes a federation of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedveil.core.arguments import fit, known, required, settings
from fedveil.core.errors import Refused, one_of
from fedveil.core.federation import Federation
from fedveil.data.bundled import breast_cancer, digits
from fedveil.data.csv_file import csv
from fedveil.data.federate import federate
from fedveil.data.hospitals import heart_disease
from fedveil.data.hub import huggingface
from fedveil.data.idx import fashion_mnist, mnist
from fedveil.data.npz_file import npz
from fedveil.data.raw import Raw
from fedveil.data.synthetic import Synthetic


@dataclass(frozen=True)
class Source:
    """One data set: the function that loads it, a line about it, and what it needs to be there."""

    function: Callable[..., Raw] | Callable[..., Federation]
    about: str
    needs: str = "nothing"


SOURCES: dict[str, Source] = {
    "digits": Source(digits, "hand-written digits, 1,797 images of 8x8, 10 classes"),
    "breast_cancer": Source(breast_cancer, "tumours, 569 rows of 30 features, 2 classes"),
    "mnist": Source(mnist, "hand-written digits, 70,000 images of 28x28, 10 classes", "files under data.root"),
    "fashion_mnist": Source(fashion_mnist, "clothing, 70,000 images of 28x28, 10 classes", "files under data.root"),
    "heart_disease": Source(heart_disease, "920 patients of 4 hospitals, 2 classes", "files under data.root"),
    "npz": Source(npz, "your own arrays", "an npz file, data.path"),
    "csv": Source(csv, "your own table", "a CSV file, data.path and data.label"),
    "huggingface": Source(huggingface, "any data set of the hub", "fedveil[flower], the network, data.dataset"),
    "synthetic": Source(Synthetic, "made-up clients, as many as you like"),
}


def load(source: str, *, seed: int, population: int | None = None, root: str | None = None, **given: Any) -> Federation:
    """A federation from a source's name and its settings; misspelt settings and wrong types are refused.

    >>> load("digits", seed=0, population=10, partition="iid").population
    10
    """
    one_of("data", source, SOURCES)
    function = SOURCES[source].function
    own = settings(function)
    sharing = {} if function is Synthetic else settings(federate)
    hints = own | sharing
    if root is not None:
        given["root"] = root
    known(f"the data source {source!r}", given, hints)
    for name in required(function):
        if given.get(name) is None:
            raise Refused(f"{name}: the data source {source!r} needs it; give data.{name}=...")
    fit("seed", seed, int)
    fit("population", population, int | None)
    given = {name: fit(name, value, hints[name]) for name, value in given.items()}
    if function is Synthetic:
        people: dict[str, Any] = {} if population is None else {"population": population}
        return Synthetic(seed=seed, **people, **given)
    raw = function(**{name: value for name, value in given.items() if name in own})
    assert isinstance(raw, Raw)
    shares = {name: value for name, value in given.items() if name in sharing}
    return federate(raw, seed=seed, population=population, **shares)

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import fedveil
from fedveil.core.arguments import required, settings
from fedveil.core.errors import Refused
from fedveil.data import SOURCES, Pooled, Synthetic, load
from fedveil.data.federate import federate

CONF = Path(fedveil.__file__).parent / "conf"


def composed(source: str, *overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose(overrides=[f"+data={source}", *overrides])
    plain = OmegaConf.to_container(config.data, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_has_a_yaml_with_just_its_settings_and_defaults(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDVEIL_DATA", raising=False)
    found = composed(source)
    function = SOURCES[source].function
    assert found.pop("source") == source
    expected = set(settings(function))
    if function is not Synthetic:
        expected |= set(settings(federate))
    assert set(found) == expected
    if source == "csv":
        assert found.pop("missing") == ["?", "-9", ""]  # null would mean the same
    defaults = {}
    for part in (federate, function):
        import inspect

        for name, p in inspect.signature(part).parameters.items():
            defaults[name] = None if p.default is p.empty else p.default
    assert found == {name: defaults[name] for name in found}


@pytest.mark.parametrize("source", ["digits", "breast_cancer", "synthetic"])
def test_a_yaml_loads_as_it_stands(source: str) -> None:
    data = load(**composed(source), seed=0, population=15)
    assert data.population == 15
    assert data.facts()["source"] == source


def test_overrides_reach_the_partition() -> None:
    found = composed("digits", "data.partition=dirichlet", "data.alpha=1", "data.holdout=0.2")
    facts = load(**found, seed=0).facts()
    assert (facts["partition"], facts["alpha"], facts["holdout"], facts["population"]) == ("dirichlet", 1, 0.2, 20)


def test_the_root_comes_from_the_environment(tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDVEIL_DATA", str(tiny_mnist))
    assert load(**composed("mnist"), seed=0, population=4).population == 4


def test_what_a_source_needs_is_said() -> None:
    assert all(source.about and source.needs for source in SOURCES.values())
    assert required(SOURCES["csv"].function) == ["path", "label"]


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        ("digit", {}, "data: 'digit' is unknown; did you mean 'digits'"),
        ("digits", {"alpa": 1}, "alpa: the data source 'digits' has no such setting; did you mean 'alpha'"),
        ("digits", {"scaling": "pooled"}, "scaling: the data source 'digits' has no such setting"),
        ("digits", {"root": "/"}, "root: the data source 'digits' has no such setting"),
        ("synthetic", {"alpha": 0.5}, "alpha: the data source 'synthetic' has no such setting"),
        ("digits", {"partition": "dirichlet", "alpha": "0.5"}, "alpha: '0.5' is not allowed; give a number or null"),
        ("digits", {"partition": 3}, "partition: 3 is not allowed; give text or null"),
        ("digits", {"partition": "shards", "shards": 2.5}, "shards: 2.5 is not allowed; give a whole number or null"),
        ("digits", {"partition": "shards", "shards": True}, "shards: True is not allowed"),
        ("digits", {"holdout": None}, "holdout: null is not allowed; give a number"),
        ("digits", {"population": "ten"}, "population: 'ten' is not allowed; give a whole number or null"),
        ("digits", {"seed": 1.5}, "seed: 1.5 is not allowed"),
        ("csv", {"path": None, "label": "y"}, "path: the data source 'csv' needs it; give data.path="),
        ("csv", {"path": "a"}, "label: the data source 'csv' needs it; give data.label="),
        ("csv", {"path": "a", "label": "y", "categorical": "z"}, r"give a list \(each text\) or null"),
        ("csv", {"path": "a", "label": "y", "bounds": {"a": 3}}, "give a mapping from text to a list"),
        ("npz", {"path": "a", "tokens": 1}, "tokens: 1 is not allowed; give true or false"),
        ("huggingface", {"x": 3, "dataset": "a"}, r"x: 3 is not allowed; give text or a list \(each text\)"),
    ],
)
def test_load_refusals(source: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        load(source, **({"seed": 0} | given))


def test_loading_by_name_is_loading_by_hand() -> None:
    data = load("digits", seed=3, population=10, partition="shards")
    assert isinstance(data, Pooled)
    same = federate(SOURCES["digits"].function(), seed=3, population=10, partition="shards")  # type: ignore[arg-type]
    assert data.pool.x.equal(same.pool.x)


def test_importing_the_room_imports_no_optional_or_slow_library() -> None:
    slow = ("flwr_datasets", "datasets", "sklearn", "pandas")
    code = f"import sys, fedveil.data; print([m for m in {slow} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

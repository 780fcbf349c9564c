"""Overrides in, a resolved configuration or one sentence out."""

import pytest

from fedveil.core.arguments import fit
from fedveil.core.errors import Refused
from fedveil.runtime.build import call
from fedveil.runtime.config import expand, options, resolve
from fedveil.runtime.settings import GROUPS, Settings


@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_of_every_group_resolves(group):
    for name in options(group):
        assert resolve([f"{group}={name}"])[group]


def test_defaults_are_valid_settings():
    settings = Settings.read(resolve([]))
    assert settings.rounds == 30
    assert settings.batching.local_epochs == 1


def test_values_reach_their_place():
    config = resolve(["rounds=5", "data.alpha=0.1", "data.partition=dirichlet", "stop.accuracy=0.9", "lr=1e-3"])
    assert (config["rounds"], config["data"]["alpha"], config["stop"]["accuracy"]) == (5, 0.1, 0.9)
    assert Settings.read(config).lr == 0.001


def test_a_method_setting_needs_no_prefix():
    assert resolve(["method=scaffold", "weights=examples"]) != resolve(["method=scaffold"])
    short, long = resolve(["weights=uniform"]), resolve(["method.weights=uniform"])
    assert short["method"] == long["method"]


def test_aliases():
    assert resolve(["global_lr=0.5"])["server_lr"] == 0.5


def test_import_paths_and_files_are_choices():
    assert resolve(["model=my.nets:Net"])["model"]["build"] == "my.nets:Net"
    assert resolve(["model=my.nets:Net", "model.width=3"])["model"]["width"] == 3
    assert resolve(["method=my.methods:best", "method.strength=2"])["method"]["strength"] == 2
    assert resolve(["data=my data.csv", "data.label=y"])["data"]["path"] == "my data.csv"


def test_the_beginning_of_a_name_suggests_all_that_go_on():
    with pytest.raises(Refused, match="did you mean 'dp_fedavg_central' or 'dp_fedavg_local'"):
        resolve(["method=dp_fedavg"])


@pytest.mark.parametrize("text", ["stop={pat:1}", "privacy={epsilon:1,dleta:1e-6}", "shrink.foo=1"])
def test_keys_of_a_group_are_known_to_it(text):
    with pytest.raises(Refused, match=r"(stop.pat|privacy.dleta|shrink.foo): there is no such setting; .*allowed: "):
        resolve(["method=dp_fed_stein", text])
    assert (
        resolve(["privacy={epsilon:1,delta:1e-6}"])["privacy"]
        == resolve(["privacy.epsilon=1", "privacy.delta=1e-6"])["privacy"]
    )


def test_the_last_of_two_values_counts():
    assert resolve(["rounds=1", "rounds=2"])["rounds"] == 2
    assert resolve(["method=scaffold", "method=fedavg"])["method"]["build"].endswith("fedavg")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method=scafold", "method: 'scafold' is unknown; did you mean 'scaffold'?"),
        ("data=digit", "data: 'digit' is unknown; did you mean 'digits'?"),
        ("roundz=3", "roundz: there is no such setting; did you mean 'rounds'?"),
        ("data.alfa=3", "data.alfa: there is no such setting; did you mean 'alpha'?"),
        ("method.wieghts=uniform", "method.wieghts: there is no such setting; did you mean 'weights'?"),
        ("stop.patients=3", "stop.patients: there is no such setting; did you mean 'patience'?"),
        ("a.b.c=3", "a.b.c: there is no such setting"),
        ("rounds", "'rounds': a setting is written name=value"),
        ("lr=[", "lr: '\\[' cannot be read as a value"),
        ("lr=0.1,0.2", "lr: several values were given for one run; add -m"),
        ("~lr", "a setting is written name=value"),
    ],
)
def test_mistakes_in_overrides(override, message):
    with pytest.raises(Refused, match=message):
        resolve([override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lr=-1", "lr: -1.0 is not a positive number"),
        ("lr=inf", "lr: inf is not a positive number"),
        ("lr=fast", "lr: 'fast' is not allowed; give a number"),
        ("rounds=0", "rounds: 0 is not a positive number"),
        ("rounds=2.5", "rounds: 2.5 is not allowed; give a whole number"),
        ("rounds=true", "rounds: True is not allowed; give a whole number"),
        ("momentum=1", "momentum: 1.0 is not a fraction"),
        ("weight_decay=-0.1", "weight_decay: -0.1 is not allowed"),
        ("selection=all", "selection: 'all' is unknown; allowed: fixed, poisson"),
        ("engine=warp", "engine: 'warp' is unknown"),
        ("dtype=int8", "dtype: 'int8' is unknown"),
        ("cohort=0", "cohort: 0 is not a positive number"),
        ("evaluate.every=0", "evaluate.every: 0 is not a positive number"),
        ("stop.accuracy=95", "stop.accuracy: 95.0 is not an accuracy"),
        ("stop.patience=0", "stop.patience: 0 is not a positive number"),
        ("seed=null", "seed: null is not allowed; give a whole number"),
    ],
)
def test_mistakes_in_values(override, message):
    with pytest.raises(Refused, match=message):
        Settings.read(resolve([override]))


def test_steps_and_epochs_together():
    with pytest.raises(Refused, match="exactly one"):
        Settings.read(resolve(["steps=3", "local_epochs=2"]))


def test_sweeps_expand_in_order():
    runs = expand(["method=fedavg,scaffold", "seed=range(3)", "rounds=2"])
    assert len(runs) == 6
    assert runs[4] == ["method=scaffold", "seed=1", "rounds=2"]


def test_builders_drop_nothing_in_silence():
    def build(*, strength: float, kind: str = "a") -> float:
        return strength

    assert call(build, "part", {"strength": 2}, {"unasked": 1}) == 2.0
    with pytest.raises(Refused, match="part.strenght: there is no such setting; did you mean 'strength'"):
        call(build, "part", {"strenght": 2}, {})
    with pytest.raises(Refused, match="part.strength: a value is required"):
        call(build, "part", {}, {})
    with pytest.raises(Refused, match="part.kind: 3 is not allowed; give text"):
        call(build, "part", {"strength": 1, "kind": 3}, {})


def test_fit_understands_unions():
    assert fit("x", None, int | None) is None
    assert fit("x", 3, int | None) == 3
    assert fit("x", 3, int | str) == 3
    assert fit("x", "a", int | str) == "a"
    with pytest.raises(Refused, match="x: 2.5 is not allowed; give a whole number or text"):
        fit("x", 2.5, int | str)

"""Robust rules from the command line, and what is refused before anything runs."""

import json

import pytest
from typer.testing import CliRunner

from fedveil.cli import app
from fedveil.core.errors import Refused
from fedveil.runtime.config import options

FEW = ["rounds=3", "model=logistic", "steps=2"]


def run(*arguments):
    done = CliRunner().invoke(app, ["run", *FEW, *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.mark.parametrize("name", options("aggregate"))
def test_every_rule_trains_from_the_command_line(tmp_path, name):
    run(f"aggregate={name}", "declared_f=1", f"out={tmp_path / 'r'}", "--quiet", "--json", str(tmp_path / "s.json"))
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["rounds"] == 3
    assert summary["accuracy"] > 0.2


@pytest.mark.parametrize("before", ["nnm", "bucketing", "[norm_bound,nnm] aggregate.norm_bound=1"])
def test_what_comes_before_a_rule_repeats_for_a_seed(tmp_path, before):
    hashes = set()
    for attempt in "ab":
        out = f"out={tmp_path / attempt}"
        run("aggregate=trimmed_mean", "declared_f=1", *f"aggregate.before={before}".split(), out, "-q")
        hashes.add(json.loads((tmp_path / attempt / "summary.json").read_text())["model_hash"])
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["aggregate=krum"], "declared_f: krum must know how many attackers to expect; give declared_f=1"),
        (["aggregate=krum", "declared_f=4"], "krum needs at least 11 uploads against 4 attackers, and there are 10"),
        (["aggregate=krum", "declared_f=-1"], "declared_f: -1 is no number of attackers"),
        (["aggregate=krum", "declared_f=1.5"], "declared_f: 1.5"),
        (["aggregate=krum", "declared_f=1", "weights=examples"], "counts every upload once.*set weights=uniform"),
        (["aggregate=median", "aggregate.before=nnm"], "declared_f: nnm must know"),
        (["aggregate=median", "aggregate.before=clip"], "aggregate.before: 'clip' is unknown"),
        (["aggregate=mda", "declared_f=9", "population=40", "cohort=40"], "mda tries every set of uploads"),
        (["aggregate=median", "aggregate.keep=3"], "keep: there is no such setting"),
        (["aggregate=multi_krum", "declared_f=2", "aggregate.keep=9"], "aggregate.keep: of 10 uploads 2 .*at most 8"),
        (["aggregate.norm_bound=1"], "aggregate.norm_bound: .*set aggregate.before=norm_bound, or leave it out"),
        (
            ["aggregate.before=norm_bound", "aggregate.norm_bound=1", "aggregate.bucket=3"],
            "aggregate.bucket: it belongs",
        ),
        (
            ["aggregate=krum", "declared_f=1", "method=dp_fedavg_central", "sigma=1"],
            "no bound.*aggregate.before=norm_bound",
        ),
        (
            ["aggregate=median", "method=dp_fedavg_central", "sigma=1", "selection=poisson"],
            "selection: it makes the number of clients a secret",
        ),
        (
            ["aggregate=median", "method=dp_fedavg_central", "sigma=1", "privacy.adjacency=add_remove"],
            "privacy.adjacency: it makes the number of clients a secret",
        ),
        (
            ["aggregate=median", "method=dp_fed_stein", "sigma=1", "algorithm_variant=last_noise_server_jse"],
            "shrink: the variance of the noise inside is unknown",
        ),
    ],
)
def test_mistakes_are_one_sentence(arguments, message, tmp_path):
    with pytest.raises(Refused, match=message):
        run(*arguments, f"out={tmp_path / 'r'}")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("rule", "bound"),
    [
        (["aggregate=trimmed_mean", "declared_f=2"], 0.5 / 6),
        (["aggregate=median"], 0.25),
        (["aggregate=krum", "declared_f=2", "aggregate.before=norm_bound", "aggregate.norm_bound=0.5"], 1.0),
    ],
)
def test_central_noise_is_measured_by_the_rule(tmp_path, rule, bound):
    run(*rule, "method=dp_fedavg_central", "clip_norm=0.5", "sigma=2", f"out={tmp_path / 'r'}", "-q")
    line = json.loads((tmp_path / "r" / "ledger.jsonl").read_text().splitlines()[0])
    (release,) = line["releases"]
    assert release["bound"] == pytest.approx(bound)
    assert release["noise_std"] == pytest.approx(2 * bound)


def test_noise_at_the_clients_needs_nothing_of_the_rule(tmp_path):
    run("aggregate=krum", "declared_f=2", "method=dp_fedavg_local", "sigma=1", f"out={tmp_path / 'r'}", "-q")
    rows = json.loads((tmp_path / "r" / "statement.json").read_text())["rows"]
    assert {(r["observer"], r["unit"]): r["status"] for r in rows}["server", "record"] == "proved"


def test_rounds_with_too_few_clients_come_to_nothing(tmp_path):
    run("aggregate=krum", "declared_f=3", "selection=poisson", "rounds=12", f"out={tmp_path / 'r'}", "-q")
    events = [json.loads(line) for line in (tmp_path / "r" / "events.jsonl").read_text().splitlines()]
    lost = [e for e in events if "aborted" in e]
    assert 0 < len(lost) < len(events)
    assert all(len(e["clients"]) < 9 for e in lost)
    assert "krum needs at least 9 uploads against 3 attackers" in lost[0]["aborted"]

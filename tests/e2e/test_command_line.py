"""The command as a person uses it: what works, and what is refused in one sentence with exit code 2."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from safetensors.numpy import load_file

from fedveil.cli import main

ROOT = Path(__file__).parents[2]


def fedveil(*arguments, cwd, env=None):
    environment = {**os.environ, "COLUMNS": "140", "NO_COLOR": "1", **(env or {})}
    return subprocess.run(
        [sys.executable, "-m", "fedveil", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def good(*arguments, cwd, **kw):
    done = fedveil(*arguments, cwd=cwd, **kw)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments, cwd, env=None):
    """The one sentence of a refusal; in process, because there are many and torch takes its time to start."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["fedveil", *arguments])
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as left:
            main()
    assert left.value.code == 2, (left.value.code, out.getvalue(), err.getvalue())
    lines = err.getvalue().strip().splitlines()
    assert len(lines) == 1, err.getvalue()
    return lines[0].removeprefix("fedveil: ")


def test_a_refusal_is_one_line_and_exit_code_2_for_a_real_process(tmp_path):
    done = fedveil("run", "lr=-1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fedveil: lr: -1.0 is not a positive number; give a value above 0\n"


def examples_in_help():
    """Every line in a command's help that reads like a command."""
    text = subprocess.run(
        [
            sys.executable,
            "-c",
            "from fedveil.cli import app; print([c.callback.__doc__ for c in app.registered_commands])",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return re.findall(r"`(fedveil [^`]+)`", text)


def test_a_run_leaves_a_complete_folder(tmp_path):
    out = good("run", "method=scaffold", "data=digits", "rounds=4", "out=here", "--json", "out.json", cwd=tmp_path)
    assert "4 rounds" in out
    assert "Privacy statement" in out
    assert "here/report.html" in out
    folder = tmp_path / "here"
    for name in (
        "config.yaml",
        "events.jsonl",
        "clients.json",
        "statement.json",
        "statement.md",
        "summary.json",
        "model.safetensors",
        "checkpoint",
        "report.html",
    ):
        assert (folder / name).exists(), name
    assert len((folder / "events.jsonl").read_bytes().splitlines()) == 4
    summary = orjson.loads((folder / "summary.json").read_bytes())
    assert orjson.loads((tmp_path / "out.json").read_bytes()) == summary
    assert sum(v.size for v in load_file(folder / "model.safetensors").values()) == summary["parameters"]
    rows = orjson.loads((folder / "statement.json").read_bytes())["rows"]
    assert {(r["observer"], r["unit"], r["status"]) for r in rows} == {
        (o, u, "none") for o in ("server", "public") for u in ("record", "client")
    }


def test_quiet_is_quiet(tmp_path):
    done = fedveil("run", "rounds=1", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_sweep_runs_every_combination(tmp_path):
    out = good(
        "run",
        "-m",
        "method=fedavg,scaffold",
        "seed=range(2)",
        "rounds=1",
        "out=sweep",
        "--json",
        "s.json",
        cwd=tmp_path,
    )
    assert "run 4 of 4" in out
    summaries = orjson.loads((tmp_path / "s.json").read_bytes())
    assert [(s["method"], s["seed"]) for s in summaries] == [
        ("fedavg", 0),
        ("fedavg", 1),
        ("scaffold", 0),
        ("scaffold", 1),
    ]
    assert len(list((tmp_path / "sweep").glob("*/summary.json"))) == 4


def test_evaluate_report_and_lists(tmp_path):
    good("run", "rounds=2", "out=a", "--quiet", cwd=tmp_path)
    summary = orjson.loads((tmp_path / "a/summary.json").read_bytes())
    out = good("evaluate", "a", "--json", "e.json", cwd=tmp_path)
    assert f"accuracy {summary['accuracy']:.4f}" in out
    assert orjson.loads((tmp_path / "e.json").read_bytes())["accuracy"] == pytest.approx(summary["accuracy"])
    good("evaluate", "a", "data=digits", "data.test_fraction=0.5", cwd=tmp_path)
    (tmp_path / "a/report.html").unlink()
    assert "a/report.html" in good("report", "a", cwd=tmp_path)
    assert "scaffold" in good("methods", cwd=tmp_path)
    listed = good("datasets", cwd=tmp_path)
    assert all(name in listed for name in ("digits", "heart_disease", "synthetic", "csv"))
    assert re.match(r"fedveil \d+\.\d+", good("--version", cwd=tmp_path))


def test_evaluating_on_data_of_another_shape_is_refused(tmp_path):
    good("run", "rounds=1", "out=a", "--quiet", cwd=tmp_path)
    message = refused("evaluate", "a", "data=breast_cancer", cwd=tmp_path)
    assert message.startswith("data: breast_cancer has inputs (30,) and 2 classes, but the model was trained on")


def test_every_example_in_the_help_works_as_pasted(tmp_path):
    found = examples_in_help()
    assert len(found) >= 9
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in found:
        if command.startswith("fedveil ui"):  # it serves until Ctrl-C, on a port that another test may have
            command = f"timeout --preserve-status -s INT 5 {command} --port 0"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, (command, done.stderr)


def test_every_command_shows_an_example(tmp_path):
    top = good("--help", cwd=tmp_path)
    assert "fedveil run method=" in top
    for name in re.findall(r"^│ (\w+) ", top, re.M):
        assert f"fedveil {name}" in good(name, "--help", cwd=tmp_path).replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["method=fedavgg"], "method: 'fedavgg' is unknown; did you mean 'fedavg'?"),
        (["roundz=3"], "roundz: there is no such setting; did you mean 'rounds'?"),
        (["lr=-0.1"], "lr: -0.1 is not a positive number; give a value above 0"),
        (["cohort=30", "population=20"], "cohort: 30 clients per round are more than the population of 20"),
        (["data.partition=dirichlet", "data.alpha=0.5", "data.min_samples=200"], "data.min_samples: "),
        (["data=mnist", "data.root=/nowhere/at/all"], "data.root: "),
        (["data=heart_disease"], "data.root: "),
        (["model=cnn", "data=breast_cancer"], "model: cnn reads images"),
        (["model=nothing.here:Net"], "model.build: cannot import 'nothing.here'"),
        (
            ["model=torch.nn:Lineer"],
            "model.build: 'torch.nn' has no function or class 'Lineer'; did you mean 'Linear'?",
        ),
        (["loss=hinge"], "loss: 'hinge' is unknown"),
        (["loss=mse"], "loss: mse does not fit targets that are 10 classes; use cross_entropy"),
        (["rounds=three"], "rounds: 'three' is not allowed; give a whole number"),
        (["device=cuda"], "device: cuda was asked for but torch sees no CUDA device"),
        (["data.alpha=0.1"], "data.alpha: "),
    ],
)
def test_bad_input_gets_one_sentence(tmp_path, arguments, message):
    assert refused("run", *arguments, cwd=tmp_path, env={"FEDVEIL_DATA": ""}).startswith(message)
    assert not (tmp_path / "runs").exists(), "nothing was started"


def test_text_in_a_numeric_column(tmp_path):
    rows = ["age,weight,sick"] + [f"{30 + i},{60 + i},{i % 2}" for i in range(40)]
    rows[7] = "36,heavy,0"
    (tmp_path / "p.csv").write_text("\n".join(rows))
    bounds = "data.bounds={age: [0, 120], weight: [0, 300]}"
    message = refused("run", "data=p.csv", "data.label=sick", bounds, "population=2", "model=logistic", cwd=tmp_path)
    assert "weight" in message
    assert "heavy" in message
    (tmp_path / "p.csv").write_text("\n".join(rows[:7] + rows[8:]))
    good("run", "data=p.csv", "data.label=sick", bounds, "population=2", "model=logistic", "rounds=2", cwd=tmp_path)


def test_a_loss_that_is_not_a_number_stops_the_run_and_names_round_and_client(tmp_path):
    message = refused("run", "lr=1e30", "rounds=5", "model=mlp", cwd=tmp_path)
    assert re.match(
        r"round \d+, client \d+: the (training loss|trained model) is not a finite number; lower lr", message
    )


def test_a_folder_in_use_is_not_overwritten(tmp_path):
    good("run", "rounds=1", "out=a", "--quiet", cwd=tmp_path)
    assert "fedveil resume a" in refused("run", "rounds=1", "out=a", cwd=tmp_path)
    assert "this is no run folder" in refused("resume", "nowhere", cwd=tmp_path)
    assert "this is no run folder" in refused("evaluate", ".", cwd=tmp_path)
    (tmp_path / "a/config.yaml").write_text("{: broken")
    assert "damaged" in refused("resume", "a", cwd=tmp_path)


def test_early_stopping(tmp_path):
    out = good("run", "rounds=200", "local_epochs=5", "lr=0.3", "stop.accuracy=0.6", "out=a", cwd=tmp_path)
    assert "stopped early: the test accuracy reached" in out
    summary = orjson.loads((tmp_path / "a/summary.json").read_bytes())
    assert summary["rounds"] < 200
    assert summary["accuracy"] >= 0.6
    assert "decide when to stop" in (tmp_path / "a/statement.md").read_text()
    good("run", "rounds=400", "lr=1e-9", "stop.patience=3", "out=b", "--quiet", cwd=tmp_path)
    assert orjson.loads((tmp_path / "b/summary.json").read_bytes())["rounds"] <= 10


@pytest.mark.parametrize("example", sorted(p.name for p in (ROOT / "examples").glob("*.py")))
def test_examples_run(tmp_path, example):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / example], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    accuracies = [float(a) for a in re.findall(r"accuracy ([\d.]+)", done.stdout)]
    assert accuracies
    assert min(accuracies) > 0.8


def test_import_paths_on_the_command_line(tmp_path):
    for name in ("own_model", "own_method"):
        (tmp_path / f"{name}.py").write_text((ROOT / "examples" / f"{name}.py").read_text())
    good(
        "run",
        "method=own_method:sparse_adam",
        "method.share=0.3",
        "server_lr=0.02",
        "model=own_model:Net",
        "model.width=8",
        "rounds=2",
        "out=a",
        "--quiet",
        cwd=tmp_path,
    )
    good("evaluate", "a", cwd=tmp_path)


def test_poisson_selection_survives_empty_rounds(tmp_path):
    good("run", "selection=poisson", "cohort=1", "population=10", "rounds=12", "out=a", "--quiet", cwd=tmp_path)
    sizes = [len(orjson.loads(line)["clients"]) for line in (tmp_path / "a/events.jsonl").read_bytes().splitlines()]
    assert 0 in sizes
    assert max(sizes) > 1


def test_budget_by_every_accountant(tmp_path):
    """The acceptance line: q=0.01, noise 1.1, 10,000 steps."""
    out = good("budget", "--noise", "1.1", "--steps", "10000", "--sampling", "0.01", "--json", "b.json", cwd=tmp_path)
    rows = {r["accountant"]: r for r in orjson.loads((tmp_path / "b.json").read_bytes())["rows"]}
    assert rows["rdp"]["epsilon"] == pytest.approx(5.63, abs=0.005)
    assert rows["pld"]["epsilon"] == pytest.approx(5.19, abs=0.005)
    assert rows["moments"]["epsilon"] == pytest.approx(6.28, abs=0.005)
    assert all(name in out for name in ("rdp", "pld", "moments", "basic", "advanced", "optimal"))


def test_budget_solves_for_noise_and_for_steps_and_draws(tmp_path):
    good(
        "budget",
        "--epsilon",
        "8",
        "--steps",
        "10000",
        "--sampling",
        "0.01",
        "--plot",
        "p.html",
        "--json",
        "n.json",
        cwd=tmp_path,
    )
    rows = {r["accountant"]: r for r in orjson.loads((tmp_path / "n.json").read_bytes())["rows"]}
    assert rows["rdp"]["multiplier"] == pytest.approx(0.9169, rel=1e-3)
    assert rows["pld"]["multiplier"] == pytest.approx(0.8825, rel=1e-3)
    assert (tmp_path / "p.html").stat().st_size > 1_000_000
    good("budget", "--epsilon", "2", "--noise", "1.1", "--sampling", "0.01", "--json", "s.json", cwd=tmp_path)
    steps = {r["accountant"]: r["steps"] for r in orjson.loads((tmp_path / "s.json").read_bytes())["rows"]}
    assert steps["basic"] < steps["moments"] < steps["rdp"] < steps["pld"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--noise", "1.1"], "budget: give exactly two of epsilon, noise and steps"),
        (["--noise", "0", "--steps", "10"], "noise: 0.0 is not a positive number"),
        (["--noise", "1e-300", "--steps", "10"], "noise: a multiplier of 1e-300 protects nothing"),
        (["--noise", "1", "--steps", "0"], "steps: 0 is not a number of steps"),
        (["--epsilon", "-1", "--steps", "10"], "epsilon: -1.0 is not a positive number"),
        (["--noise", "1", "--steps", "10", "--delta", "0"], "delta: "),
        (["--noise", "1", "--steps", "10", "--sampling", "1.5"], "sampling: a rate of 1.5 is outside (0, 1]"),
        (["--noise", "1", "--steps", "10", "--mechanism", "magic"], "mechanism: 'magic' is unknown"),
        (["--noise", "1", "--steps", "10", "--plot", "no/such/dir/p.html"], "plot: "),
    ],
)
def test_budget_refuses_in_one_sentence(tmp_path, arguments, message):
    assert refused("budget", *arguments, cwd=tmp_path).startswith(message)

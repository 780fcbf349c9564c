"""Every private method and variant from the command line, by name and by number, on the bundled digits."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from tests.methods.common import VARIANTS

METHODS = {m: [v for name, v in VARIANTS if name == m] for m, _ in VARIANTS}
SETTINGS = (
    "data=digits",
    "population=6",
    "cohort=6",
    "model=logistic",
    "rounds=6",
    "steps=3",
    "batch=64",
    "lr=8",
    "clip_norm=0.5",
    "sigma=0.01",
)


def fedveil(*arguments, cwd):
    command = [sys.executable, "-m", "fedveil", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("method", "by"), [*((m, "name") for m in METHODS), ("dp_scaffold_stein", "number")])
def test_all_variants_train_from_the_command_line(tmp_path, method, by):
    variants = METHODS[method]
    listed = ",".join(variants if by == "name" else map(str, range(1, len(variants) + 1)))
    out = fedveil(
        "run", "-m", f"method={method}", f"algorithm_variant={listed}", *SETTINGS, "--json", "all.json", cwd=tmp_path
    )
    summaries = orjson.loads((tmp_path / "all.json").read_bytes())
    assert [s["method"] for s in summaries] == [f"{method}/{v}" for v in variants]
    for summary, variant in zip(summaries, variants, strict=True):
        assert summary["rounds"] == 6
        unit = "record" if variant.startswith("step") else "client"
        spent = summary["epsilon"]
        assert (spent["observer"], spent["unit"]) == ("server", unit)
        assert f"per {unit} towards server, proved" in summary["statement"]
        assert summary["accuracy"] > 0.5, "with this little noise it learns"
    assert "epsilon" in out


def test_central_dp_trains_from_the_command_line(tmp_path):
    out = fedveil("run", "method=dp_fedavg_central", *SETTINGS[:-1], "privacy.epsilon=8", "global_lr=0.5", cwd=tmp_path)
    assert "(client, public)" in out
    assert "8.000" in out


def test_the_demo_of_the_makefile_keeps_its_promises(tmp_path):
    """``make demo``'s own command: live epsilon, at least 85 % at epsilon 8, the statement, a report, under 90 s."""
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", (Path(__file__).parents[2] / "Makefile").read_text(), re.M)
    words = shlex.split(recipe[1].replace("\\\n", " "))
    assert words[0] == "$(BIN)/fedveil"
    out = fedveil(*words[1:], "--json", "summary.json", cwd=tmp_path)
    summary = orjson.loads((tmp_path / "summary.json").read_bytes())
    assert summary["accuracy"] >= 0.85
    assert summary["seconds"] < 90
    spent = summary["epsilon"]
    assert (spent["observer"], spent["unit"]) == ("server", "record") and 7.9 < spent["epsilon"] <= 8
    live = re.findall(r"round \d+/60 .* epsilon ([\d.]+) of 8 \(record, server\)", out)
    assert len(live) >= 5 and sorted(map(float, live)) == list(map(float, live))
    assert "Privacy statement" in out and "proved" in out
    report = Path(re.search(r"report: (\S+report\.html)", out)[1])
    assert (tmp_path / report).is_file()

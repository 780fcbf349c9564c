"""Control variates made of clean moves give them away; made of released moves they do not (SPEC 3.4)."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.methods.common import LR, STEPS, one_round, training
from tests.support import blobs

import fedveil
from fedveil.core.errors import Refused
from fedveil.local.rules import CONTROL


def reconstructed(change, server):
    """What a server that knows c, K and η solves for: Δ = −K·η·(Δc + c)."""
    return -STEPS * LR * (change + server["c"])


def federation():
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 30)), np.zeros(n)) for n in (12, 20, 30)]
    return fedveil.data.from_clients(parts, test=parts[0], classes=0)


@pytest.mark.parametrize("method", ["dp_scaffold", "dp_scaffold_stein"])
def test_the_server_recovers_the_clean_move_from_clean_control_variates(method):
    parts = training(method, "1", federation(), 30, "control_update=clean", "allow_leak=true")
    server = parts.start()
    server["c"] = torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    memory = torch.randn(3, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moves, uploads, *_ = one_round(parts, server=server, memory=memory)
    found = reconstructed(uploads[CONTROL].value, server)
    clean = moves.delta.value
    error = (found - clean).norm(dim=1) / clean.norm(dim=1)
    assert float(error.max()) < 1e-5


@pytest.mark.parametrize("variant", ["1", "2", "3"])
def test_the_same_attack_finds_only_what_was_released_from_noisy_ones(variant):
    parts = training("dp_scaffold", variant, federation(), 30)
    server = parts.start()
    moves, uploads, *_ = one_round(parts, server=server)
    assert CONTROL not in uploads, "nothing but the noisy move is sent"
    change = parts.method.local.derive(uploads["move"], moves.travel, server)[CONTROL].value
    found = reconstructed(change, server)
    assert torch.allclose(found, uploads["move"].value), "the attack returns the upload itself"
    quiet = training("dp_scaffold", variant, federation(), 30, "sigma=1e-5")
    clean = one_round(quiet, server=server)[0].delta.value
    error = (found - clean).norm(dim=1) / clean.norm(dim=1)
    assert float(error.min()) > 0.5, "as far from the clean move as the noise is large"


def test_a_leaking_run_claims_nothing_and_says_so_first(tmp_path, capsys):
    said = []

    class Ear:
        def opened(self, training, folder, done, notes):
            said.extend(training.opening)

        def round(self, record): ...

        def closed(self, summary): ...

    result = fedveil.run(
        "control_update=clean",
        "allow_leak=true",
        "sigma=1",
        method="dp_scaffold_stein",
        algorithm_variant=1,
        data=blobs(),
        rounds=2,
        out=tmp_path / "r",
        listeners=[Ear()],
    )
    assert {r.status for r in result.statement.rows} == {"none"}
    assert result.summary["epsilon"] is None
    assert all(e["epsilon"] is None for e in result.history)
    assert "solves for every client's clean move" in result.statement.notes[0]
    assert said[0].startswith("WARNING"), "before anything is trained"


def test_no_budget_can_hold_where_everything_leaks(tmp_path):
    with pytest.raises(Refused, match="privacy.epsilon: .* no budget can hold"):
        fedveil.run(
            "control_update=clean",
            "allow_leak=true",
            "sigma=1",
            "privacy.epsilon=8",
            method="dp_scaffold",
            algorithm_variant=1,
            data=blobs(),
            out=tmp_path / "r",
        )


def test_the_page_about_the_leak_runs_as_it_is_printed(tmp_path):
    page = (Path(__file__).parents[2] / "docs/leak.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    hidden, claimed, attack = done.stdout.splitlines()[-3:]
    assert int(re.fullmatch(r"the noise is (\d+) times as long as what it hides", hidden)[1]) > 10
    assert claimed == "claimed: no privacy is claimed (server, public: none)"
    assert int(re.fullmatch(r"from released moves the attack is off by (\d+) times the move itself", attack)[1]) > 10

"""Checkpoints: whole or not at all."""

import pytest
import torch

from fedveil.core.errors import Refused
from fedveil.runtime.checkpoint import Progress, load_progress, save_progress
from fedveil.runtime.memory import Memory


def progress(rounds, clients=3, dim=5):
    """A run of some rounds, one client each, saved after every round."""
    memory = Memory(dim, torch.float32)
    state = Progress(0, {"w": torch.zeros(dim)}, memory)
    for r in range(1, rounds + 1):
        state.round = r
        state.server = {"w": torch.full((dim,), float(r))}
        memory.store([r % clients], torch.full((1, dim), float(r)))
        yield state


def save_all(root, rounds=6):
    for state in progress(rounds):
        save_progress(root, state)


def load(root, dim=5):
    return load_progress(root, Memory(dim, torch.float32))


def test_what_is_saved_comes_back(tmp_path):
    save_all(tmp_path)
    state, notes = load(tmp_path)
    assert notes == []
    assert state.round == 6
    assert state.server["w"].tolist() == [6.0] * 5
    assert {k: float(v[0]) for k, v in state.memory.rows.items()} == {0: 6.0, 1: 4.0, 2: 5.0}


def test_two_checkpoints_are_kept_and_no_more_memory_than_they_need(tmp_path):
    save_all(tmp_path, 9)
    assert sorted(p.name for p in tmp_path.glob("round-*")) == ["round-000008", "round-000009"]
    assert sorted(p.name for p in (tmp_path / "memory").iterdir()) == [f"{r:06d}.safetensors" for r in (6, 7, 8, 9)]


def damage(path, how):
    data = path.read_bytes()
    if how == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "flip":
        path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["truncate", "empty", "flip", "remove"])
@pytest.mark.parametrize(
    "what", ["round-000006/server.safetensors", "round-000006/state.json", "memory/000006.safetensors"]
)
def test_a_damaged_checkpoint_is_left_out_for_the_one_before(tmp_path, what, how):
    save_all(tmp_path)
    damage(tmp_path / what, how)
    state, notes = load(tmp_path)
    assert state.round == 5
    assert state.server["w"].tolist() == [5.0] * 5
    assert {k: float(v[0]) for k, v in state.memory.rows.items()} == {0: 3.0, 1: 4.0, 2: 5.0}
    assert "round-000006 is damaged" in notes[0]


def test_after_falling_back_the_run_goes_on_and_saves_again(tmp_path):
    save_all(tmp_path)
    damage(tmp_path / "round-000006/server.safetensors", "truncate")
    state, _ = load(tmp_path)
    state.round, state.server = 6, {"w": torch.full((5,), 60.0)}
    state.memory.store([0], torch.full((1, 5), 60.0))
    save_progress(tmp_path, state)
    again, notes = load(tmp_path)
    assert notes == []
    assert (again.round, float(again.server["w"][0]), float(again.memory.rows[0][0])) == (6, 60.0, 60.0)


def test_with_every_checkpoint_damaged_resuming_is_refused(tmp_path):
    save_all(tmp_path)
    for folder in tmp_path.glob("round-*"):
        damage(folder / "server.safetensors", "truncate")
    with pytest.raises(Refused, match=r"no checkpoint to resume from.*round-000006.*round-000005"):
        load(tmp_path)


def test_an_interrupted_save_leaves_nothing_that_counts(tmp_path):
    save_all(tmp_path)
    half = tmp_path / ".round-000007.tmp"
    half.mkdir()
    (half / "server.safetensors").write_bytes(b"half")
    assert load(tmp_path)[0].round == 6

"""Models, data and losses that people bring: what fits works, what does not is refused in words."""

import numpy as np
import pytest
import torch
from tests.support import blobs
from torch import nn

import fedveil
from fedveil.core.errors import Refused
from fedveil.core.federation import Examples


class Frozen(nn.Module):
    """A fixed random feature map under a trained head; every instance draws its own map."""

    def __init__(self):
        super().__init__()
        self.fixed = nn.Linear(5, 16)
        self.head = nn.Linear(16, 3)
        self.unused = nn.Linear(2, 2)
        self.fixed.requires_grad_(False)

    def forward(self, x):
        return self.head(torch.relu(self.fixed(x)))


def run(tmp_path, name="r", **kw):
    return fedveil.run(**({"data": blobs(), "rounds": 3, "out": tmp_path / name} | kw))


def numbers(outputs=1):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4))
    y = x @ np.array([1.0, -1.0, 2.0, 0.5])
    return fedveil.data.from_clients([(x[:40], y[:40]), (x[40:], y[40:])], test=(x, y), name="numbers")


def test_frozen_parameters_are_saved_and_loaded(tmp_path):
    result = run(tmp_path, model=Frozen())
    again = fedveil.load(tmp_path / "r", model=Frozen())
    x = blobs().test.x
    assert torch.equal(again.outputs(x), result.outputs(x))
    assert fedveil.evaluate(tmp_path / "r", model=Frozen(), data=blobs())["accuracy"] == result.accuracy


def test_a_model_that_was_handed_in_is_left_as_it_was(tmp_path):
    net = Frozen()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    first = run(tmp_path, "a", model=net)
    x = blobs().test.x
    answers = first.outputs(x)
    second = run(tmp_path, "b", model=net)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert first.summary["model_hash"] == second.summary["model_hash"]
    assert torch.equal(first.outputs(x), answers)


def test_numbers_as_targets(tmp_path):
    result = run(tmp_path, data=numbers(), model="logistic", rounds=60, steps=5, lr=0.1)
    assert result.accuracy is None
    assert result.summary["loss"] < 0.01
    assert result.predict(numbers().test.x).shape == (80,)
    assert fedveil.evaluate(tmp_path / "r", data=numbers())["accuracy"] is None


def test_patience_looks_at_the_loss_where_there_is_no_accuracy(tmp_path):
    result = run(tmp_path, "b", data=numbers(), model="logistic", rounds=300, lr=1e-12, stop={"patience": 3})
    assert result.summary["rounds"] < 300
    with pytest.raises(Refused, match="stop.accuracy: there is no accuracy"):
        run(tmp_path, "c", data=numbers(), model="logistic", stop={"accuracy": 0.9})


def test_whole_number_inputs_stay_whole(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 20, size=(60, 6))
    data = fedveil.data.from_arrays(x, (x[:, 0] > 9).astype(int), clients=np.arange(60) % 3, tokens=True, classes=2)
    net = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(48, 2))
    result = run(tmp_path, data=data, model=net, cohort=3)
    assert result.predict(x[:5]).shape == (5,)
    with pytest.raises(Refused, match="model: it does not accept inputs"):
        run(tmp_path, "b", data=data, model="logistic")


def failing(outputs, targets):
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": 3}, "model: 3 is not a module"),
        ({"model": Frozen}, "is not a module; hand in an instance"),
        ({"data": ([1], [2])}, "data: a tuple is not a federation"),
        ({"method": len}, "method: .* is not a Method"),
        ({"model": nn.Linear(4, 3)}, "model: it does not accept inputs of shape \\(5,\\)"),
        ({"model": nn.Linear(5, 2)}, "one score per class"),
        ({"model": nn.Flatten()}, "no trainable parameters"),
        ({"loss": lambda o, y: nn.functional.cross_entropy(o, y, reduction="none")}, "one number per batch"),
        ({"loss": lambda o, y: nn.functional.cross_entropy(o, y).detach()}, "gradients flow through"),
        ({"loss": failing}, "loss: it does not accept the model's outputs \\(ZeroDivisionError\\)"),
        ({"loss": "mse"}, "loss: mse does not fit targets that are 3 classes; use cross_entropy"),
        ({"data": numbers(), "loss": "cross_entropy"}, "loss: cross_entropy does not fit targets that are numbers"),
        ({"data": numbers(), "model": nn.Linear(4, 3)}, "where the target is a number, give one each"),
        ({"seed": 10**26}, "seed: .* is out of range"),
        ({"rounds": object()}, "rounds: a object cannot be a setting"),
    ],
)
def test_parts_that_do_not_fit(tmp_path, parts, message):
    with pytest.raises(Refused, match=message):
        run(tmp_path, **parts)
    assert not (tmp_path / "r").exists()


def test_a_model_that_fails_in_training_names_round_and_client(tmp_path):
    """Batch statistics of a single example do not exist; the last batch of a client may be that small."""
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    data = fedveil.data.from_clients(
        [(np.ones((5, 5)), np.zeros(5, int))], test=(np.ones((2, 5)), np.zeros(2, int)), classes=3, holdout=0.0
    )
    with pytest.raises(Refused, match=r"round 1, client 0: the model or the loss failed on 1 example"):
        run(tmp_path, model=net, data=data, batch=4)


def test_mappings_are_settings_too(tmp_path):
    rows = ["age,sick"] + [f"{20 + i},{i % 2}" for i in range(40)]
    (tmp_path / "it's läb.csv").write_text("\n".join(rows))
    result = fedveil.run(
        f"data={tmp_path}/it's läb.csv",
        data={"label": "sick", "bounds": {"age": [0, 120]}},
        model="logistic",
        population=2,
        rounds=1,
        out=tmp_path / "r",
    )
    assert result.summary["data"] == "it's läb"


def test_evaluating_on_a_file_whose_labels_mean_something_else(tmp_path):
    def table(name, labels):
        rows = ["u,kind"] + [f"{i % 7},{labels[i % 2]}" for i in range(40)]
        (tmp_path / name).write_text("\n".join(rows))
        return str(tmp_path / name)

    settings = {"label": "kind", "bounds": {"u": [0, 7]}}
    fedveil.run(
        f"data={table('a.csv', ('cat', 'dog'))}",
        data=settings,
        model="logistic",
        population=2,
        rounds=1,
        out=tmp_path / "r",
    )
    assert fedveil.evaluate(tmp_path / "r", [f"data.path={table('b.csv', ('cat', 'dog'))}"])["examples"] == 8
    with pytest.raises(Refused, match="the labels of c are dog, fox, but the model was trained on cat, dog"):
        fedveil.evaluate(tmp_path / "r", [f"data.path={table('c.csv', ('dog', 'fox'))}"])
    with pytest.raises(Refused, match="lr: has no effect on an evaluation"):
        fedveil.evaluate(tmp_path / "r", ["lr=3"])


def test_a_run_is_resumed_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n\ndef net(input_shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    first = fedveil.run(model="nets:net", rounds=2, out="r")
    monkeypatch.chdir("/")
    assert fedveil.evaluate(tmp_path / "r")["accuracy"] == first.accuracy
    assert fedveil.resume(tmp_path / "r").summary["model_hash"] == first.summary["model_hash"]


def test_two_runs_of_one_second_get_two_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {fedveil.run(data=blobs(), rounds=1).folder.path for _ in range(3)}
    assert len(folders) == 3


def test_a_damaged_folder_is_refused_in_words(tmp_path):
    result = fedveil.run(rounds=1, out=tmp_path / "r")
    config = result.folder.config.read_text()
    for broken in ("population: null\n", "rounds: 1\n"):
        result.folder.config.write_text(config.replace(broken, ""))
        with pytest.raises(Refused, match="is missing; the run folder is damaged"):
            fedveil.resume(tmp_path / "r")
    result.folder.config.write_text(config.replace("hidden: 128", "hidden: 64"))
    with pytest.raises(Refused, match="resume with the model that the run began with"):
        fedveil.resume(tmp_path / "r")
    result.folder.config.write_text(config)
    for name in ("summary.json", "statement.json"):
        text = (tmp_path / "r" / name).read_text()
        (tmp_path / "r" / name).write_text("{}")
        with pytest.raises(Refused, match="is missing; the run folder is damaged"):
            fedveil.load(tmp_path / "r")
        (tmp_path / "r" / name).write_text(text)
    result.folder.model.write_bytes(b"\x00" * 100)
    with pytest.raises(Refused, match="does not fit the model"):
        fedveil.load(tmp_path / "r")


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path):
    import shutil

    result = fedveil.run(rounds=2, out=tmp_path / "r")
    shutil.rmtree(result.folder.checkpoint)
    assert fedveil.resume(tmp_path / "r").summary["model_hash"] == result.summary["model_hash"]


def test_examples_check_their_lengths():
    with pytest.raises(ValueError, match="2 inputs but 3 targets"):
        Examples(torch.zeros(2), torch.zeros(3))

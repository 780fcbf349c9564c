"""TensorBoard and MLflow hear every number of every round; without the packages a run is refused before it begins."""

import sys
import warnings

import pytest

import fedveil
from fedveil.core.errors import Refused
from fedveil.report.loggers import scalars
from fedveil.runtime.config import load

SMALL = {"data": "breast_cancer", "population": 5, "model": "logistic", "cohort": 3}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A tracking store for the whole module: MLflow takes seconds to lay one out."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def expected(history):
    """Every number of the events by name: (round, value) pairs."""
    found = {}
    for event in history:
        for name, value in scalars(event):
            found.setdefault(name, []).append((event["round"], value))
    return found


def test_tensorboard_holds_every_round_also_after_a_resume(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "r"
    fedveil.run(**SMALL, rounds=3, logger="tensorboard", out=folder)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 3", "rounds: 5"))
    result = fedveil.resume(folder)
    log = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    wanted = expected(result.history)
    assert set(log.Tags()["scalars"]) == set(wanted) and {"accuracy", "train_loss/mean", "bytes_up"} <= set(wanted)
    for name, pairs in wanted.items():
        assert [(e.step, e.value) for e in log.Scalars(name)] == [(at, pytest.approx(v, rel=1e-6)) for at, v in pairs]
    said = [bytes(text).decode() for e in log.Tensors("statement/text_summary") for text in e.tensor_proto.string_val]
    assert said[-1] == result.summary["statement"]
    assert load(config)["logger"] == "tensorboard"


def test_a_log_that_cannot_be_written_costs_the_log_and_not_the_run(tmp_path, monkeypatch):
    module = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")

    def full(*values):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.SummaryWriter, "add_scalar", full)
    with pytest.warns(UserWarning, match="tensorboard stopped taking the log"):
        result = fedveil.run(**SMALL, rounds=2, logger="tensorboard", out=tmp_path / "r")
    assert len(result.history) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's own, towards SQLAlchemy
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_mlflow_holds_settings_rounds_and_the_statement(tmp_path, monkeypatch, store):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    result = fedveil.run(**SMALL, rounds=3, logger=["mlflow", "tensorboard"], out=tmp_path / "r")
    client = MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("fedveil").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "r"
    assert run.data.params["method.build"] == "fedveil.methods.fedavg:fedavg" and run.data.params["rounds"] == "3"
    for name, pairs in expected(result.history).items():
        assert sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)) == pairs, name
    assert run.data.metrics["final/accuracy"] == result.summary["accuracy"]
    assert [a.path for a in client.list_artifacts(run.info.run_id)] == ["statement.md"]
    assert (tmp_path / "r" / "tensorboard").is_dir()
    config = tmp_path / "r" / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 3", "rounds: 4"))
    fedveil.resume(tmp_path / "r")
    (run,) = client.search_runs([run.info.experiment_id])
    assert len(client.get_metric_history(run.info.run_id, "loss")) == 4 and run.info.status == "FINISHED"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_store_that_fails_costs_the_log_and_not_the_run(tmp_path, monkeypatch, store):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.chdir(tmp_path)

    def fail(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr(MlflowClient, "log_batch", fail)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = fedveil.run(**SMALL, rounds=2, logger="mlflow", out=tmp_path / "r")
    assert result.summary["status"] == "finished"
    assert sum("the disk is full" in str(w.message) for w in said) == 1
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "strange://nowhere")
    with pytest.raises(Refused, match="does not answer"):
        fedveil.run(**SMALL, rounds=2, logger="mlflow", out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow.tracking")]
)
def test_what_is_not_installed_is_refused_before_the_run(tmp_path, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Refused, match=rf"logger: {name} is not installed; .*fedveil\[{name}\]"):
        fedveil.run(**SMALL, rounds=1, logger=name, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_an_unknown_logger_is_refused(tmp_path):
    with pytest.raises(Refused, match="did you mean 'tensorboard'"):
        fedveil.run(**SMALL, rounds=1, logger="tensorbord", out=tmp_path / "r")

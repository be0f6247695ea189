"""Loggers: what a fit leaves in TensorBoard, MLflow and Weights & Biases, and what is said where they fail."""

import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from helpers.commands import DIRECT, node_fit, spirals, write_table
from helpers.problems import rotation
from omegaconf import OmegaConf

import node_fit as nf
from node_fit.app.config.build import check_loggers
from node_fit.app.config.composition import ConfigError
from node_fit.training.callback import AbstractLogger, Record, RunState


def state(members: int = 1) -> RunState:
    """The state of a run with members of which a logger needs to know the number only."""
    found = object.__new__(RunState)
    object.__setattr__(found, "members", (None,) * members)
    return found


def record(step: int, member: int = 0, validation: float | None = None) -> Record:
    return Record(step, "main", 1.0 / step, validation, 0.5, 1e-3, step, 0, 0.1 * step, member)


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    """The scalars in the event files of a folder, by name, as TensorBoard reads them."""
    from tensorboardX.event_file_writer import EventFileWriter  # noqa: F401, shows that the real package is there
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("events.*")):
        raw, at = path.read_bytes(), 0
        while at < len(raw):
            length = int.from_bytes(raw[at : at + 8], "little")
            event = Event.FromString(raw[at + 12 : at + 12 + length])
            at += 12 + length + 4
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(value.tag, []).append((event.step, value.simple_value))
                elif value.tag.startswith("settings"):
                    found[value.tag] = [(0, len(value.tensor.string_val[0]))]
    return found


def test_a_fit_leaves_its_records_in_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    logger = nf.TensorBoard(tmp_path / "events", {"width": 8})
    short = nf.Training(steps=6, chunk_steps=2)
    fit = nf.fit(
        rotation(),
        field=nf.Linear,
        training=short,
        callbacks=[logger],
        options=nf.Options(recipe="direct", penalty=nf.Penalty()),
    )
    found = scalars(tmp_path / "events")
    assert [step for step, _ in found["train_loss"]] == [each.step for each in fit.history]
    np.testing.assert_allclose(
        [loss for _, loss in found["train_loss"]], [each.train_loss for each in fit.history], rtol=1e-6
    )
    assert (
        "gradient_norm" in found and "validation_loss" not in found and any(tag.startswith("settings") for tag in found)
    )
    assert logger.tracker is None, "the writer was not closed"


def test_members_have_figures_of_their_own(tmp_path):
    pytest.importorskip("tensorboardX")
    logger = nf.TensorBoard(tmp_path)
    logger.on_chunk_end([record(2), record(2, 1)], state(2))
    logger.on_fit_end()
    assert {name for name in scalars(tmp_path) if "train_loss" in name} == {"member0/train_loss", "member1/train_loss"}


@pytest.fixture
def mlflow(monkeypatch) -> SimpleNamespace:
    """A stand-in for mlflow, which remembers the calls of its client."""
    calls = []

    class MlflowClient:
        def __getattr__(self, name):
            def call(*given, **named):
                calls.append((name, *given, *named.values()))
                if name == "create_run":
                    return SimpleNamespace(info=SimpleNamespace(run_id="r1"))
                return None if name == "get_experiment_by_name" else "7"

            return call

    module = ModuleType("mlflow")
    module.MlflowClient = MlflowClient
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return SimpleNamespace(calls=calls)


def test_mlflow_gets_a_run_with_parameters_and_metrics(mlflow):
    logger = nf.MLflow("mine", settings={"seed": 3})
    assert not mlflow.calls, "nothing is opened before the first chunk has ended"
    logger.on_chunk_end([record(2, validation=0.7)], state())
    logger.on_fit_end()
    assert mlflow.calls[:4] == [
        ("get_experiment_by_name", "node_fit"),
        ("create_experiment", "node_fit"),
        ("create_run", "7", "mine"),
        ("log_param", "r1", "seed", 3),
    ]
    assert ("log_metric", "r1", "train_loss", 0.5, 2) in mlflow.calls
    assert ("log_metric", "r1", "validation_loss", 0.7, 2) in mlflow.calls
    assert mlflow.calls[-1] == ("set_terminated", "r1")


def test_weights_and_biases_is_offline_unless_asked(monkeypatch, tmp_path):
    calls, module = [], ModuleType("wandb")

    def init(**given):
        calls.append(("init", given))
        return SimpleNamespace(
            log=lambda figures, step: calls.append(("log", figures, step)), finish=lambda: calls.append(("finish",))
        )

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    logger = nf.WeightsAndBiases(tmp_path, settings={"seed": 3})
    logger.on_chunk_end([record(4)], state())
    logger.on_fit_end()
    (_, given), (_, figures, step), end = calls
    assert given["mode"] == "offline" and given["config"] == {"seed": 3} and given["dir"] == str(tmp_path)
    assert figures["train_loss"] == 0.25 and step == 4 and end == ("finish",)


class Failing(AbstractLogger):
    package, extra = "json", "json"

    def open(self, step):
        raise OSError("no server")

    def write(self, figures, step):
        raise AssertionError("it was never opened")

    def close(self):
        raise AssertionError("it was never opened")


def test_a_logger_that_fails_is_one_warning_and_the_fit_goes_on(caplog):
    logger = Failing()
    assert logger.on_chunk_end([record(1)], state()) is None
    logger.on_chunk_end([record(2)], state())
    logger.on_fit_end()
    assert caplog.messages == ["Failing takes no more records, and the fit goes on (OSError: no server)"]


class Ends(nf.Callback):
    def __init__(self):
        self.ends = 0

    def on_chunk_end(self, records, state):
        raise RuntimeError("broken")

    def on_fit_end(self):
        self.ends += 1


def test_callbacks_hear_the_end_of_a_fit_that_fails():
    ends, short = Ends(), nf.Training(steps=2, chunk_steps=1)
    with pytest.raises(RuntimeError, match="broken"):
        nf.fit(
            rotation(),
            field=nf.Linear,
            training=short,
            callbacks=[ends],
            options=nf.Options(recipe="direct", penalty=nf.Penalty()),
        )
    assert ends.ends == 1
    with pytest.raises(RuntimeError, match="broken"):
        options = nf.Options(field=nf.Linear, recipe="direct", penalty=nf.Penalty(), training=short)
        nf.fit_several(rotation(), [options], callbacks=[ends])
    assert ends.ends == 2


def test_a_missing_package_is_said_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)  # As if it were not installed.
    sentence = r"logger=tensorboard needs tensorboardX, which can't be imported \(.*\); install it with pip install "
    with pytest.raises(ValueError, match=sentence + r"'node_fit\[tensorboard\]'\.$"):
        nf.TensorBoard()
    with pytest.raises(ValueError, match=sentence):
        check_loggers(OmegaConf.create(["tensorboard"]))


def test_a_misspelt_logger_is_said_with_the_nearest():
    with pytest.raises(
        ConfigError, match=r"^logger must be a list of tensorboard, mlflow, wandb, got 'tensorbord'; did"
    ):
        check_loggers("tensorbord")
    check_loggers(None)
    check_loggers(OmegaConf.create([]))


@pytest.mark.long
@pytest.mark.slow
def test_the_command_logs_to_tensorboard_in_the_runs_directory(tmp_path):
    pytest.importorskip("tensorboardX")
    write_table(tmp_path / "mine.csv", spirals())
    ran = node_fit(tmp_path, *DIRECT, "logger=[tensorboard]", "hydra.run.dir=run")
    assert ran.code == 0, ran.err
    found = scalars(tmp_path / "run" / "tensorboard")
    assert [step for step, _ in found["validation_loss"]] == [10, 20]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 20

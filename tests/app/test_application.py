"""`python -m node_fit` from end to end: its files, its output, and its errors for wrong input."""

import math
import struct
import sys
import textwrap
from itertools import pairwise

import numpy as np
import pytest
from helpers.commands import (
    DIRECT,
    SMALL,
    TABLE,
    at_once,
    driven,
    node_fit,
    on_terminal,
    read_summary,
    read_table,
    spirals,
    write_table,
)
from omegaconf import OmegaConf

import node_fit as nf

pytestmark = pytest.mark.slow

FIGURES = {"rmse", "nrmse", "r2"}
COLUMNS = [
    "step", "stage", "train_loss", "validation_loss", "gradient_norm", "learning_rate", "evaluations",
    "failed_solves", "seconds", "member", "attempt",
]  # fmt: skip


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder, ran = driven(tmp_path_factory.getbasetemp())
    assert ran.code == 0, ran
    return folder / "run", ran


@pytest.fixture(scope="module")
def forecast(tmp_path_factory):
    """A forecast: one trajectory, fitted in float64 up to a given time, on a terminal."""
    folder = tmp_path_factory.mktemp("forecast")
    rows = [{key: row[key] for key in ("t", "x", "y")} for row in spirals(times=30, trajectories=("A",))]
    write_table(folder / "mine.csv", rows)
    ran = on_terminal(
        folder, "data=table", "data.path=mine.csv", "data.time=t", "data.states=[x,y]", *SMALL, "recipe=direct",
        "data.split.test_from=2.5", "precision=x64", "optimizer=adam", "optimizer.schedule=warmup_cosine",
        "optimizer.warmup=0.2", "hydra.run.dir=run",
    )  # fmt: skip
    return folder / "run", ran


# Files of a run.


def test_run_directory(fitted):
    run, _ = fitted
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    assert names == {
        "summary.json", "metrics.csv", "model.safetensors", "checkpoints", "predictions.csv", "plots", "config.yaml",
        "report.html",
    }  # fmt: skip


def test_summary(fitted):
    run, _ = fitted
    summary = read_summary(run)
    assert summary["status"] in ("converged", "stopped", "completed")
    assert isinstance(summary["reason"], str) and summary["reason"]
    assert summary["compiles"] + summary["cached"] == 2  # One for each stage.
    assert (summary["precision"], summary["device"]) == ("x32", "cpu")
    # An MLP with 2 states and an input, 8 hidden units, and 2 outputs.
    assert summary["parameters"] == (3 * 8 + 8) + (8 * 2 + 2)
    seconds = summary["seconds"]
    assert set(seconds) == {"import", "compile", "train", "total"}
    assert all(value > 0 for value in seconds.values())
    assert seconds["import"] + seconds["compile"] + seconds["train"] <= seconds["total"]


def test_summary_scores(fitted):
    run, _ = fitted
    summary = read_summary(run)
    assert set(summary["baselines"]) == {"mean", "persistence", "linear"}
    for splits in (summary["metrics"], *summary["baselines"].values()):
        assert set(splits) == {"train", "validation", "test"}
        for figures in splits.values():
            assert set(figures) >= {*FIGURES, "channels"}
            assert set(figures["channels"]) == {"x", "y"}
            for channel in figures["channels"].values():
                assert set(channel) >= FIGURES
                assert math.isclose(channel["r2"], 1 - channel["nrmse"] ** 2, abs_tol=1e-9)
    # The mean of the training values has an error of one standard deviation on them, first rows aside.
    assert math.isclose(summary["baselines"]["mean"]["train"]["nrmse"], 1.0, rel_tol=1e-3)


def test_scores_follow_from_the_predictions(fitted):
    run, _ = fitted
    summary, rows = read_summary(run), read_table(run / "predictions.csv")
    metrics = summary["metrics"]
    for split in ("train", "validation", "test"):
        for state in ("x", "y"):
            chosen = [row for row in rows if row["split"] == split and row["scored"] == "1"]
            assert len(chosen) == summary["rows"][split]
            measured = np.array([float(row[state]) for row in chosen])
            predicted = np.array([float(row[f"{state}_predicted"]) for row in chosen])
            rmse = np.sqrt(np.mean((predicted - measured) ** 2))
            channel = metrics[split]["channels"][state]
            assert math.isclose(channel["rmse"], rmse, rel_tol=1e-4)
            assert math.isclose(channel["nrmse"], rmse / measured.std(), rel_tol=1e-4)


@pytest.mark.parametrize("which", ["fitted", "forecast"])
def test_metrics(which, request):
    run, _ = request.getfixturevalue(which)
    rows = read_table(run / "metrics.csv")
    assert list(rows[0]) == COLUMNS
    steps = [int(row["step"]) for row in rows]
    # A chunk has ten steps; the last chunk of a stage may have fewer.
    assert steps == sorted(set(steps)) and all(after - before <= 10 for before, after in pairwise([0, *steps]))
    assert steps[-1] == read_summary(run)["steps"]
    stages = list(dict.fromkeys(row["stage"] for row in rows))
    assert stages == (["derivative", "main"] if which == "fitted" else ["main"])
    for row in rows:
        assert all(math.isfinite(float(row[name])) for name in COLUMNS if name not in ("stage", "attempt"))
        assert row["attempt"] == "as chosen"
        assert int(row["evaluations"]) >= 1 and int(row["failed_solves"]) == 0
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)


def test_learning_rate_follows_its_schedule(forecast):
    rates = [float(row["learning_rate"]) for row in read_table(forecast[0] / "metrics.csv")]
    assert len(rates) == 2
    assert 0 <= rates[1] < rates[0] < 3e-3  # After the warm-up, and at the end.


def test_model_reproduces_the_predictions(fitted):
    run, _ = fitted
    model = nf.load(run / "model.safetensors")
    assert (model.states, model.inputs, model.system.time) == (("x", "y"), ("u",), "t")
    assert dict(model.units)["x"] == "m"
    data = nf.read_table(run.parent / "later.csv", time="t", states=["x", "y"], inputs=["u"], trajectory="id")
    predicted = model.predict(data)
    rows = [row for row in read_table(run / "predictions.csv") if row["split"] == "test"]
    written = np.array([[float(row["x_predicted"]), float(row["y_predicted"])] for row in rows])
    np.testing.assert_allclose(written, predicted[data.valid], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("which", ["fitted", "forecast"])
@pytest.mark.parametrize("name", ["fit", "loss", "phase"])
def test_plots(which, name, request):
    content = (request.getfixturevalue(which)[0] / "plots" / f"{name}.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    assert width > 300 and height > 300 and b"IEND" in content[-12:]


def test_config_is_composed(fitted):
    config = OmegaConf.load(fitted[0] / "config.yaml")
    assert (config.seed, config.field.width, list(config.data.states)) == (3, 8, ["x", "y"])


def test_trajectories_are_divided_and_the_second_file_only_tests(fitted):
    of = {}
    for row in read_table(fitted[0] / "predictions.csv"):
        of.setdefault(row["split"], set()).add(row["trajectory"])
    assert of["test"] == {"F", "G"}
    assert of["train"] | of["validation"] == {"A", "B", "C", "D", "E"}
    assert not of["train"] & of["validation"] and of["train"] and of["validation"]


def test_inputs_are_beside_the_predictions(fitted):
    for row in read_table(fitted[0] / "predictions.csv"):
        assert math.isclose(float(row["u"]), math.sin(float(row["t"])), abs_tol=1e-6)


def test_times_are_divided_at_the_given_one(forecast):
    times = {"train": [], "validation": [], "test": []}
    for row in read_table(forecast[0] / "predictions.csv"):
        times[row["split"]].append(float(row["t"]))
    assert max(times["train"]) < min(times["validation"])
    assert max(times["validation"]) < 2.5 <= min(times["test"])
    assert sum(map(len, times.values())) == 30


def test_float64(forecast):
    run, _ = forecast
    model = nf.load(run / "model.safetensors")
    arrays = [leaf for leaf in leaves(model) if np.issubdtype(leaf.dtype, np.floating)]
    assert arrays and {leaf.dtype for leaf in arrays} == {np.dtype(np.float64)}
    summary = read_summary(run)
    assert (summary["precision"], summary["compiles"] + summary["cached"]) == ("x64", 1)


def leaves(model):
    import jax

    return [leaf for leaf in jax.tree.leaves(model) if hasattr(leaf, "dtype")]


# Output of a run.


def test_plain_lines_without_a_terminal(fitted):
    run, ran = fitted
    assert "\x1b" not in ran.out and "\r" not in ran.out and ran.err == ""
    rows = read_table(run / "metrics.csv")
    lines = [line for line in ran.out.splitlines() if line.startswith(("derivative ", "main "))]
    assert len(lines) == len(rows)
    before = max(int(row["step"]) for row in rows if row["stage"] == "derivative")
    for row, line in zip(rows, lines, strict=True):
        step = int(row["step"]) - (before if row["stage"] == "main" else 0)
        assert str(step) in line.split()
    assert ran.out.startswith(f"run: {run}\n")
    assert str(run) in ran.out.splitlines()[-1]


@pytest.mark.parametrize("which", ["fitted", "forecast"])
def test_table_of_scores_is_whole(which, request):
    _, ran = request.getfixturevalue(which)
    assert "…" not in ran.out
    for word in ("train", "validation", "test", "NRMSE", "persistence", "linear"):
        assert word in ran.out


def test_progress_bar_on_a_terminal(forecast):
    run, ran = forecast
    assert ran.code == 0, ran.out
    bars = [line for line in ran.out.splitlines() if "/20" in line]
    assert any("loss" in line and "validation" in line and "steps/s" in line for line in bars)
    assert not any("…" in line for line in bars)  # The last column is the remaining time.
    assert ran.out.split()[-1] == str(run)
    assert not any(line.startswith("main") and " step " in line for line in ran.out.splitlines())


MODULES = ["node_fit", "node_fit.tune", "node_fit.predict"]


@pytest.mark.parametrize("module", MODULES)
def test_the_version_is_that_of_node_fit(tmp_path, module):
    ran = node_fit(tmp_path, "--version", module=module)
    assert (ran.code, ran.out, ran.err) == (0, f"{nf.__version__}\n", "")


def test_the_version_is_said_at_once(tmp_path):
    ran = node_fit(tmp_path, "--version", PYTHONPROFILEIMPORTTIME="1")
    loaded = {line.split("|")[-1].strip() for line in ran.err.splitlines()}
    assert "node_fit.startup" in loaded and not loaded & {"jax", "numpy", "hydra"}


# A custom vector field.


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A custom package and config group in the folder of the command."""
    folder = tmp_path_factory.mktemp("own")
    write_table(folder / "mine.csv", spirals())
    (folder / "springs").mkdir()
    (folder / "springs" / "__init__.py").write_text(
        textwrap.dedent(
            """
            import equinox as eqx
            import jax
            import jax.numpy as jnp

            class Spring(eqx.Module):
                stiffness: jax.Array
                rest: eqx.nn.MLP

                def __init__(self, states: int, inputs: int, *, width: int, key):
                    self.stiffness = jnp.eye(states)
                    self.rest = eqx.nn.MLP(states, states, width, 1, jnp.tanh, key=key)

                def __call__(self, t, y, u):
                    return self.rest(y) - self.stiffness @ y
            """
        )
    )
    (folder / "mine" / "field").mkdir(parents=True)
    (folder / "mine" / "field" / "spring.yaml").write_text("_target_: springs.Spring\n_partial_: true\nwidth: 4\n")
    ran = node_fit(
        folder, "--config-dir", "mine", "field=spring", "extensions=[springs]", *TABLE, "recipe=direct",
        "training.steps=20", "training.chunk_steps=10", "training.freeze=[field.stiffness]", "hydra.run.dir=run",
    )  # fmt: skip
    return folder, ran


def test_own_field(own, monkeypatch):
    folder, ran = own
    assert ran.code == 0, ran.err
    summary = read_summary(folder / "run")
    assert summary["parameters"] == (2 * 4 + 4) + (4 * 2 + 2)  # Without the frozen part.
    monkeypatch.syspath_prepend(str(folder))
    model = nf.load(folder / "run" / "model.safetensors", extensions=["springs"])
    np.testing.assert_array_equal(np.asarray(model.field.stiffness), np.eye(2))
    with pytest.raises(ValueError, match="extensions"):
        nf.load(folder / "run" / "model.safetensors")
    sys.modules.pop("springs")


def test_own_field_is_resumed(own):
    """Its config group comes from `--config-dir`, which is not an override."""
    folder, _ = own
    refused = node_fit(folder, "resume=run", "training.steps=30")
    assert refused.code == 1 and "if you trust them, resume it with 'extensions=[springs]'" in refused.err
    ran = node_fit(folder, "resume=run", "training.steps=30", "extensions=[springs]")
    assert ran.code == 0, ran.err
    assert read_summary(folder / "run")["steps"] == 30


# Wrong input.

# Errors on the command line: the arguments, and what the error message must contain.
COMMAND = {
    "file": ([*DIRECT, "data.path=min.csv"], ["min.csv", "mine.csv"]),
    "path": (["data=table"], ["data.path=VALUE"]),
    "key": ([*DIRECT, "training.stepz=3"], ["training.stepz", "training.steps"]),
    "renamed": ([*DIRECT, "training.ridge=0.1"], ["training.ridge", "penalty.ridge=VALUE"]),
    "option": ([*DIRECT, "optimizer=adm"], ["optimizer=adm", "optimizer=adam"]),
    "brackets": ([*DIRECT, "data.states=[x"], ["data.states=[x"]),
}
# Errors of a job: the config line of each job of a multirun, and what the error message must contain.
JOBS = {
    "column": ("data: {states: [x, yy]}", ["mine.csv", "'yy'", "'y'"]),
    "text": ("data: {path: text.csv}", ["text.csv", "line 4", "'y'", "'oops'"]),
    "times": ("data: {path: order.csv}", ["order.csv", "line 5", "'t'", "'A'"]),
    "list": ("data: {states: x}", ["data.states", "[x]"]),
    "choice": ("precision: x16", ["precision", "x32", "x64"]),
    "range": ("solver: {rtol: -1}", ["solver.rtol", "positive", "-1"]),
    "type": ("training: {steps: many}", ["training.steps", "integer", "many"]),
    "scan": ("training: {scan: eager}", ["training.scan", "leave it out"]),
    "clip": ("training: {clip: 1.0}", ["training.clip", "optimizer.clip", "optimizer=adam"]),
    "clipped": ("optimizer: {clip: 1.0}", ["optimizer.clip", "optimizer=adam"]),
    "batch": ("training: {batch_size: 2}", ["training.batch_size", "LBFGS", "Adam"]),
    "freeze": (
        "training: {freeze: [field.network.layrs.0]}",
        ["training.freeze", "field.network.layrs.0", "field.network.layers"],
    ),
    "device": ("device: {kind: gpu}", ["device=gpu", "cpu"]),
    "target": ("optimizer: {_target_: os.system}", ["optimizer._target_", "'os.system'", "extensions"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Valid and invalid tables, and an option of the group `experiment` for each wrong line."""
    folder = tmp_path_factory.mktemp("wrong")
    rows = spirals()
    write_table(folder / "mine.csv", rows)
    write_table(folder / "text.csv", [*rows[:2], rows[2] | {"y": "oops"}, *rows[3:]])
    write_table(folder / "order.csv", [*rows[:2], rows[3], rows[2], *rows[4:]])
    (folder / "mine" / "experiment").mkdir(parents=True)
    (folder / "mine" / "data").mkdir()
    (folder / "mine" / "data" / "mine.yaml").write_text(
        "_target_: node_fit.Table\npath: mine.csv\ntime: t\nstates: [x, y]\ntrajectory: id\n"
    )
    for name, (line, _) in JOBS.items():
        (folder / "mine" / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{line}\n")
    return folder


@pytest.fixture(scope="module")
def wrong(folder):
    commands = {name: arguments for name, (arguments, _) in COMMAND.items()}
    return at_once(folder, {**commands, "verbose": [*DIRECT, "data.path=min.csv", "verbose=true"]})


@pytest.fixture(scope="module")
def wrong_jobs(folder):
    # The command line overrides an experiment, so the keys that experiments change must come from a file.
    return node_fit(
        folder, "--config-dir", "mine", "-m", "data=mine", f"experiment={','.join(JOBS)}", "hydra.sweep.dir=sweep"
    )


@pytest.mark.parametrize("name", COMMAND)
def test_wrong_command_gets_one_sentence(wrong, name):
    ran = wrong[name]
    assert ran.code == 1
    assert ran.err.splitlines() == [f"error: {ran.sentence}"]
    assert ran.out == ""
    assert all(word in ran.sentence for word in COMMAND[name][1])
    assert ran.sentence.endswith((".", "?"))


def test_traceback_for_those_who_ask(wrong, folder):
    assert wrong["verbose"].code == 1
    assert "Traceback" in wrong["verbose"].err and "min.csv" in wrong["verbose"].sentence
    ran = node_fit(folder, *DIRECT, "training.stepz=3", HYDRA_FULL_ERROR="1")
    assert ran.code == 1 and "Traceback" in ran.err


def test_wrong_jobs_do_not_stop_each_other(wrong_jobs, folder):
    assert wrong_jobs.code == 1
    assert "Traceback" not in wrong_jobs.err + wrong_jobs.out
    assert len(wrong_jobs.err.splitlines()) == len(JOBS)
    assert {read_summary(folder / "sweep" / str(job))["status"] for job in range(len(JOBS))} == {"failed"}


@pytest.mark.parametrize("name", JOBS)
def test_wrong_job_gets_one_sentence(wrong_jobs, folder, name):
    job = list(JOBS).index(name)
    reason = read_summary(folder / "sweep" / str(job))["reason"]
    assert wrong_jobs.err.splitlines()[job] == f"error: {reason}"
    assert all(word in reason for word in JOBS[name][1]), reason
    assert reason.endswith((".", "?"))


def test_names_are_text_and_what_can_not_be_printed_is_written_as_codes(tmp_path):
    """Brackets are no markup, and an encoding without Greek fails no run."""
    rows = [{"t": k / 10, "rate [/s]": np.cos(k / 10), "ω [m/s]": np.sin(k / 10)} for k in range(30)]
    write_table(tmp_path / "mine.csv", rows)
    words = ("data=table", "data.path=mine.csv", "data.time=t", "data.states=['rate [/s]','ω [m/s]']", *SMALL)
    ran = node_fit(tmp_path, *words, "hydra.run.dir=run", PYTHONIOENCODING="ascii")
    assert ran.code == 0, ran
    assert "rate [/s]" in ran.out and "\\u03c9 [m/s]" in ran.out
    assert read_summary(tmp_path / "run")["status"] in ("converged", "stopped", "completed")


def test_predictions_come_back_to_the_last_digit(tmp_path):
    """Times like those of a clock since 1970, in milliseconds."""
    times = 1.7e9 + np.arange(30) / 1000
    write_table(tmp_path / "mine.csv", [{"t": repr(float(t)), "x": np.cos(k / 5)} for k, t in enumerate(times)])
    words = ("data=table", "data.path=mine.csv", "data.time=t", "data.states=[x]", *SMALL, "hydra.run.dir=run")
    assert node_fit(tmp_path, *words).code == 0
    rows = read_table(tmp_path / "run" / "predictions.csv")
    assert [float(row["t"]) for row in rows] == times.tolist()


def test_a_run_that_is_there_is_not_touched_by_one_that_can_not_begin(fitted):
    run, _ = fitted
    before = (run / "summary.json").read_bytes()
    ran = node_fit(run.parent, *SMALL, "precision=x16", f"hydra.run.dir={run}")
    assert ran.code == 1 and "x16" in ran.err
    assert (run / "summary.json").read_bytes() == before

"""`resume=`: a run that a signal has ended continues as if it had not been interrupted."""

import shutil
import signal

import pytest
from helpers.commands import DIRECT, begun, node_fit, read_summary, read_table, spirals, until, write_table
from safetensors import safe_open

import node_fit as nf

pytestmark = pytest.mark.slow

# With minibatches and a schedule, a resumed run must restore its PRNG keys and its step. Chunks of one step leave time
# for a signal.
LONG = (
    *DIRECT,
    "optimizer=adam",
    "training.batch_size=2",
    "training.steps=40",
    "training.chunk_steps=1",
    "training.patience=999",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    write_table(folder / "mine.csv", spirals())
    return folder


@pytest.fixture(scope="module")
def whole(folder):
    ran = node_fit(folder, *LONG, "hydra.run.dir=whole")
    assert ran.code == 0, ran
    return folder / "whole"


@pytest.fixture(scope="module")
def stopped(folder):
    """A run that SIGTERM has ended, and its exit code."""
    process = begun(folder, *LONG, "hydra.run.dir=parts")
    metrics = folder / "parts" / "metrics.csv"
    until(lambda: metrics.is_file() and len(metrics.read_text().splitlines()) > 3, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    shutil.copytree(folder / "parts", folder / "stopped")
    return folder / "stopped", process.returncode, out, err


@pytest.fixture(scope="module")
def resumed(folder, stopped):
    ran = node_fit(folder, "resume=parts")
    assert ran.code == 0, ran
    return folder / "parts", ran


def test_a_signal_ends_a_run_in_order(stopped):
    run, code, out, err = stopped
    assert code == 143 and err == ""
    summary = read_summary(run)
    assert summary["status"] == "interrupted"
    assert "SIGTERM" in summary["reason"] and "resume=" in summary["reason"]
    assert 3 <= summary["steps"] < 40
    assert summary["steps"] == int(read_table(run / "metrics.csv")[-1]["step"])
    assert summary["reason"] in out
    nf.load(run / "model.safetensors")


def test_a_resumed_run_ends_bit_for_bit_as_one_never_interrupted(whole, resumed):
    assert content(whole) == content(resumed[0])
    assert (whole / "predictions.csv").read_bytes() == (resumed[0] / "predictions.csv").read_bytes()


def content(run):
    """The model file's header and arrays; their order in the file is unspecified."""
    with safe_open(run / "model.safetensors", framework="numpy") as file:
        return file.metadata(), {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118


def test_metrics_have_no_gap_and_no_repeat(whole, resumed, stopped):
    one, two, earlier = (read_table(run / "metrics.csv") for run in (whole, resumed[0], stopped[0]))
    assert [int(row["step"]) for row in two] == list(range(1, 41))
    assert two[: len(earlier)] == earlier
    seconds = [float(row["seconds"]) for row in two]
    assert seconds == sorted(seconds)
    assert [without_seconds(row) for row in two] == [without_seconds(row) for row in one]


def without_seconds(row):
    return {key: value for key, value in row.items() if key != "seconds"}


def test_a_resumed_run_says_where_it_goes_on(resumed, stopped):
    run, ran = resumed
    assert f"step {read_summary(stopped[0])['steps']}" in ran.out
    summary = read_summary(run)
    assert (summary["status"], summary["steps"]) == ("completed", 40)


def test_a_resumed_run_keeps_its_config(resumed, stopped):
    for name in ("config.yaml", ".hydra/overrides.yaml"):
        assert (resumed[0] / name).read_bytes() == (stopped[0] / name).read_bytes()


def test_resume_of_something_else_is_refused(folder, whole, stopped):
    (folder / "empty").mkdir()
    for arguments, words in (
        (["resume=whoel"], ["whoel", "no such directory"]),
        (["resume=mine.csv"], ["mine.csv", "not a run"]),
        (["resume=empty"], ["empty", "not a run"]),
        (["resume=whole", "seed=1"], ["seed", "can't be changed", "training.steps"]),
        (["resume=whole", "-m"], ["--multirun"]),
    ):
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        ran = node_fit(folder, *arguments)
        assert ran.code == 1 and ran.err == f"error: {ran.sentence}\n"
        assert all(word in ran.sentence for word in words)
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_refused_resume_leaves_the_run_as_it_was(folder, stopped):
    run = folder / "bare"
    shutil.copytree(stopped[0], run)
    shutil.rmtree(run / "checkpoints")
    before = {name: (run / name).read_bytes() for name in ("summary.json", "metrics.csv", "model.safetensors")}
    ran = node_fit(folder, "resume=bare")
    assert ran.code == 1 and "checkpoint" in ran.sentence and "Traceback" not in ran.err
    assert {name: (run / name).read_bytes() for name in before} == before


def test_a_run_is_found_from_another_folder(folder, whole):
    (folder / "elsewhere").mkdir()
    shutil.copytree(whole, folder / "elsewhere" / "whole")
    ran = node_fit(folder / "elsewhere", "resume=whole")
    assert ran.code == 0, ran.err


def test_a_new_run_does_not_mix_with_one_in_its_directory(folder, stopped):
    run = folder / "taken"
    shutil.copytree(stopped[0], run)
    before = content(run)
    ran = node_fit(folder, *LONG, "seed=5", "hydra.run.dir=taken")
    assert ran.code == 1 and "taken" in ran.sentence and "resume=" in ran.sentence
    assert content(run) == before


def test_what_resumes_is_the_stored_config_whatever_the_files_say_now(tmp_path):
    """The experiment's file has changed, and is then gone; the run's folder has a name that needs quotes."""
    write_table(tmp_path / "mine.csv", spirals())
    experiment = tmp_path / "mine" / "experiment" / "one.yaml"
    experiment.parent.mkdir(parents=True)
    experiment.write_text("# @package _global_\npenalty: {ridge: 0.5}\n")
    words = ("--config-dir", "mine", *DIRECT, "experiment=one", "training.steps=2")
    ran = node_fit(tmp_path, *words, "hydra.run.dir=run")
    assert ran.code == 0, ran
    experiment.write_text("# @package _global_\npenalty: {ridge: 2.0}\n")
    place = (tmp_path / "run").rename(tmp_path / "it's ${mine}")
    stored = (place / "config.yaml").read_bytes()
    for word, key in (("penalty.ridge=2", "penalty.ridge"), ("optimizer=adam", "optimizer"), ("+field.a=1", "field.a")):
        ran = node_fit(tmp_path, f"resume={place.name}", word)
        assert ran.code == 1 and f"so {key} can't be changed" in ran.sentence
    experiment.unlink()
    free = ("penalty.ridge=0.5", "compile_cache=false", "device=cpu", "training.steps=4")
    ran = node_fit(tmp_path, f"resume={place.name}", *free)
    assert ran.code == 0, ran
    assert (place / "config.yaml").read_bytes() == stored
    summary = read_summary(place)
    assert summary["steps"] == 4 and {"experiment=one", "compile_cache=false"} <= set(summary["overrides"])


def test_a_new_run_in_a_folder_that_hydra_can_not_name_gets_a_sentence(tmp_path):
    folder = tmp_path / "${x}"
    folder.mkdir()
    ran = node_fit(folder, "training.steps=2", "hydra.run.dir=run")
    assert ran.code == 1 and "hydra.run.dir=FOLDER" in ran.sentence and "${ in its path" in ran.sentence

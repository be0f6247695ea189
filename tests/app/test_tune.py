"""`python -m node_fit.tune`: trials are runs, and a search survives failed trials and killed processes."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest
from helpers.commands import DIRECT, ENVIRONMENT, Ran, in_process, read_summary, read_table, spirals, until, write_table
from omegaconf import OmegaConf

import node_fit.__main__
from node_fit.app.config.composition import ConfigError
from node_fit.tune import Parameter, main, read_space, word

pytestmark = pytest.mark.slow

optuna = pytest.importorskip("optuna")

ADAM = (*DIRECT, "optimizer=adam")
# A whole small grid. Only the run finds that -1 is out of range; 1e-4 is too slow for the threshold.
GRID = (
    "+tune.space.optimizer.learning_rate={choice: [1e-4, 1e-2, 3e-2]}",
    "+tune.space.field.depth={choice: [1, -1]}",
    "~tune.space.penalty.ridge",
    "tune.sampler._target_=optuna.samplers.GridSampler",
    "+tune.sampler.search_space={optimizer.learning_rate: ['0.0001', '0.01', '0.03'], field.depth: ['1', '-1']}",
    "~tune.pruner",
    "+tune.pruner={_target_: optuna.pruners.ThresholdPruner, upper: 5.0}",
)
# Chunks of one step leave time for signals.
LONG = (*ADAM, "training.steps=30", "training.chunk_steps=1", "training.patience=999", "tune.pruner=null")


def tune(folder, *words) -> Ran:
    return in_process(main, folder, *words)


def begun(folder, *words) -> subprocess.Popen:
    command = [sys.executable, "-m", "node_fit.tune", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, **pipes)


def trials(study):
    """Optuna's records of a study, by number."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(study / "study.journal")))
    return optuna.load_study(study_name="node_fit", storage=storage).trials


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    write_table(folder / "mine.csv", spirals())
    return folder


@pytest.fixture(scope="module")
def searched(folder):
    ran = tune(folder, *ADAM, *GRID, "tune.study=grid", "tune.trials=50")
    return folder / "grid", ran


def test_every_trial_is_an_ordinary_run(searched):
    study, ran = searched
    assert ran.code == 0, ran
    rates = set()
    for record in trials(study):
        run = study / str(record.number)
        if record.state == optuna.trial.TrialState.FAIL:
            continue
        summary = read_summary(run)
        if record.state == optuna.trial.TrialState.COMPLETE:
            assert summary["metrics"]["validation"]["nrmse"] == pytest.approx(record.value)
        assert record.intermediate_values == {
            int(row["step"]): pytest.approx(float(row["validation_loss"])) for row in read_table(run / "metrics.csv")
        }
        config = OmegaConf.load(run / "config.yaml")
        assert "tune" not in config and config.resume is None
        rates.add(config.optimizer.learning_rate)
        node_fit.load(run / "model.safetensors")
    assert rates == {1e-4, 1e-2, 3e-2}


def test_a_sampler_that_has_tried_all_ends_the_search(searched):
    assert len(trials(searched[0])) == 6


def test_a_failed_trial_stops_no_other(searched):
    study, ran = searched
    failed = [record for record in trials(study) if record.state == optuna.trial.TrialState.FAIL]
    assert [record.params["field.depth"] for record in failed] == ["-1"] * 3
    assert ran.err.count("error: field.depth must be at least 0") == 3


def test_numbers_alone_compile_once(searched):
    study, _ = searched
    summaries = [read_summary(study / str(number)) for number in range(6)]
    compiles = [summary["compiles"] for summary in summaries if summary["status"] != "failed"]
    assert len(compiles) == 3 and compiles[1:] == [0, 0]


def test_leaderboard_ranks_all_trials(searched):
    study, ran = searched
    rows = read_table(study / "leaderboard.csv")
    assert sorted(row["job"] for row in rows) == list("012345")
    assert [row["status"] for row in rows] == ["completed"] * 2 + ["pruned"] + ["failed"] * 3
    assert float(rows[0]["validation_nrmse"]) < float(rows[1]["validation_nrmse"])
    assert f"best: trial {rows[0]['job']} of 6" in ran.out


def test_the_best_is_repeated_by_one_command(searched, folder):
    study, ran = searched
    best = study / read_table(study / "leaderboard.csv")[0]["job"]
    (line,) = re.findall("repeat it with: python -m node_fit (.*)", ran.out)
    assert shlex.join(shlex.split(line)) in (study / "best.sh").read_text()
    ran = in_process(node_fit.__main__.main, folder, *shlex.split(line), "hydra.run.dir=again")
    assert ran.code == 0 and ran.err == ""
    assert without_seconds(folder / "again") == without_seconds(best)
    assert read_summary(folder / "again")["metrics"] == read_summary(best)["metrics"]


def without_seconds(run):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in read_table(run / "metrics.csv")]


def test_a_bad_trial_is_pruned_at_a_chunk_end(searched):
    study, ran = searched
    (pruned,) = [record for record in trials(study) if record.state == optuna.trial.TrialState.PRUNED]
    assert pruned.params["optimizer.learning_rate"] == "0.0001" and list(pruned.intermediate_values) == [10]
    summary = read_summary(study / str(pruned.number))
    assert summary["status"] == "pruned" and summary["steps"] == 10 and "at step 10" in summary["reason"]
    assert f"pruned: {summary['reason']}" in ran.out
    assert (study / str(pruned.number) / "model.safetensors").is_file()


def test_what_no_trial_could_run_with_is_refused_before_any(folder):
    for words, parts in (
        (["+tune.space.penalty.rigde={log: [1e-3, 1]}"], ["penalty.rigde", "did you mean penalty.ridge"]),
        (["+tune.space.training.ridge={log: [1e-3, 1]}"], ["tune.space: training.ridge", "write penalty.ridge=VALUE"]),
        (["+tune.space.training.window={lgo: [1, 5]}"], ["tune.space.training.window", "did you mean log"]),
        (["tune.space.penalty.ridge.log=[1, 1e-3]"], ["tune.space.penalty.ridge", "low at most high"]),
        (["tune.space.penalty.ridge.log=[-1, 1]"], ["tune.space.penalty.ridge", "above 0"]),
        (["+tune.space.optimizer={choice: [adam, lbfsg]}"], ["optimizer=lbfsg", "did you mean optimizer=lbfgs"]),
        (["+tune.space.optimizer.b1={float: [0.5, 2.0]}"], ["optimizer.b1", "2.0"]),
        (["~tune.space.penalty"], ["tune.space is empty", "tune.space.penalty.ridge"]),
        (["data.split.validation=0.0"], ["validation data", "data.split.validation=0.2"]),
        (["tune.trials=0"], ["tune.trials", "at least 1"]),
        (["tune.sampler._target_=optuna.samplers.TPESamplr"], ["did you mean optuna.samplers.TPESampler"]),
        (["tune=adma"], ["tune=adma", "did you mean tune=adam"]),
        (["resume=auto"], ["tune.study=DIRECTORY"]),
        (["-m"], ["--multirun"]),
    ):
        ran = tune(folder, *ADAM, *words, "tune.study=refused")
        assert ran.code == 1 and ran.err == f"error: {ran.sentence}\n", (words, ran)
        assert all(part in ran.sentence for part in parts), ran.sentence
        assert not (folder / "refused" / "0").exists()


def test_without_optuna_a_sentence_says_what_to_install(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = tune(folder, *ADAM, "tune.study=none")
    assert ran.code == 1 and "pip install 'node_fit[tune]'" in ran.sentence


def test_a_study_of_something_else_is_not_gone_on_with(searched, folder):
    before = len(trials(searched[0]))
    for words, part in (
        (["seed=5"], "seed=0"),
        (["field.width=4"], "field.width=8"),
        (["penalty.ridge=0.5"], "penalty.ridge"),
    ):
        ran = tune(folder, *ADAM, *GRID, *words, "tune.study=grid", "tune.trials=50")
        assert ran.code == 1 and part in ran.sentence and "tune.study" in ran.sentence
    ran = tune(folder, *ADAM, "tune.study=grid", "tune.trials=50")
    assert ran.code == 1 and "tune.space" in ran.sentence
    assert len(trials(searched[0])) == before


def has_rows(run, count):
    metrics = run / "metrics.csv"
    return metrics.is_file() and len(metrics.read_text().splitlines()) > count


def test_a_search_that_is_ended_goes_on(folder):
    study = folder / "ended"

    def end():
        while not has_rows(study / "0", 5):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    ran = tune(folder, *LONG, "tune.trials=1", "tune.study=ended")
    thread.join()
    assert ran.code == 143 and ran.err == "" and "to continue the search" in ran.out
    (before,) = trials(study)
    steps = read_summary(study / "0")["steps"]
    assert before.state == optuna.trial.TrialState.RUNNING and 5 <= steps < 30
    assert read_table(study / "leaderboard.csv")[0]["status"] == "running"

    ran = tune(folder, *LONG, "tune.trials=1", "tune.study=ended")
    assert ran.code == 0 and f"resuming from step {steps}" in ran.out
    (after,) = trials(study)
    assert after.state == optuna.trial.TrialState.COMPLETE and after.params == before.params
    assert list(after.intermediate_values) == list(range(1, 31))


def test_a_search_that_is_killed_goes_on_in_two_processes(folder):
    """No trial is lost, and none runs twice."""
    words = (*LONG, "tune.trials=2", "tune.study=shared")
    study = folder / "shared"
    first = begun(folder, *words)
    until(lambda: has_rows(study / "0", 5), first)
    first.kill()
    first.communicate(timeout=120)
    values = trials(study)[0].params

    ended = [process.communicate(timeout=240) for process in [begun(folder, *words), begun(folder, *words)]]
    assert [err for _, err in ended] == ["", ""]
    records = trials(study)
    assert [record.state for record in records] == [optuna.trial.TrialState.COMPLETE] * 2
    assert records[0].params == values
    out = "".join(out for out, _ in ended)
    assert sorted(re.findall(r"^job (\d+):", out, re.MULTILINE)) == ["0", "1"] and "resuming from step" in out
    for number in range(2):
        rows = read_table(study / str(number) / "metrics.csv")
        assert [int(row["step"]) for row in rows] == list(range(1, 31))
        assert list(records[number].intermediate_values) == list(range(1, 31))
    assert {row["status"] for row in read_table(study / "leaderboard.csv")} == {"completed"}


def test_a_trial_that_kills_its_process_is_given_up(folder):
    """Three processes that end at the same point are enough."""
    from node_fit.app.run_logger import Interruption
    from node_fit.tune import Study

    study = Study(folder, optuna.samplers.RandomSampler(seed=0), None, Interruption(print))
    space = [Parameter("penalty.ridge", "log", (1e-3, 1.0))]
    begun = []
    for _ in range(5):
        with study.trial(space, 2) as trial:  # No process reports its result.
            begun.append(trial and (trial.number, tuple(trial.words)))
    assert begun[0] == begun[1] == begun[2] and begun[3] != begun[2]
    assert begun[3][0] == 1 and begun[4] == begun[3]


def test_a_trial_of_a_search_can_be_gone_on_with_as_a_run(searched, folder):
    study, _ = searched
    best = read_table(study / "leaderboard.csv")[0]["job"]
    ran = in_process(node_fit.__main__.main, folder, f"resume=grid/{best}", "training.steps=30")
    assert ran.code == 0 and "resuming from step 20" in ran.out
    assert read_summary(study / best)["steps"] == 30


def test_a_journal_that_was_cut_short_is_read(folder, searched):
    journal = searched[0] / "study.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole.splitlines()[-1][:20])
    ran = tune(folder, *ADAM, *GRID, "tune.study=grid", "tune.trials=6")
    assert ran.code == 0 and journal.read_bytes().startswith(whole)
    assert len(trials(searched[0])) == 6


@pytest.mark.parametrize(
    "value",
    ["adam", "1e-3", "null", "a b", "x,y", "it's", 'a"b', "", 3, 2.5e-7, True, None, [1, "x", None], {"a": [1.5]}],
)
def test_a_value_is_written_as_hydra_reads_it(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (override,) = OverridesParser.create().parse_overrides([f"key={word(value)}"])
    assert override.value() == value and type(override.value()) is type(value)


def test_a_space_nests_as_the_config_or_has_dotted_keys():
    nested = read_space({"penalty": {"ridge": {"log": [1e-3, 1]}}, "seed": {"int": [0, 9]}})
    assert nested == read_space({"penalty.ridge": {"log": [1e-3, 1]}, "seed": {"int": [0, 9]}})
    assert nested == [Parameter("penalty.ridge", "log", (1e-3, 1)), Parameter("seed", "int", (0, 9))]
    for space in ({}, {"train": 3}, {"seed": {"int": [0, 1.5]}}, {"seed": {"choice": []}}, {"seed": {"float": [1]}}):
        with pytest.raises(ConfigError, match=r"tune\.space"):
            read_space(space)


def test_suggested_numbers_lose_no_digit():
    trial = optuna.trial.FixedTrial({"x": 0.1 + 0.2})
    assert float(Parameter("x", "log", (0.1, 1)).suggest(trial).partition("=")[2]) == 0.1 + 0.2

"""`python -m node_fit -m`: many jobs in one process."""

import json

import pytest
from helpers.commands import DIRECT, node_fit, read_summary, read_table, spirals, write_table
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_automatic_config_search_path
from hydra.types import RunMode
from omegaconf import OmegaConf

from node_fit.app.config.composition import find_shipped
from node_fit.app.launching import CheckedLoader, register
from node_fit.app.leaderboard import publish
from node_fit.app.leaderboard import row as row_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Three seeds times four learning rates, one of which is out of range."""
    folder = tmp_path_factory.mktemp("sweep")
    write_table(folder / "mine.csv", spirals())
    ran = node_fit(
        folder, "-m", *DIRECT, "optimizer=adam", "optimizer.learning_rate=1e-3,-1,1e-2,3e-2", "seed=0,1,2",
        "hydra.sweep.dir=sweep",
    )  # fmt: skip
    return folder / "sweep", ran


def summaries(directory):
    return {path.name: read_summary(path) for path in directory.iterdir() if path.is_dir()}


def good(directory):
    return {name: summary for name, summary in summaries(directory).items() if summary["status"] != "failed"}


@pytest.mark.long
def test_each_job_has_its_own_directory(sweep):
    assert set(summaries(sweep[0])) == {str(job) for job in range(12)}
    assert len(good(sweep[0])) == 9
    for name in good(sweep[0]):
        assert (sweep[0] / name / "model.safetensors").is_file()
        assert len(read_table(sweep[0] / name / "metrics.csv")) == 2
        assert {path.name for path in (sweep[0] / name / "plots").iterdir()} == {"loss.png", "fit.png", "phase.png"}
    assert "not drawn" not in sweep[1].err


def test_seeds_and_learning_rates_compile_once(sweep):
    assert sum(summary["compiles"] + summary["cached"] for summary in good(sweep[0]).values()) == 1


def test_seeds_and_learning_rates_matter(sweep):
    models = {(sweep[0] / name / "model.safetensors").read_bytes() for name in good(sweep[0])}
    assert len(models) == 9
    rates = {read_table(sweep[0] / name / "metrics.csv")[0]["learning_rate"] for name in good(sweep[0])}
    assert len(rates) == 3


def test_a_failed_job_stops_no_other_and_shows_in_the_exit_code(sweep):
    _, ran = sweep
    assert ran.code == 1
    failed = [line for line in ran.err.splitlines() if line.startswith("error: optimizer.learning_rate")]
    assert len(failed) == 3 and "Traceback" not in ran.err


def test_leaderboard_is_sorted_and_names_the_failed(sweep):
    directory, _ = sweep
    rows = read_table(directory / "leaderboard.csv")
    assert {row["job"] for row in rows} == {str(job) for job in range(12)}
    assert [row["status"] == "failed" for row in rows] == [False] * 9 + [True] * 3
    scores = [float(row["validation_nrmse"]) for row in rows[:9]]
    assert scores == sorted(scores) and len(set(scores)) > 1
    for entry in rows[:9]:
        summary = read_summary(directory / entry["job"])
        assert float(entry["validation_nrmse"]) == summary["metrics"]["validation"]["nrmse"]
        assert f"seed={summary_seed(directory / entry['job'])}" in entry["overrides"].split()
    for entry in rows[9:]:
        assert "optimizer.learning_rate=-1" in entry["overrides"].split() and entry["validation_nrmse"] == ""


def summary_seed(run):
    return OmegaConf.load(run / "config.yaml").seed


def test_leaderboard_is_shown(sweep):
    directory, ran = sweep
    table = ran.out[ran.out.rindex("\njob ") :]
    assert table.count("failed") == 3 and table.count("completed") == 9
    assert "seed=2" in table and "optimizer.learning_rate=-1" in table
    assert "data.path=mine.csv" not in table  # All jobs share it.
    assert str(directory / "leaderboard.csv") in table


def test_a_job_is_composed_once_though_hydra_asks_twice(monkeypatch):
    compose, composed = ConfigLoaderImpl.load_configuration, []

    def counting(self, *arguments, **keywords):
        composed.append(keywords["overrides"])
        return compose(self, *arguments, **keywords)

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", counting)
    register()
    loader = CheckedLoader(create_automatic_config_search_path(None, None, str(find_shipped("conf", "config.yaml"))))
    found = [
        loader.load_configuration(config_name="config", overrides=[f"seed={seed}"], run_mode=RunMode.RUN)
        for seed in (1, 2, 1, 2)
    ]
    assert composed == [["seed=1"], ["seed=2"]]
    assert found[0] is not found[2]
    written = [OmegaConf.to_yaml(config) for config in found]  # Unresolved: its times of day differ.
    assert written[0] == written[2] != written[1] == written[3]
    assert [config.seed for config in found] == [1, 2, 1, 2]


def test_a_folder_that_can_not_be_made_ends_a_multirun_in_a_sentence(tmp_path):
    write_table(tmp_path / "mine.csv", spirals())
    (tmp_path / "file").touch()
    for place, says in (("file/sweep", "a file is in the way"), ("/proc/nothing/sweep", "can't be created")):
        ran = node_fit(tmp_path, "-m", *DIRECT, "seed=0,1", f"hydra.sweep.dir={place}")
        assert ran.code == 1 and "Traceback" not in ran.err and ran.err.count("\n") == 1
        assert says in ran.sentence and "hydra.sweep.dir" in ran.sentence


def test_a_ranking_without_validation_data_says_so(tmp_path, capsys):
    """Both in its file and on the screen; with validation data, they rank."""
    for job, validation in enumerate((None, 0.3)):
        scores = {"train": {"nrmse": 0.1 * (job + 1)}, "validation": validation and {"nrmse": validation}}
        (tmp_path / str(job)).mkdir()
        text = json.dumps({"status": "completed", "overrides": [], "metrics": scores})
        (tmp_path / str(job) / "summary.json").write_text(text)
    publish(tmp_path, [row_of(tmp_path / "0")], report=False)
    assert "ranked by train NRMSE, for lack of validation data" in capsys.readouterr().out
    assert [entry["ranked_by"] for entry in read_table(tmp_path / "leaderboard.csv")] == ["train_nrmse"]
    publish(tmp_path, [row_of(tmp_path / "0"), row_of(tmp_path / "1")], report=False)
    assert "ranked by validation NRMSE, then by train NRMSE those without" in capsys.readouterr().out
    assert [entry["job"] for entry in read_table(tmp_path / "leaderboard.csv")] == ["1", "0"]


@pytest.mark.parametrize(("best", "told"), [(0.25, True), (0.29, False)])
def test_validation_data_that_order_jobs_unlike_the_test_data_are_told_of(tmp_path, capsys, best, told):
    for job, (validation, test) in enumerate(((0.2, 0.3), (0.21, best))):
        scores = {"train": {"nrmse": 0.1}, "validation": {"nrmse": validation}, "test": {"nrmse": test}}
        (tmp_path / str(job)).mkdir()
        text = json.dumps({"status": "completed", "overrides": [], "metrics": scores})
        (tmp_path / str(job) / "summary.json").write_text(text)
    publish(tmp_path, [row_of(tmp_path / str(job)) for job in (0, 1)], report=False)
    assert (
        "job 1 does better on the test data (0.25 against 0.3)" in " ".join(capsys.readouterr().out.split())
    ) == told
    assert [entry["job"] for entry in read_table(tmp_path / "leaderboard.csv")] == ["0", "1"]

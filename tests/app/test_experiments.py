"""The experiments in `conf/`: each config can be built, and those with shipped data recover the known solution."""

import csv
import functools
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import node_fit, read_summary
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from scipy.linalg import expm

from node_fit.app.config.build import CONFIG_PARTS, build, without_words

CONFIGS = Path(__file__).parents[2] / "conf"
EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_a_config_that_can_be_built(name):
    OmegaConf.register_new_resolver("shipped", str, replace=True)
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("config", [f"experiment={name}"])
    OmegaConf.update(config, "data.path", "any.csv")
    for key in CONFIG_PARTS:
        build(without_words(config[key], key), key)
    text = (CONFIGS / "experiment" / f"{name}.yaml").read_text()
    assert f"python -m node_fit experiment={name}" in text.splitlines()[1]


@functools.cache
def ran(folder: Path, name: str) -> tuple[dict, list[dict]]:
    done = node_fit(folder, f"experiment={name}", f"hydra.run.dir={name}")
    assert done.code == 0, done.err
    with open(folder / name / "predictions.csv", newline="") as file:
        return read_summary(folder / name), list(csv.DictReader(file))


@pytest.mark.long
@pytest.mark.slow
def test_robertsons_rates_are_found_and_mass_is_kept(tmp_path):
    summary, rows = ran(tmp_path, "robertson")
    assert summary["constants"] == pytest.approx({"k1": 0.04, "k2": 3e7, "k3": 1e4}, rel=0.01)
    with open(tmp_path / "robertson" / "metrics.csv", newline="") as file:
        assert sum(int(row["failed_solves"]) for row in csv.DictReader(file)) == 0
    total = [sum(float(row[f"{name}_predicted"]) for name in ("y1", "y2", "y3")) for row in rows]
    np.testing.assert_allclose(total, 1.0, atol=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_the_constants_of_lotka_and_volterra(tmp_path):
    summary, rows = ran(tmp_path, "lotka_volterra_known")
    assert summary["constants"] == pytest.approx({"a": 0.54, "b": 0.027, "c": 0.80, "d": 0.024}, rel=0.05)
    errors = [np.log(float(row[f"{name}_predicted"]) / float(row[name])) for row in rows for name in ("hare", "lynx")]
    assert len(errors) == 42
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(0.219, abs=0.001)
    assert "all rows" in summary["start"]


RATES = {"a": 5.926e-5, "b": 2.963e-5, "c": 2.047e-5, "d": 27.45e-5, "e": 3.998e-5}


@pytest.mark.long
@pytest.mark.slow
def test_the_rates_of_alpha_pinene_and_their_errors(tmp_path):
    """As published (Rodriguez-Fernandez, Egea and Banga, BMC Bioinformatics 7:483, 2006); errors by finite differences
    of the exact solution, since the equations are linear."""
    summary, rows = ran(tmp_path, "alpha_pinene")
    assert summary["constants"] == pytest.approx(RATES, rel=1e-3)
    states = ("pinene", "dipentene", "alloocimene", "pyronene", "dimer")
    off = np.array([[float(row[f"{name}_predicted"]) - float(row[name]) for name in states] for row in rows])
    assert np.square(off).sum() == pytest.approx(19.87, abs=0.005)
    ts = [float(row["time"]) for row in rows][-8:]

    def solution(rates):
        a, b, c, d, e = rates
        matrix = np.zeros((5, 5))
        matrix[0, 0], matrix[1, 0], matrix[2, 0] = -(a + b), a, b
        matrix[2, 2], matrix[2, 4], matrix[3, 2], matrix[4, 2], matrix[4, 4] = -(c + d), e, c, d, -e
        return np.array([expm(t * matrix)[:, 0] * 100 for t in ts]).reshape(-1)

    best = np.array([summary["constants"][name] for name in RATES])
    columns = [(solution(best + step) - solution(best - step)) / (2 * step.sum()) for step in np.diag(1e-5 * best)]
    errors = np.sqrt(np.diag(np.linalg.inv(np.array(columns) @ np.array(columns).T))) * 0.7535
    found = [summary["confidence"]["constants"][name]["standard_error"] for name in RATES]
    np.testing.assert_allclose(found, errors, rtol=1e-3)

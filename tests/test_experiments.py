"""The experiments in `conf/`: each config can be built, and those with shipped data recover the known solution."""

import csv
import functools
from pathlib import Path

import numpy as np
import pytest
from commands import node_fit, read_summary
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from node_fit.app.config.configuration import build
from node_fit.app.config.parts import PARTS

CONFIGS = Path(__file__).parents[1] / "conf"
EXPERIMENTS = sorted(path.stem for path in (CONFIGS / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_a_config_that_can_be_built(name):
    OmegaConf.register_new_resolver("shipped", str, replace=True)
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("config", [f"experiment={name}"])
    OmegaConf.update(config, "data.path", "any.csv")
    for key in PARTS:
        build(config[key], key)
    text = (CONFIGS / "experiment" / f"{name}.yaml").read_text()
    assert f"python -m node_fit experiment={name}" in text.splitlines()[1]


@functools.cache
def ran(folder: Path, name: str) -> tuple[dict, list[dict]]:
    done = node_fit(folder, f"experiment={name}", f"hydra.run.dir={name}")
    assert done.code == 0, done.err
    with open(folder / name / "predictions.csv", newline="") as file:
        return read_summary(folder / name), list(csv.DictReader(file))


def test_robertsons_rates_are_found_and_mass_is_kept(tmp_path):
    summary, rows = ran(tmp_path, "robertson")
    assert summary["constants"] == pytest.approx({"k1": 0.04, "k2": 3e7, "k3": 1e4}, rel=0.01)
    with open(tmp_path / "robertson" / "metrics.csv", newline="") as file:
        assert sum(int(row["failed_solves"]) for row in csv.DictReader(file)) == 0
    total = [sum(float(row[f"{name}_predicted"]) for name in ("y1", "y2", "y3")) for row in rows]
    np.testing.assert_allclose(total, 1.0, atol=1e-6)


def test_the_constants_of_lotka_and_volterra(tmp_path):
    summary, rows = ran(tmp_path, "lotka_volterra_known")
    assert summary["constants"] == pytest.approx({"a": 0.54, "b": 0.027, "c": 0.80, "d": 0.024}, rel=0.05)
    errors = [np.log(float(row[f"{name}_predicted"]) / float(row[name])) for row in rows for name in ("hare", "lynx")]
    assert len(errors) == 42
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(0.219, abs=0.001)
    assert "all rows" in summary["start"]

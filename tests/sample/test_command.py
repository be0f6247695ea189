"""The command that draws from a run's posterior: what it reads, writes and refuses."""

import subprocess
import sys

import numpy as np
import pytest

from node_fit.sample.__main__ import chosen_ridge, main, sample_run, summarise_posterior
from node_fit.sample.sampling import Posterior


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither a run directory nor a PEtab problem"):
        sample_run(tmp_path, {}, print)


def test_settings_are_checked_before_a_run_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sample", str(tmp_path), "--draws", "2"])
    with pytest.raises(SystemExit):
        main()
    assert "draws, chains and warmup must be at least 4, 2 and 20, got 2, 4, 500" in capsys.readouterr().err


def test_the_ridge_of_a_run_is_its_prior():
    assert chosen_ridge({}) == 0.0
    assert chosen_ridge({"choices": {"penalty.ridge": {"value": "0.1", "reason": "it predicts best"}}}) == 0.1


def test_summary():
    draws = np.random.default_rng(0).standard_normal((4, 200))
    found = summarise_posterior(
        Posterior({"k": draws}, draws[..., None], draws, np.zeros((4, 200), bool), "k flat", 1.5, 0.5)
    )
    assert found["divergences"] == 0 and found["prior"] == "k flat" and found["seconds"] == 1.5
    assert found["constants"]["k"]["lower"] < found["constants"]["k"]["median"] < found["constants"]["k"]["upper"]
    assert found["rhat"]["k"] == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
def test_help():
    done = subprocess.run(
        [sys.executable, "-m", "node_fit.sample", "--help"], capture_output=True, text=True, check=True
    )
    assert "posterior.parquet" in done.stdout

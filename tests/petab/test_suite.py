"""The cases of the PEtab test suite, each with the log-likelihood, chi2 and simulations that it states."""

import csv
from pathlib import Path

import numpy as np
import pytest
import yaml

import node_fit

CASES = Path(__file__).parents[3] / "shared" / "petab" / "test_suite" / "petabtests" / "cases"
PROBLEMS = sorted(CASES.glob("v*/sbml/*/_[0-9][0-9][0-9][0-9].yaml"))
QUICK = {"v1/0007", "v1/0012", "v1/0017", "v2/0021", "v2/0024", "v2/0023"}


def name_of(path: Path) -> str:
    return f"{path.parts[-4][:2]}/{path.parts[-2]}"


@pytest.mark.skipif(not PROBLEMS, reason="the PEtab test suite is not beside the repository")
def test_the_suite_is_complete():
    assert len([path for path in PROBLEMS if name_of(path).startswith("v1")]) == 20
    assert len([path for path in PROBLEMS if name_of(path).startswith("v2")]) == 31


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name_of(path), marks=[] if name_of(path) in QUICK else [pytest.mark.slow])
        for path in PROBLEMS
    ],
)
def test_a_case_of_the_suite(path):
    expected = yaml.safe_load(path.with_name(f"{path.stem}_solution.yaml").read_text())
    with path.with_name("_simulations.tsv").open() as file:
        simulated = [float(row["simulation"]) for row in csv.DictReader(file, delimiter="\t")]
    objective = node_fit.objective(node_fit.read_petab(path))
    x = objective.nominal
    assert np.abs(objective.simulate(x) - simulated).max() <= expected["tol_simulations"]
    assert abs(objective.log_likelihood(x) - expected["llh"]) <= expected["tol_llh"]
    assert abs(objective.chi2(x) - expected["chi2"]) <= expected["tol_chi2"]
    if "unnorm_log_posterior" in expected:
        posterior = objective.log_likelihood(x) + objective.log_prior(x)
        assert abs(posterior - expected["unnorm_log_posterior"]) <= expected["tol_unnorm_log_posterior"]

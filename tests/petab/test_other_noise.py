"""Other noise than the tables of a problem name: its likelihood, derivatives, and fits to data with outliers."""

import csv
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import node_fit as run_node_fit
from helpers.petab import CHAIN, FILES, write_problem
from scipy import stats

import node_fit as nf

K1, K2 = 0.7, 0.25
TIMES = np.linspace(0.5, 8, 16)


def write_chain(folder: Path) -> None:
    """The model, and measurements with noise of 0.02, of which two are wrong by 2."""
    (folder / "model.xml").write_text(CHAIN)
    a = 2 * np.exp(-K1 * TIMES)
    b = 2 * K1 / (K2 - K1) * (np.exp(-K1 * TIMES) - np.exp(-K2 * TIMES))
    ys = np.stack([a, b], axis=1) + 0.02 * np.random.default_rng(0).normal(size=(16, 2))
    ys[4, 0] += 2.0
    ys[9, 1] += 2.0
    with open(folder / "data.csv", "w", newline="") as file:
        csv.writer(file).writerows([("time", "A", "B"), *np.column_stack([TIMES, ys])])


def errors_of(fit):
    return abs(fit.parameters["k1"] / K1 - 1), abs(fit.parameters["k2"] / K2 - 1)


@pytest.mark.parametrize(
    ("loss", "density"),
    [("student", stats.t(4.0)), ("laplace", stats.laplace()), (nf.StudentT(7.0), stats.t(7.0))],
    ids=["student", "laplace", "7 degrees"],
)
def test_a_loss_replaces_the_noise_of_all_observables_on_their_scales(loss, density, tmp_path):
    problem = nf.read_petab(write_problem(tmp_path / "decay"))
    objective = nf.objective(nf.with_loss(problem, loss))
    x = objective.nominal
    expected = 0.0
    for each, simulated in zip(problem.measurements, objective.simulate(x), strict=True):
        scale, sigma = {"plain": ("lin", 0.05), "scaled": ("log10", None), "sturdy": ("log", 0.3)}[each.observable]
        if sigma is None:  # 0.1 + 0.1 x, where the observable is 3 x^2.
            sigma = 0.1 + 0.1 * np.sqrt(simulated / 3)
        to, stretch = {
            "lin": (lambda y: y, 0.0),
            "log": (np.log, np.log(each.value)),
            "log10": (np.log10, np.log(each.value * np.log(10))),
        }[scale]
        z = (to(each.value) - to(simulated)) / sigma
        expected += float(density.logpdf(z)) - np.log(sigma) - stretch
    assert objective.log_likelihood(x) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_the_gradient_agrees_with_finite_differences(tmp_path):
    objective = nf.objective(nf.with_loss(nf.read_petab(write_problem(tmp_path / "decay")), "huber"))
    x, steps = objective.nominal + 0.01, 1e-4 * np.eye(5)
    rises = [objective.log_likelihood(x + step) - objective.log_likelihood(x - step) for step in steps]
    np.testing.assert_allclose(objective.gradient(x), np.array(rises) / 2e-4, rtol=1e-5, atol=1e-4)


@pytest.mark.long
@pytest.mark.slow
def test_constants_are_found_in_spite_of_outliers(tmp_path):
    """With normal noise they are off by far, which shows that the outliers matter."""
    write_chain(tmp_path)
    problem = nf.SBML(str(tmp_path / "model.xml"), str(tmp_path / "data.csv"), parameters=["k1", "k2"]).read()
    assert max(errors_of(nf.fit_petab(problem, restarts=2))) > 0.1
    for loss in ("huber", "student", "laplace"):
        fit = nf.fit_petab(nf.with_loss(problem, loss), restarts=2)
        assert max(errors_of(fit)) < 0.05, loss


@pytest.mark.slow
def test_the_command_takes_a_loss(tmp_path):
    write_chain(tmp_path)
    words = ("data=sbml", "data.path=model.xml", "data.table=data.csv", "data.parameters=[k1,k2]", "restarts=2")
    run = run_node_fit(tmp_path, *words, "loss=student", "hydra.run.dir=out", "report=false")
    assert run.code == 0, run.out + run.err
    with open(tmp_path / "out" / "parameters.tsv") as file:
        found = {row["parameterId"]: float(row["nominalValue"]) for row in csv.DictReader(file, delimiter="\t")}
    assert found["k1"] == pytest.approx(K1, rel=0.05)
    assert "loss: StudentT(degrees=4.0) for all measurements" in run.out


@pytest.mark.parametrize("loss", ["poisson", nf.StudentT("fitted")], ids=["counts", "fitted"])
def test_likelihoods_that_a_problem_has_no_place_for_are_refused(loss, tmp_path):
    problem = nf.read_petab(write_problem(tmp_path / "decay"))
    with pytest.raises(ValueError, match=r"loss must be squares, huber, student or laplace with constants that"):
        nf.with_loss(problem, loss)


def test_the_tables_name_the_loss(tmp_path):
    assert "laplace" in FILES["observables.tsv"]
    losses = {name: type(each.loss) for name, each in nf.read_petab(write_problem(tmp_path / "d")).observables.items()}
    assert losses == {"plain": nf.Squares, "scaled": nf.Squares, "sturdy": nf.Laplace}

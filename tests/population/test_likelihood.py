"""The likelihood of a population: each method against formulas for one effect, and its gradient against differences."""

import numpy as np
import pytest


def objective(decays, x, method):
    population = decays.population
    z = population.still if method == "fo" else population.find_modes(x, interaction=method != "foce")
    return population.objective(x, z, method)


@pytest.mark.parametrize("method", ["focei", "foce", "fo"])
def test_objective_is_that_of_the_formulas(decays, method):
    assert objective(decays, decays.x, method)[0] == pytest.approx(decays.closed_form(decays.x[0], method), abs=1e-6)


@pytest.mark.parametrize("method", ["focei", "foce", "fo"])
def test_gradient_is_exact(decays, method):
    """The implicit derivative of the mode is in it: without, it is off by more than a hundredth."""
    _, gradient = objective(decays, decays.x, method)
    for at in range(len(decays.x)):
        step = 1e-4 * np.eye(len(decays.x))[at]
        ends = [objective(decays, decays.x + side * step, method)[0] for side in (1, -1)]
        assert gradient[at] == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-5, abs=1e-5)


def test_modes_have_no_slope(decays):
    population, x = decays.population, decays.x
    z = population.find_modes(x)
    ends = [population.densities(x, z + side * 1e-4) for side in (1, -1)]
    assert np.abs(ends[0] - ends[1]).max() / 2e-4 < 1e-5
    assert (population.densities(x, z) <= ends[0]).all() and (population.densities(x, z) <= ends[1]).all()


def test_quadrature_converges_to_the_integral(decays):
    population, x = decays.population, decays.x
    z = population.find_modes(x)
    exact = decays.closed_form(x[0], "exact")
    assert population.quadrature(x, z, 1) == pytest.approx(objective(decays, x, "focei")[0], abs=1e-6)
    assert population.quadrature(x, z, 15) == pytest.approx(exact, abs=1e-4)
    assert abs(population.quadrature(x, z, 1) - exact) > 0.01


def test_quadrature_refuses_too_many_nodes(decays):
    with pytest.raises(ValueError, match="take fewer nodes"):
        decays.population.quadrature(decays.x, decays.population.still, 30_000)


@pytest.mark.slow
def test_laplace_takes_the_exact_curvature(decays):
    x, population = decays.x, decays.population
    value, gradient = objective(decays, x, "laplace")
    z, total = population.find_modes(x), 0.0
    for subject in range(len(z)):
        _, half_misfit, _ = decays.parts(x[0], True, subject)
        mode, step = 0.2 * z[subject, 0], 1e-3
        curvature = (half_misfit(mode + step) - 2 * half_misfit(mode) + half_misfit(mode - step)) / step**2
        total += 2 * half_misfit(mode) + np.log(0.04 * curvature)
    assert value == pytest.approx(total, abs=1e-4)
    ends = [objective(decays, x + side * np.array([1e-4, 0, 0]), "laplace")[0] for side in (1, -1)]
    assert gradient[0] == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-5)

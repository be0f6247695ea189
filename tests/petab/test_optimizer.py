"""Fits from a start: narrow curved valleys, and bounds that are in the way."""

from types import SimpleNamespace

import numpy as np

from node_fit.petab.fitting import Optimizer


class Valley:
    """Rosenbrock's function as a log-likelihood, whose Fisher information is that of its two residuals."""

    def __init__(self, lower: float, upper: float):
        self.bounds = np.full(2, lower), np.full(2, upper)
        self.estimated = []

    def log_likelihood(self, x: np.ndarray) -> float:
        return -0.5 * float(np.sum(self.residuals(x) ** 2))

    def residuals(self, x: np.ndarray) -> np.ndarray:
        return np.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])

    def differentiate(self, x: np.ndarray) -> SimpleNamespace:
        slopes = np.array([[-20 * x[0], 10.0], [-1.0, 0.0]])
        gradient = -slopes.T @ self.residuals(x)
        return SimpleNamespace(value=self.log_likelihood(x), gradient=gradient, fisher=slopes.T @ slopes)


def test_a_curved_valley_is_followed_to_its_end():
    fit = Optimizer(Valley(-5, 5)).maximise(np.array([-1.2, 1.0]))
    np.testing.assert_allclose(fit.x, 1.0, atol=1e-4)
    assert fit.has_converged and fit.evaluations < 60


def test_a_maximum_outside_the_bounds_is_approached_along_them():
    """With x <= 1/2, the best is at the bound x = 1/2, y = 1/4."""
    fit = Optimizer(Valley(-5, 0.5)).maximise(np.array([-1.2, 0.1]))
    np.testing.assert_allclose(fit.x, [0.5, 0.25], atol=1e-5)
    assert fit.x[0] == 0.5


class Saddle:
    """A quadratic function in the unit cube whose curvature is known, and negative in a direction."""

    estimated, bounds = (), (np.zeros(3), np.ones(3))
    slopes = np.array([-25.0, 0.0, 75.0])
    curvature = np.array([[100.0, -125.0, 25.0], [-125.0, 200.0, -25.0], [25.0, -25.0, -150.0]])

    def log_likelihood(self, x: np.ndarray) -> float:
        return float(self.slopes @ x - 0.5 * x @ self.curvature @ x)

    def differentiate(self, x: np.ndarray) -> SimpleNamespace:
        gradient = self.slopes - self.curvature @ x
        return SimpleNamespace(value=self.log_likelihood(x), gradient=gradient, fisher=self.curvature)


def test_a_step_that_stops_at_bounds_is_not_the_end():
    """At this start the best step in the ball leaves the cube, and what is left of it would lose."""
    saddle = Saddle()
    optimizer = Optimizer(saddle)
    fit = optimizer.maximise(np.array([1.0, 0.05, 0.9]))
    gradient = saddle.differentiate(fit.x).gradient
    np.testing.assert_allclose(gradient[optimizer.box.is_free(fit.x, -gradient)], 0.0, atol=1e-3)

"""Steps within a ball and bounds, curvature learned from gradients, and bounds at which a search ends."""

import numpy as np
import pytest

from node_fit.minimize.host import Box, LazyPoint, QuadraticModel, Secant, TrustRegion, minimize, step_in_ball


def search(value, expand, begin, bounds, **options):
    """The end of a search, and its rule."""

    def look(x: np.ndarray) -> LazyPoint:
        return LazyPoint(x, value(x), expand)

    rule = TrustRegion(Box(*bounds, np.ones(len(begin))), **options)
    return minimize(look(np.asarray(begin, float)), rule, look), rule


def squares(x: np.ndarray) -> float:
    """The sum of Rosenbrock's residuals."""
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


def near(x: np.ndarray) -> QuadraticModel:
    jacobian = np.array([[-20 * x[0], 10.0], [-1.0, 0.0]])
    return QuadraticModel(squares(x), 2 * jacobian.T @ [10 * (x[1] - x[0] ** 2), 1 - x[0]], 2 * jacobian.T @ jacobian)


WIDE = (np.full(2, -5.0), np.full(2, 5.0))


def test_a_curved_valley_is_followed_to_its_end():
    found, rule = search(squares, near, [-1.2, 1.0], WIDE)
    np.testing.assert_allclose(found.x, 1.0, atol=1e-4)
    assert rule.has_converged and rule.evaluations < 60


def test_a_search_that_is_cut_short_has_not_converged():
    found, rule = search(squares, near, [-1.2, 1.0], WIDE, max_evaluations=5)
    assert not rule.has_converged and rule.evaluations == 5 and found.value < squares(np.array([-1.2, 1.0]))


def test_a_parameter_that_is_held_stays_and_one_at_its_bound_rests():
    found, _ = search(squares, near, [-1.2, 1.0], WIDE, held=[0])
    np.testing.assert_allclose(found.x, [-1.2, 1.44], atol=1e-5)
    found, _ = search(squares, near, [-1.2, 0.1], (np.full(2, -5.0), np.full(2, 0.5)))
    np.testing.assert_allclose(found.x, [0.5, 0.25], atol=1e-5)
    assert found.x[0] == 0.5


def test_a_parameter_that_nothing_depends_on_stays():
    """The curvature is of lower rank than the parameters are many."""

    def near(x: np.ndarray) -> QuadraticModel:
        return QuadraticModel((x[0] - 2) ** 2, np.array([2 * (x[0] - 2), 0.0]), np.diag([2.0, 0.0]))

    found, rule = search(lambda x: (x[0] - 2) ** 2, near, [0.0, 1.5], WIDE)
    np.testing.assert_allclose(found.x, [2.0, 1.5], atol=1e-3)
    assert rule.has_converged


@pytest.mark.parametrize("lost", ["value", "gradient"])
def test_a_point_that_is_not_finite_is_not_taken(lost):
    """Beyond 1.15, where the first step leads, there is no value or no gradient; the minimum is at 1.1."""

    def value(x: np.ndarray) -> float:
        return np.nan if lost == "value" and x[0] > 1.15 else float((x[0] - 1.1) ** 2)

    def near(x: np.ndarray) -> QuadraticModel:
        slope = np.nan if lost == "gradient" and x[0] > 1.15 else 2 * (x[0] - 1.1)
        return QuadraticModel(value(x), np.array([slope]), np.array([[0.1]]))  # so flat a model that steps are too long

    found, _ = search(value, near, [0.98], (np.array([-5.0]), np.array([5.0])))
    np.testing.assert_allclose(found.x, 1.1, atol=1e-2)


@pytest.mark.parametrize("curvature", [np.diag([4.0, 1.0]), np.diag([4.0, -1.0]), np.zeros((2, 2))])
@pytest.mark.parametrize("radius", [0.1, 10.0])
def test_a_step_lowers_the_model_most_within_the_ball(curvature, radius):
    here = QuadraticModel(0.0, np.array([1.0, 0.5]), curvature)
    step = step_in_ball(here.curvature, here.gradient, radius)
    assert np.linalg.norm(step) <= radius * 1.0001
    angles, lengths = np.meshgrid(np.linspace(0, 2 * np.pi, 181), np.linspace(0, radius, 51))
    others = np.stack([lengths * np.cos(angles), lengths * np.sin(angles)]).reshape(2, -1).T
    assert here.predict_decrease(step) >= 0.98 * max(here.predict_decrease(other) for other in others)


def test_what_a_curvature_lacks_is_learned():
    """Of a quadratic function whose curvature is twice what is known of it."""
    curvature, known = np.array([[2.0, 0.4], [0.4, 1.0]]), np.array([[1.0, 0.2], [0.2, 0.5]])
    secant, x = Secant(2), np.array([1.0, -2.0])
    for moved in np.array([[0.5, 0.1], [-0.2, 0.3], [0.1, 0.6], [0.3, -0.2]]):
        here, there = (QuadraticModel(0.5 * at @ curvature @ at, curvature @ at, known) for at in (x, x + moved))
        secant.judge(here, moved, here.value - there.value)
        secant.update(here, there, moved)
        x = x + moved
    np.testing.assert_allclose(secant.lack, curvature - known, atol=0.1)
    assert secant.is_better

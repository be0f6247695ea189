"""Searches on the host: a curved valley, parameters that nothing tells of, points without a value, many at once."""

import numpy as np
import pytest

from node_fit.minimize.host import (
    DampedSteps,
    Damping,
    LazyPoint,
    LinearisedPoint,
    QuadraticModel,
    minimize,
    minimize_together,
)


def valley(x: np.ndarray, bend: float = 10.0) -> LinearisedPoint:
    """The residuals of Rosenbrock's function."""
    residuals = np.array([bend * (x[1] - x[0] ** 2), 1 - x[0]])
    return LinearisedPoint(x, residuals, np.array([[-2 * bend * x[0], bend], [-1.0, 0.0]]))


BEGIN = np.array([-1.2, 1.0])


def test_a_curved_valley_is_followed_to_its_end():
    found = minimize(valley(BEGIN), DampedSteps(LinearisedPoint.step, Damping(), max_evaluations=100), valley)
    np.testing.assert_allclose(found.x, 1.0, rtol=1e-8)


def test_the_damping_follows_what_a_quadratic_model_predicts():
    """Nielsen's rule from a gradient and a curvature alone."""

    def look(x: np.ndarray) -> LazyPoint:
        def expand(x: np.ndarray) -> QuadraticModel:
            return QuadraticModel(at.value, 2 * at.jacobian.T @ at.residuals, 2 * at.jacobian.T @ at.jacobian)

        at = valley(x)
        return LazyPoint(x, at.value, expand)

    dampings: list[float] = []

    def step(here: LazyPoint, damping: float) -> np.ndarray:
        dampings.append(damping)
        return here.x - np.linalg.solve(here.local.curvature + damping * np.eye(2), here.local.gradient)

    rule = DampedSteps(
        step,
        Damping(1.0, increase=2.0),
        max_steps=60,
        predict=lambda old, new: old.local.predict_decrease(new.x - old.x),
    )
    np.testing.assert_allclose(minimize(look(BEGIN), rule, look).x, 1.0, rtol=1e-6)
    ratios = np.divide(dampings[1:], dampings[:-1])
    assert ratios.min() == pytest.approx(1 / 3) and 2.0 in ratios, "an exact prediction eases by a third at most"


@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_a_parameter_that_nothing_depends_on_stays(damping):
    at = LinearisedPoint(np.array([1.0, 7.0]), np.array([1.0, 2.0]), np.array([[1.0, 0.0], [2.0, 0.0]]))
    for scaled, unit in ((False, 1.0), (True, 5.0)):
        found = at.step(damping, scaled=scaled)
        np.testing.assert_allclose(found, [1 - 5 / (5 + unit * damping), 7.0], atol=1e-14)


def test_free_parameters_follow_one_that_is_held():
    """As ridge regression in units of the columns says."""
    rng = np.random.default_rng(0)
    at = LinearisedPoint(rng.normal(size=3), rng.normal(size=9), rng.normal(size=(9, 3)) * [1.0, 0.1, 10.0])
    held, free = np.array([0.0, 0.5, 0.0]), np.array([True, False, True])
    columns, wanted = at.jacobian[:, free], at.residuals + at.jacobian @ held
    matrix = columns.T @ columns * (1 + 0.3 * np.eye(2))
    found = at.step(0.3, free, held)
    np.testing.assert_allclose(found[free], at.x[free] - np.linalg.solve(matrix, columns.T @ wanted), rtol=1e-10)
    assert found[1] == at.x[1] + 0.5


def test_a_point_without_a_value_turns_the_search_back():
    """Beyond 1.2 nothing can be computed, and the first step would go there."""

    def look(x: np.ndarray) -> LinearisedPoint:
        residuals = np.where(x > 1.2, np.nan, np.tanh(x) - 0.76)
        return LinearisedPoint(x, residuals, np.diag(1 - np.tanh(x) ** 2))

    assert np.isnan(look(look(np.array([-1.5])).step(1e-3)).value)
    found = minimize(look(np.array([-1.5])), DampedSteps(LinearisedPoint.step, Damping(), max_evaluations=40), look)
    np.testing.assert_allclose(found.x, np.arctanh(0.76), rtol=1e-6)
    lost = look(np.array([2.0]))
    assert minimize(lost, DampedSteps(LinearisedPoint.step, Damping()), look) is lost, "nor does a search begin there"


def test_searches_that_go_on_together_are_as_each_alone():
    """They end after other numbers of evaluations."""
    bends = [0.1, 1.0, 10.0]

    def is_still(old: LinearisedPoint, new: LinearisedPoint) -> bool:
        return abs(old.value - new.value) < 1e-12

    begun = [valley(BEGIN, bend) for bend in bends]
    rules = lambda: [DampedSteps(LinearisedPoint.step, Damping(), is_still=is_still) for _ in bends]  # noqa: E731
    rounds: list[list[int]] = []

    def evaluate(points):
        rounds.append([*points])
        return [valley(x, bends[at]) for at, x in points.items()]

    together = minimize_together(begun, rules(), evaluate)
    assert rounds[0] == [0, 1, 2] and len(rounds[-1]) < 3
    for begin, rule, bend, found in zip(begun, rules(), bends, together, strict=True):
        np.testing.assert_array_equal(minimize(begin, rule, lambda x, bend=bend: valley(x, bend)).x, found.x)


def test_a_search_that_is_ended_leaves_its_best_point():
    rules = [DampedSteps(LinearisedPoint.step, Damping(), max_evaluations=100) for _ in range(2)]

    def evaluate(points):
        if rules[0].evaluations == 11:
            rules[0].max_evaluations = 0
        return [valley(x) for x in points.values()]

    left, whole = minimize_together([valley(BEGIN)] * 2, rules, evaluate)
    assert whole.value < left.value < valley(BEGIN).value
    assert rules[0].evaluations == 12 < rules[1].evaluations


@pytest.mark.parametrize("limit", [{"max_evaluations": 4}, {"max_steps": 4}, {"damping": Damping(maximum=10.0)}])
def test_limits_end_a_search(limit):
    """Where every step lowers the value without end, or none does until the damping is too large."""
    seen: list[float] = []

    def look(x: float) -> LinearisedPoint:
        seen.append(x)
        value = np.exp(abs(x) if "damping" in limit else -x)
        return LinearisedPoint(np.array([x]), np.array([value]), np.eye(1))

    minimize(
        look(0.0), DampedSteps(lambda here, damping: float(here.x[0]) + 1.0, **{"damping": Damping(), **limit}), look
    )
    assert len(seen) == 5

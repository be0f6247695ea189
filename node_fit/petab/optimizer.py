"""Fits of a likelihood within bounds from a start, by steps in a trust region, and random starts."""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from .objective import Objective

MAX_EVALUATIONS = 500
# A fit from a start begins at the best of so many points, which costs little beside the fit.
POINTS_FOR_A_START = 20
# The trust region's first and largest radius, in tenths of the range between a parameter's bounds.
FIRST_RADIUS, LARGEST_RADIUS, SMALLEST_RADIUS = 0.2, 5.0, 1e-9
# The gain of a step over what the model says: from where on it is taken, the region grows, and below which it shrinks.
TAKEN, TRUSTED, DOUBTED = 1e-4, 0.75, 0.25
# A fit has converged after so many steps in a row that gain less than so much, or if the model promises less.
MOST_STILL, ACCURATE_VALUE, LEAST_PROMISE = 3, 1e-6, 1e-9
# Of a parameter without bounds, starts are drawn within so many units of its stored value on its scale.
WIDTH_WITHOUT_BOUNDS = 3.0

Vector = Float[np.ndarray, " parameter"]
Square = Float[np.ndarray, "parameter parameter"]


class FitFromStart(NamedTuple):
    """A fit from one start: both points on the parameters' scales.

    - `number`: of the start; 0 is that of the stored parameters.
    - `evaluations`: of the likelihood. `has_converged`: whether they were enough.
    """

    number: int
    start: Vector
    x: Vector
    log_likelihood: float
    evaluations: int
    has_converged: bool


class Local(NamedTuple):
    """A function near a point."""

    value: float
    gradient: Vector
    curvature: Square

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.value) and bool(
            np.isfinite(self.gradient).all() and np.isfinite(self.curvature).all()
        )

    def gain(self, moved: Vector) -> float:
        """What the quadratic model says that a step gains."""
        return float(self.gradient @ moved - 0.5 * moved @ self.curvature @ moved)


class Secant:
    """What the Fisher information lacks of the curvature, from the changes of the gradient.

    The Fisher information neglects the second derivatives of what is simulated. In directions that the data hardly
    determine these are most of the curvature, and without them steps are short. (Dennis, Gay and Welsch, 1981: An
    adaptive nonlinear least-squares algorithm, section 3.)
    """

    def __init__(self, size: int):
        self.lack: Square = np.zeros((size, size))
        self.is_better = False

    def model(self, here: Local) -> Local:
        """The quadratic model that was nearer to what the last step gained: with what lacks, or without."""
        return self.whole(here) if self.is_better else here

    def whole(self, here: Local) -> Local:
        return here._replace(curvature=here.curvature + self.lack)

    def judge(self, here: Local, moved: Vector, gain: float) -> None:
        """Compares what both models say of a step with what it gained."""
        if math.isfinite(gain):
            self.is_better = abs(self.whole(here).gain(moved) - gain) < abs(here.gain(moved) - gain)

    def update(self, here: Local, there: Local, moved: Vector) -> None:
        fall = here.gradient - there.gradient
        lacking = fall - there.curvature @ moved
        known, bend = moved @ self.lack @ moved, moved @ fall
        if known != 0:
            self.lack = self.lack * min(1.0, abs(moved @ lacking / known))
        if bend > 1e-10 * np.linalg.norm(moved) * np.linalg.norm(fall):
            rest = lacking - self.lack @ moved
            both = np.outer(rest, fall) / bend
            self.lack = self.lack + both + both.T - (rest @ moved) * np.outer(fall, fall) / bend**2


class Optimizer:
    """Maximises the likelihood times the prior density within bounds.

    The Fisher information stands for the curvature, which is exact to first order however large the noise's own
    parameters are; what it lacks is learned from step to step. A step maximises this quadratic model within a ball, in
    tenths of the ranges between the bounds (Nocedal and Wright: Numerical Optimization, chapter 4); a parameter that
    would leave its range stops at the bound, and the others go on. Parameters at a bound that the gradient pushes
    against rest.
    """

    def __init__(self, objective: Objective):
        self.objective = objective
        self.has_prior = any(each.prior is not None and each.prior.name != "uniform" for each in objective.estimated)
        lower, upper = objective.bounds
        width = upper - lower
        self.unit = np.where(np.isfinite(width) & (width > 0), width / 10, 1.0)

    def value(self, x: Vector) -> float:
        value = float(self.objective.log_likelihood(x))
        return value + self.objective.log_prior(x) if self.has_prior and math.isfinite(value) else value

    def model(self, x: Vector) -> Local:
        """Value, gradient and curvature at a point."""
        found = self.objective.differentiate(x)
        if not self.has_prior:
            return Local(float(found.value), np.asarray(found.gradient), np.asarray(found.fisher))
        slope = self.objective.gradient_of_log_prior(x)
        curvature = np.asarray(found.fisher) + np.diag(slope**2)  # the expected curvature of a density's logarithm
        return Local(float(found.value) + self.objective.log_prior(x), np.asarray(found.gradient) + slope, curvature)

    def maximise(
        self, start: Vector, held: Sequence[int] = (), evaluations: int = MAX_EVALUATIONS, number: int = 0
    ) -> FitFromStart | None:
        """The best point near a start, or `None` where nothing can be simulated."""
        x = np.clip(start, *self.objective.bounds)
        here = self.model(x)
        if not here.is_finite:
            return None
        secant, radius, count, still, has_converged = Secant(len(x)), FIRST_RADIUS, 1, 0, False
        while count < evaluations and not has_converged:
            free = self.is_free(x, here.gradient)
            free[list(held)] = False
            model = secant.model(here)
            moved = self.step(x, model, free, radius)
            promise, size = model.gain(moved), float(np.linalg.norm(moved / self.unit))
            if promise < LEAST_PROMISE or size < SMALLEST_RADIUS:
                has_converged = True
                break
            gain = self.value(x + moved) - here.value
            count += 1
            secant.judge(here, moved, gain)
            ratio = gain / promise if math.isfinite(gain) else -math.inf
            there = self.model(x + moved) if ratio > TAKEN else None
            if there is None or not there.is_finite:
                radius = 0.25 * size
                continue
            secant.update(here, there, moved)
            still = still + 1 if gain < ACCURATE_VALUE else 0
            has_converged = still == MOST_STILL
            x, here = x + moved, there
            if ratio > TRUSTED and size > 0.8 * radius:
                radius = min(2 * radius, LARGEST_RADIUS)
            elif ratio < DOUBTED:
                radius = 0.25 * size
        return FitFromStart(number, start, x, float(self.objective.log_likelihood(x)), count, has_converged)

    def is_free(self, x: Vector, gradient: Vector) -> Bool[np.ndarray, " parameter"]:
        lower, upper = self.objective.bounds
        return ~((x <= lower) & (gradient < 0)) & ~((x >= upper) & (gradient > 0))

    def step(self, x: Vector, here: Local, free: Bool[np.ndarray, " parameter"], radius: float) -> Vector:
        """The step of the free parameters that gains most within the radius and the bounds."""
        lower, upper = self.objective.bounds
        moved, free = np.zeros_like(x), free.copy()
        while free.any():
            gradient = (here.gradient - here.curvature @ np.where(free, 0.0, moved)) * self.unit
            curvature = here.curvature * np.outer(self.unit, self.unit)
            used = np.linalg.norm((moved / self.unit)[~free])
            left = math.sqrt(max(radius**2 - used**2, (0.1 * radius) ** 2))
            moved[free] = step_in_ball(curvature[np.ix_(free, free)], gradient[free], left) * self.unit[free]
            outside = free & ((x + moved < lower) | (x + moved > upper))
            if not outside.any():
                break
            moved[outside] = (np.clip(x + moved, lower, upper) - x)[outside]
            free &= ~outside
        return np.clip(x + moved, lower, upper) - x


def step_in_ball(curvature: Square, gradient: Vector, radius: float) -> Vector:
    """The step that maximises a quadratic function within a ball, up to 1 % of its length."""
    values, vectors = np.linalg.eigh(curvature)
    slopes = vectors.T @ gradient
    # With more damping than this, the function has a maximum; how much more is looked for.
    bottom = max(-float(values.min()), 0.0)
    most = float(np.linalg.norm(gradient)) / radius
    least = 1e-12 * max(float(np.abs(values).max()), most, 1e-200)

    def step(damping: float) -> Vector:
        return slopes / (values + bottom + damping)

    if np.linalg.norm(step(least)) <= radius:
        return vectors @ step(least)
    while most > 1.01 * least:
        middle = math.sqrt(least * most)
        least, most = (middle, most) if np.linalg.norm(step(middle)) > radius else (least, middle)
    return vectors @ step(most)


def draw_points(objective: Objective, count: int, seed: int) -> list[Float[np.ndarray, "point parameter"]]:
    """For each start some points of a Sobol' sequence between the bounds, on the parameters' scales."""
    from scipy.stats import qmc

    lower, upper = objective.bounds
    middle = np.where(np.isfinite(objective.nominal), objective.nominal, 0.0)
    lower = np.where(np.isfinite(lower), lower, np.minimum(middle, upper) - WIDTH_WITHOUT_BOUNDS)
    upper = np.where(np.isfinite(upper), upper, np.maximum(middle, lower) + WIDTH_WITHOUT_BOUNDS)
    sequence = qmc.Sobol(len(lower), rng=np.random.default_rng(seed))
    drawn = lower + (upper - lower) * sequence.random_base2(math.ceil(math.log2(max(1, count) * POINTS_FOR_A_START)))
    return np.array_split(drawn, max(1, count))


def fit_from_starts(
    objective: Objective, count: int, seed: int, nominal: bool, evaluations: int, known: Collection[int] = ()
) -> Iterator[FitFromStart]:
    """Fits from the stored parameters, if wanted and complete, and from drawn starts, except those of known numbers."""
    optimizer = Optimizer(objective)
    if nominal and np.isfinite(objective.nominal).all() and 0 not in known:
        yield from filter(None, [optimizer.maximise(objective.nominal, evaluations=evaluations)])
    for number, points in enumerate(draw_points(objective, count, seed) if count else (), start=1):
        if number not in known:
            start = max(points, key=objective.log_likelihood)
            yield from filter(None, [optimizer.maximise(start, evaluations=evaluations, number=number)])

"""Solves least squares on the host with one loop that accepts trial points of lower value, for one search or many.

One simulation evaluates the trial points of many searches. SciPy's `least_squares` runs one search at a time and needs
more evaluations: 679 instead of 222 for the profiles of four constants, whose fits begin near their ends.
"""

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

Vector = Float[np.ndarray, " parameter"]
Square = Float[np.ndarray, "parameter parameter"]
Free = Bool[np.ndarray, " parameter"]
# The trust region's first, largest and smallest radius, in a box's units.
FIRST_RADIUS, MAX_RADIUS, MIN_RADIUS = 0.2, 5.0, 1e-9
# The ratio of the actual to the predicted decrease above which a step is accepted, the region grows, or shrinks below.
ACCEPT_RATIO, GROW_RATIO, SHRINK_RATIO = 1e-4, 0.75, 0.25
# A search has converged after this many steps in a row with a smaller decrease, or if less is predicted.
MAX_SMALL_STEPS, SMALL_DECREASE, MIN_PREDICTED = 3, 1e-6, 1e-9


@runtime_checkable
class HasValue(Protocol):
    """An evaluated point; its value is not finite where the evaluation failed."""

    @property
    def value(self) -> float: ...


Evaluated = TypeVar("Evaluated", bound=HasValue)
Trial = TypeVar("Trial")


class Rule(abc.ABC, Generic[Evaluated, Trial]):
    """Chooses the steps of a search."""

    @abc.abstractmethod
    def propose(self, here: Evaluated) -> Trial | None:
        """Returns the next trial point, or None at the end."""

    @abc.abstractmethod
    def accepts(self, here: Evaluated, there: Evaluated) -> bool:
        """Whether the search moves to the trial point; adapts the length of the next step."""


def minimize(here: Evaluated, rule: Rule[Evaluated, Trial], evaluate: Callable[[Trial], Evaluated]) -> Evaluated:
    """Runs a search and returns its best point."""
    return minimize_together([here], [rule], lambda trials: [evaluate(trials[0])])[0]


def minimize_together(
    starts: Sequence[Evaluated],
    rules: Sequence[Rule[Evaluated, Trial]],
    evaluate: Callable[[Mapping[int, Trial]], Sequence[Evaluated]],
) -> list[Evaluated]:
    """Runs several searches together, with separate rules; returns their best points.

    **Arguments:** `evaluate`: evaluates trial points, keyed by the number of their search.
    """
    best = list(starts)
    while trials := {
        number: trial for number, rule in enumerate(rules) if (trial := rule.propose(best[number])) is not None
    }:
        for number, there in zip(trials, evaluate(trials), strict=True):
            best[number] = there if rules[number].accepts(best[number], there) else best[number]
    return best


class Damping(NamedTuple):
    """The damping of the first step, its factors after an accepted and after a rejected step, its minimum, the maximum
    at which a search ends, and its minimum after a rejected step."""

    initial: float = 1e-3
    decrease: float = 0.1
    increase: float = 10.0
    minimum: float = 0.0
    maximum: float = math.inf
    rejected_minimum: float = 0.0


@dataclass
class DampedSteps(Rule[Evaluated, Trial]):
    """The Levenberg-Marquardt method.

    **Arguments:**

    - `step`: computes the trial point from a point and a damping.
    - `max_evaluations`, `max_steps`: maximum number of trial points, and of accepted steps.
    - `is_still`: whether a step hardly changes the value; the search ends after `patience` of them in a row.
    - `predict`: the predicted decrease of a step. The damping then follows the ratio of the actual decrease to it
      (Nielsen's rule; Madsen, Nielsen and Tingleff, Methods for non-linear least squares problems, 2004, section 3.2).
    """

    step: Callable[[Evaluated, float], Trial]
    damping: Damping
    max_evaluations: float | int = math.inf
    max_steps: float | int = math.inf
    is_still: Callable[[Evaluated, Evaluated], bool] = lambda here, there: False
    patience: int = 1
    predict: Callable[[Evaluated, Evaluated], float] | None = None

    def __post_init__(self) -> None:
        self.next_damping, self.increase = self.damping.initial, self.damping.increase
        self.evaluations = self.steps = self.still = 0

    def propose(self, here: Evaluated) -> Trial | None:
        spent = self.evaluations >= self.max_evaluations or self.steps >= self.max_steps
        ended = spent or self.still >= self.patience or self.next_damping >= self.damping.maximum
        return None if ended or not math.isfinite(here.value) else self.step(here, self.next_damping)

    def accepts(self, here: Evaluated, there: Evaluated) -> bool:
        decrease, is_still, factor = here.value - there.value, self.is_still(here, there), self.damping.decrease
        self.evaluations += 1
        if not (math.isfinite(there.value) and decrease > 0):
            self.next_damping = max(self.next_damping * self.increase, self.damping.rejected_minimum)
            self.increase *= 1.0 if self.predict is None else self.damping.increase
            self.still += is_still
            return False
        if self.predict is not None:
            factor = max(1 / 3, 1 - (2 * decrease / max(self.predict(here, there), 1e-300) - 1) ** 3)
        self.next_damping, self.increase = max(self.next_damping * factor, self.damping.minimum), self.damping.increase
        self.steps, self.still = self.steps + 1, self.still + 1 if is_still else 0
        return True


class LinearisedPoint(NamedTuple):
    """A point with the residuals there and their Jacobian; its value is the sum of squares."""

    x: Vector
    residuals: Float[np.ndarray, " residual"]
    jacobian: Float[np.ndarray, "residual parameter"]

    @property
    def value(self) -> float:
        return float(self.residuals @ self.residuals)

    def step(
        self,
        damping: float,
        free: Free | None = None,
        held: Vector | float = 0.0,
        *,
        scaled: bool = True,
        rcond: float | None = None,
    ) -> Vector:
        """The point after the step `held` and the damped Gauss-Newton step of the parameters that are `free`.

        **Arguments:** `scaled`: whether the norms of the columns are the units of the parameters. `rcond`: the share of
        the largest singular value, in these units, below which one counts as zero.
        """
        x, columns = self.x + held, self.jacobian if free is None else self.jacobian[:, free]
        norms = np.linalg.norm(columns, axis=0) if scaled else np.ones(columns.shape[1])
        units = 1 / np.where(norms > 0, norms, 1.0)
        damped = np.concatenate([columns * units, math.sqrt(damping) * np.eye(len(units))])
        target = np.concatenate([self.residuals + self.jacobian @ (x - self.x), np.zeros(len(units))])
        x[... if free is None else free] -= np.linalg.lstsq(damped, target, rcond=rcond)[0] * units
        return x

    def predict_decrease(self, there: "LinearisedPoint") -> float:
        """Returns the decrease that the linearised problem promises at another point, at least its rounding error."""
        left = self.residuals + self.jacobian @ (there.x - self.x)
        return max(self.value - float(left @ left), float(np.finfo(np.float64).eps) * self.value)


class QuadraticModel(NamedTuple):
    """The value, gradient and curvature of a function at a point."""

    value: float
    gradient: Vector
    curvature: Square

    @property
    def is_finite(self) -> bool:
        return all(bool(np.isfinite(part).all()) for part in self)

    def predict_decrease(self, step: Vector) -> float:
        return -float(self.gradient @ step + 0.5 * step @ self.curvature @ step)


@dataclass
class LazyPoint:
    """A point of a function, its value, and a quadratic model that is computed when it is first used."""

    x: Vector
    value: float
    expand: Callable[[Vector], QuadraticModel]

    @cached_property
    def local(self) -> QuadraticModel:
        return self.expand(self.x)


class Secant:
    """The curvature that the Gauss-Newton matrix or Fisher information lacks, from changes of the gradient.

    These matrices neglect the second derivatives of the simulated values. In directions that the data hardly determine,
    these are most of the curvature, and without them steps are short (Dennis, Gay and Welsch, 1981: An adaptive
    nonlinear least-squares algorithm, section 3).
    """

    def __init__(self, size: int):
        self.lack: Square = np.zeros((size, size))
        self.is_better = False

    def model(self, here: QuadraticModel) -> QuadraticModel:
        """The model, with or without what it lacks, that predicted the last decrease better."""
        return self.complete(here) if self.is_better else here

    def complete(self, here: QuadraticModel) -> QuadraticModel:
        return here._replace(curvature=here.curvature + self.lack)

    def judge(self, here: QuadraticModel, step: Vector, decrease: float) -> None:
        """Compares the predictions of both models with the decrease of the value."""
        if math.isfinite(decrease):
            errors = [abs(model.predict_decrease(step) - decrease) for model in (self.complete(here), here)]
            self.is_better = errors[0] < errors[1]

    def update(self, here: QuadraticModel, there: QuadraticModel, step: Vector) -> None:
        change = there.gradient - here.gradient
        lacking = change - there.curvature @ step
        known, bend = step @ self.lack @ step, step @ change
        if known != 0:
            self.lack = self.lack * min(1.0, abs(step @ lacking / known))
        if bend > 1e-10 * np.linalg.norm(step) * np.linalg.norm(change):
            remainder = lacking - self.lack @ step
            both = np.outer(remainder, change) / bend
            self.lack = self.lack + both + both.T - (remainder @ step) * np.outer(change, change) / bend**2


class Box(NamedTuple):
    """The bounds and the units of parameters."""

    lower: Vector
    upper: Vector
    unit: Vector

    def is_free(self, x: Vector, gradient: Vector) -> Free:
        """Whether each parameter is free, that is, not pushed against a bound by the gradient."""
        return ~((x <= self.lower) & (gradient > 0)) & ~((x >= self.upper) & (gradient < 0))

    def step(self, x: Vector, model: QuadraticModel, free: Free, radius: float) -> Vector:
        """The step of the free parameters that minimises a quadratic model within the radius and the bounds.

        Parameters that would leave their range stop at the bound, and the others continue.
        """
        step, free = np.zeros_like(x), free.copy()
        curvature = model.curvature * np.outer(self.unit, self.unit)
        while free.any():
            gradient = (model.gradient + model.curvature @ np.where(free, 0.0, step)) * self.unit
            used = np.linalg.norm((step / self.unit)[~free])
            left = math.sqrt(max(radius**2 - used**2, (0.1 * radius) ** 2))
            step[free] = step_in_ball(curvature[np.ix_(free, free)], gradient[free], left) * self.unit[free]
            outside = free & ((x + step < self.lower) | (x + step > self.upper))
            if not outside.any():
                break
            step[outside] = (np.clip(x + step, self.lower, self.upper) - x)[outside]
            free &= ~outside
        return np.clip(x + step, self.lower, self.upper) - x


def step_in_ball(curvature: Square, gradient: Vector, radius: float) -> Vector:
    """Computes the step that minimises a quadratic function within a ball, up to 1 % of its length."""
    values, vectors = np.linalg.eigh(curvature)
    slopes = -vectors.T @ gradient
    # With more damping than this, the function has a minimum; a bisection finds how much more.
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


class TrustRegion(Rule[LazyPoint, Vector]):
    """Minimises quadratic models within a ball and bounds (Nocedal and Wright: Numerical Optimization, chapter 4), and
    learns the curvature that they lack.

    **Arguments:** `held`: fixed parameters. `max_evaluations`: maximum number of points, including the first.
    """

    def __init__(self, box: Box, held: Sequence[int] = (), max_evaluations: int = 500):
        self.box, self.held, self.max_evaluations = box, list(held), max_evaluations
        self.secant, self.radius = Secant(len(box.unit)), FIRST_RADIUS
        self.evaluations, self.still, self.has_converged = 1, 0, False

    def propose(self, here: LazyPoint) -> Vector | None:
        free = self.box.is_free(here.x, here.local.gradient)
        free[self.held] = False
        while self.evaluations < self.max_evaluations and not self.has_converged:
            model = self.secant.model(here.local)
            self.step = self.box.step(here.x, model, free, self.radius)
            self.size = float(np.linalg.norm(self.step / self.box.unit))
            self.predicted = model.predict_decrease(self.step)
            if self.predicted < 0 and self.size > MIN_RADIUS:
                # Stopping at bounds has spoilt the step; a short one lowers the value.
                self.radius = 0.25 * self.size
            elif self.predicted < MIN_PREDICTED or self.size < MIN_RADIUS:
                self.has_converged = True
            else:
                return here.x + self.step
        return None

    def accepts(self, here: LazyPoint, there: LazyPoint) -> bool:
        decrease = here.local.value - there.value
        self.evaluations += 1
        self.secant.judge(here.local, self.step, decrease)
        ratio = decrease / self.predicted if math.isfinite(decrease) else -math.inf
        if not (ratio > ACCEPT_RATIO and there.local.is_finite):
            self.radius = 0.25 * self.size
            return False
        self.secant.update(here.local, there.local, self.step)
        self.still = self.still + 1 if decrease < SMALL_DECREASE else 0
        self.has_converged = self.still == MAX_SMALL_STEPS
        if ratio > GROW_RATIO and self.size > 0.8 * self.radius:
            self.radius = min(2 * self.radius, MAX_RADIUS)
        elif ratio < SHRINK_RATIO:
            self.radius = 0.25 * self.size
        return True

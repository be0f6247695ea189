"""Least squares on the host: one loop that tries points and goes where the value is lower, for one search or many.

The points of many searches are evaluated at once, by one simulation. SciPy's `least_squares` takes one search at a time
and more evaluations: 679 instead of 222 for the profiles of four constants, whose fits begin near their ends.
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
FIRST_RADIUS, LARGEST_RADIUS, SMALLEST_RADIUS = 0.2, 5.0, 1e-9
# The fall of a step over what the model says: from where on it is taken, the region grows, and below which it shrinks.
TAKEN, TRUSTED, DOUBTED = 1e-4, 0.75, 0.25
# A search has converged after so many steps in a row that gain less than so much, or if the model promises less.
MOST_STILL, ACCURATE_VALUE, LEAST_PROMISE = 3, 1e-6, 1e-9


@runtime_checkable
class HasValue(Protocol):
    """What was found at a point; its value is not finite where there is none."""

    @property
    def value(self) -> float: ...


Outcome = TypeVar("Outcome", bound=HasValue)
Point = TypeVar("Point")


class Rule(abc.ABC, Generic[Outcome, Point]):
    """How a search steps on."""

    @abc.abstractmethod
    def propose(self, here: Outcome) -> Point | None:
        """The next point to evaluate; None at the end."""

    @abc.abstractmethod
    def accepts(self, here: Outcome, there: Outcome) -> bool:
        """Whether to go to the point that was proposed; the next step may be longer or shorter."""


def minimize(here: Outcome, rule: Rule[Outcome, Point], evaluate: Callable[[Point], Outcome]) -> Outcome:
    """What is found at the end of a search from one point."""
    return minimize_together([here], [rule], lambda points: [evaluate(points[0])])[0]


def minimize_together(
    begun: Sequence[Outcome],
    rules: Sequence[Rule[Outcome, Point]],
    evaluate: Callable[[Mapping[int, Point]], Sequence[Outcome]],
) -> list[Outcome]:
    """What is found at the ends of searches that go on together, each by a rule of its own.

    **Arguments:** `evaluate`: what is found at the next points, by the numbers of their searches.
    """
    best = list(begun)
    while points := {at: point for at, rule in enumerate(rules) if (point := rule.propose(best[at])) is not None}:
        for at, there in zip(points, evaluate(points), strict=True):
            if rules[at].accepts(best[at], there):
                best[at] = there
    return best


class Damping(NamedTuple):
    """The damping of the first step, its factors after a step that lowers the value and after one that does not, its
    least value, the one at which a search ends, and the least one after a step that does not lower the value."""

    first: float = 1e-3
    eased: float = 0.1
    raised: float = 10.0
    least: float = 0.0
    most: float = math.inf
    least_raised: float = 0.0


@dataclass
class DampedSteps(Rule[Outcome, Point]):
    """Levenberg and Marquardt's method.

    **Arguments:**

    - `step`: the next point from what was found at the best one, and a damping.
    - `evaluations`, `steps`: maximum number of evaluations, and of steps that lower the value.
    - `is_still`: whether the value hardly changes from one point to another; `patience`: how often before the end.
    - `predict`: how much the value should fall; the damping then follows the ratio of the two falls (Nielsen's rule;
      Madsen, Nielsen and Tingleff, Methods for non-linear least squares problems, 2004, section 3.2).
    """

    step: Callable[[Outcome, float], Point]
    damping: Damping
    evaluations: float | int = math.inf
    steps: float | int = math.inf
    is_still: Callable[[Outcome, Outcome], bool] = lambda old, new: False
    patience: int = 1
    predict: Callable[[Outcome, Outcome], float] | None = None

    def __post_init__(self) -> None:
        self.next_damping, self.factor = self.damping.first, self.damping.raised
        self.count = self.taken = self.still = 0

    def propose(self, here: Outcome) -> Point | None:
        spent = self.count >= self.evaluations or self.taken >= self.steps or self.still >= self.patience
        lost = self.next_damping >= self.damping.most or not math.isfinite(here.value)
        return None if spent or lost else self.step(here, self.next_damping)

    def accepts(self, here: Outcome, there: Outcome) -> bool:
        fall, is_still, eased = here.value - there.value, self.is_still(here, there), self.damping.eased
        self.count += 1
        if not (math.isfinite(there.value) and fall > 0):
            self.next_damping = max(self.next_damping * self.factor, self.damping.least_raised)
            self.still += is_still
            self.factor *= 1.0 if self.predict is None else self.damping.raised
            return False
        if self.predict is not None:
            eased = max(1 / 3, 1 - (2 * fall / max(self.predict(here, there), 1e-300) - 1) ** 3)
        self.next_damping, self.factor = max(self.next_damping * eased, self.damping.least), self.damping.raised
        self.taken, self.still = self.taken + 1, self.still + 1 if is_still else 0
        return True


class LinearisedPoint(NamedTuple):
    """A point, and what is squared and summed there."""

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

        **Arguments:** `scaled`: whether parameters count in units of their columns' norms. `rcond`: singular values
        below this share of the largest, in these units, count as zero.
        """
        x, columns = self.x + held, self.jacobian if free is None else self.jacobian[:, free]
        norms = np.linalg.norm(columns, axis=0) if scaled else np.ones(columns.shape[1])
        units = 1 / np.where(norms > 0, norms, 1.0)
        damped = np.concatenate([columns * units, math.sqrt(damping) * np.eye(len(units))])
        wanted = np.concatenate([self.residuals + self.jacobian @ (x - self.x), np.zeros(len(units))])
        x[... if free is None else free] -= np.linalg.lstsq(damped, wanted, rcond=rcond)[0] * units
        return x


class Local(NamedTuple):
    """A function near a point: its value there, and its gradient and curvature."""

    value: float
    gradient: Vector
    curvature: Square

    @property
    def is_finite(self) -> bool:
        return all(bool(np.isfinite(part).all()) for part in self)

    def fall(self, moved: Vector) -> float:
        """How much the value falls by a step, by the quadratic model."""
        return -float(self.gradient @ moved + 0.5 * moved @ self.curvature @ moved)


@dataclass
class LazyPoint:
    """A point of a function, its value, and what the function is nearby, computed when that is first asked for."""

    x: Vector
    value: float
    expand: Callable[[Vector], Local]

    @cached_property
    def local(self) -> Local:
        return self.expand(self.x)


class Secant:
    """What the Gauss-Newton matrix or Fisher information lacks of the curvature, from the changes of the gradient.

    These neglect the second derivatives of what is simulated. In directions that the data hardly determine these are
    most of the curvature, and without them steps are short. (Dennis, Gay and Welsch, 1981: An adaptive nonlinear
    least-squares algorithm, section 3.)
    """

    def __init__(self, size: int):
        self.lack: Square = np.zeros((size, size))
        self.is_better = False

    def model(self, here: Local) -> Local:
        """The quadratic model that was nearer to the last step's fall: with what lacks, or without."""
        return self.whole(here) if self.is_better else here

    def whole(self, here: Local) -> Local:
        return here._replace(curvature=here.curvature + self.lack)

    def judge(self, here: Local, moved: Vector, fall: float) -> None:
        """Compares what both models say of a step with the fall of the value."""
        if math.isfinite(fall):
            self.is_better = abs(self.whole(here).fall(moved) - fall) < abs(here.fall(moved) - fall)

    def update(self, here: Local, there: Local, moved: Vector) -> None:
        rise = there.gradient - here.gradient
        lacking = rise - there.curvature @ moved
        known, bend = moved @ self.lack @ moved, moved @ rise
        if known != 0:
            self.lack = self.lack * min(1.0, abs(moved @ lacking / known))
        if bend > 1e-10 * np.linalg.norm(moved) * np.linalg.norm(rise):
            rest = lacking - self.lack @ moved
            both = np.outer(rest, rise) / bend
            self.lack = self.lack + both + both.T - (rest @ moved) * np.outer(rise, rise) / bend**2


class Box(NamedTuple):
    """The bounds of parameters, and the unit of each."""

    lower: Vector
    upper: Vector
    unit: Vector

    def is_free(self, x: Vector, gradient: Vector) -> Free:
        """Parameters at a bound that the gradient pushes against rest."""
        return ~((x <= self.lower) & (gradient > 0)) & ~((x >= self.upper) & (gradient < 0))

    def step(self, x: Vector, here: Local, free: Free, radius: float) -> Vector:
        """The step of the free parameters that lowers the quadratic model most within the radius and the bounds."""
        moved, free = np.zeros_like(x), free.copy()
        while free.any():
            gradient = (here.gradient + here.curvature @ np.where(free, 0.0, moved)) * self.unit
            curvature = here.curvature * np.outer(self.unit, self.unit)
            used = np.linalg.norm((moved / self.unit)[~free])
            left = math.sqrt(max(radius**2 - used**2, (0.1 * radius) ** 2))
            moved[free] = step_in_ball(curvature[np.ix_(free, free)], gradient[free], left) * self.unit[free]
            outside = free & ((x + moved < self.lower) | (x + moved > self.upper))
            if not outside.any():
                break
            moved[outside] = (np.clip(x + moved, self.lower, self.upper) - x)[outside]
            free &= ~outside
        return np.clip(x + moved, self.lower, self.upper) - x


def step_in_ball(curvature: Square, gradient: Vector, radius: float) -> Vector:
    """The step that minimises a quadratic function within a ball, up to 1 % of its length."""
    values, vectors = np.linalg.eigh(curvature)
    slopes = -vectors.T @ gradient
    # With more damping than this, the function has a minimum; how much more is looked for.
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
    """Steps within a ball and bounds, whose curvature is learned from step to step.

    A step minimises a quadratic model within a ball in a box's units (Nocedal and Wright: Numerical Optimization,
    chapter 4); a parameter that would leave its range stops at the bound, and the others go on.

    **Arguments:** `held`: parameters that stay. `evaluations`: maximum number, with that of the first point.
    """

    def __init__(self, box: Box, held: Sequence[int] = (), evaluations: int = 500):
        self.box, self.held, self.evaluations = box, list(held), evaluations
        self.secant, self.radius = Secant(len(box.unit)), FIRST_RADIUS
        self.count, self.still, self.has_converged = 1, 0, False

    def propose(self, here: LazyPoint) -> Vector | None:
        free = self.box.is_free(here.x, here.local.gradient)
        free[self.held] = False
        while self.count < self.evaluations and not self.has_converged:
            model = self.secant.model(here.local)
            self.moved = self.box.step(here.x, model, free, self.radius)
            self.promise, self.size = model.fall(self.moved), float(np.linalg.norm(self.moved / self.box.unit))
            if self.promise < 0 and self.size > SMALLEST_RADIUS:
                # Stopping at bounds has spoilt the step; a short one lowers the value.
                self.radius = 0.25 * self.size
            elif self.promise < LEAST_PROMISE or self.size < SMALLEST_RADIUS:
                self.has_converged = True
            else:
                return here.x + self.moved
        return None

    def accepts(self, here: LazyPoint, there: LazyPoint) -> bool:
        fall = here.local.value - there.value
        self.count += 1
        self.secant.judge(here.local, self.moved, fall)
        ratio = fall / self.promise if math.isfinite(fall) else -math.inf
        if not (ratio > TAKEN and there.local.is_finite):
            self.radius = 0.25 * self.size
            return False
        self.secant.update(here.local, there.local, self.moved)
        self.still = self.still + 1 if fall < ACCURATE_VALUE else 0
        self.has_converged = self.still == MOST_STILL
        if ratio > TRUSTED and self.size > 0.8 * self.radius:
            self.radius = min(2 * self.radius, LARGEST_RADIUS)
        elif ratio < DOUBTED:
            self.radius = 0.25 * self.size
        return True

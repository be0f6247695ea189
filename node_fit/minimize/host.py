"""Least squares on the host: searches that propose a point, go there if the value is lower, and else shorten the step.

A search is a generator. It evaluates nothing: it yields points and is sent what was found there, so that the points of
many searches are simulated at once, which SciPy's `least_squares` can't do.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

Vector = Float[np.ndarray, " parameter"]
Square = Float[np.ndarray, "parameter parameter"]


@runtime_checkable
class HasValue(Protocol):
    """What was found at a point; its value is not finite where there is none."""

    @property
    def value(self) -> float: ...


Outcome = TypeVar("Outcome", bound=HasValue)
Point = TypeVar("Point")
Search = Generator[Point, Outcome | None, Outcome]


def minimize(search: Search[Point, Outcome], evaluate: Callable[[Point], Outcome]) -> Outcome:
    """What was found at the best point of a search."""
    return minimize_together([search], lambda points: [evaluate(points[0])])[0]


def minimize_together(
    searches: Sequence[Search[Point, Outcome]],
    evaluate: Callable[[Mapping[int, Point]], Sequence[Outcome | None]],
) -> list[Outcome]:
    """What was found at the best points of searches that go on together.

    **Arguments:** `evaluate`: what is found at the next points, by the numbers of their searches; None ends a search.
    """
    ends = dict[int, Outcome]()
    sent: dict[int, Outcome | None] = dict.fromkeys(range(len(searches)))
    while sent:
        points = dict[int, Point]()
        for at, found in sent.items():
            try:
                points[at] = searches[at].send(found)
            except StopIteration as end:
                ends[at] = end.value
        sent = dict(zip(points, evaluate(points), strict=True)) if points else {}
    return [ends[at] for at in range(len(searches))]


class Damping(NamedTuple):
    """The damping of the first step, its factors after a step that lowers the value and after one that does not, its
    least value, and the one at which nothing can be lowered any more."""

    first: float = 1e-3
    eased: float = 0.1
    raised: float = 10.0
    least: float = 0.0
    most: float = math.inf


def damped_steps(
    here: Outcome,
    step: Callable[[Outcome, float], Point],
    damping: Damping,
    *,
    evaluations: float | int = math.inf,
    steps: float | int = math.inf,
    tries: float | int = math.inf,
    is_still: Callable[[Outcome, Outcome], bool] = lambda old, new: False,
    patience: int = 1,
    predict: Callable[[Outcome, Outcome], float] | None = None,
) -> Search[Point, Outcome]:
    """Levenberg and Marquardt's method.

    **Arguments:**

    - `step`: the next point from what was found at the best one, and a damping.
    - `evaluations`, `steps`, `tries`: at most so many evaluations, steps that lower the value, and steps in a row that
      do not.
    - `is_still`: whether the value hardly changes from one point to another; `patience`: how often before the end.
    - `predict`: how much the value should fall; the damping then follows the ratio of the two falls (Nielsen's rule;
      Madsen, Nielsen and Tingleff, Methods for non-linear least squares problems, 2004, section 3.2).
    """
    now, factor, count, taken, failures, still = damping.first, damping.raised, 0, 0, 0, 0
    while math.isfinite(here.value) and now < damping.most and count < evaluations and taken < steps:
        there = yield step(here, now)
        if there is None:
            break
        fall, is_end, count = here.value - there.value, is_still(here, there), count + 1
        if math.isfinite(there.value) and fall > 0:
            eased = damping.eased
            if predict is not None:
                eased = max(1 / 3, 1 - (2 * fall / max(predict(here, there), 1e-300) - 1) ** 3)
            here, now, factor = there, max(now * eased, damping.least), damping.raised
            taken, failures, still = taken + 1, 0, still + 1 if is_end else 0
        else:
            now, failures, still = now * factor, failures + 1, still + is_end
            factor *= 1.0 if predict is None else damping.raised
        if failures >= tries or still >= patience:
            break
    return here


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
        free: Bool[np.ndarray, " parameter"] | None = None,
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
        return math.isfinite(self.value) and bool(
            np.isfinite(self.gradient).all() and np.isfinite(self.curvature).all()
        )

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

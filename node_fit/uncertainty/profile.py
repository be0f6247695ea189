"""Profile likelihoods: how far a constant can move while all others make up for it."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ..runtime.placement import scope
from ..training.programs import Found, LinearisedStage
from .confidence import Confidence, ConfidenceInterval, end_of, find_fisher_intervals, quantile
from .linearization import Evidence, Information, Place, Unsure

# A constant that moves so far, in units of its own size (of a positive one: by this power of e), has no end.
FARTHEST_POINT = 10.0
# Of a constant without bounds, a standard error of so many times its value tells nothing.
LARGE = 1e3
# The first trial, and the longest step after it, in the same units.
LONGEST_STEP = 1.0
# Relative accuracy of a threshold, and maximum number of trials on a side and of steps in each.
ACCURATE, MOST_HALVINGS, NEWTON_STEPS = 3e-3, 40, 25
# A fit with a constant held has converged when its sum of squares would fall by less, in variances.
SETTLED = 1e-4

Vector = Float[np.ndarray, " parameter"]


class Point(NamedTuple):
    """Parameters with the sum of squares there, and its value."""

    x: Vector
    found: Found
    value: float


@dataclass(frozen=True)
class Profile:
    """Fits with one parameter held.

    **Arguments:**

    - `evidence`: of the fit. `stage`: its sum of squares, over held steps that serve the whole interval.
    - `variance`: of a weighted residual. `tolerance`: singular values below this share of the largest are rounding.
    """

    evidence: Evidence
    stage: LinearisedStage
    variance: float
    tolerance: float

    def point(self, x: Vector) -> Point:
        found = self.stage.at(x)
        value = self.evidence.objective(found, x)
        lost = found.failed or not (math.isfinite(value) and np.isfinite(found.jacobian).all())
        return Point(x, found, math.inf if lost else value)

    def moved(self, near: Point, index: int, to: float) -> Point:
        """The best fit with the parameter of this number held at a value, found from one nearby."""
        held = np.zeros_like(near.x)
        held[index] = to - near.x[index]
        free = np.arange(len(held)) != index
        # The linearised model says how the others follow; where it is far off, they follow less.
        tries = (newton(near, held, free, damping, self.tolerance) for damping in (0.0, 1e-3, 1e-1, 10.0))
        there = self.point(near.x + held)
        for follow in tries:
            better = self.point(near.x + held + follow)
            if better.value < there.value:
                there = better
                break
        return self.minimised(there, free)

    def minimised(self, here: Point, free: Bool[np.ndarray, " parameter"]) -> Point:
        """The best fit of the parameters that are `free`, by damped Gauss-Newton steps."""
        damping, still = 0.0, np.zeros_like(here.x)
        for _ in range(NEWTON_STEPS):
            if not math.isfinite(here.value) or not free.any():
                return here
            step = newton(here, still, free, damping, self.tolerance)
            there = self.point(here.x + step)
            gain = here.value - there.value
            if gain > 0:
                here, damping = there, damping / 10 if damping > 1e-6 else 0.0
            if abs(gain) < SETTLED * self.variance or damping > 1e6:
                return here
            if gain <= 0:
                damping = max(10 * damping, 1e-3)
        return here

    def end(self, best: Point, index: int, size: float, error: float, wanted: float, limit: float) -> float:
        """How far a parameter can move until the sum of squares has risen to a threshold.

        **Arguments:**

        - `best`: the optimum. `index`: the parameter's number.
        - `size`: what it moves in a unit; the sign is the side.
        - `error`: its standard error in that unit. `wanted`: the threshold, in standard errors.
        - `limit`: the distance at which the search ends.

        **Returns:** the distance in that unit; infinite if nothing stops it.
        """
        inside, rise_inside, near, outside, rise_outside = 0.0, 0.0, best, math.inf, math.inf
        distance = min(wanted * error, LONGEST_STEP)
        for _ in range(MOST_HALVINGS):
            there = self.moved(near, index, best.x[index] + distance * size)
            rise = math.sqrt(max(there.value - best.value, 0.0) / self.variance)
            if abs(rise - wanted) < ACCURATE * wanted or outside - inside < ACCURATE * inside:
                return distance
            if rise < wanted:
                inside, rise_inside, near = distance, rise, there
            else:
                outside, rise_outside = distance, rise
            if inside >= limit:
                return math.inf
            if math.isinf(outside):
                longer = inside * min(max(1.02 * wanted / max(rise_inside, 1e-3), 1.2), 3.0)
                distance = min(longer, inside + LONGEST_STEP) if inside >= LONGEST_STEP else longer
            else:
                share = (wanted - rise_inside) / (rise_outside - rise_inside) if math.isfinite(rise_outside) else 0.5
                distance = inside + min(max(share, 0.05), 0.95) * (outside - inside)
        return distance


def newton(at: Point, held: Vector, free: Bool[np.ndarray, " parameter"], damping: float, tolerance: float) -> Vector:
    """The damped Gauss-Newton step of the free parameters after another step has been made."""
    jacobian, root = at.found.jacobian, np.sqrt(at.found.prior)
    residuals = at.found.residuals.reshape(-1) + jacobian @ held
    rows = np.concatenate([jacobian[:, free], np.diag(root)[:, free]])
    norms = np.linalg.norm(rows, axis=0)
    norms[norms == 0] = 1.0
    damped = np.concatenate([rows / norms, math.sqrt(damping) * np.eye(int(free.sum()))])
    wanted = np.concatenate([residuals, root * (at.x + held), np.zeros(int(free.sum()))])
    step = np.zeros_like(at.x)
    step[free] = -np.linalg.lstsq(damped, wanted, rcond=tolerance)[0] / norms
    return step


def profile(evidence: Evidence, level: float) -> Confidence:
    """Intervals that end where a fit with the constant held there is worse by the threshold of an F-test, or of a chi2
    test if the noise was given (Bates and Watts, Nonlinear Regression Analysis, 1988, section 6.1).

    **Raises:** `Unsure` as `fisher` does.
    """
    if evidence.loss.robust:
        raise Unsure("profiles are of least squares; use confidence=fisher with this loss.")
    around = find_fisher_intervals(evidence, level)
    information = Information(evidence)
    wanted = quantile(information, level)
    with scope(evidence.kind):
        stage = evidence.stage.refined_at(corners(information, wanted))
        fits = Profile(evidence, stage, information.variance, information.tolerance)
        best = fits.minimised(fits.point(evidence.x), np.ones(len(evidence.x), bool))
        constants, open_sides = {}, []
        known = zip(information.places, information.sizes, information.errors, strict=True)
        for (place, size, error), penalised in zip(known, information.penalised, strict=True):
            if penalised:  # A profile would show how far the penalties let it go.
                constants[place.name] = around.constants[place.name]
                continue
            # A constant without bounds may be near zero, which is no measure of how far it may move.
            limit = (
                max(FARTHEST_POINT, 5 * wanted * error)
                if place.bounds == (None, None) and error < LARGE
                else FARTHEST_POINT
            )
            low, high = (fits.end(best, place.index, side * size, error, wanted, limit) for side in (-1, 1))
            old = around.constants[place.name]
            constants[place.name] = profile_interval(place, old, best.x[place.index], size, low, high)
            # Constants of which nothing is known are named already.
            open_sides += open_side(place.name, low, high) if math.isfinite(error) else []
    return replace(around, method="profile", constants=constants, undetermined=(*around.undetermined, *open_sides))


def corners(information: Information, wanted: float) -> list[Vector]:
    """Parameters at about the ends of the intervals, by the linearised model."""
    evidence, points = information.evidence, []
    best = Point(evidence.x, evidence.best, 0.0)
    for place, size, error in zip(information.places, information.sizes, information.errors, strict=True):
        for side in (-1, 1):
            held = np.zeros_like(evidence.x)
            held[place.index] = side * size * min(wanted * error, LONGEST_STEP)
            free = np.arange(len(held)) != place.index
            points.append(evidence.x + held + newton(best, held, free, 0.0, information.tolerance))
    return points


def profile_interval(
    place: Place, old: ConfidenceInterval, middle: float, size: float, low: float, high: float
) -> ConfidenceInterval:
    """The interval from distances to its ends, in units of the constant's size."""
    z, unit = middle * place.scale, size * place.scale
    return replace(
        old, lower=end_of(z - low * unit, z, place.bounds, -1), upper=end_of(z + high * unit, z, place.bounds, 1)
    )


def open_side(name: str, low: float, high: float) -> list[str]:
    """Says which end an interval lacks."""
    if math.isfinite(low) and math.isfinite(high):
        return []
    if math.isinf(low) and math.isinf(high):
        return [f"The profile of {name} is flat: much smaller and much larger values fit these data as well."]
    end, values = ("upper", "larger") if math.isinf(high) else ("lower", "smaller")
    return [
        f"The profile of {name} has one side only: much {values} values fit these data as well, so it has no {end} end."
    ]

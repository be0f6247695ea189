"""Intervals of derived quantities: their ranges over the confidence regions of the constants."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data.domains import from_line, to_line
from ..expressions.tree import Application, Expression, Number, operands
from ..expressions.writing import write
from ..model.fields.known import Quantity
from ..runtime.placement import scope
from .linearization import MOVED, Information, Place

# Number of points of a region at which a quantity is evaluated before the search for its extremes.
POINTS = 2001
# Finite-difference step in the search for an extreme [the region's radius].
PROBE = 1e-5
# Number of refinements of the interval around a zero, each by the number of points, and shares of that interval at
# which a pole is searched.
ZOOMS, APPROACH = 4, (1e-2, 1e-4, 1e-6)
# Distance from zero below which a divisor touches it [share of its range].
TOUCHING = 1e-12
# Distance on the real line beyond which an interval ends at the constant's bounds: a factor of 1e13.
ENDLESS = 30.0

Points = Float[np.ndarray, "point axis"]
Values = Float[np.ndarray, " point"]
# A quantity as a function of points of the unit ball, which represent constants.
Level = Callable[[Points], Values]


class Range(NamedTuple):
    """The range of a quantity: its minimum and maximum, infinite without an end, and why an end is missing."""

    lower: float
    upper: float
    why: str = ""


@dataclass(frozen=True)
class Region:
    """A confidence region of constants, as an image of the unit ball.

    - `places`: the constants. `center`: its center on the real line, shape `(constant,)`.
    - `axes`: the displacement of the constants along each axis of the ball, shape `(axis, constant)`.
    """

    places: Sequence[Place]
    center: Float[np.ndarray, " constant"]
    axes: Float[np.ndarray, "axis constant"]

    @staticmethod
    def between(place: Place, lower: float, upper: float, estimate: float) -> "Region":
        """Makes the interval of one constant."""
        middle = float(to_line(np.asarray(estimate), place.bounds))
        with np.errstate(divide="ignore"):
            ends = [float(to_line(np.asarray(end), place.bounds)) for end in (lower, upper)]
        far = ENDLESS * max(1.0, abs(middle))
        low, high = np.clip(ends, middle - far, middle + far).tolist()
        return Region([place], np.array([(low + high) / 2]), np.array([[(high - low) / 2]]))

    @staticmethod
    def around(information: Information, places: Sequence[Place], reach: float) -> "Region":
        """Makes the ellipsoid in which the linearised sum of squares rises by up to `reach` squared, in variances.

        The extremes of a quantity there are the ends of its profile likelihood (J. S. Chen and R. I. Jennrich, J.
        Amer. Statist. Assoc. 91, 1996).
        """
        index = [information.places.index(place) for place in places]
        errors, vectors = information.directions
        known = np.isfinite(errors)
        root = (vectors[known] * errors[known, None])[:, index] * line_units(information)[index]
        _, sizes, axes = np.linalg.svd(root, full_matrices=False)
        return Region(places, find_center(information, places), reach * sizes[:, None] * axes)

    def constants(self, points: Points) -> dict[str, Values]:
        """Returns the constants by name at points of the ball, in the user's units."""
        line = self.center + points @ self.axes
        return {place.name: from_line(line[:, at], place.bounds) for at, place in enumerate(self.places)}

    def evaluate(self, quantity: Quantity, values: Mapping[str, float], points: Points) -> Values:
        """Evaluates a quantity at points of the ball, with the values of other constants."""
        return np.broadcast_to(quantity.of({**values, **self.constants(points)}), len(points))


def find_center(information: Information, places: Sequence[Place]) -> Float[np.ndarray, " constant"]:
    """Returns the fitted constants on the real line."""
    return np.array([information.evidence.x[place.index] * place.scale for place in places])


def line_units(information: Information) -> Float[np.ndarray, " constant"]:
    """Computes the size of each constant on the real line."""
    return information.sizes * np.array([place.scale for place in information.places])


def is_undetermined(quantity: Quantity, information: Information, values: Mapping[str, float]) -> bool:
    """Whether a quantity changes along undetermined directions.

    The data can determine a product of constants without determining any of them.
    """
    used = np.array([quantity.uses(place.name) for place in information.places], bool)
    if (information.determined_by_penalties & used).any():
        return True
    errors, vectors = information.directions
    lost = vectors[~np.isfinite(errors)]
    if not information.moved_constants(lost[:, used]).any():
        return False
    places = information.places
    own = Region(places, find_center(information, places), np.diag(line_units(information)))

    def change(moves: Points) -> float:
        values_there = own.evaluate(quantity, values, np.concatenate([np.zeros((1, len(used))), moves, -moves]))
        return float(np.abs(values_there - values_there[0]).max())

    return not change(lost) <= MOVED * change(np.eye(len(used))[used])


def find_error(quantity: Quantity, information: Information, values: Mapping[str, float], *, positive: bool) -> float:
    """Computes the standard error of a quantity; infinite if the data do not determine it.

    Uses the delta method, in the logarithm of a positive quantity, to second order, since the first order vanishes at
    an extreme (G. Casella and R. L. Berger, Statistical Inference, 2002, section 5.5.4).
    """
    places = [place for place in information.places if quantity.uses(place.name)]
    if is_undetermined(quantity, information, values):
        return math.inf
    if not places:
        return 0.0
    region = Region.around(information, places, 1.0)

    def along(shares: Float[Array, " axis"]) -> Float[Array, ""]:
        line = jnp.asarray(region.center) + shares @ jnp.asarray(region.axes)
        own = {place.name: from_line(line[at], place.bounds) for at, place in enumerate(places)}
        level = quantity.evaluate({**values, **own})
        return jnp.log(level) if positive else level

    with scope("x64"):
        still = jnp.zeros(len(region.axes))
        slope, bend = np.asarray(jax.grad(along)(still)), np.asarray(jax.jacfwd(jax.grad(along))(still))
    variance = float((slope**2).sum() + (bend**2).sum() / 2)
    size = float(quantity.of(values)) if positive else 1.0
    return size * math.sqrt(variance) if math.isfinite(variance) else math.inf


@np.errstate(all="ignore")
def find_range(quantity: Quantity, region: Region, values: Mapping[str, float], *, positive: bool) -> Range:
    """Computes the minimum and maximum of a quantity in a region; a pole removes the end on its side.

    **Arguments:** `values`: the values of all constants. `positive`: whether its form makes the quantity positive.
    """

    def level(points: Points) -> Values:
        return region.evaluate(quantity, values, points)

    points = spread_points(len(region.axes))
    level_values = level(points)
    if np.isnan(level_values).any():
        return Range(-math.inf, math.inf, "is not defined everywhere within the interval")
    lower, upper, why = float(level_values.min()), float(level_values.max()), ""
    for divisor in find_divisors(quantity, values):
        near = approach_zero(lambda at, part=divisor: region.evaluate(part, values, at), points)
        for side in near:
            earlier, later = np.diff(level(side))
            if abs(later) > abs(earlier) / 2:  # A function that is finite at the zero changes less and less.
                lower, upper = (lower, math.inf) if later > 0 else (-math.inf, upper)
                why = f"has a pole within the interval, where {divisor.text} is zero"

    def negate_level(
        at: Points,
    ) -> Values:  # A factor changes as much downwards as upwards, and the search is for both.
        return -np.log(level(at)) if positive else -level(at)

    def keep_level(at: Points) -> Values:
        return -negate_level(at)

    back = math.exp if positive else float
    lower = lower if math.isinf(lower) else back(-find_highest(negate_level, points)[0])
    upper = upper if math.isinf(upper) else back(find_highest(keep_level, points)[0])
    if not positive:
        # Set an end to zero if it only differs by rounding.
        lower, upper = (0.0 if abs(end) < TOUCHING * (upper - lower) < math.inf else end for end in (lower, upper))
    return Range(lower, upper, why)


def spread_points(axes: int) -> Points:
    """Samples points of the unit ball, including its center and its poles."""
    if axes == 1:
        return np.linspace(-1.0, 1.0, POINTS)[:, None]
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((POINTS, axes))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    radii = np.where(np.arange(POINTS) % 2, 1.0, rng.uniform(size=POINTS) ** (1 / axes))
    return np.concatenate([np.zeros((1, axes)), np.eye(axes), -np.eye(axes), directions * radii[:, None]])


def find_divisors(quantity: Quantity, values: Mapping[str, float]) -> list[Quantity]:
    """Finds the divisors and arguments of logarithms in an expression, factor by factor."""

    def number(node: Expression) -> float:
        return float(Quantity(quantity.name, write(node)).of(values))

    def factors(node: Expression) -> Iterator[Expression]:
        match node:
            case Application("*", arguments):
                for argument in arguments:
                    yield from factors(argument)
            case Application("/" | "^" | "negative" | "abs" | "sqrt", (inner, *_)):
                yield from factors(inner)
            case Number() | Application("exp" | "cosh" | "sigmoid"):
                return
            case _:
                yield node

    def poles(node: Expression) -> Iterator[Expression]:
        for argument in operands(node):
            yield from poles(argument)
        match node:
            case Application("/", (_, divisor)):
                yield from factors(divisor)
            case Application("^", (base, power)) if number(power) < 0:
                yield from factors(base)
            case Application("log" | "log10" | "log2", (inner, *_)):
                yield from factors(inner)
            case Application("tan", (angle,)):
                yield Application("cos", (angle,))
            case _:
                return

    texts = dict.fromkeys(map(write, poles(quantity.tree)))
    return [Quantity(quantity.name, text) for text in texts]


def approach_zero(level: Level, points: Points) -> Float[np.ndarray, "side step axis"]:
    """Finds points that approach a zero of a function from two sides; no side if it has none."""
    level_values = level(points)
    if level_values.min() < 0 < level_values.max():
        sides = ends = points[[int(level_values.argmax()), int(level_values.argmin())]]
        for _ in range(ZOOMS):
            way = ends[0] + np.linspace(0, 1, POINTS)[:, None] * (ends[1] - ends[0])
            last = int((level(way) > 0).nonzero()[0][-1])
            ends = way[[last, min(last + 1, POINTS - 1)]]
        zero = ends[0]
    else:
        depth, zero = find_highest(lambda at: -np.abs(level(at)), points)
        sides = points[[0, -1]] if -depth <= TOUCHING * np.ptp(level_values) else points[:0]
    return zero + np.array(APPROACH)[:, None] * (sides - zero)[:, None]


def find_highest(level: Level, points: Points) -> tuple[float, Float[np.ndarray, " axis"]]:
    """Finds the maximum of a function in the unit ball and its location, starting at the best of these points."""
    from scipy.optimize import NonlinearConstraint, minimize

    levels = level(points)
    best = int(levels.argmax())
    highest, first = float(levels[best]), points[best]
    scale = float(np.ptp(levels[np.isfinite(levels)]))
    if not (math.isfinite(highest) and scale > 0):
        return highest, first
    steps = PROBE * np.eye(len(first))

    def depth(at: Float[np.ndarray, " axis"]) -> tuple[float, Float[np.ndarray, " axis"]]:
        near = (highest - level(np.concatenate([at[None], at + steps, at - steps]))) / scale
        ahead, behind = np.split(near[1:], 2)
        return float(near[0]), (ahead - behind) / (2 * PROBE)

    def size(at: Float[np.ndarray, " axis"]) -> list[float]:
        return [float(at @ at)]

    inside = NonlinearConstraint(size, -math.inf, 1.0, jac=lambda at: 2 * np.asarray(at)[None])
    result = minimize(depth, first, jac=True, method="SLSQP", constraints=[inside], options={"ftol": 1e-12})
    end = np.asarray(result.x, np.float64)
    end = end / max(1.0, float(np.linalg.norm(end)))
    gain = -depth(end)[0] * scale
    return (highest + gain, end) if gain > 0 else (highest, first)

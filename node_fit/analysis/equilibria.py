"""Equilibria of a model, and Hopf points along an input or a constant."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data.domains import is_inside, to_line
from ..data.trajectories import check_known_values
from ..minimize.restarts import draw_evenly
from ..model.fields.known import Constants, constants_in
from ..model.neural_ode import NeuralODE
from ..runtime.placement import carry, scope
from .linearization import Linearization, linearize_at, scaled_point

# Search range for equilibria, in standard deviations of the training data around their mean.
REACH = 4.0
# Number of initial guesses of the search, and maximum number of equilibria; more likely form a curve.
SEARCH_STARTS, MAX_EQUILIBRIA = 128, 20
# Maximum rates at a root, as a share of typical ones, and minimum distance of roots, in scaled units.
ROOT_TOLERANCE, ROOTS_APART = 1e-9, 1e-4
# Number of values of a parameter along which a pair of eigenvalues is followed.
FOLLOWED_VALUES = 41

Box = Mapping[str, tuple[float, float]]


class HopfPoint(NamedTuple):
    """A point at which a pair of eigenvalues crosses the imaginary axis: an oscillation begins or ends.

    - `parameter`, `value`: the input or constant, and its value there.
    - `frequency`: the frequency of the oscillation [radians per unit of time].
    - `point`: the linearization at the equilibrium.
    """

    parameter: str
    value: float
    frequency: float
    point: Linearization

    def __str__(self) -> str:
        where = ", ".join(f"{name} = {value:.5g}" for name, value in self.point.point.items())
        return (
            f"Hopf point at {self.parameter} = {self.value:.5g}: {where}, {self.frequency:.4g} radians per unit of time"
        )


def find_equilibria(
    model: NeuralODE, u: Mapping[str, float] | None = None, within: Box | None = None, t: float | None = None
) -> list[Linearization]:
    """Finds the equilibria of a model, with their modes, by Powell's method from many initial guesses.

    **Arguments:**

    - `model`: the model of a fit, or a loaded one.
    - `u`: inputs by name; absent ones have their typical values in the training data.
    - `within`: ranges of states to search, by name [in their units]; by default four standard deviations of the
      training data around their mean.
    - `t`: as in `linearize_near`.

    **Returns:** the equilibria, sorted by distance from the mean of the training data; empty if none was found.

    **Raises:** `ValueError` if a name is unknown, or the number of equilibria suggests that they form a curve.
    """
    check_known_values("u", u or (), model.inputs, "an input")
    check_known_values("within", within or (), model.latent)
    with scope("x64"):
        exact: NeuralODE = carry(model, np.float64)
        time, _, v = scaled_point(exact, {}, u or {}, t)
        low, high = box_of(exact, within or {})
        roots = find_roots(exact, time, v, low, high)
        roots.sort(key=lambda z: float(np.linalg.norm(z)))
        return [linearize_at(exact, time, jnp.asarray(z), v) for z in roots]


def box_of(model: NeuralODE, within: Box) -> tuple[np.ndarray, np.ndarray]:
    """Returns the range of each state in the solver's units.

    **Raises:** `ValueError` if a range is empty.
    """
    ends: list[np.ndarray] = []
    for side, reach in ((0, -REACH), (1, REACH)):
        ends_by_name = {name: pair[side] for name, pair in within.items()}
        _, z, _ = scaled_point(model, ends_by_name, {}, None)
        ends.append(np.where([name in within for name in model.latent], np.asarray(z), reach))
    low, high = ends
    for name, empty in zip(model.latent, ~(low < high), strict=True):
        if empty:
            raise ValueError(
                f"within.{name} must be a range (low, high) within the state's bounds, got {within[name]}."
            )
    return low, high


def find_roots(model: NeuralODE, t: Array, v: Array, low: np.ndarray, high: np.ndarray) -> list[np.ndarray]:
    """Returns the distinct states within a box at which the field is zero, in the solver's units."""
    points = draw_evenly(low, high, SEARCH_STARTS, 0)
    typical = float(np.median([np.abs(np.asarray(rates_at(model, t, z, v)[0])).max() for z in points])) or 1.0
    margin = ROOTS_APART * (high - low)
    roots: list[np.ndarray] = []
    for start in (0.5 * (low + high), *points):
        root = find_root(model, t, start, v, typical)
        if root is None or (root < low - margin).any() or (root > high + margin).any():
            continue
        if all(np.abs(root - known_root).max() > ROOTS_APART for known_root in roots):
            roots.append(root)
        if len(roots) > MAX_EQUILIBRIA:
            raise ValueError(
                f"there are over {MAX_EQUILIBRIA} equilibria, which likely form a curve, as where a state rests at any "
                "value; narrow within to the part of interest."
            )
    return roots


def find_root(model: NeuralODE, t: Array, start: np.ndarray, v: Array, typical: float) -> np.ndarray | None:
    """Finds a root of the field near a start, in the solver's units; None if none is found.

    **Arguments:** `typical`: typical size of the field.
    """
    from scipy.optimize import root

    def rates(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        field, slopes = rates_at(model, t, z, v)
        return np.asarray(field), np.asarray(slopes)

    solution = root(rates, start, jac=True, options={"xtol": 1e-12})
    is_root = np.isfinite(solution.x).all() and np.abs(rates(solution.x)[0]).max() <= ROOT_TOLERANCE * typical
    return np.asarray(solution.x, np.float64) if is_root else None


@eqx.filter_jit
def rates_at(model: NeuralODE, t: Array, z: Array | np.ndarray, v: Array) -> tuple[Array, Array]:
    """Returns the field and its derivative with respect to the states, in the solver's units."""
    z = jnp.asarray(z, float)
    return model.field(t, z, v), jax.jacfwd(model.field, argnums=1)(t, z, v)


def find_hopf_points(
    model: NeuralODE,
    parameter: str,
    between: tuple[float, float],
    u: Mapping[str, float] | None = None,
    within: Box | None = None,
) -> list[HopfPoint]:
    """Finds the values of an input or a constant at which eigenvalues of an equilibrium cross the imaginary axis.

    Each equilibrium at the first value is followed to the last one. A crossing of a pair of eigenvalues is bracketed
    and refined by Brent's method.

    **Arguments:** `parameter`: the name of an input or of a fitted constant. `between`: the first and the last value.
    `u`, `within`: as in `find_equilibria`, at the first value.

    **Raises:** `ValueError` for an unknown input or constant.
    """
    if not between[0] < between[1]:
        raise ValueError(f"between must be a range (low, high), got {between}.")
    with scope("x64"):
        exact: NeuralODE = carry(model, np.float64)
        points: list[HopfPoint] = []
        first, inputs = with_parameter(exact, parameter, between[0], u or {})
        time, _, v = scaled_point(first, {}, inputs, None)
        for root in find_roots(first, time, v, *box_of(first, within or {})):
            points += follow(exact, parameter, np.linspace(*between, FOLLOWED_VALUES), u or {}, root)
    return sorted(points, key=lambda point: point.value)


def with_parameter(
    model: NeuralODE, name: str, value: float, u: Mapping[str, float]
) -> tuple[NeuralODE, Mapping[str, float]]:
    """Returns the model and its inputs with another value of an input or a fitted constant.

    **Raises:** `ValueError` for an unknown name.
    """
    if name in model.inputs:
        return model, {**u, name: value}
    groups = constants_in(model.field)
    free = [constant for group in groups for constant, _, _ in group.free()]
    check_known_values("parameter", [name], [*model.inputs, *free], "an input or a fitted constant")
    bounds = next(pair for group in groups for constant, pair, _ in group.free() if constant == name)
    if not is_inside(np.array([value]), bounds).all():
        raise ValueError(f"{name} = {value:g} is not within the bounds of this constant, {bounds}.")

    def replace_parameter(node: object) -> object:
        if not isinstance(node, Constants):
            return node
        raw = [
            jnp.asarray(to_line(np.asarray(value), pair) / scale, node.raw.dtype) if constant == name else old
            for (constant, pair, scale), old in zip(node.free(), node.raw, strict=True)
        ]
        return eqx.tree_at(lambda group: group.raw, node, jnp.stack(raw) if raw else node.raw)

    return jax.tree.map(replace_parameter, model, is_leaf=lambda node: isinstance(node, Constants)), u


def follow(
    model: NeuralODE, parameter: str, values: Sequence[float] | np.ndarray, u: Mapping[str, float], root: np.ndarray
) -> list[HopfPoint]:
    """Follows an equilibrium along values of a parameter, and returns its Hopf points."""
    from scipy.optimize import brentq

    def at(value: float, near: np.ndarray) -> tuple[Linearization, np.ndarray] | None:
        varied, inputs = with_parameter(model, parameter, value, u)
        time, _, v = scaled_point(varied, {}, inputs, None)
        solution = find_root(varied, time, near, v, 1.0)
        return None if solution is None else (linearize_at(varied, time, jnp.asarray(solution), v), solution)

    points: list[HopfPoint] = []
    before: tuple[float, float] | None = None
    for value in values:
        now = at(float(value), root)
        if now is None:
            return points
        growth = growth_of_pair(now[0])
        if before is not None and growth is not None and (before[1] < 0) != (growth < 0):
            near = root

            def growth_at(value: float, near: np.ndarray = near) -> float:
                followed = at(value, near)
                growth = None if followed is None else growth_of_pair(followed[0])
                return np.nan if growth is None else growth

            crossing = float(brentq(growth_at, before[0], float(value), xtol=1e-12 * abs(value) + 1e-15))
            followed = at(crossing, near)
            if followed is not None:
                pair = max(followed[0].eigenvalues, key=lambda eigenvalue: (abs(eigenvalue.imag) > 0, eigenvalue.real))
                points.append(HopfPoint(parameter, crossing, abs(float(pair.imag)), followed[0]))
        before, root = None if growth is None else (float(value), growth), now[1]
    return points


def growth_of_pair(point: Linearization) -> float | None:
    """Returns the largest real part of a pair of complex eigenvalues; None if all are real."""
    pairs: Float[np.ndarray, " pair"] = point.eigenvalues.real[point.eigenvalues.imag > 0]
    return float(pairs.max()) if pairs.size else None

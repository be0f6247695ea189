"""Equilibria of a model, and the values of an input or a constant at which one begins to oscillate."""

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

# Where equilibria are looked for, in standard deviations of the training data around their mean.
REACH = 4.0
# Starts of the search, and how many equilibria are told apart; more are likely a curve of them.
SEARCH_STARTS, MAX_EQUILIBRIA = 128, 20
# A root has rates below this share of typical ones, and others are this far away, in scaled units.
ROOT_TOLERANCE, ROOTS_APART = 1e-9, 1e-4
# Values of a parameter between which a pair of eigenvalues is followed.
FOLLOWED_VALUES = 41

Box = Mapping[str, tuple[float, float]]


class HopfPoint(NamedTuple):
    """Where a pair of eigenvalues crosses the imaginary axis: an equilibrium begins to oscillate, or ceases to.

    - `parameter`, `value`: the input or constant, and its value there.
    - `frequency`: of the oscillation [radians per unit of time].
    - `point`: the model near the equilibrium there.
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
    """The points at which a model rests, each with its modes; sought by Powell's method from many starts.

    **Arguments:**

    - `model`: of a fit, or loaded.
    - `u`: inputs by name; those that are absent have their typical values in the training data.
    - `within`: ranges of states in which to look, by name [unit of each]; by default four standard deviations of the
      training data around their mean.
    - `t`: as of `linearize_near`.

    **Returns:** the equilibria, that nearest the mean of the training data first; none if none was found.

    **Raises:** `ValueError` if a name is unknown, or there are so many that they are likely a curve.
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
    """The range of each state in the solver's units.

    **Raises:** `ValueError` if a range is empty.
    """
    ends: list[np.ndarray] = []
    for side, reach in ((0, -REACH), (1, REACH)):
        given = {name: pair[side] for name, pair in within.items()}
        _, z, _ = scaled_point(model, given, {}, None)
        ends.append(np.where([name in within for name in model.latent], np.asarray(z), reach))
    low, high = ends
    for name, empty in zip(model.latent, ~(low < high), strict=True):
        if empty:
            raise ValueError(
                f"within.{name} must be a range (low, high) within the state's bounds, got {within[name]}."
            )
    return low, high


def find_roots(model: NeuralODE, t: Array, v: Array, low: np.ndarray, high: np.ndarray) -> list[np.ndarray]:
    """States within a box at which the field is zero, each once, in the solver's units."""
    points = draw_evenly(low, high, SEARCH_STARTS, 0)
    typical = float(np.median([np.abs(np.asarray(rates_at(model, t, z, v)[0])).max() for z in points])) or 1.0
    margin = ROOTS_APART * (high - low)
    roots: list[np.ndarray] = []
    for start in (0.5 * (low + high), *points):
        root = find_root(model, t, start, v, typical)
        if root is None or (root < low - margin).any() or (root > high + margin).any():
            continue
        if all(np.abs(root - other).max() > ROOTS_APART for other in roots):
            roots.append(root)
        if len(roots) > MAX_EQUILIBRIA:
            raise ValueError(
                f"there are over {MAX_EQUILIBRIA} equilibria, which likely form a curve, as where a state rests at any "
                "value; narrow within to the part of interest."
            )
    return roots


def find_root(model: NeuralODE, t: Array, start: np.ndarray, v: Array, typical: float) -> np.ndarray | None:
    """A root of the field near a start, in the solver's units; None if there is none.

    **Arguments:** `typical`: the size of the field.
    """
    from scipy.optimize import root

    def rates(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        field, slopes = rates_at(model, t, z, v)
        return np.asarray(field), np.asarray(slopes)

    found = root(rates, start, jac=True, options={"xtol": 1e-12})
    is_root = np.isfinite(found.x).all() and np.abs(rates(found.x)[0]).max() <= ROOT_TOLERANCE * typical
    return np.asarray(found.x, np.float64) if is_root else None


@eqx.filter_jit
def rates_at(model: NeuralODE, t: Array, z: Array | np.ndarray, v: Array) -> tuple[Array, Array]:
    """The field and its derivative by the states, in the solver's units."""
    z = jnp.asarray(z, float)
    return model.field(t, z, v), jax.jacfwd(model.field, argnums=1)(t, z, v)


def find_hopf_points(
    model: NeuralODE,
    parameter: str,
    between: tuple[float, float],
    u: Mapping[str, float] | None = None,
    within: Box | None = None,
) -> list[HopfPoint]:
    """The values of an input or a constant at which a pair of eigenvalues of an equilibrium crosses the imaginary axis.

    Each equilibrium of the first value is followed to the last one, and a crossing is bracketed and found by Brent's
    method.

    **Arguments:** `parameter`: the name of an input or of a fitted constant. `between`: the first and the last value.
    `u`, `within`: as of `find_equilibria`, at the first value.

    **Raises:** `ValueError` if there is no such input or constant.
    """
    if not between[0] < between[1]:
        raise ValueError(f"between must be a range (low, high), got {between}.")
    with scope("x64"):
        exact: NeuralODE = carry(model, np.float64)
        found: list[HopfPoint] = []
        first, given = with_parameter(exact, parameter, between[0], u or {})
        time, _, v = scaled_point(first, {}, given, None)
        for root in find_roots(first, time, v, *box_of(first, within or {})):
            found += follow(exact, parameter, np.linspace(*between, FOLLOWED_VALUES), u or {}, root)
    return sorted(found, key=lambda point: point.value)


def with_parameter(
    model: NeuralODE, name: str, value: float, u: Mapping[str, float]
) -> tuple[NeuralODE, Mapping[str, float]]:
    """The model and its inputs with another value of an input or a fitted constant.

    **Raises:** `ValueError` if there is none of that name.
    """
    if name in model.inputs:
        return model, {**u, name: value}
    groups = constants_in(model.field)
    free = [each for group in groups for each, _, _ in group.free()]
    check_known_values("parameter", [name], [*model.inputs, *free], "an input or a fitted constant")
    bounds = next(pair for group in groups for each, pair, _ in group.free() if each == name)
    if not is_inside(np.array([value]), bounds).all():
        raise ValueError(f"{name} = {value:g} is not within the bounds of this constant, {bounds}.")

    def changed(node: object) -> object:
        if not isinstance(node, Constants):
            return node
        raw = [
            jnp.asarray(to_line(np.asarray(value), pair) / scale, node.raw.dtype) if each == name else old
            for (each, pair, scale), old in zip(node.free(), node.raw, strict=True)
        ]
        return eqx.tree_at(lambda group: group.raw, node, jnp.stack(raw) if raw else node.raw)

    return jax.tree.map(changed, model, is_leaf=lambda node: isinstance(node, Constants)), u


def follow(
    model: NeuralODE, parameter: str, values: Sequence[float] | np.ndarray, u: Mapping[str, float], root: np.ndarray
) -> list[HopfPoint]:
    """The crossings of an equilibrium that is followed along values of a parameter."""
    from scipy.optimize import brentq

    def at(value: float, near: np.ndarray) -> tuple[Linearization, np.ndarray] | None:
        other, given = with_parameter(model, parameter, value, u)
        time, _, v = scaled_point(other, {}, given, None)
        found = find_root(other, time, near, v, 1.0)
        return None if found is None else (linearize_at(other, time, jnp.asarray(found), v), found)

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
                found = at(value, near)
                growth = None if found is None else growth_of_pair(found[0])
                return np.nan if growth is None else growth

            crossing = float(brentq(growth_at, before[0], float(value), xtol=1e-12 * abs(value) + 1e-15))
            found = at(crossing, near)
            if found is not None:
                pair = max(found[0].eigenvalues, key=lambda each: (abs(each.imag) > 0, each.real))
                points.append(HopfPoint(parameter, crossing, abs(float(pair.imag)), found[0]))
        before, root = None if growth is None else (float(value), growth), now[1]
    return points


def growth_of_pair(point: Linearization) -> float | None:
    """The largest real part of a pair of complex eigenvalues; None if there is no pair."""
    pairs: Float[np.ndarray, " pair"] = point.eigenvalues.real[point.eigenvalues.imag > 0]
    return float(pairs.max()) if pairs.size else None

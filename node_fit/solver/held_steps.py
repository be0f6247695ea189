"""Held steps: solutions over a fixed grid of times, and grids that meet a tolerance.

With fixed steps, the solution is a smooth function of the parameters, which line searches need; steps that every solve
chooses again make it rough. A march over a grid also compiles in a third of the time of an adaptive solve, and each
trajectory can have its own steps at no extra cost.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..runtime.placement import AnyArray
from .fixed_grid import March
from .methods import EXPLICIT, Tolerance, tableau

Grid = Float[AnyArray, "trajectory node"]
# Nodes as fractions of a trajectory's time, from 0 to 1; a single row if all trajectories share them.
Shares = Float[AnyArray, "_row _node"]

# A new grid aims at this fraction of the tolerance.
ERROR_SAFETY = 0.8
# A step grows or shrinks by at most this factor at once, since its error says little about very different steps.
LEAST, MOST_GROWTH = 0.2, 5.0
# Maximum error of a single step, relative to the tolerance.
SLACK = 10.0
SETTLING_ROUNDS = 12
FEWEST_STEPS = 8
# Steps become fewer if no more than this share of them is needed.
SPARE = 0.75


def interpolate_grid(
    method: str, grid: Grid, steps: March, saved: Float[AnyArray, "trajectory saved"]
) -> Float[Array, "trajectory saved state"]:
    """States at the times `saved` by the method's own interpolation; beyond the grid, those at its end."""
    shape = EXPLICIT[method]().interpolation_cls

    def one(nodes: AnyArray, before: Array, after: Array, stages: Array, ts: AnyArray) -> Array:
        found = jnp.clip(jnp.searchsorted(nodes, ts, side="right") - 1, 0, steps.used - 1)

        def at(index: Array, t: AnyArray) -> Array:
            ends = {"t0": nodes[index], "t1": nodes[index + 1], "y0": before[index], "y1": after[index]}
            piece = shape(**ends) if method == "euler" else shape(**ends, k=stages[index])
            return piece.evaluate(jnp.minimum(t, nodes[-1]))

        return jax.vmap(at)(found, ts)

    by_trajectory = (
        jnp.moveaxis(steps.before, 1, 0),
        jnp.moveaxis(steps.after, 1, 0),
        jnp.moveaxis(steps.stages, 2, 0),
    )
    return jax.vmap(one)(grid, *by_trajectory, saved)


def estimate_step_errors(
    method: str, steps: March, rtol: Tolerance, atol: Tolerance
) -> Float[Array, "trajectory step"]:
    """The estimated error of each step relative to its tolerance, as a root mean square over the states.

    Hairer, Norsett and Wanner, Solving Ordinary Differential Equations I, 1993, section II.4.
    """
    error = jnp.tensordot(jnp.asarray(tableau(method).error, steps.stages.dtype), steps.stages, axes=(0, 1))
    allowed = atol + rtol * jnp.maximum(jnp.abs(steps.before), jnp.abs(steps.after))
    return jnp.swapaxes(jnp.sqrt(jnp.mean((error / allowed) ** 2, axis=-1)), 0, 1)


def even(ts: Float[np.ndarray, "trajectory time"], steps: int | None = None) -> Shares:
    """Grids of equal steps, one row per trajectory.

    **Arguments:** `steps`: number of steps; if absent, one for each interval of the times, without padding.
    """
    if steps is not None:
        return np.tile(np.linspace(0, 1, steps + 1), (len(ts), 1))
    intervals = np.maximum((np.diff(ts, axis=1) > 0).sum(axis=1), 1)
    return np.minimum(np.arange(intervals.max() + 1)[None, :] / intervals[:, None], 1)


def finest(shares: Shares) -> Shares:
    """Only the row with the shortest first step."""
    return shares[np.argmin(shares[:, 1])][None]


def stretch(shares: Shares, ts: Float[AnyArray, "trajectory time"]) -> Grid:
    """The nodes in each trajectory's time."""
    first, last = ts[:, :1], ts[:, -1:]
    return first + shares * (last - first)


def settle(errors_of: Callable[[Shares], np.ndarray], grid: Shares, order: int, most: int) -> Shares:
    """A grid whose steps meet the tolerance; the same grid if it already does.

    The steps are spread so that all have the same estimated error, and their number grows where that is too large, and
    shrinks where it is far too small. This only needs solves on grids.

    **Arguments:**

    - `errors_of`: gives the error of each step relative to its tolerance, shape `(row, step)`, for a grid.
    - `grid`: the initial grid.
    - `order`: order of the error estimate: the error is proportional to this power of a step.
    - `most`: maximum number of steps.
    """
    for number in range(SETTLING_ROUNDS):
        errors = errors_of(grid)
        steps, needed = errors.shape[1], min(size(needed_steps(errors, order)), most)
        within = (errors <= SLACK).all()
        if within and SPARE * steps <= needed <= steps:
            return grid
        if not within:  # Another spread of the same steps may do, and if not, more of them.
            needed = max(needed, steps if number < 2 else min(size(steps + 1), most))
        new = spread_steps(grid, shares(errors, order), needed)
        if np.array_equal(new, grid):
            return grid
        grid = new
    return grid


# Numbers of steps between two rows: few choices, so that runs share compiled programs.
BETWEEN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def settle_between_rows(errors_of: Callable[[int], np.ndarray], steps: int, order: int, most: int) -> int:
    """The number of steps in every interval between two rows that meets the tolerance.

    **Arguments:**

    - `errors_of`: gives the largest error in each interval relative to the tolerance, for a number of steps.
    - `steps`, `most`: the initial and the maximum number of steps.
    - `order`: order of the error estimate: the error is proportional to this power of a step.
    """
    last = most_between_rows(most)
    sizes = [size for size in BETWEEN if size <= last]
    while steps < last:
        errors = errors_of(steps)
        errors = np.where(np.isfinite(errors), errors, np.inf)
        excess = float(max(np.median(errors), errors.max() / SLACK))
        if excess <= 1:
            return steps
        needed = steps * min(excess, MOST_GROWTH**order) ** (1 / order)
        steps = next((size for size in sizes if size >= needed and size > steps), last)
    return steps


def most_between_rows(most: int) -> int:
    """The most steps that are taken between two rows, if a solver allows `most`."""
    return max((size for size in BETWEEN if size <= most), default=1)


def needed_steps(errors: np.ndarray, order: int) -> float:
    """The number of steps that meet the tolerance on average, and a multiple of it in every trajectory."""
    total = shares(errors, order).sum(axis=1)
    return float(max(total.mean(), total.max() / SLACK ** (1 / order)))


def pad_grid(grid: AnyArray, steps: int) -> np.ndarray:
    """The grid with steps of zero length at its end, so that grids of several sizes have one shape."""
    return np.pad(grid, [(0, 0)] * (grid.ndim - 1) + [(0, steps + 1 - grid.shape[-1])], mode="edge")


def shares(errors: np.ndarray, order: int) -> np.ndarray:
    """The number of steps of the right length into which each step should be divided."""
    errors = np.where(np.isfinite(errors), errors, np.inf)
    return np.clip(errors ** (1 / order), LEAST, MOST_GROWTH) / ERROR_SAFETY


def size(needed: int | float) -> int:
    """A number of steps up to an eighth above `needed`, so that a slow growth does not change it in every chunk."""
    if needed <= FEWEST_STEPS:
        return FEWEST_STEPS
    quantum = 2 ** max(math.ceil(math.log2(needed)) - 4, 0)
    return math.ceil(needed / quantum) * quantum


def room(steps: int) -> int:
    """A number of steps of which there is one for each factor of four, from 128."""
    most = 16 * FEWEST_STEPS
    while most < steps:
        most *= 4
    return most


def spread_steps(grid: AnyArray, share: np.ndarray, steps: int) -> np.ndarray:
    """`steps` new steps over each trajectory's grid, distributed over the old ones by their shares."""
    total = np.concatenate([np.zeros((len(grid), 1)), np.cumsum(share, axis=1)], axis=1)
    wanted = np.linspace(0, total[:, -1], steps + 1, axis=1)
    return np.stack([np.interp(w, t, g) for w, t, g in zip(wanted, total, grid, strict=True)])

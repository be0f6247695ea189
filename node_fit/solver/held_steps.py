"""Held steps: marches over a fixed grid of times, and grids that meet a tolerance.

With fixed steps, the solution is a smooth function of the parameters, which line searches need; steps that every solve
chooses again make it rough. A march over a grid also compiles in a third of the time of an adaptive solve, and each
trajectory can have its own steps at no extra cost.

The number of steps is a value and not a shape: a grid is padded with steps of zero length, which cost nothing, for the
loops forward and backward run over the steps in use alone. One compiled program thus serves grids of any size up to
that of its arrays.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int, PyTree

from ..runtime.placement import AnyArray
from .methods import EXPLICIT, Adjoint, Tableau, Tolerance, runge_kutta_step, tableau
from .recurrence import solve_recurrence

# The derivative of all trajectories at once.
Derivative = Callable[[Float[Array, " trajectory"], Float[Array, "trajectory state"]], Float[Array, "trajectory state"]]
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


class March(eqx.Module):
    """A solution at the nodes of a grid.

    - `before`, `after`: states before and after each step, zero for steps that are not in use.
    - `stages`: stages of each step, times its length.
    - `used`: number of steps in use.
    """

    before: Float[Array, "step trajectory state"]
    after: Float[Array, "step trajectory state"]
    stages: Float[Array, "step stage trajectory state"]
    used: Int[Array, ""]


class Nodes(NamedTuple):
    """States at the nodes, and the stages between them."""

    states: Float[Array, "node trajectory state"]
    stages: Float[Array, "step stage trajectory state"]


def march(
    method: str,
    derivative: Derivative,
    grid: Float[AnyArray, "trajectory node"],
    y0: Float[Array, "trajectory state"],
    bound: Float[Array, " state"] | None,
    adjoint: Adjoint = "checkpointed",
    *,
    together: bool = False,
    guess: Float[Array, "trajectory node state"] | None = None,
) -> March:
    """Steps of an explicit method from node to node of a grid.

    **Arguments:**

    - `method`: a name in `EXPLICIT`.
    - `derivative`: the derivative of all trajectories, called with times `(trajectory,)` and states
      `(trajectory, state)`.
    - `grid`: nodes, shape `(trajectory, node)`, not decreasing.
    - `y0`: states at the first nodes.
    - `bound`: bound of each state. The field sees a state beyond its bound as if it were on it, so that a solution that
      diverges, and its gradient, stay finite. None for no bound.
    - `adjoint`: `direct` for a scan over all steps of the grid, in use or not, which has derivatives of any order and
      mode; `forward` for a loop that has forward-mode derivatives alone; all others for a loop with a reverse-mode
      derivative, which computes the stages of each step again.
    - `together`: solve all steps at once, with derivatives of any order and mode, and not one after the other.
    - `guess`: states at the nodes, near the solution, from which `together` begins.
    """
    table = tableau(method)
    times = jax.lax.stop_gradient(jnp.swapaxes(jnp.asarray(grid), 0, 1))

    def evaluate(t: Array, y: Array) -> Array:
        return derivative(t, y if bound is None else jnp.clip(y, -bound[None], bound[None]))

    used = steps_in_use(times)
    if together:
        found = solve_together(evaluate, y0, times, table, guess)
    elif adjoint == "direct":
        found = scan_steps(evaluate, y0, times, table)
    elif adjoint == "forward":
        found = loop_steps(evaluate, y0, times, used, table)
    else:
        # What the derivative reads becomes an argument, for which a gradient can be returned.
        rates = eqx.filter_closure_convert(evaluate, times[0], y0)
        found = reversible((rates, y0), times, used, method)
    steps = jnp.diff(times, axis=0)[:, None, :, None]
    return March(found.states[:-1], found.states[1:], steps * found.stages, used)


@custom_vmap
def steps_in_use(times: Float[Array, "node trajectory"]) -> Int[Array, ""]:
    """The number of steps up to the last that is not of zero length in every trajectory."""
    moves = (jnp.diff(times, axis=0) > 0).any(axis=1)
    return jnp.max(jnp.where(moves, jnp.arange(1, len(moves) + 1), 1))


@steps_in_use.def_vmap
def _(size: int, mapped: list[bool], times: Float[Array, "member node trajectory"]) -> tuple[Int[Array, ""], bool]:
    # The largest of all members: a loop whose length differs between them would copy its arrays in every step.
    return steps_in_use(jnp.moveaxis(times, 0, 1).reshape(times.shape[1], -1)), False


def step(evaluate: Derivative, table: Tableau, y: Array, slope: Array, begin: Array, end: Array) -> tuple[Array, Array]:
    """The states after a step, and its stages."""
    after, stages = runge_kutta_step(table, evaluate, begin, end - begin, y, slope if table.fsal else None)
    return after, jnp.stack(stages)


def first_slope(evaluate: Derivative, table: Tableau, y0: Array, begin: Array) -> Array:
    """The first stage of the first step, where each step takes it from the last one."""
    return evaluate(begin, y0) if table.fsal else jnp.zeros_like(y0)


def scan_steps(evaluate: Derivative, y0: Array, times: Array, table: Tableau) -> Nodes:
    """Takes all steps."""

    @jax.checkpoint
    def body(carry: tuple[Array, Array], ends: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        after, ks = step(evaluate, table, *carry, *ends)
        return (after, ks[-1]), (after, ks)

    slope = first_slope(evaluate, table, y0, times[0])
    _, (after, stages) = jax.lax.scan(body, (y0, slope), (times[:-1], times[1:]))
    return Nodes(jnp.concatenate([y0[None], after]), stages)


def solve_together(
    evaluate: Derivative, y0: Array, times: Array, table: Tableau, guess: Float[Array, "trajectory node state"] | None
) -> Nodes:
    """Takes all steps at once."""

    def one(y: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        return step(evaluate, table, y, first_slope(evaluate, table, y, ends[0]), *ends)

    near = None if guess is None else jnp.swapaxes(guess, 0, 1)[1:]
    after, stages = solve_recurrence(one, y0, (times[:-1], times[1:]), near)
    return Nodes(jnp.concatenate([y0[None], after]), stages)


def loop_steps(evaluate: Derivative, y0: Array, times: Array, used: Int[Array, ""], table: Tableau) -> Nodes:
    """Takes the steps in use."""

    def body(i: Array, carry: tuple[Array, Array, Nodes]) -> tuple[Array, Array, Nodes]:
        y, slope, nodes = carry
        after, ks = step(evaluate, table, y, slope, times[i], times[i + 1])
        return after, ks[-1], Nodes(nodes.states.at[i + 1].set(after), nodes.stages.at[i].set(ks))

    steps, count = len(times) - 1, len(table.c) + 1
    blank = Nodes(
        jnp.zeros((steps + 1, *y0.shape), y0.dtype).at[0].set(y0), jnp.zeros((steps, count, *y0.shape), y0.dtype)
    )
    return jax.lax.fori_loop(0, used, body, (y0, first_slope(evaluate, table, y0, times[0]), blank))[2]


@eqx.filter_custom_vjp
def reversible(differentiable: tuple[Derivative, Array], times: Array, used: Int[Array, ""], method: str) -> Nodes:
    """Takes the steps in use, with a reverse-mode derivative."""
    return loop_steps(*differentiable, times, used, tableau(method))


@reversible.def_fwd
def _(
    perturbed: PyTree, differentiable: tuple[Derivative, Array], times: Array, used: Int[Array, ""], method: str
) -> tuple[Nodes, Nodes]:
    nodes = loop_steps(*differentiable, times, used, tableau(method))
    return nodes, nodes


@reversible.def_bwd
def _(
    nodes: Nodes,
    cotangents: tuple[Array | None, Array | None],
    perturbed: PyTree,
    differentiable: tuple[Derivative, Array],
    times: Array,
    used: Int[Array, ""],
    method: str,
) -> tuple[PyTree, Array]:
    """Goes back over the steps, and computes the stages of each again."""
    (rates, y0), table = differentiable, tableau(method)
    moved, fixed = eqx.partition(rates, perturbed[0])
    to_states, to_stages = (
        jnp.zeros_like(value) if given is None else given for value, given in zip(nodes, cotangents, strict=True)
    )

    def body(j: Array, carry: tuple[Array, Array, PyTree]) -> tuple[Array, Array, PyTree]:
        i = used - 1 - j
        to_after, to_slope, to_rates = carry

        def taken(moved: PyTree, y: Array, slope: Array) -> tuple[Array, Array]:
            return step(eqx.combine(moved, fixed), table, y, slope, times[i], times[i + 1])

        # The last stage of a step is the first of the next.
        slope = nodes.stages[i, 0]
        _, pull = jax.vjp(taken, moved, nodes.states[i], slope)
        more, to_y, to_first = pull((to_after, to_stages[i].at[-1].add(to_slope)))
        return to_y + to_states[i], to_first, jax.tree.map(jnp.add, to_rates, more)

    start = (to_states[used], jnp.zeros_like(y0), jax.tree.map(jnp.zeros_like, moved))
    to_y0, to_slope, to_rates = jax.lax.fori_loop(0, used, body, start)
    _, pull = jax.vjp(lambda moved, y: first_slope(eqx.combine(moved, fixed), table, y, times[0]), moved, y0)
    more, through = pull(to_slope)
    return jax.tree.map(jnp.add, to_rates, more), to_y0 + through


def first_spacing(ts: Float[Array, " time"]) -> Float[Array, ""]:
    """The first step of a time grid; 1 if there is none."""
    gap = ts[1] - ts[0] if ts.shape[0] > 1 else jnp.zeros((), ts.dtype)
    return jnp.where(gap > 0, gap, 1)


def mean_spacing(ts: Float[AnyArray, " time"]) -> Float[Array, ""]:
    """The mean step of a time grid, without the repeated times that pad it; 1 if there is no step."""
    gaps = (jnp.diff(ts) > 0).sum().astype(ts.dtype)
    return jnp.where(gaps > 0, (ts[-1] - ts[0]) / jnp.maximum(gaps, 1), 1)


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
    return np.minimum(np.arange(int(intervals.max()) + 1)[None, :] / intervals[:, None], 1)


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


def settle_each_interval(
    errors_of: Callable[[Int[np.ndarray, " interval"]], np.ndarray], intervals: int, order: int, most: int
) -> Int[np.ndarray, " interval"]:
    """The number of steps in each interval between two rows, which all trajectories share, that meets the tolerance.

    **Arguments:**

    - `errors_of`: gives the largest error of each trajectory in each interval relative to the tolerance, for numbers
      of steps.
    - `intervals`, `most`: how many intervals there are, and the maximum number of steps in one.
    - `order`: order of the error estimate.
    """
    last = most_between_rows(most)
    sizes = np.array([size for size in BETWEEN if size <= last])
    steps = np.full(intervals, sizes[0])
    for _ in range(len(sizes)):
        errors = errors_of(steps)
        errors = np.where(np.isfinite(errors), errors, np.inf)
        excess = np.maximum(np.median(errors, axis=0), errors.max(axis=0) / SLACK)
        short = (excess > 1) & (steps < last)
        if not short.any():
            break
        needed = steps * np.minimum(excess, MOST_GROWTH**order) ** (1 / order)
        larger = sizes[np.minimum(np.searchsorted(sizes, np.maximum(needed, steps + 1)), len(sizes) - 1)]
        steps = np.where(short, larger, steps)
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


def room(steps: int, *, tight: bool = False) -> int:
    """A number of steps of which there is one for each factor of four, from 128; of two, from 16, if `tight`."""
    most, factor = (2 * FEWEST_STEPS, 2) if tight else (16 * FEWEST_STEPS, 4)
    while most < steps:
        most *= factor
    return most


def spread_steps(grid: AnyArray, share: np.ndarray, steps: int) -> np.ndarray:
    """`steps` new steps over each trajectory's grid, distributed over the old ones by their shares."""
    total = np.concatenate([np.zeros((len(grid), 1)), np.cumsum(share, axis=1)], axis=1)
    wanted = np.linspace(0, total[:, -1], steps + 1, axis=1)
    found: list[np.ndarray] = [np.interp(w, t, g) for w, t, g in zip(wanted, total, grid, strict=True)]
    return np.stack(found)

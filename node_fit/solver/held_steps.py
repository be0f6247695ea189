"""Held steps: marches over a fixed grid of times, and grids that meet a tolerance.

With fixed steps, the solution is a smooth function of the parameters, which line searches need; steps chosen anew in
every solve make it rough. A march over a grid also compiles in a third of the time of an adaptive solve, and each
trajectory can have its own steps at no extra cost.

The number of steps is a value, not a shape: a grid is padded with steps of zero length. They cost nothing, because the
forward and backward loops only run over the steps in use. One compiled program thus serves grids of any size up to that
of its arrays.
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
# Nodes as fractions of a trajectory's duration, from 0 to 1; a single row if all trajectories share them.
Shares = Float[AnyArray, "_row _node"]

# Target error of a new grid, as a fraction of the tolerance.
ERROR_SAFETY = 0.8
# Limits of the change of a step at once, since its error does not extrapolate to very different steps.
LEAST, MOST_GROWTH = 0.2, 5.0
# Maximum error of a single step, relative to the tolerance.
SLACK = 10.0
SETTLING_ROUNDS = 12
FEWEST_STEPS = 8
# Share of the steps; if no more than this is needed, the number of steps is reduced.
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
    """Takes steps of an explicit method from node to node of a grid.

    **Arguments:**

    - `method`: a name in `EXPLICIT`.
    - `derivative`: the derivative of all trajectories, called with times `(trajectory,)` and states
      `(trajectory, state)`.
    - `grid`: nodes, shape `(trajectory, node)`, not decreasing.
    - `y0`: states at the first nodes.
    - `bound`: bound of each state. States are clipped to it before the field is evaluated, so that a diverging solution
      and its gradient stay finite. None for no bound.
    - `adjoint`: `direct` for a scan over all steps of the grid, in use or not, with derivatives of any order and mode;
      `forward` for a loop with forward-mode derivatives only; all others for a loop with a reverse-mode derivative,
      which recomputes the stages of each step.
    - `together`: solve all steps at once instead of one after the other, with derivatives of any order and mode.
    - `guess`: initial guess of the states at the nodes for `together`.
    """
    table = tableau(method)
    times = jax.lax.stop_gradient(jnp.swapaxes(jnp.asarray(grid), 0, 1))

    def evaluate(t: Array, y: Array) -> Array:
        return derivative(t, y if bound is None else jnp.clip(y, -bound[None], bound[None]))

    used = steps_in_use(times)
    if together:
        nodes = solve_together(evaluate, y0, times, table, guess)
    elif adjoint == "direct":
        nodes = scan_steps(evaluate, y0, times, table)
    elif adjoint == "forward":
        nodes = loop_steps(evaluate, y0, times, used, table)
    else:
        # Values that the derivative closes over become arguments, so that they get gradients.
        rates = eqx.filter_closure_convert(evaluate, times[0], y0)
        nodes = reversible((rates, y0), times, used, method)
    steps = jnp.diff(times, axis=0)[:, None, :, None]
    return March(nodes.states[:-1], nodes.states[1:], steps * nodes.stages, used)


@custom_vmap
def steps_in_use(times: Float[Array, "node trajectory"]) -> Int[Array, ""]:
    """Returns the number of steps up to the last one with a length above zero in any trajectory."""
    moves = (jnp.diff(times, axis=0) > 0).any(axis=1)
    return jnp.max(jnp.where(moves, jnp.arange(1, len(moves) + 1), 1))


@steps_in_use.def_vmap
def _(size: int, mapped: list[bool], times: Float[Array, "member node trajectory"]) -> tuple[Int[Array, ""], bool]:
    # The maximum over all members: a loop whose length differs between them would copy its arrays in every step.
    return steps_in_use(jnp.moveaxis(times, 0, 1).reshape(times.shape[1], -1)), False


def step(evaluate: Derivative, table: Tableau, y: Array, slope: Array, begin: Array, end: Array) -> tuple[Array, Array]:
    """Returns the states after a step, and its stages."""
    after, stages = runge_kutta_step(table, evaluate, begin, end - begin, y, slope if table.fsal else None)
    return after, jnp.stack(stages)


def first_slope(evaluate: Derivative, table: Tableau, y0: Array, begin: Array) -> Array:
    """Returns the first stage of the first step, if the method reuses the last stage of the previous step."""
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
    """Goes back over the steps and recomputes their stages."""
    (rates, y0), table = differentiable, tableau(method)
    moved, fixed = eqx.partition(rates, perturbed[0])
    to_states, to_stages = (
        jnp.zeros_like(value) if given is None else given for value, given in zip(nodes, cotangents, strict=True)
    )

    def body(j: Array, carry: tuple[Array, Array, PyTree]) -> tuple[Array, Array, PyTree]:
        i = used - 1 - j
        to_after, to_slope, to_rates = carry

        def take_step(moved: PyTree, y: Array, slope: Array) -> tuple[Array, Array]:
            return step(eqx.combine(moved, fixed), table, y, slope, times[i], times[i + 1])

        # The last stage of a step is the first of the next.
        slope = nodes.stages[i, 0]
        _, pull = jax.vjp(take_step, moved, nodes.states[i], slope)
        more, to_y, to_first = pull((to_after, to_stages[i].at[-1].add(to_slope)))
        return to_y + to_states[i], to_first, jax.tree.map(jnp.add, to_rates, more)

    start = (to_states[used], jnp.zeros_like(y0), jax.tree.map(jnp.zeros_like, moved))
    to_y0, to_slope, to_rates = jax.lax.fori_loop(0, used, body, start)
    _, pull = jax.vjp(lambda moved, y: first_slope(eqx.combine(moved, fixed), table, y, times[0]), moved, y0)
    more, through = pull(to_slope)
    return jax.tree.map(jnp.add, to_rates, more), to_y0 + through


def first_spacing(ts: Float[Array, " time"]) -> Float[Array, ""]:
    """Returns the first step of a time grid; 1 if it has none."""
    gap = ts[1] - ts[0] if ts.shape[0] > 1 else jnp.zeros((), ts.dtype)
    return jnp.where(gap > 0, gap, 1)


def mean_spacing(ts: Float[AnyArray, " time"]) -> Float[Array, ""]:
    """Returns the mean step of a time grid, without the repeated times that pad it; 1 if it has no step."""
    gaps = (jnp.diff(ts) > 0).sum().astype(ts.dtype)
    return jnp.where(gaps > 0, (ts[-1] - ts[0]) / jnp.maximum(gaps, 1), 1)


def interpolate_grid(
    method: str, grid: Grid, steps: March, saved: Float[AnyArray, "trajectory saved"]
) -> Float[Array, "trajectory saved state"]:
    """Interpolates states at the times `saved` with the method's own interpolation; constant beyond the grid."""
    shape = EXPLICIT[method]().interpolation_cls

    def one(nodes: AnyArray, before: Array, after: Array, stages: Array, ts: AnyArray) -> Array:
        indices = jnp.clip(jnp.searchsorted(nodes, ts, side="right") - 1, 0, steps.used - 1)

        def at(index: Array, t: AnyArray) -> Array:
            ends = {"t0": nodes[index], "t1": nodes[index + 1], "y0": before[index], "y1": after[index]}
            piece = shape(**ends) if method == "euler" else shape(**ends, k=stages[index])
            return piece.evaluate(jnp.minimum(t, nodes[-1]))

        return jax.vmap(at)(indices, ts)

    by_trajectory = (
        jnp.moveaxis(steps.before, 1, 0),
        jnp.moveaxis(steps.after, 1, 0),
        jnp.moveaxis(steps.stages, 2, 0),
    )
    return jax.vmap(one)(grid, *by_trajectory, saved)


def estimate_step_errors(
    method: str, steps: March, rtol: Tolerance, atol: Tolerance
) -> Float[Array, "trajectory step"]:
    """Estimates the error of each step relative to its tolerance, as a root mean square over the states.

    Hairer, Norsett and Wanner, Solving Ordinary Differential Equations I, 1993, section II.4.
    """
    error = jnp.tensordot(jnp.asarray(tableau(method).error, steps.stages.dtype), steps.stages, axes=(0, 1))
    allowed = atol + rtol * jnp.maximum(jnp.abs(steps.before), jnp.abs(steps.after))
    return jnp.swapaxes(jnp.sqrt(jnp.mean((error / allowed) ** 2, axis=-1)), 0, 1)


def even(ts: Float[np.ndarray, "trajectory time"], steps: int | None = None) -> Shares:
    """Returns grids of equal steps, one row per trajectory.

    **Arguments:** `steps`: number of steps; if None, one for each interval of the times, without padding.
    """
    if steps is not None:
        return np.tile(np.linspace(0, 1, steps + 1), (len(ts), 1))
    intervals = np.maximum((np.diff(ts, axis=1) > 0).sum(axis=1), 1)
    return np.minimum(np.arange(int(intervals.max()) + 1)[None, :] / intervals[:, None], 1)


def finest(shares: Shares) -> Shares:
    """Returns only the row with the shortest first step."""
    return shares[np.argmin(shares[:, 1])][None]


def stretch(shares: Shares, ts: Float[AnyArray, "trajectory time"]) -> Grid:
    """Converts nodes from shares to each trajectory's time."""
    first, last = ts[:, :1], ts[:, -1:]
    return first + shares * (last - first)


def settle(errors_of: Callable[[Shares], np.ndarray], grid: Shares, order: int, most: int) -> Shares:
    """Returns a grid whose steps meet the tolerance; the same grid if it already does.

    The steps are spread so that all have the same estimated error. Their number grows if that error is too large, and
    shrinks if it is far too small. This only needs solves on grids.

    **Arguments:**

    - `errors_of`: maps a grid to the error of each step relative to its tolerance, shape `(row, step)`.
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
        if not within:  # Respread the same number of steps first, then add more.
            needed = max(needed, steps if number < 2 else min(size(steps + 1), most))
        new = spread_steps(grid, shares(errors, order), needed)
        if np.array_equal(new, grid):
            return grid
        grid = new
    return grid


# Numbers of steps between two rows: few choices, so that runs share compiled programs.
BETWEEN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def settle_between_rows(errors_of: Callable[[int], np.ndarray], steps: int, order: int, most: int) -> int:
    """Returns the number of steps in every interval between two rows that meets the tolerance.

    **Arguments:**

    - `errors_of`: maps a number of steps to the largest error in each interval relative to the tolerance.
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
    """Returns the number of steps in each interval between rows that meets the tolerance, shared by all trajectories.

    **Arguments:**

    - `errors_of`: maps numbers of steps to the largest error of each trajectory in each interval, relative to the
      tolerance.
    - `intervals`, `most`: the number of intervals, and the maximum number of steps in one.
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
    """Returns the maximum number of steps between two rows if a solver allows `most`."""
    return max((size for size in BETWEEN if size <= most), default=1)


def needed_steps(errors: np.ndarray, order: int) -> float:
    """Returns the number of steps that meets the tolerance on average, and `SLACK` times it in every trajectory."""
    total = shares(errors, order).sum(axis=1)
    return float(max(total.mean(), total.max() / SLACK ** (1 / order)))


def pad_grid(grid: AnyArray, steps: int) -> np.ndarray:
    """Pads a grid with steps of zero length at its end, so that grids of several sizes have one shape."""
    return np.pad(grid, [(0, 0)] * (grid.ndim - 1) + [(0, steps + 1 - grid.shape[-1])], mode="edge")


def shares(errors: np.ndarray, order: int) -> np.ndarray:
    """Returns the number of steps of the right length into which each step should be divided."""
    errors = np.where(np.isfinite(errors), errors, np.inf)
    return np.clip(errors ** (1 / order), LEAST, MOST_GROWTH) / ERROR_SAFETY


def size(needed: int | float) -> int:
    """Rounds a number of steps up by at most an eighth, so that slow growth does not change it in every chunk."""
    if needed <= FEWEST_STEPS:
        return FEWEST_STEPS
    quantum = 2 ** max(math.ceil(math.log2(needed)) - 4, 0)
    return math.ceil(needed / quantum) * quantum


def room(steps: int, *, tight: bool = False) -> int:
    """Rounds a number of steps up to 128 times a power of four, or to 16 times a power of two if `tight`."""
    most, factor = (2 * FEWEST_STEPS, 2) if tight else (16 * FEWEST_STEPS, 4)
    while most < steps:
        most *= factor
    return most


def spread_steps(grid: AnyArray, share: np.ndarray, steps: int) -> np.ndarray:
    """Returns `steps` new steps over each trajectory's grid, distributed over the old ones by their shares."""
    total = np.concatenate([np.zeros((len(grid), 1)), np.cumsum(share, axis=1)], axis=1)
    wanted = np.linspace(0, total[:, -1], steps + 1, axis=1)
    rows: list[np.ndarray] = [np.interp(w, t, g) for w, t, g in zip(wanted, total, grid, strict=True)]
    return np.stack(rows)

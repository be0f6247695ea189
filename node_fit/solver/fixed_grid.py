"""Steps of an explicit Runge-Kutta method from node to node of a grid, whose number is a value and not a shape.

A grid is padded with steps of zero length, which cost nothing: the loops forward and backward run over the steps in use
alone. One compiled program thus serves grids of any size up to that of its arrays.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int, PyTree

from ..runtime.placement import AnyArray
from .methods import Adjoint, Tableau, combine, tableau

# The derivative of all trajectories at once.
Derivative = Callable[[Float[Array, " trajectory"], Float[Array, "trajectory state"]], Float[Array, "trajectory state"]]


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
    """
    table = tableau(method)
    times = jax.lax.stop_gradient(jnp.swapaxes(jnp.asarray(grid), 0, 1))

    def evaluate(t: Array, y: Array) -> Array:
        return derivative(t, y if bound is None else jnp.clip(y, -bound[None], bound[None]))

    used = steps_in_use(times)
    if adjoint == "direct":
        found = scanned(evaluate, y0, times, table)
    elif adjoint == "forward":
        found = looped(evaluate, y0, times, used, table)
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
    h = end - begin
    ks = [slope if table.fsal else evaluate(begin, y)]
    for row, c in zip(table.a, table.c, strict=True):
        ks.append(evaluate(begin + float(c) * h, y + h[:, None] * combine(row, ks)))
    return y + h[:, None] * combine(table.b, ks), jnp.stack(ks)


def first_slope(evaluate: Derivative, table: Tableau, y0: Array, begin: Array) -> Array:
    """The first stage of the first step, where each step takes it from the last one."""
    return evaluate(begin, y0) if table.fsal else jnp.zeros_like(y0)


def scanned(evaluate: Derivative, y0: Array, times: Array, table: Tableau) -> Nodes:
    """Takes all steps."""

    @jax.checkpoint
    def body(carry: tuple[Array, Array], ends: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        after, ks = step(evaluate, table, *carry, *ends)
        return (after, ks[-1]), (after, ks)

    slope = first_slope(evaluate, table, y0, times[0])
    _, (after, stages) = jax.lax.scan(body, (y0, slope), (times[:-1], times[1:]))
    return Nodes(jnp.concatenate([y0[None], after]), stages)


def looped(evaluate: Derivative, y0: Array, times: Array, used: Int[Array, ""], table: Tableau) -> Nodes:
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
    return looped(*differentiable, times, used, tableau(method))


@reversible.def_fwd
def _(
    perturbed: PyTree, differentiable: tuple[Derivative, Array], times: Array, used: Int[Array, ""], method: str
) -> tuple[Nodes, Nodes]:
    nodes = looped(*differentiable, times, used, tableau(method))
    return nodes, nodes


@reversible.def_bwd
def _(
    nodes: Nodes,
    cotangents: Nodes,
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


def mean_spacing(ts: Float[Array, " time"]) -> Float[Array, ""]:
    """The mean step of a time grid, without the repeated times that pad it; 1 if there is no step."""
    gaps = (jnp.diff(ts) > 0).sum().astype(ts.dtype)
    return jnp.where(gaps > 0, (ts[-1] - ts[0]) / jnp.maximum(gaps, 1), 1)

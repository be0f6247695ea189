"""All steps of a solve in one kernel: a GPU then starts one program for a block of trajectories, not dozens a step.

Small systems spend a GPU's time on starting kernels (Utkarsh et al., Automated translation and accelerated solving of
differential equations on multiple GPU platforms, Computer Methods in Applied Mechanics and Engineering 419, 2024).
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from node_fit.solver.held_steps import Derivative, Nodes, first_slope, step
from node_fit.solver.methods import tableau

BLOCK = 128


def march_in_kernel(
    method: str,
    derivative: Derivative,
    grid: Float[Array, "trajectory node"],
    y0: Float[Array, "trajectory state"],
    *,
    block: int = BLOCK,
    interpret: bool = False,
) -> Nodes:
    """Steps of an explicit method from node to node of a grid, as `march` takes them, without derivatives.

    **Arguments:**

    - `method`, `derivative`, `grid`, `y0`: as in `march`. The derivative is called with a block of trajectories.
    - `block`: trajectories that one program solves.
    - `interpret`: run it with XLA's operations, on any device.
    """
    table, count = tableau(method), len(y0)
    block = min(block, count)
    index = jnp.minimum(jnp.arange(-(-count // block) * block), count - 1)  # The last block repeats a trajectory.
    times, starts = jnp.swapaxes(grid[index], 0, 1), y0[index]
    rates, constants = jax.closure_convert(derivative, times[0, :block], starts[:block])
    shapes = [jnp.shape(each) for each in constants]
    steps, states = grid.shape[1] - 1, y0.shape[1]

    def kernel(times_ref, start_ref, *refs):
        *constant_refs, states_ref, stages_ref = refs
        known = [ref[...].reshape(shape) for ref, shape in zip(constant_refs, shapes, strict=True)]

        def evaluate(t: Array, y: Array) -> Array:
            return rates(t, y, *known)

        def body(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            y, ks = step(evaluate, table, *carry, times_ref[i], times_ref[i + 1])
            states_ref[i + 1], stages_ref[i] = y, ks
            return y, ks[-1]

        y = start_ref[...]
        states_ref[0] = y
        jax.lax.fori_loop(0, steps, body, (y, first_slope(evaluate, table, y, times_ref[0])))

    def whole(shape: tuple[int, ...]) -> pl.BlockSpec:
        return pl.BlockSpec(shape, lambda i: (0,) * len(shape))

    stages, given = len(table.c) + 1, [jnp.atleast_1d(each) for each in constants]
    found = pl.pallas_call(
        kernel,
        grid=(len(index) // block,),
        in_specs=[
            pl.BlockSpec((steps + 1, block), lambda i: (0, i)),
            pl.BlockSpec((block, states), lambda i: (i, 0)),
            *(whole(each.shape) for each in given),
        ],
        out_specs=(
            pl.BlockSpec((steps + 1, block, states), lambda i: (0, i, 0)),
            pl.BlockSpec((steps, stages, block, states), lambda i: (0, 0, i, 0)),
        ),
        out_shape=(
            jax.ShapeDtypeStruct((steps + 1, len(index), states), y0.dtype),
            jax.ShapeDtypeStruct((steps, stages, len(index), states), y0.dtype),
        ),
        interpret=interpret,
    )(times, starts, *given)
    return Nodes(found[0][:, :count], found[1][:, :, :count])

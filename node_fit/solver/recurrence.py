"""All steps of a march at once: Newton's method on a recurrence of states.

A march over given steps is a recurrence, `y[i + 1] = step(y[i], x[i])`. Taken one after the other, the steps are a
chain of small programs that a GPU has to wait for. Newton's method on all steps together evaluates them as one batch,
and solves the linear recurrence of the corrections with an associative scan: a few iterations of few large programs.
The derivative is another linear recurrence, without iterations.

Lim, Zhu, Selfridge and Kasim, Parallelizing non-linear sequential models over the sequence length, ICLR 2024, who call
it DEER.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float, Int, PyTree

State = Float[Array, "trajectory state"]
States = Float[Array, "step trajectory state"]
# Maps the states before a step and its data to the states after it and other outputs. Trajectories are independent.
Step = Callable[[State, PyTree], tuple[State, PyTree]]
Linear = Callable[[States], States]

# Number of iterations after which the remaining steps are taken sequentially: one for every eight steps, within limits.
STEPS_OF_AN_ITERATION, FEWEST_ITERATIONS, MOST_ITERATIONS = 8, 8, 32
# Maximum correction that counts as rounding, in multiples of the spacing of floating-point numbers.
ROUNDING = 4.0
# Relative correction below which Newton's method squares the error.
QUADRATIC = 1e-2
# Maximum move of an iterate, as linear models are inaccurate far from a solution; states are of order one.
MOST_MOVE = 3.0
# Maximum number of steps, over all trajectories, in a block that is solved at once, which bounds the memory.
MOST_AT_ONCE = 2**18


def solve_recurrence(step: Step, y0: State, xs: PyTree, guess: States | None = None) -> tuple[States, PyTree]:
    """Computes the states after every step, and the other outputs of the steps.

    To rounding, they are those of `jax.lax.scan`, and so are their derivatives of any kind and order.

    **Arguments:**

    - `step`: called with the states before a step, and with its part of `xs`.
    - `y0`: the states before the first step.
    - `xs`: arrays with a leading axis for steps.
    - `guess`: states after every step, near the solution; those of `y0` if None.
    """
    count = len(jax.tree.leaves(xs)[0])
    guess = jnp.broadcast_to(y0, (count, *y0.shape)) if guess is None else guess
    size = max(MOST_AT_ONCE // len(y0), 1)
    if count <= size:
        return solve_block(step, y0, xs, guess)
    # All blocks have the same size except for the first, which takes the remainder.
    blocks = -(-count // size) - 1
    size = count // (blocks + 1)
    rest = count - blocks * size

    def block(y: State, part: tuple[PyTree, States]) -> tuple[State, tuple[States, PyTree]]:
        ys, others = solve_block(step, y, *part)
        return ys[-1], (ys, others)

    first = solve_block(step, y0, *jax.tree.map(lambda x: x[:rest], (xs, guess)))
    parts = jax.tree.map(lambda x: x[rest:].reshape(blocks, size, *x.shape[1:]), (xs, guess))
    _, others = jax.lax.scan(jax.checkpoint(block), first[0][-1], parts)
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y.reshape(-1, *y.shape[2:])]), first, others)


def solve_block(step: Step, y0: State, xs: PyTree, guess: States) -> tuple[States, PyTree]:
    """Runs `solve_recurrence` for steps that fit into memory at once."""
    steps = jax.vmap(step)

    def residuals(ys: States) -> States:
        return ys - steps(before_steps(y0, ys), xs)[0]

    def solve(residuals: Linear, ys: States) -> States:
        found = iterate(residuals, ys)
        return march_on(step, y0, xs, found.ys, first_unsettled(found.settled))

    ys = cast(States, jax.lax.custom_root(residuals, guess, solve, solve_affine))  # pyright: ignore[reportUnknownMemberType]
    return steps(before_steps(y0, ys), xs)


def linearize_march(residuals: Linear, ys: States) -> tuple[States, Linear]:
    """Returns the residuals at `ys`, and their directional derivative as a function."""
    off, linear = jax.linearize(residuals, ys)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return off, linear  # pyright: ignore[reportUnknownVariableType]


def before_steps(y0: State, ys: States) -> States:
    """Returns the states before each step, from those after it."""
    return jnp.concatenate([y0[None], ys[:-1]])


class Iterates(NamedTuple):
    """A point of Newton's iteration.

    - `ys`: states after each step.
    - `moves`: the largest relative correction of the last iteration.
    - `settled`: whether each step's states are correct to rounding.
    - `number`: number of iterations so far.
    """

    ys: States
    moves: Float[Array, ""]
    settled: Bool[Array, " step"]
    number: Int[Array, ""]


def iterate(residuals: Linear, guess: States) -> Iterates:
    """Runs Newton's iteration until the corrections are rounding.

    After `n` iterations, at least the first `n` steps are correct, whatever the guess.
    """
    spacing = jnp.finfo(guess.dtype).eps
    most = min(max(len(guess) // STEPS_OF_AN_ITERATION, FEWEST_ITERATIONS), MOST_ITERATIONS)

    def newton(at: Iterates) -> Iterates:
        off, linear = linearize_march(residuals, at.ys)
        move = solve_affine(linear, -off)
        relative = jnp.abs(move) / (1 + jnp.abs(at.ys))
        # A linear model that overflows is wrong.
        relative = jnp.where(jnp.isfinite(relative), relative, jnp.inf).max(axis=(1, 2))
        moves = relative.max()
        # Newton's method squares the error, so two corrections predict the next one; a single one is not enough.
        foretold = jnp.where(at.number > 0, moves * (moves / at.moves) ** 2, jnp.inf)
        close = (moves <= QUADRATIC) & (foretold <= spacing)
        # Corrections that no longer shrink are rounding.
        still = (moves <= QUADRATIC**2) & (moves >= at.moves / 2)
        ys = at.ys + jnp.clip(jnp.nan_to_num(move), -MOST_MOVE, MOST_MOVE)
        return Iterates(ys, moves, (relative <= ROUNDING * spacing) | close | still, at.number + 1)

    def goes_on(at: Iterates) -> Array:
        return ~at.settled.all() & (at.number < most)

    far = jnp.full((), jnp.inf, guess.dtype)
    start = Iterates(guess, far, jnp.zeros(len(guess), bool), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(goes_on, newton, start)


@custom_vmap
def first_unsettled(settled: Bool[Array, " step"]) -> Int[Array, ""]:
    """Returns the first step that is not settled, or the number of steps if all are."""
    return jnp.where(settled.all(), len(settled), jnp.argmin(settled))


@first_unsettled.def_vmap
def _(size: int, mapped: list[bool], settled: Bool[Array, "member step"]) -> tuple[Int[Array, ""], bool]:
    # The first over all members, since a loop whose length differs between them would copy its arrays in every step.
    return first_unsettled(settled.all(axis=0)), False


def march_on(step: Step, y0: State, xs: PyTree, ys: States, first: Int[Array, ""]) -> States:
    """Takes the steps from `first` on sequentially, and leaves earlier steps unchanged."""

    def body(i: Array, ys: States) -> States:
        y = jnp.where(i > 0, ys[jnp.maximum(i - 1, 0)], y0)
        return ys.at[i].set(step(y, jax.tree.map(lambda x: x[i], xs))[0])

    return jax.lax.fori_loop(first, len(ys), body, ys)


def solve_affine(linear: Linear, known: States) -> States:
    """Solves `x[i] - J[i] x[i - 1] = known[i]` for all `i` with an associative scan.

    **Arguments:** `linear`: the left side as a function of `x`, with `x[-1] = 0`.
    """
    units = jnp.eye(known.shape[-1], dtype=known.dtype)

    def column(unit: Float[Array, " state"]) -> States:
        x = jnp.broadcast_to(unit, known.shape)
        return x - linear(x)

    jacobians = jax.vmap(column, out_axes=-1)(units)
    scanned = jax.lax.associative_scan(compose, (jacobians, known))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return cast(Affine, scanned)[1]


Affine = tuple[Float[Array, "step trajectory state state"], States]


def compose(first: Affine, then: Affine) -> Affine:
    """Composes two affine maps, applying `first` and then `then`."""
    (a, b), (c, d) = first, then
    # Sums of products are compiled into one kernel; these matrices are too small for a matmul kernel.
    product = (c[..., :, :, None] * a[..., None, :, :]).sum(axis=-2)
    return product, (c * b[..., None, :]).sum(axis=-1) + d

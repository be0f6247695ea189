"""Levenberg-Marquardt: least squares by damped linearisation."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..objectives import Loss
from .optimizer import AbstractOptimizer, Clip, Goal, Linearised, LossFunction, Step

Vector = Float[Array, " parameter"]
Form = Literal["auto", "dense", "cg"]
# A step is taken if the sum of squares falls by this share of what was predicted.
SUFFICIENT = 1e-4
# Steps in a row that lower the sum of squares by less than `STALL` of it.
STALLED, STALL = 5, 1e-4
# The largest correction by the curvature, relative to the step (Transtrum and Sethna 2012).
CURVED = 0.75
PROBE = 0.1
CG_STEPS = 100


class LMState(NamedTuple):
    """The `damping` of the next step (0 before the first), its `growth` if it is refused, steps `stalled` in a row."""

    damping: Float[Array, ""]
    growth: Float[Array, ""]
    stalled: Int[Array, ""]


class Try(NamedTuple):
    """A damped step: where it leads, the sum of squares there, and whether it is taken."""

    damping: Float[Array, ""]
    growth: Float[Array, ""]
    step: Vector
    value: Float[Array, ""]
    taken: Bool[Array, ""]
    number: Int[Array, ""]


class LevenbergMarquardt(AbstractOptimizer):
    """Levenberg-Marquardt (Nielsen's damping; Madsen, Nielsen and Tingleff, "Methods for non-linear least squares
    problems", 2004, section 3.2), with geodesic acceleration (Transtrum and Sethna, arXiv:1201.5885, 2012).

    A step linearises once and tries dampings until the sum of squares falls. The linear problem is solved in the form
    that is smaller, parameters by parameters or residuals by residuals; where the Jacobian would need more
    than `memory`, by conjugate gradients with products alone.

    **Arguments:**

    - `damping`: of the first step, relative to the largest squared column of the Jacobian.
    - `geodesic`: whether steps are bent along the curvature of the model.
    - `form`: `dense`, `cg`, or `auto` by memory.
    - `memory`: bytes that the Jacobian may take.
    - `tries`: dampings that are tried in a step.

    **Raises:** `ValueError` if a number is out of range.
    """

    damping: float | Float[Array, ""]
    geodesic: bool = eqx.field(static=True)
    form: str = eqx.field(static=True)
    memory: float = eqx.field(static=True)
    tries: int = eqx.field(static=True)

    def __init__(
        self,
        *,
        damping: float = 1e-3,
        geodesic: bool = True,
        form: Form = "auto",
        memory: float = 1e9,
        tries: int = 10,
    ):
        for key, number in (("damping", damping), ("memory", memory)):
            if not 0 < number < math.inf:
                raise ValueError(f"{key} must be positive and finite, got {number}.")
        if tries < 1:
            raise ValueError(f"tries must be at least 1, got {tries}.")
        if form not in ("auto", "dense", "cg"):
            raise ValueError(f"form must be auto, dense or cg, got {form!r}.")
        self.damping = damping
        self.geodesic = geodesic
        self.form = form
        self.memory = memory
        self.tries = tries

    @property
    def full_batch(self) -> bool:
        return True

    @property
    def pace(self) -> int:
        return 20

    def init(self, params: PyTree, steps: int) -> LMState:
        zero = jnp.zeros((), jax.tree.leaves(params)[0].dtype)
        return LMState(zero, zero + 2, jnp.zeros((), jnp.int32))

    def step(self, loss: LossFunction, params: PyTree, state: LMState, steps: int, clip: Clip) -> Step:
        goal = cast(Goal, loss)
        x, unravel = ravel_pytree(params)
        residuals = goal.residuals
        linear = self.linearise(goal, x)
        r, prior = linear.residuals, linear.prior
        value = r @ r + x @ (prior * x)
        first = self.damping * linear.largest
        damping = jnp.where(state.damping > 0, state.damping, first)

        def bent(damping: Array) -> tuple[Vector, Vector, Float[Array, " row"]]:
            """The damped step, the same along the residuals' curvature, and the residuals where that leads.

            Both are found in one loop of two rounds, so that each piece is compiled once.
            """

            def turn(found: tuple[Array, Array], second: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
                step, target = found
                solved = linear.solve(damping, target)
                small = jnp.linalg.norm(solved / 2) <= CURVED / 2 * jnp.linalg.norm(step)
                corrected = step + jnp.where(small & jnp.isfinite(solved).all(), solved / 2, 0)
                step = jnp.where(second, corrected, solved)
                there, _ = residuals(x + jnp.where(second, step, PROBE * step))
                # The second derivative along the step, by a difference.
                bend = 2 / PROBE * ((there - r) / PROBE - linear.push(step))
                return (step, linear.pull(bend)), (step, there)

            _, (steps, there) = jax.lax.scan(turn, (jnp.zeros_like(x), linear.slope), jnp.array([False, True]))
            return steps[0], steps[1], there[1]

        def straight(damping: Array) -> tuple[Vector, Vector, Float[Array, " row"]]:
            step = linear.solve(damping, linear.slope)
            return step, step, residuals(x + step)[0]

        def attempt(old: Try) -> Try:
            first, step, there = (bent if self.geodesic else straight)(old.damping)
            predicted = first @ (old.damping * first - linear.slope)
            moved = x + step
            total = there @ there + moved @ (prior * moved)
            gain = (value - total) / predicted
            taken = jnp.isfinite(total) & (gain > SUFFICIENT)
            eased = old.damping * jnp.maximum(1 / 3, 1 - (2 * gain - 1) ** 3)
            return Try(
                damping=jnp.where(taken, eased, old.damping * old.growth),
                growth=jnp.where(taken, 2, 2 * old.growth).astype(x.dtype),
                step=step,
                value=total,
                taken=taken,
                number=old.number + 1,
            )

        start = Try(damping, state.growth, jnp.zeros_like(x), value, jnp.zeros((), bool), jnp.zeros((), jnp.int32))
        last = jax.lax.while_loop(lambda t: ~t.taken & (t.number < self.tries), attempt, start)
        moved = jnp.where(last.taken, x + last.step, x)
        falls = last.taken & (last.value < (1 - STALL) * value)
        stalled = jnp.where(falls, 0, state.stalled + 1)
        growth = jnp.minimum(last.growth, 1e4)
        sound = jnp.isfinite(value) & (last.damping > 0) & jnp.isfinite(last.damping)
        damping = jnp.where(sound, last.damping, jnp.where(jnp.isfinite(first), first, 0))
        return Step(
            params=unravel(moved),
            state=LMState(damping, growth, stalled),
            loss=Loss(value, linear.failed),
            gradient_norm=2 * jnp.linalg.norm(linear.slope),
            evaluations=1 + (2 if self.geodesic else 1) * last.number,
        )

    def linearise(self, loss: Goal, x: Vector) -> "Linear":
        rows = jax.eval_shape(lambda x: loss.residuals(x)[0], x).size
        free = self.form == "cg" or (self.form == "auto" and rows * x.size * x.dtype.itemsize > self.memory)
        return matrix_free(loss, x) if free else dense(loss.linearised(x), x)

    def reopen(self, state: LMState) -> LMState:
        return state._replace(stalled=jnp.zeros_like(state.stalled))

    def rate(self, state: LMState, steps: int) -> Float[Array, ""]:
        return state.damping

    def stuck(self, state: LMState) -> Bool[Array, ""]:
        return state.stalled >= STALLED


class Linear(NamedTuple):
    """A sum of squares linearised at a point.

    - `residuals`, `failed`, `prior`: as of `Linearised`.
    - `slope`: half of the gradient of the sum of squares.
    - `solve`: `(damping, b)` to the `d` with `(J'J + prior + damping) d = -b`.
    - `push`, `pull`: products with `J` and with its transpose.
    - `largest`: the largest squared column of `J`, or an estimate.
    """

    residuals: Float[Array, " row"]
    failed: Int[Array, ""]
    prior: Vector
    slope: Vector
    solve: Callable[[Array, Array], Array]
    push: Callable[[Array], Array]
    pull: Callable[[Array], Array]
    largest: Float[Array, ""]


def dense(at: Linearised, x: Vector) -> Linear:
    jacobian, r, prior = at.jacobian, at.residuals, at.prior
    rows, parameters = jacobian.shape
    slope = jacobian.T @ r + prior * x

    def primal(damping: Array, b: Array) -> Array:
        return -solve_spd(gram + jnp.diag(prior + damping), b)

    def dual(damping: Array, b: Array) -> Array:
        # Sherman, Morrison and Woodbury: an inverse in the space of the residuals.
        weight = prior + damping
        scaled = jacobian / weight[None]
        inner = solve_spd(scaled @ jacobian.T + jnp.eye(rows, dtype=b.dtype), scaled @ b)
        return -(b / weight - scaled.T @ inner)

    gram = jacobian.T @ jacobian if parameters <= rows else jnp.zeros((0, 0), x.dtype)
    return Linear(
        residuals=r,
        failed=at.failed,
        prior=prior,
        slope=slope,
        solve=primal if parameters <= rows else dual,
        push=lambda v: jacobian @ v,
        pull=lambda w: jacobian.T @ w,
        largest=(jacobian**2).sum(axis=0).max(),
    )


def solve_spd(matrix: Float[Array, "n n"], b: Float[Array, " n"]) -> Float[Array, " n"]:
    operator = lx.MatrixLinearOperator(matrix, lx.positive_semidefinite_tag)
    return lx.linear_solve(operator, b, lx.Cholesky(), throw=False).value


def matrix_free(loss: Goal, x: Vector) -> Linear:
    r, push, failed = jax.linearize(loss.residuals, x, has_aux=True)
    vjp = jax.linear_transpose(push, x)
    prior = loss.prior(x)

    def pull(w: Array) -> Array:
        return vjp(w)[0]

    def solve(damping: Array, b: Array) -> Array:
        operator = lx.FunctionLinearOperator(
            lambda v: pull(push(v)) + (prior + damping) * v,
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            lx.positive_semidefinite_tag,
        )
        # An inexact step will do: it is judged by the sum of squares that it reaches.
        return -lx.linear_solve(operator, b, lx.CG(rtol=1e-2, atol=0.0, max_steps=CG_STEPS), throw=False).value

    slope = pull(r) + prior * x
    curvature = jnp.linalg.norm(push(slope)) ** 2 / jnp.maximum(slope @ slope, jnp.finfo(x.dtype).tiny)
    return Linear(r, failed, prior, slope, solve, push, pull, curvature)

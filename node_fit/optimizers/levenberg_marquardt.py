"""Levenberg-Marquardt: nonlinear least squares by damped linearisation."""

import functools
import math
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Literal, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..data.domains import Numbers, namespace
from ..objectives.objective import Loss
from ..runtime.validation import check_fields, says_where
from .optimizer import AbstractOptimizer, LeastSquaresLoss, Linearised, LossFunction, Step

Vector = Float[Array, " parameter"]
Form = Literal["auto", "dense", "cg"]
# Minimum decrease of the sum of squares for accepting a step, as a fraction of the predicted decrease.
SUFFICIENT = 1e-4
# The optimizer is stuck after this many consecutive steps whose relative decrease is below `STALLED_CG`.
STALLED, STALLED_CG = 5, 1e-4
# Magnitude above which a parameter is scaled by its size: those of networks and most constants are of order one.
LARGE_PARAMETER = 10.0
# Maximum correction by the curvature, relative to the step (Transtrum and Sethna 2012).
CURVED = 0.75
CURVATURE_PROBE = 0.1
CG_STEPS = 100


class LMState(NamedTuple):
    """The optimizer's state.

    - `damping`: the damping of the next step; 0 before the first step.
    - `growth`: the factor by which a rejected step raises the damping.
    - `stalled`: number of consecutive steps without a sufficient decrease.
    """

    damping: Float[Array, ""]
    growth: Float[Array, ""]
    stalled: Int[Array, ""]


class Try(NamedTuple):
    """A damped step: the step, the sum of squares after it, whether it is accepted, and the dampings to try next."""

    damping: Float[Array, ""]
    growth: Float[Array, ""]
    step: Vector
    value: Float[Array, ""]
    taken: Bool[Array, ""]
    number: Int[Array, ""]


@says_where(memory="max_bytes")
class LevenbergMarquardt(AbstractOptimizer):
    """Levenberg-Marquardt (Nielsen's damping; Madsen, Nielsen and Tingleff, "Methods for non-linear least squares
    problems", 2004, section 3.2), with geodesic acceleration (Transtrum and Sethna, arXiv:1201.5885, 2012).

    A step linearises once and tries dampings until the sum of squares falls. Parameters above 10, such as the initial
    value of a hidden state in unknown units, are scaled by their size. The linear problem is solved in the smaller of
    two forms: parameters by parameters, or residuals by residuals. If the Jacobian needs more than `max_bytes`,
    conjugate gradients solve it with matrix-free products.

    It has a separate loop, since training carries its state from step to step, and since a trial only costs residuals:
    `minimize/compiled.py` evaluates their Jacobian at each point, too.

    **Arguments:**

    - `damping`: damping of the first step, relative to the largest squared column norm of the Jacobian.
    - `geodesic`: whether to correct steps for the curvature of the model (geodesic acceleration).
    - `form`: `dense`, `cg`, or `auto`, which chooses by `max_bytes`.
    - `max_bytes`: maximum size of the Jacobian.
    - `tries`: maximum number of dampings to try in a step.

    **Raises:** `ValueError` if a number is out of range.
    """

    _: KW_ONLY
    damping: float | Float[Array, ""] = 1e-3
    geodesic: bool = eqx.field(static=True, default=True)
    form: Form = eqx.field(static=True, default="auto")
    max_bytes: float = eqx.field(static=True, default=1e9)
    tries: int = eqx.field(static=True, default=10)

    def __check_init__(self):
        check_fields(self, {"form": "auto, dense or cg"})
        for key in ("damping", "max_bytes"):
            if not 0 < getattr(self, key) < math.inf:
                raise ValueError(f"{key} must be positive and finite, got {getattr(self, key)}.")
        if self.tries < 1:
            raise ValueError(f"tries must be at least 1, got {self.tries}.")

    @property
    def full_batch(self) -> bool:
        return True

    @property
    def is_scheduled(self) -> bool:
        return False

    @property
    def pace(self) -> int:
        return 20

    def init(self, params: PyTree, steps: int) -> LMState:
        zero = jnp.zeros((), jax.tree.leaves(params)[0].dtype)
        return LMState(zero, zero + 2, jnp.zeros((), jnp.int32))

    def step(self, loss: LossFunction, params: PyTree, state: LMState, steps: int) -> Step:
        squares = cast(LeastSquaresLoss, loss)
        x, unravel = ravel_pytree(params)
        residuals = squares.residuals
        linear = self.linearise(squares, x)
        r, prior = linear.residuals, linear.prior
        value = r @ r + x @ (prior * x)
        initial = self.damping * linear.largest
        follow = geodesic_step if self.geodesic else plain_step
        damping = jnp.where(state.damping > 0, state.damping, initial)

        def attempt(old: Try) -> Try:
            first, step, there = follow(linear, residuals, x, old.damping)
            predicted = first @ (old.damping * first / linear.size**2 - linear.slope)
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
        falls = last.taken & (last.value < (1 - STALLED_CG) * value)
        stalled = jnp.where(falls, 0, state.stalled + 1)
        growth = jnp.minimum(last.growth, 1e4)
        sound = jnp.isfinite(value) & (last.damping > 0) & jnp.isfinite(last.damping)
        damping = jnp.where(sound, last.damping, jnp.where(jnp.isfinite(initial), initial, 0))
        return Step(
            params=unravel(moved),
            state=LMState(damping, growth, stalled),
            loss=Loss(value, linear.failed),
            gradient_norm=2 * jnp.linalg.norm(linear.slope),
            evaluations=1 + (2 if self.geodesic else 1) * last.number,
        )

    def linearise(self, loss: LeastSquaresLoss, x: Vector) -> "Linearisation":
        rows = jax.eval_shape(lambda x: loss.residuals(x)[0], x).size
        free = self.form == "cg" or (self.form == "auto" and rows * x.size * x.dtype.itemsize > self.max_bytes)
        return matrix_free(loss, x) if free else dense(loss.linearise(x), x)

    def reopen(self, state: LMState) -> LMState:
        return state._replace(stalled=jnp.zeros_like(state.stalled))

    def rate(self, state: LMState, steps: int) -> Float[Array, ""]:
        return state.damping

    @property
    def why_stuck(self) -> str:
        return f"{STALLED} damped steps in a row lowered the sum of squares by less than {STALLED_CG:.2%} each"

    def stuck(self, state: LMState) -> Bool[Array, ""]:
        return state.stalled >= STALLED


ResidualsOf = Callable[[Vector], tuple[Float[Array, " row"], Int[Array, ""]]]


def geodesic_step(
    linear: "Linearisation", residuals: ResidualsOf, x: Vector, damping: Float[Array, ""]
) -> tuple[Vector, Vector, Float[Array, " row"]]:
    """Computes the damped step, the step with geodesic acceleration, and the residuals after the latter.

    Both steps come from one loop of two iterations, so each piece is compiled once.
    """

    def iterate(found: tuple[Array, Array], second: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        step, target = found
        solved = linear.solve(damping, target)
        small = jnp.linalg.norm(solved / 2) <= CURVED / 2 * jnp.linalg.norm(step)
        corrected = step + jnp.where(small & jnp.isfinite(solved).all(), solved / 2, 0)
        step = jnp.where(second, corrected, solved)
        there, _ = residuals(x + jnp.where(second, step, CURVATURE_PROBE * step))
        # Second derivative along the step, by a finite difference.
        bend = 2 / CURVATURE_PROBE * ((there - linear.residuals) / CURVATURE_PROBE - linear.push(step))
        return (step, linear.pull(bend)), (step, there)

    _, (steps, there) = jax.lax.scan(iterate, (jnp.zeros_like(x), linear.slope), jnp.array([False, True]))
    return steps[0], steps[1], there[1]


def plain_step(
    linear: "Linearisation", residuals: ResidualsOf, x: Vector, damping: Float[Array, ""]
) -> tuple[Vector, Vector, Float[Array, " row"]]:
    """Computes the damped step, returned twice, and the residuals after it."""
    step = linear.solve(damping, linear.slope)
    return step, step, residuals(x + step)[0]


class Linearisation(NamedTuple):
    """A sum of squares linearised at a point.

    - `residuals`, `failed`, `prior`: as in `Linearised`.
    - `slope`: half of the gradient of the sum of squares.
    - `size`: for each parameter, a tenth of it or 1.
    - `solve`: maps `(damping, b)` to the `d` with `(J'J + prior + damping/size^2) d = -b`.
    - `push`, `pull`: products with `J` and with its transpose.
    - `largest`: the largest squared column norm of `J` for parameters scaled by their size, or an estimate of it.
    """

    residuals: Float[Array, " row"]
    failed: Int[Array, ""]
    prior: Vector
    slope: Vector
    size: Vector
    solve: Callable[[Array, Array], Array]
    push: Callable[[Array], Array]
    pull: Callable[[Array], Array]
    largest: Float[Array, ""]


def size_of(x: Numbers) -> Numbers:
    """Returns the unit of each parameter; NumPy arrays stay on the host."""
    return cast(Numbers, namespace(x).maximum(1, abs(x) / LARGE_PARAMETER))


def dense(at: Linearised, x: Vector) -> Linearisation:
    r, size = at.residuals, size_of(x)
    # Scale parameters by their size, so that single precision loses none of them.
    jacobian, prior = at.jacobian * size[None], at.prior * size**2
    rows, parameters = jacobian.shape

    def primal(damping: Array, b: Array) -> Array:
        return -size * solve_spd(gram + jnp.diag(prior + damping), size * b)

    def dual(damping: Array, b: Array) -> Array:
        # Sherman-Morrison-Woodbury: the inverse is in the space of the residuals.
        weight, b = prior + damping, size * b
        scaled = jacobian / weight[None]
        inner = solve_spd(scaled @ jacobian.T + jnp.eye(rows, dtype=b.dtype), scaled @ b)
        return -size * (b / weight - scaled.T @ inner)

    gram = jacobian.T @ jacobian if parameters <= rows else jnp.zeros((0, 0), x.dtype)
    return Linearisation(
        residuals=r,
        failed=at.failed,
        prior=at.prior,
        slope=at.jacobian.T @ r + at.prior * x,
        size=size,
        solve=primal if parameters <= rows else dual,
        push=functools.partial(jnp.matmul, at.jacobian),
        pull=functools.partial(jnp.matmul, at.jacobian.T),
        largest=(jacobian**2).sum(axis=0).max(),
    )


def solve_spd(matrix: Float[Array, "n n"], b: Float[Array, " n"]) -> Float[Array, " n"]:
    operator = lx.MatrixLinearOperator(matrix, lx.positive_semidefinite_tag)
    return lx.linear_solve(operator, b, lx.Cholesky(), throw=False).value


def matrix_free(loss: LeastSquaresLoss, x: Vector) -> Linearisation:
    r, vjp, failed = jax.vjp(loss.residuals, x, has_aux=True)
    prior, size = loss.prior(x), size_of(x)

    def push(v: Array) -> Array:
        return loss.push_tangent(x, v)

    def pull(w: Array) -> Array:
        return vjp(w)[0]

    def solve(damping: Array, b: Array) -> Array:
        operator = lx.FunctionLinearOperator(
            lambda v: size * pull(push(size * v)) + (prior * size**2 + damping) * v,
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            lx.positive_semidefinite_tag,
        )
        # An inexact step is enough, since its sum of squares decides whether it is accepted.
        method = lx.CG(rtol=1e-2, atol=0.0, max_steps=CG_STEPS)
        return -size * lx.linear_solve(operator, size * b, method, throw=False).value

    slope = pull(r) + prior * x
    along = size * slope
    curvature = jnp.linalg.norm(push(size * along)) ** 2 / jnp.maximum(along @ along, jnp.finfo(x.dtype).tiny)
    return Linearisation(r, failed, prior, slope, size, solve, push, pull, curvature)

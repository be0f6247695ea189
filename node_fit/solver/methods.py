"""Solver methods by name, with their possible steps, tableaus, gradients and tolerances."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeGuard, cast

import diffrax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..data.domains import Numbers, namespace
from ..runtime.placement import AnyArray

# A method of Diffrax, whose state can be any tree.
Method = diffrax.AbstractSolver[PyTree]
EXPLICIT: dict[str, Callable[[], Method]] = {
    "euler": diffrax.Euler,
    "heun": diffrax.Heun,
    "bosh3": diffrax.Bosh3,
    "tsit5": diffrax.Tsit5,
    "dopri5": diffrax.Dopri5,
    "dopri8": diffrax.Dopri8,
}
# Exact for the linear part of a field, with one step from row to row.
EXPONENTIAL = "exponential"


class Tableau(NamedTuple):
    """A Butcher tableau.

    - `c`: nodes of the stages after the first. `a`: their weights of earlier stages.
    - `b`, `error`: weights of the solution, and of its estimated error.
    - `fsal`: whether a step's last stage is the first stage of the next step.
    """

    c: Sequence[float] | np.ndarray
    a: Sequence[np.ndarray]
    b: np.ndarray
    error: np.ndarray
    fsal: bool


def tableau(method: str) -> Tableau:
    """Returns the tableau of a method in `EXPLICIT`."""
    if method == "euler":
        return Tableau((), (), np.ones(1), np.zeros(1), False)
    solver = EXPLICIT[method]()
    assert isinstance(solver, diffrax.AbstractERK)
    table = solver.tableau
    assert isinstance(table, diffrax.ButcherTableau)
    return Tableau(table.c, table.a_lower, table.b_sol, table.b_error, table.fsal)


def combine(weights: np.ndarray, stages: Sequence[Numbers]) -> Numbers:
    """Computes a weighted sum of stages, without terms for weights of zero."""
    terms = [float(w) * k for w, k in zip(weights, stages, strict=False) if w != 0]
    return cast(Numbers, sum(terms[1:], terms[0]) if terms else namespace(stages[0]).zeros_like(stages[0]))


def runge_kutta_step(
    table: Tableau,
    rates: Callable[[Numbers, Numbers], Numbers],
    t: Numbers,
    h: Numbers,
    y: Numbers,
    slope: Numbers | None = None,
) -> tuple[Numbers, list[Numbers]]:
    """Returns the states after a step, and its stages; NumPy arrays stay on the host.

    **Arguments:** `t`, `h`: the time before the step and its length, shape `(trajectory,)`. `y`: the states before it,
    shape `(trajectory, state)`. `slope`: the first stage, if known.
    """
    stages = [rates(t, y) if slope is None else slope]
    for row, c in zip(table.a, table.c, strict=True):
        stages.append(rates(cast(Numbers, t + float(c) * h), cast(Numbers, y + h[:, None] * combine(row, stages))))
    return cast(Numbers, y + h[:, None] * combine(table.b, stages)), stages


def error_order(method: str) -> int:
    """Returns the order of a method's error estimate: the error is proportional to this power of the step."""
    order = EXPLICIT[method]().error_order(None)
    assert isinstance(order, int)
    return order


METHODS: dict[str, Callable[[], Method]] = {
    **EXPLICIT,
    "implicit_euler": diffrax.ImplicitEuler,
    "kvaerno3": diffrax.Kvaerno3,
    "kvaerno5": diffrax.Kvaerno5,
    # Stepped by `solver/exponential.py`; Diffrax has no such method and uses another one.
    EXPONENTIAL: diffrax.Tsit5,
}
Stepping = Literal["held", "adaptive", "even"]
STEPPINGS = ("held", "adaptive", "even")


def as_diffrax(method: str | Method) -> Method:
    """Converts a method to its Diffrax solver."""
    return METHODS[method]() if isinstance(method, str) else method


def method_named(method: str | Method) -> str | Method:
    """Replaces a Diffrax solver by its name in `METHODS`, if any, so that equal settings compare equal."""
    if isinstance(method, str):
        return method
    check_method(method)
    return next((name for name, make in METHODS.items() if type(method) is make and method == make()), method)


def is_method(given: object) -> TypeGuard[Method]:
    return isinstance(given, diffrax.AbstractSolver)


def check_method(method: object) -> None:
    if not is_method(method):
        raise ValueError(f"method must be a name such as 'tsit5' or a diffrax.AbstractSolver, got {method!r:.60}.")


def check_stepping(method: str | Method, stepping: str) -> None:
    """Raises an error if the method can't take steps of this kind."""
    if not isinstance(method, str):
        if stepping == "held":
            raise ValueError(
                f"stepping=held needs a method that node_fit steps itself ({', '.join(EXPLICIT)}), and "
                f"{type(method).__name__} is stepped by Diffrax; use stepping=adaptive."
            )
        return
    if method == EXPONENTIAL:
        if stepping != "even":
            raise ValueError(f"exponential takes one step from row to row, and stepping={stepping} others; use even.")
        return
    if method not in EXPLICIT and stepping != "adaptive":
        raise ValueError(
            f"stepping={stepping} needs an explicit method, and {method} is implicit; use stepping=adaptive."
        )
    if method == "euler" and stepping != "even":
        raise ValueError(f"euler has no error estimate, which stepping={stepping} needs; use stepping=even, or heun.")


ADJOINTS: dict[str, Callable[[], diffrax.AbstractAdjoint]] = {
    "checkpointed": diffrax.RecursiveCheckpointAdjoint,
    "direct": diffrax.DirectAdjoint,
    "backsolve": diffrax.BacksolveAdjoint,
    "forward": diffrax.ForwardMode,
}
Adjoint = Literal["checkpointed", "direct", "backsolve", "forward"]
# A number, or an array that broadcasts with the states.
Tolerance = float | int | AnyArray
# Relative and absolute tolerance.
Tolerances = tuple[Tolerance, Tolerance]
# Tolerance as a setting: a number, or one for each state.
ByState = Tolerance | tuple[Tolerance, ...]


def by_state(key: str, tolerance: ByState, y0: Float[Array, "... state"]) -> Tolerance:
    """Converts a tolerance for Diffrax: to a scalar, or an array that broadcasts with the states."""
    if not isinstance(tolerance, tuple):
        return tolerance
    states = y0.shape[-1]
    if len(tolerance) != states:
        raise ValueError(f"{key} has {len(tolerance)} numbers; it needs one, or one for each of the {states} states.")
    return jnp.stack([jnp.asarray(number, y0.dtype) for number in tolerance]).reshape((1,) * (y0.ndim - 1) + (-1,))


def check_positive(key: str, given: int | float | Sequence[float] | None) -> None:
    """Raises an error if a number, or one of several, is not positive."""
    numbers = given if isinstance(given, Sequence) else [] if given is None else [given]
    if not all(number > 0 for number in numbers):
        raise ValueError(f"{key} must be positive, got {given}.")


def smallest(rtol: ByState) -> Tolerance:
    """Returns the tightest of the tolerances, which can be numbers or traced arrays."""
    if not isinstance(rtol, tuple):
        return rtol
    are_numbers = all(isinstance(number, float | int) for number in rtol)
    return min(rtol) if are_numbers else jnp.stack(rtol).min()


def with_defaults(rtol: ByState | None, atol: ByState | None, driven: bool = False) -> tuple[ByState, ByState]:
    """Fills in default tolerances.

    **Arguments:** `driven`: whether inputs drive the records, whose steps then end at every row.
    """
    if rtol is None:
        rtol = 1e-4 if driven else 1e-5
    if atol is None:
        # States are of order one; near zero, a relative tolerance alone would be far tighter than the noise.
        atol = smallest(rtol) / (1 if driven else 100)
    return rtol, atol

"""Explicit Runge-Kutta methods that node_fit steps itself."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import diffrax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

EXPLICIT: dict[str, Callable[[], diffrax.AbstractSolver]] = {
    "euler": diffrax.Euler,
    "heun": diffrax.Heun,
    "bosh3": diffrax.Bosh3,
    "tsit5": diffrax.Tsit5,
    "dopri5": diffrax.Dopri5,
    "dopri8": diffrax.Dopri8,
}


class Tableau(NamedTuple):
    """A Butcher tableau.

    - `c`: nodes of the stages after the first. `a`: their weights of earlier stages.
    - `b`, `error`: weights of the solution, and of its estimated error.
    - `fsal`: whether a step's last stage is the first one of the next.
    """

    c: Sequence[float]
    a: Sequence[np.ndarray]
    b: np.ndarray
    error: np.ndarray
    fsal: bool


def tableau(method: str) -> Tableau:
    """The tableau of a method in `EXPLICIT`."""
    if method == "euler":
        return Tableau((), (), np.ones(1), np.zeros(1), False)
    solver: Any = EXPLICIT[method]()
    table = solver.tableau
    return Tableau(table.c, table.a_lower, table.b_sol, table.b_error, table.fsal)


def combined(weights: np.ndarray, stages: Sequence[Array]) -> Array:
    """A weighted sum of stages, without terms for weights of zero."""
    terms = [float(w) * k for w, k in zip(weights, stages, strict=False) if w != 0]
    return sum(terms[1:], terms[0]) if terms else jnp.zeros_like(stages[0])


def error_order(method: str) -> int:
    """The order of a method's error estimate: the error is proportional to this power of the step."""
    solver: Any = EXPLICIT[method]()
    return int(solver.error_order(None))

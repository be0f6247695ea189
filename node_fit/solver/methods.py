"""The methods of a solver by name, and how each may step."""

from collections.abc import Callable
from typing import Literal

import diffrax

from .tableau import EXPLICIT

METHODS: dict[str, Callable[[], diffrax.AbstractSolver]] = {
    **EXPLICIT,
    "implicit_euler": diffrax.ImplicitEuler,
    "kvaerno3": diffrax.Kvaerno3,
    "kvaerno5": diffrax.Kvaerno5,
}
Stepping = Literal["held", "adaptive", "even"]
STEPPINGS = ("held", "adaptive", "even")


def as_diffrax(method: str | diffrax.AbstractSolver) -> diffrax.AbstractSolver:
    """The method as Diffrax knows it."""
    return METHODS[method]() if isinstance(method, str) else method


def named(method: str | diffrax.AbstractSolver) -> str | diffrax.AbstractSolver:
    """The name of a Diffrax solver that has one here, so that equal settings are equal."""
    if isinstance(method, str):
        return method
    if not isinstance(method, diffrax.AbstractSolver):
        raise ValueError(f"method must be a name such as 'tsit5' or a diffrax.AbstractSolver, got {method!r:.60}.")
    return next((name for name, make in METHODS.items() if type(method) is make and method == make()), method)


def check_stepping(method: str | diffrax.AbstractSolver, stepping: str) -> None:
    """Refuses held or even steps where the method can't take them."""
    if not isinstance(method, str):
        if stepping == "held":
            raise ValueError(
                f"stepping=held needs a method that node_fit steps itself ({', '.join(EXPLICIT)}), and "
                f"{type(method).__name__} is stepped by Diffrax; use stepping=adaptive."
            )
        return
    if method not in EXPLICIT and stepping != "adaptive":
        raise ValueError(
            f"stepping={stepping} needs an explicit method, and {method} is implicit; use stepping=adaptive."
        )
    if method == "euler" and stepping != "even":
        raise ValueError(f"euler has no error estimate, which stepping={stepping} needs; use stepping=even, or heun.")

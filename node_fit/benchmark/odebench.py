"""A part of ODEBench: equations with constants and two starts each, as published.

S. d'Ascoli et al., "ODEFormer: Symbolic Regression of Dynamical Systems with Transformers", ICLR 2024, arXiv
2310.05573; equations, constants, starts and times as in `odeformer/odebench` of https://github.com/sdascoli/odeformer.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

# Equations in all of ODEBench.
EQUATIONS = 63
ROWS, END = 150, 10.0
Rates = Callable[[np.ndarray], list[float]]


class Equation(NamedTuple):
    """An equation: its number in ODEBench, what it is, the rates of its states, and the starts of both trajectories."""

    number: int
    what: str
    rates: Rates
    starts: tuple[tuple[float, ...], tuple[float, ...]]

    @property
    def states(self) -> list[str]:
        return [f"x{index}" for index in range(len(self.starts[0]))]


def lorenz(sigma: float, r: float, b: float) -> Rates:
    return lambda x: [sigma * (x[1] - x[0]), r * x[0] - x[1] - x[0] * x[2], x[0] * x[1] - b * x[2]]


LORENZ_STARTS = ((2.3, 8.1, 12.4), (10.0, 20.0, 30.0))
PART = (
    Equation(3, "logistic growth", lambda x: [0.79 * x[0] * (1 - x[0] / 74.3)], ((7.3,), (21.0,))),
    Equation(5, "fall with air resistance", lambda x: [9.81 - 0.0021175 * x[0] ** 2], ((0.5,), (73.0,))),
    Equation(24, "harmonic oscillator", lambda x: [x[1], -2.1 * x[0]], ((0.4, -0.03), (0.0, 0.2))),
    Equation(25, "damped oscillator", lambda x: [x[1], -4.5 * x[0] - 0.43 * x[1]], ((0.12, 0.043), (0.0, -0.3))),
    Equation(
        27,
        "Lotka-Volterra",
        lambda x: [x[0] * (1.84 - 1.45 * x[1]), -x[1] * (3.0 - 1.62 * x[0])],
        ((8.3, 3.4), (0.4, 0.65)),
    ),
    Equation(28, "pendulum", lambda x: [x[1], -0.9 * np.sin(x[0])], ((-1.9, 0.0), (0.3, 0.8))),
    Equation(32, "double well", lambda x: [x[1], -0.18 * x[1] + x[0] - x[0] ** 3], ((-1.8, -1.8), (5.8, 0.0))),
    Equation(37, "Van der Pol", lambda x: [x[1], -x[0] - 0.43 * (x[0] ** 2 - 1) * x[1]], ((2.2, 0.0), (0.1, 3.2))),
    Equation(54, "Lorenz, periodic", lorenz(5.1, 12.0, 1.67), LORENZ_STARTS),
    Equation(56, "Lorenz, chaotic", lorenz(10.0, 28.0, 8 / 3), LORENZ_STARTS),
)


def write_table(equation: Equation, path: Path) -> None:
    """Writes both trajectories of an equation, named 0 and 1: 150 rows on [0, 10], without noise.

    They are solved at a relative tolerance of 1e-10, where ODEBench has 1e-5.

    **Raises:** `RuntimeError` if a solve fails.
    """
    import pandas as pd
    from scipy.integrate import solve_ivp

    times, frames = np.linspace(0, END, ROWS), []
    for name, start in enumerate(equation.starts):
        solved = solve_ivp(
            lambda t, x: equation.rates(x), (0, END), start, method="LSODA", t_eval=times, rtol=1e-10, atol=1e-12
        )
        if not solved.success:
            raise RuntimeError(f"ODEBench {equation.number} can't be solved: {solved.message}")
        columns = dict(zip(equation.states, solved.y, strict=True))
        frames.append(pd.DataFrame({"trajectory": name, "t": times, **columns}))
    pd.concat(frames).to_csv(path, index=False)

"""ODEBench: 63 equations with constants and two starts each, as published.

S. d'Ascoli et al., "ODEFormer: Symbolic Regression of Dynamical Systems with Transformers", ICLR 2024, arXiv
2310.05573. `odebench.csv` has the equations, constants and starts of `odeformer/odebench/strogatz_equations.py` in
https://github.com/sdascoli/odeformer, the constants put in their places; times are those of `solve_and_plot.py`.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..model.fields.equations import Equations

ROWS, END = 150, 10.0
Rates = Callable[[np.ndarray], np.ndarray]


class Equation(NamedTuple):
    """An equation: its number in ODEBench, what it is, the rates of its states, and the starts of both trajectories."""

    number: int
    what: str
    equations: Equations
    starts: tuple[tuple[float, ...], tuple[float, ...]]

    @property
    def states(self) -> list[str]:
        return [name for name, _ in self.equations.texts]

    def rates(self) -> Rates:
        """The rates at a state, compiled in double precision."""

        @jax.jit
        def compiled(values: jax.Array) -> jax.Array:
            return jnp.stack(list(self.equations(dict(zip(self.states, values, strict=True))).values()))

        def rates(values: np.ndarray) -> np.ndarray:
            with jax.enable_x64(True):
                return np.asarray(compiled(np.asarray(values, np.float64)))

        return rates


def read_equations() -> tuple[Equation, ...]:
    """The equations of `odebench.csv`."""
    with (Path(__file__).parent / "odebench.csv").open(newline="", encoding="utf-8") as file:
        return tuple(map(equation, csv.DictReader(file)))


def equation(row: dict[str, str]) -> Equation:
    first, second = (tuple(map(float, row[name].split())) for name in ("start", "other_start"))
    rates = {f"x{index}": text for index, text in enumerate(row["rates"].split(";"))}
    return Equation(int(row["number"]), row["what"], Equations.of(rates), (first, second))


def solved(equation: Equation, times: np.ndarray) -> list[np.ndarray]:
    """The states of both trajectories at times from 0 on, each of shape `(time, state)`.

    They are solved at a relative tolerance of 1e-10, where ODEBench has 1e-5.

    **Raises:** `RuntimeError` if a solve fails.
    """
    from scipy.integrate import solve_ivp

    rates, found = equation.rates(), []
    for start in equation.starts:
        span = (0, times[-1])
        done = solve_ivp(lambda t, x: rates(x), span, start, method="LSODA", t_eval=times, rtol=1e-10, atol=1e-12)
        if not done.success:
            raise RuntimeError(f"ODEBench {equation.number} can't be solved: {done.message}")
        found.append(done.y.T)
    return found


def write_table(equation: Equation, path: Path) -> None:
    """Writes both trajectories of an equation, named 0 and 1: 150 rows on [0, 10], without noise."""
    import pandas as pd

    times = np.linspace(0, END, ROWS)
    frames = [
        pd.DataFrame({"trajectory": name, "t": times, **dict(zip(equation.states, states.T, strict=True))})
        for name, states in enumerate(solved(equation, times))
    ]
    pd.concat(frames).to_csv(path, index=False)

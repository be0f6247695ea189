"""Published problems: oscillators of the GP-ODE paper, Lorenz's attractor, and ODEBench's equations.

P. Hegde et al., "Variational multiple shooting for Bayesian ODEs with Gaussian processes", UAI 2022, arXiv 2106.10905.
S. d'Ascoli et al., "ODEFormer: Symbolic Regression of Dynamical Systems with Transformers", ICLR 2024,
arXiv 2310.05573.

P. Hegde et al., "Variational multiple shooting for Bayesian ODEs with Gaussian processes", UAI 2022, arXiv 2106.10905.
The oscillator's equation, start, times and noise, random numbers included, are those of `train_vdp_gpode.py` and
`src/datasets/vanderpol.py` in https://github.com/hegdepashupati/gaussian-process-odes. The neuron's equation and start
are those of `src/datasets/fhn.py`; its noise is another draw, since the paper's data are a binary file.

S. d'Ascoli et al., "ODEFormer: Symbolic Regression of Dynamical Systems with Transformers", ICLR 2024, arXiv
2310.05573. `odebench.csv` has the equations, constants and starts of `odeformer/odebench/strogatz_equations.py` in
https://github.com/sdascoli/odeformer, the constants put in their places; times are those of `solve_and_plot.py`.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..model.fields.equations import Equations

ROWS_OF_PROBLEM = 25
# Of the oscillator and of the neuron, each for its measured rows [squared units].
VARIANCE, NEURON_VARIANCE = 0.05, 0.025
LAST_TIME, NEURON_END = 7.0, 5.0


def van_der_pol_data(t: float, y: Any) -> list[float]:
    return [y[1], 0.5 * (1 - y[0] ** 2) * y[1] - y[0]]


def neuron(t: float, y: Any) -> list[float]:
    return [3 * (y[0] - y[0] ** 3 / 3 + y[1]), (0.2 - 3 * y[0] - 0.2 * y[1]) / 3]


def solve_exactly(rates: Any, start: Sequence[float], times: np.ndarray) -> np.ndarray:
    """States at times from 0 on, shape `(time, state)`."""
    from scipy.integrate import solve_ivp

    return solve_ivp(rates, (0, times[-1]), start, t_eval=times, rtol=1e-10, atol=1e-12).y.T


def regular_times() -> np.ndarray:
    return np.arange(2 * ROWS_OF_PROBLEM) * LAST_TIME / (ROWS_OF_PROBLEM - 1)


def random_times() -> np.ndarray:
    draw = np.random.RandomState(122)
    first, later = (np.sort(draw.random_sample(ROWS_OF_PROBLEM)) * LAST_TIME for _ in range(2))
    first[0] = 0.0
    return np.concatenate([first, LAST_TIME + later])


def write_van_der_pol(path: Path, times: np.ndarray) -> None:
    """Writes 25 rows with noise, and 25 later ones without."""
    states = solve_exactly(van_der_pol_data, (-1.5, 2.5), times)
    states[:ROWS_OF_PROBLEM] += np.random.RandomState(121).normal(size=(ROWS_OF_PROBLEM, 2)) * VARIANCE**0.5
    write_columns(path, times, states)


def neuron_states() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, states without noise, and which rows were not measured: those with a positive `x` and a negative `y`."""
    times = np.linspace(0, NEURON_END, ROWS_OF_PROBLEM)
    states = solve_exactly(neuron, (-1.0, -1.0), times)
    return times, states, (states[:, 0] > 0) & (states[:, 1] < 0)


def write_neuron(path: Path) -> None:
    """Writes 25 rows with noise, of which those of a quadrant are empty."""
    times, states, hidden = neuron_states()
    states = states + np.random.RandomState(121).normal(size=states.shape) * NEURON_VARIANCE**0.5
    write_columns(path, times, np.where(hidden[:, None], np.nan, states))


def judge_neuron(run: Path) -> dict[str, float | None]:
    """The mean squared error in the rows that were not measured, of a run's predictions."""
    import pandas as pd

    times, states, hidden = neuron_states()
    table = pd.read_csv(run / "predictions.csv")
    at = np.abs(table["t"].to_numpy()[None, :] - times[hidden][:, None]).argmin(axis=1)
    predicted = table[["x_predicted", "y_predicted"]].to_numpy()[at]
    error = float(np.mean((predicted - states[hidden]) ** 2))
    return {"mse": error if np.isfinite(error) else None}


def write_columns(path: Path, times: np.ndarray, states: np.ndarray) -> None:
    import pandas as pd

    pd.DataFrame({"t": times, "x": states[:, 0], "y": states[:, 1]}).to_csv(path, index=False)


LORENZ_START, SETTLE = (1.0, 1.0, 1.0), 50.0
# Rows that are fitted, and those of the simulations that are compared.
STEP, LORENZ_ROWS, SIMULATED = 0.02, 1000, 10_000
# Bins of each state, and what is added to the count of each bin, for the divergence.
DIVERGENCE_BINS, SMOOTHING = 30, 1e-5


def rates(t: float, y: Any) -> list[float]:
    """E. N. Lorenz, "Deterministic nonperiodic flow", J. Atmos. Sci. 20 (1963), with its constants."""
    return [10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]


def orbit(start: Any, rows: int) -> np.ndarray:
    from scipy.integrate import solve_ivp

    times = np.arange(rows) * STEP
    return solve_ivp(rates, (0, times[-1]), start, t_eval=times, rtol=1e-9, atol=1e-9).y.T


def on_attractor() -> np.ndarray:
    """The start of the record, on the attractor."""
    return orbit(LORENZ_START, round(SETTLE / STEP) + 1)[-1]


def write_lorenz(path: Path) -> None:
    """Writes 1,000 rows of an orbit on the attractor, 0.02 apart, without noise."""
    import pandas as pd

    table = pd.DataFrame(orbit(on_attractor(), LORENZ_ROWS), columns=["x", "y", "z"])
    table.insert(0, "t", np.arange(LORENZ_ROWS) * STEP)
    table.to_csv(path, index=False)


def divergence(true: np.ndarray, other: np.ndarray) -> float:
    """How much the places that an orbit visits differ from those of a true one.

    The Kullback-Leibler divergence of their shares of the time in boxes of the state space (G. Koppe et al., PLoS
    Computational Biology 15:e1007263, 2019, equation 9), here 30 boxes for each state within the range of the true
    one, and one more for all that is outside. 0 if they visit the same places as often.
    """
    edges = [
        np.linspace(low, high, DIVERGENCE_BINS + 1)
        for low, high in zip(true.min(axis=0), true.max(axis=0), strict=True)
    ]
    counts = [np.histogramdd(orbit, bins=edges)[0].ravel() for orbit in (true, other)]
    shares = []
    for count, orbit in zip(counts, (true, other), strict=True):
        with_outside = np.append(count, len(orbit) - count.sum()) + SMOOTHING
        shares.append(with_outside / with_outside.sum())
    return float(np.sum(shares[0] * np.log(shares[0] / shares[1])))


def judge_lorenz(run: Path) -> dict[str, float | None]:
    """The divergence of a run's model from the true attractor, and that of another true orbit."""
    from ..storage.model_file import load

    begin = on_attractor()
    true, other = orbit(begin, SIMULATED), orbit(orbit(begin, SIMULATED)[-1], SIMULATED)
    solution = load(run / "model.safetensors").solve(
        begin, np.arange(SIMULATED) * STEP, max_steps=100 * SIMULATED, throw=False
    )
    found = np.asarray(solution.ys)
    return {
        "divergence": divergence(true, found) if np.isfinite(found).all() else None,
        "other_orbit": divergence(true, other),
    }


ROWS_OF_EQUATION, LAST_SOLVED_TIME = 150, 10.0
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


def solve_equation(equation: Equation, times: np.ndarray) -> list[np.ndarray]:
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

    times = np.linspace(0, LAST_SOLVED_TIME, ROWS_OF_EQUATION)
    frames = [
        pd.DataFrame({"trajectory": name, "t": times, **dict(zip(equation.states, states.T, strict=True))})
        for name, states in enumerate(solve_equation(equation, times))
    ]
    pd.concat(frames).to_csv(path, index=False)

"""Van der Pol's oscillator, and FitzHugh and Nagumo's neuron with a part that was not measured.

P. Hegde et al., "Variational multiple shooting for Bayesian ODEs with Gaussian processes", UAI 2022, arXiv 2106.10905.
The oscillator's equation, start, times and noise, random numbers included, are those of `train_vdp_gpode.py` and
`src/datasets/vanderpol.py` in https://github.com/hegdepashupati/gaussian-process-odes. The neuron's equation and start
are those of `src/datasets/fhn.py`; its noise is another draw, since the paper's data are a binary file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 25
# Of the oscillator and of the neuron, each for its measured rows [squared units].
VARIANCE, NEURON_VARIANCE = 0.05, 0.025
END, NEURON_END = 7.0, 5.0


def van_der_pol(t: float, y: Any) -> list[float]:
    return [y[1], 0.5 * (1 - y[0] ** 2) * y[1] - y[0]]


def neuron(t: float, y: Any) -> list[float]:
    return [3 * (y[0] - y[0] ** 3 / 3 + y[1]), (0.2 - 3 * y[0] - 0.2 * y[1]) / 3]


def solved(rates: Any, start: Sequence[float], times: np.ndarray) -> np.ndarray:
    """States at times from 0 on, shape `(time, state)`."""
    from scipy.integrate import solve_ivp

    return solve_ivp(rates, (0, times[-1]), start, t_eval=times, rtol=1e-10, atol=1e-12).y.T


def regular_times() -> np.ndarray:
    return np.arange(2 * ROWS) * END / (ROWS - 1)


def random_times() -> np.ndarray:
    draw = np.random.RandomState(122)
    first, later = (np.sort(draw.random_sample(ROWS)) * END for _ in range(2))
    first[0] = 0.0
    return np.concatenate([first, END + later])


def write_van_der_pol(path: Path, times: np.ndarray) -> None:
    """Writes 25 rows with noise, and 25 later ones without."""
    states = solved(van_der_pol, (-1.5, 2.5), times)
    states[:ROWS] += np.random.RandomState(121).normal(size=(ROWS, 2)) * VARIANCE**0.5
    write(path, times, states)


def neuron_states() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, states without noise, and which rows were not measured: those with a positive `x` and a negative `y`."""
    times = np.linspace(0, NEURON_END, ROWS)
    states = solved(neuron, (-1.0, -1.0), times)
    return times, states, (states[:, 0] > 0) & (states[:, 1] < 0)


def write_neuron(path: Path) -> None:
    """Writes 25 rows with noise, of which those of a quadrant are empty."""
    times, states, hidden = neuron_states()
    states = states + np.random.RandomState(121).normal(size=states.shape) * NEURON_VARIANCE**0.5
    write(path, times, np.where(hidden[:, None], np.nan, states))


def judge_neuron(run: Path) -> dict[str, float | None]:
    """The mean squared error in the rows that were not measured, of a run's predictions."""
    import pandas as pd

    times, states, hidden = neuron_states()
    table = pd.read_csv(run / "predictions.csv")
    at = np.abs(table["t"].to_numpy()[None, :] - times[hidden][:, None]).argmin(axis=1)
    predicted = table[["x_predicted", "y_predicted"]].to_numpy()[at]
    error = float(np.mean((predicted - states[hidden]) ** 2))
    return {"mse": error if np.isfinite(error) else None}


def write(path: Path, times: np.ndarray, states: np.ndarray) -> None:
    import pandas as pd

    pd.DataFrame({"t": times, "x": states[:, 0], "y": states[:, 1]}).to_csv(path, index=False)

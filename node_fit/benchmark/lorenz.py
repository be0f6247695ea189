"""Lorenz's attractor, and how far that of a fitted model is from it."""

from pathlib import Path
from typing import Any

import numpy as np

START, SETTLE = (1.0, 1.0, 1.0), 50.0
# Rows that are fitted, and those of the simulations that are compared.
STEP, ROWS, SIMULATED = 0.02, 1000, 10_000
# Bins of each state, and what is added to the count of each bin, for the divergence.
BINS, SMOOTHING = 30, 1e-5


def rates(t: float, y: Any) -> list[float]:
    """E. N. Lorenz, "Deterministic nonperiodic flow", J. Atmos. Sci. 20 (1963), with its constants."""
    return [10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]


def orbit(start: Any, rows: int) -> np.ndarray:
    from scipy.integrate import solve_ivp

    times = np.arange(rows) * STEP
    return solve_ivp(rates, (0, times[-1]), start, t_eval=times, rtol=1e-9, atol=1e-9).y.T


def on_attractor() -> np.ndarray:
    """The start of the record, on the attractor."""
    return orbit(START, round(SETTLE / STEP) + 1)[-1]


def write_lorenz(path: Path) -> None:
    """Writes 1,000 rows of an orbit on the attractor, 0.02 apart, without noise."""
    import pandas as pd

    table = pd.DataFrame(orbit(on_attractor(), ROWS), columns=["x", "y", "z"])
    table.insert(0, "t", np.arange(ROWS) * STEP)
    table.to_csv(path, index=False)


def divergence(true: np.ndarray, other: np.ndarray) -> float:
    """How much the places that an orbit visits differ from those of a true one.

    The Kullback-Leibler divergence of their shares of the time in boxes of the state space (G. Koppe et al., PLoS
    Computational Biology 15:e1007263, 2019, equation 9), here 30 boxes for each state within the range of the true
    one, and one more for all that is outside. 0 if they visit the same places as often.
    """
    edges = [np.linspace(low, high, BINS + 1) for low, high in zip(true.min(axis=0), true.max(axis=0), strict=True)]
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

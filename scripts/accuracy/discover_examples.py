"""Equations that `discover` finds in records of known and of measured systems.

    python scripts/accuracy/discover_examples.py [--only NAME ...] [--draws 10] [--effort normal] [--data datasets]

Of the published protocols of few noisy rows it prints the squared error of the forecast, and of the rows left out,
over draws of the noise (draw 0 is the published one); of the others, the equations that were found for one draw.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

import node_fit
from node_fit.benchmark import protocols

ROWS = protocols.ROWS_OF_PROBLEM
Rates = Callable[[float, np.ndarray], Sequence[float] | np.ndarray]


def van_der_pol(times: np.ndarray, draw: int) -> tuple[node_fit.Dataset, np.ndarray, np.ndarray, np.ndarray]:
    """The rows that are fitted, all times, the states there, and which of them count."""
    states = protocols.solve_exactly(protocols.van_der_pol_data, (-1.5, 2.5), times)
    rng = np.random.default_rng(draw) if draw else np.random.RandomState(121)
    noisy = states[:ROWS] + rng.normal(size=(ROWS, 2)) * protocols.VARIANCE**0.5
    return (
        node_fit.Dataset.from_arrays(times[:ROWS], noisy, states=["x", "y"]),
        times,
        states,
        np.arange(len(times)) >= ROWS,
    )


def neuron(draw: int) -> tuple[node_fit.Dataset, np.ndarray, np.ndarray, np.ndarray]:
    times, states, hidden = protocols.neuron_states()
    rng = np.random.default_rng(draw) if draw else np.random.RandomState(121)
    noisy = states + rng.normal(size=states.shape) * protocols.NEURON_VARIANCE**0.5
    noisy[hidden] = np.nan
    return node_fit.Dataset.from_arrays(times, noisy, states=["x", "y"]), times, states, hidden


FEW_ROWS = {
    "van der pol, even": (0.13, lambda draw: van_der_pol(protocols.regular_times(), draw)),
    "van der pol, uneven": (0.13, lambda draw: van_der_pol(protocols.random_times(), draw)),
    "neuron, gap": (0.05, neuron),
}


def forecast(name: str, draws: range, effort: str) -> str:
    """A row of the table: the median squared error and its range."""
    asked, make = FEW_ROWS[name]
    errors, seconds = [], []
    for draw in draws:
        data, times, states, scored = make(draw)
        began = time.perf_counter()
        found = node_fit.discover(data, effort=effort, resamples=0, seed=draw)
        predicted = found.forecast(times)
        seconds.append(time.perf_counter() - began)
        errors.append(float(np.mean((predicted - states)[scored] ** 2)))
        print(f"{name} {draw}: {errors[-1]:.3g}; {str(found.found).replace(chr(10), '; ')}", flush=True)
    had = f"{np.median(errors):.3g} ({min(errors):.3g}-{max(errors):.3g})"
    return f"| {name} | {len(errors)} | {asked:g} | {had} | {np.median(seconds):.0f} |"

"""Draws initial points for fits: evenly between bounds, or by differential evolution in the unit cube."""

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

Points = Float[np.ndarray, "point parameter"]
# Minimum number of points per generation, and number of generations after the first.
POPULATION, GENERATIONS = 768, 20
# Points simulated at once. The slowest point determines the time of every interval between rows, and among hundreds of
# points, one or another diverges in each.
TOGETHER = 16
# Time limit of the search [s], after which it returns the best points so far, and the loss of a failed simulation.
MOST_SECONDS, FAILED_LOSS = 60.0, 1e30


def draw_evenly(
    lower: Float[np.ndarray, " parameter"], upper: Float[np.ndarray, " parameter"], count: int, seed: int
) -> Points:
    """Draws at least `count` points of a Sobol' sequence between bounds, rounded up to a power of two."""
    from scipy.stats import qmc

    sequence = qmc.Sobol(len(lower), rng=np.random.default_rng(seed))
    return lower + (upper - lower) * sequence.random_base2(math.ceil(math.log2(count)))


def evolve_points(
    losses: Callable[[Points], Float[np.ndarray, " point"]], parameters: int, seed: int, tell: Callable[[str], object]
) -> Points:
    """Runs differential evolution in the unit cube; returns the last generation, the best point first.

    **Arguments:** `losses`: computes the losses of points. `tell`: receives progress messages; it can raise to stop.
    """
    from scipy.optimize import Bounds, differential_evolution

    numbers, began = itertools.count(1), time.perf_counter()

    def is_over(*_: object, **__: object) -> bool:
        return time.perf_counter() - began > MOST_SECONDS

    def evaluate(points: Float[np.ndarray, "parameter point"]) -> Any:  # a loss for each
        number, count = next(numbers), points.shape[1]
        # Padded with the last point, so that one compiled program serves all batches.
        padded = np.pad(points.T, ((0, -count % TOGETHER), (0, 0)), "edge")
        found = np.full(len(padded), FAILED_LOSS)
        for at in range(0, len(padded), TOGETHER):
            if is_over() and (at or number > 1):
                break
            tell(f"several starts: generation {number} of {GENERATIONS + 1}, {MOST_SECONDS:.0f} s in all at most")
            found[at : at + TOGETHER] = losses(padded[at : at + TOGETHER])
        return np.nan_to_num(found[:count], nan=FAILED_LOSS, posinf=FAILED_LOSS)

    cube, size = Bounds(np.zeros(parameters), np.ones(parameters)), -(-POPULATION // parameters)
    options: dict[str, Any] = {"maxiter": GENERATIONS, "popsize": size, "init": "sobol", "tol": 0, "polish": False}
    options |= {"strategy": "rand1bin"}  # It keeps the generation apart, in several basins.
    options |= {"vectorized": True, "updating": "deferred", "callback": is_over}
    found = differential_evolution(evaluate, cube, rng=seed, **options)
    return found.population[np.argsort(found.population_energies, kind="stable")]

"""Counts records whose trajectories `discover` describes by equations with constants of each trajectory.

    python scripts/accuracy/discover_individuals.py [--seeds 3] [--noise 0.02] [--only NAME ...]

Each record has 4 to 8 trajectories of 20 to 49 rows. In those of the first kind, constants differ by 25 %; in those of
the second kind, all constants are shared, but the start of an unmeasured state differs.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.integrate import solve_ivp

import node_fit as nf

SPREAD = 0.25
Rates = Callable[[np.ndarray, np.ndarray], Sequence[float]]


class System(NamedTuple):
    """Rates from states and from factors of the constants; ranges of the starts; the last time; measured states."""

    rates: Rates
    starts: Sequence[tuple[float, float]]
    until: float
    measured: Sequence[int] = (0,)


OWN_CONSTANTS = {
    "logistic growth": System(lambda y, k: [0.5 * k[0] * y[0] * (1 - y[0] / (1.2 * k[1]))], [(0.05, 0.05)], 20),
    "Gompertz' growth": System(lambda y, k: [0.4 * k[0] * y[0] * np.log(1.5 * k[1] / y[0])], [(0.05, 0.05)], 12),
    "decay": System(lambda y, k: [-0.4 * k[0] * y[0]], [(2, 5)], 8),
    "cooling": System(lambda y, k: [-0.3 * k[0] * (y[0] - 2 * k[1])], [(5, 9)], 10),
    "enzyme": System(lambda y, k: [-k[0] * y[0] / (1 + y[0])], [(2, 6)], 8),
    "tank": System(lambda y, k: [-0.3 * k[0] * np.sqrt(max(y[0], 0.0))], [(3, 6)], 6),
    "prey": System(
        lambda y, k: [k[0] * y[0] - y[0] * y[1], y[0] * y[1] - k[1] * y[1]], [(0.5, 1.5)] * 2, 10, measured=(0, 1)
    ),
    "two rates": System(
        lambda y, k: [0.6 * k[0] - 0.5 * y[0], 0.5 * y[0] - 0.3 * k[1] * y[1]], [(0, 3)] * 2, 12, measured=(0, 1)
    ),
}
UNMEASURED_STATE = {
    "two compartments": System(lambda y, k: [-0.8 * y[0] + 0.3 * y[1], 0.6 * y[0] - 0.35 * y[1]], [(2, 6), (0, 4)], 10),
    "empty compartment": System(
        lambda y, k: [-0.8 * y[0] + 0.3 * y[1], 0.6 * y[0] - 0.35 * y[1]], [(2, 6), (0, 0)], 10
    ),
    "nutrient": System(
        lambda y, k: [y[0] * y[1] / (1 + y[1]), -0.8 * y[0] * y[1] / (1 + y[1])], [(0.1, 0.3), (1, 4)], 8
    ),
    "epidemic": System(lambda y, k: [0.8 * y[0] * y[1] - 0.3 * y[0], -0.8 * y[0] * y[1]], [(0.01, 0.05), (0.6, 1)], 20),
    "cascade": System(lambda y, k: [0.4 * y[1] - 0.7 * y[0], -0.4 * y[1]], [(0, 2), (1, 4)], 12),
    "predator": System(lambda y, k: [y[0] - y[0] * y[1], y[0] * y[1] - y[1]], [(0.5, 1.5)] * 2, 10),
    "virus": System(
        lambda y, k: [0.8 * y[0] * y[1] - y[0], 0.5 - 0.1 * y[1] - 0.4 * y[0] * y[1]], [(0.02, 0.2), (2, 6)], 15
    ),
    "slow store": System(lambda y, k: [0.5 * (y[1] - y[0]), 0.1 * (y[0] - y[1]) - 0.02 * y[1]], [(3, 8), (0, 3)], 15),
    "catalyst": System(lambda y, k: [-0.6 * y[1] * y[0], -0.2 * y[1]], [(2, 5), (0.5, 1.5)], 8),
    "load": System(lambda y, k: [1 - y[0] - 0.5 * y[1], 0.3 * y[0] - 0.2 * y[1]], [(0, 3)] * 2, 15),
}


def simulate(system: System, seed: int, noise: float, *, differ: bool) -> nf.Dataset:
    """Simulates a record with noise of a share of each state's standard deviation."""
    draw = np.random.default_rng(seed)
    count, rows = int(draw.integers(4, 9)), int(draw.integers(20, 50))
    factors = np.exp(SPREAD * draw.normal(size=(count, 2))) if differ else np.ones((count, 2))
    low, high = np.array(system.starts).T
    ts = np.linspace(0, system.until, rows)
    paths = [
        solve_ivp(lambda t, y, k=k: system.rates(y, k), (0, ts[-1]), start, t_eval=ts, rtol=1e-8, atol=1e-10).y.T
        for k, start in zip(factors, draw.uniform(low, high, (count, len(low))), strict=True)
    ]
    ys = np.stack(paths)[:, :, list(system.measured)]
    return nf.Dataset.from_arrays(ts, ys + noise * ys.std(axis=(0, 1)) * draw.normal(size=ys.shape))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--noise", type=float, default=0.02)
    parser.add_argument("--only", nargs="*", default=())
    given = parser.parse_args()
    for title, systems in (("constants differ", OWN_CONSTANTS), ("a state is unmeasured", UNMEASURED_STATE)):
        counted: list[bool] = []
        for name, system in systems.items():
            for seed in range(given.seeds if not given.only or name in given.only else 0):
                data = simulate(system, seed, given.noise, differ=systems is OWN_CONSTANTS)
                begin = time.perf_counter()
                found = nf.discover(data, symbolic=False, resamples=0)
                counted.append(found.individuals is not None)
                print(f"{name}, {seed}, {time.perf_counter() - begin:.0f} s: {found.verdict}", flush=True)
        print(f"{title}: {sum(counted)} of {len(counted)} described by constants of each trajectory", flush=True)


if __name__ == "__main__":
    main()

"""Fits records of positions without their velocities from their columns alone, and counts equations that are found.

    python scripts/accuracy/positions.py [--seeds 1] [--first 0] [--only pendulum friction] [--noise 0.02]

Each record has three to six trajectories of 40 to 150 rows. Errors are NRMSE, with the noise, of the validation
trajectory and of a new one from another start. Equations count as right if they predict ten noiseless trajectories of
new starts with an NRMSE of at most .03, from the first quarter of their rows.
"""

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.integrate import solve_ivp

import node_fit

Rates = Callable[[np.ndarray, float], list[float]]
# Number of new trajectories, and NRMSE up to which equations are right.
NEW, RIGHT = 10, 0.03


class System(NamedTuple):
    """Rates of positions and velocities with an input, the number of positions, rows, trajectories and the time between
    rows, and a function that draws a start."""

    rates: Rates
    positions: int
    step: float
    rows: int
    trajectories: int
    start: Callable[[np.random.Generator], list[float]]
    is_driven: bool = False


def attract(x: np.ndarray, u: float) -> list[float]:
    pull = -x[:2] / np.linalg.norm(x[:2]) ** 3
    return [x[2], x[3], *pull]


SYSTEMS = {
    "pendulum": System(
        lambda x, u: [x[1], -16.35 * np.sin(x[0]) - 0.3 * x[1]], 1, 0.04, 150, 5, lambda r: [r.uniform(0.4, 2.4), 0]
    ),
    "van der Pol": System(
        lambda x, u: [x[1], 1.2 * (1 - x[0] ** 2) * x[1] - x[0]], 1, 0.15, 120, 4, lambda r: [*r.uniform(-2.5, 2.5, 2)]
    ),
    "double well": System(
        lambda x, u: [x[1], x[0] - x[0] ** 3 - 0.2 * x[1]], 1, 0.15, 100, 6, lambda r: [*r.uniform(-1.8, 1.8, 2)]
    ),
    "friction": System(
        lambda x, u: [x[1], -4 * x[0] - 0.5 * np.tanh(20 * x[1])], 1, 0.06, 100, 5, lambda r: [r.uniform(0.8, 2.5), 0]
    ),
    "spring": System(lambda x, u: [x[1], -4 * x[0] - 0.3 * x[1]], 1, 0.06, 60, 3, lambda r: [*r.uniform(-2, 2, 2)]),
    "fall with drag": System(
        lambda x, u: [x[1], -9.81 - 0.15 * x[1] * abs(x[1])],
        *(1, 0.05, 40, 5),
        lambda r: [r.uniform(5, 20), r.uniform(-3, 12)],
    ),
    "coupled pendulums": System(
        lambda x, u: [
            *x[2:],
            -6 * np.sin(x[0]) - 1.5 * (x[0] - x[1]) - 0.1 * x[2],
            -6 * np.sin(x[1]) - 1.5 * (x[1] - x[0]) - 0.1 * x[3],
        ],
        *(2, 0.08, 120, 4),
        lambda r: [*r.uniform(-1.5, 1.5, 2), 0, 0],
    ),
    "forced pendulum": System(
        lambda x, u: [x[1], -3 * np.sin(x[0]) - 0.4 * x[1] + 2 * u],
        *(1, 0.1, 150, 3),
        lambda r: [r.uniform(-1, 1), 0],
        is_driven=True,
    ),
    "lag": System(lambda x, u: [-0.5 * (x[0] - x[1]), -0.15 * x[1]], 1, 0.3, 80, 4, lambda r: [*r.uniform(0, 3, 2)]),
    "orbit": System(attract, 2, 0.08, 80, 4, lambda r: [r.uniform(0.8, 1.3), 0, 0, r.uniform(0.7, 1.1)]),
}


def simulate(system: System, count: int, rng: np.random.Generator, noise: float) -> node_fit.Dataset:
    ts, held = np.arange(system.rows) * system.step, np.zeros((count, system.rows))
    if system.is_driven:
        held = np.repeat(rng.uniform(-1, 1, (count, system.rows // 10)), 10, axis=1)
    paths: list[np.ndarray] = []
    for inputs in held:
        states = [np.array(system.start(rng), float)]
        for u in inputs[:-1]:
            solved = solve_ivp(lambda t, x, u=u: system.rates(x, u), (0, system.step), states[-1], rtol=1e-8, atol=1e-9)
            states.append(solved.y[:, -1])
        paths.append(np.array(states)[:, : system.positions])
    ys = np.stack(paths)
    ys = ys + noise * ys.std(axis=(0, 1)) * rng.normal(size=ys.shape)
    names = ["q", "p"][: system.positions]
    return node_fit.Dataset.from_arrays(ts, ys, held[..., None] if system.is_driven else None, states=names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--only", nargs="+", default=list(SYSTEMS), help="names of systems")
    parser.add_argument("--noise", type=float, default=0.02, help="noise, as a share of the spread")
    given = parser.parse_args()
    print("| record | seed | attempt | verdict | validation | new record | equations right | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for name in given.only:
        for seed in range(given.first, given.first + given.seeds):
            system, rng = SYSTEMS[name], np.random.default_rng([seed, *name.encode()])
            whole = simulate(system, system.trajectories + 2, rng, given.noise)
            numbers = list(range(system.trajectories))
            train, validation, new = (whole.select(part) for part in (numbers, [len(numbers)], [len(numbers) + 1]))
            began = time.perf_counter()
            fit = node_fit.fit(train, validation=validation, progress=False)
            seconds = time.perf_counter() - began
            clean = simulate(system, NEW, np.random.default_rng([seed, 1, *name.encode()]), 0.0)
            kept = next((attempt.name for attempt in fit.attempts if attempt.kept), "as chosen")
            right = "yes" if kept.startswith("equations") and fit.score(clean).nrmse < RIGHT else "-"
            held, fresh = fit.score(validation).nrmse, fit.score(new).nrmse
            print(f"| {name} | {seed} | {kept} | {fit.diagnose().kind} |", end=" ")
            print(f"{held:.3f} | {fresh:.3f} | {right} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()

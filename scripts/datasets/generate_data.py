"""Makes the synthetic data sets in `data/`.

    python scripts/datasets/generate_data.py [--noise 0.05] [--seed 0] [--out DIR]

It integrates five systems with SciPy, at a relative tolerance of 1e-10 (DOP853) or 1e-11 (Radau, for the stiff one),
from starts drawn with a fixed seed:

- `oscillator.csv`: the problem of Diffrax's neural ODE tutorial (https://docs.kidger.site/diffrax/examples/neural_ode).
  With g(s) = s / (1 + s), the velocity is g of the position rotated by a quarter turn: x' = g(y), y' = -g(x). Both
  initial values are uniform on [-0.6, 1], and 256 trajectories are observed at 100 evenly spaced times on [0, 10], as
  in the tutorial. The tutorial draws other starts and integrates in single precision.
- `spiral.csv`: z' = A z^3, cubed element by element, A = [[-0.1, 2], [-2, -0.1]]. The demo of torchdiffeq
  (https://github.com/rtqichen/torchdiffeq) has A transposed, which rotates the other way.
- `pendulum.csv`: a damped pendulum driven by a torque that is a sum of sines with random phases.
- `lorenz.csv`: the system of Lorenz, "Deterministic nonperiodic flow", J. Atmos. Sci. 20 (1963), eqs. 25-27, with his
  sigma = 10, rho = 28, beta = 8/3, started near the attractor.
- `robertson.csv`: three reactions whose rates lie nine decades apart (H. H. Robertson, "The solution of a set of
  reaction rate equations", in Numerical Analysis: An Introduction, Academic Press, 1966), with the usual k1 = 0.04,
  k2 = 3e7, k3 = 1e4 and only the first species at the start; the times are evenly spaced over the decades.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_ivp

Field = Callable[[float, Float[np.ndarray, "trajectory state"]], Float[np.ndarray, "trajectory state"]]

GRAVITY_OVER_LENGTH = 9.81  # 1/s^2: a length of 1 m
DAMPING = 0.5  # 1/s
INERTIA = 1.0  # kg m^2: a mass of 1 kg at 1 m
# Slow enough that the torque is nearly linear between samples: linear interpolation loses 1.1 % of the fastest sine.
TORQUE_FREQUENCIES = np.array([0.7, 1.6, 3.0])  # rad/s; small swings have 3.13
TORQUE_AMPLITUDES = np.array([1.5, 1.0, 0.5])  # N m


@dataclass(frozen=True)
class Table:
    """Trajectories that share their times.

    **Arguments:**

    - `ts`: times, shape `(time,)`.
    - `ys`: states, shape `(trajectory, time, state)`.
    - `us`: inputs, shape `(trajectory, time, input)`; `input` may be 0.
    - `states`, `inputs`: names of the channels.
    """

    ts: Float[np.ndarray, " time"]
    ys: Float[np.ndarray, "trajectory time state"]
    us: Float[np.ndarray, "trajectory time input"]
    states: tuple[str, ...]
    inputs: tuple[str, ...] = ()


def oscillator_field(t: float, z: Float[np.ndarray, "trajectory 2"]) -> Float[np.ndarray, "trajectory 2"]:
    """Velocity of the tutorial's oscillator."""
    bent = z / (1 + z)
    return np.stack([bent[:, 1], -bent[:, 0]], axis=1)


def spiral_field(t: float, z: Float[np.ndarray, "trajectory 2"]) -> Float[np.ndarray, "trajectory 2"]:
    """Velocity of the cubic spiral."""
    return z**3 @ np.array([[-0.1, 2.0], [-2.0, -0.1]]).T


def pendulum_field(
    z: Float[np.ndarray, "trajectory 2"], torque: Float[np.ndarray, " trajectory"]
) -> Float[np.ndarray, "trajectory 2"]:
    """Rates [rad/s, rad/s^2] of angle [rad] and velocity [rad/s] under a torque [N m]; the angle is 0 at rest."""
    angle, velocity = z.T
    return np.stack([velocity, torque / INERTIA - GRAVITY_OVER_LENGTH * np.sin(angle) - DAMPING * velocity], axis=1)


def lorenz_field(t: float, z: Float[np.ndarray, "trajectory 3"]) -> Float[np.ndarray, "trajectory 3"]:
    """Velocity of Lorenz's system."""
    x, y, height = z.T
    return np.stack([10 * (y - x), x * (28 - height) - y, x * y - 8 / 3 * height], axis=1)


def robertson_field(t: float, z: Float[np.ndarray, "trajectory 3"]) -> Float[np.ndarray, "trajectory 3"]:
    """Rates of Robertson's reactions."""
    first, second, third = z.T
    forth, pair, back = 0.04 * first, 3e7 * second**2, 1e4 * second * third
    return np.stack([back - forth, forth - back - pair, pair], axis=1)


def integrate(
    field: Field,
    starts: Float[np.ndarray, "trajectory state"],
    ts: Float[np.ndarray, " time"],
    method: Literal["DOP853", "Radau"] = "DOP853",
    rtol: float = 1e-10,
    atol: float = 1e-12,
) -> Float[np.ndarray, "trajectory time state"]:
    """States at `ts`, from `starts` at `ts[0]`; solves all trajectories as one system, which is faster."""
    solution = solve_ivp(
        lambda t, flat: field(t, flat.reshape(starts.shape)).ravel(),
        (ts[0], ts[-1]),
        starts.ravel(),
        method=method,
        t_eval=ts,
        rtol=rtol,
        atol=atol,
    )
    if not solution.success:
        raise RuntimeError(f"integration failed at t = {solution.t[-1]:g}: {solution.message}")
    return np.moveaxis(solution.y.reshape(*starts.shape, len(ts)), 2, 1)


def no_inputs(trajectories: int, times: int) -> Float[np.ndarray, "trajectory time 0"]:
    return np.zeros((trajectories, times, 0))


def oscillator(rng: np.random.Generator) -> Table:
    """256 trajectories at 100 times on [0, 10]."""
    ts = np.linspace(0, 10, 100)
    ys = integrate(oscillator_field, rng.uniform(-0.6, 1, (256, 2)), ts)
    return Table(ts, ys, no_inputs(256, 100), states=("x", "y"))


def spiral(rng: np.random.Generator) -> Table:
    """8 trajectories at 32 times on [0, 5], with starts around the origin at radii of 1 to 1.5."""
    ts = np.linspace(0, 5, 32)
    angles = 2 * np.pi * (np.arange(8) + rng.uniform(0, 1, 8)) / 8
    radii = rng.uniform(1, 1.5, 8)
    starts = radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return Table(ts, integrate(spiral_field, starts, ts), no_inputs(8, 32), states=("x", "y"))


def pendulum(rng: np.random.Generator) -> Table:
    """24 trajectories at 120 times, 0.1 s apart, each with its own torque."""
    ts = 0.1 * np.arange(120)
    phases = rng.uniform(0, 2 * np.pi, (24, 3))
    starts = rng.uniform([-1.5, -1.0], [1.5, 1.0], (24, 2))

    def torque(t: float) -> Float[np.ndarray, " trajectory"]:
        return np.sin(TORQUE_FREQUENCIES * t + phases) @ TORQUE_AMPLITUDES

    ys = integrate(lambda t, z: pendulum_field(z, torque(t)), starts, ts)
    us = np.stack([torque(t) for t in ts], axis=1)[..., None]
    return Table(ts, ys, us, states=("angle", "velocity"), inputs=("torque",))


def lorenz(rng: np.random.Generator) -> Table:
    """8 trajectories at 101 times on [0, 2], after a run-in of 5 time units that brings them to the attractor."""
    ts = np.linspace(0, 2, 101)
    outside = rng.uniform([-10, -10, 15], [10, 10, 35], (8, 3))
    starts = integrate(lorenz_field, outside, np.array([0.0, 5.0]))[:, -1]
    return Table(ts, integrate(lorenz_field, starts, ts), no_inputs(8, 101), states=("x", "y", "z"))


def robertson(rng: np.random.Generator) -> Table:
    """One trajectory, at its start and at 50 times from 1e-5 to 1e5 s."""
    ts = np.concatenate([[0.0], np.geomspace(1e-5, 1e5, 50)])
    ys = integrate(robertson_field, np.array([[1.0, 0.0, 0.0]]), ts, "Radau", rtol=1e-11, atol=1e-18)
    return Table(ts, ys, no_inputs(1, len(ts)), states=("y1", "y2", "y3"))


SYSTEMS: dict[str, Callable[[np.random.Generator], Table]] = {
    "oscillator": oscillator,
    "spiral": spiral,
    "pendulum": pendulum,
    "lorenz": lorenz,
    "robertson": robertson,
}


def with_noise(table: Table, noise: float, rng: np.random.Generator) -> Table:
    """Adds Gaussian noise to the states, with `noise` times each state's standard deviation."""
    deviation = noise * table.ys.std(axis=(0, 1))
    ys = table.ys + deviation * rng.standard_normal(table.ys.shape)
    return Table(table.ts, ys, table.us, table.states, table.inputs)


def write(table: Table, path: Path) -> None:
    """Writes one row per trajectory and time, with seven significant digits."""
    trajectories, times, _ = table.ys.shape
    labels = np.repeat(np.arange(trajectories), times)
    channels = np.concatenate([table.ys, table.us], axis=2).reshape(trajectories * times, -1)
    columns = np.column_stack([labels, np.tile(table.ts, trajectories), channels])
    header = ",".join(("trajectory", "t", *table.states, *table.inputs))
    formats = ["%d"] + ["%.7g"] * (columns.shape[1] - 1)
    np.savetxt(path, columns, fmt=formats, delimiter=",", header=header, comments="")


def generate(out: Path, noise: float, seed: int) -> None:
    """Writes a CSV file per system into `out`. A system's starts depend on `seed` alone, not on the noise."""
    out.mkdir(parents=True, exist_ok=True)
    for position, (name, system) in enumerate(SYSTEMS.items()):
        start_rng, noise_rng = np.random.default_rng([seed, position]).spawn(2)
        table = system(start_rng)
        write(with_noise(table, noise, noise_rng) if noise else table, out / f"{name}.csv")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Generates the synthetic data sets in data/.")
    parser.add_argument("--noise", type=float, default=0.0, help="noise, in standard deviations of each state (0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the starts, torques and noise (0)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "data", help="directory (data/)")
    options = parser.parse_args(arguments)
    for name in ("noise", "seed"):
        if not getattr(options, name) >= 0:
            parser.error(f"--{name} must not be negative, got {getattr(options, name)}.")
    generate(options.out, options.noise, options.seed)


if __name__ == "__main__":
    main()

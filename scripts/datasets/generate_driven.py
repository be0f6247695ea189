"""Makes the driven records in `data/`: `python scripts/datasets/generate_driven.py [--seed 0] [--out DIR]`.

Three systems, each with chosen inputs and states that are not measured. They are integrated by the classical
Runge-Kutta method with ten steps between two rows, and noise is added to the measured states.

- `duffing.csv`: a driven oscillator with a hardening spring, y'' = -2 D W y' - W^2 (y + C y^3 - u), whose velocity is
  not measured. 65,000 rows: 50,000 of a random force of constant strength, then 15,000 whose strength grows from
  two fifths of it to all. Noise of 1 % of the first part's standard deviation.
- `motor.csv`: a direct-current motor with viscous and dry friction, whose speed is measured without its sign. Two
  records of 500 rows with random steps of the voltage, of both signs. Noise of 2 % of the standard deviation.
- `house.csv`: a heated room, its walls, and a heater that is on or off. 3,000 rows, five minutes apart; the temperature
  of the walls is not measured. Noise of 0.05 degrees, about 1 % of the standard deviation.
"""

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float

SUBSTEPS = 10
Rates = Callable[[np.ndarray, np.ndarray], np.ndarray]

# Per row: ten rows are a period of small swings.
FREQUENCY, DAMPING, HARDENING = 2 * np.pi / 10, 0.05, 0.03
# Of the motor, with a row of 1 ms: resistance [Ohm], inductance [H], torque and voltage constant [N m/A], inertia
# [kg m^2], viscous friction [N m s], dry friction [N m].
R, L, K, J, B, DRY = 1.0, 5e-3, 0.05, 2e-5, 2e-5, 4e-3
# Of the house: hours in which the room follows the air outside and the walls, and the walls the room; outside [deg C];
# what the heater would add to the room in an hour [deg C].
TO_AIR, TO_WALLS, WALLS, OUTSIDE, HEATER = 8.0, 1.5, 12.0, 5.0, 9.0


def duffing(z: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Rates of position and velocity per row."""
    y, v = z
    w = FREQUENCY
    return np.array([v, -2 * DAMPING * w * v - w**2 * y - HARDENING * w**2 * y**3 + w**2 * u[0]])


def motor(z: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Rates of current [A] and speed [rad/s] per ms; dry friction is smooth within 2 rad/s around standstill."""
    current, speed = z
    torque = K * current - B * speed - DRY * np.tanh(speed / 2)
    return 1e-3 * np.array([(u[0] - R * current - K * speed) / L, torque / J])


def house(z: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Rates of the temperatures of room and walls [deg C] per five minutes; warm air leaks out faster."""
    room, walls = z
    lost = (room - OUTSIDE) / TO_AIR * (1 + 0.03 * (room - OUTSIDE))
    return np.array([(walls - room) / TO_WALLS - lost + HEATER * u[0], (room - walls) / WALLS]) / 12


def simulate(
    rates: Rates, start: list[float], us: Float[np.ndarray, "row input"], *, held: bool
) -> Float[np.ndarray, "row state"]:
    """States at all rows; inputs are held, or linear, between them."""
    z, found, h = np.array(start, float), [np.array(start, float)], 1 / SUBSTEPS
    for first, last in itertools.pairwise(us):
        rise = 0 * last if held else last - first
        for step in range(SUBSTEPS):
            u0, u1, u2 = (first + rise * (step + share) * h for share in (0, 0.5, 1))
            k1 = rates(z, u0)
            k2 = rates(z + h / 2 * k1, u1)
            k3 = rates(z + h / 2 * k2, u1)
            z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + rates(z + h * k3, u2))
        found.append(z)
    return np.stack(found)


def random_force(rng: np.random.Generator, rows: int) -> Float[np.ndarray, " row"]:
    """Gaussian noise of unit strength, of frequencies up to 1.5 times that of small swings."""
    spectrum = np.fft.rfft(rng.normal(size=rows))
    spectrum[np.fft.rfftfreq(rows) > 1.5 * FREQUENCY / (2 * np.pi)] = 0
    force = np.fft.irfft(spectrum, rows)
    return force / force.std()


def steps(rng: np.random.Generator, rows: int, shortest: int, longest: int) -> Float[np.ndarray, " row"]:
    """Levels between -1 and 1, each held for a random number of rows."""
    found: list[float] = []
    while len(found) < rows:
        found += [rng.uniform(-1, 1)] * int(rng.integers(shortest, longest + 1))
    return np.array(found[:rows])


def write(path: Path, header: str, columns: list[np.ndarray], formats: list[str]) -> None:
    np.savetxt(path, np.column_stack(columns), fmt=formats, delimiter=",", header=header, comments="")


def make_duffing(rng: np.random.Generator, out: Path) -> None:
    constant, growing = 50_000, 15_000
    strength = 0.45 * np.concatenate([np.ones(constant), np.linspace(0.4, 1, growing)])
    force = strength * np.concatenate([random_force(rng, constant), random_force(rng, growing)])
    y = simulate(duffing, [0, 0], force[:, None], held=False)[:, 0]
    y = y + 0.01 * y[:constant].std() * rng.normal(size=len(y))
    write(out / "duffing.csv", "force,position", [force, y], ["%.4g"] * 2)


def make_motor(rng: np.random.Generator, out: Path) -> None:
    columns = []
    for record in range(2):
        voltage = 12 * steps(rng, 500, 10, 60)
        speed = np.abs(simulate(motor, [0, 0], voltage[:, None], held=True)[:, 1])
        measured = speed + 0.02 * speed.std() * rng.normal(size=len(speed))
        columns.append(np.column_stack([np.full(500, record), np.arange(500), voltage, measured]))
    write(out / "motor.csv", "record,ms,voltage,speed", [np.concatenate(columns)], ["%d", "%d", "%.5g", "%.6g"])


def make_house(rng: np.random.Generator, out: Path) -> None:
    switched = (steps(rng, 3_000, 6, 60) > 0).astype(float)
    room = simulate(house, [15, 14], switched[:, None], held=True)[:, 0]
    room = room + 0.05 * rng.normal(size=len(room))
    minutes = 5 * np.arange(3_000)
    write(out / "house.csv", "minutes,heater,room", [minutes, switched, room], ["%d", "%d", "%.5g"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Generates the driven records in data/.")
    parser.add_argument("--seed", type=int, default=0, help="seed of inputs and noise (0)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "data", help="directory (data/)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for position, make in enumerate((make_duffing, make_motor, make_house)):
        make(np.random.default_rng([options.seed, position]), options.out)


if __name__ == "__main__":
    main()

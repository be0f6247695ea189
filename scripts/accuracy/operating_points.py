"""Measures equilibria, Hopf points and Bode diagrams of fitted models against those of the true systems.

    python scripts/accuracy/operating_points.py [--draws 5] [--noise 0.01] [--only oscillator]

prints a table in Markdown. Records of each system are simulated with noise on every value, as a share of its standard
deviation, and fitted: the equations of three with their constants unknown, and a linear model with a hidden state to
the position of an oscillator that a random force drives. Errors are the largest of all draws: of equilibria as a share
of the record's range, of Hopf points and frequencies as a share of themselves, of gains in decibels to the bandwidth.
"""

import argparse
import functools

import jax
import numpy as np
from scipy.integrate import solve_ivp
from scipy.signal import TransferFunction, bode, lsim

import node_fit as nf

# Constants, equations, the point where a record begins, its duration, and inputs.
SYSTEMS = {
    "van der Pol": ({"mu": 0.5}, {"x": "v", "v": "mu*(1 - x^2)*v - x"}, [2.0, 0.0], 20.0, {}),
    "FitzHugh-Nagumo": (
        {"a": 0.7, "b": 0.8, "tau": 12.5},
        {"v": "v - v^3/3 - w + I", "w": "(v + a - b*w)/tau"},
        [-1.0, 1.0],
        100.0,
        {"I": 0.5},
    ),
    "Lotka-Volterra": (
        {"a": 1.1, "b": 0.4, "c": 0.1, "d": 0.5},
        {"x": "a*x - b*x*y", "y": "c*x*y - d*y"},
        [8.0, 4.0],
        20.0,
        {},
    ),
}
ROWS = 200


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--draws", type=int, default=5)
    options.add_argument("--noise", type=float, default=0.01, help="as a share of each state's standard deviation")
    options.add_argument("--only", help="a part of a system's name")
    given = options.parse_args()
    print("| system | quantity | largest error |\n|---|---|---|")
    for name in (*SYSTEMS, "oscillator"):
        if given.only and given.only not in name:
            continue
        find = measure_oscillator if name == "oscillator" else functools.partial(measure_equations, name)
        draws = [find(given.noise, seed) for seed in range(given.draws)]
        for quantity in draws[0]:
            print(f"| {name} | {quantity} | {max(draw[quantity] for draw in draws):.2g} |", flush=True)


def rates(name: str, y: np.ndarray, c: dict[str, float]) -> list[float]:
    """The true right-hand sides."""
    one, two = y
    if name == "van der Pol":
        return [two, c["mu"] * (1 - one**2) * two - one]
    if name == "FitzHugh-Nagumo":
        return [one - one**3 / 3 - two + c["I"], (one + c["a"] - c["b"] * two) / c["tau"]]
    return [c["a"] * one - c["b"] * one * two, c["c"] * one * two - c["d"] * two]


def measure_equations(name: str, noise: float, seed: int) -> dict[str, float]:
    """Errors of a fit to one record."""
    constants, equations, start, duration, inputs = SYSTEMS[name]
    rng = np.random.default_rng(seed)
    ts = np.linspace(0, duration, ROWS)
    ys = solve_ivp(
        lambda _, y: rates(name, y, constants | inputs), (0, duration), start, t_eval=ts, rtol=1e-9, atol=1e-9
    ).y.T
    spread = ys.std(axis=0)
    us = np.tile(list(inputs.values()), (ROWS, 1)) if inputs else None
    noisy = ys + noise * spread * rng.normal(size=ys.shape)
    data = nf.Dataset.from_arrays(ts, noisy, us, states=list(equations), inputs=list(inputs) or None)
    begin = {each: [value * rng.uniform(0.7, 1.4), None, None] for each, value in constants.items()}
    field = functools.partial(nf.Known, equations=equations, constants=begin)
    fit = nf.fit(data, field=field, start="fitted", options=nf.Options(precision="x64"))
    true = nf.make_model(
        data, field=functools.partial(nf.Known, equations=equations, constants=constants), key=jax.random.key(0)
    )
    exact, found = nf.find_equilibria(true, inputs), fit.equilibria(inputs)
    assert len(exact) == len(found), (name, len(exact), len(found))
    errors = [min(distance(point.point, other.point, ys) for other in found) for point in exact]
    measured = {"equilibria (share of the range)": max(errors)}
    if name == "Lotka-Volterra":
        sizes = [
            max(mode.natural_frequency for point in points for mode in point.modes if mode.eigenvalue.imag)
            for points in (exact, found)
        ]
        return measured | {"frequency of the centre": abs(sizes[1] / sizes[0] - 1)}
    parameter, ends = ("mu", (-1.0, 1.2)) if name == "van der Pol" else ("I", (0.0, 2.0))
    pairs = list(zip(nf.find_hopf_points(true, parameter, ends), fit.hopf_points(parameter, ends), strict=True))
    scale = 1.0 if parameter == "mu" else None
    hopf = [abs(mine.value - truth.value) / (scale or abs(truth.value)) for truth, mine in pairs]
    turns = [abs(mine.frequency / truth.frequency - 1) for truth, mine in pairs]
    return measured | {f"Hopf points, {parameter}": max(hopf), "frequency at Hopf points": max(turns)}


def distance(one: dict[str, float], other: dict[str, float], ys: np.ndarray) -> float:
    """The largest difference of two points, as a share of the record's range."""
    return max(abs(one[name] - other[name]) / width for name, width in zip(one, np.ptp(ys, axis=0), strict=True))


def measure_oscillator(noise: float, seed: int) -> dict[str, float]:
    """The error of gains of a linear model that is fitted to positions alone."""
    rng = np.random.default_rng(seed)
    ts = np.linspace(0, 40, 401)
    force = np.repeat(rng.normal(size=67), 6)[:401]
    exact = TransferFunction([4.0], [1, 1.2, 4.0])
    _, ys, _ = lsim(exact, force, ts, interp=False)
    noisy = ys + noise * ys.std() * rng.normal(size=401)
    data = nf.Dataset.from_arrays(ts, noisy[:, None], force[:, None], states=["x"], inputs=["F"])
    fit = nf.fit(data, field=nf.Linear, options=nf.Options(hidden=1, solver=nf.Solver(inputs="hold"), precision="x64"))
    point = fit.linearize(u={"F": 0.0})
    omegas = np.linspace(0.05, 4.0, 400)
    _, magnitude, _ = bode(exact, omegas)
    response = point.frequency_response(omegas)
    inside = omegas <= response.bandwidth("x", "F")
    mode = point.modes[0]
    return {
        "gain to the bandwidth [dB]": float(np.abs(response.magnitude[inside, 0, 0] - magnitude[inside]).max()),
        "natural frequency": abs(mode.natural_frequency / 2 - 1),
        "damping": abs(mode.damping / 0.3 - 1),
    }


if __name__ == "__main__":
    main()

"""Equations that PySINDy finds in records of `discover_examples.py`, beside those of `discover`.

    pip install pysindy  # 2.1
    python scripts/accuracy/discover_beside_pysindy.py [--only NAME ...] [--effort quick]

PySINDy is given what it asks for: polynomials of the degree of the true equations, its smoothed differences, and the
threshold, of 15 with and without normalised columns, whose simulation of the record is best. `discover` gets no such
help. R² is that of the simulation of the noisy record, the worst state: PySINDy's from the first row, since it fits no
start, and `discover`'s from the start that it fits.
"""

import argparse
import time
import warnings
from typing import NamedTuple

import numpy as np
from discover_examples import SYSTEMS, System, in_a_line

import node_fit
from node_fit.options.options import Effort

# The degree of the true equations.
DEGREES = {"lynx and hare": 2, "driven Duffing oscillator": 3, "SIR": 2, "Lorenz, 1%": 2, "Lorenz, 5%": 2}
THRESHOLDS = np.geomspace(1e-5, 1.0, 15)


class Found(NamedTuple):
    """Equations in a line, the R² of their simulation, and how long they took [s]."""

    text: str
    r2: float
    seconds: float


def worst_r2(ys: np.ndarray, simulated: np.ndarray | None) -> float:
    """The least R² of a state; minus infinity if the simulation has failed."""
    if simulated is None or simulated.shape != ys.shape or not np.isfinite(simulated).all():
        return -np.inf
    return float((1 - ((ys - simulated) ** 2).sum(axis=0) / ((ys - ys.mean(axis=0)) ** 2).sum(axis=0)).min())


def find_by_pysindy(data: node_fit.Dataset, degree: int) -> Found:
    """The equations of the threshold whose simulation is best."""
    import pysindy

    began, best = time.perf_counter(), Found("none", -np.inf, 0.0)
    ts, ys, us = data.ts[0], data.ys[0], data.us[0] if data.inputs else None
    for threshold in THRESHOLDS:
        for normalized in (False, True):
            model = pysindy.SINDy(
                optimizer=pysindy.STLSQ(threshold=threshold, normalize_columns=normalized),
                feature_library=pysindy.PolynomialLibrary(degree=degree),
                differentiation_method=pysindy.SmoothedFiniteDifference(),
            )
            with warnings.catch_warnings(action="ignore"):
                try:
                    model.fit(ys, t=ts, u=us, feature_names=[*data.states, *data.inputs])
                    simulated = simulate(model, data)
                except (ValueError, np.linalg.LinAlgError):
                    continue
            r2 = worst_r2(ys, simulated)
            if r2 > best.r2:
                pairs = zip(data.states, model.equations(precision=4), strict=True)
                best = Found("; ".join(f"d{name}/dt = {text}" for name, text in pairs), r2, 0.0)
    return best._replace(seconds=time.perf_counter() - began)


def simulate(model, data: node_fit.Dataset) -> np.ndarray | None:
    """States of a PySINDy model from the first row, by the solver that `discover` uses."""
    from scipy.integrate import solve_ivp

    ts, us, left = data.ts[0], data.us[0], 20_000

    def slope(t: float, y: np.ndarray) -> np.ndarray:
        nonlocal left
        left -= 1
        if left < 0 or not np.isfinite(y).all() or np.abs(y).max() > 1e6:
            raise ArithmeticError
        given = np.array([[np.interp(t, ts, column) for column in us.T]]) if data.inputs else None
        return model.predict(y[None], u=given)[0]

    try:
        done = solve_ivp(slope, (ts[0], ts[-1]), data.ys[0, 0], t_eval=ts, method="LSODA", rtol=1e-6, atol=1e-8)
    except ArithmeticError:
        return None
    return done.y.T if done.success else None


def find_by_discover(system: System, effort: Effort) -> Found:
    began, data = time.perf_counter(), system.data
    found = node_fit.discover(data, effort=effort, resamples=0, symbolic=False, **system.options)
    seconds, best = time.perf_counter() - began, found.found
    us = {name: data.us[0, :, at] for at, name in enumerate(data.inputs)}
    return Found(
        in_a_line(found), worst_r2(data.ys[0], best.simulate(list(best.start.values()), data.ts[0], us)), seconds
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Equations of PySINDy and of discover, side by side.")
    parser.add_argument("--only", nargs="+", default=list(DEGREES), choices=list(DEGREES), help="names of records")
    parser.add_argument("--effort", default="quick", choices=("quick", "normal", "thorough"))
    given = parser.parse_args()
    for name in given.only:
        system = SYSTEMS[name]()
        print(f"{name}\n  true: {system.true}", flush=True)
        for method, found in (
            ("PySINDy", find_by_pysindy(system.data, DEGREES[name])),
            ("discover", find_by_discover(system, given.effort)),
        ):
            print(f"  {method}, R² {found.r2:.3f}, {found.seconds:.0f} s: {found.text}", flush=True)


if __name__ == "__main__":
    main()

"""The tables of the gallery that ship with nothing: `make(name, folder)` writes one. See `gallery.py`."""

from collections.abc import Callable
from pathlib import Path

import large
import numpy as np
import pandas as pd
from scipy.integrate import solve_ivp

# Of the doses: absorption and elimination [1/h], and the volume in which a dose is distributed [l].
ABSORPTION, ELIMINATION, VOLUME = 1.5, 0.2, 30.0
# Of the batches: largest growth rate [1/h], glucose at which it is half as large [g/l], and yield [g/g].
GROWTH, HALF, YIELD = 0.4, 0.5, 0.5
GRAVITY = 9.81


def make(name: str, folder: Path) -> None:
    """Writes a table into a folder, under the name that the page's command has for it."""
    TABLES[name](folder / name)


def doses(path: Path) -> None:
    """Six people, three doses each, of which each is a pulse of a quarter of an hour; few samples of the blood."""
    draw, rows = np.random.default_rng(0), []
    hours = np.arange(0, 24.01, 0.25)
    for person in range(6):
        dose = draw.choice([100.0, 200.0, 300.0])  # mg
        begins = np.array([0.5, 8.0, 16.0]) + 0.25 * draw.integers(0, 6, 3)
        rate = np.isin(hours, begins) * dose / 0.25
        state, found = np.zeros(2), [0.0]
        for now, flow in zip(hours[:-1], rate[:-1], strict=True):
            state = solve_ivp(absorbed, (now, now + 0.25), state, args=(flow,), rtol=1e-9, atol=1e-12).y[:, -1]
            found.append(state[0])
        measured = np.array(found) * np.exp(0.05 * draw.standard_normal(len(hours)))
        sampled = np.isin(np.arange(len(hours)), draw.choice(np.arange(4, len(hours)), 14, replace=False))
        sampled[0] = True
        values = ["" if not each else f"{value:.4g}" for each, value in zip(sampled, measured, strict=True)]
        rows.append(pd.DataFrame({"person": f"P{person + 1}", "h": hours, "rate": rate, "plasma": values}))
    pd.concat(rows).to_csv(path, index=False)


def absorbed(t: float, state: np.ndarray, rate: float) -> list[float]:
    plasma, gut = state
    return [ABSORPTION * gut / VOLUME - ELIMINATION * plasma, rate - ABSORPTION * gut]


def lab(path: Path) -> None:
    """Six batches as a laboratory writes them: semicolons, decimal commas, days first, comments, NA, empty cells."""
    draw, lines = np.random.default_rng(1), ["# Bioreactor 2, exported from the control system", ""]
    lines.append("Charge;Zeit;Biomasse;Glukose;Bemerkung")
    for batch in range(6):
        hours = np.sort(draw.uniform(0, 14, 13)).round(2)
        hours[0] = 0.0
        start = [draw.uniform(0.1, 0.4), draw.uniform(6, 12)]
        true = solve_ivp(grown, (0, 15), start, t_eval=hours, rtol=1e-9, atol=1e-12).y
        noisy = true + np.array([[0.08], [0.2]]) * draw.standard_normal(true.shape)
        begin = pd.Timestamp(2024, 3, 1 + 3 * batch, 8, 30)
        for row, (hour, values) in enumerate(zip(hours, np.maximum(noisy, 0.01).T, strict=True)):
            words = [f"{value:.2f}".replace(".", ",") for value in values]
            if row and draw.random() < 0.12:
                words[draw.integers(2)] = draw.choice(["", "NA"])
            when = (begin + pd.Timedelta(hours=hour)).strftime("%d.%m.%Y %H:%M:%S")
            lines.append(";".join([f"C{batch + 1}", when, *words, "foam" if draw.random() < 0.05 else ""]))
    path.write_text("\n".join(lines) + "\n", encoding="latin-1")


def grown(t: float, state: np.ndarray) -> list[float]:
    biomass, glucose = state
    rate = GROWTH * glucose / (HALF + glucose) * biomass
    return [rate, -rate / YIELD]


def double_pendulum(path: Path) -> None:
    """48 swings of two equal masses on two rods of 1 m, released at rest from angles of up to 1.5 rad."""
    draw, times, rows = np.random.default_rng(2), np.arange(81) * 0.05, []
    for swing in range(48):
        start = [*draw.uniform(-1.5, 1.5, 2), 0.0, 0.0]
        states = solve_ivp(swung, (0, times[-1] + 0.01), start, t_eval=times, rtol=1e-10, atol=1e-12).y
        columns = dict(zip(("upper", "lower", "upper_speed", "lower_speed"), states.round(6), strict=True))
        rows.append(pd.DataFrame({"swing": swing, "t": times, **columns}))
    pd.concat(rows).to_csv(path, index=False)


def swung(t: float, state: np.ndarray) -> list[float]:
    """Lagrange's equations of two unit masses on massless rods of unit length."""
    a, b, va, vb = state
    c, s = np.cos(a - b), np.sin(a - b)
    forces = [-vb * vb * s - 2 * GRAVITY * np.sin(a), va * va * s - GRAVITY * np.sin(b)]
    return [va, vb, *np.linalg.solve([[2, c], [c, 1]], forces)]


def oscillations(path: Path) -> None:
    """One record of fifteen periods of Van der Pol's oscillator, with noise of 3 %."""
    times = np.linspace(0, 100, 501)
    states = solve_ivp(self_excited, (0, 101), [2.0, 0.0], t_eval=times, rtol=1e-10, atol=1e-12).y
    noisy = states + 0.03 * states.std(axis=1, keepdims=True) * np.random.default_rng(3).standard_normal(states.shape)
    pd.DataFrame({"t": times, "x": noisy[0], "y": noisy[1]}).round(5).to_csv(path, index=False)


def self_excited(t: float, state: np.ndarray) -> list[float]:
    x, y = state
    return [y, (1 - x * x) * y - x]


def swings(path: Path) -> None:
    large.trajectories(100_000).to_parquet(path, index=False)


TABLES: dict[str, Callable[[Path], None]] = {
    "doses.csv": doses,
    "lab.csv": lab,
    "double_pendulum.csv": double_pendulum,
    "oscillations.csv": oscillations,
    "swings.parquet": swings,
}

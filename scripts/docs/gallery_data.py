"""The tables of the gallery that ship with nothing: `make(name, folder)` writes one. See `gallery.py`."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.integrate import solve_ivp

sys.path.append(str(Path(__file__).parents[1] / "speed"))
import large_data

# Of the doses: absorption and elimination [1/h], and the volume in which a dose is distributed [l].
ABSORPTION, ELIMINATION, VOLUME = 1.5, 0.2, 30.0
# Of the patients: largest uptake [mg/h], the amount at which it is half as large [mg], elimination [1/h], volume [l],
# and the deviations of the logarithms of uptake and elimination between patients.
UPTAKE, HALF_FULL, CLEARED, SPACE, BETWEEN = 40.0, 25.0, 0.3, 20.0, 0.3
# Of the batches: largest growth rate [1/h], glucose at which it is half as large [g/l], and yield [g/g].
GROWTH, HALF, YIELD = 0.4, 0.5, 0.5
GRAVITY = 9.81


def make(name: str, folder: Path) -> None:
    """Writes a table into a folder, under the name that the page's command has for it."""
    TABLES[name](folder / name)


def people() -> list[tuple[str, list[float], float]]:
    """Six people: name, hours of five doses, and the dose [mg]."""
    draw = np.random.default_rng(0)
    return [
        (
            f"P{person + 1}",
            np.sort(draw.uniform(0.2, 20, 5)).round(1).tolist(),
            float(draw.choice([100.0, 200.0, 300.0])),
        )
        for person in range(6)
    ]


def uptake_rate(gut: np.ndarray) -> np.ndarray:
    """The law by which a gut gives away what it holds [mg/h], which saturates."""
    return UPTAKE * gut / (HALF_FULL + gut)


def uptake(path: Path) -> None:
    """Eight samples of each of 24 patients after a dose of 100 mg, with the columns of NONMEM."""
    draw, hours = np.random.default_rng(4), np.array([0, 0.5, 1, 2, 3, 5, 7, 9.0])
    lines = ["ID,TIME,DV,AMT,EVID,CMT"]
    for patient in range(1, 25):
        rate, k = np.exp(BETWEEN * draw.standard_normal(2)) * [1, CLEARED]

        def slopes(t: float, y: np.ndarray, rate: float = rate, k: float = k) -> list[float]:
            taken = rate * uptake_rate(y[0])
            return [-taken, taken / SPACE - k * y[1]]

        clean = solve_ivp(slopes, (0, hours[-1]), [100, 0], t_eval=hours, rtol=1e-8, atol=1e-8).y[1]
        lines.append(f"{patient},0,.,100,1,1")
        for hour, value in zip(hours, clean + 0.05 * draw.standard_normal(len(hours)), strict=True):
            lines.append(f"{patient},{hour},{value:.4f},.,0,2")
    path.write_text("\n".join(lines) + "\n")


def doses(path: Path) -> None:
    """Events: what was swallowed, and when."""
    rows = [
        {"person": name, "h": hour, "state": "gut", "add": dose} for name, hours, dose in people() for hour in hours
    ]
    pd.DataFrame(rows).to_csv(path, index=False)


def blood(path: Path) -> None:
    """Fifteen samples of the blood of each person, at hours of their own."""
    draw, rows = np.random.default_rng(1), []
    for name, hours, dose in people():
        sampled = np.append(0.0, np.sort(draw.choice(np.arange(2, 97), 14, replace=False)) / 4)
        exact = sum(absorbed(sampled - hour, dose) for hour in hours)
        noisy = exact * np.exp(0.05 * draw.standard_normal(15)) + 0.02 * draw.standard_normal(15) * (exact > 0)
        rows.append(pd.DataFrame({"person": name, "h": sampled, "plasma": noisy.round(3)}))
    pd.concat(rows).to_csv(path, index=False)


def absorbed(since: np.ndarray, dose: float) -> np.ndarray:
    """The concentration in the plasma [mg/l] at times since a dose (Bateman, Proc. Camb. Phil. Soc. 15, 1910)."""
    since = np.maximum(since, 0.0)
    scale = dose * ABSORPTION / (VOLUME * (ABSORPTION - ELIMINATION))
    return scale * (np.exp(-ELIMINATION * since) - np.exp(-ABSORPTION * since))


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
    large_data.trajectories(100_000).to_parquet(path, index=False)


TABLES: dict[str, Callable[[Path], None]] = {
    "blood.csv": blood,
    "uptake.csv": uptake,
    "doses.csv": doses,
    "lab.csv": lab,
    "double_pendulum.csv": double_pendulum,
    "oscillations.csv": oscillations,
    "swings.parquet": swings,
}

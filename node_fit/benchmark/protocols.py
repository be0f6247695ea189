"""Published problems, the commands that fit them, their measures, and the table of comparison.

P. Hegde et al., "Variational multiple shooting for Bayesian ODEs with Gaussian processes", UAI 2022, arXiv 2106.10905.
The oscillator's equation, start, times and noise, random numbers included, are those of `train_vdp_gpode.py` and
`src/datasets/vanderpol.py` in https://github.com/hegdepashupati/gaussian-process-odes. The neuron's equation and start
are those of `src/datasets/fhn.py`; its noise is another draw, since the paper's data are a binary file.

S. d'Ascoli et al., "ODEFormer: Symbolic Regression of Dynamical Systems with Transformers", ICLR 2024, arXiv
2310.05573. `odebench.csv` has the equations, constants and starts of `odeformer/odebench/strogatz_equations.py` in
https://github.com/sdascoli/odeformer, with the constants inserted; times are those of `solve_and_plot.py`.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..model.fields.equations import Equations
from ..runtime.serialization import Json

ROWS_OF_PROBLEM = 25
# Noise variances of the measured rows of the oscillator and of the neuron [squared units].
VARIANCE, NEURON_VARIANCE = 0.05, 0.025
LAST_TIME, NEURON_END = 7.0, 5.0


def van_der_pol_data(t: float, y: Sequence[float] | np.ndarray) -> list[float]:
    return [y[1], 0.5 * (1 - y[0] ** 2) * y[1] - y[0]]


def neuron(t: float, y: Sequence[float] | np.ndarray) -> list[float]:
    return [3 * (y[0] - y[0] ** 3 / 3 + y[1]), (0.2 - 3 * y[0] - 0.2 * y[1]) / 3]


def solve_exactly(
    rates: Callable[..., Sequence[float] | np.ndarray], start: Sequence[float], times: np.ndarray
) -> np.ndarray:
    """Returns the states at times from 0 on, shape `(time, state)`."""
    from scipy.integrate import solve_ivp

    return solve_ivp(rates, (0, times[-1]), start, t_eval=times, rtol=1e-10, atol=1e-12).y.T


def regular_times() -> np.ndarray:
    return np.arange(2 * ROWS_OF_PROBLEM) * LAST_TIME / (ROWS_OF_PROBLEM - 1)


def random_times() -> np.ndarray:
    draw = np.random.RandomState(122)
    first, later = (np.sort(draw.random_sample(ROWS_OF_PROBLEM)) * LAST_TIME for _ in range(2))
    first[0] = 0.0
    return np.concatenate([first, LAST_TIME + later])


def write_van_der_pol(path: Path, times: np.ndarray) -> None:
    """Writes 25 rows with noise, and 25 later ones without."""
    states = solve_exactly(van_der_pol_data, (-1.5, 2.5), times)
    states[:ROWS_OF_PROBLEM] += np.random.RandomState(121).normal(size=(ROWS_OF_PROBLEM, 2)) * VARIANCE**0.5
    write_columns(path, times, states)


def neuron_states() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns times, states without noise, and a mask of unmeasured rows: those with positive `x` and negative `y`."""
    times = np.linspace(0, NEURON_END, ROWS_OF_PROBLEM)
    states = solve_exactly(neuron, (-1.0, -1.0), times)
    return times, states, (states[:, 0] > 0) & (states[:, 1] < 0)


def write_neuron(path: Path) -> None:
    """Writes 25 rows with noise; those in one quadrant are empty."""
    times, states, hidden = neuron_states()
    states = states + np.random.RandomState(121).normal(size=states.shape) * NEURON_VARIANCE**0.5
    write_columns(path, times, np.where(hidden[:, None], np.nan, states))


def judge_neuron(run: Path) -> dict[str, float | None]:
    """Computes the mean squared error of a run's predictions in the unmeasured rows."""
    import pandas as pd

    times, states, hidden = neuron_states()
    table = pd.read_csv(run / "predictions.csv")
    at = np.abs(table["t"].to_numpy()[None, :] - times[hidden][:, None]).argmin(axis=1)
    predicted = table[["x_predicted", "y_predicted"]].to_numpy()[at]
    error = float(np.mean((predicted - states[hidden]) ** 2))
    return {"mse": error if np.isfinite(error) else None}


def write_columns(path: Path, times: np.ndarray, states: np.ndarray) -> None:
    import pandas as pd

    pd.DataFrame({"t": times, "x": states[:, 0], "y": states[:, 1]}).to_csv(path, index=False)


LORENZ_START, SETTLE = (1.0, 1.0, 1.0), 50.0
# Time between rows, number of fitted rows, and number of rows in the compared simulations.
STEP, LORENZ_ROWS, SIMULATED = 0.02, 1000, 10_000
# Number of bins per state, and constant added to each bin count, for the divergence.
DIVERGENCE_BINS, SMOOTHING = 30, 1e-5


def rates(t: float, y: Sequence[float] | np.ndarray) -> list[float]:
    """E. N. Lorenz, "Deterministic nonperiodic flow", J. Atmos. Sci. 20 (1963), with its constants."""
    return [10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]


def orbit(start: Sequence[float] | np.ndarray, rows: int) -> np.ndarray:
    from scipy.integrate import solve_ivp

    times = np.arange(rows) * STEP
    return solve_ivp(rates, (0, times[-1]), start, t_eval=times, rtol=1e-9, atol=1e-9).y.T


def on_attractor() -> np.ndarray:
    """Returns the initial state of the record, on the attractor."""
    return orbit(LORENZ_START, round(SETTLE / STEP) + 1)[-1]


def write_lorenz(path: Path) -> None:
    """Writes 1,000 rows of an orbit on the attractor, 0.02 apart, without noise."""
    import pandas as pd

    table = pd.DataFrame(orbit(on_attractor(), LORENZ_ROWS), columns=["x", "y", "z"])
    table.insert(0, "t", np.arange(LORENZ_ROWS) * STEP)
    table.to_csv(path, index=False)


def divergence(true: np.ndarray, other: np.ndarray) -> float:
    """Computes the divergence of an orbit's invariant distribution from that of a true one.

    This is the Kullback-Leibler divergence of their shares of the time in boxes of the state space (G. Koppe et al.,
    PLoS Computational Biology 15:e1007263, 2019, equation 9), here 30 boxes per state within the range of the true
    orbit, and one more for everything outside. It is 0 if they visit the same boxes equally often.
    """
    edges = [
        np.linspace(low, high, DIVERGENCE_BINS + 1)
        for low, high in zip(true.min(axis=0), true.max(axis=0), strict=True)
    ]
    counts = [np.histogramdd(orbit, bins=edges)[0].ravel() for orbit in (true, other)]
    shares: list[np.ndarray] = []
    for count, orbit in zip(counts, (true, other), strict=True):
        with_outside = np.append(count, len(orbit) - count.sum()) + SMOOTHING
        shares.append(with_outside / with_outside.sum())
    return float(np.sum(shares[0] * np.log(shares[0] / shares[1])))


def judge_lorenz(run: Path) -> dict[str, float | None]:
    """Computes the divergence of a run's model from the true attractor, and that of another true orbit."""
    from ..storage.model_file import load

    begin = on_attractor()
    true, other = orbit(begin, SIMULATED), orbit(orbit(begin, SIMULATED)[-1], SIMULATED)
    solution = load(run / "model.safetensors").solve(
        begin, np.arange(SIMULATED) * STEP, max_steps=100 * SIMULATED, throw=False
    )
    simulated = np.asarray(solution.ys)
    return {
        "divergence": divergence(true, simulated) if np.isfinite(simulated).all() else None,
        "other_orbit": divergence(true, other),
    }


ROWS_OF_EQUATION, LAST_SOLVED_TIME = 150, 10.0
Rates = Callable[[np.ndarray], np.ndarray]


class Equation(NamedTuple):
    """An equation: its number in ODEBench, its description, the rates, and the initial states of both trajectories."""

    number: int
    what: str
    equations: Equations
    starts: tuple[tuple[float, ...], tuple[float, ...]]

    @property
    def states(self) -> list[str]:
        return [name for name, _ in self.equations.texts]

    def rates(self) -> Rates:
        """A function that computes the rates at a state, compiled in double precision."""

        @jax.jit
        def compute_rates(values: jax.Array | np.ndarray) -> jax.Array:
            return jnp.stack(list(self.equations(dict(zip(self.states, values, strict=True))).values()))

        def rates(values: np.ndarray) -> np.ndarray:
            with jax.enable_x64(True):
                return np.asarray(compute_rates(np.asarray(values, np.float64)))

        return rates


def read_equations() -> tuple[Equation, ...]:
    """Reads the equations of `odebench.csv`."""
    with (Path(__file__).parent / "odebench.csv").open(newline="", encoding="utf-8") as file:
        return tuple(map(equation, csv.DictReader(file)))


def equation(row: dict[str, str]) -> Equation:
    first, second = (tuple(map(float, row[name].split())) for name in ("start", "other_start"))
    rates = {f"x{index}": text for index, text in enumerate(row["rates"].split(";"))}
    return Equation(int(row["number"]), row["what"], Equations.of(rates), (first, second))


def solve_equation(equation: Equation, times: np.ndarray) -> list[np.ndarray]:
    """Solves both trajectories at times from 0 on; each has shape `(time, state)`.

    The relative tolerance is 1e-10; ODEBench has 1e-5.

    **Raises:** `RuntimeError` if a solve fails.
    """
    from scipy.integrate import solve_ivp

    rates = equation.rates()
    trajectories: list[np.ndarray] = []
    for start in equation.starts:
        span = (0, times[-1])
        done = solve_ivp(lambda t, x: rates(x), span, start, method="LSODA", t_eval=times, rtol=1e-10, atol=1e-12)
        if not done.success:
            raise RuntimeError(f"ODEBench {equation.number} can't be solved: {done.message}")
        trajectories.append(done.y.T)
    return trajectories


def write_table(equation: Equation, path: Path) -> None:
    """Writes both trajectories of an equation, named 0 and 1: 150 rows on [0, 10], without noise."""
    import pandas as pd

    times = np.linspace(0, LAST_SOLVED_TIME, ROWS_OF_EQUATION)
    frames = [
        pd.DataFrame({"trajectory": name, "t": times, **dict(zip(equation.states, states.T, strict=True))})
        for name, states in enumerate(solve_equation(equation, times))
    ]
    pd.concat(frames).to_csv(path, index=False)


# Reads a figure; None stands for values that are not finite, as in `summary.json`.
Read = Callable[[Json], float | None]
TANKS_TABLE = "table 2 of doi.org/10.1155/2021/6613425, on the rig's second record"
SAME_RUN = "the same run, same rows"


@dataclass(frozen=True)
class Figure:
    """A figure for comparison: its value, perhaps from the summary of the same run, and its source.

    `comparable` is false if it was measured on other rows than ours: it is shown without an outcome.
    """

    value: float | Read
    whose: str
    comparable: bool = True

    def of(self, summary: Json) -> float | None:
        return self.value(summary) if callable(self.value) else self.value


@dataclass(frozen=True)
class Measure:
    """A measure: its function of `summary.json`, whether lower is better, and figures for comparison."""

    what: str
    read: Read
    figures: tuple[Figure, ...] = ()
    lower: bool = True


@dataclass(frozen=True)
class Protocol:
    """A fit by one command, and its measures.

    - `words`: the words of the command, without the path of the table.
    - `measures`: the measures of the run.
    - `file`: the table, below the folder of `--data`; None if `make` writes it.
    - `make`: writes the table.
    - `judge`: computes further measures of a run's directory; added to the summary as `judged`.
    - `source`: the publisher of the data.
    """

    words: tuple[str, ...]
    measures: tuple[Measure, ...]
    file: str | None = None
    make: Callable[[Path], None] | None = None
    judge: Callable[[Path], dict[str, float | None]] | None = None
    source: str = ""


def read_score(split: str, key: str) -> Read:
    return lambda summary: summary["metrics"][split][key]


def simple(model: str) -> Read:
    """Reads the test RMSE of a simple model of the same run."""
    return lambda summary: summary["baselines"][model]["test"]["rmse"]


def table_columns(inputs: str, states: str, *more: str) -> tuple[str, ...]:
    return ("data=table", f"data.inputs=[{inputs}]", f"data.states=[{states}]", *more)


def judge_run(key: str) -> Read:
    return lambda summary: summary["judged"][key]


def mean_square(split: str) -> Read:
    """Reads the mean squared error, from its root."""

    def read(summary: Json) -> float | None:
        root = read_score(split, "rmse")(summary)
        return None if root is None else root**2

    return read


def van_der_pol_protocol(times: Callable[[], np.ndarray], what: str, published: float) -> Protocol:
    """Fits 25 rows with noise, and forecasts another 25."""
    return Protocol(
        ("data=table", "data.time=t", "data.states=[x,y]", "data.split.test=0.5", "data.split.validation=0"),
        (Measure(f"mean squared error of the forecast, {what}", mean_square("test"), (Figure(published, GP_ODE),)),),
        make=lambda path: write_van_der_pol(path, times()),
        source="arXiv 2106.10905",
    )


def odebench(equation: Equation) -> Protocol:
    """Fits the first trajectory, and simulates the second from its start."""
    return Protocol(
        (
            "data=table", "data.time=t", f"data.states=[{','.join(equation.states)}]", "data.trajectory=trajectory",
            "data.split.by=trajectory", "data.split.validation=0", "data.split.test_trajectories=['1']",
        ),
        (
            Measure(f"{equation.what}, R² of the fitted trajectory", read_score("train", "r2"), lower=False),
            Measure(f"{equation.what}, R² from the other start", read_score("test", "r2"), lower=False),
        ),
        make=lambda path: write_table(equation, path),
        source="ODEBench, arXiv 2310.05573",
    )  # fmt: skip


RMSE = read_score("test", "rmse")
GP_ODE = "GP-ODE with shooting, arXiv 2106.10905"
OF_1024 = ("data.split.test=0.3164", "data.split.validation=0.1367")
PROTOCOLS: dict[str, Protocol] = {
    "cascaded_tanks": Protocol(
        ("experiment=cascaded_tanks",),
        (
            Measure(
                "simulation RMSE [V], rows 701-1,024",
                RMSE,
                (
                    Figure(simple("linear"), f"linear ODE, {SAME_RUN}"),
                    Figure(0.757, f"best linear approximation, {TANKS_TABLE}", comparable=False),
                    Figure(0.540, f"Volterra series, {TANKS_TABLE}", comparable=False),
                    Figure(0.343, f"nonlinear state space, {TANKS_TABLE}", comparable=False),
                ),
            ),
        ),
        file="cascaded_tanks/estimation.csv",
        source="doi.org/10.4121/12960104",
    ),
    "heat_exchanger": Protocol(
        table_columns("q", "th", "data.time=ts", "data.split.test=0.25", "data.split.validation=0.15"),
        (
            Measure(
                "simulation RMSE [°C], rows 3,001-4,000",
                RMSE,
                (Figure(simple("state-space"), f"linear state-space model, {SAME_RUN}"),),
            ),
        ),
        file="heat_exchanger/exchanger.csv",
        source="DaISy collection, homes.esat.kuleuven.be/~smc/daisy",
    ),
    "robot_arm": Protocol(
        table_columns("u", "y", "data.step=1", *OF_1024),
        (
            Measure(
                "simulation RMSE, rows 701-1,024",
                RMSE,
                (Figure(simple("state-space"), f"linear state-space model, {SAME_RUN}"),),
            ),
        ),
        file="robot_arm/robot_arm.csv",
        source="DaISy collection, homes.esat.kuleuven.be/~smc/daisy",
    ),
    "van_der_pol_regular": van_der_pol_protocol(regular_times, "regular times", 0.13),
    "van_der_pol_irregular": van_der_pol_protocol(random_times, "random times", 0.21),
    "fitzhugh_nagumo": Protocol(
        ("data=table", "data.time=t", "data.states=[x,y]", "data.split.test=0"),
        (
            Measure(
                "mean squared error where nothing was measured",
                judge_run("mse"),
                (Figure(0.07, GP_ODE, comparable=False),),
            ),
        ),
        make=write_neuron,
        judge=judge_neuron,
        source="arXiv 2106.10905",
    ),
    "lorenz": Protocol(
        (
            "data=table",
            "data.time=t",
            "data.states=[x,y,z]",
            "data.split.test=0",
            "training.window=50",
            "evaluation.window=50",
        ),
        (
            Measure(
                "divergence from the attractor over 10,000 rows",
                judge_run("divergence"),
                (Figure(judge_run("other_orbit"), "another orbit of Lorenz's equations"),),
            ),
        ),
        make=write_lorenz,
        judge=judge_lorenz,
        source="E. N. Lorenz, J. Atmos. Sci. 20 (1963)",
    ),
    **{f"odebench_{equation.number}": odebench(equation) for equation in read_equations()},
}


HEAD = "| protocol | measure | ours | other | whose | outcome |\n|---|---|---|---|---|---|"
# Number of equations in ODEBench, and shares of them without noise with R² above 0.9 [%], for the fitted trajectory and
# from the other start.
EQUATIONS = 63
ODEFORMER = (66.4, 32.8)
GOOD_R2_SHARE = 0.9


def table_rows(name: str, protocol: Protocol, summary: Json) -> list[str]:
    """Formats the lines of a table for a finished run."""
    lines: list[str] = []
    for measure in protocol.measures:
        ours = measure.read(summary)
        for figure in measure.figures or (None,):
            lines.append(line(name, measure, ours, figure, summary))
    return lines


def line(name: str, measure: Measure, ours: float | None, figure: Figure | None, summary: Json) -> str:
    cells = [name, measure.what, show_value(ours)]
    if figure is None:
        return f"| {' | '.join([*cells, '-', '-', '-'])} |"
    other = figure.of(summary)
    verdict = outcome(ours, other, measure.lower) if figure.comparable else "other rows"
    return f"| {' | '.join([*cells, show_value(other), figure.whose, verdict])} |"


def show_value(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def outcome(ours: float | None, other: float | None, lower: bool) -> str:
    """Returns `win`, `loss` or `equal` for the figures as printed; one that is not finite loses."""
    if ours is None or other is None:
        return "loss" if ours is None else "win"
    mine, theirs = float(show_value(ours)), float(show_value(other))
    return "equal" if mine == theirs else "win" if (mine < theirs) == lower else "loss"


def odebench_lines(summaries: Iterable[Json]) -> list[str]:
    """Compares the share of the run ODEBench equations with R² above 0.9 with ODEFormer's on all equations."""
    finished = list(summaries)
    lines: list[str] = []
    for split, what, published in zip(("train", "test"), ("fitted trajectory", "other start"), ODEFORMER, strict=True):
        values = [summary["metrics"][split]["r2"] for summary in finished]
        good = sum(value is not None and value > GOOD_R2_SHARE for value in values)
        share = 100 * good / len(values)
        lines.append(
            f"| ODEBench, {len(values)} of {EQUATIONS} equations | R² above {GOOD_R2_SHARE}, {what} | {good} of "
            f"{len(values)} "
            f"({share:.0f} %) | {published} % | ODEFormer on all {EQUATIONS}, arXiv 2310.05573 | "
            f"{outcome(share, published, lower=False) if len(values) == EQUATIONS else 'other equations'} |"
        )
    return lines

"""Protocols: which command fits which data, what is measured, and the table of figures beside others."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .problems import (
    Equation,
    judge_lorenz,
    judge_neuron,
    random_times,
    read_equations,
    regular_times,
    write_lorenz,
    write_neuron,
    write_table,
    write_van_der_pol,
)

Summary = dict[str, Any]
# None stands for what is not finite, as in `summary.json`.
Read = Callable[[Summary], float | None]
TANKS_TABLE = "table 2 of doi.org/10.1155/2021/6613425, on the rig's second record"
SAME_RUN = "the same run, same rows"


@dataclass(frozen=True)
class Figure:
    """A figure to compare with: its value, perhaps from the summary of the same run, and whose it is.

    `comparable` is false where it was measured on other rows than ours: it is shown, and nobody wins.
    """

    value: float | Read
    whose: str
    comparable: bool = True

    def of(self, summary: Summary) -> float | None:
        return self.value(summary) if callable(self.value) else self.value


@dataclass(frozen=True)
class Measure:
    """What is measured: how it is read from `summary.json`, whether lower is better, and figures beside it."""

    what: str
    read: Read
    figures: tuple[Figure, ...] = ()
    lower: bool = True


@dataclass(frozen=True)
class Protocol:
    """A fit by one command, and its measures.

    - `words`: of the command, without the path of the table.
    - `measures`: what is read from the run.
    - `file`: the table, below the folder of `--data`; None if `make` writes it.
    - `make`: writes the table.
    - `judge`: what else is measured of a run's directory; added to the summary as `judged`.
    - `source`: who publishes the data.
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
    """The test RMSE of a simple model of the same run."""
    return lambda summary: summary["baselines"][model]["test"]["rmse"]


def table_columns(inputs: str, states: str, *more: str) -> tuple[str, ...]:
    return ("data=table", f"data.inputs=[{inputs}]", f"data.states=[{states}]", *more)


def judge_run(key: str) -> Read:
    return lambda summary: summary["judged"][key]


def mean_square(split: str) -> Read:
    """The mean squared error, from its root."""

    def read(summary: Summary) -> float | None:
        root = read_score(split, "rmse")(summary)
        return None if root is None else root**2

    return read


def van_der_pol_protocol(times: Callable[[], Any], what: str, published: float) -> Protocol:
    """Fits 25 rows with noise, and forecasts as many."""
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
            "train.window=50",
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
# Equations in ODEBench. Of all of them without noise, the share with R² above 0.9 [%], of the fitted trajectory and
# from the other start.
EQUATIONS = 63
ODEFORMER = (66.4, 32.8)
GOOD_R2_SHARE = 0.9


def table_rows(name: str, protocol: Protocol, summary: Summary) -> list[str]:
    """The lines of a table for a finished run."""
    lines = []
    for measure in protocol.measures:
        ours = measure.read(summary)
        for figure in measure.figures or (None,):
            lines.append(line(name, measure, ours, figure, summary))
    return lines


def line(name: str, measure: Measure, ours: float | None, figure: Figure | None, summary: Summary) -> str:
    cells = [name, measure.what, show_value(ours)]
    if figure is None:
        return f"| {' | '.join([*cells, '-', '-', '-'])} |"
    other = figure.of(summary)
    verdict = outcome(ours, other, measure.lower) if figure.comparable else "other rows"
    return f"| {' | '.join([*cells, show_value(other), figure.whose, verdict])} |"


def show_value(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def outcome(ours: float | None, other: float | None, lower: bool) -> str:
    """`win`, `loss` or `equal`, of the figures as they are printed; one that is not finite loses."""
    if ours is None or other is None:
        return "loss" if ours is None else "win"
    mine, theirs = float(show_value(ours)), float(show_value(other))
    return "equal" if mine == theirs else "win" if (mine < theirs) == lower else "loss"


def odebench_lines(summaries: Iterable[Summary]) -> list[str]:
    """How many of the equations of ODEBench that were run have an R² above 0.9, beside ODEFormer on all of them."""
    found = list(summaries)
    lines = []
    for split, what, published in zip(("train", "test"), ("fitted trajectory", "other start"), ODEFORMER, strict=True):
        values = [each["metrics"][split]["r2"] for each in found]
        good = sum(value is not None and value > GOOD_R2_SHARE for value in values)
        share = 100 * good / len(values)
        lines.append(
            f"| ODEBench, {len(values)} of {EQUATIONS} equations | R² above {GOOD_R2_SHARE}, {what} | {good} of "
            f"{len(values)} "
            f"({share:.0f} %) | {published} % | ODEFormer on all {EQUATIONS}, arXiv 2310.05573 | "
            f"{outcome(share, published, lower=False) if len(values) == EQUATIONS else 'other equations'} |"
        )
    return lines

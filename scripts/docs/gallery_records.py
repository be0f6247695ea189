"""Subjects of the gallery for which networks learn the rates: pictures, and figures beside other models'."""

from collections.abc import Callable, Sequence
from typing import Any

import gallery_data as true
import numpy as np
import pandas as pd
from gallery_runs import DOTS, Rows, Run, Subject, by_error

from node_fit.plots.curves import ACCENTS, INK, QUIET

TABLE_2 = "[table 2](https://doi.org/10.1155/2021/6613425), on the rig's other record"


def draw_record(
    time: str, state: str, drive: str, labels: tuple[str, str, str], shown: tuple[float, float]
) -> Callable:
    """Rows of a driven record around the first test row, below them its input."""

    def draw(figure: Any, runs: Sequence[Run]) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        frame, files = runs[0].predictions(), runs[0].folder.parent
        inputs = pd.concat(pd.read_csv(path) for path in files.glob("*.csv"))
        frame, inputs = (each[each[time].between(*shown)] for each in (frame, inputs))
        for split, colour in (("train", ACCENTS[0]), ("validation", ACCENTS[2]), ("test", ACCENTS[1])):
            part = frame[frame["split"] == split]
            if len(part):
                above.plot(part[time], part[state], **{**DOTS, "markersize": 2}, color=INK)
                above.plot(
                    part[time], part[f"{state}_predicted"], color=colour, linewidth=1, label=f"{split}, simulated"
                )
        below.plot(inputs[time], inputs[drive], color=QUIET, linewidth=0.8, drawstyle="steps-post")
        above.legend(ncols=3)
        above.set(ylabel=labels[0])
        below.set(ylabel=labels[1], xlabel=labels[2])

    return draw


def rows_tanks(runs: Sequence[Run]) -> Rows:
    mine = f"{runs[0].score('test', 'rmse'):.2f} V"
    linear = f"{runs[0].other('linear', key='rmse'):.2f} V"
    what = "simulation RMSE"
    return [
        (what, mine, "0.757 V", f"best linear approximation, {TABLE_2}"),
        (what, mine, "0.540 V", f"Volterra series, {TABLE_2}"),
        (what, mine, "0.343 V", f"nonlinear state space, {TABLE_2}"),
        (what, mine, linear, "linear ODE of the same run, same rows"),
    ]


def rows_exchanger(runs: Sequence[Run]) -> Rows:
    def compared(model: str, whose: str) -> tuple[str, str, str, str]:
        mine, other = runs[0].score("test", "rmse"), runs[0].other(model, key="rmse")
        return "simulation RMSE on 1,000 rows", f"{mine:.2f} °C", f"{other:.2f} °C", whose

    return [
        compared("state-space", "linear state-space model of the same run, same rows"),
        compared("linear", "linear ODE of the same run, same rows"),
        compared("mean", "the mean of the rows that were fitted"),
    ]


def draw_double(figure: Any, runs: Sequence[Run]) -> None:
    order, frame = by_error(runs[0], ["upper", "lower"]), runs[0].predictions("test")
    chosen = {"best": order[0], "median": order[len(order) // 2], "worst": order[-1]}
    for axis, (label, (_, name)) in zip(figure.subplots(1, 3, sharey=True), chosen.items(), strict=True):
        rows = frame[frame["trajectory"] == name]
        for state, colour in zip(("upper", "lower"), ACCENTS, strict=False):
            axis.plot(rows["t"], rows[state], **DOTS, color=colour)
            axis.plot(rows["t"], rows[f"{state}_predicted"], color=colour, linewidth=1, label=state)
        axis.set(title=f"{label} of {len(order)} left out", xlabel="s")
    figure.axes[0].set(ylabel="rad")
    figure.axes[0].legend()


def rows_double(runs: Sequence[Run]) -> Rows:
    channels = runs[0].summary["metrics"]["test"]["channels"]
    linear = runs[0].summary["baselines"]["linear"]["test"]["channels"]
    whose = "linear ODE of the same run, same swings"
    return [
        (f"NRMSE of `{name}`, swings left out", f"{channels[name]['nrmse']:.3f}", f"{linear[name]['nrmse']:.3f}", whose)
        for name in channels
    ]


def draw_large(figure: Any, runs: Sequence[Run]) -> None:
    order, frame = by_error(runs[0], ["angle", "speed"]), runs[0].predictions("test")
    left, right = figure.subplots(1, 2)
    picked = [order[round(share * (len(order) - 1))][1] for share in (0.1, 0.3, 0.5, 0.7, 0.9)]
    for name, colour in zip(picked, ACCENTS, strict=False):
        rows = frame[frame["trajectory"] == name]
        left.plot(rows["angle"], rows["speed"], **DOTS, color=colour)
        left.plot(rows["angle_predicted"], rows["speed_predicted"], color=colour, linewidth=1)
    left.set(title="five of them", xlabel="angle", ylabel="speed")
    errors = np.array([error for error, _ in order])
    right.hist(errors, bins=np.linspace(0, np.quantile(errors, 0.995), 60), color=ACCENTS[0])
    right.set(title=f"errors of the {len(errors):,} left out", xlabel="root mean square", yticks=[])


def rows_large(runs: Sequence[Run]) -> Rows:
    seconds = runs[0].summary["seconds"]["train"]
    ours, exact = f"{runs[0].score('test'):.3f}", f"{of_true_equations(runs[0].predictions('test')):.3f}"
    return [
        ("NRMSE, trajectories left out", ours, exact, "the true equations, from the same noisy first rows"),
        ("the same", ours, f"{runs[0].other('linear'):.3f}", "linear ODE of the same run"),
        ("seconds of training", f"{seconds:.0f}", "-", "1,000 steps on minibatches of 256"),
    ]


def of_true_equations(frame: pd.DataFrame) -> float:
    """The NRMSE of swings that the true equations simulate, each from its first measured row."""
    measured = frame[["angle", "speed"]].to_numpy().reshape(-1, true.large_data.ROWS, 2)
    states = [measured[:, 0]]
    for _ in range(true.large_data.ROWS - 1):
        states.append(true.large_data.step(states[-1]))
    off = (np.stack(states, axis=1) - measured)[:, 1:]
    return float(np.sqrt(np.mean(np.mean(off**2, axis=(0, 1)) / measured[:, 1:].var(axis=(0, 1)))))


def draw_bands(figure: Any, runs: Sequence[Run]) -> None:
    frame = runs[0].predictions("test")
    names = sorted(set(frame["trajectory"]))
    for row, name in zip(figure.subplots(len(names), 2, sharex=True), names, strict=True):
        part = frame[frame["trajectory"] == name]
        for axis, state, colour in zip(row, ("x", "y"), ACCENTS, strict=False):
            axis.fill_between(
                part["t"], part[f"{state}_lower"], part[f"{state}_upper"], color=colour, alpha=0.25, linewidth=0
            )
            axis.plot(part["t"], part[f"{state}_predicted"], color=colour, linewidth=1)
            axis.plot(part["t"], part[state], **DOTS, color=INK)
            axis.set(title=f"{state} of trajectory {name}, left out")


def rows_bands(runs: Sequence[Run]) -> Rows:
    rows = []
    for split in ("train", "validation", "test"):
        frame, inside = runs[0].predictions(split), []
        for state in ("x", "y"):
            inside += list((frame[state] >= frame[f"{state}_lower"]) & (frame[state] <= frame[f"{state}_upper"]))
        whose = {"validation": "nominal; these data set the width"}.get(split, "nominal")
        rows.append((f"share of {split} data inside", f"{np.mean(inside):.0%}", "90%", whose))
    return rows


def draw_flat(figure: Any, runs: Sequence[Run]) -> None:
    for axis, run, title in zip(
        figure.subplots(1, 2, sharey=True), runs, ("the first command", "the second"), strict=True
    ):
        frame = run.predictions("train")
        rows = frame[frame["trajectory"] == frame["trajectory"].iloc[0]]
        for state, colour in zip(("x", "y"), ACCENTS, strict=False):
            axis.plot(rows["t"], rows[state], **DOTS, color=colour)
            axis.plot(rows["t"], rows[f"{state}_predicted"], color=colour, linewidth=1.2, label=state)
        axis.set(title=f"{title}: {run.summary['diagnosis']['kind']}", xlabel="t", ylim=(-4, 4))
    figure.axes[0].legend(ncols=2)


def rows_flat(runs: Sequence[Run]) -> Rows:
    def compared(split: str, what: str) -> tuple[str, str, str, str]:
        first, second = (f"{run.score(split):.3g}" for run in runs)
        return f"NRMSE {what}, second command", second, first, "first command"

    return [compared("train", "on the fitted rows"), compared("test", "on the rows left out")]


def board(run: Run) -> pd.DataFrame:
    """The leaderboard, with the swept values in columns of their own."""
    frame = pd.read_csv(run.folder / "leaderboard.csv")
    for key in ("ridge", "seed"):
        frame[key] = frame["overrides"].str.extract(rf"{key}=([0-9.e-]+)")[0].astype(float)
    return frame


def draw_sweep(figure: Any, runs: Sequence[Run]) -> None:
    frame, axes = board(runs[0]), figure.subplots(1, 2, sharey=True)
    places = {value: place for place, value in enumerate(sorted(set(frame["ridge"])))}
    for axis, split in zip(axes, ("validation", "test"), strict=True):
        for seed, colour in zip(sorted(set(frame["seed"])), ACCENTS, strict=False):
            part = frame.loc[frame["seed"] == seed].sort_values("ridge")
            axis.plot(
                [places[value] for value in part["ridge"]],
                part[f"{split}_nrmse"],
                "o-",
                color=colour,
                markersize=4,
                linewidth=0.8,
                label=f"seed {seed:.0f}",
            )
        axis.set(title=f"{split} data", xlabel="penalty.ridge", yscale="log")
        axis.set_xticks(list(places.values()), [f"{value:g}" for value in places])
    axes[0].set(ylabel="NRMSE")
    axes[0].legend()


def rows_sweep(runs: Sequence[Run]) -> Rows:
    frame = board(runs[0]).sort_values("validation_nrmse")
    best, none = frame.iloc[0], frame.loc[frame["ridge"] == 0, "test_nrmse"].median()
    what = f"test NRMSE of the best on validation data (`penalty.ridge={best['ridge']:g}`)"
    return [
        (what, f"{best['test_nrmse']:.3g}", f"{none:.3g}", "median without a prior"),
        (
            "the same",
            f"{best['test_nrmse']:.3g}",
            f"{frame['test_nrmse'].min():.3g}",
            "lowest of all, seen only afterwards",
        ),
        ("compiled programs", f"{frame['compiles'].max():.0f}", f"{len(frame)} jobs", "in the sweep"),
    ]


SUBJECTS = {
    "tanks": Subject(
        draw_record("t_s", "y_V", "u_V", ("level [V]", "pump [V]", "s"), (2000, 4100)),
        rows_tanks,
        needs=("cascaded_tanks/estimation.csv",),
    ),
    "heat_exchanger": Subject(
        draw_record("ts", "th", "q", ("outlet [°C]", "flow", "s"), (2850, 3350)),
        rows_exchanger,
        needs=("heat_exchanger/exchanger.csv",),
    ),
    "double_pendulum": Subject(draw_double, rows_double, makes=("double_pendulum.csv",)),
    "large": Subject(draw_large, rows_large, makes=("swings.parquet",)),
    "bands": Subject(draw_bands, rows_bands),
    "flat": Subject(draw_flat, rows_flat, makes=("oscillations.csv",)),
    "sweep": Subject(draw_sweep, rows_sweep),
}

"""Subjects of the gallery whose equations are known, or half known: pictures, and figures beside published ones."""

import json
from collections.abc import Sequence
from typing import Any

import gallery_data as true
import numpy as np
import pandas as pd
from gallery_runs import DOTS, Rows, Run, Subject, constants, fine

import node_fit
from node_fit.plots.curves import ACCENTS, INK, QUIET

TRUTH = "the truth, with which the data were made"


def lynx_hare_data(run: Run) -> node_fit.Dataset:
    path = run.folder.parent / "data" / "lynx_hare.csv"
    return node_fit.read_table(path, time="year", states=["hare", "lynx"])


def draw_lynx_hare(figure: Any, runs: Sequence[Run]) -> None:
    data, (left, right) = lynx_hare_data(runs[0]), figure.subplots(1, 2, width_ratios=(1.7, 1))
    curve, ts = runs[0].model().predict(data, fine(data))[0], fine(data)[0]
    for index, name in enumerate(data.states):
        left.plot(data.ts[0], data.ys[0, :, index], **DOTS, color=ACCENTS[index])
        left.plot(ts, curve[:, index], color=ACCENTS[index], label=name)
    right.plot(*data.ys[0].T, **DOTS, color=QUIET)
    right.plot(*curve.T, color=INK, linewidth=1)
    left.set(ylabel="thousand pelts a year", xticks=range(1900, 1921, 5))
    left.legend()
    right.set(xlabel="hare", ylabel="lynx")


def rows_lynx_hare(runs: Sequence[Run]) -> Rows:
    frame = runs[0].predictions()
    off = [np.log(frame[f"{name}_predicted"] / frame[name]) for name in ("hare", "lynx")]
    names = {"a": "growth of hares [1/year]", "b": "hares per lynx", "c": "loss of lynx [1/year]", "d": "lynx per hare"}
    both = ("0.55 and 0.55", "0.028 and 0.028", "0.84 and 0.80", "0.026 and 0.024")
    error = f"{np.sqrt(np.mean(np.square(off))):.3f}"
    return [
        *constants(runs[0], names, both, "Howard (2009) and Carpenter (2018)"),
        ("root mean square in the logarithm", error, "0.25", "estimate of the noise, Carpenter (2018)"),
    ]


KINETIC = ("obcar", "obcry", "ob10", "oohb10", "ozea")


def draw_kinetics(figure: Any, runs: Sequence[Run]) -> None:
    path = next(runs[0].folder.parent.glob("*.tsv"))
    data = node_fit.read_table(
        path, time="time", states=KINETIC, trajectory="simulationConditionId", observable="observableId",
        value="measurement", covariates={"slow": {"model1_data3": 1, "model1_data6": 1, "default": 0}},
    )  # fmt: skip
    ts, frame = fine(data), runs[0].predictions()
    curves = runs[0].model().predict(data, ts)
    axes = figure.subplots(2, 3, sharex=True).flat
    for axis, name, t, curve in zip(axes, data.trajectories, ts, curves, strict=True):
        rows = frame.loc[frame["trajectory"] == name]
        for index, state in enumerate(KINETIC):
            if np.isfinite(rows[state].to_numpy(float)).any():
                axis.plot(rows["time"], rows[state], **DOTS, color=ACCENTS[index])
                axis.plot(t, curve[:, index], color=ACCENTS[index], linewidth=1, label=state)
        axis.set(title=f"condition {name[-1]}")
        axis.legend(fontsize=6.5)


def rows_kinetics(runs: Sequence[Run]) -> Rows:
    channels = runs[0].summary["metrics"]["train"]["channels"]
    found = ", ".join(f"{channels[name]['nrmse']:.2f}" for name in KINETIC)
    return [
        (
            f"NRMSE of {', '.join(KINETIC)}",
            found,
            "0.13 to 0.31 per observable",
            "mechanistic model, Bruno et al. (2016)",
        )
    ]


def draw_doses(figure: Any, runs: Sequence[Run]) -> None:
    folder = runs[0].folder.parent
    data = node_fit.read_table(folder / "blood.csv", time="h", states=["plasma"], trajectory="person")
    events = pd.read_csv(folder / "doses.csv")
    data = node_fit.with_events(data, events.rename(columns={"person": "trajectory"}))
    ts, frame = fine(data), runs[0].predictions()
    curves = runs[0].model().predict(data, ts)
    axes = figure.subplots(2, 3, sharex=True, sharey=True).flat
    for index, (axis, name) in enumerate(zip(axes, data.trajectories, strict=True)):
        split = frame.loc[frame["trajectory"] == name, "split"].iloc[0]
        given = events.loc[events["person"] == name]
        axis.plot(ts[index], curves[index, :, 0], color=ACCENTS[1 if split == "test" else 0], linewidth=1)
        axis.plot(data.ts[index], data.ys[index, :, 0], **DOTS, color=INK)
        for hour in given["h"]:
            axis.axvline(hour, ymax=0.06, color=ACCENTS[2], linewidth=2)
        axis.set(
            title=f"{name}, {given['add'].iloc[0]:.0f} mg, {split}",
            xlabel="h" if index > 2 else "",
            xticks=range(0, 25, 8),
        )
    figure.supylabel("mg/l", fontsize=8.5)


def rows_doses(runs: Sequence[Run]) -> Rows:
    names = {"ka": "absorption [1/h]", "ke": "elimination [1/h]", "V": "volume [l]"}
    others = [f"{each:g}" for each in (true.ABSORPTION, true.ELIMINATION, true.VOLUME)]
    return [
        *constants(runs[0], names, others, TRUTH),
        (
            "NRMSE on a person left out",
            f"{runs[0].score('test'):.3f}",
            "-",
            "noise of 5 % of each value, and 0.02 mg/l",
        ),
    ]


def found_uptake(run: Run, gut: np.ndarray) -> np.ndarray:
    """What the network and its factor make of amounts in the gut of a typical patient [mg/h]."""
    rates = run.model().vector_field
    return np.array([-float(rates(0.0, np.array([0.0, each]))[1]) for each in gut])


def draw_population(figure: Any, runs: Sequence[Run]) -> None:
    frame = pd.read_csv(runs[0].folder / "subjects.csv", dtype={"subject": str})
    data = node_fit.read_population(runs[0].folder)
    left, middle, right = figure.subplots(1, 3)
    ordered = frame.groupby("subject")["observed"].max().sort_values().index
    for name, colour in zip((ordered[2], ordered[12], ordered[-3]), ACCENTS, strict=False):
        own = frame.loc[frame["subject"] == name]
        left.plot(own["TIME"], own["observed"], **DOTS, color=colour)
        ts = np.linspace(0, 9, 120)
        patient = node_fit.Dataset.from_arrays(ts, np.full((1, 120, 1), np.nan), states=["c"], trajectories=[name])
        dosed = node_fit.with_events(patient, [{"time": 0.0, "state": "gut", "add": 100.0}])
        left.plot(ts, data.predict(dosed).ys[0, :, 0], color=colour, linewidth=1)
    left.set(title="three of 24 patients", xlabel="h", ylabel="mg/l")
    middle.plot(frame["individual"], frame["observed"], **DOTS, color=INK)
    middle.axline((0, 0), slope=1, color=ACCENTS[0], linewidth=1)
    middle.set(title="all samples", xlabel="predicted by their own constants", ylabel="measured")
    gut = np.linspace(0, 100, 101)
    right.plot(gut, true.uptake_rate(gut), color=INK, linewidth=1, linestyle="--", label="true")
    right.plot(gut, found_uptake(runs[0], gut), color=ACCENTS[0], linewidth=1, label="network")
    right.set(title="the law that nobody knew", xlabel="in the gut [mg]", ylabel="uptake [mg/h]")
    right.legend(frameon=False)


def rows_population(runs: Sequence[Run]) -> Rows:
    found, amounts = runs[0].summary["population"], np.array([10.0, 50.0, 100.0])
    uptakes = zip(amounts, found_uptake(runs[0], amounts), true.uptake_rate(amounts), strict=True)
    variance = f"{true.BETWEEN**2:.2f}"
    return [
        *constants(runs[0], {"k": "elimination [1/h]"}, [f"{true.CLEARED:g}"], TRUTH),
        *((f"uptake of {each:g} mg [mg/h]", f"{own:.1f}", f"{law:.1f}", TRUTH) for each, own, law in uptakes),
        ("variance of the uptake between patients", f"{found['variances']['s']:.3f}", variance, TRUTH),
        ("variance of the elimination", f"{found['variances']['k']:.3f}", variance, TRUTH),
        ("noise [mg/l]", f"{found['noise']['c']['additive']:.3f}", "0.05", TRUTH),
    ]


def draw_theophylline(figure: Any, runs: Sequence[Run]) -> None:
    frame = pd.read_csv(runs[0].folder / "subjects.csv", dtype={"subject": str})
    table = pd.read_csv(runs[0].folder.parent / "theophylline.csv", dtype={"ID": str})
    doses, fit = table.loc[table["AMT"] > 0].set_index("ID")["AMT"], node_fit.read_population(runs[0].folder)
    left, middle, right = figure.subplots(1, 3)
    ts = np.linspace(0, 25, 150)
    ordered = frame.groupby("subject")["observed"].max().sort_values().index
    for name, colour in zip((ordered[1], ordered[6], ordered[-1]), ACCENTS, strict=False):
        own = frame.loc[frame["subject"] == name]
        left.plot(own["TIME"], own["observed"], **DOTS, color=colour)
        left.plot(ts, fit.predict(with_dose(ts, name, doses[name])).ys[0, :, 0], color=colour, linewidth=1)
    left.set(title="three of twelve subjects", xlabel="h", ylabel="mg/l", xticks=range(0, 25, 6))
    middle.plot(frame["individual"], frame["observed"], **DOTS, color=INK)
    middle.axline((0, 0), slope=1, color=ACCENTS[0], linewidth=1)
    middle.set(title="all samples", xlabel="predicted by their own constants", ylabel="measured")
    new = fit.predict(with_dose(ts, "new", doses.mean()))
    right.plot(frame["TIME"], frame["observed"], **DOTS, color=QUIET)
    right.fill_between(ts, new.lower[0, :, 0], new.upper[0, :, 0], color=ACCENTS[0], alpha=0.2, linewidth=0)
    right.plot(ts, new.ys[0, :, 0], color=ACCENTS[0], linewidth=1)
    right.set(title="a new subject, 90 %", xlabel="h", ylabel="mg/l", xticks=range(0, 25, 6))


def with_dose(ts: np.ndarray, subject: str, dose: float) -> node_fit.Dataset:
    """Times of one subject that swallows a dose at its beginning [mg]."""
    empty = np.full((1, len(ts), 1), np.nan)
    data = node_fit.Dataset.from_arrays(ts, empty, states=["c"], trajectories=[subject])
    return node_fit.with_events(data, [{"time": 0.0, "state": "depot", "add": dose}])


def rows_theophylline(runs: Sequence[Run]) -> Rows:
    found, saem, focei = runs[0].summary["population"], "nlmixr2, SAEM", "nlmixr2, FOCEI"
    logs = zip(("absorption", "clearance", "volume"), ("ka", "cl", "v"), ("0.464", "1.01", "3.46"), strict=True)
    variances = {"ka": "0.405", "cl": "0.069", "v": "0.019"}
    return [
        ("minus twice the log-likelihood, without its constants", f"{found['objective']:.2f}", "116.81", focei),
        *((f"log {what}", f"{np.log(found['fixed'][name]):.3f}", other, saem) for what, name, other in logs),
        *(
            (f"variance of log {name}", f"{found['variances'][name]:.3f}", own, focei)
            for name, own in variances.items()
        ),
        ("noise [mg/l]", f"{found['noise']['c']['additive']:.3f}", "0.695", focei),
    ]


def draw_robertson(figure: Any, runs: Sequence[Run]) -> None:
    frame = runs[0].predictions().iloc[1:]
    for axis, name, colour in zip(figure.subplots(1, 3), ("y1", "y2", "y3"), ACCENTS, strict=False):
        axis.plot(frame["t"], frame[name], **DOTS, color=colour)
        axis.plot(frame["t"], frame[f"{name}_predicted"], color=colour, linewidth=1)
        axis.set(xscale="log", title=name, xlabel="s", xticks=[1e-4, 1e-1, 1e2, 1e5])


def rows_robertson(runs: Sequence[Run]) -> Rows:
    found, frame = runs[0].summary["constants"], runs[0].predictions()
    total = frame[[f"{name}_predicted" for name in ("y1", "y2", "y3")]].to_numpy().sum(axis=1)
    published = "Robertson (1966)"
    return [
        ("k1, from a guess of 0.1", f"{found['k1']:.5g}", "0.04", published),
        ("k2, from a guess of 1e7", f"{found['k2']:.5g}", "3e7", published),
        ("k3, from a guess of 3e4", f"{found['k3']:.5g}", "1e4", published),
        ("largest error of the total amount", f"{abs(total - 1).max():.1e}", "0", "conservation of mass"),
    ]


def draw_lab(figure: Any, runs: Sequence[Run]) -> None:
    data = node_fit.read_table(
        runs[0].folder.parent / "lab.csv", time="Zeit", time_unit="h", trajectory="Charge",
        states=["Biomasse", "Glukose"],
    )  # fmt: skip
    ts, frame = fine(data), runs[0].predictions()
    curves = runs[0].model().predict(data, ts)
    axes = figure.subplots(2, 3, sharex=True, sharey=True).flat
    for number, (axis, name) in enumerate(zip(axes, data.trajectories, strict=True)):
        split = frame.loc[frame["trajectory"] == name, "split"].iloc[0]
        for index, state in enumerate(data.states):
            axis.plot(data.ts[number] - ts[number, 0], data.ys[number, :, index], **DOTS, color=ACCENTS[index])
            axis.plot(
                ts[number] - ts[number, 0], curves[number, :, index], color=ACCENTS[index], linewidth=1, label=state
            )
        axis.set(title=f"{name}, {split}", xlabel="h" if number > 2 else "")
    axes[0].legend()
    figure.supylabel("g/l", fontsize=8.5)


def rows_lab(runs: Sequence[Run]) -> Rows:
    names = {"mu": "largest growth rate [1/h]", "K": "half saturation [g/l]", "Y": "yield [g/g]"}
    return constants(runs[0], names, [f"{each:g}" for each in (true.GROWTH, true.HALF, true.YIELD)], TRUTH)


def draw_discovery(figure: Any, runs: Sequence[Run]) -> None:
    """The front of error against size, and the velocity that nobody measured: simulated, and as it was."""
    told = json.loads((runs[1].folder / "discovery.json").read_text())
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.5))
    judged = [each for each in told["ranked"] if each["error"] < 2]
    sizes, errors = ([each[key] for each in judged] for key in ("size", "error"))
    left.plot(sizes, errors, **DOTS, color=QUIET)
    front = [[each[key] for each in told["front"]] for key in ("size", "error")]
    left.step(*front, where="post", color=ACCENTS[0], linewidth=1)
    left.plot(told["ranked"][0]["size"], told["ranked"][0]["error"], marker="o", markerfacecolor="none", color=INK)
    left.set(xlabel="size", ylabel="error", yscale="log")
    curves, table = told["curves"], pd.read_csv(runs[1].folder.parent / "data" / "pendulum.csv")
    rows = table.loc[table["trajectory"].astype(str) == curves["record"]]
    right.plot(rows["t"], rows["velocity"], **DOTS, color=ACCENTS[1], label="velocity, not given")
    right.plot(curves["fine"], curves["systems"][0][1], color=ACCENTS[1], linewidth=1, label="hidden state")
    right.set(xlabel="t [s]", ylabel="rad/s")
    right.legend()


def rows_discovery(runs: Sequence[Run]) -> Rows:
    names = {"c1": "damping [1/s]", "c2": "of the torque [1/(kg m²)]", "c3": "of the sine [1/s²]"}
    return [
        *constants(runs[1], names, ("-0.5", "1", "-9.81"), TRUTH),
        ("NRMSE of five other swings", f"{runs[1].score('test'):.3f}", f"{runs[0].score('test'):.3f}", "the network"),
    ]


SUBJECTS = {
    "lynx_hare": Subject(draw_lynx_hare, rows_lynx_hare),
    "discovery": Subject(draw_discovery, rows_discovery),
    "kinetics": Subject(draw_kinetics, rows_kinetics, needs=("carotenoids/measurementData_Bruno_JExpBot2016.tsv",)),
    "doses": Subject(draw_doses, rows_doses, makes=("blood.csv", "doses.csv")),
    "theophylline": Subject(draw_theophylline, rows_theophylline, needs=("theophylline/theophylline.csv",)),
    "population": Subject(draw_population, rows_population, makes=("uptake.csv",)),
    "robertson": Subject(draw_robertson, rows_robertson),
    "lab_table": Subject(draw_lab, rows_lab, makes=("lab.csv",)),
}

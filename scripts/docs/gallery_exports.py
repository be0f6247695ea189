"""The subject of the gallery whose model goes elsewhere: compiled C, and an FMU in FMPy, on the records of its run."""

import functools
import io
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from gallery_runs import DOTS, Rows, Run, Subject

import node_fit
from node_fit.export.trials import load_module
from node_fit.plots.curves import ACCENTS, INK

START_ROWS = 10  # that the start is read from, before the first that is predicted


class Elsewhere(NamedTuple):
    """Predictions of the run, with columns `c` and `fmu` beside them, and the seconds of the processor for each way."""

    frame: pd.DataFrame
    seconds: dict[str, float]


@functools.cache
def simulated_elsewhere(folder: Path) -> Elsewhere:
    """Simulates each part of a run's record by its exports.

    **Arguments:** `folder`: that of the run, beside which its exports lie.
    """
    frame, place = pd.read_csv(folder / "predictions.csv"), folder.parent
    table, parts = pd.read_csv(place / "exchanger.csv"), {}
    for split, rows in frame.groupby("split", sort=False):
        begin = rows["ts"][rows["th_predicted"].notna()].iloc[0]
        parts[str(split)] = table[(table["ts"] >= begin - START_ROWS) & (table["ts"] <= rows["ts"].iloc[-1])]
    seconds = {}
    for name, simulate in (("c", by_c), ("fmu", by_fmu)):
        found, seconds[name] = simulate(place, parts)
        frame = frame.merge(found.rename(columns={"th": name, "trajectory": "split"}), on=["split", "ts"], how="left")
    own, data = node_fit.load(folder / "model.safetensors"), []
    for part in parts.values():
        data.append(node_fit.from_frame(part, time="ts", states=["th"], inputs=["q"]))
        own.predict(data[-1])
    began = cpu_seconds()
    for each in data:
        own.predict(each)
    return Elsewhere(frame, seconds | {"predict": cpu_seconds() - began})


def cpu_seconds() -> float:
    """Seconds of the processor so far, with those of finished children; others may share the machine."""
    return sum(os.times()[:4])


def by_c(place: Path, parts: dict[str, pd.DataFrame]) -> tuple[pd.DataFrame, float]:
    """What the compiled program predicts of the records, and its seconds."""
    folder = place / "exchanger_c"
    subprocess.run(["cc", "-std=c99", "-O2", "main.c", "model.c", "-lm", "-o", "model"], cwd=folder, check=True)
    given = pd.concat(part.assign(trajectory=name) for name, part in parts.items()).to_csv(index=False)
    began = cpu_seconds()
    done = subprocess.run([folder / "model"], input=given, capture_output=True, text=True, check=True)
    return pd.read_csv(io.StringIO(done.stdout)), cpu_seconds() - began


def by_fmu(place: Path, parts: dict[str, pd.DataFrame]) -> tuple[pd.DataFrame, float]:
    """What FMPy predicts of the records by the unit of version 2.0 in Co-Simulation, and its seconds."""
    import fmpy
    from fmpy.fmi2 import FMU2Slave

    path = str(place / "exchanger_fmu" / "model_fmi2.fmu")
    described, start = fmpy.read_model_description(path), load_module(place / "exchanger_numpy" / "model.py").start
    number = {each.name: each.valueReference for each in described.modelVariables}
    states = [each.valueReference for each in described.modelVariables if each.causality == "local" and each.start]
    found, began = [], cpu_seconds()
    for name, part in parts.items():
        unit = cast(FMU2Slave, fmpy.instantiate_fmu(fmpy.extract(path), described, fmi_type="CoSimulation"))
        row, values = start(part["ts"], part["th"], part["q"])
        ts, flow = part["ts"].to_numpy()[row:], part["q"].to_numpy()[row:]
        unit.setupExperiment(startTime=ts[0])
        unit.enterInitializationMode()
        unit.setReal(states, list(values))
        unit.exitInitializationMode()
        predicted = unit.getReal([number["th"]])
        for step in range(len(ts) - 1):
            unit.setReal([number["q"]], [flow[step]])
            unit.setRealInputDerivatives(
                [number["q"]], [1], [(flow[step + 1] - flow[step]) / (ts[step + 1] - ts[step])]
            )
            unit.doStep(ts[step], ts[step + 1] - ts[step])
            predicted += unit.getReal([number["th"]])
        unit.terminate()
        unit.freeInstance()
        found.append(pd.DataFrame({"trajectory": name, "ts": ts, "th": predicted}))
    return pd.concat(found), cpu_seconds() - began


def draw_elsewhere(figure: Any, runs: Sequence[Run]) -> None:
    frame = simulated_elsewhere(runs[0].folder).frame
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    rows = frame[(frame["split"] == "test") & (frame["ts"] < 3400)]
    left.plot(rows["ts"], rows["th"], **{**DOTS, "markersize": 2}, color=INK, label="measured")
    left.plot(rows["ts"], rows["c"], color=ACCENTS[0], linewidth=2.2, alpha=0.6, label="compiled C")
    left.plot(rows["ts"], rows["fmu"], color=ACCENTS[1], linewidth=0.9, linestyle="--", label="FMU in FMPy")
    left.set(title="test rows", ylabel="outlet [°C]", xlabel="s")
    left.legend(ncols=3)
    for name, label, colour in (("c", "compiled C", ACCENTS[0]), ("fmu", "FMU in FMPy", ACCENTS[1])):
        off = (frame[name] - frame["th_predicted"]).abs().clip(lower=1e-7)
        right.plot(frame["ts"], off, color=colour, linewidth=0.7, alpha=0.8, label=label)
    right.set(title="off predictions.csv [°C]", xlabel="s", yscale="log")


def rows_elsewhere(runs: Sequence[Run]) -> Rows:
    frame, seconds = simulated_elsewhere(runs[0].folder)
    test = frame[frame["split"] == "test"]
    rmse = {name: float(np.sqrt(np.mean((test[name] - test["th"]) ** 2))) for name in ("c", "fmu", "th_predicted")}
    far = {name: float((frame[name] - frame["th_predicted"]).abs().max()) for name in ("c", "fmu")}
    apart = float((frame["c"] - frame["fmu"]).abs().max())
    whose = "the run's own RMSE on its test rows; predictions.csv is in single precision"
    count = f"{frame['c'].notna().sum():,} rows"
    return [
        (
            f"largest difference from predictions.csv, compiled C, {count}",
            f"{far['c']:.1g} °C",
            f"{rmse['th_predicted']:.2f} °C",
            whose,
        ),
        (
            "the same, FMU in FMPy",
            f"{far['fmu']:.1g} °C",
            f"{apart:.1g} °C",
            "largest difference of the two from each other",
        ),
        (
            "simulation RMSE on 1,000 test rows, C and FMU",
            f"{rmse['c']:.4f} and {rmse['fmu']:.4f} °C",
            f"{rmse['th_predicted']:.4f} °C",
            "predictions.csv",
        ),
        (
            "seconds for all rows, compiled C, with reading and writing",
            f"{seconds['c']:.2f}",
            f"{seconds['predict']:.2f}",
            "`predict` of node_fit, compiled before",
        ),
        (
            "the same, FMU in FMPy",
            f"{seconds['fmu']:.2f}",
            f"{seconds['predict']:.2f}",
            "`predict` of node_fit, compiled before",
        ),
    ]


SUBJECTS = {
    "elsewhere": Subject(draw_elsewhere, rows_elsewhere, needs=("heat_exchanger/exchanger.csv",)),
}

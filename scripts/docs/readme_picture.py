"""The picture at the top of the README: four systems, each fitted by one command.

    python scripts/docs/readme_picture.py

`--runs DIR` keeps the runs, and uses those that are there already.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from matplotlib.axes import Axes

import node_fit
from node_fit.plots.curves import ACCENTS, new_figure, save_figure, use_style

ROOT = Path(__file__).parents[2]
DATA = ROOT / "data"
COMMANDS = {
    "spiral": ("data=spiral", "data.split.test=0.25"),
    "pendulum": ("data=pendulum",),
    "lynx_hare": ("experiment=lotka_volterra_known",),
    "house": (
        "data=table", f"data.path={DATA / 'house.csv'}", "data.time=minutes", "data.states=[room]",
        "data.inputs=[heater]", "data.split.test_from=11250",
    ),
}  # fmt: skip
MEASURED = {"linestyle": "", "marker": "o", "markersize": 3, "alpha": 0.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        runs = (given.runs or Path(folder)).absolute()
        for name, words in COMMANDS.items():
            if not (runs / name / "model.safetensors").is_file():
                subprocess.run([sys.executable, "-m", "node_fit", *words, f"hydra.run.dir={runs / name}"], check=True)
        draw(runs)


def draw(runs: Path) -> None:
    with use_style():
        figure = new_figure(8.0, 4.8)
        for (name, panel), axis in zip(PANELS.items(), figure.subplots(2, 2).flat, strict=True):
            model = node_fit.load(runs / name / "model.safetensors").typical
            panel(axis, model, np.unique(test_names(runs / name)))
        save_figure(figure, ROOT / "docs" / "systems.png")


def test_names(run: Path) -> np.ndarray:
    """The trajectories of a run's test data."""
    rows = np.genfromtxt(run / "predictions.csv", delimiter=",", dtype=str, skip_header=1, usecols=(0, 1))
    return rows[rows[:, 0] == "test", 1]


def fine(data: node_fit.Dataset) -> np.ndarray:
    return np.linspace(data.ts[:, 0], data.ts[:, -1], 400, axis=1)


def spiral(axis: Axes, model: node_fit.NeuralODE, names: np.ndarray) -> None:
    table = node_fit.read_table(DATA / "spiral.csv", time="t", states=["x", "y"], trajectory="trajectory")
    data = table.select([table.trajectories.index(name) for name in names])
    for ys, curve, colour in zip(data.ys, model.predict(data, fine(data)), ACCENTS, strict=False):
        axis.plot(*ys.T, **MEASURED, color=colour)
        axis.plot(*curve.T, color=colour)
    axis.set(title="A spiral, from two starts that the fit never saw", xlabel="x", ylabel="y")


def pendulum(axis: Axes, model: node_fit.NeuralODE, names: np.ndarray) -> None:
    columns = {"time": "t", "states": ["angle", "velocity"], "inputs": ["torque"], "trajectory": "trajectory"}
    table = node_fit.read_table(DATA / "pendulum.csv", **columns)
    data = table.select([table.trajectories.index(name) for name in names[:2]])
    for t, ys, curve, colour in zip(data.ts, data.ys, model.predict(data, fine(data)), ACCENTS, strict=False):
        axis.plot(t, ys[:, 0], **MEASURED, color=colour)
        axis.plot(fine(data)[0], curve[:, 0], color=colour)
    axis.set(title="A driven pendulum, two records that the fit never saw", xlabel="s", ylabel="rad")


def lynx_hare(axis: Axes, model: node_fit.NeuralODE, names: np.ndarray) -> None:
    data = node_fit.read_table(DATA / "lynx_hare.csv", time="year", states=["hare", "lynx"])
    curve, ts = model.predict(data, fine(data))[0], fine(data)[0]
    for index, (name, colour) in enumerate(zip(data.states, ACCENTS, strict=False)):
        axis.plot(data.ts[0], data.ys[0, :, index], **MEASURED, color=colour)
        axis.plot(ts, curve[:, index], color=colour, label=name)
    axis.legend()
    axis.set(
        title="Lynx and hare: four constants of known equations", ylabel="thousand pelts", xticks=range(1900, 1921, 5)
    )


def house(axis: Axes, model: node_fit.NeuralODE, names: np.ndarray) -> None:
    columns = {"time": "minutes", "states": ["room"], "inputs": ["heater"]}
    data = node_fit.read_table(DATA / "house.csv", **columns).after(11250 - 60)
    days = data.ts[0] / 1440
    axis.plot(days, data.ys[0, :, 0], **{**MEASURED, "markersize": 2}, color=ACCENTS[0])
    axis.plot(days, model.predict(data)[0, :, 0], color=ACCENTS[1])
    axis.set(title="A heated room, whose walls nobody measured", xlabel="days", ylabel="°C")


PANELS = {"spiral": spiral, "pendulum": pendulum, "lynx_hare": lynx_hare, "house": house}

if __name__ == "__main__":
    main()

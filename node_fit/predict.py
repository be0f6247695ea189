"""The command `python -m node_fit.predict`: predicts trajectories of new data with a fitted model."""

import argparse
import sys
from pathlib import Path

import numpy as np
from omegaconf import DictConfig, OmegaConf

from .app.config.configuration import build
from .app.config.parts import errors_of_data
from .app.console import counted
from .app.run_directory import RunDirectory, predictions_frame
from .data.dataset import Dataset
from .evaluation.failures import what_is_gone, where_not_finite
from .model.neural_ode import NeuralODE
from .runtime.compile_cache import keep_programs
from .runtime.version import __version__
from .storage.disk import write
from .storage.model_file import load


def main() -> None:
    """Parses the command line and writes the predictions."""
    parser = argparse.ArgumentParser(
        prog="python -m node_fit.predict",
        description="Predict the trajectories of new data with a fitted model. Each trajectory starts at its first "
        "measurement; later states may be left empty.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("run", type=Path, help="a run directory, such as outputs/DATE/TIME")
    parser.add_argument("--data", required=True, nargs="+", help="files with the same columns as the training data")
    parser.add_argument("--out", type=Path, required=True, help="the CSV file to write")
    arguments = parser.parse_args()
    try:
        predict(arguments.run, arguments.data, arguments.out)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def predict(run: Path, data: list[str], out: Path) -> None:
    """Predicts the trajectories in the files `data` with the model of the run directory `run`; writes them to `out`."""
    config_file = run / "config.yaml"
    if not config_file.is_file():
        raise FileNotFoundError(
            f"{run} is not a run directory: it has no config.yaml; name a directory such as outputs/DATE/TIME."
        )
    config = DictConfig(OmegaConf.load(config_file))
    keep_programs(config.get("compile_cache", "auto"))
    extensions = list(config.extensions)
    model = load(RunDirectory(run).model, extensions=extensions)
    table = build(config.data, "data", extensions=extensions)
    if not out.absolute().parent.is_dir():
        raise FileNotFoundError(f"the folder {out.parent} for {out.name} does not exist; create it first.")
    unit = dict(model.typical.units).get(model.typical.system.time)  # of the fit, whatever the spacing of these rows
    with errors_of_data():
        dataset = table.read(data if len(data) > 1 else data[0], unit)
    check_starts(model.typical, dataset)
    predicted = model.bands(dataset, level=OmegaConf.select(config, "evaluation.level", default=0.9))
    gone = where_not_finite(model.typical.start.scored(dataset), predicted.ys)
    ys, *edges = (finite(part) for part in (predicted.ys, predicted.lower, predicted.upper) if part is not None)
    frame = predictions_frame(dataset, ys, (edges[0], edges[1]) if edges else None)
    write(out, frame.to_csv(index=False).encode())
    sizes = (counted(len(dataset.trajectories), "trajectory"), counted(int(dataset.valid.sum()), "row"))
    print(f"{', '.join(sizes)}: {out}")
    if gone:
        print(f"warning: {what_is_gone(dataset, gone)}; its later predictions are left empty.", file=sys.stderr)


def finite(ys: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(ys), ys, np.nan)


def check_starts(model: NeuralODE, data: Dataset) -> None:
    """Refuses a trajectory without a first value of a state, unless the user has set the initial guess."""
    if model.start.guess.told:
        return
    for row, name in enumerate(data.trajectories):
        for column, state in enumerate(data.states):
            if not np.isfinite(data.first[row, column]):
                raise ValueError(f"trajectory {name!r} has no initial value of {state!r}; give one in its first row.")


if __name__ == "__main__":
    main()

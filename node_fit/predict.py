"""The command `python -m node_fit.predict`: a fitted model's trajectories for new data."""

import argparse
import sys
from pathlib import Path

from omegaconf import OmegaConf

from .configuration import build
from .model_file import load, write
from .run_directory import FLOAT, RunDirectory, predictions_frame


def main() -> None:
    """Reads a run's model and new data, and writes the predictions."""
    parser = argparse.ArgumentParser(
        prog="python -m node_fit.predict",
        description="Predict the trajectories of new data with a fitted model. Each starts at its first measurement; "
        "states that are not known later may be left empty.",
    )
    parser.add_argument("run", type=Path, help="the directory of a run, such as outputs/DATE/TIME")
    parser.add_argument("--data", required=True, nargs="+", help="files with the columns that the run was fitted to")
    parser.add_argument("--out", type=Path, required=True, help="the CSV file to write")
    arguments = parser.parse_args()
    try:
        predict(arguments.run, arguments.data, arguments.out)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def predict(run: Path, data: list[str], out: Path) -> None:
    """Writes predictions of the model in `run` for the files `data` to `out`."""
    config_file = run / "config.yaml"
    if not config_file.is_file():
        raise FileNotFoundError(
            f"{run} is no run: it holds no config.yaml; name a directory such as outputs/DATE/TIME."
        )
    config = OmegaConf.load(config_file)
    extensions = list(config.extensions)
    model = load(RunDirectory(run).model, extensions=extensions)
    table = build(config.data, "data", extensions=extensions)
    dataset = table.read(data if len(data) > 1 else data[0])
    predicted = model.predict(dataset)
    write(out, predictions_frame(dataset, predicted).to_csv(index=False, float_format=FLOAT).encode())
    print(f"{len(dataset.trajectories)} trajectories, {int(dataset.valid.sum())} rows: {out}")


if __name__ == "__main__":
    main()

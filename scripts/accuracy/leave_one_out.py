"""Leave-one-out cross-validation over trajectories: `python scripts/accuracy/leave_one_out.py OVERRIDES`.

The overrides are those of `python -m node_fit`. The jobs are a multirun in one process, which compiles once for each
shape of data. The script prints a table in Markdown, with the error of each channel on each left-out trajectory and
over all of them.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from node_fit.app.config.build import build
from node_fit.app.config.composition import find_shipped


def trajectories(overrides: list[str]) -> tuple[list[str], list[str]]:
    """The names of all trajectories, and of the channels that a config reads."""
    OmegaConf.register_new_resolver("shipped", lambda name: str(find_shipped("data", name) / name), replace=True)
    with initialize_config_dir(str(find_shipped("conf", "config.yaml")), version_base=None):
        config = compose("config", overrides)
    splits = build(config.data, "data", extensions=list(config.extensions)).load()
    names = [name for part in splits.named().values() for name in part.trajectories]
    return sorted(set(names)), list(splits.train.states)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits all trajectories but one and predicts that one, in turn.")
    parser.add_argument("--out", type=Path, default=Path("leave_one_out"), help="directory of the runs (leave_one_out)")
    options, overrides = parser.parse_known_args()
    names, channels = trajectories(overrides)
    out = options.out.absolute()
    listed = ",".join(f"['{name}']" for name in names)
    sweep = [f"data.split.test_trajectories={listed}", "data.split.by=trajectory", f"hydra.sweep.dir='{out}'"]
    subprocess.run([sys.executable, "-m", "node_fit", "-m", *overrides, *sweep], check=True)
    rows = pd.concat(pd.read_csv(out / str(job) / "predictions.csv") for job in range(len(names)))
    table(rows, channels)


def table(rows: pd.DataFrame, channels: list[str]) -> None:
    """NRMSE of fitted and of left-out trajectories, relative to the standard deviation of all left-out values."""
    left_out, fitted = (rows.loc[rows["split"] == split] for split in ("test", "train"))
    each = dict(list(left_out.groupby("trajectory", sort=False)))
    print("\n| channel | " + " | ".join(map(str, each)) + " | all left out | all fitted |")
    print("|---" * (len(each) + 3) + "|")
    for channel in channels:
        spread = float(np.nanstd(left_out[channel].to_numpy()))
        parts = [*each.values(), left_out, fitted]
        print(f"| {channel} | " + " | ".join(nrmse(part, channel, spread) for part in parts) + " |")


def nrmse(rows: pd.DataFrame, channel: str, spread: float) -> str:
    squares = (rows[channel] - rows[f"{channel}_predicted"]).dropna() ** 2
    return f"{np.sqrt(squares.mean()) / spread:.2f}" if len(squares) else "-"


if __name__ == "__main__":
    main()

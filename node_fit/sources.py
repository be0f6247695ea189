"""Where a run's data come from: files, noise added on request, and their division."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .dataset import Dataset
from .splits import Split, Splits
from .tables import read_table


@dataclass(frozen=True)
class Table:
    """Trajectories in files, a row a time.

    **Arguments:**

    - `path`: a file, a list of files, or a glob.
    - `time`, `states`, `inputs`: names of columns; `inputs` may be empty.
    - `trajectory`: the column that tells trajectories apart; without one, each file is a trajectory.
    - `test_path`: files kept for the final score alone; nothing is then taken from `path` for it.
    - `time_unit`: unit that timestamps are converted to: `s`, `min`, `h` or `d`.
    - `units`: unit of a column, by its name.
    - `log`: states that are positive and better seen on a logarithmic scale.
    - `noise`: Gaussian noise added to the states, relative to each one's standard deviation, for trials.
    - `noise_seed`: of that noise.
    - `split`: how the data are divided.

    **Raises:** `ValueError` if a number is out of range or `path` is missing.
    """

    path: str | Sequence[str]
    time: str
    states: Sequence[str]
    inputs: Sequence[str] = ()
    trajectory: str | None = None
    test_path: str | Sequence[str] | None = None
    time_unit: str | None = None
    units: dict[str, str] = field(default_factory=dict)
    log: Sequence[str] = ()
    noise: float = 0.0
    noise_seed: int = 0
    split: Split = field(default_factory=Split)

    def __post_init__(self):
        if not self.noise >= 0:
            raise ValueError(f"noise must not be negative, got {self.noise}.")

    def load(self) -> Splits:
        """Reads and divides the data."""
        data = add_noise(self.read(self.path), self.noise, self.noise_seed)
        if self.test_path is None:
            return self.split(data)
        return replace(self.split, test=0.0, test_from=None)(data)._replace(test=self.read(self.test_path))

    def read(self, path: str | Sequence[str]) -> Dataset:
        """The trajectories in other files of the same columns."""
        return read_table(
            path,
            time=self.time,
            states=self.states,
            inputs=self.inputs,
            trajectory=self.trajectory,
            time_unit=self.time_unit,
            units=self.units,
        )


def add_noise(data: Dataset, noise: float, seed: int) -> Dataset:
    """Gaussian noise on the states, relative to each one's standard deviation."""
    if noise == 0:
        return data
    draws = np.random.default_rng(seed).standard_normal(data.ys.shape)
    return replace(data, ys=data.ys + noise * np.nanstd(data.ys, axis=(0, 1)) * draws)

"""Where a run's data come from: files, noise added on request, and their division."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .dataset import Dataset
from .splits import Split, Splits
from .tables import CovariateNumbers, Roles, as_numbers, check_trajectories, make_roles, read_files, with_covariates


@dataclass(frozen=True)
class Table:
    """Trajectories in files, with a row a time if nothing else is said; `read_table` says how tables may look.

    **Arguments:**

    - `path`: a file, a list of files, or a glob.
    - `time`, `states`, `inputs`: names of columns; `inputs` may be empty.
    - `step`: in the place of `time`, the time between two rows.
    - `covariates`: inputs that are constant within a trajectory: names of columns, or numbers by name and trajectory,
      where `default` stands for all others.
    - `trajectory`: the column that tells trajectories apart; without one, each file is a trajectory.
    - `series`: patterns of the columns of a table with a column a trajectory.
    - `observable`, `value`: the columns of a table with a row a measurement.
    - `test_path`: files kept for the final score alone; nothing is then taken from `path` for it.
    - `time_unit`: unit that timestamps are converted to: `s`, `min`, `h` or `d`.
    - `units`: unit of a column, by its name.
    - `log`: states that are positive and better seen on a logarithmic scale.
    - `bounds`: pairs of a lower and an upper bound, null for none, of states that stay within them, by name.
    - `noise`: Gaussian noise added to the states, relative to each one's standard deviation, for trials.
    - `noise_seed`: of that noise.
    - `split`: how the data are divided.

    **Raises:** `ValueError` if a number is out of range, `path` is missing, or roles of columns contradict each other.
    """

    path: str | Sequence[str]
    time: str | None
    states: Sequence[str]
    inputs: Sequence[str] = ()
    covariates: Sequence[str] | CovariateNumbers | None = None
    trajectory: str | None = None
    series: Sequence[str] = ()
    observable: str | None = None
    value: str | None = None
    step: float | None = None
    test_path: str | Sequence[str] | None = None
    time_unit: str | None = None
    units: dict[str, str] = field(default_factory=dict)
    log: Sequence[str] = ()
    bounds: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    noise: float = 0.0
    noise_seed: int = 0
    split: Split = field(default_factory=Split)

    def __post_init__(self):
        if not self.noise >= 0:
            raise ValueError(f"noise must not be negative, got {self.noise}.")
        _ = (
            self.roles,
            self.covariate_numbers,
        )  # are refused here if they contradict each other, before any file is read

    @property
    def roles(self) -> Roles:
        """Which column is what."""
        return make_roles(
            time=self.time,
            states=self.states,
            inputs=self.inputs,
            covariates=self.covariates or (),
            trajectory=self.trajectory,
            series=self.series,
            observable=self.observable,
            value=self.value,
            step=self.step,
        )

    @property
    def covariate_numbers(self) -> dict[str, dict[str, float]]:
        """The covariates that no file holds, by name and trajectory."""
        return as_numbers(self.covariates or ())

    def load(self) -> Splits:
        """Reads and divides the data."""
        data = self.read(self.path)
        test = None if self.test_path is None else self.read(self.test_path)
        check_trajectories(self.covariate_numbers, (*data.trajectories, *(test.trajectories if test else ())))
        data = add_noise(data, self.noise, self.noise_seed)
        if test is None:
            return self.split(data)
        rest = replace(self.split, test=0.0, test_from=None, test_trajectories=None)
        return rest(data)._replace(test=test)

    def read(self, path: str | Sequence[str]) -> Dataset:
        """The trajectories in other files of the same columns; `covariates` may name some that are not in them."""
        data = read_files(path, self.roles, self.time_unit, self.units)
        return with_covariates(data, self.covariate_numbers, self.units)


def add_noise(data: Dataset, noise: float, seed: int) -> Dataset:
    """Gaussian noise on the states, relative to each one's standard deviation."""
    if noise == 0:
        return data
    draws = np.random.default_rng(seed).standard_normal(data.ys.shape)
    return replace(data, ys=data.ys + noise * np.nanstd(data.ys, axis=(0, 1)) * draws)

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .table import choose, hint, shown


@dataclass(frozen=True)
class Roles:
    """The role of each column, in one of three table layouts.

    By default a table has one row per time. With `series` it is wide: one column per trajectory. With `observable` and
    `value` it is tidy: one row per measurement.

    **Arguments:**

    - `time`: the column of times, or `None` if `step` is given.
    - `states`, `inputs`, `covariates`: names of columns. In a tidy table, states, and inputs that are not columns, are
      names in the column `observable`. A wide table has one state, whose name is not a column.
    - `trajectory`: the column that identifies the trajectory, or `None`.
    - `series`: patterns of the columns that are trajectories, such as `A*`.
    - `observable`, `value`: the columns of the observable's name and of its value.
    - `step`: time between two rows of a trajectory that begins at 0, if there is no column of times.

    **Raises:** `ValueError` if there is no state, a column has two roles, or roles contradict each other.
    """

    time: str | None
    states: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    covariates: tuple[str, ...] = ()
    trajectory: str | None = None
    series: tuple[str, ...] = ()
    observable: str | None = None
    value: str | None = None
    step: float | None = None

    def __post_init__(self):
        if not self.states:
            raise ValueError("states is empty; name at least one column to fit, such as states=['x'].")
        self.check_layout()
        single = () if self.trajectory is None else (self.trajectory,)
        for names in ((self.clock, *self.states, *self.inputs, *self.covariates, *single), self.fixed):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(
                    f"column {twice[0]!r} is named twice among time, states, inputs, covariates and trajectory; "
                    "a column has one role, so remove one of them."
                )

    def check_layout(self) -> None:
        """Rejects roles that contradict each other."""
        if (self.time is None) == (self.step is None):
            fault = "time is missing" if self.time is None else "time and step are both given"
            raise ValueError(
                f"{fault}; name the column of times, time=NAME (data.time in a command), or, if there is none, give "
                "the time between two rows, step=NUMBER (data.step)."
            )
        if self.step is not None and not 0 < self.step < math.inf:
            raise ValueError(f"step must be a positive number, the time between two rows, got {self.step}.")
        if self.series and len(self.states) != 1:
            raise ValueError(
                f"series makes each column a trajectory of one state, but states names {len(self.states)}; give one "
                "name for what all of these columns hold."
            )
        if self.series and (self.trajectory is not None or self.observable is not None):
            raise ValueError(
                "series makes each column a trajectory; leave it out, or leave out trajectory, observable and value."
            )
        if (self.observable is None) != (self.value is None):
            raise ValueError("observable and value go together; name the columns of both.")
        if self.observable is not None and self.time is None:
            raise ValueError("observable needs time: with one row per measurement, each row has its own time.")

    @property
    def clock(self) -> str:
        """The name of the time in the dataset."""
        return "t" if self.time is None else self.time

    @property
    def fixed(self) -> tuple[str, ...]:
        """The columns that every file must have; columns of `series` are matched in each file."""
        tidy = self.observable is not None
        channels = () if self.series or tidy else self.states
        inputs = () if tidy else self.inputs
        single = (self.trajectory, self.observable, self.value)
        names = (self.time, *channels, *inputs, *self.covariates, *single)
        return tuple(name for name in names if name is not None)

    def find(self, names: Sequence[str], origin: str) -> dict[str, int]:
        """The needed columns of a file, each with its position.

        **Raises:** `ValueError` if a column is missing, or appears twice.
        """
        wanted = [*self.fixed, *self.matched(names, origin)]
        if self.observable is not None:
            wanted += [name for name in self.inputs if name in names]
        return dict(zip(wanted, choose(names, wanted, origin), strict=True))

    def matched(self, names: Sequence[str], origin: str) -> list[str]:
        """The columns that `series` matches, in file order."""
        free = [name for name in names if name not in self.fixed]
        found = {pattern: {name for name in free if fits(name, pattern)} for pattern in self.series}
        for pattern, own in found.items():
            if not own:
                raise ValueError(
                    f"{origin} has no column for series {pattern!r}; its other columns are {shown(free)}."
                    f"{hint(pattern, free)}"
                )
        matched = set().union(*found.values())
        if "" in matched:
            raise ValueError(
                f"{origin}: column {names.index('') + 1} has no name but matches series; name it, or narrow the "
                "pattern."
            )
        return [name for name in dict.fromkeys(free) if name in matched]


def fits(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def as_names(names: Sequence[str | int], role: str) -> tuple[str, ...]:
    """A tuple of names; rejects a bare string, whose letters would be taken for names."""
    if isinstance(names, str):
        raise ValueError(f"{role} must be a list of names, got the text {names!r}; write {role}=[{names!r}].")
    return tuple(str(name) for name in names)

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Roles:
    """Which column is what.

    **Arguments:** `time`, `states`, `inputs`, `trajectory`: names of columns; `trajectory` may be `None`.

    **Raises:** `ValueError` if there is no state, or a column has two roles.
    """

    time: str
    states: tuple[str, ...]
    inputs: tuple[str, ...]
    trajectory: str | None

    def __post_init__(self):
        if not self.states:
            raise ValueError("states is empty; name at least one column to fit, such as states=['x'].")
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise ValueError(
                f"column {twice[0]!r} is named twice among time, states, inputs and trajectory; "
                "a column has one role, so remove one of them."
            )

    @property
    def channels(self) -> tuple[str, ...]:
        """The columns of numbers."""
        return (self.time, *self.states, *self.inputs)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are needed."""
        own = () if self.trajectory is None else (self.trajectory,)
        return (*self.channels, *own)


def as_names(names: Sequence[str], role: str) -> tuple[str, ...]:
    """A tuple of names; a bare string is refused, because its letters would be taken for names."""
    if isinstance(names, str):
        raise ValueError(f"{role} must be a list of column names, got the text {names!r}; write {role}=[{names!r}].")
    return tuple(str(name) for name in names)

"""The base class of rules for the first state of a trajectory, and the rule that takes the first measurement."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from ...data.batch import Batch, first_rows
from ...data.domains import check_inside, is_inside, is_real
from ...runtime.placement import AnyArray
from ...runtime.serialization import stored_as
from ...runtime.validation import Part, checks_arguments
from ...solver.problem import VectorField
from ..system import System

Starts = Float[Array, "trajectory state"]
# From starts and a batch to the channels at its times, in scaled units; not finite where a solve fails. Only
# forward-mode derivatives exist.
Simulate = Callable[[Starts, Batch], Float[Array, "trajectory time channel"]]
# The start of states that a trajectory never shows: of each by its name, or one number for all.
Absent = float | Mapping[str, float] | None


@stored_as("Guess")
class Guess(eqx.Module):
    """A start from the first measured value of each channel, and from what the user knows of other states.

    - `measured`: number of measured states; the others are hidden.
    - `absent`: scaled start of each state that is never measured in a trajectory; None where the user gave none.
    """

    measured: int = eqx.field(static=True)
    absent: tuple[float | None, ...] = eqx.field(static=True)

    @staticmethod
    def of(system: System, batch: Batch, absent: Absent) -> "Guess":
        """The guess for a system.

        **Arguments:**

        - `batch`: the training data.
        - `absent`: start of states that a trajectory never shows, in the user's units: of each by its name, or one
            number for all. Without one, it is the training mean, and 0 for a hidden state.

        **Raises:** `ValueError` if a name is none of a state that is absent somewhere, or a value is not within bounds.
        """
        shown: list[bool] = np.atleast_1d(batch.seen.all(axis=0)).tolist()
        lacking = [name for at, name in enumerate(system.states) if at >= system.measured or not shown[at]]
        if isinstance(absent, Mapping):
            check_named(absent, system.states, lacking)
            given = dict(absent)
        else:
            given = {} if absent is None else dict.fromkeys(system.states, absent)
        for name, value in given.items():
            if not is_real(value):
                raise ValueError(f"absent: the start of {name!r} must be a number, got {value!r:.40}.")
        start = np.zeros(len(system.states))
        for at, name in enumerate(system.states):
            value, bounds = np.asarray(given.get(name, np.nan), np.float64), system.scaler.bounds[at]
            if name in lacking:
                check_inside(value, bounds, f"absent: the start of {name!r}")
            start[at] = value if is_inside(value, bounds) else np.nan
        scaled = system.scaler.scale_states(start).tolist()
        return Guess(system.measured, tuple(None if np.isnan(value) else value for value in scaled))

    def __call__(self, batch: Batch) -> Starts:
        count, rows = self.measured, batch.first.shape[0]
        absent = jnp.asarray([value or 0.0 for value in self.absent], batch.first.dtype)[None]
        measured = jnp.where(self.shows(batch)[:, :count], batch.first[:, :count], absent[:, :count])
        return jnp.concatenate([measured, jnp.tile(absent[:, count:], (rows, 1))], axis=1)

    @property
    def told(self) -> tuple[bool, ...]:
        """Of which states the user gave that start."""
        return tuple(value is not None for value in self.absent)

    @property
    def unknown(self) -> tuple[int, ...]:
        """The hidden states of which the user gave no start, by number."""
        return tuple(at for at, told in enumerate(self.told) if at >= self.measured and not told)

    @property
    def knows_hidden(self) -> bool:
        """Whether the user gave the start of a hidden state."""
        return any(self.told[self.measured :])

    def shows(self, batch: Batch) -> Bool[Array, "trajectory state"]:
        """Which states are measured in a trajectory; hidden ones are not."""
        seen = batch.seen[:, : self.measured]
        return jnp.concatenate([seen, jnp.zeros((seen.shape[0], len(self.absent) - self.measured), bool)], axis=1)


def describe_known_starts(start: "AbstractStart", system: System) -> str:
    """What a prediction uses of a new trajectory, and the hidden states whose start the user gave."""
    guess = start.guess
    values = system.scaler.unscale_states(np.array([value or 0.0 for value in guess.absent]))
    known = [
        f"{name} = {value:.6g}"
        for at, (name, value, told) in enumerate(zip(system.states, values.tolist(), guess.told, strict=True))
        if told and at >= guess.measured
    ]
    return start.given + (f"; {', '.join(known)} (start.absent)" if known else "")


def check_named(absent: Mapping[str, float], states: Sequence[str], lacking: Sequence[str]) -> None:
    """Refuses a start of what is no state, or of a state that every trajectory shows."""
    for name, value in absent.items():
        if name not in states:
            known = ", ".join(states)
            raise ValueError(
                f"absent names {name!r}, which is not a state; the states are {known}. If it is not measured, set "
                f"hidden=[{name}]."
            )
        if name not in lacking:
            raise ValueError(
                f"absent names {name!r}, which starts at its first measurement; for a start that is known, write "
                f"start=stated start.values={{{name}: {value}}}."
            )


class AbstractStart(eqx.Module, metaclass=Part):
    """A rule that gives the states at the first time of each trajectory, in scaled units.

    A rule is made by calling its class with `(system, batch, key=...)`, where `batch` holds the training data. Its
    initial guess is `guess`.
    """

    guess: eqx.AbstractVar[Guess]
    # Whether trajectories start at their first measurement as it is, noise included.
    is_first_measurement: ClassVar[bool] = False

    @property
    def penalised(self) -> PyTree:
        """What a prior around 0 penalises: of most rules nothing."""
        return None

    @classmethod
    def can_read_windows(cls, *, absent: Absent, hides: bool) -> bool:
        """Whether a rule that is still to be made would give the start of any window.

        **Arguments:** `absent`: as it would be given. `hides`: whether there may be hidden states.
        """
        return True

    @abc.abstractmethod
    def __call__(self, batch: Batch) -> Starts:
        """The starts of the training trajectories, or windows of them, in `batch`; training differentiates this."""

    @abc.abstractmethod
    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        """The starts of any trajectories by the same rule, for the current model."""

    def completed(self, starts: Starts, field: VectorField, batch: Batch) -> Starts:
        """The starts, where they depend on the vector field too."""
        return starts

    @property
    def past(self) -> int:
        """Number of rows that it reads up to a trajectory's start, that row included; 0 if it reads no earlier rows."""
        return 0

    @property
    def washout(self) -> int:
        """How many rows are simulated between the start and the first row that counts, if there are so many."""
        return 0

    @property
    def given_rows(self) -> int | None:
        """Number of rows that give a start, and so do not test the model; all rows if None."""
        return 1

    def needed(self, batch: Batch) -> Batch:
        """The rows of a batch that `estimate` needs, on the host: few, so that a long record compiles nothing new."""
        return first_rows(batch, 1)

    def begun_at(self, starts: Float[AnyArray, " state"]) -> "AbstractStart":
        """The rule to begin a fit with, where it fits starts: those of hidden states, and what is added to those of
        measured ones, in scaled units."""
        return self

    def adapted(self, batch: Batch) -> "AbstractStart":
        """The rule for other training trajectories, given in `batch`."""
        return self

    @property
    @abc.abstractmethod
    def reads_windows(self) -> bool:
        """Whether the rule gives the start of any window of a trajectory."""

    @property
    @abc.abstractmethod
    def given(self) -> str:
        """What a prediction of a new trajectory uses of it, in words for the summary."""


@stored_as("First")
class First(AbstractStart):
    """Each trajectory starts at the first measured value of each state; hidden states where the user says.

    A hidden state of which the user says nothing starts at a value that is trained, from 0 on.

    **Arguments:**

    - `system`, `batch`: the system, and the training data.
    - `absent`: known start of states that a trajectory never shows, such as hidden ones, in the user's units: a number
      for all, or one for each by its name, such as `{"S": 1e4}`. It is not trained. If None, the start of a
      measured state is its training mean.
    - `key`: not used.
    """

    is_first_measurement: ClassVar[bool] = True
    guess: Guess
    hidden: Float[Array, " unknown"] | None

    @classmethod
    def can_read_windows(cls, *, absent: Absent, hides: bool) -> bool:
        return absent is None or not hides

    @checks_arguments
    def __init__(self, system: System, batch: Batch, *, absent: Absent = None, key: PRNGKeyArray | None = None):
        self.guess = Guess.of(system, batch, absent)
        hidden = len(system.states) > system.measured
        self.hidden = jnp.zeros(len(self.guess.unknown)) if hidden else None

    def __call__(self, batch: Batch) -> Starts:
        starts = self.guess(batch)
        unknown = np.array(self.guess.unknown, int)
        return starts if self.hidden is None else starts.at[:, unknown].set(self.hidden[None, :])

    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        return self(batch)

    def begun_at(self, starts: Float[AnyArray, " state"]) -> "First":
        if self.hidden is None:
            return self
        hidden = jnp.asarray(starts, float)[np.array(self.guess.unknown, int)]
        return eqx.tree_at(lambda start: start.hidden, self, hidden)

    @property
    def reads_windows(self) -> bool:
        return not self.guess.knows_hidden  # That is the start of a trajectory, not of any window.

    @property
    def given(self) -> str:
        return "the first measurement of each state"

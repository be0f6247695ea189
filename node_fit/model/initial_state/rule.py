"""Rules for the initial state of a trajectory: base class, first measurement, expressions, and steady state."""

import abc
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from ...data.batch import Batch, first_rows
from ...data.domains import check_inside, is_inside, is_real, namespace
from ...data.groups import Groups
from ...runtime.placement import AnyArray
from ...runtime.serialization import stored_as
from ...runtime.validation import Part, checks_arguments
from ...solver.problem import VectorField
from ..fields.equations import Equations
from ..fields.known import ConstantConfig, Constants
from ..system import System

Starts = Float[AnyArray, "trajectory state"]
# Maps starts and a batch to the channels at its times, in scaled units; not finite if a solve fails. Only forward-mode
# derivatives exist.
Simulate = Callable[[Starts, Batch], Float[Array, "trajectory time channel"]]
# The start of states that are never measured in a trajectory: by name, or one number for all.
Absent = float | Mapping[str, float] | None


@stored_as("Guess")
class Guess(eqx.Module):
    """An initial state from the first measured value of each channel, and user-defined values for other states.

    - `measured`: number of measured states; the others are hidden.
    - `absent`: scaled start of each state that is never measured in a trajectory; None if the user gave none.
    """

    measured: int = eqx.field(static=True)
    absent: tuple[float | None, ...] = eqx.field(static=True)

    @staticmethod
    def of(system: System, batch: Batch, absent: Absent) -> "Guess":
        """Makes the guess for a system.

        **Arguments:**

        - `batch`: the training data.
        - `absent`: start of states that are never measured in a trajectory, in the user's units: by name, or one number
            for all. The default is the training mean, and 0 for a hidden state.

        **Raises:** `ValueError` if a name is not that of a state that is absent somewhere, or a value is out of bounds.
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
        count, rows, xp = self.measured, batch.first.shape[0], namespace(batch.first)
        absent = xp.asarray([value or 0.0 for value in self.absent], batch.first.dtype)[None]
        measured = xp.where(self.shows(batch)[:, :count], batch.first[:, :count], absent[:, :count])
        return xp.concatenate([measured, xp.tile(absent[:, count:], (rows, 1))], axis=1)

    @property
    def is_stated(self) -> tuple[bool, ...]:
        """Whether the user gave `absent`, for each state."""
        return tuple(value is not None for value in self.absent)

    @property
    def unknown(self) -> tuple[int, ...]:
        """The indices of hidden states without a user-defined start."""
        return tuple(at for at, told in enumerate(self.is_stated) if at >= self.measured and not told)

    @property
    def knows_hidden(self) -> bool:
        """Whether the user gave the start of a hidden state."""
        return any(self.is_stated[self.measured :])

    def shows(self, batch: Batch) -> Bool[AnyArray, "trajectory state"]:
        """Returns whether each state is measured in a trajectory; hidden states are not."""
        seen, xp = batch.seen[:, : self.measured], namespace(batch.seen)
        return xp.concatenate([seen, xp.zeros((seen.shape[0], len(self.absent) - self.measured), bool)], axis=1)


def describe_known_starts(start: "AbstractStart", system: System) -> str:
    """Describes the data of a new trajectory that a prediction uses, and user-defined starts of hidden states."""
    guess = start.guess
    values = system.scaler.unscale_states(np.array([value or 0.0 for value in guess.absent]))
    texts = [
        f"{name} = {value:.6g}"
        for index, (name, value, is_known) in enumerate(
            zip(system.states, values.tolist(), guess.is_stated, strict=True)
        )
        if is_known and index >= guess.measured
    ]
    return start.given + (f"; {', '.join(texts)} (start.absent)" if texts else "")


def check_named(absent: Mapping[str, float], states: Sequence[str], lacking: Sequence[str]) -> None:
    """Raises an error if a name is not a state, or a state that is measured in every trajectory."""
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
    """A rule for the states at the first time of each trajectory, in scaled units.

    A rule is made by calling its class with `(system, batch, key=...)`, where `batch` holds the training data. Its
    initial guess is `guess`.
    """

    guess: eqx.AbstractVar[Guess]
    # Whether trajectories start exactly at their first measurement, noise included; and whether the starts of measured
    # states are fitted.
    is_first_measurement: ClassVar[bool] = False
    is_fitted: ClassVar[bool] = False

    @property
    def prior_part(self) -> PyTree:
        """The parameters with a prior around 0; None for most rules."""
        return None

    @classmethod
    def can_read_windows(cls, *, absent: Absent, hides: bool) -> bool:
        """Whether a rule made with these options would provide the start of any window.

        **Arguments:** `absent`: as passed to the rule. `hides`: whether hidden states are possible.
        """
        return True

    @abc.abstractmethod
    def __call__(self, batch: Batch) -> Starts:
        """Computes the starts of training trajectories or windows in `batch`; training differentiates this."""

    @abc.abstractmethod
    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        """Estimates the starts of any trajectories with the same rule, for the current model."""

    def complete(self, starts: Starts, field: VectorField, batch: Batch) -> Starts:
        """Completes starts that also depend on the vector field."""
        return starts

    @property
    def past(self) -> int:
        """Number of rows read up to and including a trajectory's start; 0 if it reads no earlier rows."""
        return 0

    @property
    def washout(self) -> int:
        """Number of rows simulated between the start and the first row that counts, if the trajectory has enough."""
        return 0

    @property
    def given_rows(self) -> int | None:
        """Number of rows that determine a start, and so do not test the model; all rows if None."""
        return 1

    @property
    def read_rows(self) -> int:
        """Number of measured rows that a start is estimated from; with far fewer, it is unlike those in training."""
        return 1

    def needed_rows(self, batch: Batch) -> Batch:
        """Returns the few rows of a batch that `estimate` needs, on the host, so that long records do not recompile."""
        return first_rows(batch, 1)

    def share_program(self, needed: Batch) -> tuple["AbstractStart", Batch]:
        """Returns a rule and a batch with the same starts as those of `needed`.

        Rules that differ only in the rows that they read thus share a program.
        """
        return self, needed

    def begin_at(self, starts: Float[AnyArray, " state"]) -> "AbstractStart":
        """Returns the rule with new initial values of fitted starts.

        **Arguments:** `starts`: starts of hidden states, and increments of those of measured ones, in scaled units.
        """
        return self

    def with_past_map(
        self, matrix: Float[np.ndarray, "state feature"], shift: Float[np.ndarray, " state"]
    ) -> "AbstractStart":
        """Returns the rule with an initial affine map of the past rows, if it corrects its guess with one."""
        return self

    def adapt(self, batch: Batch) -> "AbstractStart":
        """Returns the rule for other training trajectories, those of `batch`."""
        return self

    @property
    @abc.abstractmethod
    def reads_windows(self) -> bool:
        """Whether the rule provides the start of any window of a trajectory."""

    @property
    @abc.abstractmethod
    def given(self) -> str:
        """The data of a new trajectory that a prediction uses, in words for the summary."""


@stored_as("First")
class First(AbstractStart):
    """Starts at the first measured value of each state; hidden states at user-defined values.

    Hidden states without one start at a trained value, initialized to 0.

    **Arguments:**

    - `system`, `batch`: the system, and the training data.
    - `absent`: known start of states that are never measured in a trajectory, such as hidden ones, in the user's units:
      a number for all, or numbers by name, such as `{"S": 1e4}`. It is not trained. If None, the start of a measured
      state is its training mean.
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
        starts = jnp.asarray(self.guess(batch))
        unknown = np.array(self.guess.unknown, int)
        return starts if self.hidden is None else starts.at[:, unknown].set(self.hidden[None, :])

    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        return self(batch)

    def begin_at(self, starts: Float[AnyArray, " state"]) -> "First":
        if self.hidden is None:
            return self
        hidden = jnp.asarray(starts, float)[np.array(self.guess.unknown, int)]
        return eqx.tree_at(lambda start: start.hidden, self, hidden)

    @property
    def reads_windows(self) -> bool:
        return not self.guess.knows_hidden  # A known hidden state is that of a trajectory's start, not of any window.

    @property
    def given(self) -> str:
        return "the first measurement of each state"


@stored_as("Stated")
class Stated(AbstractStart):
    """Starts at the values of expressions of fitted constants and first inputs.

    A constant is a start that all trajectories share; inputs that do not change in a trajectory (`data.covariates`)
    make starts differ between trajectories. States without an expression start at their first measured value, hidden
    ones at `absent`, or at 0.

    **Arguments:**

    - `system`, `batch`: the system, and the training data.
    - `values`: for each state, an expression in the user's units, such as `{x: x0, gut: F*dose}`.
    - `constants`, `local`, `groups`: as in the field `Known`.
    - `absent`: start of states without an expression that are never measured in a trajectory, in the user's units: a
      number for all, or numbers by name; if None, the training mean, and 0 for a hidden state.
    - `key`: not used.

    **Raises:** `ValueError` if an expression uses an unknown name, or is for a name that is not a state.
    """

    is_fitted: ClassVar[bool] = True
    guess: Guess
    values: Equations
    constants: Constants
    system: System

    @checks_arguments
    def __init__(
        self,
        system: System,
        batch: Batch,
        *,
        values: Mapping[str, str | float | int],
        constants: Mapping[str, ConstantConfig] | None = None,
        local: Mapping[str, str] = MappingProxyType({}),
        groups: Mapping[str, Groups] = MappingProxyType({}),
        absent: Absent = None,
        key: PRNGKeyArray | None = None,
    ):
        self.guess = Guess.of(system, batch, absent)
        self.values, self.constants = Equations.of(values), Constants.of(constants or {}, local, groups)
        self.system = system
        unknown = [name for name in values if name not in system.states]
        if unknown:
            known = ", ".join(system.states)
            raise ValueError(f"start.values has {unknown[0]!r}, which is not a state; the states are {known}.")
        self.values.check((*system.inputs, system.time, *self.constants.symbols))
        unused = self.constants.find_unused(self.values.names_used())
        if unused:
            raise ValueError(f"start.constants names {unused[0]!r}, which occurs in no expression; leave it out.")

    def __call__(self, batch: Batch) -> Starts:
        def one(t: AnyArray, y: Float[Array, " state"], u: Float[AnyArray, " input"]) -> Float[Array, " state"]:
            time, states, inputs = self.system.in_users_units(jnp.asarray(t), y, jnp.asarray(u))
            names = self.system.values_by_name(time, states, inputs)
            values = names | self.values(names | self.constants.at(names))
            stated = jnp.stack([values[name] for name in self.system.states])
            scaled = self.system.in_solver_units(time, stated, inputs)[1]
            return jnp.where(jnp.array([name in self.states_with_expression for name in self.system.states]), scaled, y)

        return jax.vmap(one)(batch.origin + batch.ts[:, 0], jnp.asarray(self.guess(batch)), batch.us[:, 0])

    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        return self(batch)

    @property
    def states_with_expression(self) -> tuple[str, ...]:
        """The states that have an expression."""
        return tuple(name for name, _ in self.values.texts)

    @property
    def given_rows(self) -> int | None:
        return 0 if set(self.system.states[: self.guess.measured]) <= set(self.states_with_expression) else 1

    @classmethod
    def can_read_windows(cls, *, absent: Absent, hides: bool) -> bool:
        return False

    @property
    def reads_windows(self) -> bool:
        return False

    @property
    def given(self) -> str:
        return "what start.values says of it"


STEADY_STEPS = 100


@stored_as("Steady")
class Steady(AbstractStart):
    """Starts at the steady state under a trajectory's first inputs, for systems at rest before.

    The steady state is found with the Levenberg-Marquardt method from the first measurements, and differentiated with
    the implicit function theorem. It should be the only steady state nearby. If totals are conserved, every total has
    its own steady state: start with a row long before the first sample instead.

    **Arguments:**

    - `system`, `batch`: the system, and the training data.
    - `absent`: initial guess of states that are never measured in a trajectory, in the user's units: a number for all,
      or numbers by name; if None, the training mean, and 0 for a hidden state.
    - `key`: not used.
    """

    guess: Guess

    @checks_arguments
    def __init__(self, system: System, batch: Batch, *, absent: Absent = None, key: PRNGKeyArray | None = None):
        self.guess = Guess.of(system, batch, absent)

    def __call__(self, batch: Batch) -> Starts:
        return self.guess(batch)

    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        return self(batch)

    def complete(self, starts: Starts, field: VectorField, batch: Batch) -> Starts:
        tolerance = 1e-5 if starts.dtype == jnp.float32 else 1e-10

        def rates(y: Float[Array, " state"], at: tuple[VectorField, Array, Array]) -> Float[Array, " state"]:
            vector_field, t, u = at
            return vector_field(t, y, u)

        def one(start: Float[Array, " state"], t: Float[AnyArray, ""], u: Float[AnyArray, " input"]) -> Array:
            return optx.root_find(
                rates,
                optx.LevenbergMarquardt(rtol=tolerance, atol=tolerance),
                start,
                args=(field, t, u),
                max_steps=STEADY_STEPS,
                # A model in training can lack a steady state; its slowest point nearby is good enough.
                throw=False,
                adjoint=optx.ImplicitAdjoint(lx.AutoLinearSolver(well_posed=False)),
            ).value

        return jax.vmap(one)(jnp.asarray(starts), batch.origin + batch.ts[:, 0], batch.us[:, 0])

    @property
    def given_rows(self) -> int | None:
        return 0

    @classmethod
    def can_read_windows(cls, *, absent: Absent, hides: bool) -> bool:
        return False

    @property
    def reads_windows(self) -> bool:
        return False

    @property
    def given(self) -> str:
        return "the steady state under the first inputs"

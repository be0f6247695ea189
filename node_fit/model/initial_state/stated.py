"""Starts that the system states: expressions, or its steady state."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import lineax as lx
import optimistix as optx
from jaxtyping import Array, Float, PRNGKeyArray

from ...data.batch import Batch
from ...runtime.placement import AnyArray
from ...runtime.serialization import stored_as
from ...runtime.validation import checks_arguments
from ...solver.problem import VectorField
from ..fields.equations import Equations
from ..fields.known import ConstantConfig, Constants
from ..system import System
from .rule import Absent, AbstractStart, Guess, Simulate, Starts


@stored_as("Stated")
class Stated(AbstractStart):
    """Each trajectory starts where expressions say, from constants that are fitted and from its first inputs.

    A constant is a start that all trajectories share; inputs that do not change in a trajectory (`data.covariates`)
    give each its own. States without an expression start at their first measured value, hidden ones at
    `absent`, or at 0.

    **Arguments:**

    - `system`, `batch`: the system, and the training data.
    - `values`: for each state, an expression in the user's units, such as `{x: x0, gut: F*dose}`.
    - `constants`: as of the field `Known`.
    - `absent`: start of a state without an expression that is never measured in a trajectory, in the user's units: a
      number for all, or one for each by its name; if None, its training mean, and 0 for a hidden state.
    - `key`: not used.

    **Raises:** `ValueError` if an expression uses an unknown name, or is of what is not a state.
    """

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
        values: Mapping[str, str | float],
        constants: Mapping[str, ConstantConfig] | None = None,
        absent: Absent = None,
        key: PRNGKeyArray | None = None,
    ):
        self.guess = Guess.of(system, batch, absent)
        self.values, self.constants, self.system = Equations.of(values), Constants.of(constants or {}), system
        unknown = [name for name in values if name not in system.states]
        if unknown:
            known = ", ".join(system.states)
            raise ValueError(f"start.values has {unknown[0]!r}, which is not a state; the states are {known}.")
        self.values.check((*system.inputs, system.time, *self.constants.names))
        unused = sorted(set(self.constants.names) - self.values.names_used())
        if unused:
            raise ValueError(f"start.constants names {unused[0]!r}, which occurs in no expression; leave it out.")

    def __call__(self, batch: Batch) -> Starts:
        def one(t: AnyArray, y: Float[Array, " state"], u: Float[AnyArray, " input"]) -> Float[Array, " state"]:
            time, states, inputs = self.system.in_users_units(jnp.asarray(t), y, jnp.asarray(u))
            names = self.system.named(time, states, inputs)
            given = names | self.values(names | self.constants.values())
            stated = jnp.stack([given[name] for name in self.system.states])
            scaled = self.system.in_solver_units(time, stated, inputs)[1]
            return jnp.where(jnp.array([name in self.stated for name in self.system.states]), scaled, y)

        return jax.vmap(one)(batch.origin + batch.ts[:, 0], self.guess(batch), batch.us[:, 0])

    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        return self(batch)

    @property
    def stated(self) -> tuple[str, ...]:
        """The states that have an expression."""
        return tuple(name for name, _ in self.values.texts)

    @property
    def given_rows(self) -> int | None:
        return 0 if set(self.system.states[: self.guess.measured]) <= set(self.stated) else 1

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
    """Each trajectory starts where nothing changes under its first inputs: the system had rested before.

    The states are found by Levenberg and Marquardt's method from the first measurements, and differentiated by the
    implicit function theorem. They should be the only steady state near there. If totals are conserved, every total has
    one: start with a row long before the first sample instead.

    **Arguments:**

    - `system`, `batch`: the system, and the training data.
    - `absent`: where the search begins for states that a trajectory never shows, in the user's units: a number for all,
      or one for each by its name; if None, at its training mean, and at 0 for a hidden state.
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

    def completed(self, starts: Starts, field: VectorField, batch: Batch) -> Starts:
        tolerance = 1e-5 if starts.dtype == jnp.float32 else 1e-10

        def rates(y: Float[Array, " state"], at: tuple) -> Float[Array, " state"]:
            own, t, u = at
            return own(t, y, u)

        def one(start: Float[Array, " state"], t: Float[AnyArray, ""], u: Float[AnyArray, " input"]) -> Array:
            return optx.root_find(
                rates,
                optx.LevenbergMarquardt(rtol=tolerance, atol=tolerance),
                start,
                args=(field, t, u),
                max_steps=STEADY_STEPS,
                # A model in training may have no steady state; its slowest point nearby serves as well.
                throw=False,
                adjoint=optx.ImplicitAdjoint(lx.AutoLinearSolver(well_posed=False)),
            ).value

        return jax.vmap(one)(starts, batch.origin + batch.ts[:, 0], batch.us[:, 0])

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

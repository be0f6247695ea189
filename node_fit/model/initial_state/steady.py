"""Starts at a steady state."""

import jax
import jax.numpy as jnp
import lineax as lx
import optimistix as optx
from jaxtyping import Array, Float, PRNGKeyArray

from ...data.batch import Batch
from ...runtime.serialization import stored_as
from ...runtime.validation import checks_arguments
from ...solver.problem import VectorField
from ..system import System
from .rule import Absent, AbstractStart, Guess, Simulate, Starts

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

        def one(start: Float[Array, " state"], t: Float[Array, ""], u: Float[Array, " input"]) -> Array:
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

    @property
    def reads_windows(self) -> bool:
        return False

    @property
    def given(self) -> str:
        return "the steady state under the first inputs"

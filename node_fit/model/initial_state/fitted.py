"""Starts that are fitted, one for each trajectory."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ...data.batch import Batch, first_rows
from ...runtime.serialization import stored_as
from ...runtime.validation import checks_arguments
from ..system import System
from .rule import Absent, AbstractStart, Guess, Simulate, Starts

START_STEPS = 50
# A residual that stands for "not solved".
FAR_START = 1e3
# The search begins at a typical start where the sum of squares there is below this share of that at the guess.
MUCH_NEARER = 0.1


@stored_as("Fitted")
class Fitted(AbstractStart):
    """The starts of training trajectories are parameters; the start of a new one solves a small least-squares problem.

    **Arguments:**

    - `system`, `batch`: the system, and the training data, whose first measurements are the initial guess.
    - `given`: number of rows of a new trajectory to which its start is fitted; all if None. If the first rows of a
      trajectory do not count in the score (a forecast), the start is fitted to those instead.
    - `absent`: known start of states that a trajectory never shows, such as hidden ones, in the user's units: a number
      for all, or one for each by its name. It is then not fitted. If None, it is fitted from the training
      mean, and of a hidden state from 0.
    - `key`: not used.
    """

    guess: Guess
    values: Starts
    rows: int | None = eqx.field(static=True)

    @checks_arguments
    def __init__(
        self,
        system: System,
        batch: Batch,
        *,
        given: int | None = 10,
        absent: Absent = None,
        key: PRNGKeyArray | None = None,
    ):
        if given is not None and given < 1:
            raise ValueError(f"given must be at least 1, or null for all rows, got {given}.")
        self.guess = Guess.of(system, batch, absent)
        self.rows = given
        self.values = jnp.asarray(self.guess(jax.tree.map(jnp.asarray, batch)))

    def __call__(self, batch: Batch) -> Starts:
        return jnp.where(self.free(batch), self.values[batch.index], self.guess(batch))

    def free(self, batch: Batch) -> Bool[Array, "trajectory state"]:
        """Which starts are fitted."""
        return self.guess.shows(batch) | ~jnp.array(self.guess.told)[None]

    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        def one(row: Int[Array, ""]) -> Float[Array, " state"]:
            own: Batch = jax.tree.map(lambda x: x[row][None], batch)
            guess, free, mask = self.initial(own), self.free(own), self.given_mask(own)

            def residuals(start: Float[Array, " state"], _: None) -> Float[Array, "1 time channel"]:
                ys = simulate(jnp.where(free, start[None], guess), own)
                # A start from which the solve fails counts as far off, so that the search turns back.
                misfit = own.weighted(jnp.where(jnp.isfinite(ys), ys - own.ys, FAR_START))
                return jnp.where(mask, misfit, 0)

            search = optx.LevenbergMarquardt(rtol=1e-6, atol=1e-6)
            begin = self.nearer(lambda start: residuals(start, None), guess[0], free[0])
            found = optx.least_squares(residuals, search, begin, max_steps=START_STEPS, throw=False).value
            return jnp.where(free[0] & jnp.isfinite(found), found, guess[0])

        return jax.vmap(one)(jnp.arange(batch.ts.shape[0]))

    def adapted(self, batch: Batch) -> "Fitted":
        placed = jax.tree.map(lambda x: jnp.asarray(x, self.values.dtype if x.dtype.kind == "f" else None), batch)
        return eqx.tree_at(lambda start: start.values, self, self.initial(placed))

    def nearer(
        self, residuals: Callable[[Float[Array, " state"]], Array], guess: Float[Array, " state"], free: Array
    ) -> Float[Array, " state"]:
        """The guess, or the mean of the fitted starts where that is much nearer to the measurements."""
        typical = jnp.where(free, self.values.mean(axis=0), guess)
        here, there = (jnp.sum(residuals(start) ** 2) for start in (guess, typical))
        return jnp.where(there < MUCH_NEARER * here, typical, guess)

    def begun_at(self, starts: Float[Any, " state"]) -> "Fitted":
        unknown = np.array(self.guess.unknown, int)
        given = jnp.asarray(starts, float)
        values = jnp.asarray(self.values).at[:, : self.guess.measured].add(given[: self.guess.measured])
        return eqx.tree_at(lambda start: start.values, self, values.at[:, unknown].set(given[unknown]))

    def initial(self, batch: Batch) -> Starts:
        """First measurements; for hidden states whose start is not known, the mean of the fitted starts."""
        typical = jnp.broadcast_to(self.values.mean(axis=0), (batch.first.shape[0], self.values.shape[1]))
        unknown = jnp.array([at in self.guess.unknown for at in range(self.values.shape[1])])[None]
        return jnp.where(unknown, typical, self.guess(batch))

    def given_mask(self, batch: Batch) -> Bool[Array, "trajectory time channel"]:
        """The measurements that a start may be fitted to."""
        context = batch.known & ~batch.mask
        rows = jnp.arange(batch.ts.shape[1])[None, :, None]
        first = batch.known if self.rows is None else batch.known & (rows < self.rows)
        return jnp.where(context.any(axis=(1, 2), keepdims=True), context, first)

    @property
    def given_rows(self) -> int | None:
        return self.rows

    def needed(self, batch: Batch) -> Batch:
        used = np.asarray(self.given_mask(batch)).any(axis=(0, 2))
        last = int(np.flatnonzero(used)[-1]) + 1 if used.any() else 1
        return first_rows(batch, 1 << (last - 1).bit_length())

    @property
    def reads_windows(self) -> bool:
        return False

    @property
    def given(self) -> str:
        rows = "all rows" if self.rows is None else f"the first {self.rows} rows"
        return f"{rows}, or those before the first that counts, to which the start is fitted"

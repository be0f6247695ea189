"""Trained initial states: fitted for each trajectory, or estimated from measurements with a network."""

import copy
from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ...data.batch import Batch, first_rows
from ...data.domains import namespace
from ...minimize.compiled import search_least_squares
from ...runtime.placement import AnyArray
from ...runtime.serialization import stored_as
from ...runtime.validation import checks_arguments
from ..fields.network import Activation, Layers
from ..system import System
from .rule import Absent, AbstractStart, Guess, Simulate, Starts

# Residual of a failed solve.
FAR_START = 1e3
# Minimum number of rows, a power of 4, in a program that fits the start of a new trajectory.
MIN_PADDED_ROWS = 64


@eqx.filter_jit
def guess_starts(guess: Guess, batch: Batch) -> Starts:
    """Computes the guess in one program, since separate operations take longer to compile."""
    return guess(batch)


@stored_as("Fitted")
class Fitted(AbstractStart):
    """Starts that are parameters for training trajectories, and solve a small least-squares problem for new ones.

    **Arguments:**

    - `system`, `batch`: the system, and the training data, whose first measurements are the initial guess.
    - `given`: number of rows of a new trajectory to which its start is fitted; all if None. If the first rows of a
      trajectory do not count in the score (a forecast), the start is fitted to those instead.
    - `absent`: known start of states that are never measured in a trajectory, such as hidden ones, in the user's units:
      a number for all, or numbers by name. It is then not fitted. If None, the start is fitted from the training mean,
      or from 0 for a hidden state.
    - `key`: not used.
    """

    is_fitted: ClassVar[bool] = True
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
        self.values = guess_starts(self.guess, batch)

    def __call__(self, batch: Batch) -> Starts:
        return namespace(batch.first).where(self.free(batch), self.values[batch.index], self.guess(batch))

    def free(self, batch: Batch) -> Bool[AnyArray, "trajectory state"]:
        """Returns whether each start is fitted."""
        return self.guess.shows(batch) | ~np.array(self.guess.is_stated)[None]

    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        def one(row: Int[Array, ""]) -> Float[Array, " state"]:
            single: Batch = jax.tree.map(lambda x: x[row][None], batch)
            guess, free, mask = self.initial(single), self.free(single), self.given_mask(single)

            def residuals(start: Float[Array, " state"]) -> Float[Array, " residual"]:
                ys = simulate(jnp.where(free, start[None], guess), single)
                # Large residuals for a failed solve make the search turn back.
                misfit = single.weigh_residuals(jnp.where(jnp.isfinite(ys), ys - single.middles, FAR_START))
                return jnp.where(mask, misfit, 0).reshape(-1)

            typical = jnp.where(free[0], self.values.mean(axis=0), guess[0])
            return jnp.where(free[0], search_least_squares(residuals, guess[0], typical), guess[0])

        return jax.vmap(one)(jnp.arange(batch.ts.shape[0]))

    def adapt(self, batch: Batch) -> "Fitted":
        placed = jax.tree.map(lambda x: jnp.asarray(x, self.values.dtype if x.dtype.kind == "f" else None), batch)
        return eqx.tree_at(lambda start: start.values, self, self.initial(placed))

    def reading(self, rows: int | None) -> "Fitted":
        """Returns the same start, fitted to this number of rows of a new trajectory; to all if None."""
        alike = copy.copy(self)
        object.__setattr__(alike, "rows", rows)
        return alike

    def begin_at(self, starts: Float[AnyArray, " state"]) -> "Fitted":
        unknown = np.array(self.guess.unknown, int)
        shifts = jnp.asarray(starts, float)
        values = jnp.asarray(self.values).at[:, : self.guess.measured].add(shifts[: self.guess.measured])
        return eqx.tree_at(lambda start: start.values, self, values.at[:, unknown].set(shifts[unknown]))

    def initial(self, batch: Batch) -> Starts:
        """Returns first measurements; for hidden states with an unknown start, the mean of the fitted starts."""
        xp = namespace(batch.first)
        typical = xp.broadcast_to(self.values.mean(axis=0), (batch.first.shape[0], self.values.shape[1]))
        unknown = np.array([index in self.guess.unknown for index in range(self.values.shape[1])])[None]
        return xp.where(unknown, typical, self.guess(batch))

    def given_mask(self, batch: Batch) -> Bool[AnyArray, "trajectory time channel"]:
        """Returns the mask of measurements that a start can be fitted to."""
        context = batch.known & ~batch.mask
        rows = np.arange(batch.ts.shape[1])[None, :, None]
        first = batch.known if self.rows is None else batch.known & (rows < self.rows)
        has_context = context.any(axis=(1, 2), keepdims=True)
        return (has_context & context) | (~has_context & first)

    @property
    def given_rows(self) -> int | None:
        return self.rows

    def needed_rows(self, batch: Batch) -> Batch:
        used = np.asarray(self.given_mask(batch)).any(axis=(0, 2))
        last = int(np.flatnonzero(used)[-1]) + 1 if used.any() else 1
        # A power of 4, so that splits of one record share a program; padding takes no steps.
        return first_rows(batch, max(MIN_PADDED_ROWS, 1 << 2 * -(-(last - 1).bit_length() // 2)))

    def share_program(self, needed: Batch) -> tuple["Fitted", Batch]:
        return self.reading(None), replace(needed, known=self.given_mask(needed))

    @classmethod
    def can_read_windows(cls, *, absent: Absent, hides: bool) -> bool:
        return False

    @property
    def reads_windows(self) -> bool:
        return False

    @property
    def given(self) -> str:
        rows = "all rows" if self.rows is None else f"the first {self.rows} rows"
        return f"fitted to {rows}; of a forecast, to the rows before it"


# Trajectories with at least this multiple of the rows that are read can spare rows before their start.
LONG_PAST = 8


@stored_as("Encoder")
class Encoder(AbstractStart):
    """A linear map and a network of neighbouring rows, which correct the measurement at the start.

    This rule is intended for hidden states that are determined by measurements shortly before or after (Forgione and
    Piga, European Journal of Control 59, 2021; Beintema, Toth and Schoukens, L4DC 2021). It reads the rows up to the
    start if trajectories are long enough to spare them, else a trajectory's first rows. Both parts are initially zero.

    **Arguments:**

    - `system`, `batch`: the system, and the training data.
    - `rows`: number of rows that it reads.
    - `before`: read the rows up to the start, and simulate a trajectory from the last of them on; by default if the
      training trajectories have at least eight times this number of rows.
    - `washout`: number of rows simulated between the start and the first row that counts, if the trajectory has enough:
      the system's own damping reduces the error of the start.
    - `width`, `depth`, `activation`: of the network.
    - `absent`: start, before the correction, of states that are never measured in a trajectory, in the user's units: a
      number for all, or numbers by name; if None, the training mean, and 0 for a hidden state.
    - `key`: PRNG key of the initial weights.

    **Raises:** `ValueError` if a number is out of range.
    """

    guess: Guess
    matrix: Float[Array, "state feature"]
    shift: Float[Array, " state"]
    network: Layers
    rows: int = eqx.field(static=True)
    before: bool = eqx.field(static=True)
    washed: int = eqx.field(static=True)

    @checks_arguments
    def __init__(
        self,
        system: System,
        batch: Batch,
        *,
        rows: int = 10,
        before: bool | None = None,
        washout: int = 0,
        width: int = 32,
        depth: int = 1,
        activation: Activation = "tanh",
        absent: Absent = None,
        key: PRNGKeyArray,
    ):
        if rows < 1:
            raise ValueError(f"rows must be at least 1, got {rows}.")
        if washout < 0:
            raise ValueError(f"washout must be at least 0, got {washout}.")
        self.guess = Guess.of(system, batch, absent)
        features = rows * (2 * batch.ys.shape[2] + batch.us.shape[2] + 1)
        layers = Layers(features, len(system.states), width=width, depth=depth, activation=activation, key=key)
        self.matrix = jnp.zeros((len(system.states), features))
        self.shift = jnp.zeros(len(system.states))
        self.network = layers.with_zero_output()
        self.rows = rows
        self.washed = washout
        lengths = np.sum(np.diff(np.asarray(batch.ts, np.float64), axis=1) > 0, axis=1) + 1
        self.before = bool(np.median(lengths) >= LONG_PAST * rows) if before is None else before

    @property
    def prior_part(self) -> PyTree:
        return self.network

    def __call__(self, batch: Batch) -> Starts:
        features = self.features(batch)
        return self.guess(batch) + features @ self.matrix.T + self.shift[None] + jax.vmap(self.network)(features)

    def features(self, batch: Batch) -> Float[Array, "trajectory feature"]:
        """Returns channels, whether they were measured, inputs, and times since the start, in the rows it reads."""
        if self.before:
            return jnp.asarray(batch.past).reshape(batch.past.shape[0], -1)
        since = batch.ts - batch.ts[:, :1]
        ys = jnp.where(batch.known, batch.ys, 0)
        table = jnp.concatenate([ys, batch.known.astype(ys.dtype), batch.us, since[..., None]], axis=2)
        rows, missing = table[:, : self.rows], max(self.rows - table.shape[1], 0)
        blank = jnp.zeros((len(table), missing, table.shape[2]), table.dtype)
        return jnp.concatenate([rows, blank], axis=1).reshape(len(table), -1)

    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        return self(batch)

    def with_past_map(
        self, matrix: Float[np.ndarray, "state feature"], shift: Float[np.ndarray, " state"]
    ) -> "Encoder":
        if self.matrix.shape != matrix.shape:
            return self
        like = self.matrix.dtype
        return eqx.tree_at(lambda s: (s.matrix, s.shift), self, (jnp.asarray(matrix, like), jnp.asarray(shift, like)))

    @property
    def past(self) -> int:
        return self.rows if self.before else 0

    @property
    def washout(self) -> int:
        return self.washed if self.before else 0

    @property
    def given_rows(self) -> int | None:
        return self.rows

    @property
    def read_rows(self) -> int:
        return self.rows

    def needed_rows(self, batch: Batch) -> Batch:
        return first_rows(batch, 1 if self.before else self.rows)

    @property
    def reads_windows(self) -> bool:
        return True

    @property
    def given(self) -> str:
        rows = f"the {self.rows} rows up to it" if self.before else f"the first {self.rows} rows"
        return f"estimated from {rows}, by a linear map and a network"

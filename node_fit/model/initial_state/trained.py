"""Starts that training finds: fitted, one for each trajectory, or read from measurements by a network."""

import copy
from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from ...data.batch import Batch, first_rows
from ...minimize.compiled import search_least_squares
from ...runtime.placement import AnyArray
from ...runtime.serialization import stored_as
from ...runtime.validation import checks_arguments
from ..fields.network import Activation, Layers
from ..system import System
from .rule import Absent, AbstractStart, Guess, Simulate, Starts

# A residual that stands for "not solved".
FAR_START = 1e3
# The start of a new trajectory is fitted in a program for at least so many rows, a power of 4.
MIN_PADDED_ROWS = 64


@eqx.filter_jit
def guess_starts(guess: Guess, batch: Batch) -> Starts:
    """The guess by one program: each operation apart takes a while to compile."""
    return guess(batch)


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
        return jnp.where(self.free(batch), self.values[batch.index], self.guess(batch))

    def free(self, batch: Batch) -> Bool[Array, "trajectory state"]:
        """Which starts are fitted."""
        return self.guess.shows(batch) | ~jnp.array(self.guess.told)[None]

    def estimate(self, simulate: Simulate, batch: Batch) -> Starts:
        def one(row: Int[Array, ""]) -> Float[Array, " state"]:
            own: Batch = jax.tree.map(lambda x: x[row][None], batch)
            guess, free, mask = self.initial(own), self.free(own), self.given_mask(own)

            def residuals(start: Float[Array, " state"]) -> Float[Array, " residual"]:
                ys = simulate(jnp.where(free, start[None], guess), own)
                # A start from which the solve fails counts as far off, so that the search turns back.
                misfit = own.weighted(jnp.where(jnp.isfinite(ys), ys - own.middles, FAR_START))
                return jnp.where(mask, misfit, 0).reshape(-1)

            typical = jnp.where(free[0], self.values.mean(axis=0), guess[0])
            return jnp.where(free[0], search_least_squares(residuals, guess[0], typical), guess[0])

        return jax.vmap(one)(jnp.arange(batch.ts.shape[0]))

    def adapted(self, batch: Batch) -> "Fitted":
        placed = jax.tree.map(lambda x: jnp.asarray(x, self.values.dtype if x.dtype.kind == "f" else None), batch)
        return eqx.tree_at(lambda start: start.values, self, self.initial(placed))

    def reading(self, rows: int | None) -> "Fitted":
        """The same start, which is fitted to this number of rows of a new trajectory; to all if None."""
        alike = copy.copy(self)
        object.__setattr__(alike, "rows", rows)
        return alike

    def begun_at(self, starts: Float[AnyArray, " state"]) -> "Fitted":
        unknown = np.array(self.guess.unknown, int)
        given = jnp.asarray(starts, float)
        values = jnp.asarray(self.values).at[:, : self.guess.measured].add(given[: self.guess.measured])
        return eqx.tree_at(lambda start: start.values, self, values.at[:, unknown].set(given[unknown]))

    def initial(self, batch: Batch) -> Starts:
        """First measurements; for hidden states whose start is not known, the mean of the fitted starts."""
        typical = jnp.broadcast_to(self.values.mean(axis=0), (batch.first.shape[0], self.values.shape[1]))
        unknown = jnp.array([at in self.guess.unknown for at in range(self.values.shape[1])])[None]
        return jnp.where(unknown, typical, self.guess(batch))

    def given_mask(self, batch: Batch) -> Bool[AnyArray, "trajectory time channel"]:
        """The measurements that a start may be fitted to."""
        context = batch.known & ~batch.mask
        rows = np.arange(batch.ts.shape[1])[None, :, None]
        first = batch.known if self.rows is None else batch.known & (rows < self.rows)
        has_context = context.any(axis=(1, 2), keepdims=True)
        return (has_context & context) | (~has_context & first)

    @property
    def given_rows(self) -> int | None:
        return self.rows

    def needed(self, batch: Batch) -> Batch:
        used = np.asarray(self.given_mask(batch)).any(axis=(0, 2))
        last = int(np.flatnonzero(used)[-1]) + 1 if used.any() else 1
        # A power of 4, so that splits of one record share a program; what is filled up takes no steps.
        return first_rows(batch, max(MIN_PADDED_ROWS, 1 << 2 * -(-(last - 1).bit_length() // 2)))

    def shared(self, needed: Batch) -> tuple["Fitted", Batch]:
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


# Trajectories of at least this multiple of the rows that are read have rows to spare before their start.
LONG_PAST = 8


@stored_as("Encoder")
class Encoder(AbstractStart):
    """A linear map and a network of neighbouring rows, which correct the measurement at the start.

    It is the rule for hidden states, which measurements shortly before or after determine (Forgione and Piga, European
    Journal of Control 59, 2021; Beintema, Toth and Schoukens, L4DC 2021). It reads the rows up to the start if
    trajectories are long enough to spare them, else a trajectory's first rows. Both parts are zero at first.

    **Arguments:**

    - `system`, `batch`: the system, and the training data.
    - `rows`: number of rows that it reads.
    - `before`: whether these are the rows up to the start, so that a trajectory is simulated from the last of them on;
      by default if the training trajectories have at least eight times as many.
    - `washout`: rows that are simulated between the start and the first one that counts, where there are so many: the
      system's own damping takes away a part of the start's error.
    - `width`, `depth`, `activation`: of the network.
    - `absent`: where a state starts that a trajectory never shows, before the correction, in the user's units: a number
      for all, or one for each by its name; if None, its training mean, and 0 for a hidden state.
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
        self.network = layers.silenced()
        self.rows = rows
        self.washed = washout
        lengths = np.sum(np.diff(np.asarray(batch.ts, np.float64), axis=1) > 0, axis=1) + 1
        self.before = bool(np.median(lengths) >= LONG_PAST * rows) if before is None else before

    @property
    def penalised(self) -> PyTree:
        return self.network

    def __call__(self, batch: Batch) -> Starts:
        features = self.features(batch)
        return self.guess(batch) + features @ self.matrix.T + self.shift[None] + jax.vmap(self.network)(features)

    def features(self, batch: Batch) -> Float[Array, "trajectory feature"]:
        """Channels, whether they were measured, inputs, and times since the start, in the rows that it reads."""
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

    def needed(self, batch: Batch) -> Batch:
        return first_rows(batch, 1 if self.before else self.rows)

    @property
    def reads_windows(self) -> bool:
        return True

    @property
    def given(self) -> str:
        rows = f"the {self.rows} rows up to it" if self.before else f"the first {self.rows} rows"
        return f"estimated from {rows}, by a linear map and a network"

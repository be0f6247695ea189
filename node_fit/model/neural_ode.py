"""Neural ODEs: a vector field, with everything that maps it to measured trajectories in the user's units.

Rows used to estimate the initial state of a trajectory are predicted in hindsight (a hindcast).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree

from ..data.batch import Batch, count_in_slice, start_rows
from ..data.dataset import Dataset, GivenStates, check_data, from_initial_values, is_single
from ..data.domains import from_line, to_line
from ..data.groups import check_known_groups
from ..data.phases import missing_cycles
from ..data.scaling import Scaler, columns_by_name
from ..data.trajectories import cut
from ..likelihood.losses import LEAST_COUNT, LEAST_SCALE, Predictors
from ..minimize.host import DampedSteps, Damping, LinearisedPoint, minimize_together
from ..runtime.compilation import jit_by_size
from ..runtime.placement import ArrayLike, ambient, carry, dtype_of, precision_of, scope_of
from ..runtime.serialization import stored_as
from ..solver.problem import InitialValueProblem, Intervals, Solution, VectorField, interpolate
from ..solver.row_by_row import Front
from ..solver.solver import Solver
from ..solver.switches import has_stops
from .fields.known import Local, constants_in
from .host_rollout import is_soon_predicted, predict_without_compiling
from .initial_state.rule import AbstractStart, Starts
from .noise import NoiseModel
from .observation import DirectReadout, FormulaReadout, MeasuredStates, Observation
from .rollout import (
    ROOMS,
    Prediction,
    advance_channels,
    begin_prediction,
    compile_prediction,
    intervals_to,
    outputs,
    pieces_of,
    predict_rows,
    predicted_frame,
)
from .system import System

if TYPE_CHECKING:
    import pandas

BEYOND = 1e4
# Maximum number of rows before a start that a hindcast simulates: the size of one piece of a prediction.
MOST_EARLIER = ROOMS[-1]
# Search for a hindcast's initial states: maximum number of iterations, and finite-difference step [scaled units].
ITERATIONS, NUDGE = 10, 1e-2
# Maximum number of iterations for a linear field; a single undamped step would be enough.
LINEAR_ITERATIONS = 2
# Residual of a failed solve.
NOT_SOLVED = 1e3


@stored_as("NeuralODE")
class NeuralODE(eqx.Module):
    """A system `dz/dt = field(t, z, u)`, `channels = observation(z)`, with a rule for initial states.

    Internally, all quantities are of order one; `predict` takes and returns the user's units.

    Chen, Rubanova, Bettencourt and Duvenaud, "Neural ordinary differential equations", NeurIPS 2018.

    **Arguments:**

    - `field`: called with `(t, z, u)`.
    - `start`: the rule for the initial states.
    - `observation`: maps states to measured channels.
    - `scaler`: scales channels, inputs and time from the user's units to order one.
    - `solver`: the solver for predictions; its tolerances are tight, since a loose solve spoils the score of a good
      fit.
    - `system`: names and scales of the states of the ODE (measured and hidden ones, or those of a readout), of the
      inputs and of the time.
    - `states`: names of the channels that the model was fitted to.
    - `units`: pairs of a channel's name and its unit.
    - `noise`: the noise of measurements, if it has constants or is not normal; None for least squares.
    """

    field: VectorField
    start: AbstractStart
    observation: Observation
    scaler: Scaler
    solver: Solver
    system: System
    states: tuple[str, ...] = eqx.field(static=True)
    units: tuple[tuple[str, str], ...] = eqx.field(static=True)
    noise: NoiseModel | None = None

    def __str__(self) -> str:
        driven = f" with inputs {', '.join(self.inputs)}" if self.inputs else ""
        hidden = [name for name in self.latent if name not in self.states]
        suffix = f", hidden states {', '.join(hidden)}" if hidden else ""
        kind = type(self.field).__name__
        return f"NeuralODE of {', '.join(self.states)}{driven}{suffix}; its field is of the class {kind}"

    @property
    def latent(self) -> tuple[str, ...]:
        """Names of the states of the ODE, hidden ones included."""
        return self.system.states

    @property
    def hidden(self) -> tuple[str, ...]:
        """Names of the hidden states; none if the channels are a readout of the states."""
        return self.latent[len(self.states) :] if isinstance(self.observation, MeasuredStates) else ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return self.system.inputs

    @property
    def is_measured(self) -> bool:
        """Whether every state is measured directly."""
        return isinstance(self.observation, MeasuredStates) and self.latent == self.states

    def problem(self, batch: Batch, start: Float[Array, "trajectory state"]) -> InitialValueProblem:
        """Returns the initial value problem of all states, hidden ones included, in scaled units."""
        bound = self.divergence_bound(batch, start)
        return InitialValueProblem(self.field, batch.ts, start, batch.us, batch.origin, bound, batch.jumps)

    def guess(
        self, batch: Batch, start: Float[Array, "trajectory state"]
    ) -> Float[Array, "trajectory time state"] | None:
        """Guesses states near those of a good fit: the last measured value, or the start for unmeasured states.

        None if no channel is a state.
        """
        if not isinstance(self.observation, MeasuredStates):
            return None
        rows = jnp.arange(batch.ts.shape[1])[None, :, None]
        last = jnp.maximum.accumulate(jnp.where(batch.known, rows, -1), axis=1)
        count = batch.ys.shape[2]
        measured = jnp.take_along_axis(jnp.asarray(batch.ys), jnp.maximum(last, 0), axis=1)
        measured = jnp.where(last < 0, start[:, None, :count], measured)
        others = jnp.broadcast_to(start[:, None, count:], (*measured.shape[:2], start.shape[1] - count))
        return jax.lax.stop_gradient(jnp.concatenate([measured, others], axis=2))

    def divergence_bound(self, batch: Batch, start: Float[Array, "trajectory state"]) -> Float[Array, " state"]:
        """Returns a bound far above all values of a state; a solution beyond it has diverged.

        Measurements of other states do not bound a hidden state of equations, which has units of its own: a population
        can grow by ten orders of magnitude.
        """
        largest = jnp.abs(batch.ys).max() + jnp.abs(jax.lax.stop_gradient(start)).max()
        bound = jnp.full(start.shape[1], BEYOND * (1 + largest))
        if not getattr(self.field, "has_equations", False):  # User-defined fields can lack this attribute.
            return bound
        # Products of three such states are still finite, and so are gradients.
        free = jnp.arange(start.shape[1]) >= self.system.measured
        return jnp.where(free, jnp.maximum(bound, float(jnp.finfo(bound.dtype).max) ** (1 / 3)), bound)

    def observe(
        self, states: Float[Array, "trajectory time state"], batch: Batch
    ) -> Float[Array, "trajectory time channel"]:
        """Returns the measured channels at the states of a batch's rows, in scaled units."""
        if not isinstance(self.observation, FormulaReadout | DirectReadout):
            return jax.vmap(jax.vmap(self.observation))(states)
        ts, us = jnp.asarray(batch.origin[:, None] + batch.ts), jnp.asarray(batch.us)
        if not self.counts:
            return jax.vmap(jax.vmap(self.channels))(ts, states, us)
        totals = jax.vmap(jax.vmap(self.totals))(ts, states, us)
        grown = jnp.diff(totals, axis=1, prepend=totals[:, :1])
        is_later = jnp.diff(ts, axis=1, prepend=ts[:, :1])[..., None] > 0
        # In first rows and in padding, 1 keeps logarithms and roots finite.
        return jax.vmap(jax.vmap(self.channels))(ts, states, us, jnp.where(is_later, grown, 1))

    def channels(
        self,
        t: Float[Array, ""],
        z: Float[Array, " state"],
        u: Float[Array, " input"],
        increases: Float[Array, " increase"] | None = None,
    ) -> Float[Array, " channel"]:
        """Returns the measured channels at one time, state and input, in scaled units.

        **Arguments:** `increases`: growth of the totals of `increase(...)` since the row before.
        """
        if isinstance(self.observation, DirectReadout):
            return self.observation.read(z, u)
        if not isinstance(self.observation, FormulaReadout):
            return self.observation(z)
        ys = self.observation.read(self.values_by_name(t, z, u), increases)
        return (columns_by_name(to_line, ys, self.scaler.bounds) - self.scaler.state_shift) / self.scaler.state_scale

    def totals(
        self, t: Float[Array, ""], z: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " increase"]:
        """Returns the quantities counted between rows, as totals at a time, in the user's units."""
        assert isinstance(self.observation, FormulaReadout)
        return self.observation.totals(self.values_by_name(t, z, u))

    def values_by_name(
        self, t: Float[Array, ""], z: Float[Array, " state"], u: Float[Array, " input"]
    ) -> dict[str, Float[Array, ""]]:
        """Returns states, inputs, the time and the field's constants by name, in the user's units."""
        named = self.system.values_by_name(*self.system.in_users_units(t, z, u))
        return named | {name: value for part in constants_in(self.field) for name, value in part.at(named).items()}

    @property
    def counts(self) -> bool:
        """Whether a channel is counted between rows."""
        return isinstance(self.observation, FormulaReadout) and self.observation.counts

    def predictors(self, states: Float[Array, "trajectory time state"], batch: Batch, *, counts: bool) -> Predictors:
        """Returns the likelihood's predictors for each measurement, arrays of shape `(trajectory, time, channel)`.

        **Arguments:**

        - `states`: in scaled units, at the rows of the batch. `counts`: whether measurements are counts.
        """
        noise, scaler = self.noise, self.scaler
        assert noise is not None
        channels = self.observe(states, batch)
        size, origin = (jnp.asarray(array)[None, None] for array in (scaler.state_scale, scaler.state_shift))
        ys = jnp.asarray(batch.ys)
        predicted, measured = (
            columns_by_name(from_line, array * size + origin, scaler.bounds) for array in (channels, ys)
        )
        location, is_log = channels - scaler.near(ys, channels), noise.is_log()[None, None]
        logs = jnp.log(jnp.maximum(predicted, LEAST_COUNT))
        if counts:
            location = logs
        elif noise.log_channels:
            location = jnp.where(is_log, logs - jnp.log(jnp.maximum(measured, LEAST_COUNT)), location)
        if noise.has_formulas:
            ts, us = jnp.asarray(batch.origin[:, None] + batch.ts), jnp.asarray(batch.us)

            def deviations(t: Array, z: Array, u: Array, ys: Array) -> Array:
                names = self.values_by_name(t, z, u)
                constants = {
                    name: value for part in constants_in(self.observation) for name, value in part.at(names).items()
                }
                return noise.deviations(names | constants, ys)

            sigma = jax.vmap(jax.vmap(deviations))(ts, states, us, predicted)
            scale = jnp.hypot(jnp.where(is_log, sigma, sigma / size), jnp.asarray(LEAST_SCALE, sigma.dtype))
        elif batch.weight is None or batch.deviation is None or counts:
            scale = jnp.ones_like(channels)
        else:
            scale = batch.deviation / batch.weight
        shapes = tuple(jnp.broadcast_to(array[None, None], channels.shape) for array in noise.log_shapes())
        censored = jnp.zeros_like(channels) if batch.censored is None else jnp.asarray(batch.censored, channels.dtype)
        return Predictors(location, jnp.log(scale), shapes, jnp.round(measured), censored, self.widths(batch))

    def widths(self, batch: Batch) -> Float[Array, "trajectory time channel"] | None:
        """Returns the widths of intervals of censored values, in the unit of `location`.

        They are logarithmic for log-normal noise, infinite for one-sided intervals, and None if all are one-sided.
        """
        noise, scaler = self.noise, self.scaler
        if batch.width is None or batch.censored is None or noise is None or not noise.log_channels:
            return None if batch.width is None else jnp.asarray(batch.width)
        width = jnp.asarray(batch.width)
        size, origin = (jnp.asarray(array)[None, None] for array in (scaler.state_scale, scaler.state_shift))
        far = jnp.asarray(batch.ys) + jnp.asarray(batch.censored) * jnp.where(jnp.isfinite(width), width, 0)
        logs = [
            jnp.log(jnp.maximum(columns_by_name(from_line, array * size + origin, scaler.bounds), LEAST_COUNT))
            for array in (jnp.asarray(batch.ys), far)
        ]
        is_log = noise.is_log()[None, None] & jnp.isfinite(width)
        return jnp.where(is_log, jnp.abs(logs[1] - logs[0]), width)

    def first_states(self, batch: Batch) -> Float[Array, "trajectory state"]:
        """Returns the initial states of training trajectories, or windows of them, in scaled units."""
        return jnp.asarray(self.start.complete(self.start(batch), self.field, batch))

    def simulate(self, batch: Batch) -> Solution:
        """Simulates the channels of training trajectories in scaled units; custom losses differentiate this.

        **Arguments:** `batch`: trajectories or windows, solved with adaptive steps, jointly if they share their times.

        **Returns:** a solution with `ys` of shape `(trajectory, time, channel)`, and `ok` of shape `(trajectory,)`.
        """
        solution = self.solver.solve(self.problem(batch, self.first_states(batch)), joint=batch.joint)
        return Solution(self.observe(solution.ys, batch), solution.ok)

    def forecast(self, batch: Batch) -> Solution:
        """Simulates the channels of any trajectories in scaled units, from estimated initial states.

        The tolerances are tight, and only forward-mode derivatives exist.
        """
        solution = self.solver.forecast(self.problem(batch, self.estimated_start(batch)))
        return Solution(self.observe(solution.ys, batch), solution.ok)

    def estimated_start(self, batch: Batch) -> Float[Array, "trajectory state"]:
        """Estimates the initial states of any trajectories with the rule `start`."""

        def channels(start: Starts, given: Batch) -> Float[Array, "trajectory time channel"]:
            ys = self.observe(self.solver.forecast(self.problem(given, jnp.asarray(start))).ys, given)
            return self.scaler.near(ys, given.ys)

        return jnp.asarray(self.start.complete(self.start.estimate(channels, batch), self.field, batch))

    def batch(self, data: Dataset) -> Batch:
        """Converts data to arrays in scaled units, and separates the rows that initial states are estimated from."""
        batch = Batch.from_dataset(data, self.scaler, self.start.past, self.start.washout, self.system.jumps)
        return dataclasses.replace(batch, driven=batch.driven or has_stops(self.field))

    def predict(
        self,
        data: Dataset | None = None,
        ts: ArrayLike | None = None,
        *,
        y0: GivenStates = None,
        u: GivenStates = None,
    ) -> Float[np.ndarray, "... state"]:
        """Simulates trajectories in the user's units from their initial states.

        ```python
        model.predict(data)                          # from the measurements of a dataset
        model.predict(y0={"x": 1.0, "v": 0.0}, ts=ts, u=force)  # from plain numbers and arrays
        ```

        **Arguments:**

        - `data`: inputs, and measurements from which the initial states are estimated; channels as in the fit.
        - `ts`: increasing times at which to predict, shape `(trajectory, saved)`; `data.ts` by default.
        - `y0`: instead of `data`, the channels at the first time, by name or of shape `(state,)`; or, for several
          trajectories, arrays by name or shape `(trajectory, state)`. `ts` then has the shape `(time,)` or
          `(trajectory, time)`.
        - `u`: with `y0`, inputs at `ts`, by name or of shape `(time, input)` or `(trajectory, time, input)`; or
          `(time,)` for a single input.

        **Returns:** channels, shape `(trajectory, saved, state)`, float64; not finite once a solve has failed. For a
        `y0` of one trajectory, shape `(time, state)`. Angles have no jumps, and begin within half a turn of zero.

        **Raises:** `ValueError` if the channels are not those of the fit, or a value is not within its bounds.
        """
        if data is None:
            ys = self.predict(self.starting_from(y0, ts, u))
            return ys[0] if is_single(y0) else ys
        return self.bands(data, None if ts is None else np.asarray(ts, np.float64)).ys

    def compile_prediction(self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None = None) -> None:
        """Compiles `predict` ahead of its first call, for these data and for any model of this structure."""
        request = self.prediction_request(data, ts)
        if not is_soon_predicted([self], *request):
            compile_prediction(self, *request)

    def starting_from(self, y0: GivenStates, ts: ArrayLike | None, u: GivenStates) -> Dataset:
        """Returns a dataset with the first row of each trajectory, for predictions; arguments as in `predict`.

        **Raises:** `ValueError` if the initial state is estimated from more than one row.
        """
        if (rows := self.start.read_rows) > 1:
            raise ValueError(
                f"the start of this model is read from {rows} measured rows, and y0 is one; pass data that begin with "
                f"{rows} rows, such as {rows} rows at rest before the first predicted row."
            )
        if y0 is None and self.start.given_rows == 0:
            y0 = np.full(len(self.states), np.nan)  # The initial state does not depend on measurements.
        return from_initial_values(y0, ts, self.scaler.with_number(u), self.states, self.inputs, self.system.time)

    def predict_frame(
        self, data: Dataset | None = None, ts: ArrayLike | None = None, **given: Any
    ) -> "pandas.DataFrame":
        """Returns `predict` as a data frame; see `Fit.predict_frame`."""
        return predicted_frame(self, data, ts, **given)

    @property
    def vector_field(self) -> Callable[..., Float[Array, " state"]]:
        """The right-hand side in the user's units: a pure function that JAX can compile and differentiate.

        ```python
        rates = jax.jit(model.vector_field)(t, y, u)
        ```

        Its arguments are the time, a scalar [unit of time]; all states (`latent`), shape `(state,)`, with hidden ones
        in scaled units; and the inputs, shape `(input,)`, omitted if the model has none. It returns the time
        derivatives [unit of each state per unit of time], shape `(state,)`.
        """

        def vector_field(t: ArrayLike, y: ArrayLike, u: ArrayLike | None = None) -> Float[Array, " state"]:
            model = without_excess_precision(self)
            inputs = jnp.zeros((0,), jnp.result_type(float)) if u is None else jnp.asarray(u, float)
            states = jnp.asarray(y, float)
            scaled = model.system.in_solver_units(jnp.asarray(t, float), states, inputs)
            return model.system.users_rates(states, model.field(*scaled))

        return vector_field

    def solve(self, y0: ArrayLike, ts: ArrayLike, u: ArrayLike | None = None, **options: Any) -> diffrax.Solution:
        """Solves the vector field in the user's units with Diffrax.

        **Arguments:**

        - `y0`: all states (`latent`) at the first time, shape `(state,)`.
        - `ts`: increasing times at which the states are requested, shape `(time,)`.
        - `u`: inputs at `ts`, shape `(time, input)`; omitted if the model has none.
        - `options`: further arguments of `diffrax.diffeqsolve`, which override those of the model's solver.

        **Returns:** a `diffrax.Solution`, whose `ys` have the shape `(time, state)`.
        """
        model = without_excess_precision(self)
        ts, y0 = jnp.asarray(ts, float), jnp.asarray(y0, float)
        us = jnp.zeros((ts.shape[0], 0)) if u is None else jnp.asarray(u, float)

        field = model.vector_field

        def rates(t: Array, y: Array, args: PyTree) -> Array:
            return field(t, y, interpolate(t, ts, us, model.solver.interpolation))

        return model.solver.diffeqsolve(rates, ts, y0, scale=model.system.scaler.state_scale, **options)

    def bands(
        self,
        data: Dataset,
        ts: Float[np.ndarray, "trajectory saved"] | None = None,
        level: float = 0.9,
        *,
        earlier: bool = False,
    ) -> Prediction:
        """Predicts as `Ensemble.bands` does, but without bands, since a single model has none."""
        self.check_channels(data)
        request = self.prediction_request(data, ts)
        uncompiled = predict_without_compiling([self], *request)
        predicted = predict_rows(self, *request) if uncompiled is None else uncompiled[0]
        if earlier:
            predicted = with_earlier(predicted, hindcast(self, data, ts), data, ts)
        return Prediction(
            self.scaler.unscale_states(predicted[..., : len(self.states)]), None, None, self.hidden_of(predicted)
        )

    def hidden_of(
        self, outputs: Float[np.ndarray, "trajectory saved output"]
    ) -> Float[np.ndarray, "trajectory saved hidden"] | None:
        """Returns the hidden states in the user's units, from a prediction's outputs in scaled units."""
        return self.system.scaler.unscale_states(outputs)[..., len(self.states) :] if self.hidden else None

    def prediction_request(
        self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None
    ) -> tuple[Batch, np.ndarray]:
        """Returns trajectories on the host, and the requested times relative to each trajectory's start."""
        batch = self.batch(data)
        return batch, self.scaler.scale_times(data.ts if ts is None else np.asarray(ts, np.float64)) - batch.origin[
            :, None
        ]

    @property
    def typical(self) -> "NeuralODE":
        """The model itself; see `Ensemble.typical`."""
        return self

    def constants(self) -> dict[str, float]:
        """Returns the constants of known equations and starts by name, in the user's units."""
        named = [part.as_dict() for part in constants_in((self.field, self.start, self.observation, self.noise))]
        return {name: value for values in named for name, value in values.items()}

    def check_channels(self, data: Dataset) -> None:
        """Raises an error if channels of the data are not those of the fit, or not within their bounds."""
        check_data(data, "data")
        data = self.scaler.mark_angles(data)
        for kind in ("states", "inputs"):
            fitted, actual = getattr(self, kind), getattr(data, kind)
            if fitted != actual:
                cycles = missing_cycles(fitted, actual)
                fix = f"; data.with_cycles({cycles}) adds the inputs of the clock" if cycles else ""
                raise ValueError(
                    f"the model was fitted to the {kind} {list(fitted)}, but the data have {list(actual)}{fix}."
                )
        self.scaler.check(data)
        for local in self.local:
            check_known_groups(
                data, local.by, local.values, [constant.name for constant in self.local if constant.by == local.by]
            )

    @property
    def local(self) -> list[Local]:
        """The constants with a separate value for each group of trajectories."""
        return [
            constant for part in constants_in((self.field, self.start, self.observation)) for constant in part.local
        ]

    def derivative(self, ys: Float[np.ndarray, "point state"]) -> Float[np.ndarray, "point state"]:
        """Evaluates the vector field at states in the user's units, if all states are measured (`is_measured`).

        **Returns:** time derivatives in the user's units at the first time and mean inputs, shape `(point, state)`.
        """
        with scope_of(self):
            zs = carry(self.scaler.scale_states(ys), dtype_of(precision_of(self)))
            rates = np.asarray(jax.device_get(field_at(self, zs)), dtype=np.float64)
        return self.scaler.unscale_rates(ys, rates)


def without_excess_precision(model: NeuralODE) -> NeuralODE:
    """Returns the model in single precision if the process lacks double: JAX would truncate arrays with warnings."""
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(model))
    fits = traced or ambient() == "x64" or precision_of(model) == "x32"
    return model if fits else carry(model, dtype_of("x32"))


@eqx.filter_jit
def field_at(model: NeuralODE, zs: Float[Array, "point state"]) -> Float[Array, "point state"]:
    t = zs[0, 0] * 0
    u = jnp.zeros((len(model.inputs),), zs.dtype)
    return jax.vmap(lambda z: model.field(t, z, u))(zs)


class Passed(NamedTuple):
    """A simulation of the earlier rows, in scaled units: outputs at the rows, and the states at the last row."""

    outputs: Float[np.ndarray, "trajectory row output"]
    arrival: Float[np.ndarray, "trajectory state"]


def hindcast(
    model: NeuralODE, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None
) -> Float[np.ndarray, "trajectory row output"] | None:
    """Computes outputs in scaled units at the rows before each trajectory's start, and NaN from there on.

    If the start is estimated from earlier rows (`Encoder`), these rows have no prediction. This function assigns them
    the states of the trajectory that fits these rows best and arrives at the estimated start. At most the last
    `MOST_EARLIER` rows are simulated.

    **Arguments:** `data`, `ts`: those of an earlier prediction, whose compiled programs are reused.

    **Returns:** None if trajectories start at their first rows.
    """
    rows = start_rows(data, model.start.past, model.start.washout)
    if not rows.any():
        return None
    result, count = None, len(rows)
    begins = np.maximum(rows + 1 - MOST_EARLIER, 0)
    size = count_in_slice(*(data.ts if ts is None else ts).shape)
    for begin in range(0, count, size):
        chosen = np.minimum(np.arange(begin, begin + size), count - 1)
        subset = data if size == count else data.select(chosen)
        part = earlier_outputs(model, subset, None if ts is None else ts[chosen], begins[chosen], rows[chosen])
        if result is None:
            result = np.full((*data.ts.shape, part.shape[2]), np.nan)
        for index, row in enumerate(chosen):
            result[row, begins[row] : rows[row]] = part[index, : rows[row] - begins[row]]
    return result


def earlier_outputs(
    model: NeuralODE, data: Dataset, ts: np.ndarray | None, begins: np.ndarray, rows: np.ndarray
) -> Float[np.ndarray, "trajectory row output"]:
    """Computes outputs of the trajectories through the rows from `begins` to `rows` that arrive at the starts there."""
    later, wanted = model.prediction_request(data, ts)
    pieces = [(row, int(begin), int(end) + 1) for row, (begin, end) in enumerate(zip(begins, rows, strict=True))]
    head = replace(model.scaler.mark_angles(cut(data, pieces, data.trajectories)), angles={})
    earlier = Batch.from_dataset(head, model.scaler, jumps=model.system.jumps)
    with scope_of(model):
        first = pieces_of(intervals_to(later, wanted, model.solver.interpolation)[0])[0]
        _, front = begin_prediction(model, model.start.needed_rows(later), first)
        arrival = np.asarray(front.y, np.float64)
        simulate = simulation_of(model, earlier, first.end.shape[1])
        guess = model.start.guess
        begin, shown = arrival.copy(), earlier.seen[:, : guess.measured]
        begin[:, : guess.measured] = np.where(shown, earlier.first[:, : guess.measured], arrival[:, : guess.measured])
        near, near_state = model.scaler.near, model.system.scaler.near

        def residuals(starts: Float[np.ndarray, "trajectory state"]) -> Float[np.ndarray, "trajectory residual"]:
            passed = simulate(starts)
            channels = passed.outputs[..., : earlier.ys.shape[2]]
            misfit = np.where(earlier.known, earlier.weigh_residuals(near(channels, earlier.ys) - earlier.ys), 0)
            missed = near_state(passed.arrival, arrival) - arrival
            joined = np.concatenate([misfit.reshape(len(starts), -1), missed], axis=1)
            return np.where(np.isfinite(joined), joined, NOT_SOLVED)

        iterations = LINEAR_ITERATIONS if getattr(model.field, "is_linear", False) else ITERATIONS
        passed = simulate(find_starts(residuals, begin, iterations))
    turns = arrival - near_state(arrival, passed.arrival)
    return passed.outputs + turns[:, None, : passed.outputs.shape[2]]


def simulation_of(
    model: NeuralODE, batch: Batch, room: int
) -> Callable[[Float[np.ndarray, "trajectory state"]], Passed]:
    """Returns a simulation of all rows of a batch from given starts, using the program for `room` intervals."""
    dtype = dtype_of(precision_of(model))
    intervals, index = intervals_to(batch, np.asarray(batch.ts, np.float64), model.solver.interpolation)
    parts = pieces_of(intervals, room)

    def simulate(starts: Float[np.ndarray, "trajectory state"]) -> Passed:
        ys, front = begin_at(model, *carry((batch, starts, jax.tree.map(lambda x: x[:, :1], parts[0])), dtype))
        collected = [np.asarray(ys, np.float64)[:, None]]
        origin = carry(batch.origin, dtype)
        for part in parts:
            ys, front = advance_channels(model, origin, carry(part, dtype), front)
            collected.append(np.asarray(ys, np.float64))
        rows = np.take_along_axis(np.concatenate(collected, axis=1), index[..., None] + 1, axis=1)
        return Passed(rows, np.asarray(front.y, np.float64))

    return simulate


@jit_by_size
def begin_at(
    model: NeuralODE, batch: Batch, starts: Float[Array, "trajectory state"], first: Intervals
) -> tuple[Array, Front]:
    """Returns outputs at given starts, and the front of the solve there."""
    front = model.solver.begin(model.problem(batch, starts), first)
    return outputs(model, batch.origin + batch.ts[:, 0], front.y, batch.us[:, 0]), front


def find_starts(
    residuals: Callable[[np.ndarray], Float[np.ndarray, "trajectory residual"]],
    begin: Float[np.ndarray, "trajectory state"],
    iterations: int = ITERATIONS,
) -> Float[np.ndarray, "trajectory state"]:
    """Runs the Levenberg-Marquardt method for all trajectories at once, with finite-difference derivatives."""

    def look(starts: Float[np.ndarray, "trajectory state"]) -> list[LinearisedPoint]:
        now = residuals(starts)
        jacobian = np.stack([(residuals(starts + NUDGE * axis) - now) / NUDGE for axis in np.eye(starts.shape[1])], 2)
        return [LinearisedPoint(*point) for point in zip(starts, now, jacobian, strict=True)]

    follow = partial(LinearisedPoint.step, scaled=False)
    rules = [DampedSteps(follow, Damping(), max_evaluations=iterations) for _ in begin]
    # All trajectories take part until the end.
    ends = minimize_together(look(begin), rules, lambda points: look(np.stack([*points.values()])))
    return np.stack([point.x for point in ends])


def with_earlier(
    found: Float[np.ndarray, "trajectory saved output"],
    earlier: Float[np.ndarray, "trajectory row output"] | None,
    data: Dataset,
    ts: Float[np.ndarray, "trajectory saved"] | None,
) -> Float[np.ndarray, "trajectory saved output"]:
    """Fills in missing outputs of a prediction at `ts`, or at the rows of the data, from a `hindcast`.

    Between two rows of the hindcast, they are interpolated with a monotone cubic.
    """
    if earlier is None:
        return found
    if ts is None:
        return np.where(np.isnan(found), earlier, found)
    from scipy.interpolate import PchipInterpolator

    filled = found.copy()
    for row, states in enumerate(earlier):
        is_finite = np.isfinite(states).all(axis=1)
        missing = np.flatnonzero(np.isnan(found[row]).all(axis=1) & (ts[row] >= data.ts[row, 0]))
        if is_finite.any() and len(missing):
            after = np.flatnonzero(np.isfinite(found[row]).all(axis=1))[:1]
            nodes = np.concatenate([data.ts[row, is_finite], ts[row, after]])
            curve = PchipInterpolator(nodes, np.concatenate([states[is_finite], found[row, after]]))
            filled[row, missing] = curve(ts[row, missing])
    return filled

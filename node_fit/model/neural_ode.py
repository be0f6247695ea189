"""Neural ODEs: a vector field, with everything that maps it to measured trajectories in the user's units.

The rows that the start of a trajectory is read from are predicted in hindsight.
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
from .initial_state.rule import AbstractStart
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
# The most rows before a start that a hindcast simulates: what one piece of a prediction holds.
MOST_EARLIER = ROOMS[-1]
# Of the search for a hindcast's first states: iterations, and the step of differences [scaled units].
ITERATIONS, NUDGE = 10, 1e-2
# The same of a linear field, whose states a single step finds, but for its damping.
LINEAR_ITERATIONS = 2
# A residual that stands for "not solved".
NOT_SOLVED = 1e3


@stored_as("NeuralODE")
class NeuralODE(eqx.Module):
    """A system `dz/dt = field(t, z, u)`, `channels = observation(z)`, with a rule for the start of a trajectory.

    Inside, all quantities are of order one; `predict` takes and returns the user's units.

    Chen, Rubanova, Bettencourt and Duvenaud, "Neural ordinary differential equations", NeurIPS 2018.

    **Arguments:**

    - `field`: called with `(t, z, u)`.
    - `start`: the rule for the first states.
    - `observation`: maps states to measured channels.
    - `scaler`: scales channels, inputs and time from the user's units to order one.
    - `solver`: the solver of predictions; tight, since a loose solve spoils the score of a good fit.
    - `system`: names and scales of the states of the ODE (measured and hidden ones, or those of a readout), of the
      inputs and of the time.
    - `states`: names of the channels that the model was fitted to.
    - `units`: pairs of a channel's name and its unit.
    - `noise`: the noise of measurements, where it has constants or is no normal one; None for least squares.
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
        beside = f", hidden states {', '.join(hidden)}" if hidden else ""
        kind = type(self.field).__name__
        return f"NeuralODE of {', '.join(self.states)}{driven}{beside}; its field is of the class {kind}"

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
        """Whether every state is measured itself."""
        return isinstance(self.observation, MeasuredStates) and self.latent == self.states

    def problem(self, batch: Batch, start: Float[Array, "trajectory state"]) -> InitialValueProblem:
        """The initial value problem of all states, hidden ones included, in scaled units."""
        bound = self.bound(batch, start)
        return InitialValueProblem(self.field, batch.ts, start, batch.us, batch.origin, bound, batch.jumps)

    def guess(
        self, batch: Batch, start: Float[Array, "trajectory state"]
    ) -> Float[Array, "trajectory time state"] | None:
        """States near those of a good fit: of measured states the last value, of others the start.

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

    def bound(self, batch: Batch, start: Float[Array, "trajectory state"]) -> Float[Array, " state"]:
        """A bound far above all that a state can be; a solution beyond it has run away.

        A hidden state of equations has units of its own, of which measurements of others say nothing: a population may
        well grow by ten orders of magnitude.
        """
        largest = jnp.abs(batch.ys).max() + jnp.abs(jax.lax.stop_gradient(start)).max()
        bound = jnp.full(start.shape[1], BEYOND * (1 + largest))
        if not getattr(self.field, "has_equations", False):  # A field of the user's own need not say.
            return bound
        # Products of three such states are still finite numbers, and so is a gradient.
        free = jnp.arange(start.shape[1]) >= self.system.measured
        return jnp.where(free, jnp.maximum(bound, float(jnp.finfo(bound.dtype).max) ** (1 / 3)), bound)

    def observe(
        self, states: Float[Array, "trajectory time state"], batch: Batch
    ) -> Float[Array, "trajectory time channel"]:
        """The measured channels at the states of a batch's rows, in scaled units."""
        if not isinstance(self.observation, FormulaReadout | DirectReadout):
            return jax.vmap(jax.vmap(self.observation))(states)
        ts, us = jnp.asarray(batch.origin[:, None] + batch.ts), jnp.asarray(batch.us)
        if not self.counts:
            return jax.vmap(jax.vmap(self.channels))(ts, states, us)
        totals = jax.vmap(jax.vmap(self.totals))(ts, states, us)
        grown = jnp.diff(totals, axis=1, prepend=totals[:, :1])
        is_later = jnp.diff(ts, axis=1, prepend=ts[:, :1])[..., None] > 0
        # Where there is no row before, and in rows that fill up a trajectory, 1 keeps logarithms and roots finite.
        return jax.vmap(jax.vmap(self.channels))(ts, states, us, jnp.where(is_later, grown, 1))

    def channels(
        self,
        t: Float[Array, ""],
        z: Float[Array, " state"],
        u: Float[Array, " input"],
        increases: Float[Array, " increase"] | None = None,
    ) -> Float[Array, " channel"]:
        """The measured channels at a time, at states and inputs, in scaled units.

        **Arguments:** `increases`: what the totals of `increase(...)` have grown by since the row before.
        """
        if isinstance(self.observation, DirectReadout):
            return self.observation.read(z, u)
        if not isinstance(self.observation, FormulaReadout):
            return self.observation(z)
        ys = self.observation.read(self.named(t, z, u), increases)
        return (columns_by_name(to_line, ys, self.scaler.bounds) - self.scaler.state_shift) / self.scaler.state_scale

    def totals(
        self, t: Float[Array, ""], z: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " increase"]:
        """What is counted between rows, as totals at a time, in the user's units."""
        assert isinstance(self.observation, FormulaReadout)
        return self.observation.totals(self.named(t, z, u))

    def named(
        self, t: Float[Array, ""], z: Float[Array, " state"], u: Float[Array, " input"]
    ) -> dict[str, Float[Array, ""]]:
        """The values of states, inputs, the time and the field's constants in the user's units, by their names."""
        named = self.system.named(*self.system.in_users_units(t, z, u))
        return named | {name: value for part in constants_in(self.field) for name, value in part.at(named).items()}

    @property
    def counts(self) -> bool:
        """Whether a channel is counted between rows."""
        return isinstance(self.observation, FormulaReadout) and self.observation.counts

    def predictors(self, states: Float[Array, "trajectory time state"], batch: Batch, *, counts: bool) -> Predictors:
        """What a likelihood sees of each measurement, arrays of shape `(trajectory, time, channel)`.

        **Arguments:**

        - `states`: in scaled units, at the rows of the batch. `counts`: whether measurements are counts.
        """
        noise, scaler = self.noise, self.scaler
        assert noise is not None
        channels = self.observe(states, batch)
        size, origin = (jnp.asarray(each)[None, None] for each in (scaler.state_scale, scaler.state_shift))
        ys = jnp.asarray(batch.ys)
        predicted, measured = (
            columns_by_name(from_line, each * size + origin, scaler.bounds) for each in (channels, ys)
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
                names = self.named(t, z, u)
                own = {name: value for part in constants_in(self.observation) for name, value in part.at(names).items()}
                return noise.deviations(names | own, ys)

            sigma = jax.vmap(jax.vmap(deviations))(ts, states, us, predicted)
            scale = jnp.hypot(jnp.where(is_log, sigma, sigma / size), jnp.asarray(LEAST_SCALE, sigma.dtype))
        elif batch.weight is None or batch.deviation is None or counts:
            scale = jnp.ones_like(channels)
        else:
            scale = batch.deviation / batch.weight
        shapes = tuple(jnp.broadcast_to(each[None, None], channels.shape) for each in noise.log_shapes())
        censored = jnp.zeros_like(channels) if batch.censored is None else jnp.asarray(batch.censored, channels.dtype)
        return Predictors(location, jnp.log(scale), shapes, jnp.round(measured), censored, self.widths(batch))

    def widths(self, batch: Batch) -> Float[Array, "trajectory time channel"] | None:
        """The widths of intervals of censored values in the unit of `location`, of log-normal noise in logarithms;
        infinite where there is no other end, None if nowhere is one."""
        noise, scaler = self.noise, self.scaler
        if batch.width is None or batch.censored is None or noise is None or not noise.log_channels:
            return None if batch.width is None else jnp.asarray(batch.width)
        width = jnp.asarray(batch.width)
        size, origin = (jnp.asarray(each)[None, None] for each in (scaler.state_scale, scaler.state_shift))
        far = jnp.asarray(batch.ys) + jnp.asarray(batch.censored) * jnp.where(jnp.isfinite(width), width, 0)
        logs = [
            jnp.log(jnp.maximum(columns_by_name(from_line, each * size + origin, scaler.bounds), LEAST_COUNT))
            for each in (jnp.asarray(batch.ys), far)
        ]
        is_log = noise.is_log()[None, None] & jnp.isfinite(width)
        return jnp.where(is_log, jnp.abs(logs[1] - logs[0]), width)

    def first_states(self, batch: Batch) -> Float[Array, "trajectory state"]:
        """States at the first rows of training trajectories, or windows of them, in scaled units."""
        return self.start.completed(self.start(batch), self.field, batch)

    def simulate(self, batch: Batch) -> Solution:
        """Channels of training trajectories in scaled units, from their starts; a loss of your own differentiates this.

        **Arguments:** `batch`: trajectories or windows, solved with adaptive steps, jointly if they share their times.

        **Returns:** a solution with `ys` of shape `(trajectory, time, channel)`, and `ok` of shape `(trajectory,)`.
        """
        solution = self.solver.solve(self.problem(batch, self.first_states(batch)), joint=batch.joint)
        return Solution(self.observe(solution.ys, batch), solution.ok)

    def forecast(self, batch: Batch) -> Solution:
        """Channels of any trajectories in scaled units, from starts that the rule estimates.

        The solve is tight, and only forward-mode derivatives exist.
        """
        solution = self.solver.forecast(self.problem(batch, self.estimated_start(batch)))
        return Solution(self.observe(solution.ys, batch), solution.ok)

    def estimated_start(self, batch: Batch) -> Float[Array, "trajectory state"]:
        """States at the first rows of any trajectories, as the rule for starts estimates them."""

        def channels(start: Float[Array, "trajectory state"], given: Batch) -> Float[Array, "trajectory time channel"]:
            ys = self.observe(self.solver.forecast(self.problem(given, start)).ys, given)
            return self.scaler.near(ys, given.ys)

        return self.start.completed(self.start.estimate(channels, batch), self.field, batch)

    def batch(self, data: Dataset) -> Batch:
        """Data as arrays in scaled units, with the rows that starts are read from apart."""
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
        """Simulates trajectories in the user's units, each from its start.

        ```python
        model.predict(data)                          # from the measurements of a dataset
        model.predict(y0={"x": 1.0, "v": 0.0}, ts=ts, u=force)  # from plain numbers and arrays
        ```

        **Arguments:**

        - `data`: measurements that give the starts, and inputs; channels as in the fit.
        - `ts`: increasing times at which the channels are wanted, shape `(trajectory, saved)`; `data.ts` if absent.
        - `y0`: instead of `data`, the channels at the first time, by name or of shape `(state,)`; or, of several
          trajectories, arrays by name or shape `(trajectory, state)`. `ts` then has the shape `(time,)` or
          `(trajectory, time)`.
        - `u`: with `y0`, inputs at `ts`, by name or of shape `(time, input)` or `(trajectory, time, input)`; or
          `(time,)` of a single input.

        **Returns:** channels, shape `(trajectory, saved, state)`, float64; not finite from where a solve failed. For a
        `y0` of one trajectory, shape `(time, state)`. Angles have no jumps, and begin within half a turn of zero.

        **Raises:** `ValueError` if the channels are not those of the fit, or a value is not within its bounds.
        """
        if data is None:
            found = self.predict(self.starting_from(y0, ts, u))
            return found[0] if is_single(y0) else found
        return self.bands(data, None if ts is None else np.asarray(ts, np.float64)).ys

    def compile_prediction(self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None = None) -> None:
        """Compiles `predict` ahead of its first call, for these data and for any model of this structure."""
        compile_prediction(self, *self.asked(data, ts))

    def starting_from(self, y0: GivenStates, ts: ArrayLike | None, u: GivenStates) -> Dataset:
        """A dataset that holds the first row of each trajectory, for predictions; arguments as in `predict`.

        **Raises:** `ValueError` if the start is read from more rows than that.
        """
        if (rows := self.start.read_rows) > 1:
            raise ValueError(
                f"the start of this model is read from {rows} measured rows, and y0 is one; pass data that begin with "
                f"{rows} rows, such as {rows} rows at rest before what is to be predicted."
            )
        if y0 is None and self.start.given_rows == 0:
            y0 = np.full(len(self.states), np.nan)  # The start is read from no measurement.
        return from_initial_values(y0, ts, self.scaler.with_number(u), self.states, self.inputs, self.system.time)

    def predict_frame(
        self, data: Dataset | None = None, ts: ArrayLike | None = None, **given: Any
    ) -> "pandas.DataFrame":
        """`predict`, as a data frame; see `Fit.predict_frame`."""
        return predicted_frame(self, data, ts, **given)

    @property
    def vector_field(self) -> Callable[..., Float[Array, " state"]]:
        """The right-hand side in the user's units: a pure function that JAX can compile and differentiate.

        ```python
        rates = jax.jit(model.vector_field)(t, y, u)
        ```

        Its arguments are the time, a scalar [unit of time]; all states (`latent`), shape `(state,)`, where hidden ones
        are in scaled units; and the inputs, shape `(input,)`, absent if the model has none. It returns the time
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
        - `ts`: increasing times at which the states are wanted, shape `(time,)`.
        - `u`: inputs at `ts`, shape `(time, input)`; absent if the model has none.
        - `options`: further arguments of `diffrax.diffeqsolve`, in place of those of the model's solver.

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
        """As `Ensemble.bands`, but without bands, since a single model has none."""
        self.check_channels(data)
        found = predict_rows(self, *self.asked(data, ts))
        if earlier:
            found = with_earlier(found, hindcast(self, data, ts), data, ts)
        return Prediction(self.scaler.unscale_states(found[..., : len(self.states)]), None, None, self.hidden_of(found))

    def hidden_of(
        self, outputs: Float[np.ndarray, "trajectory saved output"]
    ) -> Float[np.ndarray, "trajectory saved hidden"] | None:
        """The hidden states in the user's units, from what a prediction returns in scaled units."""
        return self.system.scaler.unscale_states(outputs)[..., len(self.states) :] if self.hidden else None

    def asked(self, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None) -> tuple[Batch, np.ndarray]:
        """Trajectories on the host, and the wanted times, counted from each trajectory's start."""
        batch = self.batch(data)
        return batch, self.scaler.scale_times(data.ts if ts is None else np.asarray(ts, np.float64)) - batch.origin[
            :, None
        ]

    @property
    def typical(self) -> "NeuralODE":
        """The model itself; see `Ensemble.typical`."""
        return self

    def constants(self) -> dict[str, float]:
        """The constants of known equations and starts by their names, in the user's units."""
        named = [part.as_dict() for part in constants_in((self.field, self.start, self.observation, self.noise))]
        return {name: value for each in named for name, value in each.items()}

    def check_channels(self, data: Dataset) -> None:
        """Refuses data whose channels are not those of the fit, or not within their bounds."""
        check_data(data, "data")
        data = self.scaler.marked(data)
        for kind in ("states", "inputs"):
            fitted, given = getattr(self, kind), getattr(data, kind)
            if fitted != given:
                raise ValueError(f"the model was fitted to the {kind} {list(fitted)}, but the data have {list(given)}.")
        self.scaler.check(data)
        for local in self.local:
            check_known_groups(data, local.by, local.values, [each.name for each in self.local if each.by == local.by])

    @property
    def local(self) -> list[Local]:
        """The constants of which groups of trajectories have values of their own."""
        return [each for part in constants_in((self.field, self.start, self.observation)) for each in part.local]

    def derivative(self, ys: Float[np.ndarray, "point state"]) -> Float[np.ndarray, "point state"]:
        """The vector field at states in the user's units, of a model whose states are all measured (`is_measured`).

        **Returns:** time derivatives in the user's units at the first time and mean inputs, shape `(point, state)`.
        """
        with scope_of(self):
            zs = carry(self.scaler.scale_states(ys), dtype_of(precision_of(self)))
            rates = np.asarray(jax.device_get(field_at(self, zs)), dtype=np.float64)
        return self.scaler.unscale_rates(ys, rates)


def without_excess_precision(model: NeuralODE) -> NeuralODE:
    """The model, in single precision where the process has no other: JAX would cut its arrays with warnings."""
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(model))
    fits = traced or ambient() == "x64" or precision_of(model) == "x32"
    return model if fits else carry(model, dtype_of("x32"))


@eqx.filter_jit
def field_at(model: NeuralODE, zs: Float[Array, "point state"]) -> Float[Array, "point state"]:
    t = zs[0, 0] * 0
    u = jnp.zeros((len(model.inputs),), zs.dtype)
    return jax.vmap(lambda z: model.field(t, z, u))(zs)


class Passed(NamedTuple):
    """A simulation of the earlier rows, in scaled units: outputs at the rows, and the states at the last of them."""

    outputs: Float[np.ndarray, "trajectory row output"]
    arrival: Float[np.ndarray, "trajectory state"]


def hindcast(
    model: NeuralODE, data: Dataset, ts: Float[np.ndarray, "trajectory saved"] | None
) -> Float[np.ndarray, "trajectory row output"] | None:
    """Outputs in scaled units at the rows before each trajectory's start, and NaN from there on.

    A start that is read from earlier rows (`Encoder`) leaves those rows without a prediction. They belong to the record
    all the same: their states are those of the trajectory that fits these rows best and arrives at the start that was
    read. Of a long past, only the last `MOST_EARLIER` rows.

    **Arguments:** `data`, `ts`: those of a prediction that was made before. Its compiled programs serve here too.

    **Returns:** None if trajectories start at their first rows.
    """
    rows = start_rows(data, model.start.past, model.start.washout)
    if not rows.any():
        return None
    whole, count = None, len(rows)
    begins = np.maximum(rows + 1 - MOST_EARLIER, 0)
    size = count_in_slice(*(data.ts if ts is None else ts).shape)
    for begin in range(0, count, size):
        chosen = np.minimum(np.arange(begin, begin + size), count - 1)
        some = data if size == count else data.select(chosen)
        found = earlier_outputs(model, some, None if ts is None else ts[chosen], begins[chosen], rows[chosen])
        if whole is None:
            whole = np.full((*data.ts.shape, found.shape[2]), np.nan)
        for at, row in enumerate(chosen):
            whole[row, begins[row] : rows[row]] = found[at, : rows[row] - begins[row]]
    return whole


def earlier_outputs(
    model: NeuralODE, data: Dataset, ts: np.ndarray | None, begins: np.ndarray, rows: np.ndarray
) -> Float[np.ndarray, "trajectory row output"]:
    """Outputs of the trajectories through the rows from `begins` to `rows` that arrive at the starts read there."""
    later, wanted = model.asked(data, ts)
    pieces = [(row, int(begin), int(end) + 1) for row, (begin, end) in enumerate(zip(begins, rows, strict=True))]
    head = replace(model.scaler.marked(cut(data, pieces, data.trajectories)), angles={})
    earlier = Batch.from_dataset(head, model.scaler, jumps=model.system.jumps)
    with scope_of(model):
        first = pieces_of(intervals_to(later, wanted, model.solver.interpolation)[0])[0]
        _, there = begin_prediction(model, model.start.needed(later), first)
        arrival = np.asarray(there.y, np.float64)
        simulate = simulation_of(model, earlier, first.end.shape[1])
        guess = model.start.guess
        begin, shown = arrival.copy(), earlier.seen[:, : guess.measured]
        begin[:, : guess.measured] = np.where(shown, earlier.first[:, : guess.measured], arrival[:, : guess.measured])
        near, near_state = model.scaler.near, model.system.scaler.near

        def residuals(starts: Float[np.ndarray, "trajectory state"]) -> Float[np.ndarray, "trajectory residual"]:
            passed = simulate(starts)
            channels = passed.outputs[..., : earlier.ys.shape[2]]
            misfit = np.where(earlier.known, earlier.weighted(near(channels, earlier.ys) - earlier.ys), 0)
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
    """Simulates all rows of a batch from given starts, by the program that predicts `room` intervals at once."""
    dtype = dtype_of(precision_of(model))
    intervals, at = intervals_to(batch, np.asarray(batch.ts, np.float64), model.solver.interpolation)
    parts = pieces_of(intervals, room)

    def simulate(starts: Float[np.ndarray, "trajectory state"]) -> Passed:
        ys, front = begin_at(model, *carry((batch, starts, jax.tree.map(lambda x: x[:, :1], parts[0])), dtype))
        found = [np.asarray(ys, np.float64)[:, None]]
        origin = carry(batch.origin, dtype)
        for part in parts:
            ys, front = advance_channels(model, origin, carry(part, dtype), front)
            found.append(np.asarray(ys, np.float64))
        rows = np.take_along_axis(np.concatenate(found, axis=1), at[..., None] + 1, axis=1)
        return Passed(rows, np.asarray(front.y, np.float64))

    return simulate


@jit_by_size
def begin_at(
    model: NeuralODE, batch: Batch, starts: Float[Array, "trajectory state"], first: Intervals
) -> tuple[Array, Front]:
    """Outputs at given starts, and the front of the solve there."""
    front = model.solver.begin(model.problem(batch, starts), first)
    return outputs(model, batch.origin + batch.ts[:, 0], front.y, batch.us[:, 0]), front


def find_starts(
    residuals: Callable[[np.ndarray], Float[np.ndarray, "trajectory residual"]],
    begin: Float[np.ndarray, "trajectory state"],
    iterations: int = ITERATIONS,
) -> Float[np.ndarray, "trajectory state"]:
    """Levenberg and Marquardt's method for each trajectory, all at once, with derivatives by differences."""

    def look(starts: Float[np.ndarray, "trajectory state"]) -> list[LinearisedPoint]:
        now = residuals(starts)
        jacobian = np.stack([(residuals(starts + NUDGE * axis) - now) / NUDGE for axis in np.eye(starts.shape[1])], 2)
        return [LinearisedPoint(*each) for each in zip(starts, now, jacobian, strict=True)]

    follow = partial(LinearisedPoint.step, scaled=False)
    rules = [DampedSteps(follow, Damping(), max_evaluations=iterations) for _ in begin]
    # No trajectory ends before the others.
    ends = minimize_together(look(begin), rules, lambda points: look(np.stack([*points.values()])))
    return np.stack([each.x for each in ends])


def with_earlier(
    found: Float[np.ndarray, "trajectory saved output"],
    earlier: Float[np.ndarray, "trajectory row output"] | None,
    data: Dataset,
    ts: Float[np.ndarray, "trajectory saved"] | None,
) -> Float[np.ndarray, "trajectory saved output"]:
    """Outputs at `ts`, or at the rows of the data, with those of a `hindcast` where a prediction has none yet.

    Between two rows of the hindcast, they are interpolated by a monotone cubic.
    """
    if earlier is None:
        return found
    if ts is None:
        return np.where(np.isnan(found), earlier, found)
    from scipy.interpolate import PchipInterpolator

    filled = found.copy()
    for row, states in enumerate(earlier):
        known = np.isfinite(states).all(axis=1)
        at = np.flatnonzero(np.isnan(found[row]).all(axis=1) & (ts[row] >= data.ts[row, 0]))
        if known.any() and len(at):
            after = np.flatnonzero(np.isfinite(found[row]).all(axis=1))[:1]
            nodes = np.concatenate([data.ts[row, known], ts[row, after]])
            curve = PchipInterpolator(nodes, np.concatenate([states[known], found[row, after]]))
            filled[row, at] = curve(ts[row, at])
    return filled

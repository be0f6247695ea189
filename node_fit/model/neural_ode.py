"""Neural ODEs: a vector field, with everything that maps it to measured trajectories in the user's units."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..data.batch import Batch
from ..data.dataset import Dataset, GivenStates, check_data, from_initial_values, is_single
from ..data.scaling import Scaler
from ..runtime.placement import ArrayLike, carry, dtype_of, precision_of, scope
from ..runtime.serialization import stored_as
from ..solver.problem import InitialValueProblem, Solution, VectorField, interpolate
from ..solver.solver import Solver
from ..solver.triggers import has_triggers
from .fields.known import Constants
from .hindcast import hindcast, with_earlier
from .initial_state.rule import AbstractStart
from .observation import AbstractObservation, MeasuredStates
from .rollout import Prediction, compile_prediction, predict_rows, predicted_frame
from .system import System

if TYPE_CHECKING:
    import pandas

BEYOND = 1e4


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
    """

    field: VectorField
    start: AbstractStart
    observation: AbstractObservation
    scaler: Scaler
    solver: Solver
    system: System
    states: tuple[str, ...] = eqx.field(static=True)
    units: tuple[tuple[str, str], ...] = eqx.field(static=True)

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
        bound = bound_of(batch, start)
        return InitialValueProblem(self.field, batch.ts, start, batch.us, batch.origin, bound, batch.jumps)

    def observe(self, states: Float[Array, "trajectory time state"]) -> Float[Array, "trajectory time channel"]:
        """The measured channels at some states, in scaled units."""
        return jax.vmap(jax.vmap(self.observation))(states)

    def first_states(self, batch: Batch) -> Float[Array, "trajectory state"]:
        """States at the first rows of training trajectories, or windows of them, in scaled units."""
        return self.start.completed(self.start(batch), self.field, batch)

    def simulate(self, batch: Batch) -> Solution:
        """Channels of training trajectories in scaled units, from their starts; a loss of your own differentiates this.

        **Arguments:** `batch`: trajectories or windows, solved with adaptive steps, jointly if they share their times.

        **Returns:** a solution with `ys` of shape `(trajectory, time, channel)`, and `ok` of shape `(trajectory,)`.
        """
        solution = self.solver.solve(self.problem(batch, self.first_states(batch)), joint=batch.joint)
        return Solution(self.observe(solution.ys), solution.ok)

    def forecast(self, batch: Batch) -> Solution:
        """Channels of any trajectories in scaled units, from starts that the rule estimates.

        The solve is tight, and only forward-mode derivatives exist.
        """
        solution = self.solver.forecast(self.problem(batch, self.estimated_start(batch)))
        return Solution(self.observe(solution.ys), solution.ok)

    def estimated_start(self, batch: Batch) -> Float[Array, "trajectory state"]:
        """States at the first rows of any trajectories, as the rule for starts estimates them."""

        def channels(start: Float[Array, "trajectory state"], given: Batch) -> Float[Array, "trajectory time channel"]:
            ys = self.observe(self.solver.forecast(self.problem(given, start)).ys)
            return self.scaler.near(ys, given.ys)

        return self.start.completed(self.start.estimate(channels, batch), self.field, batch)

    def batch(self, data: Dataset) -> Batch:
        """Data as arrays in scaled units, with the rows that starts are read from apart."""
        batch = Batch.from_dataset(data, self.scaler, self.start.past, self.start.washout, self.system.jumps)
        return dataclasses.replace(batch, driven=batch.driven or has_triggers(self.field))

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
        """A dataset that holds the first row of each trajectory, for predictions; arguments as in `predict`."""
        return from_initial_values(y0, ts, u, self.states, self.inputs, self.system.time)

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
            inputs = jnp.zeros((0,), jnp.result_type(float)) if u is None else jnp.asarray(u, float)
            states = jnp.asarray(y, float)
            scaled = self.system.in_solver_units(jnp.asarray(t, float), states, inputs)
            return self.system.users_rates(states, self.field(*scaled))

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
        ts, y0 = jnp.asarray(ts, float), jnp.asarray(y0, float)
        us = jnp.zeros((ts.shape[0], 0)) if u is None else jnp.asarray(u, float)

        field = self.vector_field

        def rates(t: Array, y: Array, args: PyTree) -> Array:
            return field(t, y, interpolate(t, ts, us, self.solver.interpolation))

        return self.solver.diffeqsolve(rates, ts, y0, scale=self.system.scaler.state_scale, **options)

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
        found = jax.tree.leaves((self.field, self.start), is_leaf=lambda part: isinstance(part, Constants))
        named = [part.as_dict() for part in found if isinstance(part, Constants)]
        return {name: value for each in named for name, value in each.items()}

    def check_channels(self, data: Dataset) -> None:
        """Refuses data whose channels are not those of the fit, or not within their bounds."""
        check_data(data, "data")
        for kind in ("states", "inputs"):
            fitted, given = getattr(self, kind), getattr(data, kind)
            if fitted != given:
                raise ValueError(f"the model was fitted to the {kind} {list(fitted)}, but the data have {list(given)}.")
        self.scaler.check(data)

    def derivative(self, ys: Float[np.ndarray, "point state"]) -> Float[np.ndarray, "point state"]:
        """The vector field at states in the user's units, of a model whose states are all measured (`is_measured`).

        **Returns:** time derivatives in the user's units at the first time and mean inputs, shape `(point, state)`.
        """
        precision = precision_of(self)
        with scope(precision):
            zs = carry(self.scaler.scale_states(ys), dtype_of(precision))
            rates = np.asarray(jax.device_get(field_at(self, zs)), dtype=np.float64)
        return self.scaler.unscale_rates(ys, rates)


def bound_of(batch: Batch, start: Float[Array, "trajectory state"]) -> Float[Array, " state"]:
    """A bound far above all measurements; a state beyond it has run away."""
    largest = jnp.abs(batch.ys).max() + jnp.abs(jax.lax.stop_gradient(start)).max()
    return jnp.full(start.shape[1], BEYOND * (1 + largest))


@eqx.filter_jit
def field_at(model: NeuralODE, zs: Float[Array, "point state"]) -> Float[Array, "point state"]:
    t = zs[0, 0] * 0
    u = jnp.zeros((len(model.inputs),), zs.dtype)
    return jax.vmap(lambda z: model.field(t, z, u))(zs)

"""The subjects of a population: what the model predicts of each, from its own constants, with exact derivatives."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ..data.batch import Batch
from ..data.dataset import Dataset
from ..data.domains import from_line, to_line
from ..data.scaling import columns_by_name
from ..model.fields.known import Constants, constants_in
from ..model.initial_state.trained import Fitted
from ..model.neural_ode import NeuralODE
from ..runtime.compilation import WITHOUT_FUSION_EMITTERS
from ..runtime.placement import AnyArray, scope_of
from ..solver.held_steps import settle_between_rows
from ..solver.methods import EXPLICIT
from ..solver.problem import VectorField
from .effects import Coordinate

compile_exactly = functools.partial(eqx.filter_jit, compiler_options=WITHOUT_FUSION_EMITTERS)
# Steps between two rows, before they are settled.
FEWEST_BETWEEN_ROWS = 2


class Expansion(eqx.Module):
    """Predictions and their derivatives by the coordinates of each subject.

    - `f`: predictions in the user's units, shape `(subject, row, channel)`.
    - `first`, `second`, `third`: derivatives, with an axis for coordinates for each order; None where not asked for.
    """

    f: Float[Array, "subject row channel"]
    first: Float[Array, "subject row channel coordinate"] | None = None
    second: Float[Array, "subject row channel coordinate coordinate"] | None = None
    third: Float[Array, "subject row channel coordinate coordinate coordinate"] | None = None


@dataclass(frozen=True)
class Subjects:
    """Measurements of several subjects, and the model whose constants differ between them.

    - `model`: its constants are those of a typical subject.
    - `coordinates`: the fitted constants.
    - `batch`: the measurements, in scaled units, with rows where nothing was measured between rows far apart.
    - `y`, `mask`: measurements in the user's units, 0 where there is none, and where there is one, of the shape
      `(subject, row, channel)`.
    - `names`: the names of the subjects. `kept`: rows of the batch that are rows of the data, `(subject, row)`.
    - `steps`: solver steps between two rows.
    """

    model: NeuralODE
    coordinates: tuple[Coordinate, ...]
    batch: Batch
    y: Float[np.ndarray, "subject row channel"]
    mask: Bool[np.ndarray, "subject row channel"]
    names: tuple[str, ...]
    steps: int = FEWEST_BETWEEN_ROWS

    @staticmethod
    def of(model: NeuralODE, coordinates: Sequence[Coordinate], data: Dataset) -> "Subjects":
        """The subjects of a dataset, one for each trajectory.

        **Raises:** `ValueError` if starts are fitted for each trajectory, or the method's steps can't be held.
        """
        if isinstance(model.start, Fitted):
            raise ValueError(
                "start=fitted fits a start to each subject without a distribution; state it: start=stated "
                "'+start.values={x: x0}' '+start.constants={x0: 1.0}', and name x0 in random if it differs."
            )
        if model.solver.method not in EXPLICIT:
            raise ValueError(f"populations need an explicit method, and {model.solver.method} is not; use solver=tsit5.")
        known = np.isfinite(data.ys) & data.mask
        with scope_of(model):
            batch = jax.tree.map(jnp.asarray, model.batch(data))
        return Subjects(model, tuple(coordinates), batch, np.where(known, data.ys, 0.0), known, data.trajectories)

    @property
    def count(self) -> int:
        return len(self.names)

    def first(self) -> Float[np.ndarray, " coordinate"]:
        """The coordinates of the model's own constants."""
        values = self.model.constants()
        return np.array([float(to_line(np.asarray(values[c.name]), c.bounds)) for c in self.coordinates])

    def constants(self, phi: Float[np.ndarray, "... coordinate"]) -> dict[str, np.ndarray]:
        """The constants at coordinates, in the user's units."""
        phi = np.asarray(phi, np.float64)
        return {c.name: np.asarray(from_line(phi[..., at], c.bounds)) for at, c in enumerate(self.coordinates)}

    def model_at(self, phi: Float[np.ndarray, " coordinate"]) -> NeuralODE:
        """The model with the constants at coordinates."""
        with scope_of(self.model):
            return with_constants(self.model, self.coordinates, jnp.asarray(phi))

    def settled(self, phi: Float[np.ndarray, "subject coordinate"]) -> "Subjects":
        """The subjects with so many steps between rows that all trajectories at these coordinates meet the tolerance."""
        order, most = self.model.solver.error_order, self.model.solver.max_steps

        def errors_of(steps: int) -> np.ndarray:
            with scope_of(self.model):
                return np.asarray(largest_errors(steps, self.model, self.coordinates, self.batch, jnp.asarray(phi)))

        return replace(self, steps=settle_between_rows(errors_of, self.steps, order, most))

    def expand(self, phi: Float[AnyArray, "subject coordinate"], order: int = 0) -> Expansion:
        """Predictions at coordinates of each subject, with derivatives up to an order from 0 to 3."""
        with scope_of(self.model):
            parts = compiled_expand(order, self.steps, self.model, self.coordinates, self.batch, jnp.asarray(phi))
        return Expansion(*parts)


def with_constants(
    model: NeuralODE, coordinates: Sequence[Coordinate], phi: Float[Array, " coordinate"]
) -> NeuralODE:
    """The model with the constants at coordinates."""
    values = {c.name: from_line(phi[at], c.bounds) for at, c in enumerate(coordinates)}

    def groups(model: NeuralODE) -> list[Array]:
        return [group.raw for group in constants_in((model.field, model.start, model.observation))]

    def raw(group: Constants) -> Array:
        line = [to_line(values[name], bounds) / scale for name, bounds, scale in group.free()]
        return jnp.stack(line).astype(group.raw.dtype) if line else group.raw

    given = [raw(group) for group in constants_in((model.field, model.start, model.observation))]
    return eqx.tree_at(groups, model, given) if given else model


class Individual(eqx.Module):
    """A vector field whose constants are the last inputs of each trajectory, as its own parameters."""

    field: VectorField
    inputs: int = eqx.field(static=True)

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        groups, begin, given = constants_in(self.field), self.inputs, list[Array]()
        for group in groups:
            given.append(u[begin : begin + group.raw.shape[0]])
            begin += group.raw.shape[0]
        own = eqx.tree_at(lambda field: [group.raw for group in constants_in(field)], self.field, given)
        return own(t, y, u[: self.inputs])


def simulate(
    steps: int,
    model: NeuralODE,
    coordinates: tuple[Coordinate, ...],
    batch: Batch,
    phi: Float[Array, "subject coordinate"],
) -> tuple[Float[Array, "subject row channel"], Float[Array, "subject interval"]]:
    """Channels of all subjects in the user's units, and the largest error of a step in each interval.
    """

    def own(phi: Float[Array, " coordinate"]) -> NeuralODE:
        return with_constants(model, coordinates, phi)

    def begin(phi: Float[Array, " coordinate"], subject: Batch) -> tuple[Array, Array]:
        model = own(phi)
        raw = [group.raw for group in constants_in(model.field)]
        return model.first_states(jax.tree.map(lambda x: x[None], subject))[0], jnp.concatenate([phi[:0], *raw])

    starts, constants = jax.vmap(begin)(phi, batch)
    rows = jnp.broadcast_to(constants[:, None], (*batch.ts.shape, constants.shape[1]))
    problem = replace(
        model.problem(batch, starts),
        field=Individual(model.field, len(model.inputs)),
        us=jnp.concatenate([jnp.asarray(batch.us, phi.dtype), rows], axis=2),
    )
    solution = model.solver.solve_held(problem, np.linspace(0, 1, steps + 1)[None], between_rows=True)

    def observe(phi: Float[Array, " coordinate"], states: Float[Array, "row state"], subject: Batch) -> Array:
        return own(phi).observe(states[None], jax.tree.map(lambda x: x[None], subject))[0]

    scaled, scaler = jax.vmap(observe)(phi, solution.ys, batch), model.scaler
    channels = columns_by_name(from_line, scaled * scaler.state_scale + scaler.state_shift, scaler.bounds)
    return channels, solution.errors


@compile_exactly
def largest_errors(
    steps: int, model: NeuralODE, coordinates: tuple[Coordinate, ...], batch: Batch, phi: Float[Array, "subject _"]
) -> Float[Array, "subject interval"]:
    return simulate(steps, model, coordinates, batch, phi)[1]


def expand(
    order: int,
    steps: int,
    model: NeuralODE,
    coordinates: tuple[Coordinate, ...],
    batch: Batch,
    phi: Float[Array, "subject coordinate"],
) -> tuple[Array, ...]:
    """Predictions of all subjects and their derivatives, forward over forward."""

    def channels(shift: Float[Array, " coordinate"]) -> Array:
        return simulate(steps, model, coordinates, batch, phi + shift[None])[0]

    return derivatives(channels, order)(jnp.zeros_like(phi[0]))


compiled_expand = compile_exactly(expand)


def derivatives(function: PyTree, order: int) -> PyTree:
    """A function that returns the value and its derivatives up to an order, all of one evaluation."""
    if order == 0:
        return lambda x: (function(x),)
    lower = derivatives(function, order - 1)

    def both(x: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        parts = lower(x)
        return parts, parts

    def whole(x: Array) -> tuple[Array, ...]:
        slopes, parts = jax.jacfwd(both, has_aux=True)(x)
        return (*parts, slopes[-1])

    return whole

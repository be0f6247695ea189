"""The subjects of a population: what the model predicts of each, from its own constants, with exact derivatives."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..data.batch import Batch
from ..data.dataset import Dataset
from ..data.domains import from_line, to_line
from ..data.events import Jumps
from ..data.scaling import columns_by_name
from ..model.fields.known import Constants, constants_in
from ..model.initial_state.trained import Fitted
from ..model.neural_ode import NeuralODE
from ..runtime.compilation import WITHOUT_FUSION_EMITTERS
from ..runtime.placement import AnyArray, scope_of
from ..solver.held_rows import march_rows
from ..solver.held_steps import settle_between_rows
from ..solver.methods import EXPLICIT
from ..solver.problem import between_rows
from .effects import Coordinate

Program = TypeVar("Program", bound=Callable[..., object])


def compile_program(function: Program) -> Program:
    """Compiles a function of arrays, with what else it gets, at its first call with arrays of their shapes."""
    jitted = eqx.filter_jit(function, compiler_options=WITHOUT_FUSION_EMITTERS)  # pyright: ignore
    return cast(Program, jitted)


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
            raise ValueError(
                f"populations need an explicit method, and {model.solver.method} is not; use solver=tsit5."
            )
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
        """The subjects with so many steps between rows that all of them meet the tolerance at these coordinates."""
        order, most = self.model.solver.error_order, self.model.solver.max_steps

        def errors_of(steps: int) -> np.ndarray:
            with scope_of(self.model):
                return np.asarray(
                    largest_errors(jnp.asarray(steps), self.model, self.coordinates, self.batch, jnp.asarray(phi))
                )

        return replace(self, steps=settle_between_rows(errors_of, self.steps, order, most))

    def expand(self, phi: Float[AnyArray, "subject coordinate"], order: int = 0) -> Expansion:
        """Predictions at coordinates of each subject, with derivatives up to an order from 0 to 3."""
        with scope_of(self.model):
            parts = compiled_expand(
                order, jnp.asarray(self.steps), self.model, self.coordinates, self.batch, jnp.asarray(phi)
            )
        return Expansion(*parts)


def with_constants(model: NeuralODE, coordinates: Sequence[Coordinate], phi: Float[Array, " coordinate"]) -> NeuralODE:
    """The model with the constants at coordinates."""
    values = {c.name: from_line(phi[at], c.bounds) for at, c in enumerate(coordinates)}

    def groups(model: NeuralODE) -> list[Array]:
        return [group.raw for group in constants_in((model.field, model.start, model.observation))]

    def raw(group: Constants) -> Array:
        line = [to_line(values[name], bounds) / scale for name, bounds, scale in group.free()]
        return jnp.stack(line).astype(group.raw.dtype) if line else group.raw

    given = [raw(group) for group in constants_in((model.field, model.start, model.observation))]
    return eqx.tree_at(groups, model, given) if given else model


class Jets(NamedTuple):
    """A quantity as a polynomial of a shift of the coordinates: its value, and derivatives of rising order."""

    parts: tuple[Float[Array, "..."], ...]

    def at(self, shift: Float[Array, " coordinate"]) -> Float[Array, "..."]:
        """The value at a shift."""
        total = self.parts[0]
        for order, part in enumerate(self.parts[1:], start=1):
            for _ in range(order):
                part = part @ shift
            total = total + part / math.factorial(order)
        return total

    def flat(self) -> Float[Array, " number"]:
        """All numbers of the parts in a row."""
        return jnp.concatenate([part.reshape(-1) for part in self.parts])

    @staticmethod
    def of(numbers: Float[Array, " number"], states: int, coordinates: int, order: int) -> "Jets":
        """The parts from all of their numbers."""
        parts: list[Array] = []
        begin = 0
        for each in range(order + 1):
            shape = (states, *(coordinates,) * each)
            end = begin + math.prod(shape)
            parts.append(numbers[begin:end].reshape(shape))
            begin = end
        return Jets(tuple(parts))


class JetField(eqx.Module):
    """The vector field of states and of their derivatives by a shift of the coordinates, which are the last inputs.

    Its Runge-Kutta steps are those of the states, with their exact derivatives. Derivatives that JAX takes of the loop
    over steps itself are wrong by some per cent in some programs that XLA's compiler for CPUs makes (jaxlib 0.10.2).
    """

    model: NeuralODE
    coordinates: tuple[Coordinate, ...] = eqx.field(static=True)
    order: int = eqx.field(static=True)

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " number"], u: Float[Array, " input"]
    ) -> Float[Array, " number"]:
        inputs, count = len(self.model.inputs), len(self.coordinates)
        states, phi = Jets.of(y, len(self.model.latent), count, self.order), u[inputs:]

        def rates(shift: Float[Array, " coordinate"]) -> Float[Array, " state"]:
            own = with_constants(self.model, self.coordinates, phi + shift)
            return own.field(t, states.at(shift), u[:inputs])

        return Jets(derivatives(rates, self.order)(jnp.zeros_like(phi))).flat()


def simulate_subjects(
    order: int,
    steps: Int[Array, ""],
    model: NeuralODE,
    coordinates: tuple[Coordinate, ...],
    batch: Batch,
    phi: Float[Array, "subject coordinate"],
) -> tuple[tuple[Float[Array, "subject row channel ..."], ...], Float[Array, "subject interval"]]:
    """Channels of all subjects in the user's units with their derivatives, and the largest error of a step in each
    interval."""
    count, scaler = len(coordinates), model.scaler

    def alone(subject: Batch) -> Batch:
        return jax.tree.map(lambda x: x[None], subject)

    def begin(phi: Float[Array, " coordinate"], subject: Batch) -> Float[Array, " number"]:
        def start(shift: Float[Array, " coordinate"]) -> Float[Array, " state"]:
            return with_constants(model, coordinates, phi + shift).first_states(alone(subject))[0]

        return Jets(derivatives(start, order)(jnp.zeros_like(phi))).flat()

    starts = jax.vmap(begin)(phi, batch)
    plain = model.problem(batch, starts[:, : len(model.latent)])
    more = starts.shape[1] - len(model.latent)
    rows = jnp.broadcast_to(phi[:, None], (*batch.ts.shape, count))
    problem = replace(
        plain,
        field=JetField(model, coordinates, order),
        y0=starts,
        us=jnp.concatenate([jnp.asarray(batch.us, phi.dtype), rows], axis=2),
        bound=None if plain.bound is None else jnp.concatenate([plain.bound, jnp.full(more, jnp.inf)]),
        jumps=plain.jumps and with_derivatives(plain.jumps, count, order),
    )
    intervals, tolerances = between_rows(problem, model.solver.interpolation), model.solver.tolerances(starts)
    assert isinstance(model.solver.method, str)
    solution = march_rows(model.solver.method, problem, intervals, steps, tolerances)
    bound = jnp.inf if problem.bound is None else problem.bound[None, None]
    numbers = jnp.where(jnp.abs(solution.ys) <= bound, solution.ys, jnp.inf)

    def observe(phi: Float[Array, " coordinate"], numbers: Float[Array, "row number"], subject: Batch) -> PyTree:
        jets = jax.vmap(lambda row: Jets.of(row, len(model.latent), count, order))(numbers)

        def channels(shift: Float[Array, " coordinate"]) -> Float[Array, "row channel"]:
            states = jax.vmap(lambda row: row.at(shift))(jets)
            scaled = with_constants(model, coordinates, phi + shift).observe(states[None], alone(subject))[0]
            scaled = scaled * scaler.state_scale[None] + scaler.state_shift[None]
            return columns_by_name(from_line, scaled, scaler.bounds)

        return derivatives(channels, order)(jnp.zeros_like(phi))

    return jax.vmap(observe)(phi, numbers, batch), solution.errors


def with_derivatives(jumps: Jumps, coordinates: int, order: int) -> Jumps:
    """The jumps of states followed by their derivatives, which a dose leaves, and a factor multiplies."""
    copies = [jnp.repeat(jumps.factor, coordinates**each, axis=-1) for each in range(order + 1)]
    factor = jnp.concatenate(copies, axis=-1)
    room = jnp.zeros((*factor.shape[:-1], factor.shape[-1] - jumps.shift.shape[-1]), jumps.shift.dtype)
    return Jumps(factor, jnp.concatenate([jumps.shift, room], axis=-1))


@compile_program
def largest_errors(
    steps: Int[Array, ""],
    model: NeuralODE,
    coordinates: tuple[Coordinate, ...],
    batch: Batch,
    phi: Float[Array, "subject coordinate"],
) -> Float[Array, "subject interval"]:
    return simulate_subjects(0, steps, model, coordinates, batch, phi)[1]


def expand_predictions(
    order: int,
    steps: Int[Array, ""],
    model: NeuralODE,
    coordinates: tuple[Coordinate, ...],
    batch: Batch,
    phi: Float[Array, "subject coordinate"],
) -> tuple[Array, ...]:
    """Predictions of all subjects and their derivatives by the coordinates."""
    return simulate_subjects(order, steps, model, coordinates, batch, phi)[0]


compiled_expand = compile_program(expand_predictions)


def derivatives(function: Callable[[Array], Array], order: int) -> Callable[[Array], tuple[Array, ...]]:
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

"""The subjects of a population: predictions from the constants of each subject, with exact derivatives."""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..data.batch import Batch
from ..data.dataset import Dataset
from ..data.domains import from_line, to_line
from ..data.events import Jumps
from ..data.facts import first_values_at_limits
from ..data.scaling import columns_by_name
from ..model.fields.known import Constants, constants_in
from ..model.initial_state.trained import Fitted
from ..model.make_model import is_equations_alone
from ..model.neural_ode import NeuralODE
from ..model.parameters import name as leaf_name
from ..model.parameters import parameter_nodes, partition
from ..runtime.compilation import WITHOUT_FUSION_EMITTERS
from ..runtime.placement import AnyArray, scope_of
from ..solver.held_rows import march_rows
from ..solver.held_steps import settle_each_interval
from ..solver.methods import EXPLICIT
from ..solver.problem import between_rows
from .effects import Coordinate
from .measurements import Measurements

Program = TypeVar("Program", bound=Callable[..., object])
Values = TypeVar("Values", np.ndarray, Array)
# Placeholder for measurements that are not arranged yet.
NOTHING_SEEN = Measurements(np.zeros((0, 0, 0)), np.zeros((0, 0, 0), bool))


def compile_program(function: Program) -> Program:
    """Compiles a function of arrays and static arguments at its first call with arrays of these shapes."""
    jitted = eqx.filter_jit(function, compiler_options=WITHOUT_FUSION_EMITTERS)  # pyright: ignore
    return cast(Program, jitted)


class Expansion(eqx.Module):
    """Predictions and their derivatives in the coordinates of each subject.

    - `f`: predictions in the user's units, shape `(subject, row, channel)`.
    - `first`, `second`, `third`: derivatives, with one axis of coordinates per order; None if not requested.
    """

    f: Float[Array, "subject row channel"]
    first: Float[Array, "subject row channel coordinate"] | None = None
    second: Float[Array, "subject row channel coordinate coordinate"] | None = None
    third: Float[Array, "subject row channel coordinate coordinate coordinate"] | None = None


def subject_of(trajectory: str) -> str:
    """Returns the subject of a trajectory with a name such as `SUBJECT/RECORD`."""
    return trajectory.rpartition("/")[0] or trajectory


def check_first_values(model: NeuralODE, data: Dataset) -> None:
    """Refuses initial states at a first measurement that is a limit, since the limit would be used as the value."""
    if not model.start.is_first_measurement:
        return
    subjects, states = np.nonzero(first_values_at_limits(data))
    if subjects.size:
        name = data.states[int(states[0])]
        raise ValueError(
            f"subject {data.trajectories[int(subjects[0])]!r} starts at its first measurement of {name!r}, which is a "
            f"limit, not a value; state the start: start=stated '+start.values={{{name}: {name}0}}' "
            f"'+start.constants={{{name}0: 1.0}}', and name {name}0 in random if it differs between subjects."
        )


@dataclass(frozen=True)
class Subjects:
    """Measurements of several subjects, and the model whose constants differ between them.

    - `model`: the model with the constants of a typical subject.
    - `coordinates`: the fitted constants, and the weights of a network in the equations.
    - `batch`: the measurements of all trajectories, in scaled units.
    - `seen`: the measurements in the user's units, shape `(subject, row, channel)`, with the rows of a subject's
      records concatenated, the same number for each record.
    - `names`: the names of the subjects. `records`: the trajectories of each, its records.
    - `steps`: solver steps between two rows, a number for all intervals or one for each.
    """

    model: NeuralODE
    coordinates: tuple[Coordinate, ...]
    batch: Batch
    seen: Measurements
    names: tuple[str, ...]
    records: tuple[tuple[int, ...], ...]
    steps: int | Int[np.ndarray, " interval"] = 1

    @staticmethod
    def of(
        model: NeuralODE, coordinates: Sequence[Coordinate], data: Dataset, *, has_occasions: bool = False
    ) -> "Subjects":
        """Returns the subjects of a dataset, one per trajectory, or one for all trajectories `SUBJECT/RECORD` of it.

        **Raises:** `ValueError` if initial states are fitted for each trajectory, or are measurements and one is a
        limit, or the solver does not support fixed steps.
        """
        check_first_values(model, data)
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
        names = [subject_of(name) if has_occasions else name for name in data.trajectories]
        records: dict[str, list[int]] = {}
        for at, name in enumerate(names):
            records.setdefault(name, []).append(at)
        subjects = Subjects(
            model, tuple(coordinates), batch, NOTHING_SEEN, tuple(records), tuple(map(tuple, records.values()))
        )
        sides, other_end = (
            None if values is None else subjects.arrange(values) for values in (data.censored, data.other_end)
        )
        seen = Measurements(
            subjects.arrange(np.where(known, data.ys, 0.0)),
            subjects.arrange(known) & subjects.has_record,
            sides,
            other_end,
        )
        return replace(subjects, seen=seen)

    @property
    def most_records(self) -> int:
        """The maximum number of records of a subject."""
        return max(map(len, self.records))

    @property
    def members(self) -> Int[np.ndarray, "subject record"]:
        """The trajectory of each record; missing records are padded with the subject's first trajectory."""
        return np.array(
            [
                [*trajectories, *trajectories[:1] * (self.most_records - len(trajectories))]
                for trajectories in self.records
            ],
            int,
        )

    @property
    def has_record(self) -> Bool[np.ndarray, "subject row channel"]:
        """Mask of the rows that belong to existing records, for all channels."""
        present = np.arange(self.most_records) < np.array([[len(trajectories)] for trajectories in self.records])
        return np.repeat(present, self.batch.ts.shape[1], axis=1)[..., None]

    def arrange(self, values: Values) -> Values:
        """Rearranges values of trajectories, `(trajectory, row, ...)`, by subject: `(subject, row, ...)`."""
        return values[self.members].reshape(len(self.records), -1, *values.shape[2:])

    def by_trajectory(self, values: Float[np.ndarray, "subject row *rest"]) -> Float[np.ndarray, "record row *rest"]:
        """Inverts `arrange`."""
        by_record = values.reshape(len(self.records), self.most_records, -1, *values.shape[2:])
        return by_record[self.places]

    @property
    def places(self) -> tuple[Int[np.ndarray, " trajectory"], Int[np.ndarray, " trajectory"]]:
        """The subject of each trajectory, and its index among the subject's records."""
        positions = {at: (subject, record) for subject, own in enumerate(self.records) for record, at in enumerate(own)}
        subjects, records = np.array([positions[at] for at in sorted(positions)], int).T
        return subjects, records

    @property
    def y(self) -> Float[np.ndarray, "subject row channel"]:
        return np.asarray(self.seen.y)

    @property
    def mask(self) -> Bool[np.ndarray, "subject row channel"]:
        """Mask of the measured values and limits."""
        return np.asarray(self.seen.mask)

    @property
    def count(self) -> int:
        return len(self.names)

    def first(self) -> Float[np.ndarray, " coordinate"]:
        """Returns the coordinates of the model's constants and weights."""
        values, weights = self.model.constants(), iter(read_weights(self.model).tolist())
        return np.array(
            [
                next(weights) if c.is_weight else float(to_line(np.asarray(values[c.name]), c.bounds))
                for c in self.coordinates
            ]
        )

    def constants(self, phi: Float[np.ndarray, "... coordinate"]) -> dict[str, np.ndarray]:
        """Returns the constants at coordinates, in the user's units."""
        phi = np.asarray(phi, np.float64)
        pairs = [(at, c) for at, c in enumerate(self.coordinates) if not c.is_weight]
        return {c.name: np.asarray(from_line(phi[..., at], c.bounds)) for at, c in pairs}

    def model_at(self, phi: Float[np.ndarray, " coordinate"]) -> NeuralODE:
        """Returns the model with the constants at coordinates."""
        with scope_of(self.model):
            return with_constants(self.model, self.coordinates, jnp.asarray(phi))

    def refine_steps(self, phi: Float[np.ndarray, "subject record coordinate"]) -> "Subjects":
        """Returns the subjects with enough steps between rows to meet the tolerance of all at these coordinates."""
        solver, phi = self.model.solver, phi[self.places]

        def errors_of(steps: Int[np.ndarray, " interval"]) -> np.ndarray:
            with scope_of(self.model):
                return np.asarray(
                    largest_errors(jnp.asarray(steps), self.model, self.coordinates, self.batch, jnp.asarray(phi))
                )

        steps = settle_each_interval(errors_of, self.batch.ts.shape[1] - 1, solver.error_order, solver.max_steps)
        return replace(self, steps=np.maximum(self.steps, steps))

    @property
    def counts(self) -> Int[np.ndarray, " interval"]:
        """Number of solver steps in each interval between two rows."""
        return np.broadcast_to(self.steps, (self.batch.ts.shape[1] - 1,))

    @property
    def most_steps(self) -> int:
        """Maximum number of solver steps in an interval between two rows."""
        return int(np.max(self.steps))

    def expand(self, phi: Float[AnyArray, "subject record coordinate"], order: int = 0) -> Expansion:
        """Computes predictions at coordinates of each record, with derivatives up to an order from 0 to 3."""
        with scope_of(self.model):
            at = jnp.asarray(phi[self.places])
            parts = compiled_expand(order, jnp.asarray(self.counts), self.model, self.coordinates, self.batch, at)
            return Expansion(*(part if self.most_records == 1 else self.arrange(part) for part in parts))

    @property
    def batch_by_subject(self) -> Batch:
        """The batch with an axis of subjects before that of trajectories, which are then their records."""
        with scope_of(self.model):
            return jax.tree.map(lambda part: part[self.members], self.batch)


def with_constants(model: NeuralODE, coordinates: Sequence[Coordinate], phi: Float[Array, " coordinate"]) -> NeuralODE:
    """Returns the model with the constants and network weights at coordinates; the others stay."""
    values = {c.name: from_line(phi[at], c.bounds) for at, c in enumerate(coordinates) if not c.is_weight}

    def groups(model: NeuralODE) -> list[Array]:
        return [group.raw for group in constants_in((model.field, model.start, model.observation))]

    def raw(group: Constants) -> Array:
        line = [
            to_line(values[name], bounds) / scale if name in values else own
            for (name, bounds, scale), own in zip(group.free(), group.raw, strict=True)
        ]
        return jnp.stack(line).astype(group.raw.dtype) if line else group.raw

    given = [raw(group) for group in constants_in((model.field, model.start, model.observation))]
    model = eqx.tree_at(groups, model, given) if given else model
    weights = [at for at, c in enumerate(coordinates) if c.is_weight]
    return with_weights(model, phi[np.array(weights)]) if weights else model


def split_weights(model: NeuralODE) -> tuple[PyTree, PyTree]:
    """Splits a model with a network into the weights of the field's network and the remaining model."""
    constants = [leaf_name(path) for path, _ in parameter_nodes(model, Constants)]
    weights, *fixed_parts = partition(model, freeze=constants, parts=("field",))
    return weights, eqx.combine(*fixed_parts)


def read_weights(model: NeuralODE) -> Float[np.ndarray, " weight"]:
    """Returns the weights of the network in the field of a model; empty for equations alone."""
    if is_equations_alone(model.field):
        return np.zeros(0)
    leaves = jax.tree.leaves(split_weights(model)[0])
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in leaves])


def with_weights(model: NeuralODE, weights: Float[Array, " weight"]) -> NeuralODE:
    """Returns the model with other weights of its network."""
    own, rest = split_weights(model)
    flat, unravel = ravel_pytree(own)
    return eqx.combine(unravel(weights.astype(flat.dtype)), rest)


def weights_as_coordinates(model: NeuralODE) -> tuple[Coordinate, ...]:
    """Returns a coordinate for each weight of the network in the field of a model."""
    return tuple(
        Coordinate(f"weight {number}", (None, None), is_weight=True)
        for number in range(1, len(read_weights(model)) + 1)
    )


# Whether each coordinate has an effect.
HasEffect = tuple[bool, ...]


@functools.cache
def multi_indices(effects: HasEffect, order: int) -> Int[np.ndarray, "derivative place"]:
    """Returns the distinct coordinate tuples of derivatives of an order, whose sequence does not matter.

    At most one coordinate of a tuple has no effect: modes and their curvature need derivatives in the effects only, and
    a gradient adds one in any coordinate. A network with many weights thus adds few derivatives per weight.
    """
    rows = [
        row
        for row in itertools.combinations_with_replacement(range(len(effects)), order)
        if sum(not effects[at] for at in row) <= 1
    ]
    return np.array(rows, int).reshape(len(rows), order)


class Jets(NamedTuple):
    """A quantity with its derivatives in the coordinates: one part per order, with a last axis for the derivatives of
    `multi_indices`."""

    parts: tuple[Float[Array, "... derivative"], ...]

    @property
    def order(self) -> int:
        return len(self.parts) - 1

    def flat(self) -> Float[Array, " number"]:
        """Concatenates all numbers of the parts."""
        return jnp.concatenate([part.reshape(-1) for part in self.parts])

    @staticmethod
    def of(numbers: Float[Array, " number"], states: int, effects: HasEffect, order: int) -> "Jets":
        """Restores the parts from their concatenated numbers."""
        sizes = [len(multi_indices(effects, part_order)) for part_order in range(order + 1)]
        ends = np.cumsum([states * size for size in sizes])[:-1]
        return Jets(
            tuple(part.reshape(states, size) for part, size in zip(jnp.split(numbers, ends), sizes, strict=True))
        )

    def whole(self, effects: HasEffect) -> tuple[Float[Array, "..."], ...]:
        """Returns the derivatives as arrays with one axis of coordinates per order; 0 if not computed."""
        derivatives: list[Array] = []
        for order, part in enumerate(self.parts):
            places, is_known = whole_index(effects, order)
            if is_known.all():
                numbers = part[..., places]
            elif is_known.any():
                numbers = jnp.where(is_known, part[..., places], 0)
            else:
                numbers = jnp.zeros((*part.shape[:-1], len(places)), part.dtype)
            derivatives.append(numbers.reshape(*part.shape[:-1], *(len(effects),) * order))
        return tuple(derivatives)


@functools.cache
def whole_index(effects: HasEffect, order: int) -> tuple[Int[np.ndarray, " place"], Bool[np.ndarray, " place"]]:
    """Returns the index in `multi_indices` of each sequence of coordinates, and whether it is included."""
    count = len(effects)
    sequences = np.array([*itertools.product(range(count), repeat=order)], int)
    rows = np.sort(sequences.reshape(count**order, order), axis=1)
    is_known = np.array([sum(not effects[at] for at in row) <= 1 for row in rows.tolist()], bool)
    places = np.zeros(len(rows), int)
    places[is_known] = places_in(effects, rows[is_known])
    return places, is_known


# A function of states and coordinates.
StateFunction = Callable[[Array, Array], Array]


def propagate_jets(function: StateFunction, states: Jets, phi: Float[Array, " coordinate"], effects: HasEffect) -> Jets:
    """Computes the jets of a function of states and coordinates from those of the states, without duplicates."""
    count = len(phi)
    parts: list[Array] = []
    for order in range(states.order + 1):
        rows = multi_indices(effects, order)
        # A set of directions is a binary number, whose digits 1 are the directions of a derivative of the states.
        subsets = [[place for place in range(order) if number >> place & 1] for number in range(2**order)]
        along = [
            states.parts[len(subset)][..., places_in(effects, rows[:, subset])] if subset else states.parts[0]
            for subset in subsets
        ]
        directions = [jnp.eye(count, dtype=phi.dtype)[rows[:, place]] for place in range(order)]
        differential = differentiate_along(function, order)
        axes = ([None, *[-1] * (len(along) - 1)], None, [0] * order)
        along[0] = along[0][..., 0]
        if order:
            parts.append(jax.vmap(differential, axes, out_axes=-1)(along, phi, directions))
        else:
            parts.append(differential(along, phi, directions)[..., None])
    return Jets(tuple(parts))


def places_in(effects: HasEffect, rows: Int[np.ndarray, "derivative place"]) -> Int[np.ndarray, " derivative"]:
    """Returns the index of each derivative in `multi_indices`."""
    places = {tuple(row): at for at, row in enumerate(multi_indices(effects, rows.shape[1]).tolist())}
    return np.array([places[tuple(row)] for row in rows.tolist()], int)


def differentiate_along(function: StateFunction, order: int) -> Callable[[list[Array], Array, list[Array]], Array]:
    """Returns the mixed derivative along this number of directions of the coordinates, as a function of the states with
    their derivatives along each set of directions, of the coordinates, and of the directions."""
    if order == 0:
        return lambda along, phi, directions: function(along[0], phi)
    lower = differentiate_along(function, order - 1)

    def differentiate(along: list[Array], phi: Array, directions: list[Array]) -> Array:
        half, others = len(along) // 2, directions[:-1]
        begin, tangent = (along[:half], phi), (along[half:], directions[-1])

        def at(along: list[Array], phi: Array) -> Array:
            return lower(along, phi, others)

        return jax.jvp(at, begin, tangent)[1]

    return differentiate


class JetField(eqx.Module):
    """The vector field of states and of their derivatives in the coordinates, which are the last inputs.

    Its Runge-Kutta steps are those of the states, with their exact derivatives. Differentiating the loop over steps
    with JAX gives errors of some per cent in some programs compiled by XLA for CPUs (jaxlib 0.10.2).
    """

    model: NeuralODE
    coordinates: tuple[Coordinate, ...] = eqx.field(static=True)
    order: int = eqx.field(static=True)

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " number"], u: Float[Array, " input"]
    ) -> Float[Array, " number"]:
        inputs = len(self.model.inputs)

        def rates(states: Float[Array, " state"], phi: Float[Array, " coordinate"]) -> Float[Array, " state"]:
            return with_constants(self.model, self.coordinates, phi).field(t, states, u[:inputs])

        effects = have_effects(self.coordinates)
        states = Jets.of(y, len(self.model.latent), effects, self.order)
        return propagate_jets(rates, states, u[inputs:], effects).flat()


def have_effects(coordinates: Sequence[Coordinate]) -> HasEffect:
    return tuple(c.kind is not None for c in coordinates)


def simulate_subjects(
    order: int,
    steps: Int[Array, " interval"],
    model: NeuralODE,
    coordinates: tuple[Coordinate, ...],
    batch: Batch,
    phi: Float[Array, "subject coordinate"],
) -> tuple[tuple[Float[Array, "subject row channel ..."], ...], Float[Array, "subject interval"]]:
    """Simulates the channels of all subjects in the user's units with their derivatives; also returns the largest error
    of a step in each interval."""
    count, effects, scaler = len(coordinates), have_effects(coordinates), model.scaler

    def alone(subject: Batch) -> Batch:
        return jax.tree.map(lambda x: x[None], subject)

    def begin(phi: Float[Array, " coordinate"], subject: Batch) -> Float[Array, " number"]:
        def start(_: Float[Array, " state"], phi: Float[Array, " coordinate"]) -> Float[Array, " state"]:
            return with_constants(model, coordinates, phi).first_states(alone(subject))[0]

        none = Jets(tuple(jnp.zeros((0, len(multi_indices(effects, part_order)))) for part_order in range(order + 1)))
        return propagate_jets(start, none, phi, effects).flat()

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
        jumps=plain.jumps and with_derivatives(plain.jumps, effects, order),
    )
    intervals, tolerances = between_rows(problem, model.solver.interpolation), model.solver.tolerances(starts)
    assert isinstance(model.solver.method, str)
    solution = march_rows(model.solver.method, problem, intervals, steps, tolerances)
    bound = jnp.inf if problem.bound is None else problem.bound[None, None]
    numbers = jnp.where(jnp.abs(solution.ys) <= bound, solution.ys, jnp.inf)

    def observe(phi: Float[Array, " coordinate"], numbers: Float[Array, "row number"], subject: Batch) -> PyTree:
        def channels(
            states: Float[Array, "row state"], phi: Float[Array, " coordinate"]
        ) -> Float[Array, "row channel"]:
            scaled = with_constants(model, coordinates, phi).observe(states[None], alone(subject))[0]
            scaled = scaled * scaler.state_scale[None] + scaler.state_shift[None]
            return columns_by_name(from_line, scaled, scaler.bounds)

        jets = jax.vmap(lambda row: Jets.of(row, len(model.latent), effects, order))(numbers)
        return propagate_jets(channels, jets, phi, effects).whole(effects)

    return jax.vmap(observe)(phi, numbers, batch), solution.errors


def with_derivatives(jumps: Jumps, effects: HasEffect, order: int) -> Jumps:
    """Extends jumps of states to their derivatives, which a dose leaves unchanged and a factor multiplies."""
    sizes = [len(multi_indices(effects, part_order)) for part_order in range(order + 1)]
    copies = [jnp.repeat(jumps.factor, size, axis=-1) for size in sizes]
    factor = jnp.concatenate(copies, axis=-1)
    room = jnp.zeros((*factor.shape[:-1], factor.shape[-1] - jumps.shift.shape[-1]), jumps.shift.dtype)
    return Jumps(factor, jnp.concatenate([jumps.shift, room], axis=-1))


@compile_program
def largest_errors(
    steps: Int[Array, " interval"],
    model: NeuralODE,
    coordinates: tuple[Coordinate, ...],
    batch: Batch,
    phi: Float[Array, "subject coordinate"],
) -> Float[Array, "subject interval"]:
    return simulate_subjects(0, steps, model, coordinates, batch, phi)[1]


def expand_predictions(
    order: int,
    steps: Int[Array, " interval"],
    model: NeuralODE,
    coordinates: tuple[Coordinate, ...],
    batch: Batch,
    phi: Float[Array, "subject coordinate"],
) -> tuple[Array, ...]:
    """Computes predictions of all subjects and their derivatives in the coordinates."""
    return simulate_subjects(order, steps, model, coordinates, batch, phi)[0]


compiled_expand = compile_program(expand_predictions)

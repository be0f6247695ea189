"""The exported parts of a model: its functions as programs, its names, scales and steps."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Literal, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..data.batch import Batch
from ..data.domains import Bounds, Turns, from_line, near, to_line
from ..data.inputs import DEGREES, are_held, kinds_by_input
from ..data.scaling import columns_by_name
from ..expressions.tree import symbols
from ..model.ensemble import Ensemble
from ..model.fields.equations import normalize, parse
from ..model.initial_state.rule import Steady
from ..model.initial_state.trained import Encoder, Fitted
from ..model.neural_ode import NeuralODE
from ..model.observation import DirectReadout, FormulaReadout
from ..runtime.placement import carry, dtype_of, scope
from ..runtime.serialization import Json
from ..solver.triggers import TriggeredField, has_triggers
from .tracing import CannotExport, Program, trace

Precision = Literal["double", "float"]
PRECISIONS: dict[str, str] = {"double": "x64", "float": "x32"}
# Rounding errors of a level's terms that can add up in a step of an exported model.
LEVEL_ROUNDINGS = 64
# A function with the shapes of its arguments.
Shaped = tuple[Callable[..., PyTree], *tuple[tuple[int, ...], ...]]
Method = Literal["tsit5", "radau5"]


@dataclasses.dataclass(frozen=True)
class Steps:
    """Equal steps between two rows.

    - `method`: `tsit5`, or `radau5` (Radau IIA of order 5) for stiff models.
    - `longest`: maximum step size [unit of time]; infinite if only `fewest` applies.
    - `fewest`: minimum number of steps between two rows.
    """

    method: Method
    longest: float
    fewest: int

    def between(self, interval: float) -> int:
        """Returns the number of steps in an interval [unit of time]."""
        return max(self.fewest, int(np.ceil(interval / self.longest * (1 - 1e-9))))


@dataclasses.dataclass(frozen=True)
class Exported:
    """A model prepared for export.

    - `model`: the model in the precision of the export.
    - `members`: the programs of each member of an ensemble, by name; a single model has one. See `member_functions`.
    - `inputs_scaled`: the program that scales a row of inputs. `combined`: the program that computes the mean and the
      edges of the band from the scaled channels of all members; None for a single model.
    - `level`: the level of the band.
    - `steps`: the fixed steps.
    - `confidence`: confidence intervals of the constants, as in `summary.json`; empty if unknown.
    """

    model: NeuralODE | Ensemble
    precision: Precision
    members: tuple[dict[str, Program], ...]
    inputs_scaled: Program
    combined: Program | None
    level: float
    steps: Steps
    confidence: Json = field(default_factory=dict[str, object])

    @property
    def one(self) -> NeuralODE:
        """One member, for properties that all members share."""
        return self.model.typical

    @property
    def dtype(self) -> np.dtype:
        return dtype_of(PRECISIONS[self.precision])

    @property
    def units(self) -> dict[str, str]:
        return dict(self.one.units)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the predictions: the channels, followed by the edges of their bands."""
        ends = ("", "_lower", "_upper") if self.combined else ("",)
        return tuple(name + end for end in ends for name in self.one.states)

    @property
    def rows_read(self) -> int:
        """Number of rows from which the initial state is estimated."""
        return self.one.start.rows if isinstance(self.one.start, Encoder) else 1

    @property
    def reads_past(self) -> bool:
        """Whether a trajectory begins at the last of these rows."""
        return self.one.start.past > 0

    @property
    def needs_given_start(self) -> bool:
        """Whether node_fit fits the initial state of a trajectory, which the exported model needs as an input."""
        return isinstance(self.one.start, Fitted)

    @property
    def is_steady(self) -> bool:
        return isinstance(self.one.start, Steady)

    @property
    def has_triggers(self) -> bool:
        return has_triggers(self.one.field)

    @property
    def is_driven(self) -> bool:
        return bool(self.one.inputs)

    @property
    def input_kinds(self) -> tuple[str, ...]:
        """The interpolation of each input between rows."""
        return kinds_by_input(self.one.solver.interpolation, len(self.one.inputs))

    @property
    def held_inputs(self) -> tuple[bool, ...]:
        return are_held(self.input_kinds, len(self.one.inputs))

    @property
    def input_degrees(self) -> tuple[int, ...]:
        """The degree of the polynomial that each input is between rows."""
        return tuple(DEGREES[kind] for kind in self.input_kinds)

    @property
    def observes_inputs(self) -> bool:
        """Whether the channels depend on inputs or on the time."""
        return observes_inputs(self.one)

    @property
    def horizon(self) -> float | None:
        """Time since the start of a record beyond which an ensemble has no bands."""
        end = self.model.horizon if isinstance(self.model, Ensemble) else None
        return None if end is None else end * (1 + 1e-6)

    @property
    def turns(self) -> Turns:
        """The turn of each channel that is an angle, None for others."""
        return self.one.scaler.turns or (None,) * len(self.one.states)

    @property
    def digest(self) -> str:
        """A digest of the numbers and the structure of the model."""
        return digest_of(self.model)


def observes_inputs(model: NeuralODE) -> bool:
    """Whether the channels of a model depend on its inputs or on the time, besides its states."""
    if not isinstance(model.observation, FormulaReadout):
        return isinstance(model.observation, DirectReadout)
    others = {normalize(name) for name in (*model.inputs, model.system.time)}
    return any(others.intersection(symbols(parse(*formula))) for formula in model.observation.formulas.texts)


def digest_of(model: NeuralODE | Ensemble) -> str:
    """Returns the SHA-256 of a model's structure and of its numbers in double precision."""
    leaves, structure = jax.tree.flatten(model)
    checksum = hashlib.sha256(str(structure).encode())
    for leaf in leaves:
        checksum.update(np.asarray(leaf, np.float64).tobytes() if hasattr(leaf, "dtype") else repr(leaf).encode())
    return checksum.hexdigest()


def export_functions(model: NeuralODE | Ensemble, precision: Precision, steps: Steps, level: float = 0.9) -> Exported:
    """Traces all functions of a model.

    **Arguments:** `level`: level of an ensemble's band.

    **Raises:** `CannotExport` if a part of the model can't be exported.
    """
    mode = PRECISIONS[precision]
    with scope(mode):
        dtype = dtype_of(mode)
        cast_model = carry(model, dtype)
        members = cast_model.members if isinstance(cast_model, Ensemble) else (cast_model,)
        one = cast_model.typical
        scaled = trace(functools.partial(scale_inputs, one), (len(one.inputs),), dtype=dtype)
        combined = None
        if isinstance(cast_model, Ensemble):
            shape = (len(members), len(one.states))
            combined = trace(functools.partial(band_of_members, cast_model, level=level), shape, dtype=dtype)
        implicit = steps.method == "radau5"
        programs = tuple(member_programs(member, dtype, implicit) for member in members)
        return Exported(cast_model, precision, programs, scaled, combined, level, steps)


def member_programs(model: NeuralODE, dtype: np.dtype, implicit: bool) -> dict[str, Program]:
    """Returns the programs of a model, by the names of `member_functions`."""
    functions = member_functions(model)
    if not implicit and not isinstance(model.start, Steady):
        del functions["slopes"]
    return {name: trace(function, *shapes, dtype=dtype) for name, (function, *shapes) in functions.items()}


def member_functions(model: NeuralODE) -> dict[str, Shaped]:
    """Returns the functions of a model, with the shapes of their arguments.

    - In scaled units: `rates(t, z, v)` and their derivatives with respect to the states (`slopes`); `outputs(z)`, the
      channels, or `outputs(t, z, v)` if they depend on inputs or on the time; for triggers, `levels(t, z, v)`, the
      levels less their rounding errors (`heights`), and the states after each trigger (`jumped`).
    - In the user's units: `field(t, y, u)` and its derivatives with respect to the states (`jacobian`).
    - Between them: `states(z)`, `channels` with the arguments of `outputs`, `line(y)` from the user's states to scaled
      ones, and `start`; see `start_function`.
    """
    states, inputs, channels = len(model.latent), len(model.inputs), len(model.states)
    rows = model.start.rows if isinstance(model.start, Encoder) else 1
    shapes = ((), (states,), (inputs,))
    scaler, latent_scaler = model.scaler, model.system.scaler

    def line(y: Float[Array, " state"]) -> Float[Array, " state"]:
        return (
            columns_by_name(to_line, y, latent_scaler.bounds) - latent_scaler.state_shift
        ) / latent_scaler.state_scale

    def back(z: Float[Array, " state"]) -> Float[Array, " state"]:
        return columns_by_name(
            from_line, z * latent_scaler.state_scale + latent_scaler.state_shift, latent_scaler.bounds
        )

    def outputs_of_states(z: Float[Array, " state"]) -> Float[Array, " channel"]:
        return model.channels(jnp.zeros((), z.dtype), z, jnp.zeros((inputs,), z.dtype))

    outputs, seen = (model.channels, shapes) if observes_inputs(model) else (outputs_of_states, ((states,),))

    def observe(*given: Array) -> Float[Array, " channel"]:
        return columns_by_name(from_line, outputs(*given) * scaler.state_scale + scaler.state_shift, scaler.bounds)

    functions: dict[str, Shaped] = {
        "rates": (model.field, *shapes),
        "slopes": (jax.jacfwd(model.field, argnums=1), *shapes),
        "field": (model.vector_field, *shapes),
        "jacobian": (jax.jacfwd(model.vector_field, argnums=1), *shapes),
        "outputs": (outputs, *seen),
        "channels": (observe, *seen),
        "states": (back, (states,)),
        "line": (line, (states,)),
        "start": (start_function(model), (channels,), (rows, channels), (rows, inputs), (rows,), (rows,), ()),
    }
    if has_triggers(model.field):
        field = model.field
        assert isinstance(field, TriggeredField)

        def heights(t: Float[Array, ""], z: Float[Array, " state"], u: Float[Array, " input"]) -> Array:
            return field.levels(t, z, u) - LEVEL_ROUNDINGS * jnp.finfo(z.dtype).eps * field.sizes(t, z, u)

        functions |= {
            "levels": (field.levels, *shapes),
            "heights": (heights, *shapes),
            "jumped": (field.apply_triggers, *shapes),
        }
    return functions


def scale_inputs(model: NeuralODE, u: Float[Array, " input"]) -> Float[Array, " input"]:
    """Scales a row of inputs."""
    s = model.system.scaler
    return (columns_by_name(to_line, u, s.input_bounds) - s.input_shift) / s.input_scale


def start_function(model: NeuralODE) -> Callable[..., Float[Array, " state"]]:
    """Returns the rule for initial states as a function of some rows of a trajectory.

    Its arguments are `(first, ys, us, ts, there, t)`: the first measured channels from the start on (NaN if missing),
    and rows of channels (NaN where not measured), of inputs, of times since the start, and of ones, or zeros for
    missing rows; all in the user's units, with angles without jumps. `t` is the time of the start in scaled units. The
    function returns the scaled states, which a `Steady` start uses as its initial guess.
    """
    past, scaler = model.start.past > 0, model.scaler

    def channels(y: Float[Array, "row channel"], bounds: Sequence[Bounds]) -> Float[Array, "row channel"]:
        finite = jnp.isfinite(y)
        inside = jnp.stack(
            [jnp.where(finite[:, column], y[:, column], typical_of(pair)) for column, pair in enumerate(bounds)], 1
        )
        scaled = (columns_by_name(to_line, inside, bounds) - scaler.state_shift[None]) / scaler.state_scale[None]
        return jnp.where(finite, scaled, jnp.nan)

    def start(
        first: Float[Array, " channel"],
        ys: Float[Array, "row channel"],
        us: Float[Array, "row input"],
        ts: Float[Array, " row"],
        there: Float[Array, " row"],
        t: Float[Array, ""],
    ) -> Float[Array, " state"]:
        scaled, begun = (
            channels(rebase_angles(ys, scaler.turns) if past else ys, scaler.bounds),
            channels(first[None], scaler.bounds),
        )
        finite = jnp.isfinite(scaled) & (there > 0)[:, None]
        inputs, since = jax.vmap(lambda u: scale_inputs(model, u))(us)[None], (ts / scaler.time_scale)[None]
        filled = filled_rows(scaled)
        table = jnp.concatenate([filled, finite.astype(filled.dtype), inputs[0], since[0][:, None]], axis=1)
        seen = jnp.isfinite(begun)
        rows = slice(-1, None) if past else slice(None)
        batch = Batch(
            ts=since[:, rows],
            ys=jnp.where(finite, jnp.nan_to_num(scaled), 0)[None, rows],
            us=inputs[:, rows],
            mask=finite[None, rows],
            known=finite[None, rows],
            first=jnp.where(seen, jnp.nan_to_num(begun), 0),
            seen=seen,
            past=table[None] if past else table[None, :0],
            index=jnp.zeros(1, jnp.int32),
            origin=t.reshape(1),
            joint=True,
            driven=True,
        )
        rule = model.start
        states = rule.initial(batch) if isinstance(rule, Fitted) else rule.estimate(refuse_to_simulate, batch)
        return states[0]

    return start


def refuse_to_simulate(*_: object) -> NoReturn:
    raise CannotExport(
        "the rule for starts simulates trajectories, which no exported program does; use First, Stated, Steady, "
        "Encoder or Fitted."
    )


def typical_of(bounds: Bounds) -> float:
    """Returns a value within bounds."""
    lower, upper = bounds
    if lower is not None and upper is not None:
        return (lower + upper) / 2
    return lower + 1 if lower is not None else upper - 1 if upper is not None else 0.0


def rebase_angles(ys: Float[Array, "row channel"], turns: Turns) -> Float[Array, "row channel"]:
    """Shifts angles by whole turns so that the last known one is within half a turn of zero."""
    columns = [ys[:, column] for column in range(ys.shape[1])]
    for column, turn in enumerate(turns):
        if turn:
            last = jnp.zeros((), ys.dtype)
            for row in range(ys.shape[0]):
                last = jnp.where(jnp.isfinite(ys[row, column]), ys[row, column], last)
            columns[column] = columns[column] + near(last, jnp.zeros((), ys.dtype), turn) - last
    return jnp.stack(columns, axis=1)


def filled_rows(ys: Float[Array, "row channel"]) -> Float[Array, "row channel"]:
    """Fills missing values from the previous row, else from the next one with a value, else with 0."""
    rows = [ys[row] for row in range(ys.shape[0])]
    for way in (range(1, len(rows)), range(len(rows) - 2, -1, -1)):
        for row in way:
            rows[row] = jnp.where(jnp.isfinite(rows[row]), rows[row], rows[row - way.step])
    filled = jnp.stack(rows)
    return jnp.where(jnp.isfinite(filled), filled, 0)


def band_of_members(
    ensemble: Ensemble, outputs: Float[Array, "member channel"], level: float
) -> tuple[Float[Array, " channel"], Float[Array, " channel"], Float[Array, " channel"]]:
    """Returns the members' mean and the edges of the band in the user's units; see `Ensemble.bands`."""
    finite = jnp.isfinite(outputs)
    alive = finite.sum(axis=0).astype(outputs.dtype)
    mean = jnp.where(finite, outputs, 0).sum(axis=0) / jnp.maximum(alive, 1)
    squares = jnp.where(finite, outputs - mean[None], 0) ** 2
    spread = ensemble.gain**2 * squares.sum(axis=0) / jnp.maximum(alive - 1, 1)
    reach = ensemble.factor(level) * jnp.sqrt(spread + ensemble.noise**2)
    mean = jnp.where(alive > 0, mean, jnp.inf)
    scaler = ensemble.typical.scaler

    def back(z: Float[Array, " channel"]) -> Float[Array, " channel"]:
        return columns_by_name(from_line, z * scaler.state_scale + scaler.state_shift, scaler.bounds)

    low, high = back(mean - reach), back(mean + reach)
    return back(mean), jnp.minimum(low, high), jnp.maximum(low, high)

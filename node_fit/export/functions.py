"""What is exported of a model: its functions as programs, its names, scales and steps."""

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
from ..data.scaling import columns_by_name
from ..model.ensemble import Ensemble
from ..model.initial_state.rule import Steady
from ..model.initial_state.trained import Encoder, Fitted
from ..model.neural_ode import NeuralODE
from ..runtime.placement import carry, dtype_of, scope
from ..runtime.serialization import Json
from ..solver.triggers import TriggeredField, has_triggers
from .tracing import CannotExport, Program, trace

Precision = Literal["double", "float"]
PRECISIONS: dict[str, str] = {"double": "x64", "float": "x32"}
# Roundings of a level's terms that may add up in a step of an exported model.
LEVEL_ROUNDINGS = 64
# A function with the shapes of its arguments.
Shaped = tuple[Callable[..., PyTree], *tuple[tuple[int, ...], ...]]
Method = Literal["tsit5", "radau5"]


@dataclasses.dataclass(frozen=True)
class Steps:
    """Steps of one length between two rows.

    - `method`: `tsit5`, or `radau5` (Radau IIA of order 5) for stiff models.
    - `longest`: no step is longer [unit of time]; infinite if only `fewest` counts.
    - `fewest`: steps between two rows, at the least.
    """

    method: Method
    longest: float
    fewest: int

    def between(self, interval: float) -> int:
        """The number of steps in an interval [unit of time]."""
        return max(self.fewest, int(np.ceil(interval / self.longest * (1 - 1e-9))))


@dataclasses.dataclass(frozen=True)
class Exported:
    """A model as targets see it.

    - `model`: in the precision of the export.
    - `members`: the programs of each member of an ensemble, by name; of a single model, one. See `member_functions`.
    - `inputs_scaled`: the program that scales a row of inputs. `combined`: that of the mean and the edges of the band
      from the scaled channels of all members; None for a single model.
    - `level`: the level of the band.
    - `steps`: the fixed steps.
    - `confidence`: how sure the constants are, as in `summary.json`; empty where that is not known.
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
        """A member, for what all members share."""
        return self.model.typical

    @property
    def dtype(self) -> np.dtype:
        return dtype_of(PRECISIONS[self.precision])

    @property
    def units(self) -> dict[str, str]:
        return dict(self.one.units)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of what is predicted: the channels, followed by the edges of their bands."""
        ends = ("", "_lower", "_upper") if self.combined else ("",)
        return tuple(name + end for end in ends for name in self.one.states)

    @property
    def rows_read(self) -> int:
        """Rows that a start is read from."""
        return self.one.start.rows if isinstance(self.one.start, Encoder) else 1

    @property
    def reads_past(self) -> bool:
        """Whether a trajectory begins at the last of these rows."""
        return self.one.start.past > 0

    @property
    def needs_given_start(self) -> bool:
        """Whether node_fit fits the start of a trajectory, which the exported model has to be given."""
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
    def horizon(self) -> float | None:
        """Time since the start of a record beyond which an ensemble has no bands."""
        own = self.model.horizon if isinstance(self.model, Ensemble) else None
        return None if own is None else own * (1 + 1e-6)

    @property
    def turns(self) -> Turns:
        """The turn of each channel that is an angle, None of others."""
        return self.one.scaler.turns or (None,) * len(self.one.states)

    @property
    def digest(self) -> str:
        """A digest of all numbers and of the structure of the model."""
        return digest_of(self.model)


def digest_of(model: NeuralODE | Ensemble) -> str:
    """SHA-256 of the structure of a model and of its numbers in double precision."""
    leaves, structure = jax.tree.flatten(model)
    found = hashlib.sha256(str(structure).encode())
    for leaf in leaves:
        found.update(np.asarray(leaf, np.float64).tobytes() if hasattr(leaf, "dtype") else repr(leaf).encode())
    return found.hexdigest()


def export_functions(model: NeuralODE | Ensemble, precision: Precision, steps: Steps, level: float = 0.9) -> Exported:
    """Traces all functions of a model.

    **Arguments:** `level`: of an ensemble's band.

    **Raises:** `CannotExport` if a part of it can't be.
    """
    mode = PRECISIONS[precision]
    with scope(mode):
        dtype = dtype_of(mode)
        own = carry(model, dtype)
        members = own.members if isinstance(own, Ensemble) else (own,)
        one = own.typical
        scaled = trace(functools.partial(scale_inputs, one), (len(one.inputs),), dtype=dtype)
        combined = None
        if isinstance(own, Ensemble):
            shape = (len(members), len(one.states))
            combined = trace(functools.partial(band_of_members, own, level=level), shape, dtype=dtype)
        implicit = steps.method == "radau5"
        programs = tuple(member_programs(member, dtype, implicit) for member in members)
        return Exported(own, precision, programs, scaled, combined, level, steps)


def member_programs(model: NeuralODE, dtype: np.dtype, implicit: bool) -> dict[str, Program]:
    """The programs of a model by the names of `member_functions`."""
    functions = member_functions(model)
    if not implicit and not isinstance(model.start, Steady):
        del functions["slopes"]
    return {name: trace(function, *shapes, dtype=dtype) for name, (function, *shapes) in functions.items()}


def member_functions(model: NeuralODE) -> dict[str, Shaped]:
    """The functions of a model, each with the shapes of its arguments.

    Scaled: `rates(t, z, v)` and their derivatives by the states (`slopes`); `outputs(z)`, the channels; of triggers,
    `levels(t, z, v)`, how far they are above zero and its rounding (`heights`), and the states after each (`jumped`).
    In the user's units: `field(t, y, u)` and its derivatives by the states (`jacobian`). From one to the other:
    `states(z)`, `channels(z)`, `line(y)` from the user's states to scaled ones, and `start`, see `start_function`.
    """
    states, inputs, channels = len(model.latent), len(model.inputs), len(model.states)
    rows = model.start.rows if isinstance(model.start, Encoder) else 1
    here = ((), (states,), (inputs,))
    scaler, own = model.scaler, model.system.scaler

    def line(y: Float[Array, " state"]) -> Float[Array, " state"]:
        return (columns_by_name(to_line, y, own.bounds) - own.state_shift) / own.state_scale

    def back(z: Float[Array, " state"]) -> Float[Array, " state"]:
        return columns_by_name(from_line, z * own.state_scale + own.state_shift, own.bounds)

    def outputs(z: Float[Array, " state"]) -> Float[Array, " channel"]:
        # Formulas that read the time or inputs are refused by `export`.
        return model.channels(jnp.zeros((), z.dtype), z, jnp.zeros((inputs,), z.dtype))

    def observed(z: Float[Array, " state"]) -> Float[Array, " channel"]:
        return columns_by_name(from_line, outputs(z) * scaler.state_scale + scaler.state_shift, scaler.bounds)

    found: dict[str, Shaped] = {
        "rates": (model.field, *here),
        "slopes": (jax.jacfwd(model.field, argnums=1), *here),
        "field": (model.vector_field, *here),
        "jacobian": (jax.jacfwd(model.vector_field, argnums=1), *here),
        "outputs": (outputs, (states,)),
        "channels": (observed, (states,)),
        "states": (back, (states,)),
        "line": (line, (states,)),
        "start": (start_function(model), (channels,), (rows, channels), (rows, inputs), (rows,), (rows,), ()),
    }
    if has_triggers(model.field):
        field = model.field
        assert isinstance(field, TriggeredField)

        def heights(t: Float[Array, ""], z: Float[Array, " state"], u: Float[Array, " input"]) -> Array:
            return field.levels(t, z, u) - LEVEL_ROUNDINGS * jnp.finfo(z.dtype).eps * field.sizes(t, z, u)

        found |= {"levels": (field.levels, *here), "heights": (heights, *here), "jumped": (field.jumped, *here)}
    return found


def scale_inputs(model: NeuralODE, u: Float[Array, " input"]) -> Float[Array, " input"]:
    """A row of inputs in scaled units."""
    s = model.system.scaler
    return (columns_by_name(to_line, u, s.input_bounds) - s.input_shift) / s.input_scale


def start_function(model: NeuralODE) -> Callable[..., Float[Array, " state"]]:
    """The rule for starts as a function of some rows of a trajectory.

    It is called with `(first, ys, us, ts, there, t)`: the first measured channels from the start on, NaN if there are
    none, and rows of channels, NaN where not measured, of inputs, of times since the start, and of ones, or zeros for
    rows that are not there; all in the user's units, angles without jumps. `t` is the time of the start in scaled
    units. It returns the scaled states, which a `Steady` start only begins its search with.
    """
    past, scaler = model.start.past > 0, model.scaler

    def channels(y: Float[Array, "row channel"], bounds: Sequence[Bounds]) -> Float[Array, "row channel"]:
        known = jnp.isfinite(y)
        inside = jnp.stack([jnp.where(known[:, at], y[:, at], typical_of(pair)) for at, pair in enumerate(bounds)], 1)
        scaled = (columns_by_name(to_line, inside, bounds) - scaler.state_shift[None]) / scaler.state_scale[None]
        return jnp.where(known, scaled, jnp.nan)

    def start(
        first: Float[Array, " channel"],
        ys: Float[Array, "row channel"],
        us: Float[Array, "row input"],
        ts: Float[Array, " row"],
        there: Float[Array, " row"],
        t: Float[Array, ""],
    ) -> Float[Array, " state"]:
        scaled, begun = (
            channels(rebased(ys, scaler.turns) if past else ys, scaler.bounds),
            channels(first[None], scaler.bounds),
        )
        known = jnp.isfinite(scaled) & (there > 0)[:, None]
        inputs, since = jax.vmap(lambda u: scale_inputs(model, u))(us)[None], (ts / scaler.time_scale)[None]
        filled = filled_rows(scaled)
        table = jnp.concatenate([filled, known.astype(filled.dtype), inputs[0], since[0][:, None]], axis=1)
        seen = jnp.isfinite(begun)
        rows = slice(-1, None) if past else slice(None)
        batch = Batch(
            ts=since[:, rows],
            ys=jnp.where(known, jnp.nan_to_num(scaled), 0)[None, rows],
            us=inputs[:, rows],
            mask=known[None, rows],
            known=known[None, rows],
            first=jnp.where(seen, jnp.nan_to_num(begun), 0),
            seen=seen,
            past=table[None] if past else table[None, :0],
            index=jnp.zeros(1, jnp.int32),
            origin=t.reshape(1),
            joint=True,
            driven=True,
        )
        rule = model.start
        found = rule.initial(batch) if isinstance(rule, Fitted) else rule.estimate(refuse_to_simulate, batch)
        return found[0]

    return start


def refuse_to_simulate(*_: object) -> NoReturn:
    raise CannotExport(
        "the rule for starts simulates trajectories, which no exported program does; use First, Stated, Steady, "
        "Encoder or Fitted."
    )


def typical_of(bounds: Bounds) -> float:
    """A value within bounds."""
    lower, upper = bounds
    if lower is not None and upper is not None:
        return (lower + upper) / 2
    return lower + 1 if lower is not None else upper - 1 if upper is not None else 0.0


def rebased(ys: Float[Array, "row channel"], turns: Turns) -> Float[Array, "row channel"]:
    """Angles moved by whole turns so that the last known one is within half a turn of zero."""
    columns = [ys[:, at] for at in range(ys.shape[1])]
    for at, turn in enumerate(turns):
        if turn:
            last = jnp.zeros((), ys.dtype)
            for row in range(ys.shape[0]):
                last = jnp.where(jnp.isfinite(ys[row, at]), ys[row, at], last)
            columns[at] = columns[at] + near(last, jnp.zeros((), ys.dtype), turn) - last
    return jnp.stack(columns, axis=1)


def filled_rows(ys: Float[Array, "row channel"]) -> Float[Array, "row channel"]:
    """Missing values from the row before, else from the next that has some; 0 if none has."""
    rows = [ys[row] for row in range(ys.shape[0])]
    for way in (range(1, len(rows)), range(len(rows) - 2, -1, -1)):
        for row in way:
            rows[row] = jnp.where(jnp.isfinite(rows[row]), rows[row], rows[row - way.step])
    found = jnp.stack(rows)
    return jnp.where(jnp.isfinite(found), found, 0)


def band_of_members(
    ensemble: Ensemble, outputs: Float[Array, "member channel"], level: float
) -> tuple[Float[Array, " channel"], Float[Array, " channel"], Float[Array, " channel"]]:
    """The members' mean and the edges of the band in the user's units; see `Ensemble.bands`."""
    known = jnp.isfinite(outputs)
    alive = known.sum(axis=0).astype(outputs.dtype)
    mean = jnp.where(known, outputs, 0).sum(axis=0) / jnp.maximum(alive, 1)
    squares = jnp.where(known, outputs - mean[None], 0) ** 2
    spread = ensemble.gain**2 * squares.sum(axis=0) / jnp.maximum(alive - 1, 1)
    reach = ensemble.factor(level) * jnp.sqrt(spread + ensemble.noise**2)
    mean = jnp.where(alive > 0, mean, jnp.inf)
    scaler = ensemble.typical.scaler

    def back(z: Float[Array, " channel"]) -> Float[Array, " channel"]:
        return columns_by_name(from_line, z * scaler.state_scale + scaler.state_shift, scaler.bounds)

    low, high = back(mean - reach), back(mean + reach)
    return back(mean), jnp.minimum(low, high), jnp.maximum(low, high)

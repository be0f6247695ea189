"""The targets `stablehlo` and `onnx`: the field, a step and the predictions as batched array programs."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from numpy.typing import ArrayLike, DTypeLike

from ..data.domains import near
from ..model.ensemble import Ensemble
from ..model.neural_ode import NeuralODE
from ..runtime.placement import scope
from ..solver.problem import VectorField, polynomials
from .c import RADAU_A, RADAU_C, tsitouras
from .functions import PRECISIONS, Exported, band_of_members, member_functions, scale_inputs
from .tracing import DOT, TAKE, CannotExport, Operand, Operation, Program, Value, trace
from .trials import CheckRecord, record_starts

# Newton iterations of an implicit step; they converge quadratically.
NEWTON_TRIALS = 8
LONGEST_CHECK = 600  # [s]
PROGRAM_SUFFIX = ".stablehlo"
# A place between two rows, or the length of a step, as a share of the interval.
Share = float | Array
# Inputs at a share of the interval between two rows, and coefficients of their polynomial.
InputsAt = Callable[[Share], Array]
Between = tuple[Array, ...]
READ_BACK = """\
import sys
import numpy as np
import jax
program = jax.export.deserialize(open(sys.argv[1], "rb").read())
given = np.load(sys.argv[2])
kinds = [kind for kind in ("t", "y", "u", "factor", "shift", "start") if kind + "0" in given.files]
count = len([name for name in given.files if name[1:].isdigit() and name[0] == "t"])
found = [program.call(*(given[f"{kind}{k}"] for kind in kinds)) for k in range(count)]
np.savez(sys.argv[3], *map(np.asarray, found))
assert not any(name.startswith("node_fit") for name in sys.modules)
"""
OPSET, IR_VERSION = 18, 9
# Elementwise functions that have the same arguments in ONNX.
ONNX_CALLED = {
    **{name: name.capitalize() for name in ("abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atanh")},
    **{name: name.capitalize() for name in ("ceil", "cos", "cosh", "div", "erf", "exp", "floor", "log", "max", "min")},
    **{name: name.capitalize() for name in ("mul", "neg", "not", "or", "pow", "round", "sign", "sin", "sinh", "sqrt")},
    **{name: name.capitalize() for name in ("sub", "tan", "tanh", "xor")},
    **{"lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "eq": "Equal"},
    "logistic": "Sigmoid",
}
# Evaluates a loaded graph.
Run = Callable[[Mapping[str, np.ndarray]], np.ndarray]
ONNX_REDUCED = {
    "reduce_sum": "ReduceSum",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
}


def refusals_of_stablehlo(exported: Exported, trials: Sequence[CheckRecord]) -> list[str]:
    """Lists features of a model that these programs don't support."""
    refusals: list[str] = []
    if exported.has_triggers:
        refusals.append("triggers, at which its states jump")
    if exported.is_steady:
        refusals.append("a steady start, which a root finder gives")
    return refusals


class Whole:
    """The JAX functions of all members of a model, for one trajectory and in the user's units."""

    def __init__(self, exported: Exported):
        self.exported, self.steps = exported, exported.steps
        model: NeuralODE | Ensemble = exported.model
        self.members = model.members if isinstance(model, Ensemble) else (model,)
        self.functions = [{name: shaped[0] for name, shaped in member_functions(m).items()} for m in self.members]
        self.one, self.size = exported.one, len(exported.one.latent)
        self.inputs, self.channels = len(self.one.inputs), len(self.one.states)

    def each(self, name: str, ys: Float[Array, " all"], *before: Array) -> list[Array]:
        """Applies a function of each member to its own states."""
        return [
            functions[name](*before[:1], y, *before[1:]) if before else functions[name](y)
            for functions, y in zip(self.functions, jnp.split(ys, len(self.members)), strict=True)
        ]

    def field(self, t: Array, y: Float[Array, " all"], u: Float[Array, " input"]) -> Float[Array, " all"]:
        return jnp.concatenate(self.each("field", y, t, u))

    def observe(self, y: Float[Array, " all"]) -> Float[Array, " column"]:
        return self.observe_scaled(jnp.concatenate(self.each("line", y)))

    def observe_with_inputs(
        self, t: Array, y: Float[Array, " all"], u: Float[Array, " input"]
    ) -> Float[Array, " column"]:
        scaler, z = self.one.system.scaler, jnp.concatenate(self.each("line", y))
        return self.observe_scaled(z, (t - scaler.time_shift) / scaler.time_scale, scale_inputs(self.one, u))

    def observe_scaled(self, z: Float[Array, " all"], *time_and_inputs: Array) -> Float[Array, " column"]:
        """Returns the columns; `time_and_inputs`, in scaled units, are empty unless the channels depend on them."""
        if isinstance(self.exported.model, Ensemble):
            outputs = jnp.stack(self.each("outputs", z, *time_and_inputs))
            return jnp.concatenate(band_of_members(self.exported.model, outputs, self.exported.level))
        return self.each("channels", z, *time_and_inputs)[0]

    def by_name(self, name: str) -> Callable[..., Array]:
        """Returns `field`, `step`, `observe` or `simulate`."""
        observes = name == "observe" and self.exported.observes_inputs
        return self.observe_with_inputs if observes else getattr(self, name)

    def step(
        self, t: Array, h: Array, y: Float[Array, " all"], u: Float[Array, " input"], v: Float[Array, " input"]
    ) -> Float[Array, " all"]:
        """Takes one step of the method, of length `h`; the inputs are `u` at its beginning and `v` at its end."""
        scaler = self.one.system.scaler
        first, held = scale_inputs(self.one, u), self.exported.held_inputs
        between = (first,)
        if not all(held):
            rise = scale_inputs(self.one, v) - first
            between = (first, jnp.where(np.array(held), 0, rise) if any(held) else rise)
        z = jnp.concatenate(self.each("line", y))
        begin, length = (t - scaler.time_shift) / scaler.time_scale, h / scaler.time_scale
        return jnp.concatenate(self.each("states", self.one_step(begin, length, z, between, 0.0, 1.0)))

    def one_step(
        self, t: Array, h: Array, z: Float[Array, " all"], between: Between, share: Share, part: Share
    ) -> Array:
        """Takes a step in scaled units; the inputs are a polynomial in the share of the interval between two rows."""
        advance = implicit_step if self.steps.method == "radau5" else explicit_step
        inputs: InputsAt = lambda c: inputs_at(between, share + c * part)  # noqa: E731
        parts = jnp.split(z, len(self.members))
        return jnp.concatenate(
            [
                advance(functions["rates"], t, h, member_z, inputs)
                for functions, member_z in zip(self.functions, parts, strict=True)
            ]
        )

    def simulate(
        self,
        t: Float[Array, " row"],
        y: Float[Array, "row channel"],
        u: Float[Array, "row input"],
        factor: Float[Array, "row all"],
        shift: Float[Array, "row all"],
        start: Float[Array, " all"] | None = None,
    ) -> Float[Array, "row column"]:
        """Returns the predictions in each row; the arguments are those of the NumPy module."""
        scaler, rows = self.one.system.scaler, self.exported.rows_read
        # The second-to-last row of a short record.
        first_row = (
            jnp.clip(jnp.asarray(t.shape[0]) - 2, 0, rows - 1) if self.exported.reads_past else jnp.zeros((), int)
        )
        begun = self.start(t, y, u, first_row) if start is None else jnp.concatenate(self.each("line", start))
        ts = (t - t[first_row]) / scaler.time_scale
        origin = (t[first_row] - scaler.time_shift) / scaler.time_scale
        kind, inputs = self.one.solver.interpolation, jax.vmap(lambda row: scale_inputs(self.one, row))(u)
        between = tuple(part[0] for part in polynomials(ts[None], inputs[None], kind))
        # What the channels read besides the states.
        seen = (origin + ts, inputs) if self.exported.observes_inputs else ()
        between = between if self.inputs else between[:1]
        horizon = self.exported.horizon

        def through(z: Array, interval: tuple[PyTree, ...]) -> tuple[Array, Array]:
            number, begin, length, times, plus, coefficients, read = interval
            now = self.observe_scaled(z, *read)
            users = jnp.concatenate(self.each("states", z))
            changes = (times != 1) | (plus != 0)
            jumped = jnp.concatenate(self.each("line", jnp.where(changes, times * users + plus, users)))
            z = jnp.where(
                number < first_row, z, self.march(origin + begin, length, jnp.where(changes, jumped, z), coefficients)
            )
            return z, now

        gaps, numbers = ts[1:] - ts[:-1], jnp.arange(t.shape[0] - 1)
        before = tuple(part[:-1] for part in seen)
        intervals = (numbers, ts[:-1], gaps, factor[:-1], shift[:-1], between, before)
        end, predicted = jax.lax.scan(through, begun, intervals)
        columns = jnp.concatenate([predicted, self.observe_scaled(end, *(part[-1] for part in seen))[None]])
        edge = jnp.arange(columns.shape[1]) >= self.channels
        if horizon is not None:
            columns = jnp.where((t - t[0] > horizon)[:, None] & edge[None], jnp.nan, columns)
        return jnp.where((jnp.arange(t.shape[0]) < first_row)[:, None], jnp.nan, columns)

    def march(self, t: Array, length: Array, z: Float[Array, " all"], between: Between) -> Float[Array, " all"]:
        """Integrates over an interval in equal steps."""
        longest = self.steps.longest / self.one.system.scaler.time_scale
        count = jnp.maximum(jnp.ceil(length / longest * (1 - 1e-9)), self.steps.fewest).astype(int)
        part = 1 / count.astype(z.dtype)

        def step(n: Array, z: Array) -> Array:
            share = n.astype(z.dtype) * part
            return self.one_step(t + share * length, length * part, z, between, share, part)

        return jax.lax.fori_loop(jnp.zeros_like(count), count, step, z)

    def start(
        self, t: Float[Array, " row"], y: Float[Array, "row channel"], u: Float[Array, "row input"], at: Int[Array, ""]
    ) -> Float[Array, " all"]:
        """Returns the scaled states in the row `at`, from the rows that the rule reads; a record can have fewer."""
        rows, scaler, past = self.exported.rows_read, self.one.system.scaler, self.exported.reads_past
        count = jnp.asarray(t.shape[0])
        place = rows - 1 if past else 0
        row = at + jnp.arange(rows) - place
        source, is_row = jnp.clip(row, 0, count - 1), (row >= 0) & (row < count)
        read = jnp.where((row < count)[:, None], y[source], jnp.nan)
        ys = jnp.stack([unwrap_angle(read[:, c], turn) for c, turn in enumerate(self.exported.turns)], axis=1)
        finite = jnp.isfinite(y) & (jnp.arange(t.shape[0]) >= at)[:, None]
        first = jnp.take_along_axis(y, jnp.argmax(finite, axis=0)[None], axis=0)[0]
        turns = [turn or 1.0 for turn in self.exported.turns]
        wrapped = first - jnp.asarray(turns, y.dtype) * jnp.floor(first / jnp.asarray(turns, y.dtype) + 0.5)
        first = jnp.where(jnp.asarray([bool(turn) for turn in self.exported.turns]), wrapped, first)
        first = jnp.where(jnp.isfinite(ys[place]), ys[place], first)
        arguments = first, ys, u[source], t[source] - t[at], is_row.astype(y.dtype)
        origin = (t[at] - scaler.time_shift) / scaler.time_scale
        return jnp.concatenate([functions["start"](*arguments, origin) for functions in self.functions])


def unwrap_angle(column: Float[Array, " row"], turn: float | None) -> Float[Array, " row"]:
    """Returns an angle without jumps, whose first value is within half a turn of zero."""
    if not turn:
        return column
    last = jnp.zeros((), column.dtype)
    values: list[Array] = []
    for row in range(column.shape[0]):
        values.append(near(column[row], last, turn))
        last = jnp.where(jnp.isfinite(column[row]), values[-1], last)
    return jnp.stack(values)


def inputs_at(between: Between, share: Share) -> Array:
    value = between[-1]
    for coefficient in between[-2::-1]:
        value = coefficient + share * value
    return value


def explicit_step(rates: VectorField, t: Array, h: Array, z: Array, inputs: InputsAt) -> Array:
    """Takes a step of Tsitouras' method."""
    a, b, c = tsitouras()
    stages: list[Array] = []
    for row, node in zip(a, c, strict=True):
        stage_z = z + h * sum((float(w) * k for w, k in zip(row, stages, strict=False)), jnp.zeros_like(z))
        stages.append(rates(t + float(node) * h, stage_z, inputs(float(node))))
    return z + h * sum((float(w) * k for w, k in zip(b, stages, strict=True)), jnp.zeros_like(z))


def implicit_step(rates: VectorField, t: Array, h: Array, z: Array, inputs: InputsAt) -> Array:
    """Takes a step of Radau IIA of order 5."""
    weights, size = jnp.asarray(RADAU_A, z.dtype), z.shape[0]
    slopes = jax.jacfwd(rates, argnums=1)

    def better(_: int | Array, d: Array) -> Array:
        nodes = [(t + float(c) * h, z + d[k], inputs(float(c))) for k, c in enumerate(RADAU_C)]
        residual = -d + h * weights @ jnp.stack([rates(*node) for node in nodes])
        blocks = jnp.stack([slopes(*node) for node in nodes])
        matrix = jnp.eye(3 * size, dtype=z.dtype) - h * (
            weights[:, None, :, None] * blocks.transpose(1, 0, 2)[None]
        ).reshape(3 * size, 3 * size)
        return d + jnp.linalg.solve(matrix, residual.reshape(-1)).reshape(3, size)

    return z + jax.lax.fori_loop(0, NEWTON_TRIALS, better, jnp.zeros((3, size), z.dtype))[2]


def render_stablehlo(exported: Exported, trials: Sequence[CheckRecord]) -> dict[str, bytes]:
    """Renders the programs, by name, as serialised by `jax.export`."""
    from jax import export as jax_export

    functions, dtype = Whole(exported), exported.dtype
    states, inputs, channels = len(functions.members) * functions.size, functions.inputs, functions.channels
    with scope(PRECISIONS[exported.precision]):
        batch, rows = jax_export.symbolic_shape("batch, rows", constraints=["rows >= 2"])
        (single,) = jax_export.symbolic_shape("batch")
        shapes: dict[str, tuple[tuple[object, ...], ...]] = {
            "field": ((), (states,), (inputs,)),
            "step": ((), (), (states,), (inputs,), (inputs,)),
            "observe": ((), (states,), (inputs,)) if exported.observes_inputs else ((states,),),
            "simulate": ((rows,), (rows, channels), (rows, inputs), (rows, states), (rows, states)),
        }
        if exported.needs_given_start:
            shapes["simulate"] = (*shapes["simulate"], (states,))
        files: dict[str, bytes] = {}
        for name, axes in shapes.items():
            batch_axis = batch if name == "simulate" else single
            arguments = [jax.ShapeDtypeStruct((batch_axis, *shape), dtype) for shape in axes]
            function = functions.by_name(name)
            program = jax_export.export(jax.jit(jax.vmap(function)))(*arguments)
            files[name + PROGRAM_SUFFIX] = bytes(program.serialize())
    return files


def run_stablehlo(folder: Path, exported: Exported, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    """Returns predictions from the program for some records, in a process that imports only JAX."""
    lengths = sorted({len(trial.t) for trial in trials})
    states = len(exported.members) * len(exported.one.latent)
    arrays: dict[str, np.ndarray] = {}
    groups = [[index for index, trial in enumerate(trials) if len(trial.t) == length] for length in lengths]
    for number, group in enumerate(groups):
        records = [trials[index] for index in group]
        parts = {
            "t": [record.t for record in records],
            "y": [record.channels for record in records],
            "u": [record.inputs for record in records],
            "factor": [
                np.ones((len(record.t), states)) if record.factor is None else record.factor for record in records
            ],
            "shift": [
                np.zeros((len(record.t), states)) if record.shift is None else record.shift for record in records
            ],
        }
        if records[0].start is not None:
            parts["start"] = [record.start for record in records]
        arrays |= {f"{name}{number}": np.stack(part).astype(exported.dtype) for name, part in parts.items()}
    np.savez(folder / "given.npz", allow_pickle=False, **arrays)
    words = [sys.executable, "-c", READ_BACK, f"simulate{PROGRAM_SUFFIX}", "given.npz", "found.npz"]
    environment = os.environ | {"JAX_ENABLE_X64": str(int(exported.precision == "double")), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST_CHECK)
    if done.returncode:
        raise RuntimeError(f"the program can't be read back: {done.stderr[-2000:]}")
    saved = np.load(folder / "found.npz")
    by_place = {
        index: saved[f"arr_{number}"][place] for number, group in enumerate(groups) for place, index in enumerate(group)
    }
    return [np.asarray(by_place[index], np.float64) for index in range(len(trials))]


def refusals_of_onnx(exported: Exported, trials: Sequence[CheckRecord]) -> list[str]:
    """Lists features of a model that these graphs don't support."""
    refusals: list[str] = []
    if exported.steps.method == "radau5":
        refusals.append("implicit steps of a stiff model, which solve linear equations; use c, numpy or stablehlo")
    if exported.has_triggers:
        refusals.append("triggers, at which its states jump")
    return refusals


class Graph:
    """A graph under construction; every array has a leading batch axis, followed by one flat axis."""

    def __init__(self, onnx: ModuleType, name: str, arguments: Sequence[str], dtype: DTypeLike):
        self.onnx, self.name, self.arguments, self.dtype = onnx, name, arguments, np.dtype(dtype)
        self.nodes: list[object] = []
        self.initializers: list[object] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.texts: dict[int, str] = {}
        self.batch = ""

    def node(self, kind: str, *inputs: str, **attributes: int) -> str:
        """Adds a node, and returns the name of its output."""
        output = f"x{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, values: ArrayLike, dtype: DTypeLike | None = None) -> str:
        """Returns the name of a constant; equal ones, such as the weights in all stages of a step, are stored once."""
        array = np.ascontiguousarray(values, self.dtype if dtype is None else dtype)
        key = str(array.dtype), array.shape, array.tobytes()
        if key not in self.constants:
            self.constants[key] = f"c{len(self.initializers)}"
            self.initializers.append(self.onnx.numpy_helper.from_array(array, self.constants[key]))
        return self.constants[key]

    def read(self, operand: Operand, whole: bool = False) -> str:
        """Returns the name of an operand; a constant has a batch of 1, or with `whole` that of the arguments."""
        if isinstance(operand, Value):
            return self.texts[id(operand)]
        name = self.constant(operand.reshape(1, -1), operand.dtype)
        if not whole:
            return name
        shape = self.node("Concat", self.batch, self.constant([operand.size], np.int64), axis=0)
        return self.node("Expand", name, shape)

    def model(self, program: Program) -> bytes:
        """Returns the graph of a program as the content of a file."""
        helper = self.onnx.helper
        kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        inputs: list[object] = []
        for name, value in zip(self.arguments, program.arguments, strict=True):
            self.texts[id(value)] = name
            inputs.append(helper.make_tensor_value_info(name, kind, ["batch", value.size]))
        self.batch = self.node("Shape", self.arguments[0], start=0, end=1)
        for operation in program.operations:
            self.texts[id(operation.output)] = self.apply(operation)
        (result,) = program.results
        self.nodes.append(helper.make_node("Identity", [self.read(result, whole=True)], ["result"]))
        output = helper.make_tensor_value_info("result", kind, ["batch", result.size])
        graph = helper.make_graph(self.nodes, self.name, inputs, [output], self.initializers)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        self.onnx.checker.check_model(made)
        file = io.BytesIO()
        self.onnx.save(made, file)
        return file.getvalue()

    def apply(self, operation: Operation) -> str:
        """Adds an operation, and returns the name of its output."""
        name = operation.name
        if name == TAKE:
            return self.take(operation)
        if name == DOT:
            return self.product(operation)
        if name in ONNX_REDUCED:
            rows, count = operation.inputs[0].shape
            shaped = self.reshape_to(operation.inputs[0], (-1, rows, count))
            return self.node(ONNX_REDUCED[name], shaped, self.constant([2], np.int64), keepdims=0)
        operands = [self.read(operand) for operand in operation.inputs]
        if name in ONNX_CALLED:
            return self.node(ONNX_CALLED[name], *operands)
        match name:
            case "integer_pow":
                return self.node("Pow", operands[0], self.constant([[operation.power]]))
            case "square":
                return self.node("Mul", operands[0], operands[0])
            case "rsqrt":
                return self.node("Reciprocal", self.node("Sqrt", operands[0]))
            case "log1p":
                return self.node("Log", self.node("Add", operands[0], self.constant([[1]])))
            case "expm1":
                return self.node("Sub", self.node("Exp", operands[0]), self.constant([[1]]))
            case "exp2":
                return self.node("Pow", self.constant([[2]]), operands[0])
            case "rem":
                return self.node("Mod", *operands, fmod=1)
            case "ne":
                return self.node("Not", self.node("Equal", *operands))
            case "is_finite":
                # x - x is zero only for a finite x.
                zero = self.node("Sub", operands[0], operands[0])
                return self.node("Equal", zero, self.constant([[0]]))
            case "select_n" if len(operands) == 3:
                return self.node("Where", operands[0], operands[2], operands[1])
            case "convert_element_type":
                kind = self.onnx.helper.np_dtype_to_tensor_dtype(operation.output.dtype)
                return self.node("Cast", operands[0], to=kind)
            case _:
                raise CannotExport(f"the model uses {name!r} of JAX, for which there is nothing in ONNX.")

    def take(self, operation: Operation) -> str:
        places, inputs = operation.places.ravel(), operation.inputs
        text = self.read(inputs[0])
        if len(inputs) > 1:
            text = self.node("Concat", *(self.read(operand, whole=True) for operand in inputs), axis=1)
        size = sum(operand.size for operand in inputs)
        if len(places) == size and (places == np.arange(size)).all():
            return text
        return self.node("Gather", text, self.constant(places, np.int64), axis=1)

    def product(self, operation: Operation) -> str:
        left, right = operation.inputs
        (stacks, rows, inner), columns = left.shape, right.shape[2]
        if isinstance(left, np.ndarray) and stacks == 1 and columns == 1:
            return self.node("MatMul", self.read(right), self.constant(left[0].T, left.dtype))
        if isinstance(right, np.ndarray) and stacks == 1 and rows == 1:
            return self.node("MatMul", self.read(left), self.constant(right[0], right.dtype))
        a, b = self.reshape_to(left, (-1, stacks, rows, inner)), self.reshape_to(right, (-1, stacks, inner, columns))
        return self.reshape(self.node("MatMul", a, b), (-1, stacks * rows * columns))

    def reshape_to(self, operand: Operand, shape: tuple[int, ...]) -> str:
        if isinstance(operand, np.ndarray):
            return self.constant(operand.reshape(shape), operand.dtype)
        return self.reshape(self.read(operand), shape)

    def reshape(self, text: str, shape: tuple[int, ...]) -> str:
        return self.node("Reshape", text, self.constant(shape, np.int64))


def with_blanks(function: Callable[..., Array], blanks: tuple[np.ndarray, ...]) -> Callable[..., Array]:
    """Returns the function of the first arguments, with empty arrays for the others."""

    def of_first(*given: Array) -> Array:
        return function(*given, *blanks)

    return of_first


def render_onnx(exported: Exported, trials: Sequence[CheckRecord]) -> dict[str, bytes]:
    """Renders the graphs, by name."""
    import onnx

    functions, dtype = Whole(exported), exported.dtype
    states, inputs = len(functions.members) * functions.size, functions.inputs
    # A graph can't have empty arguments.
    ends = {"u": (inputs,), "v": (inputs,)} if inputs else {}
    arguments = {
        "field": {"t": (), "y": (states,)} | {name: shape for name, shape in ends.items() if name == "u"},
        "step": {"t": (), "h": (), "y": (states,)} | ends,
        "observe": {"y": (states,)},
    }
    if exported.observes_inputs:
        arguments["observe"] = arguments["field"]
    files: dict[str, bytes] = {}
    with scope(PRECISIONS[exported.precision]):
        for name, shapes in arguments.items():
            function, alone = functions.by_name(name), name == "observe" and not exported.observes_inputs
            missing = 0 if inputs or alone else 1 + (name == "step")
            program = trace(with_blanks(function, (np.zeros(0, dtype),) * missing), *shapes.values(), dtype=dtype)
            files[f"{name}.onnx"] = Graph(onnx, name, list(shapes), dtype).model(program)
    return files


def run_onnx(folder: Path, exported: Exported, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    """Returns predictions from the graphs for some records, stepped from row to row."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1

    def load(name: str) -> Run:
        session = onnxruntime.InferenceSession(
            str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"]
        )
        wanted = [argument.name for argument in session.get_inputs()]
        return lambda given: np.asarray(session.run(None, {name: given[name] for name in wanted})[0])

    try:
        step, observe = load("step"), load("observe")
        load("field")
    except Exception as error:  # The exceptions of onnxruntime have no common base.
        if "NOT_IMPLEMENTED" in str(error):
            raise CannotExport(f"onnxruntime lacks a function that the model needs: {str(error)[:300]}") from None
        raise
    return [
        step_graphs(step, observe, exported, trial, start)
        for trial, start in zip(trials, record_starts(exported, trials), strict=True)
    ]


def step_graphs(
    step: Run, observe: Run, exported: Exported, trial: CheckRecord, start: tuple[int, np.ndarray]
) -> np.ndarray:
    """Returns predictions from the graphs for one record."""
    first_row, first = start
    dtype, held = exported.dtype, np.array(exported.held_inputs, bool)
    y, rows = first.astype(dtype)[None], np.full((len(trial.t), len(exported.columns)), np.nan)
    for row in range(first_row, len(trial.t)):
        now = {"t": trial.t[row], "y": y, "u": trial.inputs[row]}
        rows[row] = observe({name: np.reshape(value, (1, -1)).astype(dtype) for name, value in now.items()})[0]
        if exported.horizon is not None and trial.t[row] - trial.t[0] > exported.horizon:
            rows[row, len(exported.one.states) :] = np.nan
        if row + 1 == len(trial.t):
            break
        if trial.factor is not None and trial.shift is not None:
            y = (trial.factor[row] * y + trial.shift[row]).astype(dtype)
        length = trial.t[row + 1] - trial.t[row]
        count = exported.steps.between(length)
        base, rise = trial.inputs[row], np.where(held, 0, trial.inputs[row + 1] - trial.inputs[row])
        for n in range(count):
            arguments = {"t": trial.t[row] + n * length / count, "h": length / count, "y": y[0]}
            if len(base):
                arguments |= {"u": base + n / count * rise, "v": base + (n + 1) / count * rise}
            y = step({name: np.reshape(value, (1, -1)).astype(dtype) for name, value in arguments.items()})
    return rows

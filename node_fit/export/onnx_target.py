"""The target `onnx`: the field, a step and what is predicted as graphs for any batch size, run by onnxruntime."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..runtime.placement import scope
from .functions import PRECISIONS, Exported
from .stablehlo import Whole
from .tracing import DOT, TAKE, CannotExport, Operand, Operation, Program, Value, trace
from .trials import CheckRecord, record_starts

OPSET, IR_VERSION = 18, 9
# Functions of single numbers that have the same arguments in ONNX.
ONNX_CALLED = {
    **{name: name.capitalize() for name in ("abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atanh")},
    **{name: name.capitalize() for name in ("ceil", "cos", "cosh", "div", "erf", "exp", "floor", "log", "max", "min")},
    **{name: name.capitalize() for name in ("mul", "neg", "not", "or", "pow", "round", "sign", "sin", "sinh", "sqrt")},
    **{name: name.capitalize() for name in ("sub", "tan", "tanh", "xor")},
    **{"lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "eq": "Equal"},
    "logistic": "Sigmoid",
}
# What a loaded graph gives for some arguments.
Run = Callable[[Mapping[str, np.ndarray]], np.ndarray]
ONNX_REDUCED = {
    "reduce_sum": "ReduceSum",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
}


def refusals_of_onnx(exported: Exported, trials: Sequence[CheckRecord]) -> list[str]:
    """What these graphs can't carry."""
    found = []
    if exported.steps.method == "radau5":
        found.append("implicit steps of a stiff model, which solve linear equations; use c, numpy or stablehlo")
    if exported.has_triggers:
        found.append("triggers, at which its states jump")
    if exported.one.solver.interpolation == "cubic":
        found.append("inputs on a cubic, of which a step sees too few rows")
    return found


class Graph:
    """A graph in the making; every array has an axis for the batch in front, and is flat behind it."""

    def __init__(self, onnx: ModuleType, name: str, arguments: Sequence[str], dtype: DTypeLike):
        self.onnx, self.name, self.arguments, self.dtype = onnx, name, arguments, np.dtype(dtype)
        self.nodes: list[object] = []
        self.initializers: list[object] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.texts: dict[int, str] = {}
        self.batch = ""

    def node(self, kind: str, *inputs: str, **attributes: int) -> str:
        """The name of what a node gives."""
        output = f"x{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, values: ArrayLike, dtype: DTypeLike | None = None) -> str:
        """The name of a constant; equal ones, such as the weights in all stages of a step, are kept once."""
        array = np.ascontiguousarray(values, self.dtype if dtype is None else dtype)
        key = str(array.dtype), array.shape, array.tobytes()
        if key not in self.constants:
            self.constants[key] = f"c{len(self.initializers)}"
            self.initializers.append(self.onnx.numpy_helper.from_array(array, self.constants[key]))
        return self.constants[key]

    def read(self, operand: Operand, whole: bool = False) -> str:
        """An operand; a constant has a batch of 1, or with `whole` that of the arguments."""
        if isinstance(operand, Value):
            return self.texts[id(operand)]
        name = self.constant(operand.reshape(1, -1), operand.dtype)
        if not whole:
            return name
        shape = self.node("Concat", self.batch, self.constant([operand.size], np.int64), axis=0)
        return self.node("Expand", name, shape)

    def model(self, program: Program) -> bytes:
        """The graph of a program, as a file."""
        helper = self.onnx.helper
        kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        given = []
        for name, value in zip(self.arguments, program.arguments, strict=True):
            self.texts[id(value)] = name
            given.append(helper.make_tensor_value_info(name, kind, ["batch", value.size]))
        self.batch = self.node("Shape", self.arguments[0], start=0, end=1)
        for operation in program.operations:
            self.texts[id(operation.output)] = self.apply(operation)
        (result,) = program.results
        self.nodes.append(helper.make_node("Identity", [self.read(result, whole=True)], ["result"]))
        output = helper.make_tensor_value_info("result", kind, ["batch", result.size])
        graph = helper.make_graph(self.nodes, self.name, given, [output], self.initializers)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        self.onnx.checker.check_model(made)
        file = io.BytesIO()
        self.onnx.save(made, file)
        return file.getvalue()

    def apply(self, operation: Operation) -> str:
        """The name of an operation's output."""
        name = operation.name
        if name == TAKE:
            return self.take(operation)
        if name == DOT:
            return self.product(operation)
        if name in ONNX_REDUCED:
            rows, count = operation.inputs[0].shape
            shaped = self.reshaped(operation.inputs[0], (-1, rows, count))
            return self.node(ONNX_REDUCED[name], shaped, self.constant([2], np.int64), keepdims=0)
        given = [self.read(each) for each in operation.inputs]
        if name in ONNX_CALLED:
            return self.node(ONNX_CALLED[name], *given)
        match name:
            case "integer_pow":
                return self.node("Pow", given[0], self.constant([[operation.power]]))
            case "square":
                return self.node("Mul", given[0], given[0])
            case "rsqrt":
                return self.node("Reciprocal", self.node("Sqrt", given[0]))
            case "log1p":
                return self.node("Log", self.node("Add", given[0], self.constant([[1]])))
            case "expm1":
                return self.node("Sub", self.node("Exp", given[0]), self.constant([[1]]))
            case "exp2":
                return self.node("Pow", self.constant([[2]]), given[0])
            case "rem":
                return self.node("Mod", *given, fmod=1)
            case "ne":
                return self.node("Not", self.node("Equal", *given))
            case "is_finite":
                # A number that is not finite is not equal to itself less itself.
                zero = self.node("Sub", given[0], given[0])
                return self.node("Equal", zero, self.constant([[0]]))
            case "select_n" if len(given) == 3:
                return self.node("Where", given[0], given[2], given[1])
            case "convert_element_type":
                kind = self.onnx.helper.np_dtype_to_tensor_dtype(operation.output.dtype)
                return self.node("Cast", given[0], to=kind)
        raise CannotExport(f"the model uses {name!r} of JAX, for which there is nothing in ONNX.")

    def take(self, operation: Operation) -> str:
        places, inputs = operation.places.ravel(), operation.inputs
        text = self.read(inputs[0])
        if len(inputs) > 1:
            text = self.node("Concat", *(self.read(each, whole=True) for each in inputs), axis=1)
        size = sum(each.size for each in inputs)
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
        a, b = self.reshaped(left, (-1, stacks, rows, inner)), self.reshaped(right, (-1, stacks, inner, columns))
        return self.reshape(self.node("MatMul", a, b), (-1, stacks * rows * columns))

    def reshaped(self, operand: Operand, shape: tuple[int, ...]) -> str:
        if isinstance(operand, np.ndarray):
            return self.constant(operand.reshape(shape), operand.dtype)
        return self.reshape(self.read(operand), shape)

    def reshape(self, text: str, shape: tuple[int, ...]) -> str:
        return self.node("Reshape", text, self.constant(shape, np.int64))


def render_onnx(exported: Exported, trials: Sequence[CheckRecord]) -> dict[str, bytes]:
    """The graphs by their names."""
    import onnx

    whole, dtype = Whole(exported), exported.dtype
    states, inputs = len(whole.members) * whole.size, whole.inputs
    # A graph has no empty arguments.
    ends = {"u": (inputs,), "v": (inputs,)} if inputs else {}
    arguments = {
        "field": {"t": (), "y": (states,)} | {name: shape for name, shape in ends.items() if name == "u"},
        "step": {"t": (), "h": (), "y": (states,)} | ends,
        "observe": {"y": (states,)},
    }
    found = {}
    with scope(PRECISIONS[exported.precision]):
        for name, shapes in arguments.items():
            own = getattr(whole, name)
            missing = 0 if inputs or name == "observe" else 1 + (name == "step")
            function = lambda *given, own=own, missing=missing: own(*given, *(np.zeros(0, dtype),) * missing)  # noqa: E731
            program = trace(function, *shapes.values(), dtype=dtype)
            found[f"{name}.onnx"] = Graph(onnx, name, list(shapes), dtype).model(program)
    return found


def run_onnx(folder: Path, exported: Exported, trials: Sequence[CheckRecord]) -> list[np.ndarray]:
    """What the graphs predict of some records, stepped from row to row."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1

    def load(name: str) -> Run:
        session = onnxruntime.InferenceSession(
            str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"]
        )
        wanted = [each.name for each in session.get_inputs()]
        return lambda given: np.asarray(session.run(None, {name: given[name] for name in wanted})[0])

    try:
        step, observe = load("step"), load("observe")
        load("field")
    except Exception as error:  # Its classes have no common base.
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
    """What the graphs predict of one record."""
    at, first = start
    dtype, hold = exported.dtype, exported.one.solver.interpolation == "hold"
    y, rows = first.astype(dtype)[None], np.full((len(trial.t), len(exported.columns)), np.nan)
    for row in range(at, len(trial.t)):
        rows[row] = observe({"y": y})[0]
        if exported.horizon is not None and trial.t[row] - trial.t[0] > exported.horizon:
            rows[row, len(exported.one.states) :] = np.nan
        if row + 1 == len(trial.t):
            break
        if trial.factor is not None and trial.shift is not None:
            y = (trial.factor[row] * y + trial.shift[row]).astype(dtype)
        length = trial.t[row + 1] - trial.t[row]
        count = exported.steps.between(length)
        left, rise = trial.inputs[row], trial.inputs[row + 1] - trial.inputs[row]
        for n in range(count):
            given = {"t": trial.t[row] + n * length / count, "h": length / count, "y": y[0]}
            if len(left):
                ends = (0, 0) if hold else (n / count, (n + 1) / count)
                given |= {"u": left + ends[0] * rise, "v": left + ends[1] * rise}
            y = step({name: np.reshape(value, (1, -1)).astype(dtype) for name, value in given.items()})
    return rows

"""JAX functions as straight-line programs that other languages can print.

A program is a list of operations on arrays of fixed shapes. JAX traces the function. This module inlines calls,
evaluates everything that depends only on constants, and turns operations that only move numbers (slices, transposes,
concatenations, gathers by known indices) into one operation, `take`, which stores the source of each number. The
remaining operations are a small set: elementwise functions, products of matrices, and reductions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, SupportsInt, TypeGuard, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend import core as jex
from jaxtyping import Array, PyTree
from numpy.typing import DTypeLike

TAKE, DOT = "take", "dot"
# Functions that C and Python write with the same operator.
INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}
# Functions that C and NumPy call by the same names.
SAME_CALLED = (
    *("exp", "log", "log1p", "expm1", "sqrt", "cbrt", "exp2"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "ceil"),
)
# Elementwise functions, by their JAX names: arguments have the shape of the result, or are scalars.
ELEMENTWISE = frozenset(
    [
        "abs",
        "acos",
        "acosh",
        "add",
        "and",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cbrt",
        "ceil",
        "convert_element_type",
        "cos",
        "cosh",
        "div",
        "eq",
        "erf",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "ge",
        "gt",
        "integer_pow",
        "is_finite",
        "le",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "ne",
        "neg",
        "not",
        "or",
        "pow",
        "rem",
        "round",
        "rsqrt",
        "select_n",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "sub",
        "tan",
        "tanh",
        "xor",
    ]
)
# Aliases of these, and functions that change no value.
ALIASES = {"add_any": "add"}
UNCHANGED = frozenset({"copy", "copy_p", "stop_gradient", "reduce_precision", "optimization_barrier", "pvary"})
REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"})
NO_PROGRAM = (
    "the model uses {name!r} of JAX, which no exported program holds; write that part with arithmetic and functions "
    "such as jnp.where, without loops."
)
# Names of the parameter in which a primitive holds a function.
CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


class CannotExport(ValueError):
    """Raised if a target doesn't support a feature; the message names it."""


@dataclass(frozen=True, eq=False)
class Value:
    """An array that a program computes."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)


# Parameters of a JAX operation, by name; their types differ.
Parameters = Mapping[str, Any]
# Contracted axes and stack axes of a product of two arrays.
Axes = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]
# A value of a program, or a constant.
Operand = Value | np.ndarray


class Primitive(Protocol):
    """An operation of JAX."""

    name: str
    multiple_results: bool

    def bind(self, *args: Array, **params: object) -> PyTree: ...


def carry_out(primitive: Primitive, inputs: Sequence[Operand | Array], parameters: Parameters) -> list[np.ndarray]:
    """Evaluates an operation whose inputs are known."""
    results = primitive.bind(*(jnp.asarray(operand) for operand in inputs), **parameters)
    return [np.asarray(result) for result in (results if primitive.multiple_results else [results])]


@dataclass(frozen=True, eq=False)
class Operation:
    """One step of a program.

    - `name`: a name in `ELEMENTWISE` or `REDUCTIONS` (over the last axis), `take`, or `dot`: a product of stacks of
      matrices, `(stack, row, inner)` by `(stack, inner, column)`.
    - `inputs`, `output`: its operands and its result.
    - `places`: for a `take`, the place of each output element in the concatenated inputs.
    - `power`: the exponent of an `integer_pow`.
    """

    name: str
    inputs: tuple[Operand, ...]
    output: Value
    places: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    power: int = 0


@dataclass(frozen=True, eq=False)
class Program:
    """A function: its arguments, its operations in order, and its results."""

    arguments: tuple[Value, ...]
    operations: tuple[Operation, ...]
    results: tuple[Operand, ...]


def trace(function: Callable[..., PyTree], *shapes: tuple[int, ...], dtype: DTypeLike) -> Program:
    """Traces a function of floating-point arrays of these shapes.

    **Arguments:** `dtype`: dtype of all arrays; the process or a context should use this precision.

    **Raises:** `CannotExport` if the function uses an operation that programs don't support.
    """
    closed = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes))
    tracer = Tracer()
    arguments = tuple(Value(tuple(var.aval.shape), np.dtype(dtype)) for var in closed.jaxpr.invars)
    results = tracer.run(closed.jaxpr, [np.asarray(constant) for constant in closed.consts], list(arguments))
    return without_unused(Program(arguments, tuple(tracer.operations), tuple(results)))


def without_unused(program: Program) -> Program:
    """Removes operations whose outputs are never read."""
    needed = {id(operand) for operand in program.results}
    kept: list[Operation] = []
    for operation in reversed(program.operations):
        if id(operation.output) in needed:
            kept.append(operation)
            needed.update(id(operand) for operand in operation.inputs)
    return replace(program, operations=tuple(reversed(kept)))


class Tracer:
    """A collector of operations that traverses a JAX expression."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.made: dict[int, Operation] = {}

    def run(self, jaxpr: jex.Jaxpr, constants: Sequence[Operand], arguments: Sequence[Operand]) -> list[Operand]:
        environment: dict[jex.Var, Operand] = {}

        def read(atom: jex.Var | jex.Literal) -> Operand:
            return np.asarray(atom.val) if isinstance(atom, jex.Literal) else environment[atom]

        environment.update(zip(jaxpr.constvars, constants, strict=True))
        environment.update(zip(jaxpr.invars, arguments, strict=True))
        for equation in jaxpr.eqns:
            outputs = self.apply(equation, [read(atom) for atom in equation.invars])
            environment.update(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def apply(self, equation: jex.JaxprEqn, inputs: list[Operand]) -> list[Operand]:
        """Returns the results of one equation."""
        primitive_name, parameters = str(equation.primitive.name), equation.params
        name = ALIASES.get(primitive_name, primitive_name)
        inner = next((parameters[key] for key in CALLS if key in parameters and not is_loop(name)), None)
        if inner is not None:
            constants = [np.asarray(constant) for constant in getattr(inner, "consts", ())]
            return self.run(getattr(inner, "jaxpr", inner), constants, inputs)
        if name in UNCHANGED:
            return inputs
        if all(isinstance(operand, np.ndarray) for operand in inputs) and not is_loop(name):
            return [*carry_out(equation.primitive, inputs, parameters)]
        avals = [cast(ShapedArray, var.aval) for var in equation.outvars]
        shapes = [tuple(aval.shape) for aval in avals]
        if name == "split":
            return self.split(inputs[0], parameters, shapes)
        if is_loop(name):
            raise CannotExport(NO_PROGRAM.format(name=name))
        (shape,), dtype = shapes, avals[0].dtype
        if name in ELEMENTWISE:
            power = int(parameters.get("y", 0)) if name == "integer_pow" else 0
            same = tuple(self.broadcast(operand, shape) for operand in inputs)
            return [self.add(Operation(name, same, Value(shape, dtype), power=power))]
        if name == "clamp":
            low, x, high = inputs
            return [self.elementwise("min", self.elementwise("max", x, low), high)]
        if name == "dot_general":
            return [self.dot(inputs[0], inputs[1], parameters["dimension_numbers"], shape)]
        if name in REDUCTIONS:
            return [self.reduce(name, inputs[0], parameters["axes"], shape)]
        if name in MOVES:
            ids = MOVES[name](number_entries(inputs), parameters)
            return [self.take(inputs, ids.reshape(shape))]
        if name in BY_INDEX:
            return [self.by_index(equation.primitive, inputs, parameters, shape)]
        raise CannotExport(NO_PROGRAM.format(name=name))

    def add(self, operation: Operation) -> Value:
        self.operations.append(operation)
        self.made[id(operation.output)] = operation
        return operation.output

    def elementwise(self, name: str, *inputs: Operand) -> Value:
        shape = max((operand.shape for operand in inputs), key=math.prod)
        return self.add(Operation(name, inputs, Value(shape, inputs[0].dtype)))

    def broadcast(self, operand: Operand, shape: tuple[int, ...]) -> Operand:
        """Broadcasts an operand to the shape of the result; a scalar stays a scalar."""
        if operand.shape == shape or operand.size == 1:
            return operand
        return self.take([operand], np.broadcast_to(np.arange(operand.size).reshape(operand.shape), shape))

    def take(self, inputs: Sequence[Operand], places: np.ndarray) -> Operand:
        """Returns the elements at places in the concatenated inputs, as an array."""
        sources, places = list(inputs), np.asarray(places)
        if places.size == 0:
            return np.zeros(places.shape, sources[0].dtype)
        if all(isinstance(source, np.ndarray) for source in sources):
            return np.asarray(np.concatenate([np.asarray(source).ravel() for source in sources])[places])
        if len(sources) == 1 and places.shape == sources[0].shape and is_identity(places):
            return sources[0]
        before = self.made.get(id(sources[0])) if len(sources) == 1 else None
        if before is not None and before.name == TAKE:
            return self.take(before.inputs, np.asarray(before.places.ravel()[places]))
        kept, places = without_unread(sources, places)
        dtype = next(source.dtype for source in kept)
        return self.add(Operation(TAKE, tuple(kept), Value(places.shape, dtype), places))

    def split(self, whole: Operand, parameters: Parameters, shapes: Sequence[tuple[int, ...]]) -> list[Operand]:
        ids = np.arange(whole.size).reshape(whole.shape)
        ends = np.cumsum(parameters["sizes"])[:-1]
        return [self.take([whole], part) for part in np.split(ids, ends, parameters["axis"])]

    def dot(self, left: Operand, right: Operand, dimensions: Axes, shape: tuple[int, ...]) -> Operand:
        """Returns a product of stacks of matrices."""
        ((left_inner, right_inner), (left_stack, right_stack)) = dimensions

        def sorted_axes(operand: Operand, stack: Sequence[int], inner: Sequence[int]) -> tuple[np.ndarray, list[int]]:
            free = [axis for axis in range(len(operand.shape)) if axis not in (*stack, *inner)]
            return np.arange(operand.size).reshape(operand.shape), free

        ids, free = sorted_axes(left, left_stack, left_inner)
        stack = math.prod(left.shape[axis] for axis in left_stack)
        inner = math.prod(left.shape[axis] for axis in left_inner)
        a = self.take([left], ids.transpose((*left_stack, *free, *left_inner)).reshape(stack, -1, inner))
        ids, free = sorted_axes(right, right_stack, right_inner)
        b = self.take([right], ids.transpose((*right_stack, *right_inner, *free)).reshape(stack, inner, -1))
        product = self.add(Operation(DOT, (a, b), Value((stack, a.shape[1], b.shape[2]), left.dtype)))
        return self.take([product], np.arange(product.size).reshape(shape))

    def reduce(self, name: str, whole: Operand, axes: Sequence[int], shape: tuple[int, ...]) -> Operand:
        kept = [axis for axis in range(len(whole.shape)) if axis not in axes]
        ids = np.arange(whole.size).reshape(whole.shape).transpose((*kept, *axes))
        count = math.prod(whole.shape[axis] for axis in axes)
        rows = self.take([whole], ids.reshape(-1, count))
        reduced = self.add(Operation(name, (rows,), Value((rows.shape[0],), whole.dtype)))
        return self.take([reduced], np.arange(reduced.size).reshape(shape))

    def by_index(
        self, primitive: Primitive, inputs: Sequence[Operand], parameters: Parameters, shape: tuple[int, ...]
    ) -> Operand:
        """Applies gathers and scatters with known indices."""
        name = primitive.name
        indices = inputs[1:2] if name.startswith("scatter") else inputs[1:]
        if not all(isinstance(index, np.ndarray) for index in indices):
            raise CannotExport(
                f"the model uses {name!r} of JAX with an index that is computed; write it with jnp.where instead."
            )
        if not name.startswith("scatter"):
            positions = jnp.arange(inputs[0].size).reshape(inputs[0].shape)
            (gathered,) = carry_out(primitive, [positions, *indices], parameters)
            return self.take(inputs[:1], gathered.reshape(shape))
        target, index_array, updates = inputs
        place = {key: parameters[key] for key in ("indices_are_sorted", "unique_indices", "mode")}
        where = jnp.asarray(index_array), parameters["dimension_numbers"]
        positions = jnp.arange(target.size).reshape(target.shape)
        new = target.size + jnp.arange(updates.size).reshape(updates.shape)
        blank = jnp.zeros(target.shape, int)
        times = np.asarray(jax.lax.scatter_add(blank, where[0], jnp.ones(updates.shape, int), where[1], **place))
        ids = np.asarray(jax.lax.scatter(positions, where[0], new, where[1], **place))
        if name == "scatter":
            return self.take([target, updates], ids)
        if times.max(initial=0) > 1:
            raise CannotExport("the model adds several numbers to one place by x.at[...].add; add them up before.")
        zero = np.zeros(1, updates.dtype)
        added = self.take([updates, zero], np.where(times > 0, ids - target.size, updates.size))
        return self.elementwise("add", target, added)


def is_loop(name: str) -> bool:
    return name in ("scan", "while", "cond")


def is_integral(value: object) -> TypeGuard[SupportsInt]:
    """Whether a number is an integer or a boolean."""
    return isinstance(value, np.bool_ | bool | np.integer | int)


def is_identity(places: np.ndarray) -> bool:
    return bool((places.ravel() == np.arange(places.size)).all())


def number_entries(inputs: Sequence[Operand]) -> list[np.ndarray]:
    """Numbers the elements of all inputs consecutively, in arrays of their shapes."""
    starts = np.cumsum([0, *(operand.size for operand in inputs)])
    return [
        (start + np.arange(operand.size)).reshape(operand.shape)
        for start, operand in zip(starts[:-1], inputs, strict=True)
    ]


def without_unread(sources: Sequence[Operand], places: np.ndarray) -> tuple[list[Operand], np.ndarray]:
    """Returns the sources that places refer to, and the places in them."""
    moved, start, new = np.empty_like(places), 0, 0
    kept: list[Operand] = []
    for source in sources:
        inside = (places >= start) & (places < start + source.size)
        if inside.any():
            kept.append(source)
            moved[inside] = places[inside] - start + new
            new += source.size
        start += source.size
    return kept, moved


def broadcast(ids: list[np.ndarray], parameters: Parameters) -> np.ndarray:
    shape, places = parameters["shape"], [int(dimension) for dimension in parameters["broadcast_dimensions"]]
    expanded = [1] * len(shape)
    for axis, place in enumerate(places):
        expanded[place] = ids[0].shape[axis]
    return np.broadcast_to(ids[0].reshape(expanded), shape)


def pad_places(ids: list[np.ndarray], parameters: Parameters) -> np.ndarray:
    array, value = ids
    padded = jax.lax.pad(array.astype(np.int32), value.astype(np.int32)[()], parameters["padding_config"])
    return np.asarray(padded)


def slice_of(ids: list[np.ndarray], parameters: Parameters) -> np.ndarray:
    strides = parameters["strides"] or (1,) * ids[0].ndim
    ranges = zip(parameters["start_indices"], parameters["limit_indices"], strides, strict=True)
    return ids[0][tuple(slice(*limits) for limits in ranges)]


# Operations that only move numbers: from arrays of places to an array of places.
MOVES: dict[str, Callable[[list[np.ndarray], Parameters], np.ndarray]] = {
    "broadcast_in_dim": broadcast,
    "concatenate": lambda ids, parameters: np.concatenate(ids, parameters["dimension"]),
    "expand_dims": lambda ids, _: ids[0],
    "pad": pad_places,
    "reshape": lambda ids, _: ids[0],
    "rev": lambda ids, parameters: np.flip(ids[0], parameters["dimensions"]),
    "slice": slice_of,
    "squeeze": lambda ids, _: ids[0],
    "stack": lambda ids, parameters: np.stack(ids, parameters["axis"]),
    "transpose": lambda ids, parameters: ids[0].transpose(parameters["permutation"]),
}
# Operations that move numbers by the indices that follow the array.
BY_INDEX = frozenset({"gather", "dynamic_slice", "scatter", "scatter-add"})

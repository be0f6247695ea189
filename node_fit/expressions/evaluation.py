"""Evaluates expressions with JAX, and for many rows at once with NumPy."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float

from . import finite_slopes
from .operations import OPERATIONS, PRODUCT_POWER, Value
from .tree import Application, Expression, Number, Symbol, whole_number


def evaluate(
    expression: Expression,
    scope: Mapping[str, Value],
    frozen: Mapping[Expression, Value] = MappingProxyType({}),
    dtype: DTypeLike | None = None,
) -> Value:
    """Evaluates an expression with JAX.

    **Arguments:**

    - `scope`: value of each name, all scalars or arrays of one shape.
    - `frozen`: values of subexpressions that are not computed.
    - `dtype`: type of numbers as arrays; None to keep Python numbers.
    """
    if isinstance(expression, Number):
        return expression.value if dtype is None else jnp.asarray(float(expression.value), dtype)
    if isinstance(expression, Symbol):
        return scope[expression.name]
    if expression in frozen:
        return frozen[expression]
    name, arguments = expression
    if name == "^" and dtype is not None:
        exponent = whole_number(arguments[1])
        if exponent is not None and abs(exponent) <= PRODUCT_POWER:
            base = evaluate(arguments[0], scope, frozen, dtype)
            return finite_slopes.integer_power(jnp.asarray(base, float), exponent)
    return OPERATIONS[name].evaluate(*(evaluate(argument, scope, frozen, dtype) for argument in arguments))


def as_float(value: Value) -> Float[Array, "..."]:
    """Converts a value to an array of floats."""
    return jnp.asarray(value, float)


def stack_scalars(values: Sequence[Value]) -> Float[Array, " value"]:
    """Stacks values into one vector of floats."""
    return jnp.stack([as_float(value) for value in values]) if values else jnp.zeros(0)


Rows = float | np.ndarray
# Largest power that is computed as a product in NumPy.
SMALL_POWER = 9


def pass_where(gate: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Returns a value where its gate is not 0, else 0; a product with 0 would turn infinite values into NaN."""
    return np.where(gate, value, 0.0)


class Tape:
    """Expressions as one list of NumPy operations; shared parts are computed once.

    **Arguments:** `expressions`: the expressions to compute. `names`: names of the values passed to a call. `sums`: by
    further names, the summands for which they stand, each with the name of its gate or None; these can be more than a
    text can hold.
    """

    def __init__(
        self,
        expressions: Sequence[Expression],
        names: Sequence[str],
        sums: Mapping[str, Sequence[tuple[Expression, str | None]]] = MappingProxyType({}),
    ):
        self.places = {name: place for place, name in enumerate(names)}
        self.steps: list[tuple[Callable[..., Rows], tuple[int, ...]]] = []
        self.known: dict[tuple[object, ...], int] = {}
        self.first = self.free = len(names)
        for name, summands in sums.items():
            places = [self.place_behind(gate, summand) for summand, gate in summands] or [self.number(0.0)]
            self.places[name] = self.fold(np.add, places)
        self.results = [self.place(expression) for expression in expressions]

    def __call__(self, values: Sequence[Rows]) -> list[Rows]:
        """Computes the value of each expression."""
        held: list[Rows] = [*values]
        for function, places in self.steps:
            if len(places) == 2:
                held.append(function(held[places[0]], held[places[1]]))
            else:
                held.append(function(*[held[place] for place in places]))
        return [held[place] for place in self.results]

    def add(self, function: Callable[..., Rows], *places: int) -> int:
        key = (function, places)
        if key not in self.known:
            self.steps.append(key)
            self.known[key] = self.free
            self.free += 1
        return self.known[key]

    def fold(self, function: Callable[..., Rows], places: Sequence[int]) -> int:
        """Combines values from left to right; returns the place of the result."""
        return functools.reduce(lambda left, right: self.add(function, left, right), places)

    def place_behind(self, gate: str | None, expression: Expression) -> int:
        """Returns the place of a value where its gate is open, and of 0 elsewhere."""
        place = self.place(expression)
        return place if gate is None else self.add(pass_where, self.places[gate], place)

    def number(self, value: float) -> int:
        """Returns the place of a number, the result of an operation without operands."""
        key = ("number", value)
        if key not in self.known:
            self.steps.append((lambda: value, ()))
            self.known[key] = self.free
            self.free += 1
        return self.known[key]

    def place(self, node: Expression) -> int:
        """Returns the place of an expression's value."""
        match node:
            case Number(value):
                return self.number(float(value))
            case Symbol(name):
                return self.places[name]
            case Application("^", (base, Number(int() as power))) if 1 <= power <= SMALL_POWER:
                return self.fold(np.multiply, [self.place(base)] * power)
            case Application(name, arguments):
                operation, places = OPERATIONS[name], [self.place(argument) for argument in arguments]
                if not operation.folds:
                    return self.add(operation.numpy, *places)
                return self.fold(operation.numpy, places) if places else self.number(float(operation.empty or 0.0))

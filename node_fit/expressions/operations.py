"""Defines the table of operations: their JAX and NumPy functions, their SymPy text, and their size."""

import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from . import finite_slopes

Value = float | bool | Float[Array, "..."] | Bool[Array, "..."]
# Maximum number of arguments of variadic operations.
ANY = 1000
# Integer powers up to this one become products, which are exact and differentiable at 0 and for negative values.
PRODUCT_POWER = 64
# Sizes of a function and of a division within an expression, relative to a name or a sum.
OF_FUNCTION, OF_DIVISION = 4, 3


class Entry(NamedTuple):
    """A row of the table.

    **Arguments:**

    - `jax`, `numpy`: functions that compute it; of two values if it `folds`.
    - `sympy`: writes it in Python with SymPy, from the texts of its arguments.
    - `fewest`, `most`: minimum and maximum number of arguments.
    - `size`: its contribution to the size of an expression.
    - `folds`: whether it combines any number of arguments from left to right. `empty`: its value without arguments.
    - `gives_condition`, `takes_conditions`: whether its value, and its arguments, are true or false.
    """

    jax: Callable[..., Value]
    numpy: Callable[..., np.ndarray]
    sympy: Callable[[Sequence[str]], str]
    fewest: int = 1
    most: int = 1
    size: int = OF_FUNCTION
    folds: bool = False
    empty: float | bool | None = None
    gives_condition: bool = False
    takes_conditions: bool = False

    def evaluate(self, *values: Value) -> Value:
        """Computes the value with JAX from the values of the arguments."""
        if not self.folds:
            return self.jax(*values)
        if not values:
            assert self.empty is not None
            return self.empty
        result = values[0]
        for value in values[1:]:
            result = self.jax(result, value)
        return result


# Functions that compute operations.


def on_floats(function: Callable[..., Array]) -> Callable[..., Array]:
    """Makes a function of arrays accept numbers, too."""
    return lambda *values: function(*(jnp.asarray(value, float) for value in values))


def on_guarded_floats(function: Callable[[Array], Array]) -> Callable[..., Array]:
    return on_floats(finite_slopes.with_finite_slopes(function))


def divide(numerator: Value, denominator: Value) -> Value:
    """Divides; division by zero gives infinity or NaN, as in JAX."""
    if isinstance(denominator, float | bool) and denominator != 0.0:
        return numerator / denominator
    return finite_slopes.divide(jnp.asarray(numerator, float), jnp.asarray(denominator, float))


def power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, float) and exponent.is_integer() and abs(exponent) <= PRODUCT_POWER:
        return finite_slopes.integer_power(jnp.asarray(base, float), int(exponent))
    return finite_slopes.power(jnp.asarray(base, float), jnp.asarray(exponent, float))


def piecewise(*pieces: Value) -> Value:
    """Selects from `value, condition, value, condition, ..., otherwise` the value of the first true condition."""
    value = pieces[-1] if len(pieces) % 2 else jnp.nan
    for at in range(len(pieces) - len(pieces) % 2 - 2, -1, -2):
        value = jnp.where(pieces[at + 1], pieces[at], value)
    return value


def choose_piece(*pieces: np.ndarray) -> np.ndarray:
    """Computes `piecewise` with NumPy."""
    value = pieces[-1] if len(pieces) % 2 else np.asarray(np.nan)
    for at in range(len(pieces) - len(pieces) % 2 - 2, -1, -2):
        value = np.where(pieces[at + 1], pieces[at], value)
    return value


def logarithm(value: Value, base: Value | None = None) -> Value:
    natural = finite_slopes.log(jnp.asarray(value, float))
    return natural if base is None else divide(natural, finite_slopes.log(jnp.asarray(base, float)))


def logarithm_to(value: np.ndarray, base: np.ndarray | None = None) -> np.ndarray:
    """Computes `logarithm` with NumPy."""
    return np.log(value) if base is None else np.log(value) / np.log(base)


def root(degree: Value, value: Value) -> Value:
    number = jnp.asarray(value, float)
    if isinstance(degree, float) and degree == 2.0:
        return finite_slopes.sqrt(number)
    return power(number, divide(1.0, degree))


def root_of(degree: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Computes `root` with NumPy."""
    return value ** (1 / degree)


def whole_quotient(a: Value, b: Value) -> Value:
    return jnp.trunc(divide(a, b))


def whole_quotient_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Computes `whole_quotient` with NumPy."""
    return np.trunc(a / b)


def heaviside(x: Value) -> Value:
    return jnp.heaviside(jnp.asarray(x, float), 0.5)


def heaviside_of(x: np.ndarray) -> np.ndarray:
    """Computes `heaviside` with NumPy."""
    return np.heaviside(x, 0.5)


def negate(value: Value) -> Value:
    return -value


def logistic(x: np.ndarray) -> np.ndarray:
    """Computes the sigmoid with NumPy, without overflow."""
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def error_function(value: np.ndarray) -> np.ndarray:
    """Computes the error function with SciPy."""
    from scipy.special import erf

    return np.asarray(erf(value))


def factorial(value: Array) -> Array:
    return jnp.exp(jax.scipy.special.gammaln(value + 1.0))


def factorial_of(value: np.ndarray) -> np.ndarray:
    """Computes `factorial` with SciPy."""
    from scipy.special import gamma

    return np.asarray(gamma(np.asarray(value) + 1.0))


# Functions that write operations with SymPy.


def sympy_infix(sign: str) -> Callable[[Sequence[str]], str]:
    return lambda arguments: f"({f' {sign} '.join(arguments)})"


def sympy_prefix(sign: str) -> Callable[[Sequence[str]], str]:
    return lambda arguments: f"({sign}{arguments[0]})"


def sympy_call(name: str) -> Callable[[Sequence[str]], str]:
    return lambda arguments: f"sp.{name}({', '.join(arguments)})"


def sympy_text(template: str) -> Callable[[Sequence[str]], str]:
    return lambda arguments: template.format(*arguments)


def write_pieces(arguments: Sequence[str]) -> str:
    pairs = [f"({value}, {condition})" for value, condition in zip(arguments[::2], arguments[1::2], strict=False)]
    return f"sp.Piecewise({', '.join([*pairs, *([f'({arguments[-1]}, True)'] if len(arguments) % 2 else [])])})"


def comparison(function: Callable[..., Value], of_arrays: Callable[..., np.ndarray], sympy: str) -> Entry:
    return Entry(function, of_arrays, sympy_call(sympy), 2, 2, size=1, gives_condition=True)


def connective(
    function: Callable[..., Value], of_arrays: Callable[..., np.ndarray], sympy: str, *, empty: bool
) -> Entry:
    kinds = {"gives_condition": True, "takes_conditions": True}
    return Entry(function, of_arrays, sympy_call(sympy), 0, ANY, 1, folds=True, empty=empty, **kinds)


def unary(function: Callable[[Array], Array], of_arrays: Callable[[np.ndarray], np.ndarray], sympy: str) -> Entry:
    return Entry(on_floats(function), of_arrays, sympy_call(sympy))


def guard_slope(function: Callable[[Array], Array], of_arrays: Callable[[np.ndarray], np.ndarray], sympy: str) -> Entry:
    """Like `unary`, for functions whose slope is not finite at the edge of the domain, or far away."""
    return Entry(on_guarded_floats(function), of_arrays, sympy_call(sympy))


def invert_function(function: Callable[..., Array], of_arrays: Callable[..., np.ndarray], sympy: str) -> Entry:
    """Creates the reciprocal of a function."""
    return guard_slope(lambda value: 1 / function(value), lambda value: 1 / of_arrays(value), sympy)


def of_inverse(function: Callable[..., Array], of_arrays: Callable[..., np.ndarray], sympy: str) -> Entry:
    """Creates a function of the reciprocal of its argument."""
    return guard_slope(lambda value: function(1 / value), lambda value: of_arrays(1 / value), sympy)


# Truncated quotient, and remainder with the sign of the first number, as in C.
QUOTIENT = "sp.sign(({0})/({1}))*sp.floor(sp.Abs(({0})/({1})))"
REMAINDER = f"({{0}} - ({{1}})*{QUOTIENT})"
OPERATIONS: dict[str, Entry] = {
    "+": Entry(operator.add, np.add, sympy_infix("+"), 0, ANY, 1, folds=True, empty=0.0),
    "*": Entry(operator.mul, np.multiply, sympy_infix("*"), 0, ANY, 1, folds=True, empty=1.0),
    "-": Entry(operator.sub, np.subtract, sympy_infix("-"), 2, 2, 1),
    "negative": Entry(negate, np.negative, sympy_prefix("-"), 1, 1, 1),
    "/": Entry(divide, np.divide, sympy_infix("/"), 2, 2, OF_DIVISION),
    "^": Entry(power, np.power, sympy_infix("**"), 2, 2, 1),
    "<": comparison(operator.lt, np.less, "Lt"),
    "<=": comparison(operator.le, np.less_equal, "Le"),
    ">": comparison(operator.gt, np.greater, "Gt"),
    ">=": comparison(operator.ge, np.greater_equal, "Ge"),
    "==": comparison(operator.eq, np.equal, "Eq"),
    "!=": comparison(operator.ne, np.not_equal, "Ne"),
    "and": connective(jnp.logical_and, np.logical_and, "And", empty=True),
    "or": connective(jnp.logical_or, np.logical_or, "Or", empty=False),
    "xor": connective(jnp.logical_xor, np.logical_xor, "Xor", empty=False),
    "not": Entry(
        jnp.logical_not, np.logical_not, sympy_call("Not"), 1, 1, 1, gives_condition=True, takes_conditions=True
    ),
    "piecewise": Entry(piecewise, choose_piece, write_pieces, 1, ANY),
    "minimum": Entry(jnp.minimum, np.minimum, sympy_call("Min"), 1, ANY, folds=True),
    "maximum": Entry(jnp.maximum, np.maximum, sympy_call("Max"), 1, ANY, folds=True),
    "log": Entry(logarithm, logarithm_to, sympy_call("log"), 1, 2),
    "root": Entry(root, root_of, sympy_text("({1})**(1/({0}))"), 2, 2),
    "quotient": Entry(whole_quotient, whole_quotient_of, sympy_text(QUOTIENT), 2, 2),
    "remainder": Entry(on_floats(jnp.fmod), np.fmod, sympy_text(REMAINDER), 2, 2),
    "heaviside": Entry(heaviside, heaviside_of, sympy_text("sp.Heaviside({0}, 1/2)")),
    "exp": guard_slope(jnp.exp, np.exp, "exp"),
    "sqrt": guard_slope(jnp.sqrt, np.sqrt, "sqrt"),
    "log10": Entry(on_guarded_floats(jnp.log10), np.log10, sympy_text("sp.log({0}, 10)")),
    "log2": Entry(on_guarded_floats(jnp.log2), np.log2, sympy_text("sp.log({0}, 2)")),
    "abs": unary(jnp.abs, np.abs, "Abs"),
    "sign": unary(jnp.sign, np.sign, "sign"),
    "sigmoid": Entry(on_floats(jax.nn.sigmoid), logistic, sympy_text("(1/(1 + sp.exp(-({0}))))")),
    "floor": unary(jnp.floor, np.floor, "floor"),
    "ceil": unary(jnp.ceil, np.ceil, "ceiling"),
    "factorial": guard_slope(factorial, factorial_of, "factorial"),
    "erf": unary(jax.scipy.special.erf, error_function, "erf"),
    "sin": unary(jnp.sin, np.sin, "sin"),
    "cos": unary(jnp.cos, np.cos, "cos"),
    "tan": guard_slope(jnp.tan, np.tan, "tan"),
    "sinh": guard_slope(jnp.sinh, np.sinh, "sinh"),
    "cosh": guard_slope(jnp.cosh, np.cosh, "cosh"),
    "tanh": unary(jnp.tanh, np.tanh, "tanh"),
    "sec": invert_function(jnp.cos, np.cos, "sec"),
    "csc": invert_function(jnp.sin, np.sin, "csc"),
    "cot": invert_function(jnp.tan, np.tan, "cot"),
    "sech": invert_function(jnp.cosh, np.cosh, "sech"),
    "csch": invert_function(jnp.sinh, np.sinh, "csch"),
    "coth": invert_function(jnp.tanh, np.tanh, "coth"),
    "arcsin": guard_slope(jnp.arcsin, np.arcsin, "asin"),
    "arccos": guard_slope(jnp.arccos, np.arccos, "acos"),
    "arctan": guard_slope(jnp.arctan, np.arctan, "atan"),
    "arcsinh": guard_slope(jnp.arcsinh, np.arcsinh, "asinh"),
    "arccosh": guard_slope(jnp.arccosh, np.arccosh, "acosh"),
    "arctanh": guard_slope(jnp.arctanh, np.arctanh, "atanh"),
    "arccot": of_inverse(jnp.arctan, np.arctan, "acot"),
    "arcsec": of_inverse(jnp.arccos, np.arccos, "asec"),
    "arccsc": of_inverse(jnp.arcsin, np.arcsin, "acsc"),
    "arccoth": of_inverse(jnp.arctanh, np.arctanh, "acoth"),
    "arcsech": of_inverse(jnp.arccosh, np.arccosh, "asech"),
    "arccsch": of_inverse(jnp.arcsinh, np.arcsinh, "acsch"),
}  # fmt: skip

"""Operations of equations with finite derivatives at the edge of their domains.

In `sqrt(maximum(h, 0))`, the chain rule multiplies the slope of the root at 0, which is infinite, by that of the
maximum, which is 0; the product is NaN. Here, a slope that is not finite counts as 0: values are unchanged, and a
guarded expression has the derivative of its guard.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

Entry = Callable[..., Array]


def with_finite_slopes(function: Entry) -> Entry:
    """Returns a function of numbers or arrays with finite derivatives of any order."""
    guarded = jax.custom_jvp(function)

    def differentiate(primals: tuple[Array, ...], tangents: tuple[Array | SymbolicZero, ...]) -> tuple[Array, Array]:
        value = guarded(*primals)
        changes = [
            with_finite_slopes(slope_of(function, place))(*primals) * tangent
            for place, tangent in enumerate(tangents)
            if not isinstance(tangent, SymbolicZero)
        ]
        return value, sum(changes, jnp.zeros_like(value))

    guarded.defjvp(differentiate, symbolic_zeros=True)
    return guarded


def slope_of(function: Entry, place: int) -> Entry:
    """Returns the derivative of a function by the argument at this place; 0 where it is not finite."""

    def slope(*values: Array) -> Array:
        def of_one(value: Array) -> Array:
            return function(*values[:place], value, *values[place + 1 :])

        derivative = jax.jvp(of_one, (values[place],), (jnp.ones_like(values[place]),))[1]
        return depend_on(jnp.where(jnp.isfinite(derivative), derivative, jnp.zeros_like(derivative)), values)

    return slope


def depend_on(result: Array, values: tuple[Array, ...]) -> Array:
    """Makes a result depend on all values, so that it has a batch axis if one of them has.

    The slope of `y/k` by `y` is `1/k`. In a batch of `y` alone, its value would have no axis but its derivative one,
    which JAX mixes up when a loop is differentiated. XLA removes the selection between equal values.
    """
    for value in values:
        result = jnp.where(value == value, result, result)
    return result


def integer_power(base: Array, exponent: int) -> Array:
    """Computes an integer power as a product or its reciprocal."""
    if exponent >= 0:
        return jax.lax.integer_pow(base, exponent)

    def reciprocal(value: Array) -> Array:
        return jax.lax.integer_pow(value, exponent)

    return with_finite_slopes(reciprocal)(base)


divide = with_finite_slopes(jnp.divide)
power = with_finite_slopes(jnp.power)
exp = with_finite_slopes(jnp.exp)
log = with_finite_slopes(jnp.log)
log10 = with_finite_slopes(jnp.log10)
sqrt = with_finite_slopes(jnp.sqrt)
sinh = with_finite_slopes(jnp.sinh)
cosh = with_finite_slopes(jnp.cosh)
tan = with_finite_slopes(jnp.tan)

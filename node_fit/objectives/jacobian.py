"""Residuals and their Jacobian, in the cheapest way for each kind of objective."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..solver.vector_field import VectorField
from .residuals import Jacobian, Residuals, Vector


def forward(residuals: Callable[[Vector], Residuals], x: Vector) -> tuple[Residuals, Jacobian]:
    """Residuals and their Jacobian in forward mode, one pass per parameter."""

    def with_values(x: Vector) -> tuple[Array, Residuals]:
        found = residuals(x)
        return found.values.reshape(-1), found

    jacobian, found = jax.jacfwd(with_values, has_aux=True)(x)
    return found, jacobian


def pushed(residuals: Callable[[Vector], Residuals], x: Vector, direction: Vector) -> Float[Array, "block row"]:
    """The derivative of residuals along a direction."""
    return jax.jvp(lambda x: residuals(x).values, (x,), (direction,))[1]


def sensitive(field_of: Callable[[Vector], VectorField], x: Vector, states: int) -> VectorField:
    """The field of states and their sensitivities to the parameters, `S' = df/dy S + df/dx`.

    The derivatives of the field take one reverse pass per state, whatever the number of parameters
    (Hairer, Norsett and Wanner, Solving Ordinary Differential Equations I, 1993, section I.14).

    **Arguments:**

    - `field_of`: the field with given parameters.
    - `x`: the parameters.
    - `states`: number of states.

    **Returns:** a field of states and, by row, sensitivities: shape `(state * (1 + parameter),)`.
    """

    def field(t: Array, z: Array, u: Array) -> Array:
        y, s = z[:states], z[states:].reshape(states, x.size)
        rates, pull = jax.vjp(lambda x, y: field_of(x)(t, y, u), x, y)
        by_parameter, by_state = jax.vmap(pull)(jnp.eye(states, dtype=z.dtype))
        return jnp.concatenate([rates, (by_state @ s + by_parameter).reshape(-1)])

    return field


def through_states(
    assemble: Callable[[Vector, Array], Float[Array, "block row"]],
    x: Vector,
    states: Float[Array, "block time state"],
    sensitivities: Float[Array, "block time state parameter"],
) -> tuple[Float[Array, "block row"], Jacobian]:
    """Values that depend on the parameters through solved states and directly, and their derivatives."""

    def column(direction: Array, moved: Array) -> Array:
        return jax.jvp(assemble, (x, states), (direction, moved))[1].reshape(-1)

    by_parameter = jax.vmap(column, in_axes=(0, 3), out_axes=1)
    return assemble(x, states), by_parameter(jnp.eye(x.size, dtype=x.dtype), sensitivities)

"""Jacobians of few nonzero elements, from few directional derivatives.

Columns without a row in common share a direction: A. R. Curtis, M. J. D. Powell and J. K. Reid, On the estimation of
sparse Jacobian matrices, IMA Journal of Applied Mathematics 13, 1974.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

Pattern = Bool[np.ndarray, "row column"]
Function = Callable[[Float[Array, " column"]], Float[Array, " row"]]


def group_columns(pattern: Pattern) -> Int[np.ndarray, " column"]:
    """The group of each column, so that columns of a group have no row in common; those with most rows come first."""
    groups = np.zeros(pattern.shape[1], int)
    taken: list[Bool[np.ndarray, " row"]] = []
    for column in np.argsort(-pattern.sum(axis=0), kind="stable"):
        rows = pattern[:, column]
        group = next((at for at, there in enumerate(taken) if not (there & rows).any()), len(taken))
        if group == len(taken):
            taken.append(np.zeros(len(pattern), bool))
        taken[group] |= rows
        groups[column] = group
    return groups


def jacobian_of_sums(
    function: Function, pattern: Pattern, weights: Float[np.ndarray, "sum row"]
) -> Callable[[Array], Float[Array, "sum column"]]:
    """The Jacobian of `weights @ function(y)`, from few directional derivatives of the function.

    **Arguments:** `pattern`: which values of the function may change with which arguments.
    """
    groups = group_columns(pattern)
    directions = np.equal.outer(np.arange(int(groups.max(initial=0)) + 1), groups)
    # Each product of a weight and a derivative, as the places of its sum, value and argument.
    rows, columns = np.nonzero(pattern)
    begins = np.searchsorted(rows, np.arange(len(pattern) + 1))
    sums, values = np.nonzero(weights)
    products = [(at, value, column) for at, value in zip(sums, values, strict=True)
                for column in columns[begins[value] : begins[value + 1]]]  # fmt: skip
    at, value, column = np.array(products, int).reshape(-1, 3).T

    def jacobian(y: Float[Array, " column"]) -> Float[Array, "sum column"]:
        def along(direction: Float[Array, " column"]) -> Float[Array, " row"]:
            return jax.jvp(function, (y,), (direction,))[1]

        slopes = jax.vmap(along)(jnp.asarray(directions, y.dtype))
        found = jnp.zeros((len(weights), pattern.shape[1]), y.dtype)
        return found.at[at, column].add(weights[at, value] * slopes[groups[column], value])

    return jacobian

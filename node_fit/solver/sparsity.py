"""Sparse Jacobians from few directional derivatives.

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
    """Groups columns so that columns of a group have no row in common; columns with most rows are assigned first."""
    groups = np.zeros(pattern.shape[1], int)
    taken: list[Bool[np.ndarray, " row"]] = []
    for column in np.argsort(-pattern.sum(axis=0), kind="stable"):
        rows = pattern[:, column]
        group = next((index for index, members in enumerate(taken) if not (members & rows).any()), len(taken))
        if group == len(taken):
            taken.append(np.zeros(len(pattern), bool))
        taken[group] |= rows
        groups[column] = group
    return groups


def jacobian_of_sums(
    function: Function, pattern: Pattern, weights: Float[np.ndarray, "sum row"]
) -> Callable[[Array], Float[Array, "sum column"]]:
    """Returns the Jacobian of `weights @ function(y)`, from few directional derivatives of the function.

    **Arguments:** `pattern`: whether a value of the function can depend on an argument.
    """
    groups = group_columns(pattern)
    directions = np.equal.outer(np.arange(int(groups.max(initial=0)) + 1), groups)
    # Products of a weight and a derivative, as indices of the sum, value and argument.
    rows, columns = np.nonzero(pattern)
    begins = np.searchsorted(rows, np.arange(len(pattern) + 1))
    sums, values = np.nonzero(weights)
    products = [(target, value, column) for target, value in zip(sums, values, strict=True)
                for column in columns[begins[value] : begins[value + 1]]]  # fmt: skip
    target, value, column = np.array(products, int).reshape(-1, 3).T

    def jacobian(y: Float[Array, " column"]) -> Float[Array, "sum column"]:
        def along(direction: Float[Array, " column"]) -> Float[Array, " row"]:
            return jax.jvp(function, (y,), (direction,))[1]

        slopes = jax.vmap(along)(jnp.asarray(directions, y.dtype))
        result = jnp.zeros((len(weights), pattern.shape[1]), y.dtype)
        return result.at[target, column].add(weights[target, value] * slopes[groups[column], value])

    return jacobian

"""A polynomial vector field."""

import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ...runtime.serialization import stored_as
from ...runtime.validation import checks_arguments
from .field import AbstractVectorField
from .network import Linear

HIGHEST_DEGREE, MOST_TERMS = 7, 1000


@stored_as("Polynomial")
class Polynomial(AbstractVectorField):
    """`dy/dt = A y + B u + c + P m(y, u)`, where `m` are the monomials of a degree from 2 up.

    It is smooth, needs few numbers for few states, and leaves the range of its data by growing fast. The monomials are
    those of states and inputs in scaled units, and their coefficients begin at zero.

    **Arguments:**

    - `states`, `inputs`: sizes of `y` and `u`, given by the data.
    - `degree`: the highest degree of a monomial.
    - `key`: PRNG key of the initial linear coefficients.

    **Raises:** `ValueError` if the degree is out of range, or there would be over 1,000 monomials.
    """

    weight: Float[Array, "state term"]
    path: Linear
    # The variables of each monomial, by number and with repetition; the last number stands for a factor of one.
    factors: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @checks_arguments
    def __init__(self, states: int, inputs: int = 0, *, degree: int = 3, key: PRNGKeyArray):
        if not 2 <= degree <= HIGHEST_DEGREE:
            raise ValueError(f"degree must be from 2 to {HIGHEST_DEGREE}, got {degree}; field=linear is of degree 1.")
        count = states + inputs
        terms = math.comb(count + degree, degree) - count - 1
        if terms > MOST_TERMS:
            raise ValueError(
                f"a polynomial of degree {degree} in {count} states and inputs has {terms:,} monomials, over "
                f"{MOST_TERMS:,}; take a lower degree, or field=mlp."
            )
        self.factors = tuple(
            (*powers, *(count,) * (degree - size))
            for size in range(2, degree + 1)
            for powers in itertools.combinations_with_replacement(range(count), size)
        )
        self.weight = jnp.zeros((states, terms))
        self.path = Linear(states, inputs, key=key)

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        variables = jnp.concatenate([y, u, jnp.ones((1,), y.dtype)])
        columns = np.asarray(self.factors).T
        monomials = variables[columns[0]]
        for column in columns[1:]:
            monomials = monomials * variables[column]
        return self.path(t, y, u) + self.weight @ monomials

    @property
    def exponents(self) -> list[tuple[int, ...]]:
        """The exponents of states and inputs in each monomial."""
        variables = range(int(self.path.layer.in_features))
        return [tuple(powers.count(variable) for variable in variables) for powers in self.factors]

    def coefficients(self) -> dict[tuple[int, ...], np.ndarray]:
        """The coefficients of each monomial, by exponents of states and inputs; in scaled units, shape `(state,)`."""
        weight = np.asarray(jax.device_get(self.weight), np.float64)
        return self.path.coefficients() | {powers: weight[:, term] for term, powers in enumerate(self.exponents)}

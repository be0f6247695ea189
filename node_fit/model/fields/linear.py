"""A linear vector field."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ...runtime.stored_names import stored_as
from .field import AbstractVectorField


@stored_as("Linear")
class Linear(AbstractVectorField):
    """`dy/dt = A y + B u + c`.

    **Arguments:**

    - `states`, `inputs`: sizes of `y` and `u`, given by the data.
    - `key`: PRNG key of the initial coefficients.
    """

    layer: eqx.nn.Linear

    def __init__(self, states: int, inputs: int = 0, *, key: PRNGKeyArray):
        self.layer = eqx.nn.Linear(states + inputs, states, key=key)

    def __call__(
        self, t: Float[Array, ""], y: Float[Array, " state"], u: Float[Array, " input"]
    ) -> Float[Array, " state"]:
        return self.layer(jnp.concatenate([y, u]))

    def coefficients(self) -> dict[tuple[int, ...], np.ndarray]:
        """The coefficients of each variable and the constant, by exponents of states and inputs; in scaled units, shape
        `(state,)`."""
        weight, bias = (np.asarray(jax.device_get(each), np.float64) for each in (self.layer.weight, self.layer.bias))
        count = weight.shape[1]
        found = {tuple(int(place == other) for other in range(count)): weight[:, place] for place in range(count)}
        return found | {(0,) * count: bias}

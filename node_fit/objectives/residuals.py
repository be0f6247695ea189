"""What a sum of squares is made of."""

import equinox as eqx
from jaxtyping import Array, Float, Int


class Residuals(eqx.Module):
    """What is squared and summed.

    - `values`: a row for each block of data.
    - `count`: how many values were measured.
    - `failed`: how many solves failed.
    - `excess`: the largest estimated error of a held step over its tolerance; 0 if there is no estimate.
    """

    values: Float[Array, "block row"]
    count: Float[Array, ""]
    failed: Int[Array, ""]
    excess: Float[Array, ""] | float = 0.0


Vector = Float[Array, " parameter"]
Jacobian = Float[Array, "residual parameter"]

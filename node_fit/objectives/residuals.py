"""The residuals of a sum of squares."""

import equinox as eqx
from jaxtyping import Array, Float, Int


class Residuals(eqx.Module):
    """Residuals, whose squares are summed.

    - `values`: one row for each block of data.
    - `count`: number of measured values.
    - `failed`: number of failed solves.
    - `excess`: the largest error of a held step, relative to its tolerance; 0 if there is no estimate.
    """

    values: Float[Array, "block row"]
    count: Float[Array, ""]
    failed: Int[Array, ""]
    excess: Float[Array, ""] | float = 0.0


Vector = Float[Array, " parameter"]
Jacobian = Float[Array, "residual parameter"]

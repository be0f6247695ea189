"""A field with its inputs, as Diffrax calls it."""

import equinox as eqx
import jax
from jaxtyping import Array, Float

from .interpolation import interpolate
from .vector_field import VectorField


class Driven(eqx.Module):
    """The field with its inputs, as Diffrax calls it.

    It is a module, not a closure, since an adjoint that solves backwards differentiates only leaves.

    - `us`: inputs at `ts`, with an axis for trajectories if the state has one.
    - `origin`: the field's time where `ts` is 0.
    """

    field: VectorField
    ts: Float[Array, " time"]
    us: Float[Array, "time ..."]
    origin: Float[Array, ""]
    inputs: str = eqx.field(static=True)

    def __call__(self, t, y, args):
        u = interpolate(t, self.ts, self.us, self.inputs)
        field = self.field if y.ndim == 1 else jax.vmap(self.field, in_axes=(None, 0, 0))
        return field(self.origin + t, y, u)

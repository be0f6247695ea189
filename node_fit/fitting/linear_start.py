"""Makes a model that begins as a linear one."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..model.fields.linear import Linear
from ..model.fields.mlp import MLP
from ..model.fields.polynomial import Polynomial
from ..model.neural_ode import NeuralODE
from ..model.starts.encoder import Encoder
from .linear_simulation import LinearSystem


def begun_linear(model: NeuralODE, system: LinearSystem, step: float) -> NeuralODE:
    """The model with the matrices of a linear model, and networks whose output is zero.

    **Arguments:**

    - `model`: a model whose field is linear or has a linear path.
    - `system`: the linear model, in the same scaled units.
    - `step`: time between two rows, in scaled units.
    """
    layer = path(model).layer

    def like(x: Float[np.ndarray, "..."]) -> Float[Array, "..."]:
        return jnp.asarray(x, layer.weight.dtype)

    model = eqx.tree_at(
        lambda m: (path(m).layer.weight, path(m).layer.bias),
        model,
        (like(np.concatenate([system.a, system.b], axis=1) / step), like(system.c / step)),
    )
    if not (isinstance(model.start, Encoder) and model.start.matrix.shape == system.e.shape):
        return model
    return eqx.tree_at(lambda m: (m.start.matrix, m.start.shift), model, (like(system.e), like(system.f)))


def path(model: NeuralODE) -> Linear:
    """The linear part of a model's field."""
    found = model.field.path if isinstance(model.field, MLP | Polynomial) else model.field
    assert isinstance(found, Linear)
    return found

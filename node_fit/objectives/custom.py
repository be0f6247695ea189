"""A user-defined loss."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PyTree

from ..data.batch import Batch
from ..data.dataset import Dataset
from ..model.neural_ode import NeuralODE
from ..runtime.arguments import check_fields
from .objective import AbstractObjective, Loss, Target


class CustomLoss(AbstractObjective):
    """A function `loss(model, batch)` that returns a scalar, as an objective.

    ```python
    def absolute_error(model, batch):
        off = jnp.abs(model.simulate(batch).ys - batch.ys)
        return jnp.where(batch.mask, off, 0).sum() / batch.mask.sum()


    node_fit.fit(train, recipe=[node_fit.Stage(absolute_error, optax.adam(1e-2), steps=500)])
    ```

    **Arguments:**

    - `function`: called with a `NeuralODE` and a `Batch`, both in scaled units, and traced by JAX.

    **Raises:** `ValueError` if it is not a function or, on first use, if it does not return a scalar.
    """

    function: Callable[[NeuralODE, Batch], Any] = eqx.field(static=True)

    def __check_init__(self):
        check_fields(self)

    def prepare(self, data: Dataset, model: NeuralODE) -> Batch:
        return model.batch(data)

    def loss(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Loss:
        value = jnp.asarray(self.function(model, target.batch))
        if value.shape != ():
            raise ValueError(f"a loss must return a scalar, but {self.function!r:.60} returns shape {value.shape}.")
        value = value.astype(target.batch.ys.dtype)
        return Loss(value, (~jnp.isfinite(value)).astype(jnp.int32))


def as_objective(given: Any) -> AbstractObjective:
    """Converts a plain function of a model and a batch to a `CustomLoss`; returns objectives unchanged.

    **Raises:** `ValueError` that says what to pass.
    """
    if isinstance(given, AbstractObjective):
        return given
    if isinstance(given, type) or not callable(given):
        raise ValueError(
            f"objective must be an objective such as node_fit.TrajectoryMatching(), or a function loss(model, batch) "
            f"that returns a scalar, got {given!r:.60}."
        )
    return CustomLoss(given)

"""A stage of training."""

from typing import Literal

import equinox as eqx

from ..objectives.custom import as_objective
from ..objectives.objective import AbstractObjective
from ..optimizers.custom import as_optimizer
from ..optimizers.optimizer import AbstractOptimizer
from ..runtime.arguments import check_fields


class Stage(eqx.Module):
    """A part of the training: an objective, an optimizer and a budget.

    **Arguments:**

    - `objective`: the objective to minimise; a function `loss(model, batch)` becomes a `CustomLoss`.
    - `optimizer`: the optimizer; an Optax transformation becomes an `Optax`.
    - `steps`: maximum number of steps.
    - `name`: the name in the log.
    - `batch_size`: number of trajectories drawn for each step; all of them if absent.
    - `next_from`: the parameters at which the next stage begins: the `best` on the validation data, or the `last`.

    **Raises:** `ValueError` if an argument has the wrong type or is out of range, or `batch_size` is given although the
    optimizer needs the full batch.
    """

    objective: AbstractObjective = eqx.field(converter=as_objective)
    optimizer: AbstractOptimizer = eqx.field(converter=as_optimizer)
    steps: int = eqx.field(static=True)
    name: str = eqx.field(static=True, default="main")
    batch_size: int | None = eqx.field(static=True, default=None)
    next_from: Literal["best", "last"] = eqx.field(static=True, default="best")

    def __check_init__(self):
        check_fields(self)
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}.")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}.")
        if self.batch_size is not None and self.optimizer.full_batch:
            kind = type(self.optimizer).__name__
            raise ValueError(
                f"batch_size can't be combined with {kind}: it needs every step on the same data. Set batch_size=null, "
                "or use Adam."
            )
        if self.batch_size is not None and not self.objective.takes_minibatches:
            kind = type(self.objective).__name__
            raise ValueError(f"batch_size can't be combined with {kind}, whose segments belong together.")

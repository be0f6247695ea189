"""A part of a training."""

import equinox as eqx

from .objectives import AbstractObjective, MultipleShooting
from .optimizers import AbstractOptimizer
from .optimizers.optimizer import Clip


class Stage(eqx.Module):
    """A part of the training: an objective, an optimizer and a budget.

    **Arguments:**

    - `objective`, `optimizer`: what is minimised, and how.
    - `steps`: the most steps that are taken.
    - `name`: for the log.
    - `batch_size`: trajectories drawn for each step; all of them if absent.
    - `clip`: largest norm of the gradient that reaches the optimizer; unlimited if absent.

    **Raises:** `ValueError` if a number is out of range, or the optimizer needs the full batch and is denied it.
    """

    objective: AbstractObjective
    optimizer: AbstractOptimizer
    steps: int = eqx.field(static=True)
    name: str = eqx.field(static=True, default="main")
    batch_size: int | None = eqx.field(static=True, default=None)
    clip: Clip = None

    def __check_init__(self):
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}.")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}.")
        if isinstance(self.clip, float | int) and not self.clip > 0:
            raise ValueError(f"clip must be positive, got {self.clip}.")
        for key, option, reason in (
            ("batch_size", self.batch_size, "every step on the same data"),
            ("clip", self.clip, "the gradient as it is"),
        ):
            if option is not None and self.optimizer.full_batch:
                kind = type(self.optimizer).__name__
                raise ValueError(
                    f"{key} can't be combined with {kind}: it needs {reason}. Set {key}=null, or use Adam."
                )
        if self.batch_size is not None and isinstance(self.objective, MultipleShooting):
            raise ValueError("batch_size can't be combined with MultipleShooting, whose segments belong together.")

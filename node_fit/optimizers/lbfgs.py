"""L-BFGS on the full batch."""

from dataclasses import KW_ONLY
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from ..runtime.arguments import check_fields
from .line_search import lbfgs_by_evaluation, renew
from .optimizer import AbstractGradientOptimizer, forget_value

# Consecutive search lines without a lower value before giving up. The second line is along the gradient itself.
HOPELESS = 2
LineSearch = Literal["zoom", "backtracking"]


class LBFGS(AbstractGradientOptimizer):
    """L-BFGS (Liu and Nocedal, 1989) on the full batch, with a line search.

    With `zoom`, a step is one evaluation of the objective and its gradient. With `backtracking`, it is a whole line
    search.

    **Arguments:**

    - `memory`: number of pairs to keep; 50 needs about half as many evaluations as 10.
    - `linesearch`: `zoom` finds steps that satisfy the strong Wolfe conditions. `backtracking` is Optax's: it only
      shortens or repeats the last step, and does not check the curvature of the steps that it accepts. Under negative
      curvature it can diverge (google-deepmind/optax#1708), and it compiles the objective three times.
    - `tries`: maximum number of evaluations on one line; then the best point is accepted.

    **Raises:** `ValueError` if a number is out of range or the line search is unknown.
    """

    _: KW_ONLY
    memory: int = eqx.field(static=True, default=50)
    linesearch: LineSearch = eqx.field(static=True, default="zoom")
    tries: int = eqx.field(static=True, default=20)

    def __check_init__(self):
        check_fields(self, {"linesearch": "zoom or backtracking"})
        if self.memory < 1:
            raise ValueError(f"memory must be at least 1, got {self.memory}.")
        if self.tries < 2:
            raise ValueError(f"tries must be at least 2, got {self.tries}.")

    @property
    def full_batch(self) -> bool:
        return True

    def transform(self, steps: int) -> optax.GradientTransformation:
        if self.linesearch == "zoom":
            return lbfgs_by_evaluation(self.memory, self.tries)
        search = optax.scale_by_backtracking_linesearch(self.tries, store_grad=True)
        return optax.chain(optax.scale_by_lbfgs(self.memory), optax.scale(-1.0), search)

    def reopen(self, state: PyTree) -> PyTree:
        return renew(state) if self.linesearch == "zoom" else forget_value(state)

    def rate(self, state: PyTree, steps: int) -> Float[Array, ""]:
        return jnp.asarray(state.line.step if self.linesearch == "zoom" else optax.tree.get(state, "learning_rate"))

    @property
    def why_stuck(self) -> str:
        return "the line search finds no lower training loss, not even along the gradient"

    def stuck(self, state: PyTree) -> Bool[Array, ""]:
        return state.line.failures >= HOPELESS if self.linesearch == "zoom" else jnp.zeros((), bool)

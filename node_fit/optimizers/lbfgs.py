"""L-BFGS."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from .custom import forget_value
from .line_search import lbfgs_by_evaluation, renew
from .optimizer import AbstractGradientOptimizer

# Lines in a row on which nothing lower is found: the second one is along the gradient itself.
HOPELESS = 2
LineSearch = Literal["zoom", "backtracking"]


class LBFGS(AbstractGradientOptimizer):
    """L-BFGS (Liu and Nocedal, 1989) on the full batch, with a line search.

    A step is one evaluation of the objective and its gradient with `zoom`, and one whole line search with
    `backtracking`.

    **Arguments:**

    - `memory`: pairs that are kept; 50 needs about half of the evaluations that 10 needs.
    - `linesearch`: `zoom` finds steps that satisfy the strong Wolfe conditions. `backtracking` is Optax's: it only
      shortens or repeats the last step, so it has no say in the curvature of what it accepts. Under negative
      curvature it can run away (google-deepmind/optax#1708), and it compiles the objective three times.
    - `tries`: evaluations on one line before the best of them is taken.

    **Raises:** `ValueError` if a number is out of range or the line search unknown.
    """

    memory: int = eqx.field(static=True)
    linesearch: str = eqx.field(static=True)
    tries: int = eqx.field(static=True)

    def __init__(self, *, memory: int = 50, linesearch: LineSearch = "zoom", tries: int = 20):
        if memory < 1:
            raise ValueError(f"memory must be at least 1, got {memory}.")
        if tries < 2:
            raise ValueError(f"tries must be at least 2, got {tries}.")
        if linesearch not in ("zoom", "backtracking"):
            raise ValueError(f"linesearch must be zoom or backtracking, got {linesearch!r}.")
        self.memory = memory
        self.linesearch = linesearch
        self.tries = tries

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

    def stuck(self, state: PyTree) -> Bool[Array, ""]:
        return state.line.failures >= HOPELESS if self.linesearch == "zoom" else jnp.zeros((), bool)

"""A wrapper that turns any Optax transformation into an optimizer."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from ..runtime.arguments import check_fields, check_name
from .adam import Adam
from .lbfgs import LBFGS
from .levenberg_marquardt import LevenbergMarquardt
from .optimizer import AbstractGradientOptimizer, AbstractOptimizer, forget_value

# Optimizers by their names on the command line.
OPTIMIZERS = {"lbfgs": LBFGS(), "adam": Adam(), "adamw": Adam(weight_decay=1e-3), "lm": LevenbergMarquardt()}


class Optax(AbstractGradientOptimizer):
    """An Optax transformation as an optimizer, including line searches that call the objective.

    **Arguments:**

    - `transformation`: for example `optax.rmsprop(1e-3)` or `optax.lbfgs()`. Its numbers are part of the compiled
      program, so a second transformation compiles again, even with equal numbers. `Adam` and `LBFGS` do not.

    **Raises:** `ValueError` on first use if L-BFGS is not the first transformation of a chain. It needs the unmodified
    gradient: after `optax.clip_by_global_norm`, it diverges on a quadratic.
    """

    transformation: optax.GradientTransformation = eqx.field(static=True)

    def __check_init__(self):
        check_fields(self, {"transformation": "an Optax transformation such as optax.adam(1e-3)"})

    @property
    def full_batch(self) -> bool:
        return has_memory(jax.eval_shape(self.transformation.init, jnp.zeros(1)))

    def transform(self, steps: int) -> optax.GradientTransformation:
        return self.transformation

    def init(self, params: PyTree, steps: int) -> PyTree:
        state = super().init(params, steps)
        if isinstance(state, tuple) and any(has_memory(link) for link in state[1:]) and not has_memory(state[0]):
            raise ValueError(
                "L-BFGS must be the first transformation of an Optax chain, since it needs the unmodified gradient; "
                "remove what comes before it, such as gradient clipping."
            )
        return state

    def reopen(self, state: PyTree) -> PyTree:
        return forget_value(state)

    def rate(self, state: PyTree, steps: int) -> Float[Array, ""]:
        found = [x for _, x in optax.tree.get_all_with_path(state, "learning_rate")]
        return jnp.asarray(found[-1] if found else jnp.nan)


def has_memory(state: PyTree) -> bool:
    links = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, optax.ScaleByLBFGSState))
    return any(isinstance(link, optax.ScaleByLBFGSState) for link in links)


def as_optimizer(given: Any) -> AbstractOptimizer:
    """The optimizer of a name, an optimizer as it is, or a bare Optax transformation wrapped in `Optax`.

    **Raises:** `ValueError` for anything else; it says what to pass.
    """
    if isinstance(given, AbstractOptimizer):
        return given
    if isinstance(given, optax.GradientTransformation):
        return Optax(given)
    check_name("optimizer", given, OPTIMIZERS)
    if isinstance(given, str):
        return OPTIMIZERS[given]
    raise ValueError(
        f"optimizer must be {', '.join(OPTIMIZERS)}, one of node_fit's such as Adam(1e-2), or an Optax transformation "
        f"such as optax.adam(1e-3), got {given!r:.60}."
    )

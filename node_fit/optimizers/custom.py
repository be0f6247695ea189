"""Any transformation of Optax's, or of the user's."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from .optimizer import AbstractGradientOptimizer


class Optax(AbstractGradientOptimizer):
    """An Optax transformation as an optimizer, line searches that call the objective included.

    **Arguments:**

    - `transformation`: the result of a call such as `optax.rmsprop(1e-3)` or `optax.lbfgs()`. Its numbers are part of
      the compiled program, so a second one built from equal numbers compiles again; `Adam` and `LBFGS` do not.

    **Raises:** `ValueError` on the first use if L-BFGS is not the first link of a chain: it must see the gradient
    as it is (behind `optax.clip_by_global_norm` it diverges on a quadratic).
    """

    transformation: optax.GradientTransformation = eqx.field(static=True)

    @property
    def full_batch(self) -> bool:
        return has_memory(jax.eval_shape(self.transformation.init, jnp.zeros(1)))

    def transform(self, steps: int) -> optax.GradientTransformation:
        return self.transformation

    def init(self, params: PyTree, steps: int) -> PyTree:
        state = super().init(params, steps)
        if isinstance(state, tuple) and any(has_memory(link) for link in state[1:]) and not has_memory(state[0]):
            raise ValueError(
                "L-BFGS must be the first link of an Optax chain, as it needs the gradient as it is; "
                "take out what stands before it (gradient clipping, say)."
            )
        return state

    def reopen(self, state: PyTree) -> PyTree:
        return forget_value(state)

    def rate(self, state: PyTree, steps: int) -> Float[Array, ""]:
        found = [x for _, x in optax.tree.get_all_with_path(state, "learning_rate")]
        return jnp.asarray(found[-1] if found else jnp.nan)

    def stuck(self, state: PyTree) -> Bool[Array, ""]:
        return jnp.zeros((), bool)


def forget_value(state: PyTree) -> PyTree:
    """The state of a line search of Optax's without the value that it would take for that of the next step."""
    if optax.tree.get(state, "grad") is None:
        return state
    return optax.tree.set(state, value=jnp.full_like(optax.tree.get(state, "value"), jnp.inf))


def has_memory(state: PyTree) -> bool:
    links = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, optax.ScaleByLBFGSState))
    return any(isinstance(link, optax.ScaleByLBFGSState) for link in links)

"""Optimizers that step along the gradient: Adam, and any Optax transformation."""

import math
from dataclasses import KW_ONLY
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from ..runtime.validation import check_choice, check_fields
from .lbfgs import LBFGS
from .levenberg_marquardt import LevenbergMarquardt
from .optimizer import AbstractGradientOptimizer, AbstractOptimizer, forget_value

Schedule = Literal["constant", "cosine", "warmup_cosine"]


class Adam(AbstractGradientOptimizer):
    """Adam (Kingma and Ba, 2015), with decoupled weight decay (Loshchilov and Hutter, 2019).

    **Arguments:**

    - `learning_rate`: peak learning rate.
    - `schedule`: `constant`, `cosine` (decays to zero at the last step), or `warmup_cosine` (first rises from zero).
    - `warmup`: fraction of the steps in which `warmup_cosine` rises.
    - `weight_decay`: each step subtracts `weight_decay * learning_rate` times each parameter.
    - `b1`, `b2`: decay rates of the first and second moment.
    - `clip`: maximum norm of the gradient; a longer gradient is scaled down to it. No limit if `None`.

    **Raises:** `ValueError` if a number is out of range or the schedule is unknown.
    """

    learning_rate: float | Float[Array, ""] = 3e-3
    _: KW_ONLY
    schedule: Schedule = eqx.field(static=True, default="cosine")
    warmup: float = eqx.field(static=True, default=0.05)
    weight_decay: float | Float[Array, ""] = 0.0
    b1: float | Float[Array, ""] = 0.9
    b2: float | Float[Array, ""] = 0.999
    clip: float | Float[Array, ""] | None = None

    def __check_init__(self):
        check_fields(self)
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}.")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be finite and not negative, got {self.weight_decay}.")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be positive, got {self.clip}.")
        for key, number in (("warmup", self.warmup), ("b1", self.b1), ("b2", self.b2)):
            if not 0 <= number < 1:
                raise ValueError(f"{key} must be at least 0 and below 1, got {number}.")

    def transform(self, steps: int) -> optax.GradientTransformation:
        shape = self.shape(steps)
        return optax.chain(
            *([] if self.clip is None else [optax.clip_by_global_norm(self.clip)]),
            optax.scale_by_adam(self.b1, self.b2),
            optax.add_decayed_weights(self.weight_decay),
            optax.scale_by_learning_rate(lambda count: self.learning_rate * shape(count)),
        )

    def shape(self, steps: int) -> optax.Schedule:
        """The schedule of the learning rate relative to its peak."""
        if self.schedule == "cosine":
            return optax.cosine_decay_schedule(1.0, steps)
        if self.schedule == "warmup_cosine":
            return optax.warmup_cosine_decay_schedule(0.0, 1.0, max(int(self.warmup * steps), 1), steps)
        return optax.constant_schedule(1.0)

    def reopen(self, state: PyTree) -> PyTree:
        return state

    def rate(self, state: PyTree, steps: int) -> Float[Array, ""]:
        return jnp.asarray(self.learning_rate * self.shape(steps)(state[-1].count))

    def stuck(self, state: PyTree) -> Bool[Array, ""]:
        return jnp.zeros((), bool)


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


def as_optimizer(given: object) -> AbstractOptimizer:
    """The optimizer of a name, an optimizer as it is, or a bare Optax transformation wrapped in `Optax`.

    **Raises:** `ValueError` for anything else; it says what to pass.
    """
    if isinstance(given, AbstractOptimizer):
        return given
    if isinstance(given, optax.GradientTransformation):
        return Optax(given)
    check_choice("optimizer", given, OPTIMIZERS)
    if isinstance(given, str):
        return OPTIMIZERS[given]
    raise ValueError(
        f"optimizer must be {', '.join(OPTIMIZERS)}, one of node_fit's such as Adam(1e-2), or an Optax transformation "
        f"such as optax.adam(1e-3), got {given!r:.60}."
    )

"""What every optimizer is, and the one path by which all of Optax's update the parameters."""

import abc
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..objectives import Loss

Clip = float | Float[Array, ""] | None


class Linearised(eqx.Module):
    """A sum of squares `r @ r + x @ (prior * x)` at a vector `x` of all parameters.

    - `residuals`, `jacobian`: `r` and its derivatives.
    - `failed`: how many solves failed.
    - `prior`: weight of each parameter's square.
    """

    residuals: Float[Array, " row"]
    failed: Int[Array, ""]
    jacobian: Float[Array, "row parameter"]
    prior: Float[Array, " parameter"]


LossFunction = Callable[[PyTree], Loss]


@runtime_checkable
class Goal(Protocol):
    """An objective as a function of the parameters alone, or of a vector of them for sums of squares."""

    def __call__(self, params: PyTree) -> Loss: ...

    def residuals(self, x: Float[Array, " parameter"]) -> tuple[Float[Array, " row"], Int[Array, ""]]:
        """The residuals, and how many solves failed."""
        ...

    def linearised(self, x: Float[Array, " parameter"]) -> Linearised: ...

    def prior(self, x: Float[Array, " parameter"]) -> Float[Array, " parameter"]: ...


class Step(eqx.Module):
    """What a step of an optimizer gives.

    - `params`, `state`: the parameters to evaluate next, and the optimizer's state.
    - `loss`: the objective at the parameters that the step was given, and the norm of its `gradient_norm`.
    - `evaluations`: how often the objective was evaluated.
    """

    params: PyTree
    state: PyTree
    loss: Loss
    gradient_norm: Float[Array, ""]
    evaluations: Int[Array, ""]


class AbstractOptimizer(eqx.Module):
    """A method that minimises an objective, one step at a time.

    A field of an optimizer that is a float is a number that a sweep may change without compiling again.
    """

    @property
    @abc.abstractmethod
    def full_batch(self) -> bool:
        """Whether every step must see the same data and the whole gradient."""

    @property
    @abc.abstractmethod
    def pace(self) -> int:
        """How many gradients a step costs, roughly; chunks have so many steps fewer."""

    @abc.abstractmethod
    def init(self, params: PyTree, steps: int) -> PyTree:
        """The state before the first of `steps` steps."""

    @abc.abstractmethod
    def step(self, loss: LossFunction, params: PyTree, state: PyTree, steps: int, clip: Clip) -> Step:
        """One step from `params`.

        **Arguments:**

        - `loss`: the objective; in training a `Goal`.
        - `params`, `state`: where the optimizer is.
        - `steps`: how many steps there will be, for schedules.
        - `clip`: largest norm of the gradient that is passed on, or None.
        """

    @abc.abstractmethod
    def reopen(self, state: PyTree) -> PyTree:
        """The state for an objective whose values have changed a little since the last step."""

    @abc.abstractmethod
    def rate(self, state: PyTree, steps: int) -> Float[Array, ""]:
        """The learning rate or step size in force, for the log."""

    @abc.abstractmethod
    def stuck(self, state: PyTree) -> Bool[Array, ""]:
        """Whether no further step can help."""


class AbstractGradientOptimizer(AbstractOptimizer):
    """An optimizer that is an Optax transformation of the gradient, line searches included."""

    @property
    def pace(self) -> int:
        return 1

    @abc.abstractmethod
    def transform(self, steps: int) -> optax.GradientTransformation:
        """The transformation, built anew in every trace from this module's (possibly traced) numbers."""

    def init(self, params: PyTree, steps: int) -> PyTree:
        return optax.with_extra_args_support(self.transform(steps)).init(params)

    def step(self, loss: LossFunction, params: PyTree, state: PyTree, steps: int, clip: Clip) -> Step:
        transform = optax.with_extra_args_support(self.transform(steps))
        value, gradient = evaluate(loss, params, state)
        norm = optax.tree.norm(gradient)
        if clip is not None:
            gradient, _ = optax.clip_by_global_norm(clip).update(gradient, optax.EmptyState())
        updates, new_state = transform.update(
            gradient, state, params, value=value.value, grad=gradient, value_fn=lambda p: loss(p).value
        )
        searched = optax.tree.get(new_state, "num_linesearch_steps")
        evaluations = jnp.int32(1) if searched is None else 1 + jnp.asarray(searched, jnp.int32)
        moved = (optax.apply_updates(params, updates), new_state)
        if not self.full_batch:
            # A line search backs off from what is not finite; any other method would carry it on.
            sound = jnp.isfinite(value.value) & jnp.isfinite(norm)
            moved = jax.tree.map(lambda new, old: jnp.where(sound, new, old), moved, (params, state))
        return Step(moved[0], moved[1], value, norm, evaluations)


def evaluate(loss: LossFunction, params: PyTree, state: PyTree) -> tuple[Loss, PyTree]:
    """The objective and its gradient; taken from the state where a line search has left them there."""
    if cached(state):
        value, gradient = optax.value_and_grad_from_state(lambda p: loss(p).value)(params, state=state)
        value = jnp.asarray(value)
        return Loss(value, (~jnp.isfinite(value)).astype(jnp.int32)), gradient

    def with_report(p: PyTree) -> tuple[Array, Loss]:
        report = loss(p)
        return report.value, report

    (_, report), gradient = jax.value_and_grad(with_report, has_aux=True)(params)
    return report, gradient


def cached(state: PyTree) -> bool:
    return optax.tree.get(state, "grad") is not None and optax.tree.get(state, "value") is not None

"""The base classes of optimizers, and the step that all Optax transformations share."""

import abc
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..objectives.objective import Loss


class Linearised(eqx.Module):
    """A sum of squares `r @ r + x @ (prior * x)` at a vector `x` of all parameters.

    - `residuals`, `jacobian`: `r` and its derivatives with respect to `x`.
    - `failed`: number of failed solves.
    - `prior`: weight of each parameter's square.
    """

    residuals: Float[Array, " row"]
    failed: Int[Array, ""]
    jacobian: Float[Array, "row parameter"]
    prior: Float[Array, " parameter"]


LossFunction = Callable[[PyTree], Loss]


@runtime_checkable
class LeastSquaresLoss(Protocol):
    """A loss that is a sum of squares: called with the parameters; its residuals take the parameters as one vector."""

    def __call__(self, params: PyTree) -> Loss: ...

    def residuals(self, x: Float[Array, " parameter"]) -> tuple[Float[Array, " row"], Int[Array, ""]]:
        """Computes the residuals, and the number of failed solves."""
        ...

    def linearise(self, x: Float[Array, " parameter"]) -> Linearised: ...

    def push_tangent(
        self, x: Float[Array, " parameter"], direction: Float[Array, " parameter"]
    ) -> Float[Array, " row"]:
        """Computes the derivative of the residuals along a direction."""
        ...

    def prior(self, x: Float[Array, " parameter"]) -> Float[Array, " parameter"]: ...


class Step(eqx.Module):
    """The result of one optimizer step.

    - `params`, `state`: the parameters to evaluate next, and the optimizer's state.
    - `loss`: the objective at the parameters before the step, as a `Loss`.
    - `gradient_norm`: the norm of its gradient there, a scalar.
    - `evaluations`: number of evaluations of the objective, an int32 scalar.
    """

    params: PyTree
    state: PyTree
    loss: Loss
    gradient_norm: Float[Array, ""]
    evaluations: Int[Array, ""]


class AbstractOptimizer(eqx.Module):
    """An optimizer: a method that minimises an objective step by step.

    A sweep can change the float fields of an optimizer without recompilation. `Optax` wraps any Optax transformation. A
    custom method needs `init`, `step` and `rate`, which are pure functions that JAX traces:

    ```python
    class SignDescent(node_fit.AbstractOptimizer):
        learning_rate: float = 1e-3

        def init(self, params, steps):
            return ()  # It keeps no state.

        def step(self, loss, params, state, steps):
            (_, found), gradient = jax.value_and_grad(lambda p: (loss(p).value, loss(p)), has_aux=True)(params)
            params = jax.tree.map(lambda p, g: p - self.learning_rate * jnp.sign(g), params, gradient)
            return node_fit.Step(params, state, found, optax.tree.norm(gradient), jnp.int32(1))

        def rate(self, state, steps):
            return jnp.asarray(self.learning_rate)


    node_fit.fit(train, optimizer=SignDescent())
    ```
    """

    @property
    def full_batch(self) -> bool:
        """Whether every step needs the same data and the full gradient."""
        return False

    @property
    def is_scheduled(self) -> bool:
        """Whether a step depends on the total number of steps; if not, stages of any length share their programs."""
        return True

    @property
    def pace(self) -> int:
        """The approximate cost of a step in gradients; chunks have fewer steps by this factor."""
        return 1

    @abc.abstractmethod
    def init(self, params: PyTree, steps: int) -> PyTree:
        """Returns the initial state of an optimization with `steps` steps."""

    @abc.abstractmethod
    def step(self, loss: LossFunction, params: PyTree, state: PyTree, steps: int) -> Step:
        """Takes one step from `params`.

        **Arguments:**

        - `loss`: the objective; a `LeastSquaresLoss` if it is a sum of squares.
        - `params`, `state`: the current parameters and optimizer state.
        - `steps`: total number of steps, for schedules.
        """

    def reopen(self, state: PyTree) -> PyTree:
        """Returns a state for an objective whose values have changed slightly since the last step."""
        return state

    @abc.abstractmethod
    def rate(self, state: PyTree, steps: int) -> Float[Array, ""]:
        """Returns the current learning rate or step size, for the log."""

    def stuck(self, state: PyTree) -> Bool[Array, ""]:
        """Whether no further step can help."""
        return jnp.zeros((), bool)

    @property
    def why_stuck(self) -> str:
        """The reason for `stuck`, as a message for the user."""
        return "no further step lowers the training loss"

    def restart(self, params: PyTree, state: PyTree, steps: int) -> PyTree:
        """Returns a state that restarts from `params` at the position of `state` in a schedule."""
        return self.init(params, steps)


class AbstractGradientOptimizer(AbstractOptimizer):
    """An optimizer that applies an Optax transformation, possibly a line search, to the gradient."""

    @abc.abstractmethod
    def transform(self, steps: int) -> optax.GradientTransformation:
        """Builds the transformation from this module's numbers, which can be traced; called in every trace."""

    def init(self, params: PyTree, steps: int) -> PyTree:
        return optax.with_extra_args_support(self.transform(steps)).init(params)

    def restart(self, params: PyTree, state: PyTree, steps: int) -> PyTree:
        return with_schedules(self.init(params, steps), state)

    def step(self, loss: LossFunction, params: PyTree, state: PyTree, steps: int) -> Step:
        transform = optax.with_extra_args_support(self.transform(steps))
        value, gradient = evaluate_loss(loss, params, state)
        norm = optax.tree.norm(gradient)

        def value_at(p: PyTree) -> Array:
            return loss(p).value

        updates, new_state = transform.update(
            gradient, state, params, value=value.value, grad=gradient, value_fn=value_at
        )
        searched = optax.tree.get(new_state, "num_linesearch_steps")
        evaluations = jnp.int32(1) if searched is None else 1 + jnp.asarray(searched, jnp.int32)
        moved = (optax.apply_updates(params, updates), new_state)
        if not self.full_batch:
            # A line search backs off from non-finite values; any other method would carry them on.
            sound = jnp.isfinite(value.value) & jnp.isfinite(norm)
            moved = jax.tree.map(lambda new, old: jnp.where(sound, new, old), moved, (params, state))
        return Step(moved[0], moved[1], value, norm, evaluations)


def with_schedules(new: PyTree, old: PyTree) -> PyTree:
    """Copies the positions of schedules from an old Optax state to a new one."""

    def injects(node: object) -> bool:  # `optax.inject_hyperparams`
        return hasattr(node, "hyperparams") and hasattr(node, "inner_state")

    def merge(new: PyTree, old: PyTree) -> PyTree:
        if injects(new):
            return old._replace(inner_state=with_schedules(new.inner_state, old.inner_state))
        return old if isinstance(new, optax.ScaleByScheduleState) else new

    return jax.tree.map(merge, new, old, is_leaf=lambda x: injects(x) or isinstance(x, optax.ScaleByScheduleState))


def evaluate_loss(loss: LossFunction, params: PyTree, state: PyTree) -> tuple[Loss, PyTree]:
    """Evaluates the objective and its gradient, or takes them from the state if a line search has stored them there."""
    if has_value(state):
        value, gradient = optax.value_and_grad_from_state(lambda p: loss(p).value)(params, state=state)
        value = jnp.asarray(value)
        return Loss(value, (~jnp.isfinite(value)).astype(jnp.int32)), gradient

    def with_report(p: PyTree) -> tuple[Array, Loss]:
        report = loss(p)
        return report.value, report

    (_, report), gradient = jax.value_and_grad(with_report, has_aux=True)(params)
    return report, gradient


def has_value(state: PyTree) -> bool:
    return optax.tree.get(state, "grad") is not None and optax.tree.get(state, "value") is not None


def forget_value(state: PyTree) -> PyTree:
    """Invalidates the stored value in the state of an Optax line search, which the next step would otherwise reuse."""
    if optax.tree.get(state, "grad") is None:
        return state
    return optax.tree.set(state, value=jnp.full_like(optax.tree.get(state, "value"), jnp.inf))

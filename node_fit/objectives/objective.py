"""Objectives: their base classes, residuals with the Jacobian, penalties, and losses of a user."""

import abc
import math
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PyTree

from ..data.batch import Batch
from ..data.dataset import Dataset
from ..data.facts import Facts
from ..model.fields.known import Hybrid
from ..model.neural_ode import NeuralODE
from ..model.parameters import network_weights
from ..runtime.placement import AnyArray
from ..runtime.validation import check_fields
from ..solver.held_steps import Shares
from ..solver.problem import VectorField
from ..solver.solver import Solver

Points = tuple[Float[Array, "block point"], Float[Array, "block point state"], Float[Array, "block point input"]]
Number = float | Float[Array, ""]
Weight = Number | None


class Penalty(eqx.Module):
    """Penalties on a field and its weights; arguments are the factors of penalties, None or a ridge of 0 for none.

    **Arguments:**

    - `ridge`: factor of the sum of squared weights of the networks in the field and in an encoder, added to the sum of
      squared residuals. This is a Gaussian prior, whose influence decreases with more data. Constants of known
      equations and linear paths are not penalised.
    - `smoothness`: factor of the mean square of the field's derivatives with respect to the state, added to the mean
      squared residual.
    - `kinetic_energy`: factor of the mean square of the field (Finlay et al., "How to train your neural ODE", ICML
      2020).
    - `physics`: factor of the mean square of the network's correction to known equations (`Hybrid`).

    Means are over the points of the trajectories, in scaled units. In `fit`, if the measured values are few and fewer
    than the weights, `ridge="auto"` chooses the factor with which a fit to the beginnings of the trajectories best
    predicts their ends. With a parallel linear model, the validation data choose; otherwise it is 0.

    **Raises:** `ValueError` if a factor is negative or not finite.
    """

    ridge: Number | Literal["auto"] = 0.0
    smoothness: Weight = None
    kinetic_energy: Weight = None
    physics: Weight = None

    def __check_init__(self):
        check_fields(self, {"ridge": "a number or auto"})
        for name in ("ridge", "smoothness", "kinetic_energy", "physics"):
            weight = getattr(self, name)
            if isinstance(weight, float | int) and not 0 <= weight < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {weight}.")

    def of_weights(self, parts: PyTree) -> Float[Array, ""]:
        """Computes the weighted sum of the squared weights of a model's field and start."""
        assert not isinstance(self.ridge, str)
        return self.ridge * sum(((leaf**2).sum() for leaf in network_weights(parts)), jnp.zeros(()))

    def prior(self, parts: PyTree) -> PyTree:
        """Returns the weight of each parameter's square in `of_weights`, in the structure of `parts`."""
        ones = jax.tree.map(jnp.ones_like, parts)
        return jax.grad(lambda parts: self.of_weights(parts) / 2)(ones)

    def along(
        self, field: VectorField, batch: Batch, states: Float[Array, "block time state"]
    ) -> Float[Array, "block row"]:
        """Computes the residuals along solved trajectories; arguments as in `residuals`."""
        solved = jnp.isfinite(states)
        seen = solved.all(axis=2) & batch.mask.any(axis=2)
        points = (jnp.asarray(batch.times), jnp.where(solved, states, 0), jnp.asarray(batch.us))
        return self.residuals(field, points, seen, jnp.maximum(batch.mask.sum(), 1))

    def residuals(
        self,
        field: VectorField,
        points: tuple[
            Float[Array, "block point"], Float[Array, "block point state"], Float[Array, "block point input"]
        ],
        counts: Bool[Array, "block point"],
        total: Int[Array, ""],
    ) -> Float[Array, "block row"]:
        """Computes residuals whose squares sum to the weighted means, times `total`.

        **Arguments:**

        - `field`: the vector field.
        - `points`: times, states and inputs.
        - `counts`: which points count.
        - `total`: number of measured values, which divides the sum of squares.
        """
        kind = points[1].dtype
        parts = [(w, f) for w, f in self.pointwise(field) if w is not None]
        rows = [jnp.zeros((counts.shape[0], 0), kind)]
        number = jnp.maximum(counts.sum(), 1).astype(kind)
        for weight, function in parts:
            penalised = jax.vmap(jax.vmap(function))(*points)
            penalised = jnp.where(counts[..., None], penalised, 0) * jnp.sqrt(weight * total / number).astype(kind)
            rows.append(penalised.reshape(penalised.shape[0], -1))
        return jnp.concatenate(rows, axis=1)

    def pointwise(self, field: VectorField) -> list[tuple[Weight, VectorField]]:
        """Returns pairs of a factor and the function of time, state and inputs that it penalises."""

        def slopes(t: Array, y: Array, u: Array) -> Array:
            return jax.jacfwd(field, argnums=1)(t, y, u).reshape(-1)

        def correction(t: Array, y: Array, u: Array) -> Array:
            if not isinstance(field, Hybrid):
                raise ValueError("physics penalises a network's correction to known equations; use field=hybrid.")
            return field.correction(t, y, u)

        return [(self.smoothness, slopes), (self.kinetic_energy, field), (self.physics, correction)]


class Residuals(eqx.Module):
    """The residuals of a sum of squares.

    - `values`: one row for each block of data.
    - `count`: number of measured values.
    - `failed`: number of failed solves.
    - `excess`: the maximum error of a held step, relative to its tolerance; 0 without an estimate.
    """

    values: Float[Array, "block row"]
    count: Float[Array, ""]
    failed: Int[Array, ""]
    excess: Float[Array, ""] | float = 0.0


Vector = Float[Array, " parameter"]
Jacobian = Float[Array, "residual parameter"]


def forward(residuals: Callable[[Vector], Residuals], x: Vector) -> tuple[Residuals, Jacobian]:
    """Computes residuals and their Jacobian in forward mode, one pass per parameter."""

    def with_values(x: Vector) -> tuple[Array, Residuals]:
        result = residuals(x)
        return result.values.reshape(-1), result

    jacobian, evaluated = jax.jacfwd(with_values, has_aux=True)(x)
    return evaluated, jacobian


def push_forward(residuals: Callable[[Vector], Residuals], x: Vector, direction: Vector) -> Float[Array, "block row"]:
    """Computes the derivative of residuals along a direction."""
    return jax.jvp(lambda x: residuals(x).values, (x,), (direction,))[1]


def sensitive(field_of: Callable[[Vector], VectorField], x: Vector, states: int) -> VectorField:
    """Makes the field of states and their sensitivities to the parameters, `S' = df/dy S + df/dx`.

    The derivatives of the field take one reverse pass per state, whatever the number of parameters
    (Hairer, Norsett and Wanner, Solving Ordinary Differential Equations I, 1993, section I.14).

    **Arguments:**

    - `field_of`: the field with given parameters.
    - `x`: the parameters.
    - `states`: number of states.

    **Returns:** a field of states and, by row, sensitivities: shape `(state * (1 + parameter),)`.
    """

    def field(t: Array, z: Array, u: Array) -> Array:
        y, s = z[:states], z[states:].reshape(states, x.size)
        rates, pull = jax.vjp(lambda x, y: field_of(x)(t, y, u), x, y)
        by_parameter, by_state = jax.vmap(pull)(jnp.eye(states, dtype=z.dtype))
        return jnp.concatenate([rates, (by_state @ s + by_parameter).reshape(-1)])

    return field


def through_states(
    assemble: Callable[[Vector, Array], Float[Array, "block row"]],
    x: Vector,
    states: Float[Array, "block time state"],
    sensitivities: Float[Array, "block time state parameter"],
) -> tuple[Float[Array, "block row"], Jacobian]:
    """Computes values that depend on the parameters directly and through solved states, and their derivatives."""

    def column(direction: Array, moved: Array) -> Array:
        return jax.jvp(assemble, (x, states), (direction, moved))[1].reshape(-1)

    by_parameter = jax.vmap(column, in_axes=(0, 3), out_axes=1)
    return assemble(x, states), by_parameter(jnp.eye(x.size, dtype=x.dtype), sensitivities)


class Loss(eqx.Module):
    """The result of evaluating an objective: its `value`, a scalar, and the number of `failed` solves, an int32."""

    value: Float[Array, ""]
    failed: Int[Array, ""]


class Target(eqx.Module):
    """The data that an objective compares the model with.

    - `batch`: the result of `prepare`.
    - `grid`: held steps, as fractions of a trajectory's time or, between rows, of every interval; None without any.
    - `progress`: from 0 to 1 over a stage, for objectives that grow; constant within a chunk.
    - `error_limit`: if the error of held steps exceeds this multiple of the tolerance, the loss counts as infinite, so
      that no line search profits from it.
    - `share`: the batch's fraction of all data, so that a prior counts once in total.
    """

    batch: PyTree
    grid: Shares | None
    progress: Float[AnyArray, ""]
    error_limit: Float[AnyArray, ""] | float = math.inf
    share: Float[AnyArray, ""] | float = 1.0

    def limit(self, values: Array, excess: Float[Array, ""] | float) -> Array:
        """Returns the values, or infinity if the error of held steps exceeds its limit."""
        if self.error_limit is math.inf:  # Then a program does not compute the errors.
            return values
        return jnp.where(excess > self.error_limit, jnp.inf, values)


# Builds the model and the objective's auxiliary variables from a vector of all trained variables.
Build = Callable[[Vector], tuple[NeuralODE, PyTree]]


class AbstractObjective(eqx.Module):
    """A scalar function of a model and data, to be minimised.

    A sweep can change the float fields of an objective without recompilation. An objective that is a sum of squares
    also has `residuals`, which Levenberg-Marquardt needs. One that solves trajectories over held steps has `first_grid`
    and `step_errors`. For a plain function, use `CustomLoss`. A custom objective needs `prepare` and `loss`:

    ```python
    class AbsoluteError(node_fit.AbstractObjective):
        def prepare(self, data, model):
            return model.batch(data)

        def loss(self, model, auxiliary, target):
            batch = target.batch
            solution = model.simulate(batch)
            off = jnp.where(batch.mask, jnp.abs(solution.ys - batch.ys), 0)
            return node_fit.Loss(off.sum() / batch.mask.sum(), (~solution.ok).sum())


    stages = [node_fit.Stage(AbsoluteError(), node_fit.Adam(), steps=500)]
    node_fit.fit(train, options=node_fit.Options(recipe=stages))
    ```
    """

    def why_not(self, model: NeuralODE, facts: Facts) -> str | None:
        """Explains for the log why a stage with this objective does not apply; None if it does."""
        return None

    @abc.abstractmethod
    def prepare(self, data: Dataset, model: NeuralODE) -> PyTree:
        """Converts the data to arrays on the host; minibatches are drawn along the leading axis."""

    @abc.abstractmethod
    def loss(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Loss:
        """Computes the value of the objective, as a pure function of arrays.

        **Arguments:**

        - `model`: the model, with the current parameters.
        - `auxiliary`: the objective's own variables, of the same structure as from `initial_auxiliary`.
        - `target`: the data, held steps and progress.
        """

    def initial_auxiliary(self, model: NeuralODE, batch: PyTree) -> PyTree:
        """Returns initial values of the objective's own trained variables, on the host; None if it has none."""
        return None

    def resample(self, count: int, seed: int | None) -> Int[np.ndarray, " row"] | None:
        """Samples the row indices of a member with replacement, for the rows of `prepare`; None for each row once."""
        return None if seed is None else np.random.default_rng(seed).integers(count, size=count)

    def on_whole_trajectories(self) -> "AbstractObjective | None":
        """Returns the same objective on whole trajectories if this one uses windows, else None."""
        return None

    def why_no_likelihood(self) -> str | None:
        """Explains why the minimum has no intervals; None if it has, as the likelihood of measurements.

        An objective with intervals is an `AbstractSimulation` whose `residual_loss` weights large residuals.
        """
        return f"minimises {type(self).__name__}, which is no likelihood of trajectories"

    @property
    def takes_minibatches(self) -> bool:
        """Whether its rows can be drawn independently of each other."""
        return True

    @property
    def grows(self) -> bool:
        """Whether it changes with `Target.progress` over the stage."""
        return False

    @property
    def held_solver(self) -> Solver | None:
        """The solver to whose tolerances held steps are refined; None if the objective has no held steps."""
        return None

    def first_grid(self, batch: PyTree) -> Shares | None:
        """Makes the initial grid of held steps; None without any."""
        return None

    def steps_between_rows(self, batch: PyTree) -> bool:
        """Whether held steps are fractions of the intervals between rows."""
        return False

    def step_errors(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Float[Array, "block step"]:
        """Estimates the error of each held step, relative to its tolerance."""
        raise ValueError(f"{type(self).__name__} has no held steps.")

    def residuals(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Residuals:
        """Computes the residuals of the sum of squares.

        **Raises:** `ValueError` if the objective is not a sum of squares.
        """
        raise ValueError(f"{type(self).__name__} is not a sum of squares, which this optimizer needs; use lbfgs.")

    def linearise(self, build: Build, x: Vector, target: Target) -> tuple[Residuals, Jacobian]:
        """Computes the residuals, and their derivatives with respect to the parameters.

        **Arguments:**

        - `build`: builds the model and the objective's own variables from a vector of all trained variables.
        - `x`: that vector.
        """
        return forward(lambda x: self.residuals(*build(x), target), x)

    def push_tangent(self, build: Build, x: Vector, direction: Vector, target: Target) -> Float[Array, "block row"]:
        """Computes the derivative of the residuals along a direction in the space of all trained variables."""
        return push_forward(lambda x: self.residuals(*build(x), target), x, direction)

    def prior(self, parts: PyTree) -> PyTree:
        """Returns the weight of each parameter's square in the sum of squares, in the structure of `parts`."""
        return jax.tree.map(jnp.zeros_like, parts)


class AbstractLeastSquares(AbstractObjective):
    """An objective that is a sum of squares divided by the number of measured values, with a prior on weights."""

    penalty: eqx.AbstractVar[Penalty]

    def loss(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Loss:
        residuals = self.residuals(model, auxiliary, target)
        weights = self.penalty.of_weights((model.field, model.start)).astype(residuals.values.dtype)
        value = ((residuals.values**2).sum() + weights * target.share) / residuals.count
        return Loss(target.limit(value, residuals.excess), residuals.failed)

    def prior(self, parts: PyTree) -> PyTree:
        return self.penalty.prior(parts)


def measured_count(mask: Bool[AnyArray, "..."], dtype: DTypeLike) -> Float[Array, ""]:
    return jnp.maximum(mask.sum(), 1).astype(dtype)


def masked_mean(values: Float[AnyArray, "..."], mask: Bool[AnyArray, "..."]) -> Float[Array, ""]:
    """Computes the mean of `values` where `mask` holds; other values affect neither the mean nor its gradient."""
    return jnp.where(mask, values, 0).sum() / measured_count(mask, values.dtype)


class CustomLoss(AbstractObjective):
    """An objective from a function `loss(model, batch)` that returns a scalar.

    ```python
    def absolute_error(model, batch):
        off = jnp.abs(model.simulate(batch).ys - batch.ys)
        return jnp.where(batch.mask, off, 0).sum() / batch.mask.sum()


    stages = [node_fit.Stage(absolute_error, optax.adam(1e-2), steps=500)]
    node_fit.fit(train, options=node_fit.Options(recipe=stages))
    ```

    **Arguments:**

    - `function`: called with a `NeuralODE` and a `Batch`, both in scaled units, and traced by JAX.

    **Raises:** `ValueError` if it is not a function or, on first use, if it does not return a scalar.
    """

    function: Callable[[NeuralODE, Batch], object] = eqx.field(static=True)

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


def as_objective(given: object) -> AbstractObjective:
    """Converts a plain function of a model and a batch to a `CustomLoss`; returns objectives unchanged.

    **Raises:** `ValueError` with the accepted values.
    """
    if isinstance(given, AbstractObjective):
        return given
    if isinstance(given, type) or not callable(given):
        raise ValueError(
            f"objective must be an objective such as node_fit.TrajectoryMatching(), or a function loss(model, batch) "
            f"that returns a scalar, got {given!r:.60}."
        )
    return CustomLoss(given)

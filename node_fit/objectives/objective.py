"""What every objective is."""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..data.dataset import Dataset
from ..model.neural_ode import NeuralODE
from ..solver.held_steps import Shares
from ..solver.solver import Solver
from .jacobian import forward
from .penalty import Penalty
from .residuals import Jacobian, Residuals, Vector


class Loss(eqx.Module):
    """An evaluated objective: its `value`, and how many solves `failed`."""

    value: Float[Array, ""]
    failed: Int[Array, ""]


class Target(eqx.Module):
    """What an objective compares the model with.

    - `batch`: what `prepare` gave.
    - `grid`: the steps that are held in solves, as shares of a trajectory's time or, between rows, of every interval;
      None if there are none.
    - `progress`: from 0 to 1 over a stage, for objectives that grow; the same within a chunk.
    - `error_limit`: a loss whose held steps have an error above so many times their tolerance counts as infinite, so
      that no line search profits from it.
    - `share`: what part of all data the batch is, so that a prior counts once in all of them.
    """

    batch: PyTree
    grid: Shares | None
    progress: Float[Any, ""]
    error_limit: Float[Any, ""] | float = math.inf
    share: Float[Any, ""] | float = 1.0


# The model and the objective's auxiliary variables, from a vector of all that is trained.
Build = Callable[[Vector], tuple[NeuralODE, PyTree]]


class AbstractObjective(eqx.Module):
    """A number to minimise, from a model and data.

    A field of an objective that is a float is a number that a sweep may change without compiling again. An objective
    that is a sum of squares gives its `residuals` too, as Levenberg-Marquardt needs them; one that solves trajectories
    over held steps gives their `first_grid` and `step_errors`.
    """

    @abc.abstractmethod
    def why_not(self, model: NeuralODE, data: Dataset) -> str | None:
        """Why a stage with this objective makes no sense, in words for the log; None if it does."""

    @abc.abstractmethod
    def prepare(self, data: Dataset, model: NeuralODE) -> PyTree:
        """The arrays that it needs, on the host, with one leading axis to draw minibatches from."""

    @abc.abstractmethod
    def loss(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Loss:
        """The objective, a pure function of arrays.

        **Arguments:**

        - `model`: with the parameters at which it is evaluated.
        - `auxiliary`: variables of its own that are found with them, as `initial_auxiliary` began them.
        - `target`: the data and what else it looks at.
        """

    def initial_auxiliary(self, model: NeuralODE, batch: PyTree) -> PyTree:
        """Variables that the objective has besides the model's, at their initial values, on the host; None if none."""
        return None

    def resample(self, count: int, seed: int | None) -> Int[np.ndarray, " row"] | None:
        """Which of the rows that `prepare` gave a member sees, drawn with replacement; None for each row once."""
        return None if seed is None else np.random.default_rng(seed).integers(count, size=count)

    def on_whole_trajectories(self) -> "AbstractObjective | None":
        """The same objective on whole trajectories, if this one looks at windows of them; None if it does not."""
        return None

    @property
    def takes_minibatches(self) -> bool:
        """Whether its rows can be drawn apart from each other."""
        return True

    @property
    def grows(self) -> bool:
        """Whether it changes with `Target.progress` as the stage goes on."""
        return False

    @property
    def held_solver(self) -> Solver | None:
        """The solver whose held steps are refined to its tolerances; None if it solves over no such steps."""
        return None

    def first_grid(self, batch: PyTree) -> Shares | None:
        """Steps to begin with, if its solves are given their steps."""
        return None

    def steps_between_rows(self, batch: PyTree) -> bool:
        """Whether held steps are shares of the intervals between rows."""
        return False

    def step_errors(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Float[Array, "block step"]:
        """The estimated error of each held step over its tolerance."""
        raise ValueError(f"{type(self).__name__} solves over no held steps.")

    def residuals(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Residuals:
        """What is squared and summed.

        **Raises:** `ValueError` if the objective is no sum of squares.
        """
        raise ValueError(f"{type(self).__name__} is no sum of squares, as this optimizer needs; use lbfgs.")

    def linearised(self, build: Build, x: Vector, target: Target) -> tuple[Residuals, Jacobian]:
        """The residuals, and the derivatives of their values, block after block, by the parameters.

        **Arguments:**

        - `build`: the model and the objective's auxiliary variables, from a vector of all that is trained.
        - `x`: that vector.
        """
        return forward(lambda x: self.residuals(*build(x), target), x)

    def prior(self, parts: PyTree) -> PyTree:
        """The weight of each parameter's square in the sum of squares, in the structure of `parts`."""
        return jax.tree.map(jnp.zeros_like, parts)


class AbstractLeastSquares(AbstractObjective):
    """An objective that is a sum of squares over the number of measured values, with a prior on weights."""

    penalty: eqx.AbstractVar[Penalty]

    def loss(self, model: NeuralODE, auxiliary: PyTree, target: Target) -> Loss:
        found = self.residuals(model, auxiliary, target)
        weights = self.penalty.of_weights((model.field, model.start)).astype(found.values.dtype)
        value = ((found.values**2).sum() + weights * target.share) / found.count
        return Loss(jnp.where(found.excess > target.error_limit, jnp.inf, value), found.failed)

    def prior(self, parts: PyTree) -> PyTree:
        return self.penalty.prior(parts)


def measured_count(mask: Bool[Array, "..."], dtype: Any) -> Float[Array, ""]:
    return jnp.maximum(mask.sum(), 1).astype(dtype)


def masked_mean(values: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, ""]:
    """Mean of `values` where `mask` holds; neither value nor gradient sees the rest."""
    return jnp.where(mask, values, 0).sum() / measured_count(mask, values.dtype)

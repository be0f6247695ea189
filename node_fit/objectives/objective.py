"""What every objective is."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..dataset import Dataset
from ..grid import Shares
from ..model import NeuralODE
from .penalty import Penalty


class Loss(eqx.Module):
    """An evaluated objective: its `value`, and how many solves `failed`."""

    value: Float[Array, ""]
    failed: Int[Array, ""]


class Problem(eqx.Module):
    """What an objective looks at besides the model.

    - `batch`: what `prepare` gave.
    - `grid`: the steps that are held in solves, as shares of a trajectory's time; None if there are none.
    - `progress`: from 0 to 1 over a stage, for objectives that grow; the same within a chunk.
    """

    batch: PyTree
    grid: Shares | None
    progress: Float[Any, ""]


class AbstractObjective(eqx.Module):
    """A number to minimise, from a model and data.

    A field of an objective that is a float is a number that a sweep may change without compiling again.
    """

    @abc.abstractmethod
    def why_not(self, model: NeuralODE, data: Dataset) -> str | None:
        """Why a stage with this objective makes no sense, in words for the log; None if it does."""

    @abc.abstractmethod
    def prepare(self, data: Dataset, model: NeuralODE) -> PyTree:
        """The arrays that it needs, on the host, with one leading axis to draw minibatches from."""

    @abc.abstractmethod
    def own(self, model: NeuralODE, batch: PyTree) -> PyTree:
        """Parameters that the objective has besides the model's, at their initial values, on the host; or None."""

    def draw(self, count: int, seed: int | None) -> Int[np.ndarray, " row"] | None:
        """Which of `count` rows of what `prepare` gave a member sees, drawn with replacement; None for each once, as it
        is if there is no `seed`."""
        return None if seed is None else np.random.default_rng(seed).integers(count, size=count)

    @abc.abstractmethod
    def loss(self, model: NeuralODE, own: PyTree, problem: Problem) -> Loss:
        """The objective at `model` and `own`, a pure function of arrays."""


class Residuals(eqx.Module):
    """What is squared and summed: `values`, a row for each block of data; how many values were measured (`count`), and
    how many solves `failed`."""

    values: Float[Array, "block row"]
    count: Float[Array, ""]
    failed: Int[Array, ""]


Vector = Float[Array, " parameter"]
Jacobian = Float[Array, "residual parameter"]
# The model and the objective's own parameters, from a vector of all that is trained.
Build = Callable[[Vector], tuple[NeuralODE, PyTree]]


class AbstractLeastSquares(AbstractObjective):
    """An objective that is a sum of squares over the number of measured values, with a prior on weights."""

    penalty: eqx.AbstractVar[Penalty]

    @abc.abstractmethod
    def residuals(self, model: NeuralODE, own: PyTree, problem: Problem) -> Residuals:
        """What is squared and summed."""

    @abc.abstractmethod
    def linearised(self, build: Build, x: Vector, problem: Problem) -> tuple[Residuals, Jacobian]:
        """The residuals, and the derivatives of their values, block after block, by the parameters.

        **Arguments:**

        - `build`: the model and the objective's own parameters, from a vector of all that is trained.
        - `x`: that vector.
        """

    def loss(self, model: NeuralODE, own: PyTree, problem: Problem) -> Loss:
        found = self.residuals(model, own, problem)
        total = (found.values**2).sum() + self.penalty.of_weights(model.field).astype(found.values.dtype)
        return Loss(total / found.count, found.failed)


def measured_count(mask: Bool[Array, "..."], dtype: Any) -> Float[Array, ""]:
    return jnp.maximum(mask.sum(), 1).astype(dtype)


def masked_mean(values: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, ""]:
    """Mean of `values` where `mask` holds; neither value nor gradient sees the rest."""
    return jnp.where(mask, values, 0).sum() / measured_count(mask, values.dtype)

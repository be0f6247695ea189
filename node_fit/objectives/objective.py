"""What every objective is."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..dataset import Dataset
from ..model import NeuralODE
from ..parameters import weights


class Loss(eqx.Module):
    """An evaluated objective: its `value`, and how many solves `failed`."""

    value: Float[Array, ""]
    failed: Int[Array, ""]


class AbstractObjective(eqx.Module):
    """A number to minimise, from a model and data.

    A field of an objective that is a float is a number that a sweep may change without compiling again.
    """

    @abc.abstractmethod
    def prepare(self, data: Dataset, model: NeuralODE) -> PyTree:
        """The arrays that `loss` needs, on the host in float64, with one leading axis to draw minibatches from."""

    @abc.abstractmethod
    def loss(self, model: NeuralODE, batch: PyTree) -> Loss:
        """The objective at `model`, a pure function of arrays."""


def masked_mean(values: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, ""]:
    """Mean of `values` where `mask` holds; neither value nor gradient sees the rest."""
    count = jnp.maximum(mask.sum(), 1).astype(values.dtype)
    return jnp.where(mask, values, 0).sum() / count


def ridge_penalty(field: PyTree, ridge: Float[Array, ""] | float, mask: Bool[Array, "..."]) -> Float[Array, ""]:
    """`ridge` times the sum of the field's squared weights, per measured value.

    It is the logarithm of a Gaussian prior beside a mean of squared residuals, so it fades as data come in.
    """
    total = sum(((leaf**2).sum() for leaf in weights(field)), jnp.zeros(()))
    return ridge * total / jnp.maximum(mask.sum(), 1).astype(total.dtype)

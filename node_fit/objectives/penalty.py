"""Penalties on a field and its weights."""

import math
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..data.batch import Batch
from ..model.fields.hybrid import Hybrid
from ..model.parameters import network_weights
from ..runtime.validation import check_fields
from ..solver.problem import VectorField

Points = tuple[Float[Array, "block point"], Float[Array, "block point state"], Float[Array, "block point input"]]
Number = float | Float[Array, ""]
Weight = Number | None


class Penalty(eqx.Module):
    """Penalties on a field and its weights; each argument is the factor of a penalty, None or a ridge of 0 for none.

    **Arguments:**

    - `ridge`: factor of the sum of squared weights of the networks in the field and in an encoder, added to the sum of
      squared residuals. This is a Gaussian prior, which matters less the more data there are. Constants of known
      equations and linear paths are not penalised.
    - `smoothness`: factor of the mean square of the field's derivatives with respect to the state, added to the mean
      squared residual.
    - `kinetic_energy`: factor of the mean square of the field (Finlay et al., "How to train your neural ODE", ICML
      2020).
    - `physics`: factor of the mean square of the network's correction to known equations (`Hybrid`).

    Means are over the points of the trajectories, in scaled units. In `fit`, `ridge="auto"` chooses the weight with
    which a fit to the beginnings of the trajectories best predicts their ends, if the measured values are few and fewer
    than the weights; beside a linear model, the validation data choose; otherwise it is 0.

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
        """The weighted sum of the squared weights of a model's field and start."""
        assert not isinstance(self.ridge, str)
        return self.ridge * sum(((leaf**2).sum() for leaf in network_weights(parts)), jnp.zeros(()))

    def prior(self, parts: PyTree) -> PyTree:
        """The weight of each parameter's square in `of_weights`, in the structure of `parts`."""
        ones = jax.tree.map(jnp.ones_like, parts)
        return jax.grad(lambda parts: self.of_weights(parts) / 2)(ones)

    def along(
        self, field: VectorField, batch: Batch, states: Float[Array, "block time state"]
    ) -> Float[Array, "block row"]:
        """The residuals along solved trajectories; arguments as in `residuals`."""
        solved = jnp.isfinite(states)
        seen = batch.mask.any(axis=2) & solved.all(axis=2)
        points = (batch.times, jnp.where(solved, states, 0), batch.us)
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
        """Residuals whose squares sum to the weighted means, times `total`.

        **Arguments:**

        - `field`: the vector field.
        - `points`: times, states and inputs.
        - `counts`: which points count.
        - `total`: number of measured values, by which the sum of squares is divided.
        """
        kind = points[1].dtype
        parts = [(w, f) for w, f in self.pointwise(field) if w is not None]
        rows = [jnp.zeros((counts.shape[0], 0), kind)]
        number = jnp.maximum(counts.sum(), 1).astype(kind)
        for weight, function in parts:
            found = jax.vmap(jax.vmap(function))(*points)
            found = jnp.where(counts[..., None], found, 0) * jnp.sqrt(weight * total / number).astype(kind)
            rows.append(found.reshape(found.shape[0], -1))
        return jnp.concatenate(rows, axis=1)

    def pointwise(self, field: VectorField) -> list[tuple[Weight, Callable]]:
        """Pairs of a factor and the function that it penalises, of time, state and inputs."""

        def slopes(t, y, u):
            return jax.jacfwd(field, argnums=1)(t, y, u).reshape(-1)

        def correction(t, y, u):
            if not isinstance(field, Hybrid):
                raise ValueError("physics penalises a network's correction to known equations; use field=hybrid.")
            return field.correction(t, y, u)

        return [(self.smoothness, slopes), (self.kinetic_energy, field), (self.physics, correction)]

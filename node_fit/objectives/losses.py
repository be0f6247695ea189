"""Terms of an objective: how much a residual counts, and penalties on a field and its weights."""

import abc
import math
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..data.batch import Batch
from ..model.fields.known import Hybrid
from ..model.parameters import network_weights
from ..runtime.validation import check_choice, check_fields
from ..solver.problem import VectorField

Residual = Float[Array, "..."]
Host = Float[np.ndarray, "..."]


class AbstractResidualLoss(eqx.Module):
    """A loss of residuals `z` in standard deviations: `rho(z)`, about half of the square of a small one.

    Objectives sum the squares of `sign(z) sqrt(2 rho(z))`, so that Levenberg-Marquardt and line searches apply (as in
    `scipy.optimize.least_squares`, and in Triggs et al., "Bundle adjustment: a modern synthesis", 2000, section 4.3).
    """

    @property
    def robust(self) -> bool:
        """Whether large residuals count less, for which their standard deviation must be known."""
        return True

    @abc.abstractmethod
    def factor(self, z: Residual) -> Residual:
        """`sqrt(2 rho(z)) / abs(z)`, by which a residual is multiplied; 1 or about 1 for a small one."""

    @abc.abstractmethod
    def influence(self, z: Host) -> tuple[Host, Host]:
        """The first and the second derivative of `rho`."""

    @abc.abstractmethod
    def log_density(self, z: Host) -> Host:
        """The logarithm of the probability density that is proportional to `exp(-rho(z))`."""


class Squares(AbstractResidualLoss):
    """Least squares: maximum likelihood with normal noise."""

    @property
    def robust(self) -> bool:
        return False

    def factor(self, z: Residual) -> Residual:
        return jnp.ones_like(z)

    def influence(self, z: Host) -> tuple[Host, Host]:
        return z, np.ones_like(z)

    def log_density(self, z: Host) -> Host:
        return -(z**2) / 2 - math.log(2 * math.pi) / 2


LEAST_SQUARES = Squares()


class Huber(AbstractResidualLoss):
    """Squares of small residuals, and absolute values of large ones (Huber, Ann. Math. Statist. 35, 1964).

    **Arguments:** `threshold`: where they meet [standard deviations]; 1.345 costs 5 % of the efficiency with normal
    noise.

    **Raises:** `ValueError` if it is not positive.
    """

    threshold: float | Float[Array, ""] = 1.345

    def __check_init__(self):
        check_fields(self)
        if isinstance(self.threshold, float | int) and not self.threshold > 0:
            raise ValueError(f"threshold must be positive, got {self.threshold}.")

    def factor(self, z: Residual) -> Residual:
        limit = jnp.asarray(self.threshold, z.dtype)
        # At the limit and below it is exactly 1.
        share = limit / jnp.maximum(jnp.abs(z), limit)
        return jnp.sqrt(share * (2 - share))

    def influence(self, z: Host) -> tuple[Host, Host]:
        limit = float(self.threshold)
        return np.clip(z, -limit, limit), (np.abs(z) <= limit).astype(z.dtype)

    def log_density(self, z: Host) -> Host:
        from scipy.special import ndtr

        limit = float(self.threshold)
        rho = np.where(np.abs(z) <= limit, z**2 / 2, limit * (np.abs(z) - limit / 2))
        inside = math.sqrt(2 * math.pi) * (2 * ndtr(limit) - 1)
        return -rho - math.log(inside + 2 * math.exp(-(limit**2) / 2) / limit)


class StudentT(AbstractResidualLoss):
    """Maximum likelihood with noise that has Student's t-distribution (Lange, Little and Taylor, JASA 84, 1989).

    A very large residual counts hardly at all, so a bad beginning may not find back; `Huber` always does.

    **Arguments:** `degrees`: degrees of freedom; fewer allow more outliers.

    **Raises:** `ValueError` if it is below 1.
    """

    degrees: float | Float[Array, ""] = 4.0

    def __check_init__(self):
        check_fields(self)
        if isinstance(self.degrees, float | int) and not self.degrees >= 1:
            raise ValueError(f"degrees must be at least 1, got {self.degrees}.")

    def factor(self, z: Residual) -> Residual:
        degrees = jnp.asarray(self.degrees, z.dtype)
        square = z**2 / degrees
        tiny = square < 1e-4
        # log(1 + x) / x, whose root is smooth at 0.
        ratio = jnp.where(tiny, 1 - square / 2 + square**2 / 3, jnp.log1p(square) / jnp.where(tiny, 1, square))
        return jnp.sqrt((degrees + 1) / degrees * ratio)

    def influence(self, z: Host) -> tuple[Host, Host]:
        degrees = float(self.degrees)
        weight = (degrees + 1) / (degrees + z**2)
        return weight * z, weight * (degrees - z**2) / (degrees + z**2)

    def log_density(self, z: Host) -> Host:
        from scipy.stats import t

        return t.logpdf(z, float(self.degrees))


# Losses by their names on the command line.
LOSSES = {"squares": LEAST_SQUARES, "huber": Huber(), "student": StudentT()}


def as_loss(given: AbstractResidualLoss | str) -> AbstractResidualLoss:
    """The loss of a name, or what was given if it is no name."""
    check_choice("loss", given, LOSSES)
    return LOSSES[given] if isinstance(given, str) else given


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

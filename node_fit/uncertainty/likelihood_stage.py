"""Linearization of a likelihood near its optimum, from the derivatives of its predictors.

A fit with a noise model is no sum of squares of plain residuals. Its stage computes the predictors of each measurement
and their derivatives with respect to the parameters; the host differentiates the likelihood by the predictors here.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..data.batch import Batch
from ..likelihood.losses import AbstractLikelihood, Predictors, differentiate_likelihood
from ..runtime.placement import AnyArray, scope
from ..training.programs import LinearisedStage, StagePrograms, SumOfSquares
from ..training.step import TrainState

# Slope below which a vanishing constant has no effect.
NO_SLOPE = 1e-100
# Minimum curvature in a denominator.
LEAST_CURVATURE = 1e-12

Columns = Float[np.ndarray, "predictor block row"]
Slopes = Float[np.ndarray, "predictor block row parameter"]


@dataclass(frozen=True)
class Measured:
    """The measurements of a stage.

    - `loss`: the likelihood. `mask`: which measurements count. `unit`: the unit of its rows.
    - `shapes`: the number of its fitted constants. `has_scale`: whether the scale is a predictor, too; else it is the
      known `log_scale`.
    - `value`, `censored`, `width`: as in `Predictors`.
    """

    loss: AbstractLikelihood
    mask: Bool[np.ndarray, "block row"]
    unit: float
    shapes: int
    has_scale: bool
    log_scale: Float[np.ndarray, "block row"]
    value: Float[np.ndarray, "block row"]
    censored: Float[np.ndarray, "block row"]
    width: Float[np.ndarray, "block row"] | None = None

    @staticmethod
    def of(
        batch: Batch,
        loss: AbstractLikelihood,
        has_scale: bool,
        value: Float[np.ndarray, "block row"],
        width: Float[AnyArray, "trajectory time channel"] | None = None,
    ) -> "Measured":
        """Makes the measurements of a batch, with values in the user's units and widths in those of predictors."""
        shape = value.shape
        unit = float(np.asarray(batch.deviation).flat[0])
        known = batch.weight is not None and not loss.is_count
        scale = unit / np.asarray(batch.weight, np.float64).reshape(shape) if known else np.ones(shape)
        censored = np.zeros(shape) if batch.censored is None else np.asarray(batch.censored).reshape(shape)
        mask = np.asarray(batch.mask).reshape(shape)
        rounded = np.round(value) if loss.is_count else value
        width = None if width is None else np.asarray(width, np.float64).reshape(shape)
        return Measured(loss, mask, unit, len(loss.shapes), has_scale, np.log(scale), rounded, censored, width)

    @property
    def predictors(self) -> int:
        """The number of predictors in the rows of a stage."""
        return 1 + self.shapes + self.has_scale

    def split(self, found: SumOfSquares) -> tuple[Columns, Slopes]:
        """Returns the predictors and their derivatives; masked rows are 0."""
        blocks, width = self.mask.shape
        values = found.residuals[:, : self.predictors * width].reshape(blocks, self.predictors, width) / self.unit
        jacobian = found.jacobian.reshape(blocks, -1, found.jacobian.shape[1])[:, : self.predictors * width]
        slopes = jacobian.reshape(blocks, self.predictors, width, -1) / self.unit
        slopes = np.where(np.abs(slopes) < NO_SLOPE, 0.0, slopes)
        return values.swapaxes(0, 1), slopes.swapaxes(0, 1)

    def at(self, values: Columns) -> Predictors:
        scale = values[-1] if self.has_scale else self.log_scale
        columns = [jnp.asarray(column) for column in (values[0], scale, *values[1 : 1 + self.shapes])]
        return Predictors(columns[0], columns[1], tuple(columns[2:]), self.value, self.censored, self.width)

    def order(self, of_predictors: Float[np.ndarray, "predictor ..."]) -> Float[np.ndarray, "predictor ..."]:
        """Sorts derivatives by location, scale and shapes in the order of the rows."""
        shapes = of_predictors[2 : 2 + self.shapes]
        return np.concatenate([of_predictors[:1], shapes, *([of_predictors[1:2]] if self.has_scale else [])])

    def join(self, found: SumOfSquares, rows: Columns, slopes: Slopes) -> SumOfSquares:
        """Replaces the predictors by other rows."""
        blocks, width = self.mask.shape
        beyond = found.residuals[:, self.predictors * width :]
        more = found.jacobian.reshape(blocks, -1, found.jacobian.shape[1])[:, self.predictors * width :]
        residuals = [self.unit * np.where(self.mask, row, 0.0) for row in rows]
        jacobian = [self.unit * np.where(self.mask[..., None], slope, 0.0) for slope in slopes]
        stacked = np.concatenate([*jacobian, more], axis=1)
        return found._replace(
            residuals=np.concatenate([*residuals, beyond], axis=1), jacobian=stacked.reshape(-1, stacked.shape[2])
        )

    def deviances(self, found: SumOfSquares) -> SumOfSquares:
        """Computes the rows of the squares that the fit minimises, with their Jacobian."""
        values, slopes = self.split(found)
        with scope("x64"):
            rows, by = rows_and_slopes(self, values)
        jacobian = np.einsum("kpbr,pbrx->kbrx", by, slopes)
        return self.join(found, rows, jacobian)

    def scores(self, found: SumOfSquares) -> "tuple[SumOfSquares, Float[np.ndarray, 'parameter parameter']]":
        """Computes rows whose Jacobian has the likelihood's gradient and approximate information; and the observed
        information, which couples noise and location.

        The approximate information is that of the likelihood about its predictors, treated as linear in the parameters
        (Schraudolph, Neural Computation 14, 2002).
        """
        values, slopes = self.split(found)
        with scope("x64"):
            derived = differentiate_likelihood(self.loss, self.at(values))
        gradient = np.where(self.mask, self.order(derived.gradient), 0.0)
        hessian = self.order(np.moveaxis(self.order(derived.hessian), 1, 0))
        hessian = np.where(self.mask, hessian, 0.0)
        flat = slopes.reshape(self.predictors, -1, slopes.shape[3])
        information = np.einsum("pmx,pqm,qmy->xy", flat, hessian.reshape(*hessian.shape[:2], -1), flat, optimize=True)
        weights = np.abs(np.einsum("ppbr->pbr", hessian))
        weights[1:] = weights[1:].sum(axis=(1, 2), keepdims=True) / max(self.mask.sum(), 1)
        roots = np.sqrt(np.maximum(weights, LEAST_CURVATURE))
        rows, jacobian = gradient / roots, slopes * roots[..., None]
        new = self.join(found, rows, jacobian)
        beyond = found.jacobian.reshape(len(self.mask), -1, slopes.shape[3])[:, self.predictors * self.mask.shape[1] :]
        more = beyond.reshape(-1, slopes.shape[3])
        return new, self.unit**2 * information + more.T @ more


@partial(jax.jit, static_argnums=0)
def _rows_and_slopes(
    kind: "tuple[AbstractLikelihood, int, bool]", stack: Array, known: "tuple[Array, Array, Array, Array | None]"
) -> tuple[Array, Array]:
    loss, shapes, has_scale = kind

    def rows(x: Array, given: "tuple[Array, Array, Array, Array | None]") -> Array:
        scale = x[-1] if has_scale else given[0]
        at = Predictors(x[0], scale, tuple(x[1 : 1 + shapes]), *given[1:])
        return jnp.stack(loss.all_rows(at, has_scale=has_scale))

    return jax.vmap(rows)(stack, known), jax.vmap(jax.jacfwd(rows))(stack, known)


def rows_and_slopes(measured: Measured, values: Columns) -> tuple[Columns, Float[np.ndarray, "row predictor block _"]]:
    """Computes each measurement's rows of a likelihood, and their derivatives with respect to the predictors."""
    shape = measured.mask.shape
    flat = jnp.asarray(np.where(measured.mask, values, 0.0).reshape(len(values), -1).T)
    known = jax.tree.map(
        lambda each: jnp.asarray(each, float).reshape(-1),
        (measured.log_scale, measured.value, measured.censored, measured.width),
    )
    rows, by = _rows_and_slopes((measured.loss, measured.shapes, measured.has_scale), flat, known)
    return (
        np.asarray(rows, np.float64).T.reshape(-1, *shape),
        np.moveaxis(np.asarray(by, np.float64), 0, -1).reshape(rows.shape[1], len(values), *shape),
    )


class LikelihoodStage(LinearisedStage):
    """The sum of squares of a likelihood, as a function of a flat vector of its parameters; see `LinearisedStage`.

    **Arguments:** `measured`: the measurements.
    """

    def __init__(self, programs: StagePrograms, state: TrainState, measured: Measured):
        super().__init__(programs, state)
        self.measured = measured

    def at(self, x: Float[np.ndarray, " parameter"]) -> SumOfSquares:
        return self.measured.deviances(self.predict(x))

    def predict(self, x: Float[np.ndarray, " parameter"]) -> SumOfSquares:
        """Computes the predictors instead of rows."""
        return super().at(x)

    def refine_at(self, points: list[Float[np.ndarray, " parameter"]]) -> "LikelihoodStage":
        return LikelihoodStage(self.programs, super().refine_at(points).state, self.measured)

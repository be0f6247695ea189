"""Linearization of a fit near its optimum: residuals, Jacobian, and covariance of the parameters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Literal, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from ..data.batch import Batch, data_from_start
from ..data.dataset import Dataset
from ..data.domains import from_line, slope
from ..data.noise import noise_unit, typical_residuals
from ..data.scaling import columns_by_name
from ..evaluation.advice import Untried
from ..evaluation.residuals import ResidualCheck, check_channels, neighbours_in_words
from ..likelihood.losses import LEAST_SQUARES, AbstractLikelihood, AbstractResidualLoss, Predicted
from ..model import parameters
from ..model.fields.known import Constants
from ..model.neural_ode import NeuralODE
from ..objectives.objective import Penalty
from ..options.options import Devices, Options
from ..runtime.placement import AnyArray, is_array, scope, scope_of
from ..training.host_programs import make_programs
from ..training.programs import LinearisedStage, Setup, SumOfSquares
from ..training.task import Member, Stage
from .likelihood_stage import LikelihoodStage, Measured

# Maximum number of trained parameters for dense matrices, and maximum number of entries of a Jacobian.
MOST_PARAMETERS, MOST_JACOBIAN_NUMBERS = 1000, 20_000_000
# Share of explained variance below which a fit is no evidence of its constants, unless its residuals are mere noise.
DESCRIBED = 0.9
# Standard deviation of resampled weights, times the square root of their layer's width.
SPREAD_OF_NOISE = 0.5
Noise = Literal["given", "estimated"]


class Unsure(ValueError):
    """An error that explains why a likelihood or a confidence is not available."""


@dataclass(frozen=True)
class Place:
    """A constant's place among the trained parameters.

    - `name`, `index`: its name, and its index in the flat vector.
    - `bounds`, `scale`: as in `Constants`.
    """

    name: str
    index: int
    bounds: tuple[float | None, float | None]
    scale: float


class Evidence:
    """The sum of squares of a fit near its optimum.

    **Arguments:**

    - `model`, `options`, `stages`: the fitted model, and the options and stages of the fit.
    - `train`: the training data.

    With more parameters than `MOST_PARAMETERS`, a prior and few measurements, only prediction bands and the likelihood
    are available, since they need no square matrix of the parameters.

    **Raises:** `Unsure` if the fit is no least-squares optimum, or has too many parameters.
    """

    def __init__(self, model: NeuralODE, options: Options, stages: Sequence[Stage], train: Dataset):
        self.model = model
        self.kind = options.kind
        self.states = train.states
        stage = stages[-1]
        self.optimizer = stage.optimizer
        check_stage(stage)
        assert isinstance(options.device, Devices)
        place = replace(options, device=Devices(options.device.kind, 1)).place
        with scope_of(self.model):
            placed = place.one(model)
            part = parameters.partition(placed, options.training.freeze)
            count = parameters.count_parameters(part.params)
            check_jacobian(count, train)
            self.too_many = describe_too_many(count, options)
            if self.too_many is not None and not (has_prior(options) and train.mask.sum() <= MOST_PARAMETERS):
                raise Unsure(self.too_many)
            self.likelihood = None if model.noise is None else likelihood_of(stage)
            member = Member(placed, [with_plain_rows(stage, self.likelihood)], options.seed)
            setup = Setup([member], [part], train, None, place, options.training.chunk_steps or 1)
            programs = make_programs(0, setup, trains=False)
            (state,) = programs.with_refined_steps(programs.init([part.params]))
            self.stage = LinearisedStage(programs, state)
        batch = programs.rows[0]
        self.mask: Bool[np.ndarray, "block row"] = np.asarray(batch.mask).reshape(len(batch.mask), -1)
        self.deviation = self._deviation(model, train, batch)
        self.measured = model.scaler.unscale_states(np.asarray(batch.ys, np.float64)).reshape(len(batch.mask), -1)
        self.centered = weigh_deviations(batch)
        ones = np.ones(np.shape(batch.ys))
        self.weight = (ones if batch.weight is None else np.asarray(batch.weight)).reshape(len(batch.mask), -1)
        self.loss = loss_of(stage) if self.likelihood is None else LEAST_SQUARES
        self.given = batch.weight is not None
        self.noise: Noise = "given" if self.given and not self.loss.robust else "estimated"
        if self.likelihood is not None:
            self._see_noise(batch)
            return
        data = data_from_start(train, model.start.past, model.start.washout) if model.start.past else train
        data = model.scaler.mark_angles(data)
        self.unit = 1.0 if batch.weight is None else noise_unit(data, model.scaler)
        self.spread = self._spread(data) if self.loss.robust else None

    def _see_noise(self, batch: Batch) -> None:
        """Replaces the plain rows by those of a likelihood, which are in standard deviations."""
        assert self.likelihood is not None and self.model.noise is not None
        has_scale = self.model.noise.has_formulas
        with scope_of(self.model):
            measured = Measured.of(batch, self.likelihood, has_scale, self.measured, self.model.widths(batch))
            self.stage = LikelihoodStage(self.stage.programs, self.stage.state, measured)
        self.noise, self.unit, self.spread = "estimated" if has_scale else "given", measured.unit, None

    @property
    def observations(self) -> Measured | None:
        """The measurements of a fit with a noise model; else None."""
        return self.stage.measured if isinstance(self.stage, LikelihoodStage) else None

    @property
    def data_columns(self) -> int:
        """Number of columns of the residuals that belong to measurements; the columns after them are penalties."""
        rows = 1 if self.observations is None else self.observations.predictors
        return rows * int(self.mask.shape[1])

    @cached_property
    def _scores(self) -> tuple[SumOfSquares, Float[np.ndarray, "parameter parameter"]]:
        assert isinstance(self.stage, LikelihoodStage)
        with scope_of(self.model):
            return self.stage.measured.scores(self.stage.predict(self.x))

    @property
    def observed_information(self) -> Float[np.ndarray, "parameter parameter"] | None:
        """The observed information of measurements and penalties for a fit with a noise model; else None."""
        return None if self.observations is None else self._scores[1]

    @staticmethod
    def _deviation(model: NeuralODE, train: Dataset, batch: Batch) -> Float[np.ndarray, "block row"]:
        """Computes the size of a unit weighted residual, or unit scaled one with a noise model, in the user's units, at
        each measurement."""
        scaler = model.scaler
        plain = batch.weight is None or model.noise is not None
        weight = 1.0 if plain else np.asarray(batch.weight, np.float64)
        ys = scaler.unscale_states(np.asarray(batch.ys, np.float64))
        units = np.asarray(scaler.state_scale, np.float64) / weight / columns_by_name(slope, ys, scaler.bounds)
        return np.broadcast_to(units, ys.shape).reshape(len(ys), -1)

    def _spread(self, data: Dataset) -> Float[np.ndarray, "block row"]:
        """Computes the standard deviation of each weighted residual that a robust loss uses."""
        spreads = typical_residuals(data, self.model.scaler)
        return np.broadcast_to(np.tile(spreads, self.mask.shape[1] // len(spreads)), self.mask.shape)

    def at(self, x: Float[np.ndarray, " parameter"]) -> SumOfSquares:
        with scope_of(self.model):
            return self.stage.at(x)

    @property
    def x(self) -> Float[np.ndarray, " parameter"]:
        return self.stage.x

    @cached_property
    def best(self) -> SumOfSquares:
        """The linearization at the fit's parameters; a robust loss is replaced by a sum of squares with the same
        optimum and covariance.

        Its residuals are pseudo-values `s psi(r / s) / mean(psi')` (Huber, Robust Statistics, 1981, section 7.6).

        **Raises:** `Unsure` if a solve fails there.
        """
        point = self.at(self.x) if self.observations is None else self._scores[0]
        if point.failed or not np.isfinite(point.jacobian).all():
            raise Unsure("a training trajectory can't be solved, or its sensitivities can't.")
        if self.spread is None:
            return point
        width = self.mask.shape[1]
        psi, bend = self.loss.influence(point.residuals[:, :width] / self.spread)
        mean = float(bend[self.mask].mean())
        if mean <= 0:
            raise Unsure("most residuals are outliers, so nothing is sure; give data.sigma, or use loss=huber.")
        residuals = np.concatenate([self.spread * psi, point.residuals[:, width:]], axis=1) / mean
        return point._replace(residuals=residuals, prior=point.prior / mean)

    @cached_property
    def redrawn(self) -> SumOfSquares | None:
        """The linearization at freshly initialized weights, not shrunk by a prior; None if a solve fails."""
        rng = np.random.default_rng(0)

        def draw(leaf: AnyArray, prior: AnyArray) -> AnyArray:
            width = leaf.shape[-1] if leaf.ndim else 1
            return rng.normal(scale=SPREAD_OF_NOISE / np.sqrt(width), size=leaf.shape) if np.any(prior) else leaf

        with scope_of(self.model):
            flat = ravel_pytree(jax.tree.map(draw, self.stage.params(self.x), self.stage.params(self.best.prior)))[0]
        point = self.at(np.asarray(flat, np.float64))
        return None if point.failed or not np.isfinite(point.jacobian).all() else point

    @cached_property
    def raw(self) -> Float[np.ndarray, " value"]:
        """The weighted residuals of the measurements, untransformed."""
        return self.at(self.x).residuals.reshape(-1)[self.informative]

    @cached_property
    def informative(self) -> Bool[np.ndarray, " residual"]:
        """Mask of the residuals that depend on parameters; measurements that define an initial state do not."""
        values, jacobian = self.best.residuals, self.best.jacobian
        data = np.zeros(values.shape, bool)
        data[:, : self.mask.shape[1]] = self.mask
        sensitive = (values.reshape(-1) != 0) | (jacobian != 0).any(axis=1)
        return data.reshape(-1) & sensitive

    @property
    def measurements(self) -> Bool[np.ndarray, "block row"]:
        """Mask of informative measurements among the residuals of a block."""
        return self.informative.reshape(self.best.residuals.shape)[:, : self.mask.shape[1]]

    @cached_property
    def residual_checks(self) -> dict[str, ResidualCheck]:
        """Independence checks of each state's weighted residuals."""
        values = self.best.residuals
        known = np.where(self.informative.reshape(values.shape), values, np.nan)[:, : self.mask.shape[1]]
        rows = known.reshape(-1, len(self.states))
        segment = np.repeat(np.arange(len(values)), len(rows) // len(values))
        return check_channels(rows, segment, np.zeros((len(rows), 0)), self.states, ())

    @cached_property
    def is_described(self) -> bool:
        """Whether the model explains most of the training data's variance, or leaves mere noise."""
        states = len(self.states)
        left = np.where(self.mask, self.misses, np.nan).reshape(-1, states)
        values = np.where(self.mask, self.measured, np.nan).reshape(-1, states)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = 1 - np.nanmean(left**2, axis=0) / np.nanvar(values, axis=0)
        explained = float(shares[np.isfinite(shares)].mean()) if np.isfinite(shares).any() else 1.0
        return explained >= DESCRIBED or (explained > 0 and not neighbours_in_words(self.residual_checks))

    @property
    def misses(self) -> Float[np.ndarray, "block row"]:
        """Predicted minus measured values in the user's units; 0 for predictions beyond a limit or in an interval."""
        seen = self.observations
        if seen is None:
            return self.at(self.x).residuals[:, : self.mask.shape[1]] * self.deviation
        assert isinstance(self.stage, LikelihoodStage) and self.model.noise is not None
        with scope_of(self.model):
            location = seen.split(self.stage.predict(self.x))[0][0]
        if seen.loss.is_count:
            return np.exp(location) - seen.value
        beyond = seen.censored * location
        beyond = 0.0 if seen.width is None else seen.censored * np.maximum(beyond - seen.width, 0)
        location = np.where(seen.censored * location > 0, beyond, location)
        logs = np.tile(self.model.noise.is_log(), self.mask.shape[1] // len(self.states))
        return np.where(logs, self.measured * np.expm1(np.where(logs, location, 0.0)), location * self.deviation)

    @cached_property
    def constants(self) -> list[Place]:
        """The trained constants."""
        with scope_of(self.model):
            numbered = self.stage.parameter_places()
        places: list[Place] = []
        for _, node in parameters.parameter_nodes(numbered.model, Constants):
            if not is_array(node.raw):
                continue
            rows = zip(node.free(), np.asarray(jax.device_get(node.raw)).tolist(), strict=True)
            places += [Place(name, round(index), bounds, scale) for (name, bounds, scale), index in rows]
        return places

    @property
    def values(self) -> int:
        """Number of measurements."""
        return int(self.informative.sum())

    def minimised_residuals(self, found: SumOfSquares) -> SumOfSquares:
        """Transforms residuals and Jacobian to those of the squares that the fit minimises; a robust loss shrinks large
        residuals (`AbstractResidualLoss`)."""
        if self.spread is None:
            return found
        width = self.mask.shape[1]
        z = found.residuals[:, :width] / self.spread
        factor = np.ones_like(found.residuals)
        factor[:, :width] = np.asarray(self.loss.factor(jnp.asarray(z)), np.float64)
        slope = np.ones_like(factor)
        with np.errstate(invalid="ignore", divide="ignore"):
            slope[:, :width] = np.where(z == 0, 1.0, self.loss.influence(z)[0] / (factor[:, :width] * z))
        return found._replace(residuals=found.residuals * factor, jacobian=found.jacobian * slope.reshape(-1, 1))

    @property
    def negative_log(self) -> float:
        """Negative log probability (density) of the measurements under a noise model, in the user's units."""
        seen = self.observations
        assert isinstance(self.stage, LikelihoodStage) and seen is not None and self.model.noise is not None
        with scope_of(self.model):
            at = seen.at(seen.split(self.stage.predict(self.x))[0])
        with scope("x64"):
            total = np.where(self.mask, np.asarray(seen.loss.negative_log(at), np.float64), 0.0)
        if seen.loss.is_count:
            return float(total.sum())
        logs = np.tile(self.model.noise.is_log(), self.mask.shape[1] // len(self.states))
        units = np.where(logs, np.abs(self.measured), self.deviation)
        return float((total + np.where(self.mask & (seen.censored == 0), np.log(units), 0.0)).sum())

    def typical_noise(self, seen: Measured) -> Float[np.ndarray, " channel"]:
        """Computes the root mean square of each channel's fitted standard deviations, in scaled units."""
        assert isinstance(self.stage, LikelihoodStage) and self.model.noise is not None
        with scope_of(self.model):
            at = seen.at(seen.split(self.stage.predict(self.x))[0])
        spread = np.asarray(seen.loss.spread(at), np.float64)
        scale = self.deviation
        if not seen.loss.is_count:
            logs = np.tile(self.model.noise.is_log(), self.mask.shape[1] // len(self.states))
            scale = np.where(logs, self.deviation / np.where(self.measured == 0, 1.0, self.measured), 1.0)
        squares = np.where(self.mask, (spread / scale) ** 2, np.nan).reshape(-1, len(self.states))
        return np.sqrt(np.nan_to_num(np.nanmean(squares, axis=0), nan=1.0))

    @cached_property
    def misfit(self) -> float:
        """Twice the negative logarithm of likelihood and priors at the fit's parameters, times the noise's variance."""
        return self.minimised_residuals(self.at(self.x)).with_prior(self.x).value

    def squares(self, found: SumOfSquares) -> float:
        """Computes the sum of squared weighted residuals of the measurements."""
        return float((found.residuals.reshape(-1)[self.informative] ** 2).sum())


def weigh_deviations(batch: Batch) -> Float[np.ndarray, "block row"]:
    """Computes the weighted deviations of the measurements from the mean of their channel."""
    mask, ys = np.asarray(batch.mask), np.asarray(batch.ys, np.float64)
    off = ys - (ys * mask).sum(axis=(0, 1)) / np.maximum(mask.sum(axis=(0, 1)), 1)
    return np.asarray(batch.weigh_residuals(off), np.float64).reshape(len(off), -1)


class LikelihoodObjective(Protocol):
    """An objective that is the likelihood of measurements."""

    residual_loss: AbstractLikelihood


def likelihood_of(stage: Stage) -> AbstractLikelihood:
    return cast(LikelihoodObjective, stage.objective).residual_loss


def loss_of(stage: Stage) -> AbstractResidualLoss:
    loss = likelihood_of(stage)
    assert isinstance(loss, AbstractResidualLoss)
    return loss


def with_plain_rows(stage: Stage, likelihood: AbstractLikelihood | None) -> Stage:
    """Returns the stage on all data at once, with plain residuals or, with a noise model, the predictors."""
    loss = LEAST_SQUARES if likelihood is None else Predicted(likelihood)
    return replace(stage, objective=replace(stage.objective, residual_loss=loss), batch_size=None)


def check_stage(stage: Stage) -> None:
    if reason := stage.objective.why_no_likelihood():
        raise Unsure(f"the last stage {reason}.")


def has_prior(options: Options) -> bool:
    penalty = options.penalty
    return isinstance(penalty, Penalty) and isinstance(penalty.ridge, float | int) and penalty.ridge > 0


def describe_too_many(count: int, options: Options) -> str | None:
    """Describes why a matrix of all parameters would be too large; None if it would not."""
    said = f"{count:,} parameters are trained, more than {MOST_PARAMETERS:,}"
    smaller = Untried(options).smaller_network()
    return None if count <= MOST_PARAMETERS else f"{said}{'' if smaller is None else f'; try {smaller}'}."


def check_jacobian(count: int, train: Dataset) -> None:
    if (numbers := count * train.mask.size) > MOST_JACOBIAN_NUMBERS:
        raise Unsure(f"its Jacobian would have {numbers:,} numbers, more than {MOST_JACOBIAN_NUMBERS:,}.")


# Share in a direction above which a constant is moved by it.
MOVED = 1e-3
# Without a prior, minimum strength of a direction relative to the strongest, or samples would leave the fit.
WEAK = 1e-3
# Eigenvalues of the observed information, relative to the largest: it is indefinite if one is below minus the first
# value; those up to the second are rounding errors.
INDEFINITE, ROUNDED = 1e-9, 1e-13
# Share of measurements within the band that determines the noise of a robust loss.
BAND = 0.9
# A constant is determined by the penalties if its standard error grows by more than the first factor when they are
# scaled by the second.
GROWS, WEAKER = 3.0, 1e-6
# Rounding accuracy of a constant in a simulation of many steps, in floating-point spacings.
UNTOLD_SPACINGS = 32.0


def draw_standard(size: int, count: int, rng: np.random.Generator) -> Float[np.ndarray, "draw number"]:
    """Samples independent standard normal numbers; with enough samples, their covariance is exactly the identity."""
    numbers = rng.standard_normal((size, count))
    return math.sqrt(size) * np.linalg.qr(numbers)[0] if 0 < count <= size else numbers


@dataclass(frozen=True)
class Information:
    """The information of the data on the constants, with all other trained parameters free.

    See Seber and Wild, Nonlinear Regression, 1989, sections 2.1 and 5.1; with a prior, the Laplace approximation.
    Covariances and directions refer to the constants on the real line (`data/domains.py`), in units of their own size;
    for a positive constant, to its logarithm.

    **Arguments:**

    - `evidence`: the evidence of the fit.
    - `share`: factor of the prior and other penalties. `noise`: the variance of a weighted residual, if known.
    - `found`: the sum of squares, by default that at the fit.
    """

    evidence: Evidence
    share: float = 1.0
    noise: float | None = None
    found: SumOfSquares | None = None

    @property
    def linearisation(self) -> SumOfSquares:
        return self.evidence.best if self.found is None else self.found

    @property
    def places(self) -> list[Place]:
        return self.evidence.constants

    @cached_property
    def tolerance(self) -> float:
        """Share of the largest singular value below which others are rounding errors."""
        return float(np.finfo(self.evidence.stage.kind).eps) ** (2 / 3)

    @cached_property
    def jacobian(self) -> Float[np.ndarray, "row parameter"]:
        """The Jacobian of measurements and penalties."""
        found, width = self.linearisation, self.evidence.data_columns
        if self.share == 1.0 or found.residuals.shape[1] == width:
            return found.jacobian
        weight = np.where(np.arange(int(found.residuals.shape[1])) < width, 1.0, np.sqrt(self.share))
        return found.jacobian * np.tile(weight, len(found.residuals))[:, None]

    @property
    def prior(self) -> Float[np.ndarray, " parameter"]:
        return self.share * self.linearisation.prior

    @cached_property
    def columns(self) -> Float[np.ndarray, " parameter"]:
        """The norms of the Jacobian's columns, which scale them."""
        norms = np.sqrt((self.jacobian**2).sum(axis=0) + self.prior)
        return np.where(norms > 0, norms, 1.0)

    @cached_property
    def is_wide(self) -> bool:
        """Whether a square matrix of the parameters would be too large, and every parameter has a prior."""
        return self.evidence.too_many is not None and bool((self.prior > 0).all())

    @cached_property
    def rows(self) -> tuple[Float[np.ndarray, " rank"], Float[np.ndarray, "rank parameter"]]:
        """Singular values of the Jacobian in units of the prior's deviations, and its right singular vectors."""
        _, values, vectors = np.linalg.svd(self.jacobian / np.sqrt(self.prior), full_matrices=False)
        return values, vectors

    @cached_property
    def root(self) -> Float[np.ndarray, "row parameter"]:
        """The factor `R` of the QR decomposition of the scaled Jacobian, with a row for each parameter's prior.

        **Raises:** `Unsure` if it would be too large.
        """
        if self.evidence.too_many is not None:
            raise Unsure(self.evidence.too_many)
        if self.evidence.observed_information is not None and self.share == 1.0 and self.found is None:
            matrix = (self.evidence.observed_information + np.diag(self.prior)) / np.outer(self.columns, self.columns)
            values, vectors = np.linalg.eigh(matrix)
            if values.min() > -INDEFINITE * values.max():
                # Drop rounding errors.
                kept = np.where(values > ROUNDED * values.max(), values, 0.0)
                root = np.sqrt(kept)[:, None] * vectors.T
                root[:, np.diag(matrix) == 0] = 0.0  # Rounding must not give a parameter an effect.
                return root
        stacked = self.jacobian
        if self.prior.any():
            stacked = np.concatenate([stacked, np.diag(np.sqrt(self.prior))])
        return np.asarray(np.linalg.qr(stacked / self.columns, mode="r"))

    @cached_property
    def spectrum(self) -> tuple[Float[np.ndarray, " rank"], Float[np.ndarray, "rank parameter"]]:
        """Singular values of `root` above rounding, and their right singular vectors."""
        _, values, vectors = np.linalg.svd(self.root, full_matrices=False)
        kept = values > self.tolerance * values.max(initial=0)
        return values[kept], vectors[kept]

    @cached_property
    def leverages(self) -> Float[np.ndarray, " value"]:
        """The diagonal of the hat matrix: the influence of each measurement on its own fitted value."""
        rows = self.evidence.informative
        if self.is_wide:
            left, values, _ = np.linalg.svd(self.jacobian / np.sqrt(self.prior), full_matrices=False)
            return ((left[rows] * values) ** 2 / (1 + values**2)).sum(axis=1)
        values, vectors = self.spectrum
        measured = self.evidence.best.jacobian[rows] / self.columns
        return (((measured @ vectors.T) / values) ** 2).sum(axis=1)

    @property
    def parameters(self) -> float:
        """The effective number of parameters: their number minus the part that a prior or penalty determines."""
        return float(self.leverages.sum())

    @property
    def degrees_of_freedom(self) -> float:
        return self.evidence.values - self.parameters

    @cached_property
    def variance(self) -> float:
        """The variance of a weighted residual: of the given noise, or estimated from the residuals.

        **Raises:** `Unsure` with too few residuals.
        """
        if self.noise is not None:
            return self.noise
        if self.evidence.noise == "given":
            return self.evidence.unit**2
        if self.evidence.observations is not None:
            # A maximum-likelihood scale is too small, since the parameters follow part of the noise.
            return self.evidence.unit**2 * self.evidence.values / max(self.degrees_of_freedom, 1.0)
        if self.degrees_of_freedom < 1:
            count = f"{self.parameters:.3g} parameters were fitted to {self.evidence.values} values"
            raise Unsure(f"{count}, which leaves nothing to estimate the noise from; give data.sigma.")
        return self.evidence.squares(self.evidence.best) / self.degrees_of_freedom

    @cached_property
    def noise_of_channels(self) -> tuple[Float[np.ndarray, " channel"], float]:
        """The standard deviation of each channel's measurements, in scaled units, and its minimum degrees of freedom.

        With a robust loss, it is that of normal noise with the same 90 % band.
        """
        evidence = self.evidence
        if evidence.observations is not None:
            return evidence.typical_noise(evidence.observations), max(self.degrees_of_freedom, 1.0)
        channel = np.nonzero(evidence.measurements)[1] % len(evidence.states)
        own = np.asarray(channel == np.arange(len(evidence.states))[:, None], np.float64)
        weight = evidence.weight[evidence.measurements]
        scaled, count, freedom = evidence.raw / weight, own.sum(axis=1), own @ (1 - self.leverages)
        if evidence.loss.robust:
            reach = np.array(
                [np.quantile(np.abs(scaled[members > 0]), BAND) if members.any() else 0.0 for members in own]
            )
            squares = count * (reach / NormalDist().inv_cdf((1 + BAND) / 2)) ** 2
        else:
            squares = own @ scaled**2
        # A channel with too few values uses the pooled noise, in proportion to its weights.
        pooled = self.variance * count / np.where(count > 0, own @ weight**2, 1.0)
        noise = np.sqrt(np.asarray(np.where(freedom < 1, pooled, squares / np.maximum(freedom, 1)), np.float64))
        return noise, float(np.where(freedom < 1, max(self.degrees_of_freedom, 1.0), freedom).min())

    def draw(self, size: int, rng: np.random.Generator) -> Float[np.ndarray, "member parameter"]:
        """Samples displacements from the fit from the posterior: a zero one, and pairs on opposite sides.

        **Raises:** `Unsure` if the data leave directions open without a prior, or are too few to estimate the noise.
        """
        if self.is_wide:
            half = rng.standard_normal((size // 2, len(self.prior)))
            values, vectors = self.rows
            # Samples of the prior, narrowed along the directions that the data determine.
            half += ((half @ vectors.T) * (1 / np.sqrt(1 + values**2) - 1)) @ vectors
            half /= np.sqrt(self.prior)
        else:
            values, vectors = self.spectrum
            if not self.prior.any() and values.min() < WEAK * values.max():
                raise Unsure(
                    "the data leave directions of the parameters open, and no prior bounds them; set penalty.ridge."
                )
            half = ((draw_standard(size // 2, len(values), rng) / values) @ vectors) / self.columns
        return np.sqrt(self.variance) * np.concatenate([np.zeros((1, half.shape[1])), half, -half])[:size]

    @cached_property
    def values(self) -> Float[np.ndarray, " constant"]:
        """The constants in the user's units."""
        lines = [self.evidence.x[place.index] * place.scale for place in self.places]
        return np.array(
            [float(from_line(np.asarray(z), place.bounds)) for z, place in zip(lines, self.places, strict=True)]
        )

    @cached_property
    def magnitudes(self) -> Float[np.ndarray, " constant"]:
        """Displacements of the trained parameters when their constants move by their own magnitude."""
        pairs = zip(self.values.tolist(), self.places, strict=True)
        slopes = [float(slope(np.asarray(value), place.bounds)) / place.scale for value, place in pairs]
        return np.array(slopes) * np.where(self.values == 0, 1.0, np.abs(self.values))

    @cached_property
    def sizes(self) -> Float[np.ndarray, " constant"]:
        """Displacements of the trained parameters when their constants move by their own size.

        The size is the magnitude. If a constant's bounds include zero, as for a difference of two groups, the size is
        at least the change that alters the simulation, where it acts, as much as the measurements vary there.
        """
        rows = self.evidence.informative
        effects = self.evidence.best.jacobian[rows][:, [place.index for place in self.places]] ** 2
        signal = self.evidence.centered[self.evidence.measurements] ** 2
        passes_zero = [
            (place.bounds[0] is None or place.bounds[0] < 0) and (place.bounds[1] is None or place.bounds[1] > 0)
            for place in self.places
        ]
        acts = (effects.sum(axis=0) > 0) & np.array(passes_zero, bool)
        moves = np.sqrt(signal @ effects / np.where(acts, (effects**2).sum(axis=0), 1.0))
        return np.where(acts, np.maximum(self.magnitudes, moves), self.magnitudes)

    @cached_property
    def own_root(self) -> Float[np.ndarray, "row constant"]:
        """The part of `root` that only the constants explain, in units of their sizes."""
        index = [place.index for place in self.places]
        others = np.delete(self.root, index, axis=1)
        mine = self.root[:, index] * (self.columns[index] * self.sizes)
        if not others.size:
            return mine
        basis, values, _ = np.linalg.svd(others, full_matrices=False)
        basis = basis[:, values > self.tolerance * values.max(initial=0)]
        return mine - basis @ (basis.T @ mine)

    @cached_property
    def directions(self) -> tuple[Float[np.ndarray, " constant"], Float[np.ndarray, "constant constant"]]:
        """Standard errors along orthogonal directions of the constants, infinite if nothing is known; in rows."""
        if not self.places:
            return np.zeros(0), np.zeros((0, 0))
        alone = (
            np.linalg.norm(self.root[:, [place.index for place in self.places]], axis=0)
            * self.columns[[place.index for place in self.places]]
            * self.sizes
        )
        _, values, vectors = np.linalg.svd(self.own_root, full_matrices=True)
        values = np.concatenate([values, np.zeros(len(vectors) - len(values))])
        noise = self.tolerance * np.maximum(np.abs(vectors) @ alone, np.finfo(float).tiny)
        # For a constant without effect, the decomposition leaves a rounding error of the others.
        noise = np.maximum(noise, np.finfo(float).eps * values.max(initial=0))
        with np.errstate(divide="ignore"):
            errors = np.where(values > noise, np.sqrt(self.variance) / values, np.inf)
        return errors, vectors

    @cached_property
    def covariance(self) -> Float[np.ndarray, "constant constant"]:
        """The covariance of the constants; unknown ones have infinite variances and NaN covariances."""
        errors, vectors = self.directions
        known = np.isfinite(errors)
        scaled = vectors[known] * errors[known, None]
        with np.errstate(over="ignore", invalid="ignore"):  # At a bound, nothing is known.
            covariance = scaled.T @ scaled
        lost = self.moved_constants(vectors[~known]).any(axis=0)
        covariance[lost] = covariance[:, lost] = np.nan
        covariance[lost, lost] = np.inf
        return covariance

    @staticmethod
    def moved_constants(vectors: Float[np.ndarray, "direction constant"]) -> Bool[np.ndarray, "direction constant"]:
        """Returns a mask of the constants that each direction moves."""
        return np.abs(vectors) > MOVED

    @cached_property
    def errors(self) -> Float[np.ndarray, " constant"]:
        """Standard errors of the constants, in units of their sizes."""
        return np.sqrt(np.diag(self.covariance))

    @cached_property
    def determined_by_penalties(self) -> Bool[np.ndarray, " constant"]:
        """Constants identified only by the penalties."""
        best = self.evidence.best
        if not best.prior.any() and best.residuals.shape[1] == self.evidence.data_columns:
            return np.zeros(len(self.places), bool)
        here = replace(self, noise=self.variance)
        widening, redrawn = np.isfinite(self.errors) & here.widening, self.evidence.redrawn
        # A strong prior shrinks a network until it is almost linear and seems unable to compensate for constants.
        return widening if redrawn is None else widening | replace(here, found=redrawn).widening

    @property
    def widening(self) -> Bool[np.ndarray, " constant"]:
        """Constants whose standard error is much larger under weaker penalties."""
        return replace(self, share=WEAKER * self.share).errors > GROWS * self.errors

    @property
    def is_determined(self) -> Bool[np.ndarray, " constant"]:
        """Constants that the measurements determine."""
        return np.isfinite(self.errors) & ~self.determined_by_penalties

    @cached_property
    def step(self) -> Float[np.ndarray, " parameter"]:
        """The Gauss-Newton step from the fit's parameters to the optimum of the linearised sum of squares."""
        found, (values, vectors) = self.evidence.best, self.spectrum
        slope = found.jacobian.T @ found.residuals.reshape(-1) + found.prior * self.evidence.x
        return -(vectors.T @ ((vectors @ (slope / self.columns)) / values**2)) / self.columns

    @cached_property
    def distance(self) -> float:
        """Distance of the fit from that optimum, in standard errors of the constant that is farthest.

        Without noise, a standard error can be below single-precision resolution, which then is the unit.
        """
        index = [place.index for place in self.places]
        finite = self.is_determined & (self.errors > 0)
        errors = np.maximum(self.errors, UNTOLD_SPACINGS * float(np.finfo(self.evidence.stage.kind).eps))
        moved = np.abs(self.step[index] / self.sizes)[finite] / errors[finite]
        return float(moved.max(initial=0.0))

"""An ensemble drawn from the Laplace approximation of a fit's posterior; its spread is what the data leave open.

The likelihood of the fit says how probable its training data are, with normal noise.
"""

import math
from dataclasses import dataclass

import equinox as eqx
import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from ..model.ensemble import Ensemble
from ..model.neural_ode import NeuralODE
from ..runtime.placement import scope
from .linearization import Evidence, Information, Noise, Unsure


@dataclass(frozen=True)
class Likelihood:
    """How probable the training data are, with normal noise or that of a robust loss.

    - `nll`: negative logarithm of the probability density of the measurements, in the user's units.
    - `aic`, `bic`: `2 k + 2 nll` and `k log(values) + 2 nll`, where `k` counts the parameters, and the noise if it was
      estimated.
    - `chi2_per_dof`: squared residuals over the variances that were given, per degree of freedom: about 1 if these are
      right; None if the noise was estimated.
    - `noise`: whether it was `given` or `estimated`. `values`, `parameters`: number of measurements, and the effective
      number of parameters.
    """

    nll: float
    aic: float
    bic: float
    chi2_per_dof: float | None
    noise: Noise
    values: int
    parameters: float


def compute_likelihood(evidence: Evidence) -> Likelihood:
    """The likelihood at the fit's parameters.

    **Raises:** `Unsure` if there are too few values.
    """
    information = Information(evidence)
    if evidence.spread is not None:
        return robust(evidence, information)
    squares, count = evidence.squares(evidence.best), evidence.values
    given = evidence.noise == "given"
    variance = information.variance if given else squares / count
    told = evidence.informative.reshape(evidence.best.residuals.shape)[:, : evidence.mask.shape[1]]
    with np.errstate(divide="ignore"):
        scales = float(np.log(evidence.deviation[told]).sum())
        nll = (squares / variance if variance else 0.0) / 2 + count / 2 * float(np.log(2 * math.pi * variance)) + scales
    free = information.parameters + (not given)
    freedom = information.degrees_of_freedom
    return Likelihood(
        nll=nll,
        aic=2 * free + 2 * nll,
        bic=free * math.log(count) + 2 * nll,
        chi2_per_dof=squares / variance / freedom if given and freedom > 0 else None,
        noise=evidence.noise,
        values=count,
        parameters=information.parameters,
    )


def robust(evidence: Evidence, information: Information) -> Likelihood:
    """The likelihood with the density that belongs to a robust loss, and the spread that the fit used."""
    assert evidence.spread is not None
    told = evidence.informative.reshape(evidence.best.residuals.shape)[:, : evidence.mask.shape[1]]
    spread = evidence.spread[told]
    logs = evidence.loss.log_density(evidence.raw / spread) - np.log(spread * evidence.deviation[told])
    nll, count = -float(logs.sum()), evidence.values
    # Without given noise, that of each state was estimated.
    free = information.parameters + (0 if evidence.given else len(evidence.states))
    return Likelihood(
        nll=nll,
        aic=2 * free + 2 * nll,
        bic=free * math.log(count) + 2 * nll,
        chi2_per_dof=None,
        noise="given" if evidence.given else "estimated",
        values=count,
        parameters=information.parameters,
    )


# Without a prior, the weakest direction is as strong as this share of the strongest, or it would not stay near the fit.
WEAK = 1e-3
# Members lie this much closer to the fit than draws of the posterior, where predictions are linear in the parameters:
# the approximation is the posterior of the linearised model, and whole steps would leave where it holds (A. Immer,
# M. Korzepa and M. Bauer, "Improving predictions of Bayesian neural nets via local linearization", AISTATS 2021).
CLOSER = 100.0


def draw_laplace(
    information: Information, size: int, seed: int, train: Dataset, validation: Dataset | None
) -> Ensemble:
    """An ensemble whose trained parameters are normal around those of the fit, in pairs on opposite sides of it.

    Their covariance is the inverse of the linearised sum of squares with the prior, times the variance of the noise
    (MacKay, Neural Computation 4:448, 1992, in the Gauss-Newton form).

    **Arguments:**

    - `information`: of the fit. `size`: number of members. `seed`: of the draw.
    - `train`, `validation`: as of `Ensemble.of`.

    **Raises:** `Unsure` if the data leave directions open and there is no prior, or too few values to estimate the
    noise.
    """
    values, vectors = information.spectrum
    if not information.prior.any() and values.min() < WEAK * values.max():
        raise Unsure("the data leave directions of the parameters open, and no prior bounds them; set penalty.ridge.")
    half = np.random.default_rng(seed).standard_normal((-(-size // 2), len(values)))
    sides = np.concatenate([half, -half])[:size]
    moves = np.sqrt(information.variance) * ((sides / values) @ vectors) / information.columns
    members = [at(information, information.evidence.x + move / CLOSER) for move in moves]
    return Ensemble.of(members, train, validation, gain=CLOSER)


def at(information: Information, x: Float[np.ndarray, " parameter"]) -> NeuralODE:
    """The model with the parameters of a flat vector."""
    stage = information.evidence.stage
    setup = stage.programs.setup
    with scope(information.evidence.kind):
        part, params = setup.parts[0], stage.params(x)
        return setup.place.one(eqx.combine(params.model, part.frozen, part.static))

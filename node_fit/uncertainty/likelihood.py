"""Likelihood, AIC and BIC of the training data under a fit, with normal or heavy-tailed noise."""

import math
from dataclasses import dataclass

import numpy as np

from ..likelihood.losses import LEAST_SQUARES
from .likelihood_stage import Measured
from .linearization import Evidence, Information, Noise


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of the training data, with normal noise or that of a robust loss.

    - `nll`: negative logarithm of the probability density of the measurements, in the user's units.
    - `aic`, `bic`: `2 k + 2 nll` and `k log(values) + 2 nll`, where `k` counts the parameters, and the noise if it was
      estimated.
    - `chi2_per_dof`: squared residuals over the given variances, per degree of freedom: about 1 if these are correct;
      None if the noise was estimated.
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


def information_criteria(nll: float, parameters: float, values: int) -> dict[str, float]:
    """Computes Akaike's `aic` (IEEE Trans. Autom. Control 19, 1974) and Schwarz's `bic` (Ann. Stat. 6, 1978).

    **Arguments:** `nll`: the negative log-likelihood. `parameters`, `values`: their numbers.
    """
    return {"aic": 2 * parameters + 2 * nll, "bic": parameters * math.log(values) + 2 * nll}


def compute_likelihood(evidence: Evidence) -> Likelihood:
    """Computes the likelihood at the fit's parameters.

    **Raises:** `Unsure` with too few values.
    """
    information = Information(evidence)
    if evidence.observations is not None:
        return of_noise_model(evidence, evidence.observations, information)
    if evidence.spread is not None:
        return robust(evidence, information)
    squares, count = evidence.squares(evidence.best), evidence.values
    given = evidence.noise == "given"
    variance = information.variance if given else squares / count
    measurements = evidence.measurements
    with np.errstate(divide="ignore"):
        scales = float(np.log(evidence.deviation[measurements]).sum())
        nll = (squares / variance if variance else 0.0) / 2 + count / 2 * float(np.log(variance)) + scales
        nll -= count * float(LEAST_SQUARES.log_peak())
    free = information.parameters + (not given)
    freedom = information.degrees_of_freedom
    return Likelihood(
        nll=nll,
        **information_criteria(nll, free, count),
        chi2_per_dof=squares / variance / freedom if given and freedom > 0 else None,
        noise=evidence.noise,
        values=count,
        parameters=information.parameters,
    )


def robust(evidence: Evidence, information: Information) -> Likelihood:
    """Computes the likelihood with the density of a robust loss, and the spread that the fit used."""
    assert evidence.spread is not None
    measurements = evidence.measurements
    spread = evidence.spread[measurements]
    logs = evidence.loss.log_density(evidence.raw / spread) - np.log(spread * evidence.deviation[measurements])
    nll, count = -float(logs.sum()), evidence.values
    # Without given noise, that of each state was estimated.
    free = information.parameters + (0 if evidence.given else len(evidence.states))
    return Likelihood(
        nll=nll,
        **information_criteria(nll, free, count),
        chi2_per_dof=None,
        noise="given" if evidence.given else "estimated",
        values=count,
        parameters=information.parameters,
    )


def of_noise_model(evidence: Evidence, seen: Measured, information: Information) -> Likelihood:
    """Computes the likelihood of a noise model; its constants count as parameters."""
    nll, count, free = evidence.negative_log, evidence.values, float(len(evidence.x))
    return Likelihood(
        nll=nll,
        **information_criteria(nll, free, count),
        chi2_per_dof=None,
        noise="estimated" if seen.has_scale or seen.shapes else "given",
        values=count,
        parameters=free,
    )

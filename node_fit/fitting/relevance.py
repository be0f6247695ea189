"""Computes the evidence of fits, and prunes polynomials using a prior per coefficient that the data determine."""

import math
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..minimize.host import DampedSteps, Damping, LinearisedPoint, minimize
from ..model.make_model import trait_of
from ..model.neural_ode import NeuralODE
from ..runtime.placement import scope_of
from ..uncertainty.linearization import MOST_PARAMETERS, Evidence, Unsure
from .result import Fit

Vector = Float[np.ndarray, " parameter"]
# Initial weights of the prior on nonlinear coefficients; the most probable of the resulting optima is kept.
BEGINNINGS = (1.0, 0.01, 10.0)
# Number of values per parameter above which the optimum is unique, so that one initial weight is enough.
AMPLE = 10
# Initial weight of the prior on linear coefficients, and weights that count as zero and as infinite.
HARDLY, NONE, INFINITE = 1e-6, 1e-12, 1e8
# Coefficients below this are negligible, in scaled units of order one.
NEGLIGIBLE_COEFFICIENT = 1e-5
# Maximum number of prior updates, steps per update, and change of log priors below which they have converged.
MOST_PRIOR_ROUNDS, STEPS_IN_ROUND, SETTLED_PRIORS = 40, 6, 1e-2
# Damping of steps, and relative decrease of the objective below which they end.
PRIOR_DAMPING, STEPS_SETTLED = Damping(1e-3, 1 / 4, 4.0, maximum=1e6), 1e-6
# Factor by which a pruned polynomial can fit the training data worse.
NO_WORSE = 1.5


class Thinned(NamedTuple):
    """A polynomial fit with mostly zero coefficients, and the logarithm of its evidence."""

    model: NeuralODE
    log_evidence: float


def log_evidence(evidence: Evidence, prior: Vector | None = None, at: LinearisedPoint | None = None) -> float:
    """Computes the log evidence of the training data under a fit's prior, up to a constant of the data.

    Uses the Laplace approximation, with the noise variance at its most probable value, and flat priors on parameters
    without a prior (D. J. C. MacKay, "A practical Bayesian framework for backpropagation networks", Neural Computation
    4:448, 1992). Comparable between fits to the same data by models with the same kind of start.

    **Arguments:** `evidence`: evidence of the fit. `prior`, `at`: the weight of each parameter's square, and a point;
    by default those of the fit.

    **Raises:** `Unsure` if the fit is not a least-squares optimum.
    """
    if evidence.too_many is not None:
        raise Unsure(evidence.too_many)
    at = evidence.best.with_prior(evidence.x) if at is None else at
    prior = evidence.best.prior if prior is None else prior
    curvature = at.jacobian.T @ at.jacobian
    rounding = np.finfo(evidence.stage.kind).eps * np.trace(curvature) / len(curvature)
    volume = np.linalg.slogdet(curvature + rounding * np.eye(len(curvature)))[1]
    count = evidence.values
    return float(-count / 2 * np.log(max(at.value, NONE) / count) + np.log(prior[prior > 0]).sum() / 2 - volume / 2)


def thin_out(evidence: Evidence) -> Thinned:
    """Refits a polynomial with the prior on each coefficient that maximizes the evidence.

    Coefficients that the data do not support become zero (automatic relevance determination: D. J. C. MacKay, 1992;
    M. E. Tipping, "Sparse Bayesian learning and the relevance vector machine", JMLR 1:211, 2001), here with
    trajectories instead of a linear regression.

    **Arguments:** `evidence`: evidence of a fit whose field is a `Polynomial`.

    **Raises:** `Unsure` if the fit is not a least-squares optimum, or none could be found.
    """
    if not getattr(evidence.model.field, "is_polynomial", False):
        raise Unsure("only a polynomial has coefficients to leave out.")
    nonlinear, every = places_of(evidence, nonlinear_only=True), places_of(evidence, nonlinear_only=False)
    tried: list[tuple[LinearisedPoint, np.ndarray, float]] = []
    beginnings = BEGINNINGS if evidence.values < AMPLE * evidence.x.size else BEGINNINGS[:1]
    for weight in beginnings:
        prior = np.where(nonlinear, weight, np.where(every, HARDLY, 0.0))
        tried.append(settle_priors(evidence, prior, every))
    point, prior, evidence_value = max(tried, key=lambda attempt: attempt[2])
    if not math.isfinite(evidence_value):
        raise Unsure("no polynomial with fewer coefficients could be simulated.")
    x = np.where(every & ((prior >= INFINITE) | (np.abs(point.x) < NEGLIGIBLE_COEFFICIENT)), 0.0, point.x)
    with scope_of(evidence.model):
        setup = evidence.stage.programs.setup
        part, params = setup.parts[0], evidence.stage.params(x)
        return Thinned(setup.place.one(eqx.combine(params.model, part.frozen, part.static)), evidence_value)


def places_of(evidence: Evidence, *, nonlinear_only: bool) -> np.ndarray:
    """Returns a mask of the trained parameters that are coefficients of the polynomial."""
    with scope_of(evidence.model):
        numbered = evidence.stage.parameter_places().model.field
    parts = (
        [numbered.weight] if nonlinear_only else [numbered.weight, numbered.path.layer.weight, numbered.path.layer.bias]
    )
    chosen = np.zeros(evidence.x.size, bool)
    for part in parts:
        if part is not None:
            chosen[np.asarray(jnp.ravel(part)).round().astype(int)] = True
    return chosen


def settle_priors(evidence: Evidence, prior: Vector, chosen: np.ndarray) -> tuple[LinearisedPoint, Vector, float]:
    """Alternates between fits and evidence-maximizing priors; returns the last fit, its priors and log evidence."""
    x = evidence.x
    for _ in range(MOST_PRIOR_ROUNDS):
        here = descend(evidence, x, prior, STEPS_IN_ROUND)
        if not math.isfinite(here.value):
            return here, prior, -math.inf
        new = np.where(chosen, reestimate(evidence, here, prior), 0.0)
        change = np.abs(np.log(np.maximum(new, NONE) / np.maximum(prior, NONE)))[chosen].max(initial=0.0)
        x, prior = here.x, new
        if change < SETTLED_PRIORS:
            break
    here = descend(evidence, x, prior, MOST_PRIOR_ROUNDS)
    lost = not math.isfinite(here.value)
    return here, prior, -math.inf if lost else log_evidence(evidence, prior, here)


def reestimate(evidence: Evidence, here: LinearisedPoint, prior: Vector) -> Vector:
    """Updates priors by Tipping's equation 16: determinacy of each parameter over its square, in units of the noise."""
    determined = np.clip(1 - prior * np.diag(np.linalg.pinv(here.jacobian.T @ here.jacobian)), NONE, 1)
    variance = here.value / evidence.values
    return np.minimum(determined * variance / np.maximum(here.x**2, np.finfo(float).tiny), INFINITE)


def descend(evidence: Evidence, x: Vector, prior: Vector, most: int) -> LinearisedPoint:
    """Takes at most `most` damped Gauss-Newton (Levenberg-Marquardt) steps."""

    def look(x: Vector) -> LinearisedPoint:
        return evidence.at(x)._replace(prior=prior).with_prior(x)

    def is_still(old: LinearisedPoint, new: LinearisedPoint) -> bool:
        return 0 < old.value - new.value < STEPS_SETTLED * old.value

    rule = DampedSteps(LinearisedPoint.step, PRIOR_DAMPING, max_steps=most, is_still=is_still)
    return minimize(look(x), rule, look)


def evidence_of(fit: Fit) -> float | None:
    """Returns the log evidence of a fit whose field has a prior; None for others."""
    if fit.log_evidence is not None:
        return fit.log_evidence
    if fit.parameters > MOST_PARAMETERS:
        return None
    try:
        value = log_evidence(fit.evidence)
    except (Unsure, np.linalg.LinAlgError):
        return None
    return value if fit.evidence.best.prior.any() else None


def thin_polynomial(fit: Fit, level: float) -> Fit:
    """Removes coefficients that the data do not support from a polynomial fit; other fits are unchanged.

    **Arguments:** `level`: level of the bands with which both fits are simulated.
    """
    if not trait_of(fit.options.field, "is_polynomial", False) or fit.status == "failed":
        return fit
    try:
        thinned = thin_out(fit.evidence)
    except (Unsure, np.linalg.LinAlgError):
        return fit
    thin = replace(fit, model=thinned.model, log_evidence=thinned.log_evidence)
    error, before = (candidate.assess(fit.data, level).scores["train"].nrmse for candidate in (thin, fit))
    return thin if error <= NO_WORSE * before else fit

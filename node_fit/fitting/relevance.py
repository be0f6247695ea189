"""How probable a fit is, and polynomials whose coefficients each have a prior that the data choose."""

import math
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..minimize.host import DampedSteps, Damping, LinearisedPoint, minimize
from ..model.make_model import says
from ..model.neural_ode import NeuralODE
from ..runtime.placement import scope_of
from ..uncertainty.linearization import MOST_PARAMETERS, Evidence, Unsure
from .result import Fit

Vector = Float[np.ndarray, " parameter"]
# Weights of the prior on nonlinear coefficients from which the search begins; it ends in the most probable optimum.
BEGINNINGS = (1.0, 0.01, 10.0)
# So many values for each parameter leave one optimum, so that one beginning is enough.
AMPLE = 10
# The prior on linear coefficients from which it begins, and the one that counts as none, or as infinite.
HARDLY, NONE, INFINITE = 1e-6, 1e-12, 1e8
# A coefficient below this changes nothing, in scaled units of order one.
NEGLIGIBLE_COEFFICIENT = 1e-5
# Rounds of new priors, steps in each, and when priors have settled: by this change of their logarithms.
MOST_PRIOR_ROUNDS, STEPS_IN_ROUND, SETTLED_PRIORS = 40, 6, 1e-2
# Damping of steps, and the relative fall of the objective at which they end.
PRIOR_DAMPING, STEPS_SETTLED = Damping(1e-3, 1 / 4, 4.0, maximum=1e6), 1e-6
# A thinned polynomial may fit the training data worse by this factor.
NO_WORSE = 1.5


class Thinned(NamedTuple):
    """A polynomial fit, most of whose coefficients are zero, and the logarithm of its evidence."""

    model: NeuralODE
    log_evidence: float


def log_evidence(evidence: Evidence, prior: Vector | None = None, at: LinearisedPoint | None = None) -> float:
    """The logarithm of how probable the training data are under a fit's prior, up to a constant of the data.

    The Laplace approximation, with the variance of the noise at its most probable value, and flat priors on parameters
    that have none (D. J. C. MacKay, "A practical Bayesian framework for backpropagation networks", Neural Computation
    4:448, 1992). It compares fits to the same data by models with starts of the same kind.

    **Arguments:** `evidence`: of the fit. `prior`, `at`: the weight of each parameter's square, and a point; by default
    those of the fit.

    **Raises:** `Unsure` if the fit is no least-squares optimum.
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
    """The polynomial fit with a prior on each coefficient that makes the data most probable.

    Coefficients that the data do not ask for become zero (automatic relevance determination: D. J. C. MacKay, 1992;
    M. E. Tipping, "Sparse Bayesian learning and the relevance vector machine", JMLR 1:211, 2001), here with
    trajectories in the place of a linear regression.

    **Arguments:** `evidence`: of a fit whose field is a `Polynomial`.

    **Raises:** `Unsure` if the fit is no least-squares optimum, or none could be found.
    """
    if not getattr(evidence.model.field, "is_polynomial", False):
        raise Unsure("only a polynomial has coefficients to leave out.")
    nonlinear, every = places_of(evidence, nonlinear_only=True), places_of(evidence, nonlinear_only=False)
    tried: list[tuple[LinearisedPoint, np.ndarray, float]] = []
    beginnings = BEGINNINGS if evidence.values < AMPLE * evidence.x.size else BEGINNINGS[:1]
    for weight in beginnings:
        prior = np.where(nonlinear, weight, np.where(every, HARDLY, 0.0))
        tried.append(settle_priors(evidence, prior, every))
    point, prior, found = max(tried, key=lambda each: each[2])
    if not math.isfinite(found):
        raise Unsure("no polynomial with fewer coefficients could be simulated.")
    x = np.where(every & ((prior >= INFINITE) | (np.abs(point.x) < NEGLIGIBLE_COEFFICIENT)), 0.0, point.x)
    with scope_of(evidence.model):
        setup = evidence.stage.programs.setup
        part, params = setup.parts[0], evidence.stage.params(x)
        return Thinned(setup.place.one(eqx.combine(params.model, part.frozen, part.static)), found)


def places_of(evidence: Evidence, *, nonlinear_only: bool) -> np.ndarray:
    """Which of the trained parameters are coefficients of the polynomial."""
    with scope_of(evidence.model):
        numbered = evidence.stage.numbered().model.field
    parts = (
        [numbered.weight] if nonlinear_only else [numbered.weight, numbered.path.layer.weight, numbered.path.layer.bias]
    )
    chosen = np.zeros(evidence.x.size, bool)
    for part in parts:
        if part is not None:
            chosen[np.asarray(jnp.ravel(part)).round().astype(int)] = True
    return chosen


def settle_priors(evidence: Evidence, prior: Vector, chosen: np.ndarray) -> tuple[LinearisedPoint, Vector, float]:
    """Fits, and priors that make the data most probable, in turn; the last fit, its priors and its evidence."""
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
    """Tipping's equation 16: how well each parameter is determined, over its square, in units of the noise."""
    determined = np.clip(1 - prior * np.diag(np.linalg.pinv(here.jacobian.T @ here.jacobian)), NONE, 1)
    variance = here.value / evidence.values
    return np.minimum(determined * variance / np.maximum(here.x**2, np.finfo(float).tiny), INFINITE)


def descend(evidence: Evidence, x: Vector, prior: Vector, most: int) -> LinearisedPoint:
    """Damped Gauss-Newton steps (Levenberg and Marquardt's), at most so many."""

    def look(x: Vector) -> LinearisedPoint:
        return evidence.at(x)._replace(prior=prior).with_prior(x)

    def is_still(old: LinearisedPoint, new: LinearisedPoint) -> bool:
        return 0 < old.value - new.value < STEPS_SETTLED * old.value

    rule = DampedSteps(LinearisedPoint.step, PRIOR_DAMPING, max_steps=most, is_still=is_still)
    return minimize(look(x), rule, look)


def evidence_of(fit: Fit) -> float | None:
    """The logarithm of the evidence of a fit whose field has a prior; None of others."""
    if fit.log_evidence is not None:
        return fit.log_evidence
    if fit.parameters > MOST_PARAMETERS:
        return None
    try:
        found = log_evidence(fit.evidence)
    except (Unsure, np.linalg.LinAlgError):
        return None
    return found if fit.evidence.best.prior.any() else None


def thin_polynomial(fit: Fit, level: float) -> Fit:
    """A polynomial fit without the coefficients that the data do not ask for; another fit as it is.

    **Arguments:** `level`: of the bands with which both are simulated.
    """
    if not says(fit.options.field, "is_polynomial", False) or fit.status == "failed":
        return fit
    try:
        found = thin_out(fit.evidence)
    except (Unsure, np.linalg.LinAlgError):
        return fit
    thin = replace(fit, model=found.model, log_evidence=found.log_evidence)
    error, before = (each.assess(fit.data, level).scores["train"].nrmse for each in (thin, fit))
    return thin if error <= NO_WORSE * before else fit

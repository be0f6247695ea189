"""Brings the constants of equations to the optimum of their likelihood, from where the training has left them.

A training ends where its loss no longer falls by much, which may be a standard error away, and over held steps whose
errors are within a tolerance. A few steps of a trust region on the linearised problem take the rest of the way.
"""

import functools
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from ..minimize.host import LinearisedPoint
from ..model.ensemble import Ensemble
from ..model.make_model import is_equations_alone
from ..uncertainty.confidence import at
from ..uncertainty.linearization import Evidence, Information, Unsure
from .result import Fit

# An optimum that is nearer than this is found [standard errors].
AT_OPTIMUM = 0.01
# Searches, each over held steps that are refined where the last one has ended; and evaluations in each.
MAX_SEARCHES, MAX_LINEARISATIONS = 3, 50
# The relative changes of misfit, parameters and gradient at which a search ends.
EXACT = 1e-12


def bring_to_optimum(fit: Fit) -> Fit:
    """The fit with the constants of equations alone, and what is fitted beside them, at the optimum of the likelihood.

    Any other fit, or one that has no such optimum, is returned as it is.
    """
    if isinstance(fit.model, Ensemble) or not is_equations_alone(fit.model.field) or fit.status == "failed":
        return fit
    try:
        for _ in range(MAX_SEARCHES):
            information = Information(fit.evidence)
            if information.distance <= AT_OPTIMUM:
                break
            x = search_optimum(fit.evidence)
            nearer = replace(fit, model=at(information, x))
            if not nearer.evidence.misfit < fit.evidence.misfit:
                break
            fit = nearer
    except Unsure:  # No likelihood of few parameters: there is no such optimum.
        pass
    return fit


def search_optimum(evidence: Evidence) -> Float[np.ndarray, " parameter"]:
    """The parameters with the least misfit near those of the fit (a trust region: Branch, Coleman and Li, SIAM J. Sci.
    Comput. 21, 1999)."""
    from scipy.optimize import least_squares  # It takes a fifth of a second to import.

    # SciPy asks for residuals and Jacobian of the same parameters one after the other.
    @functools.lru_cache(maxsize=2)
    def linearise(key: bytes) -> LinearisedPoint:
        x = np.frombuffer(key)
        return evidence.minimised(evidence.at(x)).with_prior(x)

    with np.errstate(all="ignore"):  # A constant that nears its bound has a parameter without an end.
        end = least_squares(
            lambda x: linearise(x.tobytes()).residuals,
            evidence.x,
            lambda x: linearise(x.tobytes()).jacobian,
            x_scale="jac",
            ftol=EXACT,
            xtol=EXACT,
            gtol=EXACT,
            max_nfev=MAX_LINEARISATIONS,
        )
    return np.asarray(end.x, np.float64) if np.isfinite(end.x).all() else evidence.x

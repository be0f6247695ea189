"""Moves the constants of equations from the end of training to the optimum of their likelihood.

Training ends when its loss stops improving much, which can be a standard error away from the optimum, and uses fixed
steps with errors within a tolerance. A few trust-region steps on the linearised problem close this gap.
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

# Distance within which the optimum counts as reached [standard errors].
AT_OPTIMUM = 0.01
# Maximum number of searches, each with fixed steps refined at the end of the previous one, and evaluations per search.
MAX_SEARCHES, MAX_LINEARISATIONS = 3, 50
# Relative changes of misfit, parameters and gradient below which a search ends.
EXACT = 1e-12


def bring_to_optimum(fit: Fit) -> Fit:
    """Moves the constants of equations alone, and parameters fitted with them, to the optimum of the likelihood.

    Other fits, and fits without such an optimum, are returned unchanged.
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
    except Unsure:  # Not a likelihood of few parameters, so no such optimum exists.
        pass
    return fit


def search_optimum(evidence: Evidence) -> Float[np.ndarray, " parameter"]:
    """Finds the parameters with the smallest misfit near those of the fit (trust region: Branch, Coleman and Li, SIAM
    J. Sci. Comput. 21, 1999)."""
    from scipy.optimize import least_squares  # The import takes a fifth of a second.

    # SciPy requests residuals and Jacobian for the same parameters separately.
    @functools.lru_cache(maxsize=2)
    def linearise(key: bytes) -> LinearisedPoint:
        x = np.frombuffer(key)
        return evidence.minimised_residuals(evidence.at(x)).with_prior(x)

    with np.errstate(all="ignore"):  # Parameters of constants near their bounds diverge.
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

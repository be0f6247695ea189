"""An ensemble drawn from the Laplace approximation of a fit's posterior; its spread is what the data leave open."""

import equinox as eqx
import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from ..model.ensemble import Ensemble
from ..model.neural_ode import NeuralODE
from ..runtime.precision import scope
from .evidence import Unsure
from .information import Information

# Without a prior, the weakest direction is as strong as this share of the strongest, or it would not stay near the fit.
WEAK = 1e-3
# Members lie this much closer to the fit than draws of the posterior, where predictions are linear in the parameters:
# the approximation is the posterior of the linearised model, and whole steps would leave where it holds (A. Immer,
# M. Korzepa and M. Bauer, "Improving predictions of Bayesian neural nets via local linearization", AISTATS 2021).
CLOSER = 100.0


def laplace(information: Information, size: int, seed: int, train: Dataset, validation: Dataset | None) -> Ensemble:
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

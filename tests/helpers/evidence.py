"""Evidence of models linear in their parameters, without a fit: their intervals are those of linear regression."""

from types import SimpleNamespace

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from node_fit.likelihood.losses import LEAST_SQUARES
from node_fit.model.fields.known import Constants
from node_fit.runtime.placement import scope
from node_fit.training.programs import LinearisedStage, SumOfSquares
from node_fit.uncertainty.linearization import Evidence, Place


class Named(eqx.Module):
    """A model that has nothing but constants."""

    named: Constants
    start: SimpleNamespace = eqx.field(static=True)

    def constants(self):
        return self.named.as_dict()


class LinearStage(LinearisedStage):
    """The stage of `LinearEvidence`, which needs no programs and no held steps."""

    x, kind, at = None, np.float64, None

    def __init__(self, x, at):
        self.x, self.at = x, at

    def refine_at(self, points):
        return self


class LinearEvidence(Evidence):
    """Of residuals `design @ x - ys` of one state, at their least squares.

    - `bounds`: of each constant by its name, one for each of the first columns; other columns are other numbers.
    - `prior`: the weight of each parameter's square. `sigma`: the standard deviation of the noise, if it is given.
    """

    def __init__(self, design, ys, bounds, *, prior=0.0, sigma=None, loss=LEAST_SQUARES, spread=None):
        self.design, ys = np.asarray(design, float), np.asarray(ys, float)
        self.weights = np.broadcast_to(np.asarray(prior, float), self.design.shape[1:])
        whole = np.concatenate([self.design, np.diag(np.sqrt(self.weights))])
        x = np.linalg.lstsq(whole, np.concatenate([ys, np.zeros(len(self.weights))]), rcond=1e-12)[0]
        self.stage = LinearStage(x, self.at)
        self.mask = np.ones((1, len(ys)), bool)
        self.deviation, self.measured = np.ones((1, len(ys))), ys[None]
        self.centered, self.weight = (ys - ys.mean())[None], np.ones((1, len(ys)))
        self.states, self.kind, self.too_many, self.optimizer = ("x",), "x64", None, None
        self.loss, self.spread = loss, None if spread is None else np.full((1, len(ys)), spread)
        self.given = sigma is not None
        self.noise = "given" if self.given and not loss.robust else "estimated"
        self.unit = 1.0 if sigma is None else sigma
        self.constants = [Place(name, at, pair, 1.0) for at, (name, pair) in enumerate(bounds.items())]
        scales = tuple(1.0 for _ in bounds)
        with scope("x64"):
            named = Constants(jnp.asarray(x[: len(bounds)]), tuple(bounds), tuple(bounds.values()), scales)
        self.model = Named(named, SimpleNamespace(is_first_measurement=False))

    redrawn = None

    def at(self, x):
        return SumOfSquares((self.design @ x - self.measured[0])[None], self.design, self.weights, 0)

"""The posterior density of a fit in unconstrained coordinates, as a traceable JAX function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize

from ..data.domains import from_line, slope
from ..likelihood.losses import LEAST_SQUARES
from ..objectives.objective import Target
from ..petab.densities import from_scale
from ..petab.objective import Objective
from ..runtime.placement import scope
from ..runtime.validation import is_sequence
from ..training.decisions import pad_to_room
from ..training.step import StageLoss
from ..uncertainty.confidence import corners
from ..uncertainty.linearization import Evidence, Information, Place, Unsure

Vector = Float[Array, " parameter"]
Host = Float[np.ndarray, "..."]
# Maximum number of parameters for forward-mode derivatives from the solver's sensitivities.
MAX_FORWARD = 64
# Standard errors from the fit within which held steps meet the tolerance.
REFINED_REACH = 3.0
# Minimum distance of a PEtab problem's initial guess from its bounds, as a share of their distance.
NEAREST_SHARE = 0.05
# Negative log density that the search uses for a failed solve.
FAILED = 1e10


class Density(NamedTuple):
    """A posterior density in coordinates in which it is approximately standard normal.

    - `log`: the logarithm of the density at a vector of coordinates, up to a constant; traced, with its gradient.
    - `size`: the number of coordinates.
    - `parameters`: returns the parameters for an array of coordinates, shape `(..., size)`, on the host.
    - `values`: returns the constants by name, in the user's units, from an array of parameters.
    - `prior`: the prior in words.
    - `on_cores`: whether each chain runs on its own core; in a batch, all adaptive simulations would take the steps of
      the slowest one.
    """

    log: Callable[[Vector], Float[Array, ""]]
    size: int
    parameters: Callable[[Host], Host]
    values: Callable[[Host], dict[str, Host]]
    prior: str
    on_cores: bool = False


@dataclass(frozen=True)
class ConstantPrior:
    """A prior density of a constant, in the user's units.

    **Arguments:** `kind`: `normal`, `lognormal` or `uniform`. `first`, `second`: mean and standard deviation (of the
    logarithm for `lognormal`), or lower and upper bound.
    """

    kind: str
    first: float
    second: float

    def log(self, value: Array) -> Array:
        if self.kind == "uniform":
            return jnp.where((value >= self.first) & (value <= self.second), 0.0, -jnp.inf)
        if self.kind == "normal":
            return -(((value - self.first) / self.second) ** 2) / 2
        logs = jnp.log(jnp.maximum(value, jnp.finfo(value.dtype).tiny))
        return -(((logs - self.first) / self.second) ** 2) / 2 - logs


def read_priors(given: Mapping[str, Sequence[object]] | None, names: Sequence[str]) -> dict[str, ConstantPrior]:
    """Reads priors by constant, from `{"k": ("lognormal", -1.0, 0.5)}`.

    **Raises:** `ValueError` that names the entry, the rule and valid alternatives.
    """
    priors: dict[str, ConstantPrior] = {}
    for name, entry in (given or {}).items():
        if name not in names:
            raise ValueError(f"prior names {name!r}, which is no constant of the fit; they are {', '.join(names)}.")
        match list(entry) if is_sequence(entry) else []:
            case ["uniform", float() | int() as lower, float() | int() as upper] if lower < upper:
                priors[name] = ConstantPrior("uniform", float(lower), float(upper))
            case [("normal" | "lognormal") as kind, float() | int() as mean, float() | int() as sd] if sd > 0:
                priors[name] = ConstantPrior(str(kind), float(mean), float(sd))
            case _:
                raise ValueError(
                    f"prior of {name!r} must be ('normal', mean, sd), ('lognormal', mean of the logarithm, sd) or "
                    f"('uniform', lower, upper), got {entry!r:.80}."
                )
    return priors


def density_of_fit(evidence: Evidence, given: Mapping[str, Sequence[object]] | None) -> Density:
    """Returns the posterior of all trained parameters of a fit.

    The likelihood is that of the fit. A noise scale that is neither specified nor a constant is integrated out, with a
    prior density of one over the scale (Gelman et al., Bayesian Data Analysis, 2013, section 14.2). Constants have the
    requested prior, or a flat prior in the coordinates of the fit, which are logarithms for positive ones. Weights have
    the prior of the ridge.

    **Raises:** `Unsure` if neither the data nor a prior determine some directions.
    """
    if evidence.spread is not None:
        raise Unsure(
            "a loss with a scale that is estimated beforehand is no likelihood to draw from; fit the scale, too: "
            "data.sigma=additive."
        )
    information = Information(evidence)
    priors = read_priors(given, [place.name for place in evidence.constants])
    values, vectors = information.spectrum
    if len(values) < len(evidence.x):
        raise Unsure("the data leave directions of the parameters open, which have no posterior; fix a constant.")
    root = np.sqrt(information.variance) * (vectors.T / values) / information.columns[:, None]
    evidence.stage = evidence.stage.compile().refine_at(corners(information, REFINED_REACH))
    log = log_posterior(evidence, {place: priors[place.name] for place in evidence.constants if place.name in priors})
    center = jnp.asarray(evidence.x)
    matrix = jnp.asarray(root)

    def log_of(coordinates: Vector) -> Float[Array, ""]:
        return log(center + matrix @ coordinates)

    def parameters(coordinates: Host) -> Host:
        return evidence.x + coordinates @ root.T

    def constants(x: Host) -> dict[str, Host]:
        return {place.name: from_line(x[..., place.index] * place.scale, place.bounds) for place in evidence.constants}

    flat = [place.name for place in evidence.constants if place.name not in priors]
    descriptions = [f"{name} {prior.kind}({prior.first:g}, {prior.second:g})" for name, prior in priors.items()]
    descriptions += [f"{', '.join(flat)} flat, positive ones in their logarithm"] if flat else []
    return Density(log_of, len(evidence.x), parameters, constants, "; ".join(descriptions))


def log_prior_of_constants(priors: Mapping[Place, ConstantPrior], x: Vector) -> Float[Array, ""]:
    """Returns the log prior density of constants at their coordinates in a flat vector of parameters."""
    total = jnp.zeros((), x.dtype)
    for place, prior in priors.items():
        value = jnp.asarray(from_line(x[place.index] * place.scale, place.bounds))
        total = total + prior.log(value) - jnp.log(jnp.asarray(slope(value, place.bounds)))
    return total


def log_posterior(evidence: Evidence, priors: Mapping[Place, ConstantPrior]) -> Callable[[Vector], Float[Array, ""]]:
    """Returns the log posterior density as a function of a flat vector of parameters."""
    stage, programs = evidence.stage, evidence.stage.programs
    model_static, stage_static = programs.static
    data = eqx.combine(programs.own, programs.shared)
    trained = eqx.combine(data.stage, stage_static)
    objective = replace(trained.objective, residual_loss=evidence.likelihood or LEAST_SQUARES)
    grid, progress = pad_to_room(programs, stage.state.grid), jnp.asarray(stage.state.progress)
    target = Target(data.batch, None if grid is None else jnp.asarray(grid), progress)
    squares = StageLoss(model_static, data.frozen, objective, target, stage.params(stage.x))
    count = float(evidence.mask.sum())
    is_marginal = evidence.noise == "estimated" and evidence.observations is None

    def log_likelihood(mean_square: Array) -> Array:
        if is_marginal:
            return -count / 2 * jnp.log(mean_square)
        return -count / (2 * evidence.unit**2) * mean_square

    def look(x: Vector) -> tuple[Array, Array]:
        """Returns the log density and its gradient; minus infinity if a solve fails."""
        linearization = squares.linearise(x)
        mean_square = linearization.residuals @ linearization.residuals + x @ (linearization.prior * x)
        by_square = 2 * (linearization.jacobian.T @ linearization.residuals + linearization.prior * x)
        value, factor = jax.value_and_grad(log_likelihood)(mean_square)
        fails = (linearization.failed > 0) | ~jnp.isfinite(value) | ~jnp.isfinite(by_square).all()
        return jnp.where(fails, -jnp.inf, value), jnp.where(fails, 0.0, factor * by_square)

    @jax.custom_vjp
    def forward(x: Vector) -> Array:
        return look(x)[0]

    forward.defvjp(look, lambda gradient, weight: (gradient * weight,))

    def reverse(x: Vector) -> Array:
        loss = squares(stage.params(cast(Host, x)))
        return jnp.where(loss.failed > 0, -jnp.inf, log_likelihood(loss.value))

    likelihood = forward if len(evidence.x) <= MAX_FORWARD else reverse
    return lambda x: likelihood(x) + log_prior_of_constants(priors, x)


def density_of_problem(objective: Objective, x: Host) -> Density:
    """Returns the posterior of a PEtab problem's estimated parameters, with the priors of its table.

    A parameter without a prior is uniform between its bounds, on its scale. Its coordinate is the logit of its position
    between the bounds.

    **Arguments:** `x`: the parameters near the optimum, on their scales.
    """
    lower, upper = objective.bounds
    if not (np.isfinite(lower) & np.isfinite(upper)).all():
        name = objective.names[int(np.argmin(np.isfinite(lower) & np.isfinite(upper)))]
        raise ValueError(f"{name!r} has no finite bounds on its scale, so it has no posterior; give it bounds.")
    shares, width = np.clip((x - lower) / (upper - lower), NEAREST_SHARE, 1 - NEAREST_SHARE), upper - lower

    def log_of_logits(z: Vector) -> Float[Array, ""]:
        point = jnp.asarray(lower) + jnp.asarray(width) * jax.nn.sigmoid(z)
        volume = jnp.sum(jax.nn.log_sigmoid(z) + jax.nn.log_sigmoid(-z))
        value = objective.log_likelihood(point) + objective.trace_log_prior(point) + volume
        return jnp.where(jnp.isfinite(value), value, -jnp.inf)

    with scope("x64"):
        center = find_mode(log_of_logits, np.log(shares / (1 - shares)))
    shares = 1 / (1 + np.exp(-center))
    slopes = width * shares * (1 - shares)
    # The curvature of the coordinates' own density bounds directions that the data leave open.
    information = objective.fisher_information(lower + width * shares) * np.outer(slopes, slopes)
    information += np.diag(2 * shares * (1 - shares))
    root = np.linalg.inv(np.linalg.cholesky(information)).T

    def log_of(coordinates: Vector) -> Float[Array, ""]:
        return log_of_logits(jnp.asarray(center) + jnp.asarray(root) @ coordinates)

    def parameters(coordinates: Host) -> Host:
        return lower + width / (1 + np.exp(-(center + coordinates @ root.T)))

    def values(x: Host) -> dict[str, Host]:
        scales = [parameter.scale for parameter in objective.estimated]
        with scope("x64"):
            return {
                name: np.asarray(from_scale(jnp.asarray(x[..., index]), scale))
                for index, (name, scale) in enumerate(zip(objective.names, scales, strict=True))
            }

    prior = "as in the problem's table; others uniform between their bounds"
    return Density(log_of, len(x), parameters, values, prior, on_cores=True)


def find_mode(log: Callable[[Vector], Float[Array, ""]], start: Host) -> Host:
    """Finds the mode of a density near a start by BFGS; an optimum at a bound is no mode in unbounded coordinates."""
    gradient = jax.jit(jax.value_and_grad(log))

    def falls(z: Host) -> tuple[float, Host]:
        value, slope = gradient(jnp.asarray(z))
        fails = not (np.isfinite(value) and np.isfinite(slope).all())
        return (FAILED, np.zeros_like(z)) if fails else (-float(value), -np.asarray(slope))

    return np.asarray(minimize(falls, start, jac=True, method="BFGS").x)

"""The posterior density of a population: of its parameters and the effects of its subjects together."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data.domains import from_line
from ..population.fit import PopulationFit
from ..population.likelihood import Expansion, Population, Structure, contract, extrapolate
from ..population.measurements import Measurements, measurement_misfit
from ..population.subjects import expand_predictions
from ..runtime.placement import scope
from ..uncertainty.linearization import Place, Unsure
from .density import REFINED_REACH, Density, Host, Vector, log_prior_of_constants, read_priors

# Subjects' own constants are drawn if the data leave on average at most this share of the effects' variances open;
# otherwise the effects, in units of their distribution (Papaspiliopoulos, Roberts and Sköld, Stat. Sci. 22, 2007).
CENTRED_SHARE = 0.5


def density_of_population(fit: PopulationFit, given: Mapping[str, Sequence[object]] | None) -> Density:
    """Returns the posterior of a population's parameters and its subjects' effects, without approximating the integral.

    Constants of a typical subject have the requested prior, or a flat one on the scale on which their effects are
    normal. Standard deviations of effects have a uniform prior (Gelman, Bayesian Analysis 1, 2006), those of the noise
    a flat one in their logarithm. Weights of a network have the prior of the fit. Effects are in units of their
    distribution.

    **Raises:** `Unsure` if the variance of an effect has gone to zero, or the objective has no minimum.
    """
    structure, x = fit.structure, fit.optimum.x
    fixed, spread, _ = structure.ends
    places = {
        c.name: Place(c.name, index, c.bounds, 1.0) for index, c in enumerate(structure.coordinates) if not c.is_weight
    }
    priors = {places[name]: prior for name, prior in read_priors(given, list(places)).items()}
    gone = [
        name for name, is_identified in zip(fit.effects, fit.is_identified[fixed:], strict=False) if not is_identified
    ]
    if gone or fit.unidentified_occasions:
        name, key = (gone[0], "random") if gone else (fit.unidentified_occasions[0], "population.occasions")
        raise Unsure(f"the variance of {name} has gone to zero, which leaves nothing to draw; leave it out of {key}.")
    root = root_of_estimates(fit)
    around = Around.of(fit)
    modes, effects = around.modes, around.effects
    problem = refine_steps(fit.problem, x, modes, root, effects)
    deviations = list(range(fixed, fixed + structure.covariances.effects))
    deviations += list(range(fixed + structure.covariances.parameters, spread))

    def log_of(coordinates: Vector) -> Float[Array, ""]:
        point = jnp.asarray(x) + jnp.asarray(root) @ coordinates[: len(x)]
        z, volume = around.place(point, coordinates[len(x) :])
        value = log_joint(problem, point, z) + volume + point[np.array(deviations, int)].sum()
        value = value - (point[np.array(structure.weights, int)] ** 2).sum() / (2 * structure.weight_scale**2)
        value = value + log_prior_of_constants(priors, point)
        return jnp.where(jnp.isfinite(value), value, -jnp.inf)

    def parameters(coordinates: Host) -> Host:
        points = x + coordinates[..., : len(x)] @ root.T
        flat = points.reshape(-1, len(x)), coordinates[..., len(x) :].reshape(-1, modes.size)
        with scope("x64"):
            z = np.asarray(jax.vmap(around.place)(*map(jnp.asarray, flat))[0])
        return np.concatenate([points, z.reshape(*points.shape[:-1], -1)], axis=-1)

    def values(drawn: Host) -> dict[str, Host]:
        constants = {
            name: np.asarray(from_line(drawn[..., place.index], place.bounds)) for name, place in places.items()
        }
        return constants | describe_spread(structure, drawn[..., : len(x)])

    descriptions = [f"{place.name} {prior.kind}({prior.first:g}, {prior.second:g})" for place, prior in priors.items()]
    descriptions += ["standard deviations of effects uniform, constants and noise flat where the fit has them"]
    return Density(log_of, len(x) + modes.size, parameters, values, "; ".join(descriptions), on_cores=True)


class Around(NamedTuple):
    """Coordinates of the effects around their modes at an optimum.

    - `modes`, `effects`: the modes there, and roots of the effects' conditional covariances given the measurements.
    - `is_centred`: whether coordinates fix a subject's constants, instead of its effects, as the parameters change.
    """

    structure: Structure
    x: Float[np.ndarray, " parameter"]
    modes: Float[np.ndarray, "subject effect"]
    effects: Float[np.ndarray, "subject effect effect"]
    is_centred: bool

    @staticmethod
    def of(fit: PopulationFit) -> "Around":
        x, modes, count = fit.optimum.x, fit.optimum.z, fit.structure.covariances.effects
        covariances = fit.problem.spread_of_modes(x, modes)
        open_share = np.diagonal(covariances, axis1=1, axis2=2)[:, :count].mean()
        return Around(fit.structure, x, modes, np.linalg.cholesky(covariances), bool(open_share < CENTRED_SHARE))

    def place(self, x: Vector, drawn: Vector) -> tuple[Float[Array, "subject effect"], Float[Array, ""]]:
        """Returns the effects at parameters, in units of their distribution, and their coordinates' log volume."""
        z = jnp.asarray(self.modes)
        z = z + contract("sef,sf->se", jnp.asarray(self.effects), drawn.reshape(z.shape))
        if not self.is_centred:
            return z, jnp.zeros((), x.dtype)
        (fixed, _, _), indices, covariances = (
            self.structure.ends,
            np.array(self.structure.effects),
            self.structure.covariances,
        )
        center = jnp.asarray(self.x)
        first, now = (
            covariances.factor(parameters[fixed : fixed + covariances.parameters]) for parameters in (center, x)
        )
        effects = z[:, : covariances.effects] @ first.T + (center[indices] - x[indices])[None]
        effects = jax.scipy.linalg.solve_triangular(now, effects.T, lower=True).T
        volume = -len(z) * x[fixed : fixed + covariances.effects].sum()
        return jnp.concatenate([effects, z[:, covariances.effects :]], axis=1), volume


def log_joint(
    problem: Population, x: Float[Array, " parameter"], z: Float[Array, "subject effect"]
) -> Float[Array, ""]:
    """Returns the log joint density of all measurements and effects, up to a constant.

    Predictions are linearized in the subjects' constants around their current values, so that the gradient takes one
    forward simulation.
    """
    subjects, structure = problem.subjects, problem.structure
    parts, noise = structure.parts(x), structure.noise
    phi = parts.theta[None, None] + contract("rce,se->src", parts.factor, z)
    current = jax.lax.stop_gradient(phi)
    counts, batch = jnp.asarray(subjects.counts), subjects.batch
    expanded = expand_predictions(1, counts, subjects.model, subjects.coordinates, batch, current[subjects.places])
    expansion = Expansion(*(jax.lax.stop_gradient(subjects.arrange(part)) for part in expanded))

    def misfit(expansion: Expansion, delta: Array, seen: Measurements) -> Array:
        return measurement_misfit(noise, parts.noise, noise.transform(extrapolate(expansion, delta)), seen)

    return -(jax.vmap(misfit)(expansion, phi - current, subjects.seen.arrays).sum() + (z**2).sum()) / 2


def root_of_estimates(fit: PopulationFit) -> Float[np.ndarray, "parameter parameter"]:
    """Returns a root of the parameters' covariance; network weights with an unknown one have that of their prior."""
    hessian = np.array(fit.hessian)
    weights = np.zeros(len(hessian), bool)
    weights[list(fit.structure.weights)] = True
    lacking = weights & ~np.isfinite(hessian).all(axis=1)
    hessian[lacking], hessian[:, lacking] = 0.0, 0.0
    hessian[lacking, lacking] = 2 / fit.structure.weight_scale**2
    if not np.isfinite(hessian).all() or np.linalg.eigvalsh(hessian)[0] <= 0:
        raise Unsure("the objective has no minimum in some direction, so there is no posterior; use fewer effects.")
    return np.linalg.inv(np.linalg.cholesky(hessian / 2)).T


def refine_steps(problem: Population, x: Host, modes: Host, root: Host, effects: Host) -> Population:
    """Returns the population with solver steps that meet the tolerance over the range of the draws."""
    for axis in (*root.T, *-root.T):
        problem = problem.refine_steps(x + REFINED_REACH * axis, modes)
    for side in (*np.eye(modes.shape[1]), *-np.eye(modes.shape[1])):
        problem = problem.refine_steps(x, modes + REFINED_REACH * effects @ side)
    return problem


def describe_spread(structure: Structure, x: Float[np.ndarray, "... parameter"]) -> dict[str, Host]:
    """Returns variances and covariances of the effects, those of occasions, and the noise, from parameters."""
    flat = x.reshape(-1, x.shape[-1])
    names = [structure.coordinates[index].name for index in structure.effects]
    with scope("x64"):
        factors = np.asarray(jax.vmap(lambda point: structure.parts(point).factor[0])(jnp.asarray(flat)))
    factors = factors[:, list(structure.effects), : structure.covariances.effects]
    covariance = factors @ factors.swapaxes(1, 2)
    spread = {f"variance_{name}": covariance[:, index, index] for index, name in enumerate(names)}
    spread |= {f"covariance_{names[i]}_{names[j]}": covariance[:, i, j] for i, j in structure.covariances.pairs}
    begin = structure.ends[0] + structure.covariances.parameters
    for index, coordinate in enumerate(structure.occasions, start=begin):
        spread[f"occasion_variance_{structure.coordinates[coordinate].name}"] = np.exp(2 * flat[:, index])
    for index, name in enumerate(structure.noise.names, start=structure.ends[1]):
        spread[name.replace(".", "_")] = np.exp(flat[:, index])
    return {name: values.reshape(x.shape[:-1]) for name, values in spread.items()}

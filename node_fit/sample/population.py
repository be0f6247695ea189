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

# Subjects' own constants are drawn where the data leave at most this share of the effects' variances open, in the mean;
# else the effects in units of their distribution (Papaspiliopoulos, Roberts and Sköld, Stat. Sci. 22, 2007).
CENTRED_SHARE = 0.5


def density_of_population(fit: PopulationFit, given: Mapping[str, Sequence[object]] | None) -> Density:
    """The posterior of a population's parameters and its subjects' effects, without an approximation of the integral.

    Constants of a typical subject have a flat prior on the line where their effects are normal, or the prior that is
    given; standard deviations of effects are uniform (Gelman, Bayesian Analysis 1, 2006), those of the noise flat in
    their logarithm; weights of a network have the prior of the fit. Effects are in units of their distribution.

    **Raises:** `Unsure` if the variance of an effect has gone to zero, or the objective has no minimum.
    """
    structure, x = fit.structure, fit.optimum.x
    fixed, spread, _ = structure.ends
    places = {c.name: Place(c.name, at, c.bounds, 1.0) for at, c in enumerate(structure.coordinates) if not c.is_weight}
    priors = {places[name]: prior for name, prior in read_priors(given, list(places)).items()}
    gone = [name for name, told in zip(fit.effects, fit.told[fixed:], strict=False) if not told]
    if gone or fit.untold_occasions:
        name, key = (gone[0], "random") if gone else (fit.untold_occasions[0], "population.occasions")
        raise Unsure(f"the variance of {name} has gone to zero, which leaves nothing to draw; leave it out of {key}.")
    root = root_of_estimates(fit)
    around = Around.of(fit)
    modes, effects = around.modes, around.effects
    problem = refine_steps(fit.problem, x, modes, root, effects)
    deviations = list(range(fixed, fixed + structure.covariances.effects))
    deviations += list(range(fixed + structure.covariances.parameters, spread))

    def log_of(coordinates: Vector) -> Float[Array, ""]:
        at = jnp.asarray(x) + jnp.asarray(root) @ coordinates[: len(x)]
        z, volume = around.place(at, coordinates[len(x) :])
        value = log_joint(problem, at, z) + volume + at[np.array(deviations, int)].sum()
        value = value - (at[np.array(structure.weights, int)] ** 2).sum() / (2 * structure.weight_scale**2)
        value = value + log_prior_of_constants(priors, at)
        return jnp.where(jnp.isfinite(value), value, -jnp.inf)

    def parameters(coordinates: Host) -> Host:
        at = x + coordinates[..., : len(x)] @ root.T
        flat = at.reshape(-1, len(x)), coordinates[..., len(x) :].reshape(-1, modes.size)
        with scope("x64"):
            z = np.asarray(jax.vmap(around.place)(*map(jnp.asarray, flat))[0])
        return np.concatenate([at, z.reshape(*at.shape[:-1], -1)], axis=-1)

    def values(drawn: Host) -> dict[str, Host]:
        constants = {
            name: np.asarray(from_line(drawn[..., place.index], place.bounds)) for name, place in places.items()
        }
        return constants | describe_spread(structure, drawn[..., : len(x)])

    said = [f"{place.name} {prior.kind}({prior.first:g}, {prior.second:g})" for place, prior in priors.items()]
    said += ["standard deviations of effects uniform, constants and noise flat where the fit has them"]
    return Density(log_of, len(x) + modes.size, parameters, values, "; ".join(said), on_cores=True)


class Around(NamedTuple):
    """Coordinates of the effects around their modes at an optimum.

    - `modes`, `effects`: the modes there, and roots of the effects' covariances given the measurements.
    - `is_centred`: whether a coordinate keeps a subject's constants, and not its effects, as the parameters change.
    """

    structure: Structure
    x: Float[np.ndarray, " parameter"]
    modes: Float[np.ndarray, "subject effect"]
    effects: Float[np.ndarray, "subject effect effect"]
    is_centred: bool

    @staticmethod
    def of(fit: PopulationFit) -> "Around":
        x, modes, own = fit.optimum.x, fit.optimum.z, fit.structure.covariances.effects
        covariances = fit.problem.spread_of_modes(x, modes)
        left = np.diagonal(covariances, axis1=1, axis2=2)[:, :own].mean()
        return Around(fit.structure, x, modes, np.linalg.cholesky(covariances), bool(left < CENTRED_SHARE))

    def place(self, x: Vector, drawn: Vector) -> tuple[Float[Array, "subject effect"], Float[Array, ""]]:
        """The effects at parameters, in units of their distribution, and the logarithm of their coordinates' volume."""
        z = jnp.asarray(self.modes)
        z = z + contract("sef,sf->se", jnp.asarray(self.effects), drawn.reshape(z.shape))
        if not self.is_centred:
            return z, jnp.zeros((), x.dtype)
        (fixed, _, _), at, covariances = (
            self.structure.ends,
            np.array(self.structure.effects),
            self.structure.covariances,
        )
        there = jnp.asarray(self.x)
        first, now = (covariances.factor(each[fixed : fixed + covariances.parameters]) for each in (there, x))
        own = z[:, : covariances.effects] @ first.T + (there[at] - x[at])[None]
        own = jax.scipy.linalg.solve_triangular(now, own.T, lower=True).T
        volume = -len(z) * x[fixed : fixed + covariances.effects].sum()
        return jnp.concatenate([own, z[:, covariances.effects :]], axis=1), volume


def log_joint(
    problem: Population, x: Float[Array, " parameter"], z: Float[Array, "subject effect"]
) -> Float[Array, ""]:
    """The logarithm of the density of all measurements and effects, up to a constant.

    Predictions are linear around where they are, in the subjects' constants, so that the derivative is that of one
    simulation forward.
    """
    subjects, structure = problem.subjects, problem.structure
    parts, noise = structure.parts(x), structure.noise
    phi = parts.theta[None, None] + contract("rce,se->src", parts.factor, z)
    here = jax.lax.stop_gradient(phi)
    counts, batch = jnp.asarray(subjects.counts), subjects.batch
    expanded = expand_predictions(1, counts, subjects.model, subjects.coordinates, batch, here[subjects.places])
    expansion = Expansion(*(jax.lax.stop_gradient(subjects.arrange(part)) for part in expanded))

    def misfit(expansion: Expansion, delta: Array, seen: Measurements) -> Array:
        return measurement_misfit(noise, parts.noise, noise.transform(extrapolate(expansion, delta)), seen)

    return -(jax.vmap(misfit)(expansion, phi - here, subjects.seen.arrays).sum() + (z**2).sum()) / 2


def root_of_estimates(fit: PopulationFit) -> Float[np.ndarray, "parameter parameter"]:
    """A root of the covariance of the parameters; of a network's weights, that of their prior where it is not known."""
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
    """The population with solver steps that meet the tolerance where draws may lie."""
    for axis in (*root.T, *-root.T):
        problem = problem.settled(x + REFINED_REACH * axis, modes)
    for side in (*np.eye(modes.shape[1]), *-np.eye(modes.shape[1])):
        problem = problem.settled(x, modes + REFINED_REACH * effects @ side)
    return problem


def describe_spread(structure: Structure, x: Float[np.ndarray, "... parameter"]) -> dict[str, Host]:
    """Variances and covariances of the effects, those of occasions, and the noise, of parameters."""
    flat = x.reshape(-1, x.shape[-1])
    names = [structure.coordinates[at].name for at in structure.effects]
    with scope("x64"):
        factors = np.asarray(jax.vmap(lambda each: structure.parts(each).factor[0])(jnp.asarray(flat)))
    factors = factors[:, list(structure.effects), : structure.covariances.effects]
    covariance = factors @ factors.swapaxes(1, 2)
    found = {f"variance_{name}": covariance[:, at, at] for at, name in enumerate(names)}
    found |= {f"covariance_{names[i]}_{names[j]}": covariance[:, i, j] for i, j in structure.covariances.pairs}
    begin = structure.ends[0] + structure.covariances.parameters
    for at, coordinate in enumerate(structure.occasions, start=begin):
        found[f"occasion_variance_{structure.coordinates[coordinate].name}"] = np.exp(2 * flat[:, at])
    for at, name in enumerate(structure.noise.names, start=structure.ends[1]):
        found[name.replace(".", "_")] = np.exp(flat[:, at])
    return {name: values.reshape(x.shape[:-1]) for name, values in found.items()}

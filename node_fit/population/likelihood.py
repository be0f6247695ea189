"""The likelihood of a population, with the effects of each subject integrated out, and its exact gradient.

The integral over a subject's effects is approximated at their mode. It depends on the model only through the
predictions there and their derivatives in the subject's constants. A Taylor polynomial of the predictions therefore
gives the value and, with the implicit derivative of the mode, the gradient, without another simulation.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..data.batch import Batch
from ..minimize.compiled import DampedSearch, search_damped
from ..minimize.host import Damping
from ..model.neural_ode import NeuralODE
from ..runtime.placement import scope
from .effects import Coordinate, Covariances
from .measurements import Measurements, measurement_misfit, weights
from .noise import ResidualNoise
from .subjects import Expansion, Subjects, compile_program, expand_predictions, with_constants

# First-order conditional estimation, with and without interaction of effects and noise, at effects of zero, Laplace's
# approximation, and adaptive Gauss-Hermite quadrature (Pinheiro and Bates, J. Comput. Graph. Stat. 4, 1995; Wang,
# J. Pharmacokinet. Pharmacodyn. 34, 2007).
# SAEM estimates from draws (`saem.py`); its objective and modes are those of `focei`.
Method = Literal["focei", "foce", "fo", "laplace", "quadrature", "saem"]
POPULATION_METHODS: tuple[Method, ...] = get_args(Method)
# Settings of the mode search, which takes one last step after a gain in half the misfit below `MODE_GAIN`.
MODE_DAMPING, MODE_EVALUATIONS, MODE_GAIN = Damping(1e-3, 0.1, 5.0, 1e-12, 1e8), 40, 1e-8
# Upper bound of the negative log standard deviation of a measurement.
ROOM = 50.0
# Maximum number of quadrature nodes per subject.
MAX_QUADRATURE_NODES = 20_000


class Parameters(NamedTuple):
    """The parameters of a population.

    - `theta`: coordinates of a typical subject. `factor`: matrix from effects to coordinates of each record: the
      Cholesky factor of the subject's effects, then the standard deviations of the effects of occasions.
    - `noise`: logarithms of the parameters of the noise.
    """

    theta: Float[Array, " coordinate"]
    factor: Float[Array, "record coordinate effect"]
    noise: Float[Array, " noise"]

    def phi(self, z: Float[Array, " effect"]) -> Float[Array, "record coordinate"]:
        """Computes the coordinates of a subject's records from its standardized effects, which are standard normal."""
        return self.theta[None] + self.factor @ z


@dataclass(frozen=True)
class Structure:
    """The structure of a population without its data; static in compiled programs.

    - `coordinates`: the fitted constants and weights. `covariances`: the structure of the covariance of the effects, in
      the order of the coordinates that have a kind.
    - `weight_scale`: the standard deviation of the normal prior of weights.
    - `records`: maximum number of records of a subject. `has_occasions`: whether subjects can have several.
    """

    coordinates: tuple[Coordinate, ...]
    covariances: Covariances
    noise: ResidualNoise
    weight_scale: float = math.inf
    records: int = 1
    has_occasions: bool = False

    @property
    def effects(self) -> tuple[int, ...]:
        """The coordinates that have an effect."""
        return tuple(at for at, c in enumerate(self.coordinates) if c.kind is not None)

    @property
    def weights(self) -> tuple[int, ...]:
        """The coordinates that are weights of a network."""
        return tuple(at for at, c in enumerate(self.coordinates) if c.is_weight)

    @property
    def occasions(self) -> tuple[int, ...]:
        """The coordinates that differ between the records of a subject."""
        return tuple(at for at, c in enumerate(self.coordinates) if c.occasion_variance is not None)

    @property
    def total_effects(self) -> int:
        """The number of a subject's effects, including those of its occasions."""
        return self.covariances.effects + self.records * len(self.occasions)

    def first_spread(self) -> Float[np.ndarray, " parameter"]:
        """Returns the parameters of the effects' distribution before the fit."""
        effects = self.covariances.first([c.variance for c in self.coordinates if c.kind is not None])
        occasions = [c.occasion_variance for c in self.coordinates if c.occasion_variance is not None]
        return np.concatenate([effects, 0.5 * np.log(occasions)])

    def prior(self, x: Float[np.ndarray, " parameter"]) -> tuple[float, Float[np.ndarray, " parameter"]]:
        """Computes minus twice the log-prior of the weights, without its constants, and its gradient."""
        slopes, at = np.zeros(len(x)), list(self.weights)
        slopes[at] = 2 * x[at] / self.weight_scale**2
        return float(slopes @ x) / 2, slopes

    @property
    def ends(self) -> tuple[int, int, int]:
        """The end indices of the coordinates, the effects' parameters and the noise's parameters in the full vector.

        The effects' parameters are those of their covariance, and the log standard deviations of occasions.
        """
        fixed, spread = len(self.coordinates), self.covariances.parameters + len(self.occasions)
        return fixed, fixed + spread, fixed + spread + len(self.noise.names)

    def parts(self, x: Float[Array, " parameter"]) -> Parameters:
        """Splits a vector into the coordinates and the parameters of the effects and the noise."""
        fixed, spread, _ = self.ends
        factor = jnp.zeros((self.records, fixed, self.total_effects), x.dtype)
        if self.effects:
            subject_factor = self.covariances.factor(x[fixed : fixed + self.covariances.parameters])
            factor = factor.at[:, np.array(self.effects), : self.covariances.effects].set(subject_factor)
        for number, at in enumerate(self.occasions):
            places = self.covariances.effects + np.arange(self.records) * len(self.occasions) + number
            deviation = jnp.exp(x[fixed + self.covariances.parameters + number])
            factor = factor.at[np.arange(self.records), at, places].set(deviation)
        return Parameters(x[:fixed], factor, x[spread:])


# Called with the method and the value of each evaluation of an objective.
Watch = Callable[[str, float], None]


def watch_nothing(method: str, value: float) -> None:
    pass


@dataclass(frozen=True)
class Population:
    """A model of a population, its data, and a callback for each evaluation of its objective in a search."""

    subjects: Subjects
    structure: Structure
    watch: Watch = watch_nothing

    def covariance(self, x: Float[np.ndarray, " parameter"]) -> Float[np.ndarray, "effect effect"]:
        """Computes the covariance of the effects of subjects."""
        effects = self.structure.covariances.effects
        with scope("x64"):
            factor = np.asarray(self.structure.parts(jnp.asarray(x)).factor)[0, list(self.structure.effects), :effects]
        return factor @ factor.T

    def phi(
        self, x: Float[np.ndarray, " parameter"], z: Float[np.ndarray, "subject effect"]
    ) -> Float[np.ndarray, "subject record coordinate"]:
        """Computes coordinates of the subjects' records from their standardized effects."""
        with scope("x64"):
            parts = self.structure.parts(jnp.asarray(x))
            return np.asarray(parts.theta[None, None] + contract("rce,se->src", parts.factor, jnp.asarray(z)))

    def refine_steps(self, x: Float[np.ndarray, " parameter"], z: Float[np.ndarray, "subject effect"]) -> "Population":
        """Returns the population with solver steps that meet the tolerance at a point."""
        return replace(self, subjects=self.subjects.refine_steps(self.phi(x, z)))

    def with_constants(self, phi: Float[np.ndarray, " coordinate"]) -> "Population":
        """Returns the population with other initial constants."""
        return replace(self, subjects=replace(self.subjects, model=self.subjects.model_at(phi)))

    @property
    def still(self) -> Float[np.ndarray, "subject effect"]:
        """Effects that are all zero."""
        return np.zeros((self.subjects.count, self.structure.total_effects))

    def program_inputs(self, x: np.ndarray, z: np.ndarray) -> tuple[Array, Array, Measurements]:
        """Returns parameters, effects and measurements as arguments of compiled programs."""
        return jnp.asarray(x), jnp.asarray(z), self.subjects.seen.arrays

    @property
    def log_normal_offset(self) -> float:
        """The term of log-normal noise in the objective."""
        subjects = self.subjects
        return float(np.where(subjects.seen.exact, self.structure.noise.jacobian(subjects.y), 0.0).sum())

    def find_modes(
        self,
        x: Float[np.ndarray, " parameter"],
        begin: Float[np.ndarray, "subject effect"] | None = None,
        *,
        interaction: bool = True,
    ) -> Float[np.ndarray, "subject effect"]:
        """Finds the modes of the density of each subject's standardized effects.

        **Arguments:** `begin`: initial guess; 0 if None. `interaction`: whether the noise follows the subject's own
        prediction instead of the typical one.
        """
        return self.find_modes_and_expansion(x, begin, interaction=interaction)[0]

    def find_modes_and_expansion(
        self,
        x: Float[np.ndarray, " parameter"],
        begin: Float[np.ndarray, "subject effect"] | None = None,
        *,
        interaction: bool = True,
    ) -> tuple[Float[np.ndarray, "subject effect"], Expansion | None]:
        """Finds the modes as `find_modes` does, and the predictions there with two derivatives; None without effects,
        or if some coordinates have no effect, since the search does not compute their derivatives."""
        subjects = self.subjects
        z = self.still if begin is None else begin
        if not z.shape[1]:
            return z, None
        with scope("x64"):
            where = (jnp.asarray(subjects.counts), subjects.model, subjects.batch_by_subject)
            modes, expansion = search_modes(self.structure, interaction, *where, *self.program_inputs(x, z))
            is_whole = len(self.structure.effects) == len(self.structure.coordinates)
            return np.asarray(modes), expansion if is_whole else None

    def objective(
        self, x: Float[np.ndarray, " parameter"], z: Float[np.ndarray, "subject effect"], method: Method | str
    ) -> tuple[float, Float[np.ndarray, " parameter"]]:
        """Computes minus twice the log-posterior, without its constants 2 pi, and its gradient; weights have a prior.

        **Arguments:** `z`: the modes of the effects at `x` (`find_modes`); 0 for `fo` and `pooled`, which is the
        likelihood without effects.
        """
        value, slopes = self.objective_by_subject(x, z, method)
        return value, slopes.sum(axis=0)

    def objective_by_subject(
        self,
        x: Float[np.ndarray, " parameter"],
        z: Float[np.ndarray, "subject effect"],
        method: Method | str,
        expansion: Expansion | None = None,
    ) -> tuple[float, Float[np.ndarray, "subject parameter"]]:
        """Computes the objective, and the gradient of each subject's part, which includes a share of the prior.

        **Arguments:** `expansion`: expansion of the predictions at the effects `z`, if already computed.
        """
        subjects = self.subjects
        if expansion is None or method == "laplace":
            expansion = subjects.expand(self.phi(x, z), {"pooled": 1, "laplace": 3}.get(method, 2))
        typical = subjects.expand(self.phi(x, self.still), 2) if method == "foce" else expansion
        with scope("x64"):
            values, slopes = parts_and_gradients(self.structure, method, expansion, typical, *self.program_inputs(x, z))
            prior, prior_slopes = self.structure.prior(x)
            return float(values.sum()) + self.log_normal_offset + prior, np.asarray(slopes) + prior_slopes / len(slopes)

    def quadrature(
        self, x: Float[np.ndarray, " parameter"], z: Float[np.ndarray, "subject effect"], nodes: int = 9
    ) -> float:
        """Computes the objective with adaptive Gauss-Hermite quadrature around the modes `z`.

        **Arguments:** `nodes`: number of nodes per effect.

        **Raises:** `ValueError` if the grid has too many nodes.
        """
        subjects, effects = self.subjects, self.structure.total_effects
        if nodes**effects > MAX_QUADRATURE_NODES:
            raise ValueError(
                f"quadrature with {nodes} nodes for each of {effects} effects has {nodes**effects} nodes, and the most "
                f"are {MAX_QUADRATURE_NODES}; take fewer nodes, or compare with saem."
            )
        points, weights = np.polynomial.hermite.hermgauss(nodes)
        grid = np.array(list(itertools.product(range(nodes), repeat=effects)), int).reshape(-1, effects)
        place, weight = points[grid], (np.log(weights)[grid] + points[grid] ** 2).sum(axis=1)
        curvature = np.linalg.inv(self.spread_of_modes(x, z))
        root = np.sqrt(2) * np.linalg.inv(np.linalg.cholesky(curvature)).transpose(0, 2, 1)
        for axis in (*np.eye(effects), *-np.eye(effects)):  # The farthest nodes can need more steps than the modes.
            subjects = subjects.refine_steps(self.phi(x, z + root @ axis * points[-1]))
        settled = replace(self, subjects=subjects)
        densities = np.stack([settled.densities(x, z + root @ at) for at in place])
        logs = weight[:, None] - 0.5 * densities
        largest = logs.max(axis=0)
        total = largest + np.log(np.exp(logs - largest).sum(axis=0))
        parts = effects * np.log(np.pi) + np.linalg.slogdet(curvature)[1] - 2 * total
        return float(parts.sum()) + self.log_normal_offset

    def densities(
        self, x: Float[np.ndarray, " parameter"], z: Float[np.ndarray, "subject effect"]
    ) -> Float[np.ndarray, " subject"]:
        """Computes minus twice the joint log-density of each subject's measurements and effects, without constants."""
        subjects = self.subjects
        f = subjects.expand(self.phi(x, z)).f
        with scope("x64"):
            misfits = np.asarray(joint_densities(self.structure, f, *self.program_inputs(x, z)))
        return np.where(np.isnan(misfits), np.inf, misfits)  # NaN if the solve fails.

    def spread_of_modes(
        self, x: Float[np.ndarray, " parameter"], z: Float[np.ndarray, "subject effect"]
    ) -> Float[np.ndarray, "subject effect effect"]:
        """Computes the posterior covariance of each subject's standardized effects."""
        subjects = self.subjects
        expansion = subjects.expand(self.phi(x, z), 2)
        with scope("x64"):
            return np.linalg.inv(np.asarray(curvatures(self.structure, expansion, *self.program_inputs(x, z))))


def contract(indices: str, *arrays: Array) -> Array:
    """Computes an Einstein summation."""
    return jnp.einsum(indices, *arrays)  # pyright: ignore[reportUnknownMemberType]


def lower_root(matrix: Float[Array, "effect effect"]) -> Float[Array, "effect effect"]:
    """Computes the Cholesky factor; NaN for a matrix that is not positive definite."""
    return jnp.linalg.cholesky(matrix)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def log_determinant(matrix: Float[Array, "effect effect"]) -> Float[Array, ""]:
    return jnp.linalg.slogdet(matrix)[1]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def curvature_of(slopes: Float[Array, "row channel effect"], weight: Float[Array, "row channel"]) -> Array:
    """Computes the expected curvature of half the joint misfit in standard normal effects."""
    return jnp.eye(slopes.shape[-1], dtype=slopes.dtype) + contract("rci,rc,rcj->ij", slopes, weight, slopes)


@compile_program
def search_modes(
    structure: Structure,
    interaction: bool,
    steps: Int[Array, " interval"],
    model: NeuralODE,
    batch: Batch,
    x: Array,
    begin: Array,
    seen: Measurements,
) -> tuple[Float[Array, "subject effect"], Expansion]:
    """Takes damped Newton steps of all subjects at once; returns the modes, and the predictions there with two
    derivatives in the coordinates that have effects.

    Uses the expected curvature if the exact one is not positive.
    """
    parts, noise, effects = structure.parts(x), structure.noise, np.array(structure.effects)
    model = with_constants(model, structure.coordinates, parts.theta)
    coordinates = tuple(structure.coordinates[at] for at in structure.effects)
    parts = Parameters(parts.theta[effects], parts.factor[:, effects], parts.noise)

    def search(begin: Array, records: Batch, seen: Measurements) -> tuple[Array, Expansion]:
        def expand(z: Array, order: int = 2) -> Expansion:
            derivatives = expand_predictions(order, steps, model, coordinates, records, parts.phi(z))
            return Expansion(*(part.reshape(-1, *part.shape[2:]) for part in derivatives))

        fixed = None if interaction else noise.variance(noise.transform(expand(begin * 0, 0).f), parts.noise)

        def look(z: Array) -> tuple[Array, tuple[Array, Array, Expansion]]:
            expansion = expand(z)
            transformed = predict_near(noise, parts, expansion, parts.phi(z))

            def joint(z: Array) -> Array:
                return half_misfit(noise, parts, transformed, z, seen, fixed)

            gradient, exact = jax.grad(joint)(z), jax.hessian(joint)(z)
            expected = curvature_of(
                jax.jacfwd(transformed)(z), weights(noise, parts.noise, transformed(z), seen, fixed)
            )
            is_positive = jnp.isfinite(lower_root(exact)).all()
            return joint(z), (gradient, jnp.where(is_positive, exact, expected), expansion)

        # Log-variances can be negative, but the search compares relative changes of a positive value.
        room = ROOM * (1 + seen.mask.sum())

        def propose(now: DampedSearch) -> tuple[Array, Array]:
            gradient, curvature, _ = now.at
            newton_step = jnp.linalg.solve(curvature, gradient)
            damped = curvature * (1 + now.damping * jnp.eye(len(gradient), dtype=gradient.dtype))
            return now.best - jnp.linalg.solve(damped, gradient), gradient @ newton_step <= MODE_GAIN

        def look_above(z: Array) -> tuple[Array, tuple[Array, Array, Expansion]]:
            value, at = look(z)
            return value + room, at

        end = search_damped(look_above, propose, begin, damping=MODE_DAMPING, evaluations=MODE_EVALUATIONS)
        return end.best, cast(Expansion, end.at[2])

    return jax.vmap(search)(begin, batch, seen)


def predict_near(
    noise: ResidualNoise, parts: Parameters, expansion: Expansion, here: Float[Array, "record coordinate"]
) -> Callable[[Array], Float[Array, "row channel"]]:
    """Returns a subject's transformed predictions as a function of its effects, near the point of expansion."""
    return lambda z: noise.transform(extrapolate(expansion, parts.phi(z) - here))


def half_misfit(
    noise: ResidualNoise,
    parts: Parameters,
    transformed: Callable[[Array], Array],
    z: Array,
    seen: Measurements,
    variance: Array | None,
) -> Float[Array, ""]:
    """Computes half the misfit of measurements and effects."""
    return 0.5 * (measurement_misfit(noise, parts.noise, transformed(z), seen, variance) + z @ z)


def extrapolate(expansion: Expansion, delta: Float[Array, "record coordinate"]) -> Float[Array, "row channel"]:
    """Extrapolates a subject's predictions by a distance from the point of expansion, one for each record."""
    f, delta = expansion.f, at_rows(delta, expansion)
    if expansion.first is not None:
        f = f + contract("rcp,rp->rc", expansion.first, delta)
    if expansion.second is not None:
        f = f + contract("rcpq,rp,rq->rc", expansion.second, delta, delta) / 2
    if expansion.third is not None:
        f = f + contract("rcpqs,rp,rq,rs->rc", expansion.third, delta, delta, delta) / 6
    return f


def at_rows(values: Float[Array, "record ..."], expansion: Expansion) -> Float[Array, "row ..."]:
    """Repeats values of a subject's records at its rows."""
    return jnp.repeat(values, expansion.f.shape[0] // values.shape[0], axis=0)


@compile_program
def parts_and_gradients(
    structure: Structure,
    method: str,
    expansion: Expansion,
    typical: Expansion,
    x: Array,
    z: Array,
    seen: Measurements,
) -> tuple[Float[Array, " subject"], Float[Array, "subject parameter"]]:
    """Computes each subject's part of the objective and its gradient, from the expansions of its predictions at the
    effects `z` and at zero effects."""

    def one(expansion: Expansion, typical: Expansion, z: Array, seen: Measurements) -> tuple[Array, Array]:
        return jax.value_and_grad(lambda x: of_subject(structure, method, x, expansion, typical, z, seen))(x)

    return jax.vmap(one)(expansion, typical, z, seen)


def of_subject(
    structure: Structure,
    method: str,
    x: Array,
    expansion: Expansion,
    typical: Expansion,
    z: Array,
    seen: Measurements,
) -> Float[Array, ""]:
    """Computes a subject's part of the objective."""
    noise, parts = structure.noise, structure.parts(x)
    transformed = predict_near(noise, parts, expansion, jax.lax.stop_gradient(parts.phi(z)))
    if method == "pooled":
        return measurement_misfit(noise, parts.noise, transformed(z), seen)
    fixed = None
    if method in ("foce", "fo"):
        still = parts.phi(0 * z)
        middle = extrapolate(typical, still - jax.lax.stop_gradient(still))
        fixed = noise.variance(noise.transform(middle), parts.noise)
    if method == "fo":
        return integrate_effects(noise, parts, transformed, z, seen, fixed)

    def joint(z: Array) -> Float[Array, ""]:
        return half_misfit(noise, parts, transformed, z, seen, fixed)

    # A Newton step at the mode stays there, and has the mode's derivative with respect to the parameters.
    curvature = jax.lax.stop_gradient(jax.hessian(joint)(z))
    z = z - jnp.linalg.solve(curvature, jax.grad(joint)(z))
    if method == "laplace":
        around = jax.hessian(joint)(z)
    else:
        weight = weights(noise, parts.noise, transformed(z), seen, fixed)
        around = curvature_of(jax.jacfwd(transformed)(z), weight)
    return 2 * joint(z) + log_determinant(around)


def integrate_effects(
    noise: ResidualNoise,
    parts: Parameters,
    transformed: Callable[[Array], Array],
    z: Array,
    seen: Measurements,
    variance: Array | None,
) -> Float[Array, ""]:
    """Integrates effects out of the misfit of measurements that are linear in them, and therefore normal."""
    h, slopes = transformed(z), jax.jacfwd(transformed)(z)
    weight = weights(noise, parts.noise, h, seen, variance)
    pull = contract("rc,rc,rce->e", jnp.where(seen.mask, noise.transform(seen.y) - h, 0), weight, slopes)
    curvature = curvature_of(slopes, weight)
    gain = pull @ jnp.linalg.solve(curvature, pull)
    return measurement_misfit(noise, parts.noise, h, seen, variance) - gain + log_determinant(curvature)


@compile_program
def curvatures(
    structure: Structure, expansion: Expansion, x: Array, z: Array, seen: Measurements
) -> Float[Array, "subject effect effect"]:
    """Computes the expected curvature of half the joint misfit of each subject at the effects `z`."""
    noise, parts = structure.noise, structure.parts(x)

    def one(expansion: Expansion, seen: Measurements) -> Array:
        h, factor = jax.jvp(noise.transform, (expansion.f,), (jnp.ones_like(expansion.f),))
        assert expansion.first is not None
        slopes = contract("rcp,rpe->rce", factor[..., None] * expansion.first, at_rows(parts.factor, expansion))
        return curvature_of(slopes, weights(noise, parts.noise, h, seen))

    return jax.vmap(one)(expansion, seen)


@compile_program
def joint_densities(structure: Structure, f: Array, x: Array, z: Array, seen: Measurements) -> Float[Array, " subject"]:
    noise, parts = structure.noise, structure.parts(x)

    def one(f: Array, z: Array, seen: Measurements) -> Array:
        return measurement_misfit(noise, parts.noise, noise.transform(f), seen) + z @ z

    return jax.vmap(one)(f, z, seen)

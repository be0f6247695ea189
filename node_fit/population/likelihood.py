"""The likelihood of a population, with the effects of each subject integrated out, and its exact gradient.

The integral over a subject's effects is approximated at their mode. All of it that depends on the model is the
predictions there, with their derivatives by the subject's constants: a Taylor polynomial of them, in place of the
model, gives the value and, by the implicit derivative of the mode, the gradient, without another simulation.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..runtime.placement import scope
from .effects import Coordinate, Covariances
from .noise import Noise
from .subjects import Expansion, Subjects, compile_program, expand

# First-order conditional estimation, with and without interaction of effects and noise, at effects of zero, Laplace's
# approximation, and adaptive Gauss-Hermite quadrature (Pinheiro and Bates, J. Comput. Graph. Stat. 4, 1995; Wang,
# J. Pharmacokinet. Pharmacodyn. 34, 2007).
Method = Literal["focei", "foce", "fo", "laplace", "quadrature"]
METHODS: tuple[Method, ...] = get_args(Method)
# Of the search for modes: iterations, the gradient at which it ends, and the damping at first and at the most.
MAX_ITERATIONS, STILL, FIRST_DAMPING, MAX_DAMPING = 60, 1e-7, 1e-3, 1e8
# The most effects, and the most evaluations of a subject, that quadrature takes.
MAX_NODES = 20_000


class Parts(NamedTuple):
    """The parameters of a population.

    - `theta`: coordinates of a typical subject. `factor`: the Cholesky factor of the effects' covariance, with a row
      for each coordinate, of zeros where it has no effect.
    - `noise`: logarithms of the parameters of the noise.
    """

    theta: Float[Array, " coordinate"]
    factor: Float[Array, "coordinate effect"]
    noise: Float[Array, " noise"]

    def phi(self, z: Float[Array, " effect"]) -> Float[Array, " coordinate"]:
        """A subject's coordinates from its effects in units of their distribution, which are standard normal."""
        return self.theta + self.factor @ z


@dataclass(frozen=True)
class Structure:
    """What a population is made of, without its data; compiled programs depend on it.

    - `coordinates`: the fitted constants. `covariances`: the structure of the effects' covariance, of those coordinates
      that have a kind, in their order.
    """

    coordinates: tuple[Coordinate, ...]
    covariances: Covariances
    noise: Noise

    @property
    def effects(self) -> tuple[int, ...]:
        """The coordinates that have an effect."""
        return tuple(at for at, c in enumerate(self.coordinates) if c.kind is not None)

    @property
    def ends(self) -> tuple[int, int, int]:
        """Where the coordinates, the parameters of the covariance and those of the noise end in a vector of all."""
        fixed, spread = len(self.coordinates), self.covariances.parameters
        return fixed, fixed + spread, fixed + spread + len(self.noise.names)

    def parts(self, x: Float[Array, " parameter"]) -> Parts:
        """The parameters from a vector: coordinates, those of the covariance, those of the noise."""
        fixed, spread, _ = self.ends
        factor = jnp.zeros((fixed, self.covariances.effects), x.dtype)
        if self.effects:
            factor = factor.at[np.array(self.effects)].set(self.covariances.factor(x[fixed:spread]))
        return Parts(x[:fixed], factor, x[spread:])


@dataclass(frozen=True)
class Population:
    """A model of a population, and its data."""

    subjects: Subjects
    structure: Structure

    def covariance(self, x: Float[np.ndarray, " parameter"]) -> Float[np.ndarray, "effect effect"]:
        """The covariance of the effects."""
        with scope("x64"):
            factor = np.asarray(self.structure.parts(jnp.asarray(x)).factor)[list(self.structure.effects)]
        return factor @ factor.T

    def phi(
        self, x: Float[np.ndarray, " parameter"], z: Float[np.ndarray, "subject effect"]
    ) -> Float[np.ndarray, "subject coordinate"]:
        """Coordinates of subjects from their effects in units of their distribution."""
        with scope("x64"):
            parts = self.structure.parts(jnp.asarray(x))
            return np.asarray(parts.theta[None] + jnp.asarray(z) @ parts.factor.T)

    def settled(self, x: Float[np.ndarray, " parameter"], z: Float[np.ndarray, "subject effect"]) -> "Population":
        """The population with solver steps that meet the tolerance there."""
        return replace(self, subjects=self.subjects.settled(self.phi(x, z)))

    def begun_at(self, phi: Float[np.ndarray, " coordinate"]) -> "Population":
        """The population with other first constants."""
        return replace(self, subjects=replace(self.subjects, model=self.subjects.model_at(phi)))

    @property
    def still(self) -> Float[np.ndarray, "subject effect"]:
        """Effects of zero."""
        return np.zeros((self.subjects.count, self.structure.covariances.effects))

    def given(self, x: np.ndarray, z: np.ndarray) -> tuple[Array, Array, Array, Array]:
        """Parameters, effects, measurements and where there are some, as compiled programs take them."""
        subjects = self.subjects
        return jnp.asarray(x), jnp.asarray(z), jnp.asarray(subjects.y), jnp.asarray(subjects.mask)

    @property
    def added(self) -> float:
        """What log-normal noise adds to the objective."""
        subjects = self.subjects
        return float(np.where(subjects.mask, self.structure.noise.jacobian(subjects.y), 0.0).sum())

    def find_modes(
        self,
        x: Float[np.ndarray, " parameter"],
        begin: Float[np.ndarray, "subject effect"] | None = None,
        *,
        interaction: bool = True,
    ) -> Float[np.ndarray, "subject effect"]:
        """The effects of each subject, in units of their distribution, where the density is largest.

        **Arguments:** `begin`: where the search begins; at 0 if None. `interaction`: whether the noise follows the
        subject's own prediction, and not the typical one.
        """
        subjects = self.subjects
        z = self.still if begin is None else begin
        with scope("x64"):
            where = (jnp.asarray(subjects.steps), subjects.model, subjects.batch)
            return np.asarray(search_modes(self.structure, interaction, *where, *self.given(x, z)))

    def objective(
        self, x: Float[np.ndarray, " parameter"], z: Float[np.ndarray, "subject effect"], method: Method | str
    ) -> tuple[float, Float[np.ndarray, " parameter"]]:
        """Minus twice the log-likelihood, without its constants 2 pi, and its gradient.

        **Arguments:** `z`: the modes of the effects there (`find_modes`); 0 for `fo` and `pooled`, which is the
        likelihood without effects.
        """
        subjects = self.subjects
        expansion = subjects.expand(self.phi(x, z), {"pooled": 1, "laplace": 3}.get(method, 2))
        typical = subjects.expand(self.phi(x, self.still), 2) if method == "foce" else expansion
        with scope("x64"):
            value, gradient = objective_and_gradient(self.structure, method, expansion, typical, *self.given(x, z))
            return float(value) + self.added, np.asarray(gradient)

    def quadrature(
        self, x: Float[np.ndarray, " parameter"], z: Float[np.ndarray, "subject effect"], nodes: int = 9
    ) -> float:
        """The objective by adaptive Gauss-Hermite quadrature around the modes `z`.

        **Arguments:** `nodes`: of each effect.

        **Raises:** `ValueError` if there are too many nodes.
        """
        subjects, effects = self.subjects, self.structure.covariances.effects
        if nodes**effects > MAX_NODES:
            raise ValueError(
                f"quadrature with {nodes} nodes for each of {effects} effects has {nodes**effects} nodes, and the most "
                f"are {MAX_NODES}; take fewer nodes, or compare with saem."
            )
        points, weights = np.polynomial.hermite.hermgauss(nodes)
        grid = np.array(list(itertools.product(range(nodes), repeat=effects)), int).reshape(-1, effects)
        place, weight = points[grid], (np.log(weights)[grid] + points[grid] ** 2).sum(axis=1)
        curvature = np.linalg.inv(self.spread_of_modes(x, z))
        root = np.sqrt(2) * np.linalg.inv(np.linalg.cholesky(curvature)).transpose(0, 2, 1)
        for axis in (*np.eye(effects), *-np.eye(effects)):  # The farthest nodes may need more steps than the modes.
            subjects = subjects.settled(self.phi(x, z + root @ axis * points[-1]))
        settled = replace(self, subjects=subjects)
        densities = np.stack([settled.densities(x, z + root @ at) for at in place])
        logs = weight[:, None] - 0.5 * densities
        largest = logs.max(axis=0)
        total = largest + np.log(np.exp(logs - largest).sum(axis=0))
        each = effects * np.log(np.pi) + np.linalg.slogdet(curvature)[1] - 2 * total
        return float(each.sum()) + self.added

    def densities(
        self, x: Float[np.ndarray, " parameter"], z: Float[np.ndarray, "subject effect"]
    ) -> Float[np.ndarray, " subject"]:
        """Minus twice the logarithm of the density of each subject's measurements and effects, without constants."""
        subjects = self.subjects
        f = subjects.expand(self.phi(x, z)).f
        with scope("x64"):
            found = np.asarray(joint_densities(self.structure, f, *self.given(x, z)))
        return np.where(np.isnan(found), np.inf, found)  # Where the model can't be solved.

    def spread_of_modes(
        self, x: Float[np.ndarray, " parameter"], z: Float[np.ndarray, "subject effect"]
    ) -> Float[np.ndarray, "subject effect effect"]:
        """The covariance of each subject's effects given its measurements, in units of their distribution."""
        subjects = self.subjects
        expansion = subjects.expand(self.phi(x, z), 2)
        with scope("x64"):
            return np.linalg.inv(np.asarray(curvatures(self.structure, expansion, *self.given(x, z))))


def misfit(
    noise: Noise, parts: Parts, h: Array, y: Array, mask: Array, variance: Array | None = None
) -> Float[Array, ""]:
    """Minus twice the log density of a subject's measurements, transformed as `h`, without constants.

    **Arguments:** `variance`: of the measurements; by default that at `h`.
    """
    variance = noise.variance(h, parts.noise) if variance is None else variance
    variance = jnp.where(mask, variance, 1)
    return jnp.where(mask, (noise.transform(y) - h) ** 2 / variance + jnp.log(variance), 0).sum()


def weights(
    noise: Noise, parts: Parts, h: Array, mask: Array, variance: Array | None = None
) -> Float[Array, "row channel"]:
    """Twice the expected curvature of half the misfit by each prediction; of a given `variance`, of the mean alone."""
    if variance is not None:
        return jnp.where(mask, 1 / jnp.where(mask, variance, 1), 0)
    own, slope = jax.jvp(lambda h: noise.variance(h, parts.noise), (h,), (jnp.ones_like(h),))
    own = jnp.where(mask, own, 1)
    return jnp.where(mask, 1 / own + 0.5 * (slope / own) ** 2, 0)


def curvature_of(slopes: Float[Array, "row channel effect"], weight: Float[Array, "row channel"]) -> Array:
    """The expected curvature of half the joint misfit by standard normal effects."""
    return jnp.eye(slopes.shape[-1], dtype=slopes.dtype) + jnp.einsum("rci,rc,rcj->ij", slopes, weight, slopes)


class ModeSearch(NamedTuple):
    """Where the searches of all subjects stand.

    - `z`, `value`, `slope`: the best effects, half the misfit there, and the largest element of its gradient.
    - `gradient`, `curvature`: of half the misfit there. `damping`: of the next step.
    - `moved`: the effects after it.
    """

    z: Float[Array, "subject effect"]
    value: Float[Array, " subject"]
    slope: Float[Array, " subject"]
    gradient: Float[Array, "subject effect"]
    curvature: Float[Array, "subject effect effect"]
    damping: Float[Array, " subject"]
    moved: Float[Array, "subject effect"]
    iteration: Int[Array, ""]


@compile_program
def search_modes(
    structure: Structure,
    interaction: bool,
    steps: Int[Array, ""],
    model: eqx.Module,
    batch: eqx.Module,
    x: Array,
    begin: Array,
    y: Array,
    mask: Array,
) -> Float[Array, "subject effect"]:
    """Damped Gauss-Newton steps of all subjects at once."""
    parts, noise, coordinates = structure.parts(x), structure.noise, structure.coordinates

    def predict(z: Array) -> tuple[Array, Array]:
        f, slopes = expand(1, steps, model, coordinates, batch, jax.vmap(parts.phi)(z))  # pyright: ignore
        h, factor = jax.jvp(noise.transform, (f,), (jnp.ones_like(f),))
        return h, jnp.einsum("srcp,pe->srce", factor[..., None] * slopes, parts.factor)

    fixed = None if interaction else jax.vmap(lambda h: noise.variance(h, parts.noise))(predict(begin * 0)[0])

    def look(z: Array) -> tuple[Array, Array, Array]:
        h, slopes = predict(z)

        def one(z: Array, h: Array, slopes: Array, y: Array, mask: Array, fixed: Array | None) -> tuple[Array, ...]:
            value, by_h = jax.value_and_grad(lambda h: 0.5 * misfit(noise, parts, h, y, mask, fixed))(h)
            curvature = curvature_of(slopes, weights(noise, parts, h, mask, fixed))
            return value + 0.5 * z @ z, jnp.einsum("rc,rce->e", by_h, slopes) + z, curvature

        return jax.vmap(one)(z, h, slopes, y, mask, fixed)

    def step(search: ModeSearch) -> ModeSearch:
        value, gradient, curvature = look(search.moved)
        # Near the mode, rounding decides which of two values is less.
        better = value <= search.value + 1e-12 * jnp.abs(value)
        z = jnp.where(better[:, None], search.moved, search.z)
        gradient = jnp.where(better[:, None], gradient, search.gradient)
        curvature = jnp.where(better[:, None, None], curvature, search.curvature)
        damping = jnp.where(better, search.damping / 5, search.damping * 5)
        damped = curvature * (1 + damping[:, None, None] * jnp.eye(z.shape[1])[None])
        moved = z - jnp.linalg.solve(damped, gradient[..., None])[..., 0]
        slope = jnp.abs(gradient).max(axis=1, initial=0)
        return ModeSearch(
            z,
            jnp.where(better, value, search.value),
            slope,
            gradient,
            curvature,
            damping,
            moved,
            search.iteration + 1,
        )

    def moves(search: ModeSearch) -> Array:
        open_ones = (search.slope > STILL) & (search.damping < MAX_DAMPING)
        return open_ones.any() & (search.iteration < MAX_ITERATIONS)

    subjects, effects = begin.shape
    nowhere = jnp.full(subjects, jnp.inf)
    unit = jnp.broadcast_to(jnp.eye(effects), (subjects, effects, effects))
    damping = jnp.full(subjects, FIRST_DAMPING)
    first = ModeSearch(begin, nowhere, nowhere, begin * 0, unit, damping, begin, jnp.array(0))
    return jax.lax.while_loop(moves, step, first).z


def polynomial(expansion: Expansion, delta: Float[Array, " coordinate"]) -> Float[Array, "row channel"]:
    """Predictions of a subject at a distance from where they were expanded."""
    f = expansion.f
    if expansion.first is not None:
        f = f + expansion.first @ delta
    if expansion.second is not None:
        f = f + expansion.second @ delta @ delta / 2
    if expansion.third is not None:
        f = f + expansion.third @ delta @ delta @ delta / 6
    return f


@compile_program
def objective_and_gradient(
    structure: Structure,
    method: str,
    expansion: Expansion,
    typical: Expansion,
    x: Array,
    z: Array,
    y: Array,
    mask: Array,
) -> tuple[Array, Array]:
    """The objective of all subjects, from the expansions of their predictions at the effects `z` and at none."""

    def total(x: Array) -> Array:
        def one(expansion: Expansion, typical: Expansion, z: Array, y: Array, mask: Array) -> Array:
            return of_subject(structure, method, x, expansion, typical, z, y, mask)

        return jax.vmap(one)(expansion, typical, z, y, mask).sum()

    return jax.value_and_grad(total)(x)


def of_subject(
    structure: Structure,
    method: str,
    x: Array,
    expansion: Expansion,
    typical: Expansion,
    z: Array,
    y: Array,
    mask: Array,
) -> Float[Array, ""]:
    """A subject's part of the objective."""
    noise, parts = structure.noise, structure.parts(x)
    here = jax.lax.stop_gradient(parts.phi(z))

    def transformed(z: Array) -> Float[Array, "row channel"]:
        return noise.transform(polynomial(expansion, parts.phi(z) - here))

    if method == "pooled":
        return misfit(noise, parts, transformed(z), y, mask)
    fixed = None
    if method in ("foce", "fo"):
        middle = polynomial(typical, parts.theta - jax.lax.stop_gradient(parts.theta))
        fixed = noise.variance(noise.transform(middle), parts.noise)
    if method == "fo":
        return linearised(noise, parts, transformed, z, y, mask, fixed)

    def joint(z: Array) -> Float[Array, ""]:
        """Half the misfit of measurements and effects."""
        return 0.5 * (misfit(noise, parts, transformed(z), y, mask, fixed) + z @ z)

    # A Newton step at the mode stays there, and has the derivative of the mode by the parameters.
    curvature = jax.lax.stop_gradient(jax.hessian(joint)(z))
    z = z - jnp.linalg.solve(curvature, jax.grad(joint)(z))
    if method == "laplace":
        around = jax.hessian(joint)(z)
    else:
        weight = weights(noise, parts, transformed(z), mask, fixed)
        around = curvature_of(jax.jacfwd(transformed)(z), weight)
    return 2 * joint(z) + jnp.linalg.slogdet(around)[1]


def linearised(
    noise: Noise,
    parts: Parts,
    transformed: Callable[[Array], Array],
    z: Array,
    y: Array,
    mask: Array,
    variance: Array | None,
) -> Float[Array, ""]:
    """The misfit of measurements that are linear in the effects, and therefore normal, with effects integrated out."""
    h, slopes = transformed(z), jax.jacfwd(transformed)(z)
    weight = weights(noise, parts, h, mask, variance)
    pull = jnp.einsum("rc,rc,rce->e", jnp.where(mask, noise.transform(y) - h, 0), weight, slopes)
    curvature = curvature_of(slopes, weight)
    gain = pull @ jnp.linalg.solve(curvature, pull)
    return misfit(noise, parts, h, y, mask, variance) - gain + jnp.linalg.slogdet(curvature)[1]


@compile_program
def curvatures(
    structure: Structure, expansion: Expansion, x: Array, z: Array, y: Array, mask: Array
) -> Float[Array, "subject effect effect"]:
    """The expected curvature of half the joint misfit of each subject at the effects `z`."""
    noise, parts = structure.noise, structure.parts(x)

    def one(expansion: Expansion, mask: Array) -> Array:
        h, factor = jax.jvp(noise.transform, (expansion.f,), (jnp.ones_like(expansion.f),))
        assert expansion.first is not None
        slopes = jnp.einsum("rcp,pe->rce", factor[..., None] * expansion.first, parts.factor)
        return curvature_of(slopes, weights(noise, parts, h, mask))

    return jax.vmap(one)(expansion, mask)


@compile_program
def joint_densities(
    structure: Structure, f: Array, x: Array, z: Array, y: Array, mask: Array
) -> Float[Array, " subject"]:
    noise, parts = structure.noise, structure.parts(x)

    def one(f: Array, z: Array, y: Array, mask: Array) -> Array:
        return misfit(noise, parts, noise.transform(f), y, mask) + z @ z

    return jax.vmap(one)(f, z, y, mask)

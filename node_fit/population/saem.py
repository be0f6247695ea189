"""Stochastic approximation of expectation and maximisation (SAEM): draws effects given the parameters, and updates
these from statistics of the draws with decreasing gains.

Delyon, Lavielle and Moulines, Ann. Stat. 27, 1999; Kuhn and Lavielle, Comput. Stat. Data Anal. 49, 2005.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..data.batch import Batch
from ..model.neural_ode import NeuralODE
from ..runtime.placement import scope
from .likelihood import Population, Structure, contract, lower_root
from .measurements import Measurements, measurement_misfit, weights
from .search import Optimum, begin_without_effects
from .subjects import Subjects, compile_program, expand_predictions

# Share of exploratory iterations, with gains of 1; the gains of the later ones fall as 1 / number.
EXPLORING = 0.6
# Number of iterations between two checks of the solver's steps.
ITERATIONS_AT_ONCE = 50
# Minimum number of subjects over all chains; sets the number of chains.
MIN_CHAINED_SUBJECTS = 50
# Number of draws from the population, of steps along one effect, and of steps along all effects, per iteration.
PRIOR_MOVES, SINGLE_MOVES, JOINT_MOVES = 2, 2, 2
# Target acceptance rate of the steps, and the rate at which their scales adapt.
WANTED_ACCEPTANCE, ADAPTATION = 0.4, 0.5
# Smallest factor per iteration by which a variance falls during exploration, to avoid premature convergence.
ANNEALING = 0.95
# Maximum step of a log-parameter per iteration.
MAX_STEP = 0.3
# Share of the curvature that is added to regularize unidentifiable parameters.
RIDGE = 1e-6


class EffectChains(NamedTuple):
    """The state of the algorithm.

    - `theta`, `covariance`, `noise`: coordinates of a typical subject, the covariance of the effects, and logarithms of
      the parameters of the noise.
    - `phi`: drawn coordinates with effects, of each subject in each chain. `first`, `second`: approximate means of
      these and of their products.
    - `scales`: scales of the steps along each effect, and along all.
    """

    theta: Float[Array, " coordinate"]
    covariance: Float[Array, "effect effect"]
    noise: Float[Array, " noise"]
    phi: Float[Array, "chain subject effect"]
    first: Float[Array, " effect"]
    second: Float[Array, "effect effect"]
    scales: Float[Array, " scale"]
    key: PRNGKeyArray


class Moves(NamedTuple):
    """The proposals of an iteration, in their order.

    - `directions`: directions of random steps. `scale`: the indices of their scales. `from_population`: whether the
      proposal is a draw from the population instead of a step.
    """

    directions: Float[np.ndarray, "move effect"]
    scale: Int[np.ndarray, " move"]
    from_population: Bool[np.ndarray, " move"]

    @staticmethod
    def of(effects: int) -> "Moves":
        axes, every = np.tile(np.eye(effects), (SINGLE_MOVES, 1)), np.ones((JOINT_MOVES, effects))
        directions = np.concatenate([np.ones((PRIOR_MOVES, effects)), axes, every])
        single, joint = np.tile(np.arange(effects), SINGLE_MOVES), np.full(JOINT_MOVES, effects)
        scale = np.concatenate([np.zeros(PRIOR_MOVES, int), single, joint])
        return Moves(directions, scale, np.arange(len(scale)) < PRIOR_MOVES)


class MeasuredSubjects(NamedTuple):
    """The subjects as arguments of compiled programs."""

    steps: Int[Array, " interval"]
    model: NeuralODE
    batch: Batch
    seen: Measurements

    @staticmethod
    def of(subjects: Subjects) -> "MeasuredSubjects":
        return MeasuredSubjects(jnp.asarray(subjects.counts), subjects.model, subjects.batch, subjects.seen.arrays)


def predict_chains(
    structure: Structure,
    measured: MeasuredSubjects,
    theta: Array,
    phi: Float[Array, "chain subject effect"],
    order: int = 0,
) -> tuple[Float[Array, "chain subject row channel ..."], ...]:
    """Computes predictions of each subject in each chain, with derivatives in the coordinates."""
    coordinates_of_chains = (
        jnp.broadcast_to(theta, (*phi.shape[:2], len(theta))).at[..., np.array(structure.effects)].set(phi)
    )

    def predict(phi: Array) -> tuple[Array, ...]:
        return expand_predictions(order, measured.steps, measured.model, structure.coordinates, measured.batch, phi)

    return jax.vmap(predict)(coordinates_of_chains)


def misfit_of_chains(
    structure: Structure, measured: MeasuredSubjects, noise: Array, f: Float[Array, "chain subject row channel"]
) -> Float[Array, "chain subject"]:
    """Computes minus twice the log-density of each subject's measurements; infinite if the solve fails."""

    def one(f: Array, seen: Measurements) -> Array:
        return measurement_misfit(structure.noise, noise, structure.noise.transform(f), seen)

    misfits = jax.vmap(lambda f: jax.vmap(one)(f, measured.seen))(f)
    return jnp.where(jnp.isnan(misfits), jnp.inf, misfits)


def draw_effects(
    structure: Structure, measured: MeasuredSubjects, chains: EffectChains
) -> tuple[EffectChains, Float[Array, "chain subject row channel"]]:
    """Takes Metropolis steps of all effects given the parameters; returns the chains and their predictions."""
    effects, moves = np.array(structure.effects), Moves.of(len(structure.effects))
    root = lower_root(chains.covariance)
    centre = chains.theta[effects][None, None]
    z = (chains.phi - centre) @ jnp.linalg.inv(root).T

    def look(z: Array) -> tuple[Array, Array]:
        f = predict_chains(structure, measured, chains.theta, centre + z @ root.T)[0]
        return misfit_of_chains(structure, measured, chains.noise, f), f

    def move(now: tuple[Array, Array, Array], at: tuple[Array, ...]) -> tuple[tuple[Array, Array, Array], Array]:
        (z, misfit, f), (direction, scale, from_population, is_first, key) = now, at
        step_key, accept_key = jax.random.split(key)
        drawn = jax.random.normal(step_key, z.shape, z.dtype) * direction[None, None]
        trial = jnp.where(is_first, z, jnp.where(from_population, drawn, z + scale * drawn))
        misfit_there, f_there = look(trial)
        change = jnp.where(from_population, 0.0, (trial**2 - z**2).sum(axis=-1)) + misfit_there - misfit
        takes = jnp.log(jax.random.uniform(accept_key, misfit.shape, misfit.dtype)) < -0.5 * change
        takes = jnp.where(is_first, True, takes)
        z, misfit = jnp.where(takes[..., None], trial, z), jnp.where(takes, misfit_there, misfit)
        return (z, misfit, jnp.where(takes[..., None, None], f_there, f)), takes.mean()

    # The first move stays, and finds the misfit with the parameters of this iteration.
    count = len(moves.scale)
    key, *keys = jax.random.split(chains.key, count + 2)
    scales = chains.scales[moves.scale]
    at = (
        jnp.concatenate([jnp.zeros((1, len(effects))), jnp.asarray(moves.directions)]),
        jnp.concatenate([jnp.ones(1), scales]),
        jnp.concatenate([jnp.zeros(1, bool), jnp.asarray(moves.from_population)]),
        jnp.arange(count + 1) == 0,
        jnp.stack(keys),
    )
    begin = (z, jnp.full(z.shape[:2], jnp.inf, z.dtype), jnp.zeros((len(z), *measured.seen.y.shape), z.dtype))
    (z, _, f), taken = jax.lax.scan(move, begin, at)
    steps = ~moves.from_population
    rates = taken[1:][steps]
    total = jnp.zeros_like(chains.scales).at[moves.scale[steps]].add(rates - WANTED_ACCEPTANCE)
    scales = jnp.clip(chains.scales * jnp.exp(ADAPTATION * total), 1e-3, 3.0)
    return chains._replace(phi=centre + z @ root.T, scales=scales, key=key), f


def update_parameters(
    structure: Structure,
    measured: MeasuredSubjects,
    chains: EffectChains,
    f: Float[Array, "chain subject row channel"],
    gain: Float[Array, ""],
    explores: Bool[Array, ""],
) -> EffectChains:
    """Moves the parameters towards the most likely ones given the draws, by a gain."""
    phi, effects = chains.phi, np.array(structure.effects)
    first = chains.first + gain * (phi.mean(axis=(0, 1)) - chains.first)
    products = contract("csi,csj->ij", phi, phi) / (phi.shape[0] * phi.shape[1])
    second = chains.second + gain * (products - chains.second)
    covariance = (second - jnp.outer(first, first)) * jnp.asarray(is_in_block(structure))
    variances, least = jnp.diag(covariance), jnp.diag(chains.covariance) * jnp.where(explores, ANNEALING, 0.0)
    covariance = covariance + jnp.diag(jnp.maximum(least - variances, 0) + RIDGE * jnp.maximum(variances, RIDGE))
    noise = chains.noise + step_of_noise(structure, measured, chains.noise, f, gain)
    theta = chains.theta.at[effects].set(first)
    if len(effects) < len(theta):
        theta = theta + step_of_shared(structure, measured, chains, gain)
    return chains._replace(theta=theta, covariance=covariance, noise=noise, first=first, second=second)


def is_in_block(structure: Structure) -> Bool[np.ndarray, "effect effect"]:
    """Returns the mask of pairs of effects that can be correlated."""
    together = np.zeros((structure.covariances.effects,) * 2, bool)
    for block in structure.covariances.blocks:
        together[np.ix_(block, block)] = True
    return together


def step_of_noise(
    structure: Structure, measured: MeasuredSubjects, noise: Array, f: Array, gain: Array
) -> Float[Array, " noise"]:
    """Takes a Fisher scoring step; the expected information is that of the log-variances."""
    kinds, seen = structure.noise, measured.seen
    if not kinds.names:  # such as for Poisson counts
        return noise
    informative = (seen.exact | seen.is_between)[None]  # Wide intervals are less informative; the step is then shorter.

    def log_variances(noise: Array) -> Array:
        return jnp.where(informative, jnp.log(jnp.where(informative, kinds.variance(kinds.transform(f), noise), 1)), 0)

    slopes = jax.jacfwd(log_variances)(noise)
    slope = -jax.grad(lambda noise: misfit_of_chains(structure, measured, noise, f).sum())(noise)
    information = contract("csrkm,csrkn->mn", slopes, slopes)
    return limited_step(information, slope, gain)


def step_of_shared(
    structure: Structure, measured: MeasuredSubjects, chains: EffectChains, gain: Array
) -> Float[Array, " coordinate"]:
    """Takes a Fisher scoring step of the coordinates without effects, from derivatives of the predictions."""
    noise, shared = structure.noise, np.array([c.kind is None for c in structure.coordinates])
    f, slopes = predict_chains(structure, measured, chains.theta, chains.phi, 1)
    h, factor = jax.jvp(noise.transform, (f,), (jnp.ones_like(f),))
    seen = jax.tree.map(lambda part: jnp.broadcast_to(part, h.shape), measured.seen)
    by_h = jax.grad(lambda h: -0.5 * measurement_misfit(noise, chains.noise, h, seen))(h)
    weight = weights(noise, chains.noise, h, seen)
    slopes = (factor[..., None] * slopes)[..., shared]
    slope = contract("csrk,csrkp->p", by_h, slopes)
    curvature = contract("csrkp,csrk,csrkq->pq", slopes, weight, slopes)
    return jnp.zeros_like(chains.theta).at[np.flatnonzero(shared)].set(limited_step(curvature, slope, gain))


def limited_step(curvature: Array, slope: Array, gain: Array) -> Array:
    """Returns a share of the Newton step, of bounded length."""
    ridge = RIDGE * (jnp.trace(curvature) / len(slope) + RIDGE)
    newton_step = jnp.linalg.solve(curvature + ridge * jnp.eye(len(slope)), slope)
    return jnp.clip(gain * jnp.where(jnp.isfinite(newton_step), newton_step, 0.0), -MAX_STEP, MAX_STEP)


@compile_program
def run_iterations(
    structure: Structure,
    measured: MeasuredSubjects,
    chains: EffectChains,
    gains: Float[Array, " iteration"],
    explores: Array,
) -> EffectChains:
    """Runs one iteration for each gain."""

    def iteration(chains: EffectChains, at: tuple[Array, Array]) -> tuple[EffectChains, None]:
        chains, f = draw_effects(structure, measured, chains)
        return update_parameters(structure, measured, chains, f, *at), None

    return jax.lax.scan(iteration, chains, (gains, explores))[0]


def begin_chains(population: Population, x: Float[np.ndarray, " parameter"], seed: int) -> EffectChains:
    """Returns chains at parameters, with effects of zero."""
    structure, parts = population.structure, population.structure.parts(jnp.asarray(x))
    effects, subjects = np.array(structure.effects), population.subjects.count
    chains = -(-MIN_CHAINED_SUBJECTS // subjects)
    centre = parts.theta[effects]
    phi = jnp.broadcast_to(centre, (chains, subjects, len(effects)))
    covariance = jnp.asarray(population.covariance(x))
    return EffectChains(
        parts.theta,
        covariance,
        parts.noise,
        phi,
        centre,
        covariance + jnp.outer(centre, centre),
        jnp.ones(len(effects) + 1),
        jax.random.key(seed),
    )


def parameters_of_chains(structure: Structure, chains: EffectChains) -> Float[np.ndarray, " parameter"]:
    """Returns the parameters of chains as a vector."""
    spread = structure.covariances.parameters_of(np.asarray(chains.covariance))
    return np.concatenate([np.asarray(chains.theta), spread, np.asarray(chains.noise)])


def search_by_draws(
    population: Population, iterations: int, seed: int = 0
) -> tuple[Optimum, Float[np.ndarray, " parameter"]]:
    """Maximises the likelihood with SAEM; the objective at the optimum is that of the first-order expansion (`focei`).

    **Arguments:** `iterations`: number of iterations, rounded up to a multiple of `ITERATIONS_AT_ONCE`.

    **Returns:** the optimum, and the change of the parameters in the second half of the falling gains.

    **Raises:** `ValueError` if the model can't be solved at its initial constants.
    """
    structure = population.structure
    rounds = -(-iterations // ITERATIONS_AT_ONCE)
    exploring = int(np.ceil(EXPLORING * rounds)) * ITERATIONS_AT_ONCE
    number = np.arange(rounds * ITERATIONS_AT_ONCE)
    gains = 1 / np.maximum(number - exploring + 1, 1)
    with scope("x64"):
        chains = begin_chains(population, begin_without_effects(population), seed)
        middle = None
        for begin in range(0, len(number), ITERATIONS_AT_ONCE):
            at = slice(begin, begin + ITERATIONS_AT_ONCE)
            coordinates_of_subjects = np.tile(np.asarray(chains.theta), (population.subjects.count, 1))
            coordinates_of_subjects[:, list(structure.effects)] = chains.phi[0]
            subjects = population.subjects.refine_steps(coordinates_of_subjects[:, None])
            population = replace(population, subjects=subjects)
            population.watch("saem", math.nan)
            measured = MeasuredSubjects.of(subjects)
            chains = run_iterations(
                structure, measured, chains, jnp.asarray(gains[at]), jnp.asarray(number[at] < exploring)
            )
            if middle is None and 2 * (at.stop - exploring) >= len(number) - exploring:
                middle = parameters_of_chains(structure, chains)
        x = parameters_of_chains(structure, chains)
        modes = population.find_modes(x)
        population = population.refine_steps(x, modes)
        modes, expansion = population.find_modes_and_expansion(x, modes)
        value, slopes = population.objective_by_subject(x, modes, "focei", expansion)
    return Optimum(population, x, modes, value, slopes, len(number)), x - (x if middle is None else middle)

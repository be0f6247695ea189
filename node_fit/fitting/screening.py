"""Selects initial guesses for fits of known equations: constants and hidden starts, over decades, that simulate the
data best.

A simulation is cheap compared to a fit. So thousands of initial guesses are simulated in batches, and fits start from
the best, which mostly lie in the basins of the lowest optima (differential evolution: Storn and Price, Journal of
Global Optimization 11, 1997; hybrids with local fits: Villaverde et al., Bioinformatics 35, 2019).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..data.batch import Batch
from ..data.dataset import Dataset
from ..data.domains import Bounds
from ..minimize.restarts import evolve_points
from ..model.fields.known import Constants, constants_in
from ..model.neural_ode import NeuralODE
from ..runtime.placement import carry, dtype_of, precision_of, scope_of

# Number of trajectories simulated for each initial guess, and maximum number of solver steps.
TRAJECTORIES, SOLVER_STEPS = 16, 1024
# Relative tolerance of these simulations; rough, since initial guesses differ much.
ROUGH = 1e-3
# Search range as a factor: of constants around the specified ones, and of hidden starts around the largest measurement.
SEARCH_FACTOR = 100.0
# Search range of measured starts, which are noisy [standard deviations of the data]; and the fraction of the largest
# value below which a negative value counts as noise.
OFFSET, NOISE = 0.2, 0.1


class Beginning(eqx.Module):
    """Initial guess for a fit of known equations.

    - `raw`: the parameters of each group of constants, in the order of the model.
    - `start`: initial values of hidden states, and offsets of measured states, in scaled units; shape `(state,)`.
    """

    raw: list[Float[Any, "*many constant"]]
    start: Float[Any, "*many state"]

    def __call__(self, model: NeuralODE) -> NeuralODE:
        """Returns the model with this initial guess."""
        raw = [jnp.asarray(new, float) for new in self.raw]
        moved = eqx.tree_at(raw_of, model, raw) if raw else model
        return eqx.tree_at(lambda m: m.start, moved, moved.start.begin_at(self.start))


def choose_beginnings(
    model: NeuralODE, train: Dataset, count: int, seed: int, tell: Callable[[str], object] = str
) -> list[Beginning]:
    """Finds initial guesses by differential evolution on simulations of the training data, best first.

    **Arguments:**

    - `model`: a model for which `has_beginnings`.
    - `train`: the training data. `count`: number of initial guesses to return. `seed`: seed of the search.
    - `tell`: called with a short text before each batch; an exception from it ends the search.
    """
    part, size, precision = train.sample(TRAJECTORIES), Size.of(train), precision_of(model)
    with scope_of(model):
        batch = model.batch(part)
        loose = replace(model.solver, rtol=ROUGH, atol=ROUGH / 100, max_steps=SOLVER_STEPS)
        rough = replace(model, start=model.start.adapt(batch), solver=loose)
        rough, batch = carry((rough, batch), dtype_of(precision))

        def losses(shares: Float[np.ndarray, "beginning number"]) -> Float[np.ndarray, " beginning"]:
            some = carry(beginnings_at(model, size, shares), dtype_of(precision))
            return np.asarray(simulation_losses(rough, some, batch), np.float64)

        numbers = sum(raw.size for raw in raw_of(model)) + len(model.latent)
        best = evolve_points(losses, numbers, seed, tell)[:count]
    return [beginnings_at(model, size, shares) for shares in best]


@eqx.filter_jit
def simulation_losses(model: NeuralODE, beginnings: Beginning, batch: Batch) -> Float[Array, " beginning"]:
    """Computes the mean squared error from each initial guess, in scaled units; not finite if a solve fails."""

    def loss(beginning: Beginning) -> Float[Array, ""]:
        begun = beginning(model)
        predicted = begun.observe(begun.solver.forecast(begun.problem(batch, begun.first_states(batch))).ys, batch)
        misfit = batch.weigh_errors(begun.scaler.near(predicted, batch.ys) - batch.ys)
        return jnp.where(batch.mask, misfit**2, 0).sum() / batch.mask.sum()

    return jax.vmap(loss)(beginnings)


def has_beginnings(model: NeuralODE) -> bool:
    """Whether a model has constants, so that fits can start from other initial guesses."""
    return bool(raw_of(model))


@dataclass(frozen=True)
class Size:
    """The largest magnitude of the measured values, and whether some are clearly negative."""

    largest: float
    signed: bool

    @staticmethod
    def of(data: Dataset) -> "Size":
        values = data.ys[data.mask]
        largest = float(np.abs(values).max(initial=0.0)) or 1.0
        return Size(largest, bool((values < -NOISE * largest).any()))


def beginnings_at(model: NeuralODE, size: Size, shares: Float[np.ndarray, "... number"]) -> Beginning:
    """Maps shares from 0 to 1 to initial guesses within the range of each constant and of each state's start."""
    groups, scaler = constants_of(model), model.system.scaler
    ends = np.cumsum([group.raw.size for group in groups])
    *portions, states = np.split(shares, ends, axis=-1)
    raw = [group.around(portion, SEARCH_FACTOR) for group, portion in zip(groups, portions, strict=True)]
    starts = [start_at(np.asarray(states[..., index]), size, bounds) for index, bounds in enumerate(scaler.bounds)]
    hidden = np.isin(np.arange(len(model.latent)), model.start.guess.unknown)
    scaled = scaler.scale_states(np.stack(starts, axis=-1))
    return Beginning(raw, np.where(hidden, scaled, OFFSET * (2 * states - 1)))


def start_at(share: np.ndarray, size: Size, bounds: Bounds) -> np.ndarray | np.floating:
    """Maps shares to starts within the bounds of a state: uniform between two bounds, otherwise log-uniform.

    Without bounds, half of them are negative if some measured values are.
    """
    lower, upper = bounds
    if lower is not None and upper is not None:
        return lower + (upper - lower) * (0.01 + 0.98 * share)
    both = size.signed and bounds == (None, None)
    height = np.abs(2 * share - 1) if both else share
    magnitude = size.largest * SEARCH_FACTOR ** (2 * height - 1)
    if lower is not None:
        return lower + magnitude
    if upper is not None:
        return upper - magnitude
    return np.where(share < 0.5, -magnitude, magnitude) if both else magnitude


def constants_of(model: PyTree) -> list[Constants]:
    """Returns the trained groups of constants of a model's field, start and observation."""
    parts = constants_in((model.field, model.start, model.observation))
    return [part for part in parts if part.free() and jax.tree.leaves(part.raw)]


def raw_of(model: PyTree) -> list[PyTree]:
    return [group.raw for group in constants_of(model)]

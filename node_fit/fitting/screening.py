"""Where fits of known equations begin: constants and hidden starts, over decades, that simulate the data best.

A simulation is cheap beside a fit. So thousands of beginnings are simulated, some of them at a time, and fits start
from the best, which mostly lie in the basins of the lowest optima (differential evolution: Storn and Price, Journal of
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

# Of how many trajectories beginnings are simulated, and over how many solver steps at the most.
TRAJECTORIES, SOLVER_STEPS = 16, 1024
# Their solver's relative tolerance, since beginnings differ much.
ROUGH = 1e-3
# Constants are sought within this factor of the given ones, and hidden starts of the largest measured value.
SEARCH_FACTOR = 100.0
# Measured starts are noisy: they are sought within so many standard deviations of the data; and a value is negative
# below this share of the largest.
OFFSET, NOISE = 0.2, 0.1


class Beginning(eqx.Module):
    """What a fit of known equations begins with.

    - `raw`: the parameters of each group of constants, in the order of the model.
    - `start`: hidden states at the first time, and what is added to measured ones, in scaled units; shape `(state,)`.
    """

    raw: list[Float[Any, "*many constant"]]
    start: Float[Any, "*many state"]

    def __call__(self, model: NeuralODE) -> NeuralODE:
        """The model that begins so."""
        raw = [jnp.asarray(new, float) for new in self.raw]
        moved = eqx.tree_at(raw_of, model, raw) if raw else model
        return eqx.tree_at(lambda m: m.start, moved, moved.start.begun_at(self.start))


def choose_beginnings(
    model: NeuralODE, train: Dataset, count: int, seed: int, tell: Callable[[str], object] = str
) -> list[Beginning]:
    """The best beginnings that differential evolution finds by simulations of the training data, the best first.

    **Arguments:**

    - `model`: a model for which `has_beginnings`.
    - `train`: the training data. `count`: number of beginnings wanted. `seed`: of the search.
    - `tell`: called with a few words before some are simulated; what it raises ends the search.
    """
    part, size, precision = train.sample(TRAJECTORIES), Size.of(train), precision_of(model)
    with scope_of(model):
        batch = model.batch(part)
        loose = replace(model.solver, rtol=ROUGH, atol=ROUGH / 100, max_steps=SOLVER_STEPS)
        rough = replace(model, start=model.start.adapted(batch), solver=loose)
        rough, batch = carry((rough, batch), dtype_of(precision))

        def losses(shares: Float[np.ndarray, "beginning number"]) -> Float[np.ndarray, " beginning"]:
            some = carry(beginnings_at(model, size, shares), dtype_of(precision))
            return np.asarray(simulation_losses(rough, some, batch), np.float64)

        numbers = sum(raw.size for raw in raw_of(model)) + len(model.latent)
        best = evolve_points(losses, numbers, seed, tell)[:count]
    return [beginnings_at(model, size, shares) for shares in best]


@eqx.filter_jit
def simulation_losses(model: NeuralODE, beginnings: Beginning, batch: Batch) -> Float[Array, " beginning"]:
    """The mean squared error from each beginning, in scaled units; not finite where a solve fails."""

    def loss(beginning: Beginning) -> Float[Array, ""]:
        begun = beginning(model)
        found = begun.observe(begun.solver.forecast(begun.problem(batch, begun.first_states(batch))).ys, batch)
        misfit = batch.weighted(begun.scaler.near(found, batch.ys) - batch.ys)
        return jnp.where(batch.mask, misfit**2, 0).sum() / batch.mask.sum()

    return jax.vmap(loss)(beginnings)


def has_beginnings(model: NeuralODE) -> bool:
    """Whether a model has constants, from which a fit may begin elsewhere."""
    return bool(raw_of(model))


@dataclass(frozen=True)
class Size:
    """The largest magnitude of the measured values, and whether some of them are clearly negative."""

    largest: float
    signed: bool

    @staticmethod
    def of(data: Dataset) -> "Size":
        values = data.ys[data.mask]
        largest = float(np.abs(values).max(initial=0.0)) or 1.0
        return Size(largest, bool((values < -NOISE * largest).any()))


def beginnings_at(model: NeuralODE, size: Size, shares: Float[np.ndarray, "... number"]) -> Beginning:
    """Beginnings at shares from 0 to 1 of the range of each constant, and of each state's start."""
    groups, scaler = constants_of(model), model.system.scaler
    ends = np.cumsum([group.raw.size for group in groups])
    *own, states = np.split(shares, ends, axis=-1)
    raw = [group.around(each, SEARCH_FACTOR) for group, each in zip(groups, own, strict=True)]
    starts = [start_at(np.asarray(states[..., at]), size, bounds) for at, bounds in enumerate(scaler.bounds)]
    hidden = np.isin(np.arange(len(model.latent)), model.start.guess.unknown)
    scaled = scaler.scale_states(np.stack(starts, axis=-1))
    return Beginning(raw, np.where(hidden, scaled, OFFSET * (2 * states - 1)))


def start_at(share: np.ndarray, size: Size, bounds: Bounds) -> np.ndarray | np.floating:
    """Starts within the bounds of a state: uniform between two of them, else log-uniform; half of them negative, where
    measured values are."""
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
    """The groups of constants of a model's field, start and observation that are trained."""
    parts = constants_in((model.field, model.start, model.observation))
    return [part for part in parts if part.free() and jax.tree.leaves(part.raw)]


def raw_of(model: PyTree) -> list[PyTree]:
    return [group.raw for group in constants_of(model)]

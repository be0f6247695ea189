"""Initializes models from identified ones: linear models, or readouts of states that are filters of the inputs.

Channels can be any function of the states, such as a speed without its direction, which no linear model predicts.
Functions of filtered inputs can; once the filters and the features of the readout are chosen, finding the function is a
linear problem.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from ..data.batch import past_rows, start_rows
from ..data.dataset import Dataset
from ..data.inputs import Interpolations, inputs_at_step_ends
from ..data.trajectories import cut
from ..model.fields.network import Linear
from ..model.neural_ode import NeuralODE
from ..model.observation import AbstractFeatureReadout, DirectReadout, LinearReadout
from ..solver.problem import VectorField
from .linear_model import LinearSystem
from .realization import PastMap, StateMatrices

# Maximum growth of a mode over a record that is simulated as a whole, as a power of e.
LARGEST_GROWTH = 2.0


def begin_as_linear(model: NeuralODE, system: LinearSystem, step: float) -> NeuralODE:
    """Initializes a model with the matrices of a linear model, and networks whose output is zero.

    **Arguments:**

    - `model`: a model whose field is linear or has a linear path.
    - `system`: the linear model, in the same scaled units.
    - `step`: time between two rows, in scaled units.
    """
    layer = path(model).layer

    def like(x: Float[np.ndarray, "..."]) -> Float[Array, "..."]:
        return jnp.asarray(x, layer.weight.dtype)

    model = eqx.tree_at(
        lambda m: (path(m).layer.weight, path(m).layer.bias),
        model,
        (like(np.concatenate([system.a, system.b], axis=1) / step), like(system.c / step)),
    )
    return replace(model, start=model.start.with_past_map(system.e, system.f))


def limit_growth(system: LinearSystem, rows: int) -> LinearSystem:
    """Returns the system with modes that grow by at most `LARGEST_GROWTH` in so many rows.

    A linear model of a nonlinear record can hold in short windows and run away in the whole.
    """
    rates, modes = np.linalg.eig(system.a)
    most = LARGEST_GROWTH / rows
    if np.real(rates).max() <= most:
        return system
    limited = np.minimum(np.real(rates), most) + 1j * np.imag(rates)
    return system._replace(a=np.real(modes @ np.diag(limited) @ np.linalg.pinv(modes)))


def with_feedthrough(model: NeuralODE, direct: Float[np.ndarray, "channel input"]) -> NeuralODE:
    """Returns the model with this direct response of its channels to inputs, in the user's units."""
    readout, scaler = model.observation, model.scaler
    assert isinstance(readout, DirectReadout)
    per_scale = direct / np.asarray(scaler.state_scale)[:, None]
    values = (per_scale * np.asarray(scaler.input_scale), per_scale @ np.asarray(scaler.input_shift))
    readout = eqx.tree_at(
        lambda o: (o.direct, o.shift), readout, tuple(jnp.asarray(value, readout.shift.dtype) for value in values)
    )
    return replace(model, observation=readout)


def begin_as_modes(model: NeuralODE, matrices: StateMatrices, past: PastMap, step: float) -> NeuralODE:
    """Initializes a model with the matrices of a system with an output readout, and networks whose output is zero.

    **Arguments:**

    - `model`: a model whose field is linear or has a linear path, and whose channels are a linear readout.
    - `matrices`, `past`: the system, and the map from past rows to its states, in scaled units.
    - `step`: time between two rows, in scaled units.
    """
    layer = path(model).layer

    def like(x: Float[np.ndarray, "..."]) -> Float[Array, "..."]:
        return jnp.asarray(x, layer.weight.dtype)

    rates, still = np.concatenate([matrices.a, matrices.b], axis=1) / step, np.zeros(len(matrices.a))
    model = eqx.tree_at(lambda m: (path(m).layer.weight, path(m).layer.bias), model, (like(rates), like(still)))
    readout = model.observation
    assert isinstance(readout, LinearReadout)
    readout = eqx.tree_at(lambda o: (o.matrix, o.shift), readout, (like(matrices.c), like(matrices.shift)))
    if isinstance(readout, DirectReadout):
        readout = eqx.tree_at(lambda o: o.direct, readout, like(matrices.direct))
    model = replace(model, observation=readout)
    return replace(model, start=model.start.with_past_map(past.matrix, past.constant))


def path(model: NeuralODE) -> Linear:
    """Returns the linear part of a model's field."""
    linear = linear_part_of(model.field)
    assert linear is not None
    return linear


def linear_part_of(field: VectorField) -> Linear | None:
    """Returns the linear part of a field, or None for user-defined fields without one."""
    return getattr(field, "linear_part", None)


# Number of random filter sets, and maximum number of rows per trajectory for testing them.
DRAWS, MOST_FILTER_ROWS = 300, 3_000
# Local search: rounds, number of best sets, neighbours of each, initial distance, and its shrink factor per round.
FILTER_ROUNDS, BEST, NEIGHBOURS, DISTANCE, FILTER_SHRINK = 6, 10, 5, 0.3, 0.7
# Time constants: minimum [rows], and maximum as a share of the longest trajectory. Frequencies [1/time constant].
FASTEST_FILTER, SLOWEST, FREQUENCIES = 2.0, 0.2, (0.2, 3.0)
# Standard deviation of the states, large enough to reach the nonlinear range of the readout's network.
FILTER_SPREAD = 2.0
# Share of each trajectory, at its end, used to select filters.
FILTERS_HELD_BACK = 0.3
# Ridge on coefficients, as a share of the features' squares.
FILTER_RIDGE = 1e-3


class Filters(NamedTuple):
    """First-order filters `x' = p x - p w.u` with complex poles `p` [1/row], whose real and imaginary parts are states.

    `imaginary`: whether a state is the imaginary part of its filter.
    """

    poles: Complex[np.ndarray, " state"]
    weights: Float[np.ndarray, "state input"]
    imaginary: np.ndarray

    @staticmethod
    def draw(rng: np.random.Generator, states: int, inputs: int, slowest: float) -> "Filters":
        """Draws filters with `states` states: oscillating pairs, and real poles for the remaining states."""
        pairs = int(rng.integers(0, states // 2 + 1))
        number = states - pairs
        times = np.exp(rng.uniform(np.log(FASTEST_FILTER), np.log(max(slowest, 2 * FASTEST_FILTER)), number))
        swing = np.where(np.arange(number) < pairs, rng.uniform(*FREQUENCIES, number), 0)
        weights = rng.normal(size=(number, inputs))
        weights /= np.linalg.norm(weights, axis=1, keepdims=True)
        of = np.repeat(np.arange(number), np.where(np.arange(number) < pairs, 2, 1))
        imaginary = np.concatenate([[False], of[1:] == of[:-1]])
        return Filters(((-1 + 1j * swing) / times)[of], weights[of], imaginary)

    def neighbour(self, rng: np.random.Generator, distance: float) -> "Filters":
        """Draws filters whose poles and weights differ by about this share."""
        of = np.cumsum(~self.imaginary) - 1  # the filter that a state belongs to
        number = int(of[-1]) + 1
        decays, swings = np.exp(distance * rng.normal(size=(2, number)))[:, of]
        weights = self.weights + distance * rng.normal(size=(number, self.weights.shape[1]))[of]
        poles = np.real(self.poles) * decays + 1j * np.imag(self.poles) * swings
        return Filters(poles, weights / np.linalg.norm(weights, axis=1, keepdims=True), self.imaginary)

    def states(self, us: Float[np.ndarray, "trajectory time input"]) -> Float[np.ndarray, "trajectory time state"]:
        """Simulates the states at all rows from rest; `us` are the inputs over the step that begins at each row."""
        from scipy.signal import lfilter

        columns: list[np.ndarray] = []
        for pole, weight, imaginary in zip(self.poles, self.weights, self.imaginary, strict=True):
            gain = np.exp(pole)
            path = cast(np.ndarray, lfilter([0, 1 - gain], [1, -gain], us @ weight, axis=1))
            columns.append(np.imag(path) if imaginary else np.real(path))
        return np.stack(columns, axis=2)

    def system(self, sizes: Float[np.ndarray, " state"], e: np.ndarray, f: np.ndarray) -> LinearSystem:
        """Returns the linear system of the states divided by their sizes."""
        count = len(self.poles)
        decay, swing = np.real(self.poles), np.imag(self.poles)
        a, b = np.diag(decay), np.zeros(self.weights.shape)
        for state in range(count):
            b[state] = -(swing if self.imaginary[state] else decay)[state] * self.weights[state]
            if self.imaginary[state]:
                a[state, state - 1], a[state - 1, state] = swing[state], -swing[state]
        return LinearSystem(a * sizes[None, :] / sizes[:, None], b / sizes[:, None], np.zeros(count), e, f)


class ScoredFilters(NamedTuple):
    """Filters, the sizes of their states, coefficients of the readout, and its NRMSE on held-out rows."""

    filters: Filters
    sizes: Float[np.ndarray, " state"]
    readout: Float[np.ndarray, "feature channel"]
    error: float


def has_place(model: NeuralODE) -> bool:
    """Whether a model can be initialized with filters."""
    field = model.field
    rest = getattr(field, "has_network", False) and not getattr(field, "time", False)
    linear = rest and linear_part_of(field) is not None
    return linear and model.start.past > 0 and isinstance(model.observation, AbstractFeatureReadout)


def begin_with_filters(
    model: NeuralODE, train: Dataset, kind: Interpolations, step: float, seed: int
) -> tuple[NeuralODE, float]:
    """Initializes the states as the input filters that predict the channels best; returns the model and their NRMSE.

    **Arguments:**

    - `model`: a model that `has_place`. `train`: training data.
    - `kind`: how inputs are interpolated. `step`: time between two rows, in scaled units. `seed`: random seed.
    """
    scaler = model.scaler
    us = scaler.scale_inputs(train.us)
    over = (us + inputs_at_step_ends(us, kind)) / 2
    features = features_of(model)
    rng, slowest = np.random.default_rng(seed), SLOWEST * float(train.lengths.max())
    states = len(model.system.states)
    scaled = scaler.scale_states(train.ys)

    def try_several(several: list[Filters]) -> list[ScoredFilters]:
        return [try_filters(filters, train, scaled, over, features) for filters in several]

    candidates = try_several([Filters.draw(rng, states, us.shape[2], slowest) for _ in range(DRAWS)])
    for turn in range(FILTER_ROUNDS):
        candidates = sorted(candidates, key=lambda filters: filters.error)[:BEST]
        distance = DISTANCE * FILTER_SHRINK**turn
        candidates += try_several(
            [filters.filters.neighbour(rng, distance) for filters in candidates for _ in range(NEIGHBOURS)]
        )
    best = min(candidates, key=lambda filters: filters.error)
    path = best.filters.states(over) / best.sizes
    system = best.filters.system(best.sizes, *start_map(path, train, model))
    assert isinstance(model.observation, AbstractFeatureReadout)
    model = replace(begin_as_linear(model, system, step), observation=model.observation.with_readout(best.readout))
    return model, best.error


def features_of(model: NeuralODE) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function for the terms of the readout: 1, the states, and their features; shape `(..., term)`."""
    assert isinstance(model.observation, AbstractFeatureReadout)
    drawn, kind = eqx.filter_jit(eqx.filter_vmap(model.observation.features)), path(model).layer.weight.dtype

    def features(path: Float[np.ndarray, "*rows state"]) -> Float[np.ndarray, "*rows term"]:
        rows = path.reshape(-1, path.shape[-1])
        nonlinear = np.asarray(drawn(jnp.asarray(rows, kind)), float)
        return np.concatenate([np.ones((len(rows), 1)), rows, nonlinear], axis=1).reshape(*path.shape[:-1], -1)

    return features


def try_filters(
    filters: Filters, train: Dataset, scaled: np.ndarray, over: np.ndarray, features: Callable[[np.ndarray], np.ndarray]
) -> ScoredFilters:
    """Fits a readout of the filters' states, and scores it on the ends of the trajectories."""
    rows = slice(MOST_FILTER_ROWS)
    path, mask = filters.states(over[:, rows]), train.mask[:, rows]
    valid = mask.any(axis=2)
    sizes = np.maximum(path[valid].std(axis=0), 1e-9) / FILTER_SPREAD
    table = features(path / sizes)
    held = (
        np.arange(int(mask.shape[1]))[None, :]
        >= (1 - FILTERS_HELD_BACK) * np.minimum(train.lengths, mask.shape[1])[:, None]
    )
    target = np.nan_to_num(scaled[:, rows])
    early = solve_ridge(table, target, mask & ~held[..., None])
    off = np.where(mask & held[..., None], table @ early - target, 0)
    error = float(np.sqrt((off**2).sum() / max(1.0, float((mask & held[..., None]).sum()))))
    return ScoredFilters(filters, sizes, solve_ridge(table, target, mask), error if np.isfinite(error) else np.inf)


def solve_ridge(table: np.ndarray, target: np.ndarray, mask: np.ndarray) -> Float[np.ndarray, "feature channel"]:
    """Solves for the readout's coefficients channel by channel, since channels have different rows."""
    channels = range(target.shape[2])
    return np.stack([least_squares(table[mask[..., c]], target[mask[..., c], c]) for c in channels], axis=1)


def start_map(path: np.ndarray, train: Dataset, model: NeuralODE) -> tuple[np.ndarray, np.ndarray]:
    """Fits the affine map from past rows to the initial states, in addition to the default initial guess."""
    rows = model.start.past
    stride = max(int(train.lengths.sum()) // MOST_FILTER_ROWS, 1)
    pieces = train.pieces(rows + 1, stride)
    windows = cut(train, pieces, [str(number) for number in range(len(pieces))])
    past = past_rows(windows, model.scaler, rows)
    row, begin, _ = np.array(pieces).T
    states = path[row, begin + start_rows(windows, rows)]
    channels = train.ys.shape[2]
    states[:, :channels] -= past[:, -1, :channels]
    features = np.concatenate([past.reshape(len(past), -1), np.ones((len(past), 1))], axis=1)
    coefficients = least_squares(features, states)
    return coefficients[:-1].T, coefficients[-1]


def least_squares(x: Float[np.ndarray, "row feature"], y: Float[np.ndarray, "row *channel"]) -> np.ndarray:
    """Solves least squares with a small ridge."""
    normal = x.T @ x
    return np.linalg.solve(normal + FILTER_RIDGE * len(x) * np.eye(len(normal)), x.T @ y)

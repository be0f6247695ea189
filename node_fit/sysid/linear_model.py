"""Finds a linear state-space model of a driven record by minimising its simulation error.

This runs in NumPy in float64 and takes a second; compiling a program for each number of states would take longer. A
network is initialized as this model and has to beat it.
"""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Inexact
from threadpoolctl import threadpool_limits

from ..data.batch import Batch
from ..data.inputs import Interpolations, are_held, inputs_at_step_ends
from ..minimize.host import DampedSteps, Damping, LazyPoint, QuadraticModel, minimize
from .subspace import Rates, identify_subspace

# Damping of the steps, and the relative decrease of the error below which a fit stops.
LINEAR_DAMPING, STALLED_BELOW = Damping(increase=2.0, maximum=1e15), 1e-4
# Ridge on the parameters: those of the initial state can outnumber the windows, and it keeps the system from stiffness.
LINEAR_RIDGE = 1e-5
# Clipping limit of states [standard deviations] and interval in rows; a bad system gives a large error, no overflow.
CLIPPED_AT, LOOK = 1e3, 8


class LinearSystem(NamedTuple):
    """`dz/dt = a z + b u + c`, whose first states are the channels, with the initial state `z = channels + e past + f`.

    Time is in rows.
    """

    a: Float[np.ndarray, "state state"]
    b: Float[np.ndarray, "state input"]
    c: Float[np.ndarray, " state"]
    e: Float[np.ndarray, "state feature"]
    f: Float[np.ndarray, " state"]


class SimulationRecord(NamedTuple):
    """The data of a simulation.

    - `us`: inputs at the beginning of each step and, unless they are held, at its end.
    - `ys`, `mask`: channels at the end of each step, and whether they count.
    - `first`, `past`: channels at the start, and features of the rows up to the start.
    """

    us: Float[np.ndarray, "step trajectory input"]
    ys: Float[np.ndarray, "step trajectory channel"]
    mask: Float[np.ndarray, "step trajectory channel"]
    first: Float[np.ndarray, "trajectory channel"]
    past: Float[np.ndarray, "trajectory feature"]

    @staticmethod
    def of(batch: Batch, kind: Interpolations) -> "SimulationRecord":
        us = np.asarray(batch.us, float)
        if not all(are_held(kind, us.shape[2])):
            us = np.concatenate([us, inputs_at_step_ends(us, kind)], axis=2)
        us = np.swapaxes(us, 0, 1)[:-1]
        ys, mask = (np.swapaxes(np.asarray(x, float), 0, 1)[1:] for x in (batch.ys, batch.mask & batch.is_exact))
        past = np.asarray(batch.past, float)
        return SimulationRecord(us, ys, mask, past[:, -1, : ys.shape[2]], past.reshape(len(past), -1))

    def part(self, trajectories: slice) -> "SimulationRecord":
        """Selects some of the trajectories."""
        us, ys, mask = (x[:, trajectories] for x in (self.us, self.ys, self.mask))
        return SimulationRecord(us, ys, mask, self.first[trajectories], self.past[trajectories])

    @property
    def variance(self) -> float:
        """Variance of the unmasked values."""
        count = np.maximum(self.mask.sum(axis=(0, 1)), 1)
        mean = (self.mask * self.ys).sum(axis=(0, 1)) / count
        return float(((self.mask * (self.ys - mean)) ** 2).sum() / count.sum()) or 1.0

    @property
    def drives(self) -> Float[np.ndarray, "step trajectory drive"]:
        """The drives of each step: the inputs, and a constant 1."""
        return np.concatenate([self.us, np.ones((*self.us.shape[:2], 1))], axis=2)


def step_matrix(
    a: Inexact[np.ndarray, "*batch state state"],
    b: Inexact[np.ndarray, "*batch state input"],
    c: Inexact[np.ndarray, "*batch state"],
    *,
    held: bool,
) -> Inexact[np.ndarray, "*batch state drive"]:
    """Returns the matrix from states, inputs and 1 to the next states; exact for held or piecewise linear inputs.

    Van Loan, Computing integrals involving the matrix exponential, 1978.
    """
    from scipy.linalg import expm

    states, inputs = b.shape[-2:]
    slopes = 0 if held else inputs
    size = states + inputs + slopes + 1
    system = np.zeros((*a.shape[:-2], size, size), a.dtype)
    system[..., :states, :states] = a
    system[..., :states, states : states + inputs] = b
    system[..., :states, -1] = c
    if not held:  # u' is the slope, which is constant within a row
        system[..., states : states + inputs, states + inputs : -1] = np.eye(inputs)
    matrix = expm(system)[..., :states, :]
    if held:
        return matrix
    free, pushed, bent, constant = np.split(matrix, [states, states + inputs, states + 2 * inputs], axis=-1)
    return np.concatenate([free, pushed - bent, bent, constant], axis=-1)


def step_derivatives(m: LinearSystem, *, held: bool) -> Float[np.ndarray, "unknown state drive"]:
    """Computes the derivatives of `step_matrix` by `a`, `b` and `c`, in the order of the Jacobian's columns."""
    states, inputs = m.b.shape
    width = states + inputs + 1
    # Complex-step derivatives have no cancellation, so the step can be tiny.
    tiny = 1e-30
    system = np.tile(np.concatenate([m.a, m.b, m.c[:, None]], axis=1).astype(complex), (states * width, 1, 1))
    system.reshape(states * width, -1)[np.diag_indices(states * width)] += 1j * tiny
    return np.imag(step_matrix(system[..., :states], system[..., states:-1], system[..., -1], held=held)) / tiny


def simulate(m: LinearSystem, record: SimulationRecord) -> Float[np.ndarray, "row trajectory state"]:
    """Simulates the states at all rows."""
    step = step_matrix(m.a, m.b, m.c, held=is_held(m, record))
    return march_linear(step, start_states(m, record), record)


def is_held(m: LinearSystem, record: SimulationRecord) -> bool:
    return record.us.shape[2] == m.b.shape[1]


def start_states(m: LinearSystem, record: SimulationRecord) -> Float[np.ndarray, "trajectory state"]:
    """Computes the states at the first row."""
    states = record.past @ m.e.T + m.f
    states[:, : record.ys.shape[2]] += record.first
    return states


def march_linear(
    step: np.ndarray, start: np.ndarray, record: SimulationRecord
) -> Float[np.ndarray, "row trajectory state"]:
    """Computes the states at all rows, one step per row."""
    states = start.shape[1]
    pushed = record.drives @ step[:, states:].T
    path = np.empty((len(pushed) + 1, *start.shape))
    path[0], forward = start, np.ascontiguousarray(step[:, :states].T)
    for row, push in enumerate(pushed):
        np.matmul(path[row], forward, out=path[row + 1])
        path[row + 1] += push
        if row % LOOK == 0:  # Often enough that nothing overflows.
            np.clip(path[row + 1], -CLIPPED_AT, CLIPPED_AT, out=path[row + 1])
    return path


def compute_residuals(m: LinearSystem, record: SimulationRecord) -> Float[np.ndarray, " value"]:
    """Computes the errors of the simulated channels, scaled so that their squares sum to the mean square."""
    errors = record.mask * (simulate(m, record)[1:, :, : record.ys.shape[2]] - record.ys)
    return errors.ravel() / np.sqrt(record.mask.sum())


class NormalEquations(NamedTuple):
    """`J^T J` and `J^T r` of the residuals `r` with the Jacobian `J`."""

    matrix: Float[np.ndarray, "unknown unknown"]
    slope: Float[np.ndarray, " unknown"]


def normal_equations(m: LinearSystem, record: SimulationRecord) -> NormalEquations:
    """Computes the normal equations without the Jacobian; most of its columns belong to the initial state.

    The derivative of a channel by the initial-state map is the system's free response, the same for all trajectories,
    times a trajectory's features, so sums over rows are computed before sums over features.
    """
    trajectories, count = record.ys.shape[1], record.mask.sum()
    system, response = compute_sensitivities(m, record)
    system *= record.mask[..., None]
    unknowns, states = system.shape[3], response.shape[2]
    residuals = compute_residuals(m, record).reshape(record.ys.shape) / np.sqrt(count)
    features = np.concatenate([record.past, np.ones((trajectories, 1))], axis=1)
    # Rows and channels of one trajectory after the other.
    by_trajectory = np.moveaxis(system, 1, 0).reshape(trajectories, -1, unknowns)
    flat = response.reshape(-1, states)
    mixed = np.swapaxes(by_trajectory, 1, 2) @ flat / count
    mask = np.moveaxis(record.mask, 1, 0).reshape(trajectories, -1)
    squares = mask @ (flat[:, :, None] * flat[:, None, :]).reshape(len(flat), -1) / count
    outer = (features[:, :, None] * features[:, None, :]).reshape(trajectories, -1)
    width = features.shape[1]
    start = (squares.T @ outer).reshape(states, states, width, width).swapaxes(1, 2).reshape(states * width, -1)
    cross = (mixed.reshape(trajectories, -1).T @ features).reshape(unknowns, -1)
    jacobian = system.reshape(-1, unknowns)
    matrix = np.block([[jacobian.T @ jacobian / count, cross], [cross.T, start]])
    pulled = np.moveaxis(residuals, 1, 0).reshape(trajectories, -1) @ flat
    return NormalEquations(matrix, np.concatenate([jacobian.T @ residuals.ravel(), (pulled.T @ features).ravel()]))


def compute_sensitivities(
    m: LinearSystem, record: SimulationRecord
) -> tuple[Float[np.ndarray, "row trajectory channel unknown"], Float[np.ndarray, "row channel state"]]:
    """Computes the derivatives of the channels by `a`, `b` and `c`, and by the initial states.

    The former follow the system itself, driven by the derivative of a step; the latter are its free response.
    """
    states, channels, held = len(m.a), record.ys.shape[2], is_held(m, record)
    step, slopes = step_matrix(m.a, m.b, m.c, held=held), step_derivatives(m, held=held)
    path, drives = march_linear(step, start_states(m, record), record), record.drives
    rows, trajectories = drives.shape[:2]
    free, pushes = np.ascontiguousarray(step[:, :states].T), np.moveaxis(slopes, 2, 0)
    by_state = np.ascontiguousarray(pushes[:states]).reshape(states, -1)
    by_drive = np.ascontiguousarray(pushes[states:]).reshape(drives.shape[2], -1)
    now = np.zeros((trajectories, len(slopes), states))
    system = np.empty((rows, trajectories, channels, len(slopes)))
    response, responses = np.eye(states), np.empty((rows, channels, states))
    for row in range(rows):
        push = path[row] @ by_state + drives[row] @ by_drive
        now = (now.reshape(-1, states) @ free + push.reshape(-1, states)).reshape(now.shape)
        system[row] = np.swapaxes(now[..., :channels], 1, 2)
        response = step[:, :states] @ response
        responses[row] = response[:channels]
    return system, responses


def as_vector(m: LinearSystem) -> np.ndarray:
    """Returns the parameters as a vector, in the order of the Jacobian's columns."""
    rates = np.concatenate([m.a, m.b, m.c[:, None]], axis=1)
    return np.concatenate([rates.ravel(), np.concatenate([m.e, m.f[:, None]], axis=1).ravel()])


def from_vector(x: np.ndarray, like: LinearSystem) -> LinearSystem:
    """Returns the system with these parameters."""
    states, inputs = like.b.shape
    width = states + inputs + 1
    rates = x[: states * width].reshape(states, width)
    start = x[states * width :].reshape(states, -1)
    return LinearSystem(rates[:, :states], rates[:, states:-1], rates[:, -1], start[:, :-1], start[:, -1])


def fit_system(start: LinearSystem, record: SimulationRecord, steps: int) -> tuple[LinearSystem, float]:
    """Minimises the mean squared error by Levenberg-Marquardt; returns the system and its error."""
    from scipy.linalg import cho_factor, cho_solve

    def look(x: np.ndarray) -> LazyPoint:
        system = from_vector(x, start)

        def expand(x: np.ndarray) -> QuadraticModel:
            here, ridge = normal_equations(system, record), LINEAR_RIDGE * np.eye(len(x))
            return QuadraticModel(value, 2 * (here.slope + LINEAR_RIDGE * x), 2 * (here.matrix + ridge))

        value = float((compute_residuals(system, record) ** 2).sum() + LINEAR_RIDGE * (x**2).sum())
        return LazyPoint(x, value, expand)

    def step(here: LazyPoint, damping: float) -> np.ndarray:
        scale = np.diag(here.local.curvature) + 2e-9
        try:
            return here.x - cho_solve(cho_factor(here.local.curvature + np.diag(damping * scale)), here.local.gradient)
        except ValueError:  # No step from non-finite values.
            return here.x

    rule = DampedSteps(
        step,
        LINEAR_DAMPING,
        max_steps=steps,
        is_still=lambda old, new: (1 - STALLED_BELOW) * old.value <= new.value < old.value,
        patience=2,
        predict=lambda old, new: old.local.predict_decrease(new.x - old.x),
    )
    best = from_vector(minimize(look(as_vector(start)), rule, look).x, start)
    return best, float((compute_residuals(best, record) ** 2).sum())


# Maximum number of hidden states to try.
MOST_HIDDEN = 6
# Maximum number of steps from each initial guess, and in the whole search.
FIRST_STEPS, SEARCH_STEPS = 8, 40
# A further hidden state should lower the validation error by this share; the search ends after this many that do not.
WORTH, TRIES = 0.03, 2


@dataclass(frozen=True)
class LinearModel:
    """A linear state-space model in scaled units, with a row as the unit of time.

    - `system`: its parameters. `channels`: number of measured states.
    - `error`, `train_error`: NRMSE on the validation data, and on the windows that it was fitted to.
    """

    system: LinearSystem
    channels: int
    error: float
    train_error: float
    judged: float

    @property
    def hidden(self) -> int:
        """Number of hidden states."""
        return len(self.system.a) - self.channels


def linear_models(
    windows: Batch, validation: Batch, records: Batch, kind: Interpolations, hidden: int | None = None
) -> Iterator[LinearModel]:
    """Yields linear models with 0, 1, 2, ... hidden states until more do not help, or with `hidden` of them.

    Every model minimises the simulation error of windows, from two initial guesses: the model with one state fewer, and
    subspace identification.

    **Arguments:**

    - `windows`, `validation`: the data to fit, and the data that choose the number of states; on the host.
    - `records`: the evenly sampled records from which the windows were cut, for the initial guess.
    - `kind`: how inputs are interpolated.
    - `hidden`: the number of hidden states; None to search.
    """
    # Loads SciPy's own BLAS first, so that the limit covers it; with threads its last bits differ.
    importlib.import_module("scipy.linalg")

    # Threads would only wait for each other in many small products.
    with threadpool_limits(1):
        yield from search_models(
            SimulationRecord.of(windows, kind), SimulationRecord.of(validation, kind), records, kind, hidden
        )


def simplest_model(models: Sequence[LinearModel], worth: float = WORTH) -> LinearModel:
    """Returns the model with the fewest states whose error exceeds the best by at most this share."""
    limit = min(model.judged for model in models) * (1 + worth)
    return next(model for model in models if model.judged <= limit)


def search_models(
    record: SimulationRecord, held_out: SimulationRecord, records: Batch, kind: Interpolations, hidden: int | None
) -> Iterator[LinearModel]:
    known, ys, us = map(np.asarray, (records.is_exact.all(axis=2), records.ys, records.us))
    over = (us + inputs_at_step_ends(us, kind)) / 2
    channels, best, fitted, idle = ys.shape[2], np.inf, None, 0
    for count in range(MOST_HIDDEN + 1) if hidden is None else (hidden,):
        starts = [extend(fitted, channels + count, record, us.shape[2])]
        guess = identify_subspace(ys, over, known, channels + count)
        if guess is not None:
            starts.append(start_at_zero(guess, record))
        tried = [fit_system(start, record, FIRST_STEPS) for start in starts]
        fitted, _ = fit_system(min(tried, key=lambda candidate: candidate[1])[0], record, SEARCH_STEPS)
        candidates = [fitted, *(constant_systems(record, us.shape[2]) if count == 0 else [])]
        best_one = min(candidates, key=lambda candidate: nrmse_on(candidate, held_out))
        validated = nrmse_on(best_one, held_out)
        crossed = cross_validate(fitted, record)
        judged = float(np.sqrt((validated**2 + crossed**2) / 2))
        yield LinearModel(best_one, channels, validated, nrmse_on(best_one, record), judged)
        idle = idle + 1 if judged > (1 - WORTH) * best else 0
        best = min(best, judged)
        if idle >= TRIES:
            return


def nrmse_on(system: LinearSystem, record: SimulationRecord) -> float:
    """Computes the NRMSE of simulated channels."""
    return float(np.sqrt((compute_residuals(system, record) ** 2).sum() / record.variance))


def cross_validate(system: LinearSystem, record: SimulationRecord) -> float:
    """Computes the two-fold cross-validation NRMSE over the windows; both fits start at a system fitted to all of them.

    Validation data can be few and from one regime, and then do not determine the number of states.
    """
    half = record.ys.shape[1] // 2
    if half < 2:
        return nrmse_on(system, record)
    halves = (record.part(slice(half)), record.part(slice(half, None)))
    errors = [nrmse_on(fit_system(system, train, FIRST_STEPS)[0], test) for test, train in (halves, halves[::-1])]
    return float(np.sqrt(np.mean(np.square(errors))))


def constant_systems(record: SimulationRecord, inputs: int) -> list[LinearSystem]:
    """Returns two baseline systems for a linear model: one keeps the last known values, one the mean."""
    channels, features = record.ys.shape[2], record.past.shape[1]
    rates = Rates(np.zeros((channels, channels)), np.zeros((channels, inputs)), np.zeros(channels))
    keeps = start_at_zero(rates, record)
    forgets = np.zeros((channels, features))
    last = features - (2 * channels + inputs + 1)
    forgets[:, last : last + channels] = -np.eye(channels)
    return [keeps, keeps._replace(e=forgets)]


def start_at_zero(rates: Rates, record: SimulationRecord) -> LinearSystem:
    """Returns a system whose hidden states start at zero."""
    states = len(rates.c)
    return LinearSystem(*rates, np.zeros((states, record.past.shape[1])), np.zeros(states))


def extend(before: LinearSystem | None, states: int, record: SimulationRecord, inputs: int) -> LinearSystem:
    """Extends a smaller system with weakly coupled, decaying states."""
    rng = np.random.default_rng(states)
    a = 0.05 * (rng.normal(size=(states, states)) / np.sqrt(states) - np.eye(states))
    b, c = 0.05 * rng.normal(size=(states, inputs)), np.zeros(states)
    extended = start_at_zero(Rates(a, b, c), record)
    if before is not None:
        old = len(before.a)
        a[:old, :old] = before.a
        for larger, smaller in zip(extended[1:], before[1:], strict=True):
            larger[:old] = smaller
    return extended

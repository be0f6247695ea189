"""The baselines that a model must beat: the mean, persistence, and a linear equation with constant coefficients."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from ..data.dataset import Dataset
from .metrics import Predicted, Score, measured_values, score_predictions

# Relative weight of the ridge penalty on the coefficients of the linear equation, in standardised units. It only
# matters for undetermined coefficients: with fewer rows than coefficients, or with collinear states.
BASELINE_RIDGE = 1e-6
# Limit at which a growing linear equation is clipped [standard deviations], far beyond any useful prediction.
CEILING = 1e6
# Digits to which steps are rounded, in mean steps, and the maximum number of different steps; more would take seconds,
# so steps are then rounded to fewer digits.
STEP_DIGITS, MAX_DIFFERENT_STEPS = 9, 5_000
# Maximum number of multiplications for all transition matrices; beyond, a linear equation takes minutes.
MAX_BASELINE_OPERATIONS = 2e9
# Number of intervals above which a record is solved in parallel blocks, and maximum number of their matrix elements.
MAX_IN_TURN, MAX_BLOCK_ELEMENTS = 2_000, 10_000_000


def predict_baselines(train: Dataset, target: Dataset) -> dict[str, Predicted]:
    """Predicts `target` by three baselines fitted to `train`: `mean`, `persistence` and `linear`.

    `linear` is omitted if states jump at events, which it cannot represent, and if its matrices would take minutes, as
    with thousands of states.
    """
    models = {"mean": mean, "persistence": persistence}
    if train.events is None and target.events is None and is_linear_affordable(target):
        models["linear"] = fit_linear_ode
    return {name: predict(train, target) for name, predict in models.items()}


def baselines(train: Dataset, target: Dataset) -> dict[str, Score]:
    """Scores the three baselines on `target`, fitted to `train`; see `predict_baselines`."""
    return {name: score_predictions(target, ys) for name, ys in predict_baselines(train, target).items()}


def mean(train: Dataset, target: Dataset) -> Predicted:
    """Predicts each state's mean over the training measurements at all times.

    **Arguments:**

    - `train`: the measurements to learn from.
    - `target`: the trajectories to predict, with the same states.

    **Returns:** states at `target`'s times, in the user's units, shape `(trajectory, time, state)`.
    """
    check_same_columns(train, target)
    return np.broadcast_to(state_means(train), target.ys.shape).copy()


def persistence(train: Dataset, target: Dataset) -> Predicted:
    """Predicts that every state keeps its last known value.

    In a forecast, this is the last value measured before the trajectory's first scored row. If a state was not measured
    before, for example because all rows are scored, it is the first measured value, from which a model also starts. A
    state never measured in a trajectory keeps its training mean.

    **Arguments:** and **Returns:** as in `mean`.
    """
    check_same_columns(train, target)
    is_known = np.isfinite(target.ys) & ~np.logical_or.accumulate(target.scored, axis=1)[..., None]
    last = target.ys.shape[1] - 1 - is_known[:, ::-1].argmax(axis=1)
    latest = np.take_along_axis(target.ys, last[:, None, :], axis=1)[:, 0]
    held = np.where(is_known.any(axis=1), latest, starts(train, target))
    return np.repeat(held[:, None, :], target.ys.shape[1], axis=1)


def fit_linear_ode(train: Dataset, target: Dataset) -> Predicted:
    """Predicts with `dy/dt = A y + B u + c`, fitted to `train` and started from the first measured values.

    The coefficients are the least-squares solution of the trapezoidal rule `y[k+1] - y[k] = h (A (y[k] + y[k+1]) / 2 +
    B (u[k] + u[k+1]) / 2 + c)` over consecutive complete rows of a trajectory, with a small ridge penalty. The fit is
    to increments, not slopes, because the measurement noise of increments does not depend on `h`. The solution over
    each interval is exact for an input held at the mean of its two ends. Inputs are held at `u[k]` instead, all of them
    or those that look held, if this fits the increments better.

    **Arguments:** and **Returns:** as in `mean`. A solution that grows without bound is clipped at a million standard
    deviations from the mean.
    """
    check_same_columns(train, target)
    equation = LinearEquation.fit(train)
    return equation.solve(target, starts(train, target))


@dataclass(frozen=True)
class LinearEquation:
    """`dz/ds = A z + B v + c` for standardised states `z`, inputs `v` and time `s`.

    - `rates`: `[A B c]`, shape `(state, column)`.
    - `shift`, `scale`: mean and standard deviation of each state and input, shape `(channel,)`.
    - `step`: the unit of `s`, the mean training step [unit of time].
    - `held`: whether each input keeps its value between rows.
    """

    rates: Float[np.ndarray, "state column"]
    shift: Float[np.ndarray, " channel"]
    scale: Float[np.ndarray, " channel"]
    step: float
    held: tuple[bool, ...]

    @staticmethod
    def fit(train: Dataset) -> "LinearEquation":
        rows = np.concatenate([train.ys, train.us], axis=2)
        complete = np.asarray(train.mask.all(axis=2))
        shift, scale = moments(rows, complete)
        steps, starts_at, ends_at = intervals(train.ts, (rows - shift) / scale, complete)
        states = len(train.states)
        unit = float(steps.mean()) if steps.size else 1.0
        increments = np.concatenate([ends_at - starts_at, np.zeros((rows.shape[2] + 1, rows.shape[2]))])[:, :states]
        weight = np.sqrt(BASELINE_RIDGE * max(len(steps), 1)) * np.eye(rows.shape[2] + 1)
        weight[-1, -1] = 0.0  # The constant is not penalised.

        def fit_increments(held: tuple[bool, ...]) -> tuple[float, LinearEquation]:
            drives = drive_between(starts_at[:, states:], ends_at[:, states:], held)
            middles = (starts_at[:, :states] + ends_at[:, :states]) / 2
            features = np.concatenate([middles, drives, np.ones((len(steps), 1))], axis=1) * (steps / unit)[:, None]
            features = np.concatenate([features, weight])
            rates = np.linalg.lstsq(features, increments, rcond=None)[0]
            error = float(np.square(features @ rates - increments).sum())
            return error, LinearEquation(rates=rates.T, shift=shift, scale=scale, step=unit, held=held)

        none, every = (False,) * len(train.inputs), (True,) * len(train.inputs)
        kinds = dict.fromkeys((none, train.held_inputs, every) if train.is_driven else (none,))
        return min((fit_increments(held) for held in kinds), key=lambda fitted: fitted[0])[1]

    def solve(self, target: Dataset, start: Float[np.ndarray, "trajectory state"]) -> Predicted:
        states = start.shape[1]
        inputs = (target.us - self.shift[states:]) / self.scale[states:]
        drives = drive_between(inputs[:, :-1], inputs[:, 1:], self.held)
        forcing = np.concatenate([drives, np.ones_like(target.ts[:, 1:, None])], axis=2) @ self.rates[:, states:].T
        different, which = find_different_steps(np.diff(target.ts, axis=1) / self.step)
        z = (start - self.shift[:states]) / self.scale[:states]
        path = march_baseline(self.transitions(different), which, forcing, z)
        return path * self.scale[:states] + self.shift[:states]

    def transitions(self, steps: Float[np.ndarray, " step"]) -> Float[np.ndarray, "step state twice"]:
        """`[exp(A h), integral of exp(A s) over 0..h]` for each step, from one exponential of `[[A, 1], [0, 0]] h`."""
        from scipy.linalg import expm

        states = len(self.rates)
        block = np.zeros((2 * states, 2 * states))
        block[:states, :states] = self.rates[:, :states]
        block[:states, states:] = np.eye(states)
        with np.errstate(over="ignore", invalid="ignore"):
            return expm(block * steps[:, None, None])[:, :states]


def drive_between(before: np.ndarray, after: np.ndarray, held: tuple[bool, ...]) -> np.ndarray:
    """Returns the constant inputs between two rows."""
    return np.where(np.array(held, bool), before, (before + after) / 2)


def is_linear_affordable(target: Dataset) -> bool:
    """Whether the linear equation for these states and steps takes seconds rather than minutes."""
    steps = np.diff(target.ts, axis=1)
    different = find_different_steps(steps / (float(steps.mean()) or 1.0))[0] if steps.size else steps
    return different.size * (2 * len(target.states)) ** 3 <= MAX_BASELINE_OPERATIONS


def find_different_steps(
    steps: Float[np.ndarray, "trajectory interval"],
) -> tuple[Float[np.ndarray, " step"], Int[np.ndarray, "trajectory interval"]]:
    """Returns the distinct steps and the index of each interval's step; rounding merges those of a uniform grid."""
    digits = STEP_DIGITS
    different, which = np.unique(np.round(steps, digits), return_inverse=True)
    while different.size > MAX_DIFFERENT_STEPS and digits > 0:
        digits -= 1
        different, which = np.unique(np.round(steps, digits), return_inverse=True)
    return different, which.reshape(steps.shape)


def march_baseline(
    transitions: Float[np.ndarray, "step state twice"],
    which: Int[np.ndarray, "trajectory interval"],
    forcing: Float[np.ndarray, "trajectory interval state"],
    z: Float[np.ndarray, "trajectory state"],
) -> Float[np.ndarray, "trajectory time state"]:
    """Computes the states at all times from the initial states.

    A step of many trajectories takes as long as one of few. So a long record is cut into blocks. These are first solved
    in parallel from zero, which yields their initial states, and then from there.
    """
    trajectories, intervals = which.shape
    states = z.shape[1]
    most = MAX_BLOCK_ELEMENTS // max(trajectories * states**2, 1)
    blocks = min(math.isqrt(intervals), most) if intervals > MAX_IN_TURN else 1
    if blocks < 2:
        return march_in_turn(transitions, which, forcing, z)
    size = -(-intervals // blocks)
    room = ((0, 0), (0, blocks * size - intervals))
    cut = np.pad(which, room).reshape(-1, size)
    pushed = np.pad(forcing, (*room, (0, 0))).reshape(-1, size, states)
    moved = np.zeros((len(cut), states))
    growth = np.broadcast_to(np.eye(states), (len(cut), states, states))
    for k in range(size):
        moved = advance_baseline(transitions[cut[:, k]], moved, pushed[:, k])
        with np.errstate(over="ignore", invalid="ignore"):
            growth = np.einsum("nij,njk->nik", transitions[cut[:, k], :, :states], growth)
        growth = np.clip(growth, -CEILING, CEILING)
    moved, growth = moved.reshape(trajectories, blocks, states), growth.reshape(trajectories, blocks, states, states)
    begins = [z]
    for block in range(blocks - 1):
        later = np.einsum("nij,nj->ni", growth[:, block], begins[-1]) + moved[:, block]
        begins.append(np.clip(later, -CEILING, CEILING))
    path = march_in_turn(transitions, cut, pushed, np.stack(begins, axis=1).reshape(-1, states))
    later = path[:, 1:].reshape(trajectories, blocks * size, states)[:, :intervals]
    return np.concatenate([z[:, None], later], axis=1)


def march_in_turn(
    transitions: Float[np.ndarray, "step state twice"],
    which: Int[np.ndarray, "trajectory interval"],
    forcing: Float[np.ndarray, "trajectory interval state"],
    z: Float[np.ndarray, "trajectory state"],
) -> Float[np.ndarray, "trajectory time state"]:
    """Computes the states as `march_baseline` does, but sequentially."""
    path = [z]
    for k in range(which.shape[1]):
        path.append(advance_baseline(transitions[which[:, k]], path[-1], forcing[:, k]))
    return np.stack(path, axis=1)


def advance_baseline(
    transition: Float[np.ndarray, "trajectory state twice"],
    z: Float[np.ndarray, "trajectory state"],
    forcing: Float[np.ndarray, "trajectory state"],
) -> Float[np.ndarray, "trajectory state"]:
    """Advances the states by one interval."""
    with np.errstate(over="ignore", invalid="ignore"):
        # Not `@`: for many small matrices, the BLAS threads of NumPy and those of SciPy's expm wait for each other.
        later = np.einsum("nij,nj->ni", transition, np.concatenate([z, forcing], axis=1))
    return np.clip(later, -CEILING, CEILING)


def moments(rows: Float[np.ndarray, "trajectory time channel"], counted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes mean and standard deviation of each channel over the counted rows; the deviation is 1 for constants."""
    values = rows[counted]
    if not len(values):
        channels = int(rows.shape[2])
        return np.zeros(channels), np.ones(channels)
    varies = np.ptp(values, axis=0) > 0
    return values.mean(axis=0), np.where(varies, np.where(varies, values.std(axis=0), 1.0), 1.0)


def intervals(
    ts: Float[np.ndarray, "trajectory time"],
    rows: Float[np.ndarray, "trajectory time channel"],
    complete: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns lengths and end values of the intervals between consecutive complete rows of a trajectory."""
    trajectory, row = np.nonzero(complete)
    same = trajectory[1:] == trajectory[:-1]
    begin, end = (trajectory[:-1][same], row[:-1][same]), (trajectory[1:][same], row[1:][same])
    return ts[end] - ts[begin], rows[begin], rows[end]


def starts(train: Dataset, target: Dataset) -> Float[np.ndarray, "trajectory state"]:
    """Returns the first measured value of each state in each trajectory; the training mean if it was never measured."""
    first = target.first
    return np.where(np.isfinite(first), first, state_means(train))


def state_means(train: Dataset) -> Float[np.ndarray, " state"]:
    """Computes the mean of each state's scored measurements; 0 without measurements."""
    counts = np.maximum(train.mask.sum(axis=(0, 1)), 1)
    means = np.where(train.mask, train.ys, 0.0).sum(axis=(0, 1)) / counts
    for index, name in enumerate(train.states):
        if name in train.angles and train.mask[..., index].any():
            means[index] = measured_values(train, index).mean()
    return means


def check_same_columns(train: Dataset, target: Dataset) -> None:
    if (train.states, train.inputs) != (target.states, target.inputs):
        raise ValueError(
            f"the datasets must have the same states and inputs in the same order; one has {list(train.states)} and "
            f"{list(train.inputs)}, the other {list(target.states)} and {list(target.inputs)}."
        )

"""Baselines that a fit must beat: the mean, the last known value, and a linear differential equation."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from .metrics import Score, measured_values, score_predictions

Predicted = Float[np.ndarray, "trajectory time state"]

# Relative weight of the ridge penalty on the coefficients of the linear equation, in standardised units. It matters
# only where the data do not decide: with fewer rows than coefficients, or with states that move together.
BASELINE_RIDGE = 1e-6
# A growing linear equation is clipped here [standard deviations], far beyond any useful prediction.
CEILING = 1e6


def baselines(train: Dataset, target: Dataset) -> dict[str, Score]:
    """Scores of three baselines on `target`, fitted to `train`: `mean`, `persistence` and `linear`.

    `linear` is left out where states jump at events, of which it knows nothing.
    """
    models = {"mean": mean, "persistence": persistence}
    if train.events is None and target.events is None:
        models["linear"] = fit_linear_ode
    return {name: score_predictions(target, predict(train, target)) for name, predict in models.items()}


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

    In a forecast, that is the last value measured before the trajectory's first scored row. If no value of a state was
    measured before, for example because all rows are scored, it is the first measured value, from which a model starts
    too. A state that was never measured in a trajectory keeps its training mean.

    **Arguments:** and **Returns:** as in `mean`.
    """
    check_same_columns(train, target)
    known = np.isfinite(target.ys) & ~np.logical_or.accumulate(target.scored, axis=1)[..., None]
    last = target.ys.shape[1] - 1 - known[:, ::-1].argmax(axis=1)
    latest = np.take_along_axis(target.ys, last[:, None, :], axis=1)[:, 0]
    held = np.where(known.any(axis=1), latest, starts(train, target))
    return np.repeat(held[:, None, :], target.ys.shape[1], axis=1)


def fit_linear_ode(train: Dataset, target: Dataset) -> Predicted:
    """Predicts with `dy/dt = A y + B u + c`, fitted to `train` and started from the first measured values.

    The coefficients are the least-squares solution of the trapezoidal rule `y[k+1] - y[k] = h (A (y[k] + y[k+1]) / 2 +
    B (u[k] + u[k+1]) / 2 + c)` over consecutive complete rows of a trajectory, with a small ridge penalty. The fit is
    to increments, not slopes, because the measurement noise of increments does not depend on `h`. The solution over
    each interval is exact for an input held at the mean of its two ends.

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
    """

    rates: Float[np.ndarray, "state column"]
    shift: Float[np.ndarray, " channel"]
    scale: Float[np.ndarray, " channel"]
    step: float

    @staticmethod
    def fit(train: Dataset) -> "LinearEquation":
        rows = np.concatenate([train.ys, train.us], axis=2)
        complete = np.asarray(train.mask.all(axis=2))
        shift, scale = moments(rows, complete)
        steps, starts_at, ends_at = intervals(train.ts, (rows - shift) / scale, complete)
        states = len(train.states)
        unit = float(steps.mean()) if steps.size else 1.0
        features = np.concatenate([(starts_at + ends_at) / 2, np.ones((len(steps), 1))], axis=1)
        weight = np.sqrt(BASELINE_RIDGE * max(len(steps), 1)) * np.eye(features.shape[1])
        weight[-1, -1] = 0.0  # The constant is not penalised.
        rates = np.linalg.lstsq(
            np.concatenate([features * (steps / unit)[:, None], weight]),
            np.concatenate([ends_at[:, :states] - starts_at[:, :states], np.zeros((features.shape[1], states))]),
            rcond=None,
        )[0]
        return LinearEquation(rates=rates.T, shift=shift, scale=scale, step=unit)

    def solve(self, target: Dataset, start: Float[np.ndarray, "trajectory state"]) -> Predicted:
        states = start.shape[1]
        inputs = (target.us - self.shift[states:]) / self.scale[states:]
        held = np.concatenate([(inputs[:, 1:] + inputs[:, :-1]) / 2, np.ones_like(target.ts[:, 1:, None])], axis=2)
        forcing = held @ self.rates[:, states:].T
        # Rounding makes the steps of a uniform grid equal, so that their matrices are computed once.
        steps = np.round(np.diff(target.ts, axis=1) / self.step, 9)
        z = (start - self.shift[:states]) / self.scale[:states]
        path, known = [z], {}
        for k in range(steps.shape[1]):
            each, which = np.unique(steps[:, k], return_inverse=True)
            if (key := each.tobytes()) not in known:
                known[key] = self.transitions(each)
            z = advance_baseline(known[key][which], z, forcing[:, k])
            path.append(z)
        return np.stack(path, axis=1) * self.scale[:states] + self.shift[:states]

    def transitions(self, steps: Float[np.ndarray, " step"]) -> Float[np.ndarray, "step state twice"]:
        """`[exp(A h), integral of exp(A s) over 0..h]` for each step, from one exponential of `[[A, 1], [0, 0]] h`."""
        from scipy.linalg import expm

        states = len(self.rates)
        block = np.zeros((2 * states, 2 * states))
        block[:states, :states] = self.rates[:, :states]
        block[:states, states:] = np.eye(states)
        with np.errstate(over="ignore", invalid="ignore"):
            return expm(block * steps[:, None, None])[:, :states]


def advance_baseline(
    transition: Float[np.ndarray, "trajectory state twice"],
    z: Float[np.ndarray, "trajectory state"],
    forcing: Float[np.ndarray, "trajectory state"],
) -> Float[np.ndarray, "trajectory state"]:
    """The states after one interval."""
    with np.errstate(over="ignore", invalid="ignore"):
        # Not `@`: on many small matrices, the BLAS threads of NumPy and those of SciPy's expm wait for each other.
        later = np.einsum("nij,nj->ni", transition, np.concatenate([z, forcing], axis=1))
    return np.clip(later, -CEILING, CEILING)


def moments(rows: Float[np.ndarray, "trajectory time channel"], counted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each channel over the counted rows; the deviation is 1 where nothing varies."""
    values = rows[counted]
    if not len(values):
        return np.zeros(rows.shape[2]), np.ones(rows.shape[2])
    varies = np.ptp(values, axis=0) > 0
    return values.mean(axis=0), np.where(varies, np.where(varies, values.std(axis=0), 1.0), 1.0)


def intervals(
    ts: Float[np.ndarray, "trajectory time"],
    rows: Float[np.ndarray, "trajectory time channel"],
    complete: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lengths and end values of the intervals between consecutive complete rows of a trajectory."""
    trajectory, row = np.nonzero(complete)
    same = trajectory[1:] == trajectory[:-1]
    begin, end = (trajectory[:-1][same], row[:-1][same]), (trajectory[1:][same], row[1:][same])
    return ts[end] - ts[begin], rows[begin], rows[end]


def starts(train: Dataset, target: Dataset) -> Float[np.ndarray, "trajectory state"]:
    """The first measured value of each state in each trajectory; the training mean if it was never measured."""
    first = target.first
    return np.where(np.isfinite(first), first, state_means(train))


def state_means(train: Dataset) -> Float[np.ndarray, " state"]:
    """Mean of the measurements that count, for each state; 0 if there are none."""
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

"""Subspace identification: estimates a linear state-space model from evenly sampled records."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

# Number of past rows used to estimate a state, and of future rows that it has to predict.
ROWS_BACK, ROWS_AHEAD = 20, 10
# Largest eigenvalue magnitude of an initial guess, which must be stable.
STABLE = 0.999
# Fastest decay [1/row] of an initial guess; faster modes vanish within a row.
FASTEST_MODE = 2.0


class Rates(NamedTuple):
    """A linear system `dz/dt = a z + b u + c` with time in rows; its first states are the channels."""

    a: Float[np.ndarray, "state state"]
    b: Float[np.ndarray, "state input"]
    c: Float[np.ndarray, " state"]


def identify_subspace(
    ys: Float[np.ndarray, "trajectory time channel"],
    us: Float[np.ndarray, "trajectory time input"],
    known: Bool[np.ndarray, "trajectory time"],
    states: int,
) -> Rates | None:
    """Estimates an initial guess of a linear system by least squares and an SVD.

    A regression of each row on the previous rows (VARX) gives the predictor's Markov parameters. The SVD of their
    predictions of the next rows gives a state sequence (SSARX: Jansson, IFAC Symposium on System Identification, 2003),
    and a regression on it gives the system's matrices.

    **Arguments:**

    - `ys`: channels of order one. `us`: inputs, each over the step that begins at its row.
    - `known`: rows without missing values.
    - `states`: number of states, at least the number of channels.

    **Returns:** the system, stable and in continuous time; None with too few rows.
    """
    channels, inputs = ys.shape[2], us.shape[2]
    lagged, now, place = regressors(ys, us, known)
    width = channels + inputs
    if len(now) < 2 * ROWS_BACK * width or states > ROWS_AHEAD * channels:
        return None
    ones = np.ones((len(lagged), 1))
    markov = np.linalg.lstsq(np.concatenate([lagged, ones], axis=1), now, rcond=None)[0][:-1].T
    predictor = np.zeros((ROWS_AHEAD * channels, ROWS_BACK * width))
    for ahead in range(ROWS_AHEAD):
        kept = (ROWS_BACK - ahead) * width
        predictor[ahead * channels : (ahead + 1) * channels, :kept] = markov[:, ahead * width :]
    _, sizes, right = np.linalg.svd(predictor @ lagged.T, full_matrices=False)
    sequence = (np.sqrt(sizes[:states])[:, None] * right[:states]).T
    sequence = put_channels_first(sequence, now)
    # Rows that follow each other within a trajectory.
    follows = np.flatnonzero((place[1:, 0] == place[:-1, 0]) & (place[1:, 1] == place[:-1, 1] + 1))
    features = np.concatenate([sequence[follows], us[tuple(place[follows].T)], np.ones((len(follows), 1))], axis=1)
    transition = np.linalg.lstsq(features, sequence[follows + 1], rcond=None)[0].T
    return to_continuous_time(stabilize(transition[:, :states]), transition[:, states:-1], transition[:, -1])


def regressors(ys: np.ndarray, us: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the previous rows, the channels and the index of each row that follows enough known rows."""
    both = np.concatenate([ys, us], axis=2)
    run = np.ones_like(known[:, ROWS_BACK:])
    for lag in range(ROWS_BACK + 1):
        run &= known[:, ROWS_BACK - lag : known.shape[1] - lag]
    place = np.argwhere(run) + np.array([0, ROWS_BACK])
    lagged = np.concatenate([both[place[:, 0], place[:, 1] - lag] for lag in range(1, ROWS_BACK + 1)], axis=1)
    return lagged, ys[place[:, 0], place[:, 1]], place


def put_channels_first(sequence: np.ndarray, now: np.ndarray) -> np.ndarray:
    """Transforms states so that the first ones are the channels, and the others are of order one."""
    states, channels = sequence.shape[1], now.shape[1]
    ones = np.ones((len(sequence), 1))
    output = np.linalg.lstsq(np.concatenate([sequence, ones], axis=1), now, rcond=None)[0].T
    complement = np.linalg.svd(output[:, :states])[2][channels:]
    first = sequence @ output[:, :states].T + output[:, -1]
    others = sequence @ complement.T
    return np.concatenate([first, others / np.maximum(others.std(axis=0), 1e-12)], axis=1)


def stabilize(a: np.ndarray) -> np.ndarray:
    """Moves the eigenvalues of a matrix inside the unit circle."""
    values, vectors = np.linalg.eig(a)
    size = np.abs(values)
    return np.real(vectors @ np.diag(values * np.minimum(1, STABLE / np.maximum(size, 1e-12))) @ np.linalg.inv(vectors))


def to_continuous_time(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Rates:
    """Returns the continuous-time system with steps `a z + b u + c` from row to row, for inputs held over each step."""
    values, vectors = np.linalg.eig(a)
    # A negative eigenvalue has no real logarithm; its mode vanishes within a few rows.
    values = np.where(np.abs(np.imag(values)) < 1e-9, np.abs(values), values)
    logs = np.log(np.maximum(np.abs(values), np.exp(-FASTEST_MODE))) + 1j * np.angle(values)
    still = np.abs(logs) < 1e-9
    gain = np.where(still, 1, (np.exp(logs) - 1) / np.where(still, 1, logs))
    inverse = np.linalg.inv(vectors)
    back = np.real(vectors @ np.diag(1 / gain) @ inverse)
    return Rates(np.real(vectors @ np.diag(logs) @ inverse), back @ b, back @ c)

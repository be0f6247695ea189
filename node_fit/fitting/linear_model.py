"""Finds a linear state-space model of a driven record: its number of hidden states, its system and its starts.

A network begins as this model and has to beat it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from ..data.batch import Batch
from ..data.dataset import Dataset
from ..data.scaling import Scaler
from .linear_simulation import LinearSystem, Record, minimised, residuals
from .subspace import Rates, identified

# Maximum number of hidden states to try.
MOST_HIDDEN = 6
# Steps from each initial guess, and in the whole search.
FIRST, STEPS = 8, 40
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
    windows: Batch, validation: Batch, train: Dataset, scaler: Scaler, kind: str, hidden: int | None = None
) -> Iterator[LinearModel]:
    """Linear models with 0, 1, 2, ... hidden states until more do not help, or with a given number.

    Each minimises the simulation error of windows, from two initial guesses: the model with one state less, and
    subspace identification.

    **Arguments:**

    - `windows`, `validation`: the data to fit, and the data that choose the number of states; on the host.
    - `train`, `scaler`: the evenly sampled records from which the windows were cut, for the initial guess.
    - `kind`: how inputs are interpolated.
    - `hidden`: the number of hidden states; None to search.
    """
    # Loads SciPy's own BLAS, which the limit covers only once it is loaded; with threads its last bits differ.
    import scipy.linalg  # noqa: F401

    # Many small products, in which threads would only wait for each other.
    with threadpool_limits(1):
        yield from searched(Record.of(windows, kind), Record.of(validation, kind), train, scaler, kind, hidden)


def searched(
    record: Record, held_out: Record, train: Dataset, scaler: Scaler, kind: str, hidden: int | None
) -> Iterator[LinearModel]:
    known = np.isfinite(train.ys).all(axis=2) & train.valid
    ys, us = np.nan_to_num(scaler.scale_states(train.ys)), scaler.scale_inputs(train.us)
    over = us if kind == "hold" else (us + np.concatenate([us[:, 1:], us[:, -1:]], axis=1)) / 2
    channels, best, found, idle = ys.shape[2], np.inf, None, 0
    for count in range(MOST_HIDDEN + 1) if hidden is None else (hidden,):
        starts = [extended(found, channels + count, record, us.shape[2])]
        guess = identified(ys, over, known, channels + count)
        if guess is not None:
            starts.append(with_no_start(guess, record))
        tried = [minimised(start, record, FIRST) for start in starts]
        found, _ = minimised(min(tried, key=lambda each: each[1])[0], record, STEPS)
        candidates = [found, *(constants(record, us.shape[2]) if count == 0 else [])]
        best_one = min(candidates, key=lambda each: error_on(each, held_out))
        validated = error_on(best_one, held_out)
        crossed = cross_validated(found, record)
        judged = float(np.sqrt((validated**2 + crossed**2) / 2))
        yield LinearModel(best_one, channels, validated, error_on(best_one, record), judged)
        idle = idle + 1 if judged > (1 - WORTH) * best else 0
        best = min(best, judged)
        if idle >= TRIES:
            return


def error_on(system: LinearSystem, record: Record) -> float:
    """NRMSE of simulated channels."""
    return float(np.sqrt((residuals(system, record) ** 2).sum() / record.variance))


def cross_validated(system: LinearSystem, record: Record) -> float:
    """NRMSE by two-fold cross-validation over the windows; each fit begins at a system fitted to all of them.

    The validation data may be few and from one regime, and then do not determine the number of states.
    """
    half = record.ys.shape[1] // 2
    if half < 2:
        return error_on(system, record)
    halves = (record.part(slice(half)), record.part(slice(half, None)))
    errors = [error_on(minimised(system, other, FIRST)[0], own) for own, other in (halves, halves[::-1])]
    return float(np.sqrt(np.mean(np.square(errors))))


def constants(record: Record, inputs: int) -> list[LinearSystem]:
    """Two systems that a linear model has to beat: one keeps the last known values, one the mean."""
    channels, features = record.ys.shape[2], record.past.shape[1]
    rates = Rates(np.zeros((channels, channels)), np.zeros((channels, inputs)), np.zeros(channels))
    keeps = with_no_start(rates, record)
    forgets = np.zeros((channels, features))
    last = features - (2 * channels + inputs + 1)
    forgets[:, last : last + channels] = -np.eye(channels)
    return [keeps, keeps._replace(e=forgets)]


def with_no_start(rates: Rates, record: Record) -> LinearSystem:
    """A system whose hidden states start at zero."""
    states = len(rates.c)
    return LinearSystem(*rates, np.zeros((states, record.past.shape[1])), np.zeros(states))


def extended(before: LinearSystem | None, states: int, record: Record, inputs: int) -> LinearSystem:
    """A smaller system with further states, which decay and are weakly coupled."""
    rng = np.random.default_rng(states)
    a = 0.05 * (rng.normal(size=(states, states)) / np.sqrt(states) - np.eye(states))
    b, c = 0.05 * rng.normal(size=(states, inputs)), np.zeros(states)
    found = with_no_start(Rates(a, b, c), record)
    if before is not None:
        old = len(before.a)
        a[:old, :old] = before.a
        for whole, part in zip(found[1:], before[1:], strict=True):
            whole[:old] = part
    return found

"""Finds channels that respond to held inputs at once, such as the voltage of a battery to its current.

A held input moves the states of a system only from its row on. What it changes at its own row is direct feedthrough.
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from ..data.dataset import Dataset
from ..data.inputs import without_noise

# Number of past rows in the regression, and rows required per column.
LAGS, ROWS_PER_COLUMN = 3, 3
# Significance level of a direct response, and its size at changes of the input, in standard deviations of what remains.
# A controller that switches by the sign of a row's noise seems to respond by 2.6 of them: 2 sqrt(2/pi) of the noise
# between its means, of which sqrt(1 - 2/pi) remains.
DIRECT_RISK, LEAST_JUMP = 1e-6, 3.0


def estimate_feedthrough(data: Dataset) -> Float[np.ndarray, "channel input"] | None:
    """Estimates the direct response of each channel to each held input, in the user's units.

    A regression of each row on the rows before it and on its own inputs (ARX) gives the responses.

    **Returns:** the responses, zero unless they are significant and larger than noise; None if all of them are zero,
    if no input is held, or with too few rows.
    """
    if not any(data.held_inputs) or data.ys.shape[1] <= LAGS:
        return None
    past, now, ys = collect_rows(data.exact)
    columns, inputs = past.shape[1] + now.shape[1], now.shape[1]
    if len(ys) < ROWS_PER_COLUMN * columns:
        return None
    table = np.concatenate([past, now], axis=1)
    squares, freedom = sum_squares(table, ys), len(ys) - columns
    direct = np.linalg.lstsq(table, ys, rcond=None)[0][-inputs:].T
    noise = np.sqrt(squares / freedom)
    levels = without_noise(data.us, data.valid)[data.valid]
    for index in range(inputs):
        changes = np.diff(levels[:, index])
        jump = np.sqrt(np.mean(changes[changes != 0] ** 2)) if changes.any() else 0.0
        without = sum_squares(np.delete(table, past.shape[1] + index, axis=1), ys)
        chance = compute_chance((without - squares) / (noise**2 + 1e-300), freedom)
        is_large = np.abs(direct[:, index]) * jump > LEAST_JUMP * noise
        direct[:, index] *= data.held_inputs[index] & (chance < DIRECT_RISK) & is_large
    return direct if direct.any() else None


def collect_rows(
    data: Dataset,
) -> tuple[Float[np.ndarray, "row column"], Float[np.ndarray, "row input"], Float[np.ndarray, "row channel"]]:
    """Returns the past rows with a constant, the inputs and the channels of each row that follows enough known rows."""
    known = np.asarray(data.mask & np.isfinite(data.ys)).all(axis=2)
    complete = np.lib.stride_tricks.sliding_window_view(known, LAGS + 1, axis=1).all(axis=2)
    trajectory, row = np.nonzero(complete)
    row = row + LAGS
    both = np.concatenate([data.ys, data.us], axis=2)
    past = [both[trajectory, row - lag] for lag in range(1, LAGS + 1)]
    return (
        np.concatenate([*past, np.ones((len(row), 1))], axis=1),
        data.us[trajectory, row],
        data.ys[trajectory, row],
    )


def sum_squares(table: np.ndarray, ys: Float[np.ndarray, "row channel"]) -> Float[np.ndarray, " channel"]:
    """Computes the sums of squares that least squares leaves."""
    return ((ys - table @ np.linalg.lstsq(table, ys, rcond=None)[0]) ** 2).sum(axis=0)


def compute_chance(ratio: Float[np.ndarray, " channel"], freedom: int) -> Float[np.ndarray, " channel"]:
    """Returns the probability that chance alone lowers the squares so far by one more column (F-test)."""
    from scipy.stats import f

    return f.sf(ratio, 1, freedom)


def without_feedthrough(data: Dataset, direct: Float[np.ndarray, "channel input"]) -> Dataset:
    """Returns the data with the direct responses to the inputs subtracted from the channels."""
    return replace(data, ys=data.ys - data.us @ direct.T)

"""Turns smoothed records into the linear equations of a regression: derivatives at rows, and the weak form."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .formulas import Term, read_tape
from .smoothing import Smoothed, goes_over_decades

# Rows dropped at each end of a record, where the derivative of a spline is least accurate.
LEFT_OUT = 3
# Window lengths of the weak form, as shares of the record's length.
WEAK_LENGTHS = (0.1, 0.2)


@dataclass(frozen=True)
class View:
    """The data of a regression: rates, and a linear map from values at rows to equations for the rates.

    **Arguments:** `values`: `(row, name)`. `rates`: `(equation, state)`. `weights`: `(equation, row)` for the weak
    form, or None where each row is an equation.
    """

    values: np.ndarray
    rates: np.ndarray
    weights: np.ndarray | None

    def features(self, terms: Sequence[Term], names: Sequence[str]) -> np.ndarray:
        """Computes the value of each term in each equation, shape `(equation, term)`."""
        columns = [self.values[:, column] for column in range(self.values.shape[1])]
        with np.errstate(all="ignore"):
            values = read_tape([term.text for term in terms], names)(columns)
        features_by_row = np.stack([np.broadcast_to(value, len(self.values)) for value in values], axis=1)
        return features_by_row if self.weights is None else self.weights @ features_by_row


def make_views(records: Sequence[Smoothed], weak: bool) -> list[View]:
    """Returns the view of derivatives and, with `weak`, those of the weak form (D. Messenger and D. Bortz, 2021)."""
    inner = [slice(LEFT_OUT, -LEFT_OUT) if len(record.t) > 4 * LEFT_OUT else slice(None) for record in records]
    values = np.concatenate([record.values[rows] for record, rows in zip(records, inner, strict=True)])
    rates = np.concatenate([record.rates[rows] for record, rows in zip(records, inner, strict=True)])
    weights = None
    if any(goes_over_decades(record.t) for record in records):
        # Equal weight for rows with fast and slow rates.
        weights = np.diag(1 / np.maximum(np.abs(rates).max(axis=1), 1e-300))
        rates = weights @ rates
    views = [View(values, rates, weights)]
    if weak:
        views += [weak_view(records, length) for length in WEAK_LENGTHS]
    return views


def weak_view(records: Sequence[Smoothed], length: float) -> View:
    """Integrates each record against bump functions, which avoids derivatives of measurements."""
    nodes = [integration_nodes(record) for record in records]
    total = sum(len(at) for at, _, _ in nodes)
    first = 0
    weights: list[np.ndarray] = []
    sides: list[np.ndarray] = []
    for record, (at, share, _) in zip(records, nodes, strict=True):
        t, step = record.t, np.gradient(record.t)
        half = (t[-1] - t[0]) * length
        raw = np.where(np.isfinite(record.raw), record.raw, record.values[:, : record.raw.shape[1]])
        for middle in np.linspace(t[0] + half, t[-1] - half, max(12, len(t) // 3)):
            z = np.clip((t - middle) / half, -1, 1)
            bump = (1 - np.clip((at - middle) / half, -1, 1) ** 2) ** 3
            norm = float((bump * share).sum())
            if norm <= 0 or np.count_nonzero(np.abs(z) < 1) < 4:
                continue
            row = np.zeros(total)
            row[first : first + len(at)] = bump * share / norm
            weights.append(row)
            slope = -6 * z * (1 - z**2) ** 2 / half
            sides.append(-(slope * step / norm) @ raw)
        first += len(at)
    if not weights:
        values = np.concatenate([record.values for record in records])
        return View(values, np.concatenate([record.rates for record in records]), None)
    return View(np.concatenate([values for _, _, values in nodes]), np.array(sides), np.array(weights))


def integration_nodes(record: Smoothed) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the times, weights and values of the trapezoidal rule: both ends of each step if an input is held."""
    t, values = record.t, record.values
    if not any(record.held):
        return t, np.gradient(t), values
    is_held = [record.is_held(name) for name in range(values.shape[1])]
    ends = np.where(is_held, values[:-1], values[1:])
    half = np.diff(t) / 2
    return np.concatenate([t[:-1], t[1:]]), np.concatenate([half, half]), np.concatenate([values[:-1], ends])

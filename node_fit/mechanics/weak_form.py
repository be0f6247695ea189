"""The weak form of a mechanism: equations of motion times bumps in time, integrated by parts.

No measurement is differentiated, and linear least squares gives all constants except the velocities at which dry
friction sets in (D. Messenger and D. Bortz, Multiscale Modeling and Simulation 19, 2021).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ..data.dataset import Dataset
from ..discover.formulas import read_tape
from ..discover.smoothing import Smoothed, smooth_record
from .pairing import Pairing
from .structure import ForceTerm, MassTerm, Mechanism

# Bump lengths in rows, stride between bumps, and the prior weight of the weak form.
BUMPS, BUMP_STRIDE, WEAK_RIDGE = (10, 20, 40), 5, 1e-4
# Number of blocks of bumps; every second block is held out.
WEAK_BLOCKS = 8
# Initial velocity at which dry friction sets in, as a share of the spread.
FIRST_WIDTH = 0.03
# Minimum noise as a share of the spread.
MIN_NOISE_SHARE = 1e-4


class WeakForm(NamedTuple):
    """Linear equations for the constants, `(bump, coordinate, constant)`, and input terms, `(bump, input)`."""

    features: np.ndarray
    pushed: np.ndarray

    def place(self, mechanism: Mechanism, inputs: Sequence[str]) -> np.ndarray:
        """Returns the force on each coordinate, `(bump, coordinate)`."""
        none = np.zeros(len(self.pushed))
        forces = [none if name is None else self.pushed[:, inputs.index(name)] for name in mechanism.forces]
        return np.stack(forces, axis=1)


# The terms of a mechanism, and the rows of the bumps of its weak form.
WeakKey = tuple[tuple[MassTerm, ...], tuple[ForceTerm, ...], int]


@dataclass(frozen=True)
class SmoothRecords:
    """Smoothed records of a mechanism.

    **Arguments:** `data`: the measurements. `each`: the smoothed records. `widths`: initial values of the velocity at
    which dry friction sets in, by velocity. `known`: cache of weak forms.
    """

    data: Dataset
    each: list[Smoothed]
    widths: dict[str, float]
    known: dict[WeakKey, WeakForm] = field(default_factory=dict[WeakKey, WeakForm])

    @staticmethod
    def of(data: Dataset, pairing: Pairing, *, held: Sequence[bool]) -> "SmoothRecords":
        smoothed = [
            smooth_record(data.ts[row, :length], data.ys[row, :length], data.us[row, :length])
            for row, length in enumerate(data.lengths)
        ]
        records = [replace(record, held=tuple(held)) for record in smoothed]
        spread = np.concatenate([record.values for record in records]).std(axis=0)
        widths = {name: FIRST_WIDTH * float(spread[data.states.index(name)]) for name in pairing.velocities}
        return SmoothRecords(data, records, widths)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.data.states, *self.data.inputs)

    @property
    def noise(self) -> np.ndarray:
        """Noise of each state, estimated from the residuals of smoothing."""
        count = len(self.data.states)
        residuals = np.concatenate([record.raw - record.values[:, :count] for record in self.each])
        return np.maximum(np.nanstd(residuals, axis=0), self.resolution)

    @property
    def resolution(self) -> np.ndarray:
        """Smallest significant residual of each state; inputs between rows are not known more accurately."""
        values = np.concatenate([record.values for record in self.each])[:, : len(self.data.states)]
        return np.maximum(MIN_NOISE_SHARE * values.std(axis=0), 1e-12)

    def first_widths(self, mechanism: Mechanism) -> dict[ForceTerm, float]:
        return {term: self.widths[mechanism.velocities[term.direction.index(1)]] for term in mechanism.widths}

    def weak_form(self, mechanism: Mechanism, rows: int) -> WeakForm:
        """Returns the equations for bumps of this number of rows."""
        key = (mechanism.masses, mechanism.rest, rows)
        if key not in self.known:
            parts = [integrate_bumps(record, *self.summands(mechanism, record), rows) for record in self.each]
            self.known[key] = WeakForm(*(np.concatenate(part) for part in zip(*parts, strict=True)))
        return self.known[key]

    def summands(self, mechanism: Mechanism, record: Smoothed) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns each constant's contributions to the momenta and to the other forces; and the inputs, `(input, row)`.

        **Returns:** the first two are `(constant, coordinate, row)`; momenta are those of the masses alone, which come
        first.
        """
        widths = self.first_widths(mechanism)
        texts = [text for term in mechanism.masses for text in (*mechanism.momenta(term), *mechanism.tensions(term))]
        texts += [term.text.format(width=widths.get(term)) for term in mechanism.rest]
        rows, masses = len(record.t), len(mechanism.masses)
        values = np.array([np.broadcast_to(value, rows) for value in read_tape(texts, self.names)([*record.values.T])])
        moving, rest = np.split(values, [2 * mechanism.size * masses])
        moving = moving.reshape(masses, 2, mechanism.size, rows)
        directions = np.array([term.direction for term in mechanism.rest], float).reshape(-1, mechanism.size)
        still = np.concatenate([moving[:, 1], directions[:, :, None] * rest[:, None]])
        return moving[:, 0], still, record.values[:, len(self.data.states) :].T

    def weak_values(self, mechanism: Mechanism, rows: int, left_out: int | None = None) -> tuple[np.ndarray, float]:
        """Estimates the constants with the weak form; returns them with the held-out mean squared error.

        **Arguments:** `rows`: rows per bump. `left_out`: 0 or 1 to leave out every second block of bumps.
        """
        weak = self.weak_form(mechanism, rows)
        forces = weak.place(mechanism, self.data.inputs)
        blocks = np.arange(len(forces)) // max(len(forces) // WEAK_BLOCKS, 1) % 2
        here, there = blocks != left_out, blocks == (0 if left_out is None else left_out)
        features = weak.features[here].reshape(-1, weak.features.shape[-1])
        scale: np.ndarray = np.sqrt((features**2).mean(axis=0)) + 1e-12
        scaled: np.ndarray = features / scale
        square = scaled.T @ scaled + WEAK_RIDGE * len(scaled) * np.eye(len(scale))
        values: np.ndarray = np.linalg.solve(square, scaled.T @ forces[here].ravel()) / scale
        missed: np.ndarray = weak.features[there] @ values - forces[there]
        return np.array([*values, *self.first_widths(mechanism).values()]), float(np.square(missed).mean())

    def held_out_error(self, mechanism: Mechanism) -> float:
        """Computes the weak-form error on held-out blocks for bumps of medium length."""
        return sum(self.weak_values(mechanism, BUMPS[1], fold)[1] for fold in (0, 1))


def integrate_bumps(
    record: Smoothed, momenta: np.ndarray, still: np.ndarray, inputs: np.ndarray, rows: int
) -> WeakForm:
    """Computes the weak form of a record for bumps of `rows` rows from the results of `SmoothRecords.summands`."""
    features: list[np.ndarray] = []
    pushed: list[np.ndarray] = []
    for first in range(0, len(record.t) - rows, BUMP_STRIDE):
        piece = slice(first, first + rows + 1)
        t = record.t[piece]
        half = (t[-1] - t[0]) / 2
        z = np.clip((t - t[0]) / half - 1, -1, 1)
        weights = np.gradient(t) / half
        bump, slope = (1 - z**2) ** 2 * weights, -4 * z * (1 - z**2) / half * weights
        balance = still[:, :, piece] @ bump
        balance[: len(momenta)] -= momenta[:, :, piece] @ slope
        features.append(balance.T)
        # Inputs held between two rows have the mean weight of these.
        between: np.ndarray = inputs[:, piece][:, :-1] @ ((bump[:-1] + bump[1:]) / 2)
        lines: np.ndarray = inputs[:, piece] @ bump
        pushed.append(np.where(np.array(record.held, bool), between, lines))
    return WeakForm(
        np.array(features).reshape(-1, momenta.shape[1], len(still)), np.array(pushed).reshape(-1, len(inputs))
    )

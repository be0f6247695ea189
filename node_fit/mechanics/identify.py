"""Finds the mechanism behind positions, velocities and forces, and its constants.

The weak form gives first values: the equations of motion are multiplied by bumps in time and integrated by parts, so
that nothing measured is differentiated, and all constants but few are found by linear least squares. Simulations of
whole records, in windows whose states meet, then give the constants, as they do of equations that `discover` finds.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ..data.dataset import Dataset
from ..discover.balance import Balance
from ..discover.candidates import Smoothed, smooth_record
from ..discover.formulas import read_tape
from ..discover.judging import MAX_CORRELATION, SYMBOL, Judge, schwarz_criterion
from ..discover.names import plain_names
from ..discover.simulation import Family, Fitting, Span, least_squares_of, linearize
from ..discover.watch import SearchWatch
from .structure import ForceTerm, MassTerm, Mechanism, forms

# Coordinates up to which mechanisms are written as equations.
MOST_COORDINATES = 3
# Velocities are those of a position if their integral over some rows misses its changes by at most this share.
INTEGRATED_ROWS, MOST_MISSED = 10, 0.1
# Rows of the bumps, between their beginnings, and the weight of the prior of the weak form.
BUMPS, BUMP_STRIDE, WEAK_RIDGE = (10, 20, 40), 5, 1e-4
# Blocks of bumps, of which every second one is left out, and the share by which a tilted mechanism must be better
# there.
WEAK_BLOCKS, LESS_SIMPLE = 8, 0.02
# The velocity at which dry friction sets in, at first, as a share of the spread.
FIRST_WIDTH = 0.03
# Mechanisms that are simulated, the evaluations of each, and of one with a term less; and the terms that are left out
# in turn, those nearest to 0 in standard errors, before nothing is simpler; within so many, all are left out at once.
SIMULATED_FORMS, MECHANISM_TRIALS, FEWER_TRIALS, DROPPED, INSIGNIFICANT = 3, 16, 8, 2, 2.0
# Rows that the search sees, and those of a piece of a longer record.
MOST_SEEN, PIECE = 4000, 2000
# Noise, as a share of the spread, at the least.
MIN_NOISE_SHARE = 1e-4


class Pairing(NamedTuple):
    """The names of positions, and those of their velocities."""

    positions: tuple[str, ...]
    velocities: tuple[str, ...]


@dataclass(frozen=True)
class FoundMechanism:
    """A mechanism with the values of its constants.

    **Arguments:** `mechanism`: its terms. `values`: of its constants. `errors`: their standard errors. `evidence`:
    minus twice the logarithm of the probability of the records, and its size; lower is better. `variance`: mean squared
    residual of the simulation, in units of the noise. `starts`: of windows, `(state, window)`; `follows`: whether each
    begins where the one before ends. `noise`: root mean square of the residuals of each state.
    `correlation`: of neighbouring residuals, of the state of which it is largest, beyond chance.
    """

    mechanism: Mechanism
    values: np.ndarray
    errors: np.ndarray
    evidence: float
    variance: float
    starts: np.ndarray
    follows: tuple[bool, ...]
    noise: np.ndarray
    correlation: float

    @staticmethod
    def of(
        mechanism: Mechanism, fitted: Fitting, span: Span, share: float = 1.0, *, frees_widths: bool = False
    ) -> "FoundMechanism":
        """A mechanism where least squares have come.

        **Arguments:** `share`: of residuals that count as independent. `frees_widths`: whether the velocities at which
        dry friction sets in were fitted, too.
        """
        count, values = len(fitted.left), fitted.values
        variance, unknowns = fitted.total / count, fitted.jacobian.shape[1]
        spread = np.sqrt(variance * np.diag(np.linalg.pinv(fitted.jacobian.T @ fitted.jacobian)).clip(min=0))
        evidence = schwarz_criterion(variance, share * count, unknowns) + SYMBOL * len(values)
        free = mechanism.terms + (len(mechanism.widths) if frees_widths else 0)
        errors = np.pad(spread[len(spread) - free :], (0, len(values) - free))
        left = np.full(span.raw.transpose(2, 0, 1).shape, np.nan)
        left[np.isfinite(span.raw).transpose(2, 0, 1)] = fitted.left
        left = left.transpose(1, 2, 0) * span.spread
        noise = np.sqrt(np.nanmean(left**2, axis=(0, 2)))
        alike = np.nanmean(left[1:] * left[:-1], axis=(0, 2)) / noise**2 - (count / len(noise)) ** -0.5
        correlation = float(np.clip(alike.max(), 0.0, MAX_CORRELATION))
        return FoundMechanism(
            mechanism, values, errors, evidence, variance, fitted.starts, span.follows, noise, correlation
        )

    @property
    def equations(self) -> dict[str, str]:
        return self.mechanism.equations()

    @property
    def constants(self) -> "dict[str, float | list[float | None]]":
        """The constants by name; velocities at which dry friction sets in are positive."""
        values: dict[str, float | list[float | None]] = dict(
            zip(self.mechanism.constants, self.values.tolist(), strict=True)
        )
        for place, name in self.mechanism.dry:
            width = self.values[self.mechanism.constants.index(name)]
            values[name] = [abs(float(width)) or 1.0, 0.0, None]
            values[self.mechanism.constants[place]] = float(self.values[place]) * (1.0 if width > 0 else -1.0)
        return values


def pair_velocities(data: Dataset) -> Pairing | None:
    """The positions among the states and their velocities, where these are all states; None where they are not."""
    count, odd = divmod(len(data.states), 2)
    if odd or not 1 <= count <= MOST_COORDINATES:
        return None
    missed = np.array([[miss_changes(data, position, rate) for rate in data.states] for position in data.states])
    order = np.argsort(missed.min(axis=1))[:count]
    rates = missed[order].argmin(axis=1)
    at: list[tuple[int, int]] = sorted(zip(order.tolist(), rates.tolist(), strict=True))
    if len({*order.tolist(), *rates.tolist()}) < 2 * count or missed[order].min(axis=1).max() > MOST_MISSED:
        return None
    return Pairing(tuple(data.states[one] for one, _ in at), tuple(data.states[rate] for _, rate in at))


def pair_states(
    data: Dataset, positions: Sequence[str] | None = None, velocities: Sequence[str] | None = None
) -> Pairing:
    """The positions and velocities that are named, or else those that the data tell.

    **Raises:** `ValueError` if the states are not positions and their velocities, forces are missing, or equations
    can't have a name.
    """
    for name, plain in plain_names([*data.states, *data.inputs]).items():
        raise ValueError(
            f"field=mechanical: equations can't have the name {name!r}; rename it, for example to {plain}."
        )
    if not data.is_driven or data.events is not None or data.angles:
        raise ValueError(
            "field=mechanical needs forces that change as inputs, and neither events nor angles that turn over; the "
            "scale of masses is that of the forces."
        )
    if (positions is None) != (velocities is None):
        raise ValueError("field.positions and field.velocities are named together; give both, or neither.")
    if positions is not None and velocities is not None:
        pairing = Pairing(tuple(positions), tuple(velocities))
        named = sorted((*positions, *velocities))
        if named != sorted(data.states) or len(positions) != len(velocities):
            raise ValueError(
                "field.positions and field.velocities must name each state once; the states are "
                f"{', '.join(data.states)}."
            )
    elif (pairing := pair_velocities(data)) is None:
        raise ValueError(
            f"field=mechanical needs at most {MOST_COORDINATES} positions with their velocities as states, and of "
            f"{', '.join(data.states)} no half is the rate of the other; name them (field.positions, field.velocities)."
        )
    if len(pairing.positions) > MOST_COORDINATES or len(data.inputs) > len(pairing.positions):
        raise ValueError(
            f"field=mechanical needs at most {MOST_COORDINATES} positions, and no more inputs than these; each input "
            "is the force on a position."
        )
    if int(data.lengths.max()) <= max(BUMPS):
        raise ValueError(f"field=mechanical needs a trajectory of more than {max(BUMPS)} rows.")
    return pairing


def miss_changes(data: Dataset, position: str, rate: str) -> float:
    """How far the integral of a rate is from the changes of a position over some rows, as a share of these."""
    if position == rate:
        return np.inf
    q, v = (data.ys[..., data.states.index(name)] for name in (position, rate))
    steps = np.diff(data.ts, axis=1) * (v[:, 1:] + v[:, :-1]) / 2
    steps = np.where(data.valid[:, 1:], steps, np.nan)
    if steps.shape[1] <= INTEGRATED_ROWS:
        return np.inf
    moved = np.lib.stride_tricks.sliding_window_view(steps, INTEGRATED_ROWS, axis=1).sum(axis=-1)
    change = q[:, INTEGRATED_ROWS:] - q[:, :-INTEGRATED_ROWS]
    known = np.isfinite(moved) & np.isfinite(change)
    size = float(np.sqrt((change[known] ** 2).mean())) if known.any() else 0.0
    return float(np.sqrt(((moved - change)[known] ** 2).mean())) / size if size else np.inf


def seen_part(data: Dataset) -> Dataset:
    """So many rows of the data as the search looks at."""
    data = data.windows(PIECE, PIECE) if int(data.lengths.max()) > MOST_SEEN else data
    return data.sample(max(MOST_SEEN // int(data.lengths.max()), 1))


def find_mechanism(data: Dataset, pairing: Pairing, *, held: bool, watch: SearchWatch | None = None) -> FoundMechanism:
    """The most probable mechanism of positions and velocities under measured forces.

    **Arguments:** `data`: all states are positions and velocities, as `pairing` says. `held`: whether inputs stay as
    they are from row to row. `watch`: told what is done.
    """
    watch = SearchWatch() if watch is None else watch
    search = MechanismSearch(SmoothRecords.of(seen_part(data), pairing, held=held), watch)
    candidates: list[tuple[float, Mechanism]] = []
    for forces in placed_forces(data.inputs, len(pairing.positions)):
        for mechanism in forms(*pairing, forces, {*search.records.names, data.time}):
            watch(f"the weak form of {mechanism.title}")
            error = search.records.held_out_error(mechanism)
            candidates.append((error * (1 + LESS_SIMPLE * mechanism.is_tilted), mechanism))
    candidates.sort(key=lambda each: each[0])
    best = search.fit(candidates[0][1])
    for _, mechanism in candidates[1:SIMULATED_FORMS]:
        other = search.fit(mechanism)
        best = other if other.evidence < best.evidence else best
    return search.settle(best)


def placed_forces(inputs: Sequence[str], count: int) -> list[tuple[str | None, ...]]:
    """The coordinates that inputs may act on, each one of its own; the order of the columns first."""
    given = [*inputs, *[None] * (count - len(inputs))]
    return list(dict.fromkeys(itertools.permutations(given))) if len(inputs) <= count else []


class Weak(NamedTuple):
    """Linear equations for the constants, `(bump, coordinate, constant)`, and what inputs push, `(bump, input)`."""

    features: np.ndarray
    pushed: np.ndarray

    def place(self, mechanism: Mechanism, inputs: Sequence[str]) -> np.ndarray:
        """The force on each coordinate, `(bump, coordinate)`."""
        none = np.zeros(len(self.pushed))
        forces = [none if name is None else self.pushed[:, inputs.index(name)] for name in mechanism.forces]
        return np.stack(forces, axis=1)


# The terms of a mechanism, and the rows of the bumps of its weak form.
WeakKey = tuple[tuple[MassTerm, ...], tuple[ForceTerm, ...], int]


@dataclass(frozen=True)
class SmoothRecords:
    """Smoothed records of a mechanism.

    **Arguments:** `data`: the measurements. `each`: smoothed. `widths`: first values of the velocity at which dry
    friction sets in, by velocity. `known`: the weak form of what was looked at.
    """

    data: Dataset
    each: list[Smoothed]
    widths: dict[str, float]
    known: dict[WeakKey, Weak] = field(default_factory=dict[WeakKey, Weak])

    @staticmethod
    def of(data: Dataset, pairing: Pairing, *, held: bool) -> "SmoothRecords":
        each = [
            replace(smooth_record(data.ts[row, :length], data.ys[row, :length], data.us[row, :length]), held=held)
            for row, length in enumerate(data.lengths)
        ]
        spread = np.concatenate([record.values for record in each]).std(axis=0)
        widths = {name: FIRST_WIDTH * float(spread[data.states.index(name)]) for name in pairing.velocities}
        return SmoothRecords(data, each, widths)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.data.states, *self.data.inputs)

    @property
    def noise(self) -> np.ndarray:
        """The noise of each state, by what smoothing leaves."""
        count = len(self.data.states)
        left = np.concatenate([record.raw - record.values[:, :count] for record in self.each])
        spread = np.concatenate([record.values[:, :count] for record in self.each]).std(axis=0)
        return np.maximum(np.nanstd(left, axis=0), np.maximum(MIN_NOISE_SHARE * spread, 1e-12))

    def first_widths(self, mechanism: Mechanism) -> dict[ForceTerm, float]:
        return {term: self.widths[mechanism.velocities[term.direction.index(1)]] for term in mechanism.widths}

    def weak_form(self, mechanism: Mechanism, rows: int) -> Weak:
        """The equations of bumps of so many rows."""
        key = (mechanism.masses, mechanism.rest, rows)
        if key not in self.known:
            parts = [integrate_bumps(record, *self.summands(mechanism, record), rows) for record in self.each]
            self.known[key] = Weak(*(np.concatenate(part) for part in zip(*parts, strict=True)))
        return self.known[key]

    def summands(self, mechanism: Mechanism, record: Smoothed) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What each constant adds to the momenta, and to the forces without those; and the inputs, `(input, row)`.

        **Returns:** the first two are `(constant, coordinate, row)`; momenta are those of the masses alone, which come
        first.
        """
        widths = self.first_widths(mechanism)
        texts = [text for term in mechanism.masses for text in (*mechanism.momenta(term), *mechanism.tensions(term))]
        texts += [term.text.format(width=widths.get(term)) for term in mechanism.rest]
        rows, masses = len(record.t), len(mechanism.masses)
        values = np.array([np.broadcast_to(each, rows) for each in read_tape(texts, self.names)([*record.values.T])])
        moving, rest = np.split(values, [2 * mechanism.size * masses])
        moving = moving.reshape(masses, 2, mechanism.size, rows)
        directions = np.array([term.direction for term in mechanism.rest], float).reshape(-1, mechanism.size)
        still = np.concatenate([moving[:, 1], directions[:, :, None] * rest[:, None]])
        return moving[:, 0], still, record.values[:, len(self.data.states) :].T

    def weak_values(self, mechanism: Mechanism, rows: int, left_out: int | None = None) -> tuple[np.ndarray, float]:
        """The constants by the weak form, and its mean squared error on what was left out.

        **Arguments:** `rows`: of a bump. `left_out`: 0 or 1 leaves every second block of bumps out.
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
        """The error of the weak form on blocks that were left out, in bumps of a middle length."""
        return sum(self.weak_values(mechanism, BUMPS[1], fold)[1] for fold in (0, 1))


def integrate_bumps(record: Smoothed, momenta: np.ndarray, still: np.ndarray, inputs: np.ndarray, rows: int) -> Weak:
    """The weak form of a record in bumps of so many rows; the other arguments are those of `SmoothRecords.summands`."""
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
        # What holds from a row to the next one has the mean weight of the two.
        pushed.append(
            inputs[:, piece][:, :-1] @ ((bump[:-1] + bump[1:]) / 2) if record.held else inputs[:, piece] @ bump
        )
    return Weak(np.array(features).reshape(-1, momenta.shape[1], len(still)), np.array(pushed).reshape(-1, len(inputs)))


@dataclass
class MechanismSearch:
    """Fits mechanisms by simulations of whole records.

    **Arguments:** `records`: to fit to. `watch`: told what is simulated.
    """

    records: SmoothRecords
    watch: SearchWatch

    def __post_init__(self) -> None:
        self.noise = self.records.noise
        self.steps: int | None = None
        self.share = 1.0

    def judge(self, mechanism: Mechanism, values: np.ndarray) -> Judge:
        """What simulates a mechanism; steps between rows are those of the first one, so that all have the same
        error."""
        data, equations = self.records.data, mechanism.equations()
        constants = dict(zip(mechanism.constants, values.tolist(), strict=True))
        rates = tuple(equations[name] for name in data.states)
        balance = Balance(mechanism.constants, mechanism.constants, rates, constants=constants)
        judge = Judge(self.records.each, data.states, data.inputs, balance, self.watch)
        judge.scale, judge.noise = self.noise, 1.0
        if self.steps is None:
            judge.choose_steps(balance.given())
            self.steps = judge.steps
        judge.steps = self.steps
        return judge

    def fit(self, mechanism: Mechanism) -> FoundMechanism:
        """The constants by simulations, from the best of the weak form's values for bumps of several lengths."""
        begun = np.array([self.records.weak_values(mechanism, rows)[0] for rows in BUMPS])
        judge = self.judge(mechanism, begun[1])
        span = judge.span(range(len(judge.states)))
        starts = np.repeat(span.starts[None], len(begun), axis=0)
        tried = linearize(
            without_links(span), family_of(judge, begun, mechanism.terms), np.arange(len(begun)), begun, starts
        )
        best = int(np.argmin([each.total for each in tried]))
        fitted, span = judge.fit_linked_or_apart(
            span, family_of(judge, begun[best, None], mechanism.terms), starts[:1], MECHANISM_TRIALS
        )
        return FoundMechanism.of(mechanism, fitted[0], span)

    def go_on(self, mechanism: Mechanism, found: FoundMechanism, *, frees_widths: bool = False) -> FoundMechanism:
        """The constants of a mechanism by simulations from those of another one with the same terms or more.

        **Arguments:** `frees_widths`: whether the velocities at which dry friction sets in are fitted, too; without dry
        friction, these would go anywhere.
        """
        known = dict(zip(found.mechanism.owners, found.values.tolist(), strict=True))
        begun = np.array([[known[owner] for owner in mechanism.owners]])
        judge = self.judge(mechanism, begun[0])
        span = replace(judge.span(range(len(judge.states))), follows=found.follows)
        family, trials = family_of(judge, begun, mechanism.terms), FEWER_TRIALS
        if frees_widths:
            family, trials = family_of(judge, begun, len(begun[0])), MECHANISM_TRIALS
        fitted = least_squares_of(span, family, found.starts[None], trials, self.watch)
        return FoundMechanism.of(mechanism, fitted[0], span, self.share, frees_widths=frees_widths)

    def settle(self, found: FoundMechanism) -> FoundMechanism:
        """The mechanism without what it does not need, with the noise that it leaves, steps that are exact enough for
        it, and the velocities at which its dry friction sets in."""
        # Residuals of what an encoder counts depend on each other.
        self.share = (1 - found.correlation) / (1 + found.correlation)
        self.noise, self.steps = found.noise, None
        shorter = self.simplify(self.go_on(found.mechanism, found))
        return self.simplify(self.go_on(shorter.mechanism, shorter, frees_widths=True))

    def simplify(self, found: FoundMechanism) -> FoundMechanism:
        """The mechanism without the terms without which the records are as probable: all that can't be told from none,
        or one of the least."""
        while True:
            far = (np.abs(found.values) / np.maximum(found.errors, 1e-300))[: found.mechanism.terms]
            least = [[at] for at in np.argsort(far)[:DROPPED].tolist()]
            for places in [np.flatnonzero(far < INSIGNIFICANT).tolist(), *least]:
                shorter = found.mechanism
                for place in sorted(places, reverse=True):
                    shorter = shorter.without(place)
                if shorter.masses and places:
                    tried = self.go_on(shorter, found)
                    if tried.evidence < found.evidence:
                        break
            else:
                return found
            found = tried


def without_links(span: Span) -> Span:
    """The windows apart, whose ends meet no others."""
    return replace(span, follows=(False,) * len(span.follows))


def family_of(judge: Judge, values: np.ndarray, free: int) -> Family:
    """A mechanism with some sets of constants, `(member, constant)`, as members that are simulated at once.

    **Arguments:** `free`: so many of the first constants are fitted.
    """
    family = Family.of([judge.balance.given()], judge.names, judge.balance)
    count = len(values)
    is_free = np.zeros((count, values.shape[1]), bool)
    is_free[:, :free] = True
    return replace(
        family,
        constants=values,
        free=is_free,
        owners=family.owners * count,
        kinds=np.zeros(count, int),
    )

"""Scores systems of right-hand sides by simulation, and proposes changes that improve the score."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..data.domains import LARGEST_BOUND
from .balance import Balance
from .formulas import Formula, Term
from .simulation import RESOLUTION, Family, Fitting, Span, least_squares_of, linearize
from .smoothing import Smoothed, goes_over_decades, spline_through
from .watch import SearchWatch

System = tuple[Formula, ...]
# Number of initial states at which a candidate is checked for divergence, their position between two random rows as a
# fraction, and the distance that counts as divergence, in ranges of the data. The initial states lie within the data
# because true equations can diverge outside it: Roessler's system does if its third state, which is never negative,
# starts just below 0.
PROBES, PROBE_REACH, FARTHEST = 8, 0.3, 10.0
# Rows per simulated window, and the maximum number of windows per record.
WINDOW, MOST_CUTS = 15, 12
# Solver steps between rows; the first number with an error below this fraction of the noise is used.
STEPS, STEP_ERROR = (1, 2, 4, 8, 16), 0.02
# Minus twice the log-probability of each symbol in a formula (a probability of 1 in 4.5).
SYMBOL = 3.0
# Ratio of mean squared errors (whole trajectories to noise, or to separate windows) above which windows are preferred.
WHOLE = 4.0
# Maximum autocorrelation of residuals; near 1, no residual would count as independent.
MAX_CORRELATION = 0.99
# Maximum number of terms added and replaced per round.
ADDED, REPLACED = 6, 8


def schwarz_criterion(variance: float, rows: float, unknowns: int) -> float:
    """Computes minus twice the log-evidence of a model, up to a constant shared by all models.

    It is n log(S/n) + k log n n/(n - k - 2): Schwarz's criterion (G. Schwarz, Annals of Statistics 6 (1978) 461), in
    corrected for small samples, in which each constant also absorbs noise (A. D. R. McQuarrie, Statistics & Probability
    Letters 44 (1999) 79). Constants have no prior width, since terms that cancel each other, as `x` and `x**2` do near
    an equilibrium, would exceed it. The result does not depend on units.

    **Arguments:** `variance`: S/n, the mean squared residual. `rows`: n, the number of independent values. `unknowns`:
    k, the number of constants and initial states.
    """
    left = max(rows - unknowns - 2, 1.0)
    return rows * np.log(variance + RESOLUTION**2) + unknowns * np.log(max(rows, 1.0)) * max(rows / left, 1.0)


@dataclass(frozen=True)
class JudgedSystem:
    """A system of right-hand sides, refined on the records.

    **Arguments:** `formulas`: one for each state. `starts`: initial states, `(state, record)`. `error`: mean squared
    error in standard deviations of each state; `variance`: the same in units of the noise's spread. `unknowns`: number
    of fitted constants and initial states. `escapes`: whether it diverges from an initial state within the data.
    `left`: residuals in standard deviations of each state, `(row, state, record)`, NaN where nothing was measured.
    `share`: fraction of the residuals that counts as independent.
    """

    formulas: System
    starts: np.ndarray
    error: float
    variance: float
    unknowns: int
    escapes: bool
    left: np.ndarray
    share: float = 1.0

    @property
    def size(self) -> int:
        return sum(formula.size for formula in self.formulas)

    @functools.cached_property
    def evidence(self) -> float:
        """Minus twice the log-evidence of the records, plus a penalty for the size; lower is better."""
        rows = self.share * np.isfinite(self.left).sum()
        return schwarz_criterion(self.variance, float(rows), self.unknowns) + SYMBOL * self.size

    @property
    def rank(self) -> tuple[bool, float]:
        return self.escapes, self.evidence

    @property
    def correlation(self) -> float:
        """Correlation of neighbouring residuals above the simulation's resolution; 0 without such pairs."""
        pairs = self.left[1:] * self.left[:-1]
        return float(np.nanmean(pairs) / (self.error + RESOLUTION**2)) if np.isfinite(pairs).any() else 0.0


def count_independent(judged: Sequence[JudgedSystem]) -> list[JudgedSystem]:
    """Re-ranks judged systems with an effective number of residuals, from the residual correlation of the best system.

    In a first-order autoregression with correlation r, n values determine a mean as well as (1 - r)/(1 + r) n
    independent values (G. V. Bayley and J. M. Hammersley, Supplement to the Journal of the Royal Statistical Society 8
    (1946) 184). A correlation within one standard error of chance counts as zero.
    """
    best = judged[0]
    correlation = np.clip(best.correlation - np.isfinite(best.left).sum() ** -0.5, 0.0, MAX_CORRELATION)
    share = float((1 - correlation) / (1 + correlation))
    return sorted((replace(system, share=share) for system in judged), key=lambda system: system.rank)


class Judge:
    """Simulates candidates on the records.

    **Arguments:** `records`: the smoothed records. `states`, `inputs`: names. `balance`: the functions to find; by
    default the rate of each state. `watch`: receives progress messages.

    `share`: fraction of residuals that counts as independent.
    """

    def __init__(
        self,
        records: Sequence[Smoothed],
        states: Sequence[str],
        inputs: Sequence[str],
        balance: Balance | None = None,
        watch: SearchWatch | None = None,
    ):
        self.watch = SearchWatch() if watch is None else watch
        self.share = 1.0
        self.records, self.states, self.inputs = records, list(states), list(inputs)
        self.balance = Balance.apart(self.states) if balance is None else balance
        self.names = [*self.states, *self.inputs]
        every = np.concatenate([record.values for record in records])
        self.values = every
        count = len(self.states)
        self.low, self.high = every[:, :count].min(0), every[:, :count].max(0)
        self.scale = np.maximum(every[:, :count].std(0), 1e-12)
        self.noise = max(record.noise_in(self.scale) for record in records)
        raw = np.concatenate([record.raw for record in records])
        self.measured = np.flatnonzero(np.isfinite(raw).any(axis=0))
        self.steps = STEPS[0]
        self.linked = True
        self.stiff = any(goes_over_decades(record.t) for record in records)
        self.spans: dict[tuple[object, ...], Span] = {}

    def span(self, states: Sequence[int]) -> Span:
        """Returns windows of the records for some states; the other states follow their splines."""
        key = (tuple(states), self.steps, self.linked)
        if key not in self.spans:
            self.spans[key] = self.make_span(list(states))
        return self.spans[key]

    def make_span(self, states: list[int]) -> Span:
        # Simulated alone, unmeasured states are compared with their smoothed values.
        records = self.records if len(states) == len(self.states) else [record.filled_record for record in self.records]
        pieces = [(record, piece) for record in records for piece in cut_pieces(len(record.t))]
        rows = max(piece.stop - piece.start for _, piece in pieces)
        others = [index for index in range(len(self.names)) if index not in states]
        steps, drivers = (
            np.zeros((rows - 1, len(pieces))),
            np.zeros((rows - 1, self.steps, 3, len(others), len(pieces))),
        )
        raw = np.full((rows, len(states), len(pieces)), np.nan)
        spread, starts = np.ones_like(raw), np.zeros((len(states), len(pieces)))
        for index, (record, piece) in enumerate(pieces):
            t = record.t[piece]
            steps[: len(t) - 1, index] = np.diff(t)
            shares = (np.arange(self.steps)[:, None] + np.array([0, 0.5, 1])) / self.steps
            nodes = t[:-1, None, None] + np.diff(t)[:, None, None] * shares
            for place, other in enumerate(others):
                # The last node of a step is the next row, where a held input already has its next value.
                held = record.is_held(other)
                values = record.values[piece][:-1, other, None, None] if held else record.value_at(other, nodes)
                drivers[: len(t) - 1, :, :, place, index] = values
            # Zero-length padding steps repeat the last values: at 0, a term such as 1/x would be infinite.
            drivers[len(t) - 1 :, ..., index] = drivers[len(t) - 2, -1, -1, :, index]
            repeated = int(piece.start > 0)  # Already in the previous window.
            raw[repeated : len(t), :, index] = record.raw[piece][repeated:, states]
            spread[: len(t), :, index] = record.spread[piece][:, states] * self.scale[states]
            starts[:, index] = record.values[piece][0, states]
        follows = tuple(self.linked and piece.start > 0 for _, piece in pieces)
        return Span(steps, drivers, raw, spread, starts, follows, self.stiff)

    def choose_steps(self, system: System) -> None:
        """Sets the smallest number of solver steps between rows that simulates a system accurately in short windows."""
        family = Family.of([system], self.names, self.balance)
        for few, more in itertools.pairwise(STEPS):
            solutions: list[np.ndarray] = []
            for self.steps in (few, more):
                span = self.span(range(len(self.states))).begin(WINDOW)
                solutions.append(span.simulate(family.rates, family.constants.T, span.starts[:, None]))
            self.steps = few
            with np.errstate(all="ignore"):
                gap = np.abs(solutions[1] - solutions[0]) / self.scale[:, None, None]
            if np.isfinite(gap).all() and np.sqrt((gap**2).mean()) < max(STEP_ERROR * self.noise, RESOLUTION / 10):
                return
        self.steps = STEPS[-2]

    def screen(self, formulas: Sequence[Formula], state: int, trials: int = 8) -> list[tuple[float, Formula]]:
        """Refines right-hand sides of one state, with the others on their splines; returns the most probable first."""
        span = self.span([state])
        names = [self.states[state], *[name for place, name in enumerate(self.names) if place != state]]
        systems = [(fit,) for fit in formulas]
        family = Family.of(systems, names)
        fitted, _ = self.fit_linked_or_apart(span, family, np.repeat(span.starts[None], len(systems), axis=0), trials)
        screened: list[tuple[float, Formula]] = []
        for member, (system, fit) in enumerate(zip(systems, fitted, strict=True)):
            (formula,) = family.formulas(member, fit.values, system)
            evidence = schwarz_criterion(error_of(fit), len(fit.left), fit.jacobian.shape[1])
            screened.append((evidence + SYMBOL * formula.size, formula))
        return sorted(screened, key=lambda pair: pair[0])

    def judge(
        self, systems: Sequence[System], starts: np.ndarray | None = None, trials: int = 12
    ) -> list[JudgedSystem]:
        """Fits constants and initial states of all systems to all records by least squares; returns the best first.

        **Arguments:** `starts`: initial states of a previously judged system, `(state, record)`.
        """
        family, span = Family.of(systems, self.names, self.balance), self.span(range(len(self.states)))
        begun = np.repeat((span.starts if starts is None else starts)[None], len(systems), axis=0)
        if starts is None:
            fitted, span = self.fit_linked_or_apart(span, family, begun, trials)
            self.linked = any(span.follows)
        else:
            fitted = least_squares_of(span, family, begun, trials, self.watch)
        return self.rank(systems, family, fitted, span)

    def fit_linked_or_apart(
        self, span: Span, family: Family, starts: np.ndarray, trials: int
    ) -> tuple[list[Fitting], Span]:
        """Fits linked windows, or separate windows if these have a much smaller error; returns the fits and their span.

        Whatever the constants, errors grow over a whole record if a system is chaotic, or if a state simulated alone is
        unstable along the noisy splines of the others.
        """
        fitted = least_squares_of(span, family, starts, trials, self.watch)
        if not any(span.follows) or min(map(error_of, fitted)) <= WHOLE * self.noise**2:
            return fitted, span
        apart = replace(span, follows=(False,) * len(span.follows))
        separate = least_squares_of(apart, family, starts, trials, self.watch)
        if min(map(error_of, separate)) > WHOLE * self.noise**2:
            # Errors of noisy initial states and of initial constants grow less over short windows.
            near, begun = family, starts
            for length in lengths_of_beginnings(len(span.raw)):
                grown = least_squares_of(apart.begin(length), near, begun, trials, self.watch)
                near = replace(family, constants=np.stack([fit.values for fit in grown]))
                begun = np.stack([fit.starts for fit in grown])
            grown = least_squares_of(apart, near, begun, trials, self.watch)
            separate = [min(pair, key=error_of) for pair in zip(separate, grown, strict=True)]
        better = min(map(error_of, separate)) < min(map(error_of, fitted)) / WHOLE
        return (separate, apart) if better else (fitted, span)

    def rank(
        self, systems: Sequence[System], family: Family, fitted: Sequence[Fitting], span: Span
    ) -> list[JudgedSystem]:
        """Returns the judged systems, the best first."""
        away = self.escape(family, np.stack([fit.values for fit in fitted]))
        judged: list[JudgedSystem] = []
        for member, (system, fit) in enumerate(zip(systems, fitted, strict=True)):
            formulas = family.formulas(member, fit.values, system)
            if not self.balance.accepts(formulas) or not all(map(is_writable, formulas)):
                continue
            residuals: np.ndarray = np.full(span.raw.transpose(2, 0, 1).shape, np.nan)
            residuals[np.isfinite(span.raw).transpose(2, 0, 1)] = fit.left
            residuals = residuals.transpose(1, 2, 0) * span.spread / self.scale[:, None]
            error, variance, unknowns = float(np.nanmean(residuals**2)), error_of(fit), fit.jacobian.shape[1]
            judged.append(
                JudgedSystem(formulas, fit.starts, error, variance, unknowns, bool(away[member]), residuals, self.share)
            )
        return sorted(judged, key=lambda entry: entry.rank)

    def escape(self, family: Family, values: np.ndarray) -> np.ndarray:
        """Returns which members diverge from an initial state within the data, `(member,)`."""
        draw, count = np.random.default_rng(0), len(self.states)
        rows, others = self.values[draw.integers(0, len(self.values), (2, PROBES)), :count]
        starts = np.repeat((rows + PROBE_REACH * (others - rows)).T[:, None], len(values), axis=1)
        span = self.span(range(count))
        pieces = range(span.follows.index(False, 1) if False in span.follows[1:] else len(span.follows))
        if not self.linked:
            pieces = range(len(cut_pieces(len(self.records[0].t))))
        states = starts[None]
        for piece in pieces:
            window = replace(span, steps=span.steps[:, piece : piece + 1], drivers=span.drivers[..., piece : piece + 1])
            states = window.simulate(family.rates, values.T, states[-1])
        reach = (FARTHEST * (self.high - self.low + 1e-12))[:, None, None]
        low, high = self.low[:, None, None] - reach, self.high[:, None, None] + reach
        with np.errstate(all="ignore"):
            inside = (states > low) & (states < high)
        return ~inside.all(axis=(0, 1, 3))

    def improve(
        self,
        known: Sequence[JudgedSystem],
        library: Mapping[int, Sequence[Term]],
        others: Sequence[Sequence[Formula]],
        systems: Sequence[System] = (),
        required: Sequence[str] = (),
    ) -> list[JudgedSystem]:
        """Judges variants of the best known system with terms dropped, added or replaced, or another right-hand side.

        **Arguments:** `known`: judged systems, the best first. `library`: terms of each function. `others`: alternative
        formulas of each function. `systems`: more systems to judge. `required`: terms that are never dropped.

        **Returns:** the known systems and the variants, the best first.
        """
        best = known[0]
        options = [
            replace_formula(best.formulas, state, formula)
            for state, formulas in enumerate(others)
            for formula in formulas
        ]
        least = 0 if self.balance.may_be_empty else 1
        options = remove_known_shapes(
            [*drop_each_term(best.formulas, least), *self.additions(best, library), *options, *systems], known
        )
        options = [option for option in options if self.balance.accepts(option, required)]
        tried = self.judge(options, best.starts) if options else []
        return sorted([*known, *tried], key=lambda entry: entry.rank)

    def follow(self, judged: JudgedSystem) -> list[Smoothed]:
        """Returns the records with a system's simulation in place of their splines."""
        family, span, count = (
            Family.of([judged.formulas], self.names, self.balance),
            self.span(range(len(self.states))),
            0,
        )
        solved = span.simulate(family.rates, family.constants.T, judged.starts[:, None])[:, :, 0]
        followed: list[Smoothed] = []
        for record in self.records:
            pieces = cut_pieces(len(record.t))
            values = record.values.copy()
            for window, piece in enumerate(pieces, start=count):
                values[piece, : len(self.states)] = solved[: piece.stop - piece.start, :, window]
            count += len(pieces)
            splines = tuple(spline_through(record.t, column) for column in values[:, : len(self.states)].T)
            rates = np.stack([spline.derivative()(record.t) for spline in splines], axis=1)
            followed.append(replace(record, values=values, rates=rates, splines=splines))
        return followed

    def additions(self, judged: JudgedSystem, library: Mapping[int, Sequence[Term]]) -> list[System]:
        """Returns the systems with one term added or replaced that fit best if trajectories are linear in constants."""
        wide = list(judged.formulas)
        absent: list[tuple[int, Term]] = []
        for state, formula in enumerate(judged.formulas):
            for term in library.get(state, ()) if formula.terms or not formula.parts else ():
                wider = wide[state].plus(term, 0.0)
                if len(set(wider.parts)) == len(wider.parts):
                    wide[state] = wider
                    absent.append((state, term))
        if not absent:
            return []
        family = Family.of([tuple(wide)], self.names, self.balance)
        span = self.span(range(len(self.states)))
        (fit,) = linearize(span, family, np.array([0]), family.constants, judged.starts[None])
        begin = fit.jacobian.shape[1] - int(family.free.sum())
        own = list(range(begin))
        columns: dict[tuple[int, str], int] = {}
        for state, formula in enumerate(judged.formulas):
            places = [begin + place for place in family.owners[0][state]]
            own += places[: len(formula.constants)]
            added = iter(places[len(formula.constants) :])
            for term_state, term in absent:
                if term_state == state:
                    own_places = [next(added) for _ in range(len(EMPTY.plus(term, 0.0).constants))]
                    columns[state, term.text] = own_places[0]
        return proposals(judged, absent, fit, columns, own, family)


EMPTY = Formula((), (), (), 0)


def is_writable(formula: Formula) -> bool:
    """Whether all constants are small enough to write; least squares can diverge for a wrong system."""
    return bool((np.abs(formula.constants) <= LARGEST_BOUND).all())


def proposals(
    judged: JudgedSystem,
    absent: Sequence[tuple[int, Term]],
    at: Fitting,
    columns: Mapping[tuple[int, str], int],
    own: list[int],
    family: Family,
) -> list[System]:
    """Returns the systems with one term added or replaced that have the smallest linearised sums of squares."""
    steps = at.jacobian[:, [columns[state, term.text] for state, term in absent]]
    begin = at.jacobian.shape[1] - int(family.free.sum())

    def gains(kept: list[int], left: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        basis, _ = np.linalg.qr(at.jacobian[:, kept])
        left = left - basis @ (basis.T @ left)
        orthogonal = steps - basis @ (basis.T @ steps)
        squares = (orthogonal**2).sum(0)
        good = squares > 1e-10 * np.maximum((steps**2).sum(0), 1e-300)
        along = np.where(good, -orthogonal.T @ left / np.where(good, squares, 1.0), 0.0)
        return float(left @ left), along**2 * squares, along

    systems: list[System] = []
    _, gain, along = gains(own, at.left)
    for place in map(int, np.argsort(-gain)[:ADDED]):
        state, term = absent[place]
        systems.append(replace_formula(judged.formulas, state, judged.formulas[state].plus(term, float(along[place]))))
    swaps: list[tuple[float, int, int, int, float]] = []
    for state, formula in enumerate(judged.formulas):
        first = 0
        for part, many in enumerate(formula.counts):
            places = [begin + family.owners[0][state][first + index] for index in range(many)]
            first += many
            if not formula.terms:
                continue
            kept = [column for column in own if column not in places]
            left = at.left - at.jacobian[:, places[0]] * at.values[places[0] - begin]
            total, gain, along = gains(kept, left)
            for place in np.argsort(-gain)[:3]:
                if absent[place][0] == state:
                    swaps.append((float(total - gain[place]), state, part, place, float(along[place])))
    for _, state, part, place, constant in sorted(swaps, key=lambda swap: swap[0])[:REPLACED]:
        formula = judged.formulas[state].without(part).plus(absent[place][1], constant)
        systems.append(replace_formula(judged.formulas, state, formula))
    return systems


def replace_formula(system: System, state: int, formula: Formula) -> System:
    return (*system[:state], formula, *system[state + 1 :])


def drop_each_term(system: System, least: int = 1) -> list[System]:
    """Returns all systems with one term fewer; each sum keeps at least `least` terms."""
    return [
        replace_formula(system, state, formula.without(place))
        for state, formula in enumerate(system) if len(formula.terms) > least for place in range(len(formula.terms))
    ]  # fmt: skip


# The parts of each formula.
Shape = tuple[tuple[str, ...], ...]


def shape_of(system: System) -> Shape:
    """Returns a key that is equal for systems that differ only in their constants."""
    return tuple(tuple(sorted(formula.parts)) for formula in system)


def first_of_each_shape(judged: Sequence[JudgedSystem]) -> list[JudgedSystem]:
    """Removes judged systems that differ from an earlier one only in their constants."""
    firsts: dict[Shape, JudgedSystem] = {}
    for system in judged:
        firsts.setdefault(shape_of(system.formulas), system)
    return list(firsts.values())


def remove_known_shapes(systems: Sequence[System], known: Sequence[JudgedSystem]) -> list[System]:
    seen = {shape_of(entry.formulas) for entry in known}
    kept: list[System] = []
    for system in systems:
        if shape_of(system) not in seen:
            seen.add(shape_of(system))
            kept.append(system)
    return kept


def lengths_of_beginnings(rows: int) -> list[int]:
    """Returns the row counts of successively longer windows, each about twice the previous one."""
    return [length for length in (rows // 4, rows // 2) if length >= WINDOW] or [min(rows, WINDOW)]


def error_of(fitted: Fitting) -> float:
    return fitted.total / len(fitted.left)


def cut_pieces(rows: int) -> list[slice]:
    """Returns windows of about equal length; neighbouring windows share a row."""
    count = min(max(rows // WINDOW, 1), MOST_CUTS)
    edges = np.linspace(0, rows - 1, count + 1).round().astype(int)
    return [slice(first, last + 1) for first, last in itertools.pairwise(edges.tolist())]

"""Judges systems of right-hand sides by simulation: their evidence, and moves that raise it."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..data.domains import LARGEST_BOUND
from .balance import Balance
from .candidates import Smoothed, goes_over_decades, spline_through
from .formulas import Formula, Term
from .simulation import RESOLUTION, Family, Fitting, Span, least_squares_of, linearize
from .watch import SearchWatch

System = tuple[Formula, ...]
# Starts among the data from which a candidate must not run away, how far they are on the way from one row to another,
# and how many ranges of the data it is away then. Outside of what the data span, true equations may run away too: those
# of Roessler's system do where its third state, which is never negative, begins just below 0.
PROBES, PROBE_REACH, FARTHEST = 8, 0.3, 10.0
# Rows of the windows that are simulated at once, and the most windows of a record.
WINDOW, MOST_CUTS = 15, 12
# Steps of the solver between rows, of which the first that is exact enough is taken, and its error relative to noise.
STEPS, STEP_ERROR = (1, 2, 4, 8, 16), 0.02
# Minus twice the logarithm of the probability of each symbol of a formula, of which one in 4.5 is taken.
SYMBOL = 3.0
# Mean squared errors, of whole trajectories relative to noise and to windows, above which windows are compared.
WHOLE = 4.0
# Of residuals: above it, none of them would tell anything.
MAX_CORRELATION = 0.99
# Terms that one round adds, and replaces.
ADDED, REPLACED = 6, 8


def schwarz_criterion(variance: float, rows: float, unknowns: int) -> float:
    """Minus twice the logarithm of the probability of data under a model, but for what all models share.

    It is n log(S/n) + k log n n/(n - k - 2): Schwarz's criterion (G. Schwarz, Annals of Statistics 6 (1978) 461), in
    which each constant also takes a share of the noise, as it does of few data (A. D. R. McQuarrie, Statistics &
    Probability Letters 44 (1999) 79). No constant has a prior width, which terms that cancel each other would exceed,
    as `x` and `x**2` do near an equilibrium; nor do units matter.

    **Arguments:** `variance`: S/n, the mean squared residual. `rows`: n, the number of independent values. `unknowns`:
    k, the number of constants and starts.
    """
    left = max(rows - unknowns - 2, 1.0)
    return rows * np.log(variance + RESOLUTION**2) + unknowns * np.log(max(rows, 1.0)) * max(rows / left, 1.0)


@dataclass(frozen=True)
class JudgedSystem:
    """A system of right-hand sides, refined on the records.

    **Arguments:** `formulas`: one for each state. `starts`: `(state, record)`. `error`: mean squared error in
    standard deviations of each state; `variance`: the same in units of the noise's spread. `unknowns`: number of
    constants and starts that were fitted. `escapes`: whether it runs away from a start among the data. `left`:
    residuals in standard deviations of each state, `(row, state, record)`, NaN where nothing was measured. `share`: of
    them that counts as independent.
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
        """Minus twice the logarithm of the records' probability, and the size; lower is better."""
        rows = self.share * np.isfinite(self.left).sum()
        return schwarz_criterion(self.variance, float(rows), self.unknowns) + SYMBOL * self.size

    @property
    def rank(self) -> tuple[bool, float]:
        return self.escapes, self.evidence

    @property
    def correlation(self) -> float:
        """Of neighbouring residuals, beyond the resolution of the simulation; 0 where there are none."""
        pairs = self.left[1:] * self.left[:-1]
        return float(np.nanmean(pairs) / (self.error + RESOLUTION**2)) if np.isfinite(pairs).any() else 0.0


def count_independent(judged: Sequence[JudgedSystem]) -> list[JudgedSystem]:
    """Judged systems in the order in which they are if dependent residuals count as fewer, as under the best of them.

    Of a first-order autoregression with the correlation r, n values tell as much of a mean as (1 - r)/(1 + r) n
    independent ones (G. V. Bayley and J. M. Hammersley, Supplement to the Journal of the Royal Statistical Society 8
    (1946) 184). A correlation within one standard error of chance counts as none.
    """
    best = judged[0]
    correlation = np.clip(best.correlation - np.isfinite(best.left).sum() ** -0.5, 0.0, MAX_CORRELATION)
    share = float((1 - correlation) / (1 + correlation))
    return sorted((replace(each, share=share) for each in judged), key=lambda each: each.rank)


class Judge:
    """Simulates candidates on the records.

    **Arguments:** `records`: the smoothed records. `states`, `inputs`: names. `balance`: the functions that are sought;
    by default the rate of each state. `watch`: told what is simulated.

    `share`: of residuals that count as independent.
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
        every = np.concatenate([each.values for each in records])
        self.values = every
        count = len(self.states)
        self.low, self.high = every[:, :count].min(0), every[:, :count].max(0)
        self.scale = np.maximum(every[:, :count].std(0), 1e-12)
        self.noise = max(each.noise_in(self.scale) for each in records)
        raw = np.concatenate([each.raw for each in records])
        self.measured = np.flatnonzero(np.isfinite(raw).any(axis=0))
        self.steps = STEPS[0]
        self.linked = True
        self.stiff = any(goes_over_decades(each.t) for each in records)
        self.spans: dict[tuple[object, ...], Span] = {}

    def span(self, states: Sequence[int]) -> Span:
        """Windows of the records of some states, where the others follow their splines."""
        key = (tuple(states), self.steps, self.linked)
        if key not in self.spans:
            self.spans[key] = self.make_span(list(states))
        return self.spans[key]

    def make_span(self, states: list[int]) -> Span:
        # On their own, states that nobody measured are compared with their smooth values.
        records = self.records if len(states) == len(self.states) else [each.filled for each in self.records]
        pieces = [(each, piece) for each in records for piece in cut_pieces(len(each.t))]
        rows = max(piece.stop - piece.start for _, piece in pieces)
        others = [at for at in range(len(self.names)) if at not in states]
        steps, drivers = (
            np.zeros((rows - 1, len(pieces))),
            np.zeros((rows - 1, self.steps, 3, len(others), len(pieces))),
        )
        raw = np.full((rows, len(states), len(pieces)), np.nan)
        spread, starts = np.ones_like(raw), np.zeros((len(states), len(pieces)))
        for at, (each, piece) in enumerate(pieces):
            t = each.t[piece]
            steps[: len(t) - 1, at] = np.diff(t)
            shares = (np.arange(self.steps)[:, None] + np.array([0, 0.5, 1])) / self.steps
            nodes = t[:-1, None, None] + np.diff(t)[:, None, None] * shares
            for place, other in enumerate(others):
                is_held = each.held and other >= len(self.states)
                given = each.values[piece][:-1, other, None, None] if is_held else each.value_at(other, nodes)
                drivers[: len(t) - 1, :, :, place, at] = given
            # Steps of no length repeat the last values: at 0, a term such as 1/x would be infinite.
            drivers[len(t) - 1 :, ..., at] = drivers[len(t) - 2, -1, -1, :, at]
            repeated = int(piece.start > 0)  # The window before has this row.
            raw[repeated : len(t), :, at] = each.raw[piece][repeated:, states]
            spread[: len(t), :, at] = each.spread[piece][:, states] * self.scale[states]
            starts[:, at] = each.values[piece][0, states]
        follows = tuple(self.linked and piece.start > 0 for _, piece in pieces)
        return Span(steps, drivers, raw, spread, starts, follows, self.stiff)

    def choose_steps(self, system: System) -> None:
        """Takes the fewest steps between rows with which a system is simulated exactly enough, in short windows."""
        family = Family.of([system], self.names, self.balance)
        for few, more in itertools.pairwise(STEPS):
            found: list[np.ndarray] = []
            for self.steps in (few, more):
                span = self.span(range(len(self.states))).begin(WINDOW)
                found.append(span.simulate(family.rates, family.constants.T, span.starts[:, None]))
            self.steps = few
            with np.errstate(all="ignore"):
                gap = np.abs(found[1] - found[0]) / self.scale[:, None, None]
            if np.isfinite(gap).all() and np.sqrt((gap**2).mean()) < max(STEP_ERROR * self.noise, RESOLUTION / 10):
                return
        self.steps = STEPS[-2]

    def screen(self, formulas: Sequence[Formula], state: int, trials: int = 8) -> list[tuple[float, Formula]]:
        """Refines right-hand sides of one state while the others follow their splines; the most probable first."""
        span = self.span([state])
        names = [self.states[state], *[name for at, name in enumerate(self.names) if at != state]]
        systems = [(each,) for each in formulas]
        family = Family.of(systems, names)
        fitted, _ = self.fit_linked_or_apart(span, family, np.repeat(span.starts[None], len(systems), axis=0), trials)
        found: list[tuple[float, Formula]] = []
        for at, (system, each) in enumerate(zip(systems, fitted, strict=True)):
            (formula,) = family.formulas(at, each.values, system)
            evidence = schwarz_criterion(error_of(each), len(each.left), each.jacobian.shape[1])
            found.append((evidence + SYMBOL * formula.size, formula))
        return sorted(found, key=lambda pair: pair[0])

    def judge(
        self, systems: Sequence[System], starts: np.ndarray | None = None, trials: int = 12
    ) -> list[JudgedSystem]:
        """Refines the constants and starts of systems on all records by least squares, all at once; the best first.

        **Arguments:** `starts`: `(state, record)`, of a system that was judged before.
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
        """Least squares in windows that meet, or in windows apart where that leaves much less, and their span.

        Errors grow over a whole record if a system is chaotic, or if a state on its own is unstable along the noisy
        splines of the others, whatever the constants.
        """
        fitted = least_squares_of(span, family, starts, trials, self.watch)
        if not any(span.follows) or min(map(error_of, fitted)) <= WHOLE * self.noise**2:
            return fitted, span
        apart = replace(span, follows=(False,) * len(span.follows))
        others = least_squares_of(apart, family, starts, trials, self.watch)
        if min(map(error_of, others)) > WHOLE * self.noise**2:
            # Errors of noisy starts and of first constants grow less in the beginnings of the windows.
            near, begun = family, starts
            for length in lengths_of_beginnings(len(span.raw)):
                grown = least_squares_of(apart.begin(length), near, begun, trials, self.watch)
                near = replace(family, constants=np.stack([each.values for each in grown]))
                begun = np.stack([each.starts for each in grown])
            grown = least_squares_of(apart, near, begun, trials, self.watch)
            others = [min(pair, key=error_of) for pair in zip(others, grown, strict=True)]
        better = min(map(error_of, others)) < min(map(error_of, fitted)) / WHOLE
        return (others, apart) if better else (fitted, span)

    def rank(
        self, systems: Sequence[System], family: Family, fitted: Sequence[Fitting], span: Span
    ) -> list[JudgedSystem]:
        """Judged systems, the best first."""
        away = self.escape(family, np.stack([each.values for each in fitted]))
        found: list[JudgedSystem] = []
        for at, (system, each) in enumerate(zip(systems, fitted, strict=True)):
            formulas = family.formulas(at, each.values, system)
            if not self.balance.accepts(formulas) or not all(map(is_writable, formulas)):
                continue
            left: np.ndarray = np.full(span.raw.transpose(2, 0, 1).shape, np.nan)
            left[np.isfinite(span.raw).transpose(2, 0, 1)] = each.left
            left = left.transpose(1, 2, 0) * span.spread / self.scale[:, None]
            error, variance, unknowns = float(np.nanmean(left**2)), error_of(each), each.jacobian.shape[1]
            found.append(
                JudgedSystem(formulas, each.starts, error, variance, unknowns, bool(away[at]), left, self.share)
            )
        return sorted(found, key=lambda one: one.rank)

    def escape(self, family: Family, values: np.ndarray) -> np.ndarray:
        """Which members run away from a start among the data, `(member,)`."""
        draw, count = np.random.default_rng(0), len(self.states)
        rows, others = self.values[draw.integers(0, len(self.values), (2, PROBES)), :count]
        starts = np.repeat((rows + PROBE_REACH * (others - rows)).T[:, None], len(values), axis=1)
        span = self.span(range(count))
        pieces = range(span.follows.index(False, 1) if False in span.follows[1:] else len(span.follows))
        if not self.linked:
            pieces = range(len(cut_pieces(len(self.records[0].t))))
        found = starts[None]
        for at in pieces:
            one = replace(span, steps=span.steps[:, at : at + 1], drivers=span.drivers[..., at : at + 1])
            found = one.simulate(family.rates, values.T, found[-1])
        reach = (FARTHEST * (self.high - self.low + 1e-12))[:, None, None]
        low, high = self.low[:, None, None] - reach, self.high[:, None, None] + reach
        with np.errstate(all="ignore"):
            inside = (found > low) & (found < high)
        return ~inside.all(axis=(0, 1, 3))

    def improve(
        self,
        known: Sequence[JudgedSystem],
        library: Mapping[int, Sequence[Term]],
        others: Sequence[Sequence[Formula]],
        systems: Sequence[System] = (),
        required: Sequence[str] = (),
    ) -> list[JudgedSystem]:
        """Known systems, and the best of them with terms dropped, added and replaced, and with other right-hand sides.

        **Arguments:** `known`: judged systems, the best first. `library`: terms of each function. `others`: other
        formulas of each function. `systems`: others that are judged too. `required`: terms that no sum loses.
        """
        best = known[0]
        options = [changed(best.formulas, state, each) for state, every in enumerate(others) for each in every]
        least = 0 if self.balance.may_be_empty else 1
        options = unique([*drops(best.formulas, least), *self.additions(best, library), *options, *systems], known)
        options = [each for each in options if self.balance.accepts(each, required)]
        tried = self.judge(options, best.starts) if options else []
        return sorted([*known, *tried], key=lambda each: each.rank)

    def follow(self, judged: JudgedSystem) -> list[Smoothed]:
        """The records with a system's simulation in place of their splines."""
        family, span, count = (
            Family.of([judged.formulas], self.names, self.balance),
            self.span(range(len(self.states))),
            0,
        )
        solved = span.simulate(family.rates, family.constants.T, judged.starts[:, None])[:, :, 0]
        found: list[Smoothed] = []
        for each in self.records:
            pieces = cut_pieces(len(each.t))
            values = each.values.copy()
            for at, piece in enumerate(pieces, start=count):
                values[piece, : len(self.states)] = solved[: piece.stop - piece.start, :, at]
            count += len(pieces)
            splines = tuple(spline_through(each.t, column) for column in values[:, : len(self.states)].T)
            rates = np.stack([spline.derivative()(each.t) for spline in splines], axis=1)
            found.append(replace(each, values=values, rates=rates, splines=splines))
        return found

    def additions(self, judged: JudgedSystem, library: Mapping[int, Sequence[Term]]) -> list[System]:
        """Systems with a term more, or another one, that would fit best if trajectories were linear in constants."""
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
        (at,) = linearize(span, family, np.array([0]), family.constants, judged.starts[None])
        begin = at.jacobian.shape[1] - int(family.free.sum())
        own = list(range(begin))
        columns: dict[tuple[int, str], int] = {}
        for state, formula in enumerate(judged.formulas):
            places = [begin + place for place in family.owners[0][state]]
            own += places[: len(formula.constants)]
            rest = iter(places[len(formula.constants) :])
            for term_state, term in absent:
                if term_state == state:
                    mine = [next(rest) for _ in range(len(EMPTY.plus(term, 0.0).constants))]
                    columns[state, term.text] = mine[0]
        return proposals(judged, absent, at, columns, own, family)


EMPTY = Formula((), (), (), 0)


def is_writable(formula: Formula) -> bool:
    """Whether equations may have numbers of this size: least squares of a hopeless system may run away."""
    return bool((np.abs(formula.constants) <= LARGEST_BOUND).all())


def proposals(
    judged: JudgedSystem,
    absent: Sequence[tuple[int, Term]],
    at: Fitting,
    columns: Mapping[tuple[int, str], int],
    own: list[int],
    family: Family,
) -> list[System]:
    """The systems with terms added, and replaced, of the least linearised sums of squares."""
    steps = at.jacobian[:, [columns[state, term.text] for state, term in absent]]
    begin = at.jacobian.shape[1] - int(family.free.sum())

    def gains(kept: list[int], left: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        basis, _ = np.linalg.qr(at.jacobian[:, kept])
        left = left - basis @ (basis.T @ left)
        rest = steps - basis @ (basis.T @ steps)
        squares = (rest**2).sum(0)
        good = squares > 1e-10 * np.maximum((steps**2).sum(0), 1e-300)
        along = np.where(good, -rest.T @ left / np.where(good, squares, 1.0), 0.0)
        return float(left @ left), along**2 * squares, along

    found: list[System] = []
    _, gain, along = gains(own, at.left)
    for place in map(int, np.argsort(-gain)[:ADDED]):
        state, term = absent[place]
        found.append(changed(judged.formulas, state, judged.formulas[state].plus(term, float(along[place]))))
    swaps: list[tuple[float, int, int, int, float]] = []
    for state, formula in enumerate(judged.formulas):
        first = 0
        for part, many in enumerate(formula.counts):
            places = [begin + family.owners[0][state][first + each] for each in range(many)]
            first += many
            if not formula.terms:
                continue
            kept = [each for each in own if each not in places]
            left = at.left - at.jacobian[:, places[0]] * at.values[places[0] - begin]
            total, gain, along = gains(kept, left)
            for place in np.argsort(-gain)[:3]:
                if absent[place][0] == state:
                    swaps.append((float(total - gain[place]), state, part, place, float(along[place])))
    for _, state, part, place, constant in sorted(swaps, key=lambda each: each[0])[:REPLACED]:
        formula = judged.formulas[state].without(part).plus(absent[place][1], constant)
        found.append(changed(judged.formulas, state, formula))
    return found


def changed(system: System, state: int, formula: Formula) -> System:
    return (*system[:state], formula, *system[state + 1 :])


def drops(system: System, least: int = 1) -> list[System]:
    """The systems without one of their terms; each sum keeps at least so many."""
    return [
        changed(system, state, formula.without(at))
        for state, formula in enumerate(system) if len(formula.terms) > least for at in range(len(formula.terms))
    ]  # fmt: skip


# The parts of each formula.
Shape = tuple[tuple[str, ...], ...]


def shape_of(system: System) -> Shape:
    """What makes two systems the same but for their constants."""
    return tuple(tuple(sorted(formula.parts)) for formula in system)


def first_of_each_shape(judged: Sequence[JudgedSystem]) -> list[JudgedSystem]:
    """Judged systems, without those that differ from an earlier one in their constants alone."""
    found: dict[Shape, JudgedSystem] = {}
    for each in judged:
        found.setdefault(shape_of(each.formulas), each)
    return list(found.values())


def unique(systems: Sequence[System], known: Sequence[JudgedSystem]) -> list[System]:
    seen = {shape_of(each.formulas) for each in known}
    found: list[System] = []
    for system in systems:
        if shape_of(system) not in seen:
            seen.add(shape_of(system))
            found.append(system)
    return found


def lengths_of_beginnings(rows: int) -> list[int]:
    """Numbers of rows of the beginnings of windows, each about twice as long as the one before."""
    return [length for length in (rows // 4, rows // 2) if length >= WINDOW] or [min(rows, WINDOW)]


def error_of(fitted: Fitting) -> float:
    return fitted.total / len(fitted.left)


def cut_pieces(rows: int) -> list[slice]:
    """Windows of about equal length, of which neighbours share a row."""
    count = min(max(rows // WINDOW, 1), MOST_CUTS)
    edges = np.linspace(0, rows - 1, count + 1).round().astype(int)
    return [slice(first, last + 1) for first, last in itertools.pairwise(edges.tolist())]

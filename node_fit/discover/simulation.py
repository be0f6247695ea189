"""Simulates many right-hand sides at once, and fits their constants and initial states by Levenberg-Marquardt."""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..expressions.evaluation import Tape
from ..minimize.host import DampedSteps, Damping, minimize_together
from .balance import Balance
from .formulas import Formula, are_in_denominators, move_within, read_tape
from .watch import ignore_message

# Relative change of the sum of squares below which a fit has converged, and the residual of a failed simulation.
FITTED_WELL, FAILED_RESIDUAL = 1e-4, 1e3
# Relative error of the simulation below which fits are not distinguished.
RESOLUTION = 1e-4
# Relative step of finite differences; solver steps are fixed, so simulations are smooth in their constants.
DIFFERENCE = 1e-6
# Step for the Jacobians of stiff systems, relative to the largest value of each state.
STATE_NUDGE = 1e-7
# Largest entry of the matrix inverted in a stiff step; beyond it, rounding hides the identity.
STIFFEST = 1e14
# Evaluations after which members are dropped whose likelihood is lower by a factor of exp(BEHIND/2).
UNTIL_LEFT, BEHIND = 3, 100.0
# A function call in a text.
FUNCTION = re.compile(r"[a-z]\w*(?=\()")
DAMPING, STEEPEST = Damping(minimum=1e-9, maximum=1e6), 1e12


@dataclass(frozen=True)
class Span:
    """Records, or windows of them, that are simulated at once; shorter ones are padded with zero-length steps.

    **Arguments:** `steps`: times between rows, `(row - 1, record)`. `drivers`: known values of other states and inputs
    at the beginning, middle and end of each solver step, `(row - 1, step, 3, driver, record)`. `raw`: measurements,
    `(row, state, record)`, NaN if missing. `spread`: relative size of their noise. `starts`: initial states,
    `(state, record)`. `follows`: whether a window continues the previous one, so that their states must match. `stiff`:
    whether to use an implicit method.
    """

    steps: np.ndarray
    drivers: np.ndarray
    raw: np.ndarray
    spread: np.ndarray
    starts: np.ndarray
    follows: tuple[bool, ...]
    stiff: bool = False

    def begin(self, rows: int) -> "Span":
        """Returns the first rows of each window."""
        parts = {name: getattr(self, name)[: rows - 1] for name in ("steps", "drivers")}
        return replace(self, raw=self.raw[:rows], spread=self.spread[:rows], **parts)

    def simulate(self, rates: Tape, constants: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Simulates with fixed Runge-Kutta or Rosenbrock steps; returns the states, `(row, state, member, record)`.

        **Arguments:** `constants`: `(constant, member)`. `starts`: `(state, member, record)`.
        """
        columns, substeps = [*constants[:, :, None]], self.drivers.shape[1]
        states = np.empty((len(self.steps) + 1, *starts.shape))
        states[0] = y = starts
        buffers = [np.empty_like(starts) for _ in range(4)]
        nudges = STATE_NUDGE * np.nanmax(np.abs(self.raw), axis=(0, 2)).clip(1e-30) if self.stiff else None

        def slope(y: np.ndarray, given: np.ndarray, into: np.ndarray) -> np.ndarray:
            for at, value in enumerate(rates([*y, *given[:, None], *columns])):
                into[at] = value
            return into

        with np.errstate(all="ignore"):
            for row, drivers in enumerate(self.drivers):
                h = self.steps[row] / substeps
                for given in drivers:
                    if nudges is None:
                        y = step_explicitly(slope, y, h, given, buffers)
                    else:
                        y = step_implicitly(slope, y, h, given[1], nudges)
                states[row + 1] = y
        return states


Slope = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def step_explicitly(
    slope: Slope, y: np.ndarray, h: np.ndarray, given: np.ndarray, buffers: Sequence[np.ndarray]
) -> np.ndarray:
    """Takes a step of the classical Runge-Kutta method."""
    first, middle, last = given
    a = slope(y, first, buffers[0])
    b = slope(y + 0.5 * h * a, middle, buffers[1])
    c = slope(y + 0.5 * h * b, middle, buffers[2])
    d = slope(y + h * c, last, buffers[3])
    return y + h / 6 * (a + 2 * (b + c) + d)


def step_implicitly(slope: Slope, y: np.ndarray, h: np.ndarray, given: np.ndarray, nudges: np.ndarray) -> np.ndarray:
    """Takes a step of RODAS3, a Rosenbrock method of order 3 (A. Sandu et al., Atmos. Environ. 31, 1997, 3459).

    **Arguments:** `y`: `(state, member, record)`. `h`: `(record,)`. `nudges`: steps of the states for the Jacobian.
    """

    def rate(y: np.ndarray) -> np.ndarray:
        return slope(y, given, np.empty_like(y))

    begin, states = rate(y), len(y)
    moved = np.eye(states)[..., None, None] * nudges[:, None, None, None]
    columns = [(rate(y + move) - begin) / nudge for move, nudge in zip(moved, nudges, strict=True)]
    jacobian = np.stack(columns, axis=1).transpose(2, 3, 0, 1)
    matrix = np.eye(states) - 0.5 * h[:, None, None] * jacobian
    failed = ~(np.abs(matrix) < STIFFEST).all(axis=(2, 3), keepdims=True)
    inverse = np.where(failed, np.nan, np.linalg.inv(np.where(failed, np.eye(states), matrix)))

    def stage(right: np.ndarray) -> np.ndarray:
        return 0.5 * np.einsum("mrij,jmr->imr", inverse, right)

    a = stage(h * begin)
    b = stage(h * begin + 4 * a)
    c = stage(h * rate(y + 2 * a) + a - b)
    d = stage(h * rate(y + 2 * a + c) + a - b - 8 / 3 * c)
    return y + 2 * a + c + d


@dataclass(frozen=True, eq=False)
class Summand:
    """A part of a sum: the function that it belongs to, its text with named constants, and the members that have it."""

    unknown: str
    text: str
    has: np.ndarray


def number_constants(systems: Sequence[Sequence[Formula]]) -> tuple[list[dict[str, list[int]]], int]:
    """Returns the indices of the constants of all parts of each function, and the number of constants."""
    places: list[dict[str, list[int]]] = [{} for _ in systems[0]]
    total = 0
    for system in systems:
        for formula, known in zip(system, places, strict=True):
            for part, many in zip(formula.parts, formula.counts, strict=True):
                if part not in known:
                    known[part] = list(range(total, total + many))
                    total += many
    return places, total


def parts_by_function(systems: Sequence[Sequence[Formula]]) -> list[list[tuple[str, ...]]]:
    """Returns the parts of each function in all systems."""
    return [[formula.parts for formula in column] for column in zip(*systems, strict=True)]


def functions_in(system: Sequence[Formula]) -> set[str]:
    """Returns the names of the functions that a system calls, such as `sin`."""
    return {name for formula in system for part in formula.parts for name in FUNCTION.findall(part)}


@dataclass(frozen=True)
class Family:
    """Systems that share the union of their parts: gates switch off the parts that a member lacks.

    **Arguments:** `rates`: rate of each state. `constants`: `(member, constant)`. `free`: whether a member has each
    constant. `divide`: whether each constant is in a denominator, so that it keeps its sign. `owners`: for each member
    and state, the indices of its formula's constants. `kinds`: kind of each member;
    members of one kind call the same functions. `rates_of`: rates of each kind, without the parts of other kinds.
    """

    rates: Tape
    constants: np.ndarray
    free: np.ndarray
    divide: np.ndarray
    owners: list[list[list[int]]]
    kinds: np.ndarray
    rates_of: list[Tape]

    @staticmethod
    def of(systems: Sequence[Sequence[Formula]], names: Sequence[str], balance: Balance | None = None) -> "Family":
        """Creates a family from systems; without a balance, each formula is the rate of a state."""
        balance = Balance.apart(names[: len(systems[0])]) if balance is None else balance
        places, total = number_constants(systems)
        constants, free = np.ones((len(systems), total)), np.zeros((len(systems), total), bool)
        divide = np.zeros(total, bool)
        for known in places:
            for part, own in known.items():
                divide[own] = are_in_denominators(part)
        owners: list[list[list[int]]] = []
        for member, system in enumerate(systems):
            owners.append([
                [at for part in formula.parts for at in known[part]]
                for formula, known in zip(system, places, strict=True)
            ])  # fmt: skip
            for formula, own in zip(system, owners[-1], strict=True):
                constants[member, own], free[member, own] = formula.constants, True
        summands = [
            Summand(unknown, part.format(*[f"c{at}_" for at in own]), np.array([part in parts for parts in having]))
            for unknown, known, having in zip(balance.unknowns, places, parts_by_function(systems), strict=True)
            for part, own in known.items()
        ]
        gates = {summand: f"gate{at}_" for at, summand in enumerate(summands) if not summand.has.all()}
        named = [*names, *[f"c{at}_" for at in range(total)], *gates.values()]

        def rates(members: np.ndarray) -> Tape:
            sums: dict[str, list[tuple[str, str | None]]] = {unknown: [] for unknown in balance.unknowns}
            for summand in summands:
                if summand.has[members].any():
                    sums[summand.unknown].append((summand.text, None if summand.has[members].all() else gates[summand]))
            return read_tape(balance.rates, named, sums)

        shut = np.array([summand.has for summand in gates], float).reshape(len(gates), len(systems)).T
        start, mine = np.hstack([constants, shut]), np.hstack([free, np.zeros_like(shut, bool)])
        signed = np.hstack([divide, np.zeros(len(gates), bool)])
        called = [" ".join(sorted(functions_in(system))) for system in systems]
        kinds = np.unique(called, return_inverse=True)[1]
        rates_of = [rates(np.flatnonzero(kinds == kind)) for kind in range(kinds.max() + 1)]
        return Family(rates(np.arange(len(systems))), start, mine, signed, owners, kinds, rates_of)

    def formulas(self, member: int, values: np.ndarray, system: Sequence[Formula]) -> tuple[Formula, ...]:
        """Returns a member's formulas with other constants."""
        return tuple(
            replace(formula, constants=tuple(float(values[at]) for at in places))
            for formula, places in zip(system, self.owners[member], strict=True)
        )


@dataclass(frozen=True)
class Fitting:
    """The current point of a member's least-squares fit, and its linearization.

    **Arguments:** `values`: all constants of the family. `starts`: initial states of windows, `(state, record)`.
    `value`: sum of squared residuals and of squared gaps between windows. `left`: residuals in units of the noise's
    spread, extrapolated to closed gaps. `jacobian`: their derivatives by the unknowns: the initial states of records,
    then the member's constants. `closing`: change of each initial state that closes the gaps, `(record, state)`.
    `moves`: its derivatives by the unknowns, `(record, state, unknown)`.
    """

    values: np.ndarray
    starts: np.ndarray
    value: float
    left: np.ndarray
    jacobian: np.ndarray
    closing: np.ndarray
    moves: np.ndarray

    @property
    def total(self) -> float:
        return float(self.left @ self.left)


def least_squares_of(
    span: Span, family: Family, starts: np.ndarray, trials: int, watch: Callable[[str], None] = ignore_message
) -> list[Fitting]:
    """Fits the free constants and initial states of all members at once with the Levenberg-Marquardt method.

    Long records are simulated in windows whose states must match (multiple shooting; H. G. Bock, 1983). All windows
    are thus simulated at the same time, and a bad initial guess does not diverge. Members far behind the best stop
    early.

    **Arguments:** `starts`: `(member, state, record)`. `trials`: maximum number of evaluations per member. `watch`:
    receives progress messages; it can end the fit by raising an exception.
    """
    members, rounds = len(family.constants), itertools.count()
    begun = linearize(span, family, np.arange(members), family.constants, starts)

    def score(at: Fitting) -> float:
        """Returns minus twice the log-likelihood."""
        return len(at.left) * math.log(at.value + 1e-300)

    def evaluate(points: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> list[Fitting]:
        trial = next(rounds)
        watch(f"{members} right-hand sides simulated, {trial} of {trials - 1} times")
        values, starts = (np.stack(part) for part in zip(*points.values(), strict=True))
        fits = linearize(span, family, np.array([*points]), values, starts)
        for member, fit in zip(points, fits, strict=True):
            scores[member] = min(scores[member], score(fit))
        for member in np.flatnonzero(scores >= scores.min() + BEHIND) if trial == UNTIL_LEFT else ():
            rules[member].max_evaluations = 0
        return fits

    def is_fitted(old: Fitting, new: Fitting) -> bool:
        fall = old.value - new.value
        return fall > 0 and (fall <= FITTED_WELL * old.value or new.value <= len(new.left) * RESOLUTION**2)

    rules = [
        DampedSteps(
            partial(step_from, free=free, divide=family.divide), DAMPING, max_evaluations=trials - 1, is_still=is_fitted
        )
        for free in family.free
    ]
    scores = np.array([score(fitting) for fitting in begun])
    return minimize_together(begun, rules, evaluate)


@np.errstate(all="ignore")
def step_from(at: Fitting, damping: float, free: np.ndarray, divide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Takes a damped Gauss-Newton step; returns the new constants and initial states.

    Constants in denominators keep their signs. A fixed step can pass over a pole within the data, and such equations
    seem to describe the records, but an accurate solver stops there.
    """
    square = at.jacobian.T @ at.jacobian
    # Constants can differ by orders of magnitude, so they are scaled.
    units = np.sqrt(np.diag(square)).clip(min=1e-150)
    square = square / units / units[:, None]
    sides = -at.jacobian.T @ at.left / units
    step = np.linalg.lstsq(square + damping * np.eye(len(square)), sides, rcond=None)[0] / units
    values = at.values.copy()
    values[free] += step[len(step) - int(free.sum()) :]
    values[divide] = move_within(at.values[divide], values[divide] - at.values[divide])
    return values, at.starts + (at.closing + at.moves @ step).T


@np.errstate(all="ignore")
def linearize(span: Span, family: Family, which: np.ndarray, values: np.ndarray, starts: np.ndarray) -> list[Fitting]:
    """Linearizes the residuals of members, one kind at a time: sines are expensive, and few members have them.

    **Arguments:** `which`: indices of the members in the family. `values`: `(member, constant)`. `starts`: `(member,
    state, record)`.
    """
    fits: dict[int, Fitting] = {}
    for kind, rates in enumerate(family.rates_of):
        members = np.flatnonzero(family.kinds[which] == kind)
        if members.size:
            fitted = linearize_alike(span, rates, family.free[which[members]], values[members], starts[members])
            fits |= dict(zip(members.tolist(), fitted, strict=True))
    return [fits[member] for member in range(len(which))]


def linearize_alike(span: Span, rates: Tape, free: np.ndarray, values: np.ndarray, starts: np.ndarray) -> list[Fitting]:
    """Linearizes the residuals from one simulation of all members and their perturbations.

    **Arguments:** `free`: whether a member has each constant, `(member, constant)`.
    """
    members, states, records = starts.shape
    places = [np.flatnonzero(row) for row in free]
    widest = 1 + states + max(map(len, places))
    constants = np.repeat(values[:, None, :], widest, axis=1)
    begun = np.repeat(starts[:, None], widest, axis=1)
    nudges = np.ones((members, widest))
    for member, indices in enumerate(places):
        sizes = [*np.abs(starts[member]).max(axis=1).clip(1e-6), *np.abs(values[member, indices]).clip(1e-4)]
        nudges[member, 1 : 1 + len(sizes)] = DIFFERENCE * np.array(sizes)
        for state in range(states):
            begun[member, 1 + state, state] += nudges[member, 1 + state]
        nudged = 1 + states + np.arange(len(indices))
        constants[member, nudged, indices] += nudges[member, nudged]
    flat = begun.reshape(-1, states, records).transpose(1, 0, 2)
    solved = span.simulate(rates, constants.reshape(members * widest, values.shape[1]).T, flat)
    residuals = ((solved - span.raw[:, :, None]) / span.spread[:, :, None]).clip(-FAILED_RESIDUAL, FAILED_RESIDUAL)
    missing = ~np.isfinite(span.raw)[:, :, None]
    residuals = np.where(missing, 0.0, np.nan_to_num(residuals, nan=FAILED_RESIDUAL))
    shape = (members, widest, records)
    # Member, nudge, record, row, state.
    residuals = residuals.reshape(*residuals.shape[:2], *shape).transpose(2, 3, 4, 0, 1)
    ends = np.nan_to_num(solved[-1], nan=0.0, posinf=0.0, neginf=0.0).reshape(states, *shape).transpose(1, 2, 3, 0)
    divided = nudges[:, 1:, None, None]
    slopes = (residuals[:, 1:] - residuals[:, :1]) / divided[..., None]
    growths = (ends[:, 1:] - ends[:, :1]) / divided
    return [
        condense(
            span, values[at], starts[at], residuals[at, 0], ends[at, 0], slopes[at, : states + len(indices)],
            growths[at, : states + len(indices)],
        )
        for at, indices in enumerate(places)
    ]  # fmt: skip


def condense(
    span: Span,
    values: np.ndarray,
    starts: np.ndarray,
    left: np.ndarray,
    ends: np.ndarray,
    slopes: np.ndarray,
    growths: np.ndarray,
) -> Fitting:
    """Linearizes the residuals in the constants and first initial states alone; closed gaps determine the others.

    **Arguments:** `left`: `(record, row, state)`. `ends`: states after each window, `(record, state)`. `slopes`,
    `growths`: their derivatives by the initial states and the constants, which are the first axis.
    """
    states, records = starts.shape
    firsts = [record for record in range(records) if not span.follows[record]]
    constants = len(slopes) - states
    unknowns = len(firsts) * states + constants
    closing, moves = np.zeros((records, states)), np.zeros((records, states, unknowns))
    gaps, chain = 0.0, -1
    parts: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    for record in range(records):
        if span.follows[record]:
            grown = growths[:states, record - 1].T
            gap = ends[record - 1] - starts[:, record]
            closing[record] = gap + grown @ closing[record - 1]
            moves[record] = grown @ moves[record - 1]
            moves[record, :, unknowns - constants :] += growths[states:, record - 1].T
            gaps += float(((gap / span.spread[0, :, record]) ** 2).sum())
        else:
            chain += 1
            moves[record, :, chain * states : (chain + 1) * states] = np.eye(states)
        measured = np.isfinite(span.raw[:, :, record])
        by_start, by_constant = slopes[:states, record][:, measured].T, slopes[states:, record][:, measured].T
        part = left[record][measured] + by_start @ closing[record]
        column = by_start @ moves[record]
        column[:, unknowns - constants :] += by_constant
        parts.append(part)
        columns.append(column)
    residuals = np.nan_to_num(np.concatenate(parts), nan=FAILED_RESIDUAL).clip(-FAILED_RESIDUAL, FAILED_RESIDUAL)
    jacobian = np.nan_to_num(np.concatenate(columns), nan=0.0).clip(-STEEPEST, STEEPEST)
    bounded = np.nan_to_num(closing, nan=0.0).clip(-STEEPEST, STEEPEST)
    moves = np.nan_to_num(moves, nan=0.0).clip(-STEEPEST, STEEPEST)
    value = float((left**2).sum()) + gaps
    return Fitting(values.copy(), starts.copy(), value, residuals, jacobian, bounded, moves)

"""Finds the mechanism behind positions, velocities and forces, and estimates its constants.

The weak form ranks candidate mechanisms and gives initial values. Simulations of whole records, in windows whose
states match, then give the constants, as for equations that `discover` finds.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from ..data.dataset import Dataset
from ..discover.balance import Balance
from ..discover.judging import MAX_CORRELATION, SYMBOL, Judge, schwarz_criterion
from ..discover.simulation import Family, Fitting, Span, least_squares_of, linearize
from ..discover.watch import SearchWatch
from .pairing import Pairing
from .structure import Mechanism, forms
from .weak_form import BUMPS, SmoothRecords

# Relative improvement above which a mechanism without mirror symmetry is simulated before one with it.
LESS_SIMPLE = 0.02
# Number of mechanisms that are simulated; evaluations of each, and of one with a term fewer; number of terms, those
# nearest to 0 in standard errors, that are removed in turn; standard errors within which all are removed at once.
SIMULATED_FORMS, MECHANISM_TRIALS, FEWER_TRIALS, DROPPED, INSIGNIFICANT = 3, 16, 8, 2, 2.0
# Maximum number of rows in the search, and rows per piece of a longer record.
MOST_SEEN, PIECE = 4000, 2000


@dataclass(frozen=True)
class FoundMechanism:
    """A mechanism with the values of its constants.

    **Arguments:** `mechanism`: its terms. `values`: values of its constants. `errors`: their standard errors.
    `evidence`: minus twice the log-evidence of the records, plus a penalty for its size; lower is better. `variance`:
    mean squared residual of the simulation, in units of the noise. `starts`: initial states, `(state, window)`.
    `follows`: whether each window continues the previous one. `noise`: root mean square of the residuals of each state.
    `correlation`: largest correlation of neighbouring residuals over the states, beyond chance.
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
        mechanism: Mechanism,
        fitted: Fitting,
        span: Span,
        share: float = 1.0,
        resolved: float = 0.0,
        *,
        frees_widths: bool = False,
    ) -> "FoundMechanism":
        """Returns the current point of a mechanism's least-squares fit.

        **Arguments:** `share`: fraction of the residuals that counts as independent. `resolved`: variance below which
        fits are not distinguished. `frees_widths`: whether the velocities at which dry friction sets in were fitted,
        too.
        """
        count, values = len(fitted.left), fitted.values
        variance, unknowns = fitted.total / count, fitted.jacobian.shape[1]
        spread = np.sqrt(variance * np.diag(np.linalg.pinv(fitted.jacobian.T @ fitted.jacobian)).clip(min=0))
        free = mechanism.terms + (len(mechanism.widths) if frees_widths else 0)
        # Every window has an initial state; with dependent rows, these count as fewer, too.
        effective = free + int(share * (unknowns - free))
        evidence = schwarz_criterion(max(variance, resolved), share * count, effective) + SYMBOL * len(values)
        errors = np.pad(spread[len(spread) - free :], (0, len(values) - free))
        residuals = np.full(span.raw.transpose(2, 0, 1).shape, np.nan)
        residuals[np.isfinite(span.raw).transpose(2, 0, 1)] = fitted.left
        residuals = residuals.transpose(1, 2, 0) * span.spread
        noise = np.sqrt(np.nanmean(residuals**2, axis=(0, 2)))
        correlations = np.nanmean(residuals[1:] * residuals[:-1], axis=(0, 2)) / noise**2 - (count / len(noise)) ** -0.5
        correlation = float(np.clip(correlations.max(), 0.0, MAX_CORRELATION))
        return FoundMechanism(
            mechanism, values, errors, evidence, variance, fitted.starts, span.follows, noise, correlation
        )

    @property
    def equations(self) -> dict[str, str]:
        return self.mechanism.equations()

    @property
    def constants(self) -> "dict[str, float | list[float | None]]":
        """Constants by name; velocities at which dry friction sets in are positive."""
        values: dict[str, float | list[float | None]] = dict(
            zip(self.mechanism.constants, self.values.tolist(), strict=True)
        )
        for place, name in self.mechanism.dry:
            width = self.values[self.mechanism.constants.index(name)]
            values[name] = [abs(float(width)) or 1.0, 0.0, None]
            values[self.mechanism.constants[place]] = float(self.values[place]) * (1.0 if width > 0 else -1.0)
        return values


def select_used_rows(data: Dataset) -> Dataset:
    """Selects the rows of the data that the search uses."""
    data = data.windows(PIECE, PIECE) if int(data.lengths.max()) > MOST_SEEN else data
    return data.sample(max(MOST_SEEN // int(data.lengths.max()), 1))


# The matrices are small, so threads would mostly wait for each other.
@threadpool_limits.wrap(limits=1, user_api="blas")
def find_mechanism(
    data: Dataset, pairing: Pairing, *, held: Sequence[bool], watch: SearchWatch | None = None
) -> FoundMechanism:
    """Finds the most probable mechanism of positions and velocities under measured forces.

    **Arguments:** `data`: measurements; all states are positions and velocities, paired by `pairing`. `held`: whether
    each input is constant between rows. `watch`: receives progress messages.
    """
    watch = SearchWatch() if watch is None else watch
    search = MechanismSearch(SmoothRecords.of(select_used_rows(data), pairing, held=held), watch)
    candidates: list[tuple[float, Mechanism]] = []
    for forces in assign_forces(data.inputs, len(pairing.positions)):
        for mechanism in forms(*pairing, forces, {*search.records.names, data.time}):
            watch(f"the weak form of {mechanism.title}")
            error = search.records.held_out_error(mechanism)
            candidates.append((error * (1 + LESS_SIMPLE * mechanism.is_tilted), mechanism))
    candidates.sort(key=lambda candidate: candidate[0])
    best = search.fit(candidates[0][1])
    for _, mechanism in candidates[1:SIMULATED_FORMS]:
        rival = search.fit(mechanism)
        best = rival if rival.evidence < best.evidence else best
    return search.refine(best)


def assign_forces(inputs: Sequence[str], count: int) -> list[tuple[str | None, ...]]:
    """Returns assignments of inputs to different coordinates; the order of the columns comes first."""
    padded = [*inputs, *[None] * (count - len(inputs))]
    return list(dict.fromkeys(itertools.permutations(padded))) if len(inputs) <= count else []


@dataclass
class MechanismSearch:
    """Fits mechanisms by simulations of whole records.

    **Arguments:** `records`: training data. `watch`: receives progress messages.
    """

    records: SmoothRecords
    watch: SearchWatch

    def __post_init__(self) -> None:
        self.noise = self.records.noise
        self.steps: int | None = None
        self.share = 1.0

    def judge(self, mechanism: Mechanism, values: np.ndarray) -> Judge:
        """Creates the judge of a mechanism; all use the solver steps of the first one, so that errors are equal."""
        data, equations = self.records.data, mechanism.equations()
        constants = dict(zip(mechanism.constants, values.tolist(), strict=True))
        rates = tuple(equations[name] for name in data.states)
        balance = Balance(mechanism.constants, mechanism.constants, rates, constants=constants)
        judge = Judge(self.records.each, data.states, data.inputs, balance, self.watch)
        judge.scale, judge.noise = self.noise, 1.0
        if self.steps is None:
            judge.choose_steps(balance.known_functions())
            self.steps = judge.steps
        judge.steps = self.steps
        return judge

    def fit(self, mechanism: Mechanism) -> FoundMechanism:
        """Fits the constants by simulation, from the best weak-form estimate over several bump lengths."""
        begun = np.array([self.records.weak_values(mechanism, rows)[0] for rows in BUMPS])
        judge = self.judge(mechanism, begun[1])
        span = judge.span(range(len(judge.states)))
        starts = np.repeat(span.starts[None], len(begun), axis=0)
        tried = linearize(
            without_links(span), family_of(judge, begun, mechanism.terms), np.arange(len(begun)), begun, starts
        )
        best = int(np.argmin([fitting.total for fitting in tried]))
        fitted, span = judge.fit_linked_or_apart(
            span, family_of(judge, begun[best, None], mechanism.terms), starts[:1], MECHANISM_TRIALS
        )
        return FoundMechanism.of(mechanism, fitted[0], span)

    def refit(self, mechanism: Mechanism, found: FoundMechanism, *, frees_widths: bool = False) -> FoundMechanism:
        """Fits the constants by simulation, starting from a fit with the same or more terms.

        **Arguments:** `frees_widths`: whether the velocities at which dry friction sets in are fitted, too; without dry
        friction, these are undetermined.
        """
        values = dict(zip(found.mechanism.owners, found.values.tolist(), strict=True))
        begun = np.array([[values[owner] for owner in mechanism.owners]])
        judge = self.judge(mechanism, begun[0])
        span = replace(judge.span(range(len(judge.states))), follows=found.follows)
        family, trials = family_of(judge, begun, mechanism.terms), FEWER_TRIALS
        if frees_widths:
            family, trials = family_of(judge, begun, len(begun[0])), MECHANISM_TRIALS
        fitted = least_squares_of(span, family, found.starts[None], trials, self.watch)
        resolved = float(np.mean((self.records.resolution / self.noise) ** 2))
        return FoundMechanism.of(mechanism, fitted[0], span, self.share, resolved, frees_widths=frees_widths)

    def refine(self, found: FoundMechanism) -> FoundMechanism:
        """Simplifies a mechanism, and updates noise, solver steps, and velocities at which dry friction sets in."""
        # Residuals of encoder counts are correlated.
        self.share = (1 - found.correlation) / (1 + found.correlation)
        self.noise, self.steps = np.maximum(found.noise, self.records.resolution), None
        shorter = self.simplify(self.refit(found.mechanism, found))
        return self.simplify(self.refit(shorter.mechanism, shorter, frees_widths=True))

    def simplify(self, found: FoundMechanism) -> FoundMechanism:
        """Removes terms while this improves the evidence: all insignificant ones, or one of the smallest."""
        while True:
            far = (np.abs(found.values) / np.maximum(found.errors, 1e-300))[: found.mechanism.terms]
            least = [[index] for index in np.argsort(far)[:DROPPED].tolist()]
            for places in [np.flatnonzero(far < INSIGNIFICANT).tolist(), *least]:
                shorter = found.mechanism
                for place in sorted(places, reverse=True):
                    shorter = shorter.without(place)
                if shorter.masses and places:
                    tried = self.refit(shorter, found)
                    if tried.evidence < found.evidence:
                        break
            else:
                return found
            found = tried


def without_links(span: Span) -> Span:
    """Separates the windows, so that their ends need not match."""
    return replace(span, follows=(False,) * len(span.follows))


def family_of(judge: Judge, values: np.ndarray, free: int) -> Family:
    """Creates a family of one mechanism with several sets of constants, `(member, constant)`, simulated at once.

    **Arguments:** `free`: number of leading constants that are fitted.
    """
    family = Family.of([judge.balance.known_functions()], judge.names, judge.balance)
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

"""Searches for equations: proposes candidates for each state, simulates systems of them, and reaches a verdict."""

import functools
import itertools
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from threadpoolctl import threadpool_limits

from ..data.dataset import Dataset
from ..data.inputs import interpolate_input
from ..expressions.tree import degree, symbols
from ..model.fields.equations import nearest_symbol, parse
from ..model.neural_ode import NeuralODE
from ..options.options import Effort
from .balance import Balance, conserving, reacting
from .candidates import (
    MAX_RESAMPLED_SUBSETS,
    MAX_SUBSETS,
    has_symbolic,
    joint_candidates,
    sparse_candidates,
    symbolic_candidates,
)
from .formulas import (
    GROUPS,
    LIBRARIES,
    LOW_DEGREE,
    Formula,
    Term,
    count,
    fits_angles,
    make_library,
    read_tape,
    read_term,
)
from .individuals import Individuals, fit_individuals, may_differ
from .judging import Judge, JudgedSystem, System, count_independent, drop_each_term, first_of_each_shape
from .names import plain_names
from .reading import read_field
from .shapes import shape_of_term
from .smoothing import SMOOTHINGS, Smoothed, find_held_inputs, smooth_record
from .verdict import FEWEST_ROWS, decide
from .views import View, make_views
from .watch import SearchWatch, TimeIsUp

INTERRUPTED = "was interrupted"
NAME_OF_ANGLE = re.compile(r"(?<![a-z])(angle|theta)(?![a-z])", re.IGNORECASE)
# Number of candidates of each state that are combined, and the size up to which the best of each size is combined too.
COMBINED, SHORT_SUM = 4, 5
# Number of systems whose terms are dropped in the last step.
SHORTENED = 6
# Number of candidates with the shortest descriptions that are always combined, however they rank when simulated.
FIRST = 3
# The library of the user's terms.
OWN = "own"
# By effort: number of candidates of each state that are simulated separately. Counts, not seconds, keep results
# independent of the machine's speed.
SCREENED = {"quick": 48, "normal": 60, "thorough": 150}
# By effort: number of repeated searches along the best simulation, for noisy data.
REPEATS = {"quick": 1, "normal": 2, "thorough": 4}
# By effort: maximum number of rounds that drop, add and replace terms.
ROUNDS = {"quick": 3, "normal": 6, "thorough": 12}
RESAMPLES = 20
# Maximum number of evaluations per simulation.
MOST_EVALUATIONS = 20_000
# Approximate maximum number of rows in total; of more records, a sample is used.
MOST_ROWS = 1_000


@dataclass(frozen=True)
class FoundSystem:
    """A discovered system: its equations by state, its constants by name, error, size and evidence.

    `error` is the mean squared error of the simulation, in standard deviations of each state; `escapes` is whether it
    diverges from an initial state within the data's range; `start` holds the states at the first row of the first
    record; `held` names the inputs that keep their values between rows.
    """

    equations: dict[str, str]
    constants: dict[str, float]
    shown: dict[str, str]
    error: float
    size: int
    evidence: float
    escapes: bool
    start: dict[str, float] = field(default_factory=dict[str, float])
    held: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(f"d{state}/dt = {text}" for state, text in self.shown.items())

    def simulate(
        self, start: Sequence[float] | np.ndarray, ts: np.ndarray, us: Mapping[str, np.ndarray] | None = None
    ) -> np.ndarray | None:
        """Simulates the states at times `ts` with LSODA, `(row, state)`; None if the solver fails.

        **Arguments:** `start`: initial states, at the first time. `us`: inputs by name, `(row,)`.
        """
        columns = {name: np.asarray(column, float) for name, column in (us or {}).items()}
        tape = read_tape(list(self.equations.values()), [*self.equations, *columns, *self.constants])
        constants = list(self.constants.values())

        def rates(y: np.ndarray, inputs: Sequence[np.ndarray]) -> np.ndarray:
            return np.array(tape([*y, *inputs, *constants]), float)

        curves = {name: interpolate_input(ts, column) for name, column in columns.items() if name not in self.held}

        def drive(first: int, t: float, y: np.ndarray) -> np.ndarray:
            at = np.asarray(t)
            return rates(y, [curves[name](at) if name in curves else u[first] for name, u in columns.items()])

        changes = [np.diff(u[:-1]) != 0 for name, u in columns.items() if name not in curves]
        jumps = 1 + np.flatnonzero(np.any(changes, axis=0)) if changes else np.zeros(0, int)
        path = [np.asarray(start, float)[None]]
        # The solver restarts at each jump; otherwise, a step could skip a pulse.
        for first, last in itertools.pairwise([0, *jumps.tolist(), len(ts) - 1]):
            solved = solve_or_give_up(functools.partial(drive, first), path[-1][-1], ts[first : last + 1])
            if solved is None:
                return None
            path.append(solved[1:])
        return np.concatenate(path)


def solve_or_give_up(
    slope: Callable[[float, np.ndarray], np.ndarray], start: Sequence[float] | np.ndarray, ts: np.ndarray
) -> np.ndarray | None:
    """Solves for the states at `ts` with LSODA, `(row, state)`; None if they diverge or its steps become too small."""
    from scipy.integrate import solve_ivp

    left = MOST_EVALUATIONS

    def count_and_evaluate(t: float, y: np.ndarray) -> np.ndarray:
        nonlocal left
        left -= 1
        if left < 0 or not np.isfinite(y).all():
            raise ArithmeticError
        return slope(t, y)

    try:
        with np.errstate(all="ignore"):
            solution = solve_ivp(
                count_and_evaluate, (ts[0], ts[-1]), start, t_eval=ts, method="LSODA", rtol=1e-7, atol=1e-9
            )
    except ArithmeticError:
        return None
    return solution.y.T if solution.success and np.isfinite(solution.y).all() else None


@dataclass(frozen=True)
class Findings:
    """The results of a search: systems, the best first, the share of resamples with each term, and a verdict.

    `fits`: whether the best system's residuals are only noise. `explained`: whether it also explains the records.
    `verdict`: both in one sentence. `reached`: states of the records without noise, `(row, state)`. `interrupted`:
    whether Ctrl-C ended the search. `individuals`: equations with constants of each trajectory, if only these fit.
    """

    ranked: list[FoundSystem]
    shares: dict[str, dict[str, float]]
    fits: bool
    explained: bool
    verdict: str
    reached: np.ndarray
    interrupted: bool = False
    individuals: Individuals | None = None


@dataclass(frozen=True)
class Vocabulary:
    """The terms that equations can have; `node_fit.discover` describes the fields.

    `libraries` means all of them if None. `terms`, `required` and `forbidden` are texts in which `^` is a power.
    `conserved` are sums of states. With `mass_action`, the terms are those of reactions.
    """

    libraries: Sequence[str] | None = None
    terms: Sequence[str] = ()
    required: Sequence[str] = ()
    forbidden: Sequence[str] = ()
    conserved: Sequence[str] = ()
    mass_action: bool = False

    def __post_init__(self):
        if self.mass_action and (self.libraries is not None or self.terms):
            raise ValueError("mass_action chooses the terms; leave libraries and terms out.")
        for name in ("terms", "required", "forbidden"):
            texts = tuple(text.replace("^", "**") for text in getattr(self, name))
            for text in texts:
                parse(text, text, kind=f"{name}: the term")
            object.__setattr__(self, name, texts)

    @property
    def is_balanced(self) -> bool:
        """Whether states exchange what they lose, so that their equations share terms."""
        return self.mass_action or bool(self.conserved)

    def check(self, names: Sequence[str], offered: Iterable[Term]) -> None:
        """Checks that texts use only these states and inputs, and that forbidden terms are among the offered ones.

        **Raises:** `ValueError` that names the text.
        """
        for kind in ("terms", "required", "forbidden"):
            for text in getattr(self, kind):
                for name in symbols(parse(kind, text)):
                    if name not in names:
                        hint = nearest_symbol(name, names)
                        raise ValueError(f"{kind}: in {text!r}, {name!r} is not a state or an input; {hint}")
        shapes = {shape_of_term(term.text) for term in offered}
        for text in self.forbidden:
            if shape_of_term(text) not in shapes:
                raise ValueError(f"forbidden: {text!r} is none of the terms that are searched; leave it out.")

    def make_terms(self, names: Sequence[str], values: np.ndarray, angles: Sequence[str]) -> dict[str, list[Term]]:
        """Returns the terms of each library without the forbidden ones; the user's terms form a separate library.

        Terms are affine in inputs with two levels. If the user chose no libraries, only terms that suit angles are
        taken from them.
        """
        kinds = LIBRARIES if self.libraries is None else self.libraries
        switches = [name for name, column in zip(names, values.T, strict=True) if len(np.unique(column)) <= 2]
        terms = {
            kind: [
                term
                for term in make_library(kind, names, values)
                if all(degree(read_term(term.text), name) <= 1 for name in switches)
            ]
            for kind in kinds
        }
        if self.libraries is None:
            terms = {kind: [term for term in library if fits_angles(term, angles)] for kind, library in terms.items()}
        terms[OWN] = [Term(f"({text})", count(parse("terms", text))) for text in self.terms]
        terms[OWN] += [Term(text, count(parse("required", text))) for text in self.required]
        self.check(names, itertools.chain.from_iterable(terms.values()))
        return {kind: self.allow(library) for kind, library in terms.items()}

    def allow(self, terms: Iterable[Term]) -> list[Term]:
        """Returns the terms that are not forbidden, regardless of how these are written."""
        shapes = {shape_of_term(text) for text in self.forbidden}
        return [term for term in terms if shape_of_term(term.text) not in shapes]

    def make_balance(self, states: Sequence[str]) -> Balance:
        """Returns the balance of the equations of measured states."""
        if self.mass_action:
            return reacting(states, self.conserved)
        return conserving(states, self.conserved) if self.conserved else Balance.apart(states)

    def offer(
        self, balance: Balance, names: Sequence[str], values: np.ndarray, angles: Sequence[str]
    ) -> list[list[list[Term]]]:
        """Returns, for each function, the sets of terms that are searched together.

        **Arguments:** `names`, `values`: variables that functions can depend on, and their values `(row, name)`.
        `angles`: variables that are angles.
        """
        if balance.offered is not None:
            self.check(names, itertools.chain.from_iterable(balance.offered))
            return [[self.allow(terms)] for terms in balance.offered]
        return [group_terms(self.make_terms(names, values, angles))] * (len(balance.titles) - len(balance.constants))


@dataclass(frozen=True)
class Source:
    """The data in which equations are searched.

    **Arguments:** `judge`: judge of the records. `views`: views of their rates. `clean`: whether they are free of
    noise. `sees`: names that the functions can depend on. `repeats`: whether rates are read again from the best
    simulation.
    `angles`: states that are angles.
    """

    judge: Judge
    views: Sequence[View]
    clean: bool
    sees: Sequence[str]
    repeats: bool
    angles: Sequence[str]


def search(
    data: Dataset,
    vocabulary: Vocabulary,
    *,
    symbolic: bool | None = None,
    resamples: int = 0,
    effort: Effort = "normal",
    seed: int = 0,
    watch: SearchWatch | None = None,
    held: Sequence[bool] | None = None,
) -> Findings:
    """Searches measurements for the equations of a system; takes the arguments of `node_fit.discover`.

    **Arguments:** `held`: whether each input keeps its value between rows; by default, the data decide.
    """
    check_data_of(data)
    data = sample_records(data)
    responds = held is None and find_held_inputs(data) != data.held_inputs
    held = tuple(find_held_inputs(data) if held is None else held)
    records = smooth_records(data, 1.0, held)
    clean = all(record.clean for record in records)
    several = [records] if clean else [smooth_records(data, strength, held) for strength in SMOOTHINGS]
    views = [
        view
        for place, smoothed in enumerate(several)
        for view in make_views(smoothed, weak=place == 0 and (any(held) or not clean))
    ]
    judge = Judge(records, list(data.states), list(data.inputs), vocabulary.make_balance(data.states), watch)
    source = Source(judge, views, clean, judge.names, not clean, find_angles(data))
    findings = search_source(source, vocabulary, symbolic, resamples, effort, seed)
    if responds and findings.explained:
        findings = replace(findings, verdict=f"{findings.verdict} Inputs are held between rows: the states respond so.")
    if findings.fits or findings.interrupted or vocabulary.is_balanced or not may_differ(data):
        return findings
    longest = data.select([int(data.lengths.argmax())])
    try:
        judge.watch("equations of one trajectory, with constants of their own for the others")
        alone = search(longest, vocabulary, symbolic=symbolic, effort="quick", seed=seed, watch=watch, held=held)
        found = fit_individuals(records, (data.states, data.inputs), [system.shown for system in alone.ranked])
    except KeyboardInterrupt:
        return replace(findings, interrupted=True)
    except (TimeIsUp, ValueError):  # Its time was up, or one trajectory does not offer a term that the user named.
        return findings
    return findings if found is None else replace(findings, verdict=f"{found}", individuals=found)


def search_field(
    model: NeuralODE,
    data: Dataset,
    vocabulary: Vocabulary,
    *,
    symbolic: bool | None = None,
    resamples: int = 0,
    effort: Effort = "normal",
    seed: int = 0,
    watch: SearchWatch | None = None,
) -> Findings:
    """Searches for the equations of a fitted model's vector field, and judges them on the data of the fit."""
    check_data_of(data)
    data = sample_records(data)
    reading = read_field(model, data)
    balance = reading.balance or vocabulary.make_balance(model.latent)
    if reading.balance is not None and (vocabulary.conserved or vocabulary.mass_action):
        raise ValueError("conserved and mass_action are of whole equations, and the model knows a part of them.")
    judge = Judge(reading.records, list(model.latent), list(model.inputs), balance, watch)
    clean = all(record.clean for record in reading.records)
    repeats = reading.balance is None and not clean
    source = Source(judge, make_views(reading.records, weak=False), clean, reading.sees, repeats, find_angles(data))
    return search_source(source, vocabulary, symbolic, resamples, effort, seed)


# The matrices are small, so threads mostly wait for each other: on two busy cores, a pendulum took 126 s instead of 14.
@threadpool_limits.wrap(limits=1, user_api="blas")
def search_source(
    source: Source, vocabulary: Vocabulary, symbolic: bool | None, resamples: int, effort: Effort, seed: int
) -> Findings:
    """Searches for equations in smoothed records or in those of a model."""
    symbolic = has_symbolic() if symbolic is None else symbolic
    if symbolic and not has_symbolic():
        raise ValueError('symbolic search needs pyoperon; install it with `pip install "node_fit[discover]"`.')
    judge = source.judge
    seen = [judge.names.index(name) for name in source.sees]
    offered = vocabulary.offer(judge.balance, source.sees, judge.values[:, seen], source.angles)
    beam = Search(source, offered, vocabulary.required, effort)
    beam.run(seed if symbolic else None)
    judged = first_of_each_shape(beam.judged)
    fits, explained, verdict = decide(judge, judged[0])
    shares: dict[str, dict[str, float]] = {}
    if beam.ended is None:
        with beam.keep_on_interrupt():
            shares = beam.share_terms(resamples, seed)
    if beam.ended is not None:
        verdict += f" The search {beam.ended}."
    reached = judge.values[:, : len(judge.states)]
    systems = [describe(system, judge) for system in judged]
    return Findings(systems, shares, fits, explained, verdict, reached, beam.ended == INTERRUPTED)


class Search:
    """A search and the systems judged so far, the best first; an interruption keeps them.

    **Arguments:** `source`: the data to search. `offered`: for each function, the terms that are searched together.
    `required`: terms that are never dropped. `effort`: the effort of the search.
    """

    def __init__(
        self,
        source: Source,
        offered: Sequence[Sequence[Sequence[Term]]],
        required: Sequence[str],
        effort: Effort,
    ):
        self.source, self.offered, self.required, self.effort = source, offered, required, effort
        self.judge = source.judge
        self.judged: list[JudgedSystem] = []
        # Why the search ended early.
        self.ended: str | None = None
        rates = np.concatenate([entry.rates for entry in self.judge.records])
        known = self.judge.balance.absorb(flat(itertools.chain(*offered)), self.judge.names, self.judge.values, rates)
        self.absorbed = [entry - set(required) for entry in known]

    def run(self, seed: int | None) -> None:
        """Combines formulas of each function, and improves the best system.

        **Arguments:** `seed`: seed of the symbolic search, or None to search only sums of terms.
        """
        others: Sequence[Sequence[Formula]] = ()
        with self.keep_on_interrupt():
            systems, others = self.propose(self.judge, self.source.views, self.source.clean, seed)
            self.judge.choose_steps(systems[0])
            self.judged = self.judge.judge(systems)
            self.improve(others)
            for _ in range(REPEATS[self.effort] if self.source.repeats else 0):
                best = self.judged[0]
                self.improve(*self.search_again(best))
                if self.judged[0] is best:
                    break
        self.judged = count_independent(self.judged)
        self.judge.share = self.judged[0].share
        if self.ended is None and self.judge.share < 1:
            # With fewer independent values, the best system can be shorter by several terms.
            shorter = [system for judged in self.judged[:SHORTENED] for system in drop_each_term(judged.formulas)]
            with self.keep_on_interrupt():
                self.improve(others, shorter)

    @contextmanager
    def keep_on_interrupt(self) -> Generator[None]:
        """Returns a context that ends quietly on an interruption or a time-out, once a system was judged."""
        try:
            yield
        except (KeyboardInterrupt, TimeIsUp) as end:
            if not self.judged and isinstance(end, TimeIsUp):
                limit = self.judge.watch.seconds
                raise ValueError(f"no equation was simulated within {limit:g} s; give the search more time.") from None
            if not self.judged:
                raise
            self.ended = INTERRUPTED if isinstance(end, KeyboardInterrupt) else "ended when its time was up"

    def propose(
        self, judge: Judge, views: Sequence[View], clean: bool, seed: int | None
    ) -> tuple[list[System], list[list[Formula]]]:
        """Returns initial systems, and formulas of each function to try in other systems."""
        balance, most = judge.balance, SCREENED[self.effort]
        if balance.shares is not None:
            ranked = joint_candidates(views, self.offered, judge.names, balance, clean, most)
            return [system for system in ranked if balance.accepts(system, self.required)], [[] for _ in self.offered]
        seen = [judge.names.index(name) for name in self.source.sees]
        kept: list[list[Formula]] = []
        for place, groups in enumerate(self.offered):
            apart = [View(view.values[:, seen], view.rates, view.weights) for view in views]
            judge.watch(f"sums of terms for {balance.titles[place]}")
            ranked = self.find_sums(apart, groups, place, clean, most, MAX_SUBSETS)
            if seed is not None:
                ranked += symbolic_candidates(apart[0], self.source.sees, place, clean, seed, judge.watch)[: most // 4]
            kept.append(ranked if balance.may_be_empty else screen_state(judge, ranked, place))
        kept += [[constant] for constant in balance.known_functions()]
        systems = [tuple(formulas[0] for formulas in kept), *combine_formulas(kept)]
        return systems, [formulas[:COMBINED] for formulas in kept] if balance.may_be_empty else kept

    def find_sums(
        self, views: Sequence[View], groups: Sequence[Sequence[Term]], place: int, clean: bool, most: int, limit: int
    ) -> list[Formula]:
        """Finds sums of terms for a function, shortest description first, without terms that known constants absorb.

        Each regression includes the absorbed terms, since a network can have learnt a part of the known equations.
        """
        absorbed = self.absorbed[place]
        kept = (*self.required, *absorbed)
        candidates = sparse_candidates(views, groups, self.source.sees, place, clean, most, kept, limit)
        shortest: dict[tuple[str, ...], Formula] = {}
        for formula in candidates:
            remaining = formula.without_terms(absorbed)
            shortest.setdefault(remaining.terms, remaining)
        return list(shortest.values())

    def improve(self, others: Sequence[Sequence[Formula]], systems: Sequence[System] = ()) -> None:
        terms = {
            place: [term for term in flat(groups) if term.text not in self.absorbed[place]]
            for place, groups in enumerate(self.offered)
        }
        for number in range(ROUNDS[self.effort]):
            best = self.judged[0]
            explained = 100 * max(1 - best.error, 0.0)
            self.judge.watch(f"round {number + 1}: of {len(self.judged)} systems, the best explains {explained:.4g} %")
            self.judged = self.judge.improve(self.judged, terms, others, systems, self.required)
            if self.judged[0] is best:
                break

    def search_again(self, best: JudgedSystem) -> tuple[list[list[Formula]], list[System]]:
        """Proposes formulas and systems along the simulation of a system, which is smoother than a spline."""
        judge = self.judge
        again = Judge(judge.follow(best), judge.states, judge.inputs, judge.balance, judge.watch)
        again.steps, again.linked = judge.steps, judge.linked
        systems, others = self.propose(again, make_views(again.records, weak=True)[1:], False, None)
        return others, systems if again.balance.shares is not None else []

    def share_terms(self, resamples: int, seed: int) -> dict[str, dict[str, float]]:
        """Computes for each term of a sum the share of resamples whose shortest description contains it."""
        best, balance, draw = self.judged[0].formulas, self.judge.balance, np.random.default_rng(seed)
        view, clean, sees = self.source.views[0], self.source.clean, self.source.sees
        seen = [self.judge.names.index(name) for name in sees]

        def resample() -> View:
            self.judge.watch("terms found again in resampled rows")
            rows = draw.integers(0, len(view.rates), len(view.rates))
            if view.weights is not None:
                return View(view.values[:, seen], view.rates[rows], view.weights[rows])
            return View(view.values[rows][:, seen], view.rates[rows], None)

        def shortest(place: int) -> list[Formula]:
            terms, groups = best[place].terms, self.offered[place]
            containing = [group for group in groups if set(terms) <= {term.text for term in group}]
            group = min(containing, key=len, default=flat(groups))
            return self.find_sums([resample()], [group], place, clean, 1, MAX_RESAMPLED_SUBSETS)

        joint: list[list[tuple[Formula, ...]]] = []
        if balance.shares is not None:
            joint = [joint_candidates([resample()], self.offered, sees, balance, clean, 1) for _ in range(resamples)]
        shares: dict[str, dict[str, float]] = {}
        for place, title in enumerate(balance.titles[: len(self.offered)]):
            if best[place].terms and resamples > 0:
                drawn = [systems[0][place : place + 1] for systems in joint] or [
                    shortest(place) for _ in range(resamples)
                ]
                parts = [formulas[0].parts if formulas else () for formulas in drawn]
                pairs = zip(best[place].terms, best[place].parts, strict=True)
                shares[title] = {term: sum(part in sample for sample in parts) / resamples for term, part in pairs}
        return shares


def screen_state(judge: Judge, candidates: Sequence[Formula], state: int) -> list[Formula]:
    """Selects the most probable candidates of one state's rate, the most probable of each size, and the first ones.

    The first ones describe the rates best. A state simulated alone can be unstable along the noisy splines of the
    others even if the whole system is stable; its true rate is then the least probable candidate.
    """
    kept: list[Formula] = []
    sizes: set[int] = set()
    for _, formula in judge.screen(candidates, state):
        if len(kept) < COMBINED or (len(formula.parts) not in sizes and len(formula.parts) <= SHORT_SUM):
            kept.append(formula)
            sizes.add(len(formula.parts))
    known = {formula.terms for formula in kept}
    return kept + [formula for formula in candidates[:FIRST] if formula.terms not in known]


def check_data_of(data: Dataset) -> None:
    rows = int(data.lengths.min())
    if rows < FEWEST_ROWS:
        raise ValueError(f"discover needs at least {FEWEST_ROWS} rows of each trajectory, got {rows}.")
    for name, plain in plain_names([*data.states, *data.inputs]).items():
        raise ValueError(f"equations can't have the name {name!r}; rename it, for example to {plain}.")
    if data.events is not None:
        raise ValueError("discover does not read events (data.events); give the rows between them as trajectories.")
    for row, name in enumerate(data.trajectories):
        known = np.isfinite(data.ys[row, : data.lengths[row]]).sum(axis=0)
        for state, many in zip(data.states, known, strict=True):
            if many < FEWEST_ROWS:
                raise ValueError(
                    f"discover needs {FEWEST_ROWS} measurements of {state!r} in trajectory {name!r}, got {many}."
                )


def sample_records(data: Dataset) -> Dataset:
    """Samples the records evenly if they have too many rows."""
    return data.sample(max(MOST_ROWS // int(data.lengths.max()), 1))


def find_angles(data: Dataset) -> list[str]:
    """Returns the states that are angles, according to the data (`angles`) or their names: `angle`, `theta_1`."""
    return [name for name in data.states if name in data.angles or NAME_OF_ANGLE.search(name)]


def smooth_records(data: Dataset, strength: float, held: Sequence[bool]) -> list[Smoothed]:
    records: list[Smoothed] = []
    for row, length in enumerate(data.lengths):
        t, ys, us = data.ts[row, :length], data.ys[row, :length], data.us[row, :length]
        records.append(smooth_record(t, ys, us, strength, held=held))
    return records


def flat(libraries: Iterable[Sequence[Term]]) -> list[Term]:
    """Returns all terms without duplicates."""
    return list({term.text: term for library in libraries for term in library}.values())


def group_terms(libraries: Mapping[str, Sequence[Term]]) -> list[list[Term]]:
    """Returns the sets of terms whose sums are searched: low-degree polynomials combined with other libraries."""
    low = [libraries.get(kind, []) for kind in LOW_DEGREE]
    more = [[libraries.get(kind, []) for kind in kinds] for kinds in GROUPS]
    groups = [flat([*low, *others, libraries[OWN]]) for place, others in enumerate(more) if any(others) or not place]
    return [group for group in groups if group]


def combine_formulas(kept: Sequence[Sequence[Formula]]) -> list[tuple[Formula, ...]]:
    """Returns systems of all first candidates with the candidate of one state replaced."""
    first = tuple(formulas[0] for formulas in kept)
    return [
        (*first[:state], formula, *first[state + 1 :])
        for state, candidates in enumerate(kept)
        for formula in candidates[1:]
    ]


def describe(judged: JudgedSystem, judge: Judge) -> FoundSystem:
    """Names the system's constants unlike any state, input or known constant, and writes its equations."""
    balance, own = judge.balance, list(judge.balance.constants)
    taken = [*judge.names, *own]
    letter = next(
        prefix for prefix in ("c", "k", "p", "constant_") if not any(name.startswith(prefix) for name in taken)
    )
    texts: list[str] = []
    constants: dict[str, float] = {}
    for place, formula in enumerate(judged.formulas):
        known = place - len(judged.formulas) + len(own)
        first = len(constants) + 1
        names = [own[known]] if known >= 0 else [f"{letter}{first + index}" for index in range(len(formula.constants))]
        texts.append(formula.with_names(names))
        constants.update(zip(names, formula.constants, strict=True))
    shown = balance.write([formula.with_numbers() for formula in judged.formulas], judge.states, 4)
    equations = balance.write(texts, judge.states)
    start = dict(zip(judge.states, judged.starts[:, 0].tolist(), strict=True))
    fitted = (judged.error, judged.size, judged.evidence, judged.escapes, start)
    held = tuple(name for name, is_held in zip(judge.inputs, judge.records[0].held, strict=True) if is_held)
    return FoundSystem(equations, constants, shown, *fitted, held)

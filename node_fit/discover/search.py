"""The search for equations: candidates of each state, systems of them that simulations judge, and a verdict."""

import itertools
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from threadpoolctl import threadpool_limits

from ..data.dataset import Dataset
from ..data.interpolation import interpolate_input
from ..expressions.tree import symbols
from ..model.fields.equations import nearest_symbol, parse
from ..model.neural_ode import NeuralODE
from ..options.options import Effort
from .balance import Balance, conserving, reacting
from .candidates import (
    MAX_RESAMPLED_SUBSETS,
    MAX_SUBSETS,
    SMOOTHINGS,
    Smoothed,
    View,
    has_symbolic,
    joint_candidates,
    make_views,
    smooth_record,
    sparse_candidates,
    symbolic_candidates,
)
from .formulas import GROUPS, LIBRARIES, LOW_DEGREE, Formula, Term, count, fits_angles, make_library, read_tape
from .judging import Judge, JudgedSystem, System, count_independent, drops, first_of_each_shape
from .names import plain_names
from .reading import read_field
from .shapes import shape_of_term
from .verdict import FEWEST_ROWS, decide
from .watch import SearchWatch, TimeIsUp

INTERRUPTED = "was interrupted"
NAME_OF_ANGLE = re.compile(r"(?<![a-z])(angle|theta)(?![a-z])", re.IGNORECASE)
# Candidates of each state that are combined, and the most terms of which the best one is combined whatever its place.
COMBINED, SHORT_SUM = 4, 5
# Systems whose terms are dropped at last.
SHORTENED = 6
# Candidates with the shortest descriptions that are combined, too, whatever they are on their own.
FIRST = 3
# The library of the user's terms.
OWN = "own"
# By effort: candidates of each state that are simulated on their own. These are counts, not seconds, so that a slower
# machine finds the same.
SCREENED = {"quick": 48, "normal": 60, "thorough": 150}
# By effort: how often candidates are searched again along the best simulation, where there is noise.
REPEATS = {"quick": 1, "normal": 2, "thorough": 4}
# By effort: rounds in which terms are dropped, added and replaced.
ROUNDS = {"quick": 3, "normal": 6, "thorough": 12}
RESAMPLES = 20
# The most evaluations of a simulation.
MOST_EVALUATIONS = 20_000
# Of many records, some that have about so many rows together.
MOST_ROWS = 1_000


@dataclass(frozen=True)
class FoundSystem:
    """A system that was found: its equations by state, its constants by name, error, size and evidence.

    `error` is the mean squared error of the simulation, in standard deviations of each state; `escapes` says that it
    runs away from a start within the data's range; `start` are the states at the first row of the first record.
    """

    equations: dict[str, str]
    constants: dict[str, float]
    shown: dict[str, str]
    error: float
    size: int
    evidence: float
    escapes: bool
    start: dict[str, float] = field(default_factory=dict[str, float])

    def __str__(self) -> str:
        return "\n".join(f"d{state}/dt = {text}" for state, text in self.shown.items())

    def simulate(
        self, start: Sequence[float] | np.ndarray, ts: np.ndarray, us: Mapping[str, np.ndarray] | None = None
    ) -> np.ndarray | None:
        """States at times, `(row, state)`, by LSODA; None if the solver gives up.

        **Arguments:** `start`: of the states, at the first time. `us`: inputs by name, `(row,)`.
        """
        inputs = {name: interpolate_input(ts, column) for name, column in (us or {}).items()}
        rates = read_tape(list(self.equations.values()), [*self.equations, *inputs, *self.constants])
        constants = list(self.constants.values())

        def slope(t: float, y: np.ndarray) -> np.ndarray:
            given = [at(np.asarray(t)) for at in inputs.values()]
            return np.array(rates([*y, *given, *constants]), float)

        return solve_or_give_up(slope, start, ts)


def solve_or_give_up(
    slope: Callable[[float, np.ndarray], np.ndarray], start: Sequence[float] | np.ndarray, ts: np.ndarray
) -> np.ndarray | None:
    """States at times, `(row, state)`, by LSODA; None if they run away, or its steps become too small."""
    from scipy.integrate import solve_ivp

    left = MOST_EVALUATIONS

    def counted(t: float, y: np.ndarray) -> np.ndarray:
        nonlocal left
        left -= 1
        if left < 0 or not np.isfinite(y).all():
            raise ArithmeticError
        return slope(t, y)

    try:
        with np.errstate(all="ignore"):
            done = solve_ivp(counted, (ts[0], ts[-1]), start, t_eval=ts, method="LSODA", rtol=1e-7, atol=1e-9)
    except ArithmeticError:
        return None
    return done.y.T if done.success and np.isfinite(done.y).all() else None


@dataclass(frozen=True)
class Findings:
    """What a search found: systems, the best first, the share of resamples with each term, and a verdict.

    `fits` says whether the best leaves nothing but noise, `explained` whether it explains the records, too; `verdict`
    says so in a sentence. `reached`: states of the records without noise, `(row, state)`. `interrupted`: whether Ctrl-C
    has ended the search.
    """

    ranked: list[FoundSystem]
    shares: dict[str, dict[str, float]]
    fits: bool
    explained: bool
    verdict: str
    reached: np.ndarray
    interrupted: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """The terms that equations may have; `node_fit.discover` describes each.

    `libraries` are all if None. `terms`, `required` and `forbidden` are texts, in which `^` is a power. `conserved` are
    sums of states. With `mass_action`, terms are those of reactions.
    """

    libraries: Sequence[str] | None = None
    terms: Sequence[str] = ()
    required: Sequence[str] = ()
    forbidden: Sequence[str] = ()
    conserved: Sequence[str] = ()
    mass_action: bool = False

    def __post_init__(self):
        if self.mass_action and (self.libraries is not None or self.terms):
            raise ValueError("mass_action says which terms there are; leave libraries and terms out.")
        for name in ("terms", "required", "forbidden"):
            texts = tuple(text.replace("^", "**") for text in getattr(self, name))
            for text in texts:
                parse(text, text, kind=f"{name}: the term")
            object.__setattr__(self, name, texts)

    def check(self, names: Sequence[str], offered: Iterable[Term]) -> None:
        """Checks that texts are terms of these states and inputs, and that those forbidden are offered.

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
        """The terms of each library, without the forbidden ones; the user's are a library of their own.

        Of libraries that the user has not chosen, only terms are taken that fit to angles.
        """
        chosen = LIBRARIES if self.libraries is None else self.libraries
        found = {kind: make_library(kind, names, values) for kind in chosen}
        if self.libraries is None:
            found = {kind: [term for term in every if fits_angles(term, angles)] for kind, every in found.items()}
        found[OWN] = [Term(f"({text})", count(parse("terms", text))) for text in self.terms]
        found[OWN] += [Term(text, count(parse("required", text))) for text in self.required]
        self.check(names, itertools.chain.from_iterable(found.values()))
        return {kind: self.allow(every) for kind, every in found.items()}

    def allow(self, terms: Iterable[Term]) -> list[Term]:
        """The terms that are not forbidden, however these are written."""
        shapes = {shape_of_term(text) for text in self.forbidden}
        return [term for term in terms if shape_of_term(term.text) not in shapes]

    def make_balance(self, states: Sequence[str]) -> Balance:
        """The balance of equations of measured states."""
        if self.mass_action:
            return reacting(states, self.conserved)
        return conserving(states, self.conserved) if self.conserved else Balance.apart(states)

    def offer(
        self, balance: Balance, names: Sequence[str], values: np.ndarray, angles: Sequence[str]
    ) -> list[list[list[Term]]]:
        """For each function, the sets of terms that are searched together.

        **Arguments:** `names`, `values`: of what functions may depend on, and `(row, name)`. `angles`: those of them
        that are angles.
        """
        if balance.offered is not None:
            self.check(names, itertools.chain.from_iterable(balance.offered))
            return [[self.allow(terms)] for terms in balance.offered]
        return [group_terms(self.make_terms(names, values, angles))] * (len(balance.titles) - len(balance.constants))


@dataclass(frozen=True)
class Source:
    """What equations are searched in.

    **Arguments:** `judge`: of the records. `views`: of their rates. `clean`: whether they are free of noise. `sees`:
    names that the functions may depend on. `repeats`: whether rates are read again from the best simulation.
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
) -> Findings:
    """Searches for the equations of a system in measurements; the arguments are those of `node_fit.discover`."""
    check_data_of(data)
    data = few_records(data)
    records = smooth_records(data, 1.0)
    clean = all(each.clean for each in records)
    several = [records] if clean else [smooth_records(data, strength) for strength in SMOOTHINGS]
    views = [view for place, each in enumerate(several) for view in make_views(each, weak=place == 0 and not clean)]
    judge = Judge(records, list(data.states), list(data.inputs), vocabulary.make_balance(data.states), watch)
    source = Source(judge, views, clean, judge.names, not clean, find_angles(data))
    return search_source(source, vocabulary, symbolic, resamples, effort, seed)


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
    """Searches for the equations of a fitted model's field, which are judged by the data that it was fitted to."""
    check_data_of(data)
    data = few_records(data)
    reading = read_field(model, data)
    balance = reading.balance or vocabulary.make_balance(model.latent)
    if reading.balance is not None and (vocabulary.conserved or vocabulary.mass_action):
        raise ValueError("conserved and mass_action are of whole equations, and the model knows a part of them.")
    judge = Judge(reading.records, list(model.latent), list(model.inputs), balance, watch)
    clean = all(each.clean for each in reading.records)
    repeats = reading.balance is None and not clean
    source = Source(judge, make_views(reading.records, weak=False), clean, reading.sees, repeats, find_angles(data))
    return search_source(source, vocabulary, symbolic, resamples, effort, seed)


# Matrices are small, and many threads at one of them wait for each other: on two busy cores, a pendulum took 126 s
# instead of 14.
@threadpool_limits.wrap(limits=1, user_api="blas")
def search_source(
    source: Source, vocabulary: Vocabulary, symbolic: bool | None, resamples: int, effort: Effort, seed: int
) -> Findings:
    """Searches for equations in smooth records, or in those of a model."""
    symbolic = has_symbolic() if symbolic is None else symbolic
    if symbolic and not has_symbolic():
        raise ValueError('symbolic search needs pyoperon; install it with `pip install "node-fit[discover]"`.')
    judge = source.judge
    seen = [judge.names.index(name) for name in source.sees]
    offered = vocabulary.offer(judge.balance, source.sees, judge.values[:, seen], source.angles)
    beam = Search(source, offered, vocabulary.required, effort)
    beam.run(seed if symbolic else None)
    judged = first_of_each_shape(beam.judged)
    fits, explained, verdict = decide(judge, judged[0])
    shares: dict[str, dict[str, float]] = {}
    if beam.ended is None:
        with beam.keeping():
            shares = beam.share_terms(resamples, seed)
    if beam.ended is not None:
        verdict += f" The search {beam.ended}."
    reached = judge.values[:, : len(judge.states)]
    systems = [describe(each, judge) for each in judged]
    return Findings(systems, shares, fits, explained, verdict, reached, beam.ended == INTERRUPTED)


class Search:
    """Systems that were judged so far, the best first; an interruption keeps them.

    **Arguments:** `source`: what is searched in. `offered`: for each function, terms that are searched together.
    `required`: terms that no sum loses. `effort`: how much is tried.
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
        # Why the search has ended before its time.
        self.ended: str | None = None
        given = np.concatenate([each.rates for each in self.judge.records])
        known = self.judge.balance.absorb(flat(itertools.chain(*offered)), self.judge.names, self.judge.values, given)
        self.absorbed = [each - set(required) for each in known]

    def run(self, seed: int | None) -> None:
        """Combines formulas of each function, and improves the best system.

        **Arguments:** `seed`: of the symbolic search, or None for sums of terms alone.
        """
        others: Sequence[Sequence[Formula]] = ()
        with self.keeping():
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
            # What fewer values told of a term may not be worth it; the best then may be shorter by several terms.
            shorter = [system for each in self.judged[:SHORTENED] for system in drops(each.formulas)]
            with self.keeping():
                self.improve(others, shorter)

    @contextmanager
    def keeping(self) -> Generator[None]:
        """A context that an interruption or the end of the time ends, once there is a system to return."""
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
        """Systems to begin with, and formulas of each function that are to be tried in others."""
        balance, most = judge.balance, SCREENED[self.effort]
        if balance.shares is not None:
            found = joint_candidates(views, self.offered, judge.names, balance, clean, most)
            return [each for each in found if balance.accepts(each, self.required)], [[] for _ in self.offered]
        seen = [judge.names.index(name) for name in self.source.sees]
        kept: list[list[Formula]] = []
        for place, groups in enumerate(self.offered):
            apart = [View(view.values[:, seen], view.rates, view.weights) for view in views]
            judge.watch(f"sums of terms for {balance.titles[place]}")
            found = self.find_sums(apart, groups, place, clean, most, MAX_SUBSETS)
            if seed is not None:
                found += symbolic_candidates(apart[0], self.source.sees, place, clean, seed, judge.watch)[: most // 4]
            kept.append(found if balance.may_be_empty else screen_state(judge, found, place))
        kept += [[constant] for constant in balance.given()]
        systems = [tuple(each[0] for each in kept), *combine_formulas(kept)]
        return systems, [each[:COMBINED] for each in kept] if balance.may_be_empty else kept

    def find_sums(
        self, views: Sequence[View], groups: Sequence[Sequence[Term]], place: int, clean: bool, most: int, limit: int
    ) -> list[Formula]:
        """Sums of terms for a function, the shortest descriptions first, without those that known constants absorb.

        These are in each regression, since a network may have learnt a part of what the known equations say.
        """
        absorbed = self.absorbed[place]
        kept = (*self.required, *absorbed)
        found = sparse_candidates(views, groups, self.source.sees, place, clean, most, kept, limit)
        shortest: dict[tuple[str, ...], Formula] = {}
        for each in found:
            left = each.without_terms(absorbed)
            shortest.setdefault(left.terms, left)
        return list(shortest.values())

    def improve(self, others: Sequence[Sequence[Formula]], systems: Sequence[System] = ()) -> None:
        terms = {
            place: [term for term in flat(groups) if term.text not in self.absorbed[place]]
            for place, groups in enumerate(self.offered)
        }
        for at in range(ROUNDS[self.effort]):
            best = self.judged[0]
            explained = 100 * max(1 - best.error, 0.0)
            self.judge.watch(f"round {at + 1}: of {len(self.judged)} systems, the best explains {explained:.4g} %")
            self.judged = self.judge.improve(self.judged, terms, others, systems, self.required)
            if self.judged[0] is best:
                break

    def search_again(self, best: JudgedSystem) -> tuple[list[list[Formula]], list[System]]:
        """Formulas of each function, or systems, along the simulation of a system, which is smoother than a spline."""
        judge = self.judge
        again = Judge(judge.follow(best), judge.states, judge.inputs, judge.balance, judge.watch)
        again.steps, again.linked = judge.steps, judge.linked
        systems, others = self.propose(again, make_views(again.records, weak=True)[1:], False, None)
        return others, systems if again.balance.shares is not None else []

    def share_terms(self, resamples: int, seed: int) -> dict[str, dict[str, float]]:
        """For each term of a sum, the share of resamples of rows whose shortest description contains it."""
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
            own = [group for group in groups if set(terms) <= {term.text for term in group}]
            group = min(own, key=len, default=flat(groups))
            return self.find_sums([resample()], [group], place, clean, 1, MAX_RESAMPLED_SUBSETS)

        whole: list[list[tuple[Formula, ...]]] = []
        if balance.shares is not None:
            whole = [joint_candidates([resample()], self.offered, sees, balance, clean, 1) for _ in range(resamples)]
        shares: dict[str, dict[str, float]] = {}
        for place, title in enumerate(balance.titles[: len(self.offered)]):
            if best[place].terms and resamples > 0:
                drawn = [each[0][place : place + 1] for each in whole] or [shortest(place) for _ in range(resamples)]
                parts = [each[0].parts if each else () for each in drawn]
                pairs = zip(best[place].terms, best[place].parts, strict=True)
                shares[title] = {term: sum(part in each for each in parts) / resamples for term, part in pairs}
        return shares


def screen_state(judge: Judge, candidates: Sequence[Formula], state: int) -> list[Formula]:
    """Of candidates of one state's rate the most probable ones, the most probable of each size, and the first ones.

    These describe the rates best. A state on its own may be unstable along the noisy splines of the others, which the
    whole system is not, so that its true rate is the least probable of all.
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


def few_records(data: Dataset) -> Dataset:
    """Of many records, an even choice."""
    return data.sample(max(MOST_ROWS // int(data.lengths.max()), 1))


def find_angles(data: Dataset) -> list[str]:
    """States that are angles, as the data say (`angles`) or their names: `angle`, `theta_1`."""
    return [name for name in data.states if name in data.angles or NAME_OF_ANGLE.search(name)]


def smooth_records(data: Dataset, strength: float) -> list[Smoothed]:
    found: list[Smoothed] = []
    for row, length in enumerate(data.lengths):
        found.append(smooth_record(data.ts[row, :length], data.ys[row, :length], data.us[row, :length], strength))
    return found


def flat(libraries: Iterable[Sequence[Term]]) -> list[Term]:
    """All terms, each once."""
    return list({term.text: term for every in libraries for term in every}.values())


def group_terms(libraries: Mapping[str, Sequence[Term]]) -> list[list[Term]]:
    """Sets of terms whose sums are searched: polynomials, and those of low degree with some libraries each."""
    low = [libraries.get(kind, []) for kind in LOW_DEGREE]
    more = [[libraries.get(kind, []) for kind in kinds] for kinds in GROUPS]
    groups = [flat([*low, *each, libraries[OWN]]) for at, each in enumerate(more) if any(each) or not at]
    return [group for group in groups if group]


def combine_formulas(kept: Sequence[Sequence[Formula]]) -> list[tuple[Formula, ...]]:
    """The first candidates of all states, with another one of one state each."""
    first = tuple(each[0] for each in kept)
    return [(*first[:state], formula, *first[state + 1 :]) for state, every in enumerate(kept) for formula in every[1:]]


def describe(judged: JudgedSystem, judge: Judge) -> FoundSystem:
    """The system with names for its constants that no state, input or known constant has."""
    balance, own = judge.balance, list(judge.balance.constants)
    taken = [*judge.names, *own]
    letter = next(each for each in ("c", "k", "p", "constant_") if not any(name.startswith(each) for name in taken))
    texts: list[str] = []
    constants: dict[str, float] = {}
    for place, formula in enumerate(judged.formulas):
        known = place - len(judged.formulas) + len(own)
        first = len(constants) + 1
        names = [own[known]] if known >= 0 else [f"{letter}{first + at}" for at in range(len(formula.constants))]
        texts.append(formula.named(names))
        constants.update(zip(names, formula.constants, strict=True))
    shown = balance.write([formula.shown() for formula in judged.formulas], judge.states, 4)
    equations = balance.write(texts, judge.states)
    start = dict(zip(judge.states, judged.starts[:, 0].tolist(), strict=True))
    return FoundSystem(equations, constants, shown, judged.error, judged.size, judged.evidence, judged.escapes, start)

"""The search for equations: candidates of each state, systems of them that simulations judge, and a verdict."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from ..data.dataset import Dataset
from ..model.fields.equations import parse
from ..options.options import Effort
from .candidates import (
    SMOOTHINGS,
    Smoothed,
    View,
    has_symbolic,
    make_views,
    smooth,
    sparse_candidates,
    symbolic_candidates,
)
from .formulas import LIBRARIES, Formula, Tape, Term, count, make_library
from .judging import Judge, JudgedSystem, cut

DISCOVERY_LOG = logging.getLogger(__name__)
# Candidates of each state that are combined, and the most terms of which the best one is combined whatever its place.
COMBINED, SHORT_SUM = 4, 5
# What a system must explain: the share of variance, and how alike neighbouring residuals may be, beside the deviation
# of a correlation that is due to chance.
LEAST_EXPLAINED, MOST_ALIKE, NEARLY_EXACT = 0.5, 0.5, 0.999
# Minus twice the logarithm of the odds against the row before: it is the best of some ten thousand systems.
SMALLEST_LEAD = 20.0
# The user's terms, and libraries that are searched together.
OWN = "own"
GROUPS = (
    ("trigonometric", "differences"),
    ("saturating", "growth", "quotients"),
    ("exponential", "switching", "friction"),
)
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
FEWEST_ROWS = 12
# Of many records, some that have about so many rows together.
MOST_ROWS = 1_000


@dataclass(frozen=True)
class FoundSystem:
    """A system that was found: its equations by state, its constants by name, error, size and evidence.

    `error` is the mean squared error of the simulation, in standard deviations of each state; `escapes` says that it
    runs away from a start within the data's range.
    """

    equations: dict[str, str]
    constants: dict[str, float]
    shown: dict[str, str]
    error: float
    size: int
    evidence: float
    escapes: bool

    def __str__(self) -> str:
        return "\n".join(f"d{state}/dt = {text}" for state, text in self.shown.items())

    def simulate(
        self, start: Sequence[float] | np.ndarray, ts: np.ndarray, us: Mapping[str, np.ndarray] | None = None
    ) -> np.ndarray | None:
        """States at times, `(row, state)`, by LSODA; None if the solver gives up.

        **Arguments:** `start`: of the states, at the first time. `us`: inputs by name, `(row,)`, linear between rows.
        """
        from scipy.integrate import solve_ivp

        inputs = dict(us or {})
        rates = Tape(list(self.equations.values()), [*self.equations, *inputs, *self.constants])
        constants, left = list(self.constants.values()), MOST_EVALUATIONS

        def slope(t: float, y: np.ndarray) -> np.ndarray:
            nonlocal left
            left -= 1
            if left < 0 or not np.isfinite(y).all():
                raise ArithmeticError("the simulation runs away, or its steps become too small.")
            return np.array(rates([*y, *[np.interp(t, ts, column) for column in inputs.values()], *constants]), float)

        try:
            with np.errstate(all="ignore"):
                done = solve_ivp(slope, (ts[0], ts[-1]), start, t_eval=ts, method="LSODA", rtol=1e-7, atol=1e-9)
        except ArithmeticError:
            return None
        return done.y.T if done.success and np.isfinite(done.y).all() else None


@dataclass(frozen=True)
class Findings:
    """What a search found: systems, the best first, the share of resamples with each term, and a verdict.

    `fits` says whether the best leaves nothing but noise, `explained` whether it explains the records, too; `verdict`
    says so in a sentence.
    """

    ranked: list[FoundSystem]
    shares: dict[str, dict[str, float]]
    fits: bool
    explained: bool
    verdict: str


@dataclass(frozen=True)
class Vocabulary:
    """The terms that equations may have; `node_fit.discover` describes each.

    `libraries` are all if None. `terms`, `required` and `forbidden` are texts, in which `^` is a power.
    """

    libraries: Sequence[str] | None = None
    terms: Sequence[str] = ()
    required: Sequence[str] = ()
    forbidden: Sequence[str] = ()

    def __post_init__(self):
        for name in ("terms", "required", "forbidden"):
            texts = tuple(text.replace("^", "**") for text in getattr(self, name))
            object.__setattr__(self, name, texts)

    def make_terms(self, names: Sequence[str], values: np.ndarray) -> dict[str, list[Term]]:
        """The terms of each library, without the forbidden ones; the user's are a library of their own."""
        chosen = LIBRARIES if self.libraries is None else self.libraries
        found = {kind: make_library(kind, names, values) for kind in chosen}
        found[OWN] = [Term(f"({text})", count(parse("terms", text))) for text in self.terms]
        found[OWN] += [Term(text, count(parse("required", text))) for text in self.required]
        return {kind: [term for term in every if term.text not in self.forbidden] for kind, every in found.items()}


# Matrices are small, and many threads at one of them wait for each other: on two busy cores, a pendulum took 126 s
# instead of 14.
@threadpool_limits.wrap(limits=1, user_api="blas")
def search(
    data: Dataset,
    vocabulary: Vocabulary,
    *,
    symbolic: bool | None = None,
    resamples: int = 0,
    effort: Effort = "normal",
    seed: int = 0,
) -> Findings:
    """Searches for the equations of a system; the arguments are those of `node_fit.discover`."""
    check_data_of(data)
    symbolic = has_symbolic() if symbolic is None else symbolic
    if symbolic and not has_symbolic():
        raise ValueError('symbolic search needs pyoperon; install it with `pip install "node-fit[discover]"`.')
    data = data.sample(max(MOST_ROWS // int(data.lengths.max()), 1))
    states, inputs = list(data.states), list(data.inputs)
    records = smooth_records(data, 1.0)
    judge = Judge(records, states, inputs)
    library, required = vocabulary.make_terms(judge.names, judge.values), vocabulary.required
    clean = all(each.clean for each in records)
    several = [records] if clean else [smooth_records(data, strength) for strength in SMOOTHINGS]
    views = [view for place, each in enumerate(several) for view in make_views(each, weak=place == 0 and not clean)]
    groups = group_terms(library)
    kept = [
        screen_state(judge, views, groups, state, clean, SCREENED[effort], required, seed if symbolic else None)
        for state in range(len(states))
    ]
    beam = Search(judge, groups, required, effort)
    beam.run(kept, clean)
    judged = beam.judged
    fits, explained, verdict = decide(judge, judged[0])
    if beam.interrupted:
        verdict += " The search was interrupted."
    shares = share_terms(judged[0], views[0], groups, judge.names, states, clean, resamples, seed)
    return Findings([describe(each, judge.names, states) for each in judged], shares, fits, explained, verdict)


class Search:
    """Systems that were judged so far, the best first; an interruption keeps them.

    **Arguments:** `judge`: of the records. `groups`: terms that are searched together. `required`: terms that no sum
    loses. `effort`: how much is tried.
    """

    def __init__(self, judge: Judge, groups: Sequence[Sequence[Term]], required: Sequence[str], effort: Effort):
        self.judge, self.groups, self.required, self.effort = judge, groups, required, effort
        self.judged: list[JudgedSystem] = []
        self.interrupted = False

    def run(self, kept: Sequence[Sequence[Formula]], clean: bool) -> None:
        """Combines right-hand sides of each state, and improves the best system."""
        try:
            first = tuple(each[0] for each in kept)
            self.judge.choose_steps(first)
            self.judged = self.judge.judge([first, *combine(kept)])
            self.improve(kept)
            for _ in range(0 if clean else REPEATS[self.effort]):
                best = self.judged[0]
                self.improve(self.search_again(best))
                if self.judged[0] is best:
                    break
        except KeyboardInterrupt:
            if not self.judged:
                raise
            self.interrupted = True

    def improve(self, others: Sequence[Sequence[Formula]]) -> None:
        library = flat(self.groups)
        terms = dict.fromkeys(range(len(others)), library)
        for at in range(ROUNDS[self.effort]):
            best = self.judged[0]
            DISCOVERY_LOG.info(
                "round %d: %d systems judged, the best explains %.4g %% of the variance",
                at + 1, len(self.judged), 100 * (1 - best.error),
            )  # fmt: skip
            self.judged = self.judge.improve(self.judged, terms, others, self.required)
            if self.judged[0] is best:
                break

    def search_again(self, best: JudgedSystem) -> list[list[Formula]]:
        """Right-hand sides of each state along the simulation of a system, which is smoother than a spline."""
        again = Judge(self.judge.follow(best), self.judge.states, self.judge.inputs)
        again.steps, again.linked = self.judge.steps, self.judge.linked
        weak = make_views(again.records, weak=True)[1:]
        most = SCREENED[self.effort]
        return [
            screen_state(again, weak, self.groups, state, False, most, self.required, None)
            for state in range(len(again.states))
        ]


def screen_state(
    judge: Judge,
    views: Sequence[View],
    groups: Sequence[Sequence[Term]],
    state: int,
    clean: bool,
    most: int,
    required: Sequence[str],
    seed: int | None,
) -> list[Formula]:
    """Candidates of one state's right-hand side: the most probable ones, and the most probable of each size.

    **Arguments:** `seed`: of the symbolic search, or None for sums of terms alone.
    """
    candidates = sparse_candidates(views, groups, judge.names, state, clean, most, required)
    if seed is not None:
        candidates += symbolic_candidates(views[0], judge.names, state, clean, seed)[: most // 4]
    found = judge.screen(candidates, state)
    kept, sizes = [], set()
    for _, formula in found:
        if len(kept) < COMBINED or (len(formula.parts) not in sizes and len(formula.parts) <= SHORT_SUM):
            kept.append(formula)
            sizes.add(len(formula.parts))
    return kept


def check_data_of(data: Dataset) -> None:
    rows = int(data.lengths.min())
    if rows < FEWEST_ROWS:
        raise ValueError(f"discover needs at least {FEWEST_ROWS} rows of each trajectory, got {rows}.")
    if data.events is not None:
        raise ValueError("discover does not read events (data.events); give the rows between them as trajectories.")
    for row, name in enumerate(data.trajectories):
        known = np.isfinite(data.ys[row, : data.lengths[row]]).sum(axis=0)
        for state, many in zip(data.states, known, strict=True):
            if many < FEWEST_ROWS:
                raise ValueError(
                    f"discover needs {FEWEST_ROWS} measurements of {state!r} in trajectory {name!r}, got {many}."
                )


def smooth_records(data: Dataset, strength: float) -> list[Smoothed]:
    found = []
    for row, length in enumerate(data.lengths):
        found.append(smooth(data.ts[row, :length], data.ys[row, :length], data.us[row, :length], strength))
    return found


def flat(libraries: Iterable[Sequence[Term]]) -> list[Term]:
    """All terms, each once."""
    return list({term.text: term for every in libraries for term in every}.values())


def group_terms(libraries: Mapping[str, Sequence[Term]]) -> list[list[Term]]:
    """Sets of terms whose sums are searched: polynomials, and those of low degree with some libraries each."""
    own = libraries[OWN]
    low = [libraries.get(kind, []) for kind in ("linear", "quadratic")]
    groups = [flat([*low, *[libraries.get(kind, []) for kind in ("cubic", "quintic")], own])]
    for kinds in GROUPS:
        more = [libraries.get(kind, []) for kind in kinds]
        if any(more):
            groups.append(flat([*low, *more, own]))
    return [group for group in groups if group]


def combine(kept: Sequence[Sequence[Formula]]) -> list[tuple[Formula, ...]]:
    """The first candidates of all states, with another one of one state each."""
    first = tuple(each[0] for each in kept)
    return [(*first[:state], formula, *first[state + 1 :]) for state, every in enumerate(kept) for formula in every[1:]]


def describe(judged: JudgedSystem, names: Sequence[str], states: Sequence[str]) -> FoundSystem:
    """The system with names for its constants that no state or input has."""
    letter = next(each for each in ("c", "k", "p", "constant_") if not any(name.startswith(each) for name in names))
    equations, constants = {}, {}
    for state, formula in zip(states, judged.formulas, strict=True):
        own = [f"{letter}{len(constants) + at + 1}" for at in range(len(formula.constants))]
        equations[state] = formula.named(own)
        constants.update(zip(own, formula.constants, strict=True))
    shown = {state: formula.shown() for state, formula in zip(states, judged.formulas, strict=True)}
    return FoundSystem(equations, constants, shown, judged.error, judged.size, judged.evidence, judged.escapes)


def decide(judge: Judge, judged: JudgedSystem) -> tuple[bool, bool, str]:
    """Whether a system fits the records, whether it explains them, and both in words.

    It fits if it explains the variance, and leaves residuals that look like noise. Of few rows, much fits that explains
    nothing.
    """
    worst, alike = 1.0, 0.0
    for state in range(len(judge.states)):
        products, squares, total = 0.0, 0.0, 0.0
        for record in range(judged.left.shape[2]):
            gap = judged.left[:, state, record]
            gap = gap[np.isfinite(gap)]
            products, squares = products + float(gap[1:] @ gap[:-1]), squares + float(gap @ gap)
        for record in judge.records:
            value = record.raw[:, state][np.isfinite(record.raw[:, state])] / judge.scale[state]
            total += float(((value - value.mean()) ** 2).sum())
        share = 1 - squares / max(total, 1e-300)
        worst = min(worst, share)
        if share < NEARLY_EXACT:
            alike = max(alike, products / max(squares, 1e-300))
    figures = f"it explains {100 * worst:.3g} % of the variance, and neighbouring residuals correlate by {alike:.2f}"
    none = f"no equation of these terms explains the record: of the best, {figures}"
    rows = np.isfinite(judged.left).any(axis=1).sum()
    if worst < LEAST_EXPLAINED or alike > MOST_ALIKE + rows**-0.5 or judged.escapes:
        return False, False, f"{none}."
    if worst < NEARLY_EXACT and past_does_as_well(judge, judged):
        return True, False, f"{none}, and each row is predicted as well by a linear map of the row before."
    return True, True, f"found an equation; {figures}."


def past_does_as_well(judge: Judge, judged: JudgedSystem) -> bool:
    """Whether a linear map of the row before makes the rows about as probable as the simulation, which sees the first.

    So it is of random walks, and of all that is driven by noise or by what is older than a row; not of a system whose
    measurements are noisy. Both are compared by Schwarz's criterion, with a variance of the noise for each state.
    """
    count, before, now, left = len(judge.states), [], [], []
    pieces = iter(judged.left.transpose(2, 0, 1))
    for record in judge.records:
        scaled = record.raw / judge.scale[:count]
        gap = np.full_like(scaled, np.nan)
        for piece in cut(len(scaled)):
            own = next(pieces)[: piece.stop - piece.start]
            gap[piece] = np.where(np.isfinite(own), own, gap[piece])
        inputs = record.values[:, count:]
        before.append(np.column_stack([scaled[:-1], inputs[:-1], inputs[1:], np.ones(len(scaled) - 1)]))
        now.append(scaled[1:])
        left.append(gap[1:])
    given, wanted, gaps = (np.concatenate(each) for each in (before, now, left))
    known = np.isfinite(np.column_stack([given, wanted, gaps])).all(axis=1)
    given, wanted, gaps = given[known], wanted[known], gaps[known]
    rows, many = given.shape
    if rows < FEWEST_ROWS + many:
        return False
    missed = wanted - given @ np.linalg.lstsq(given, wanted)[0]
    constants = sum(len(formula.constants) for formula in judged.formulas) + count * len(judge.records)
    past, simulated = (
        rows * np.log((each**2).mean(axis=0).clip(1e-300)).sum() + numbers * np.log(rows)
        for each, numbers in ((missed, many * count), (gaps, constants))
    )
    return bool(past < simulated + SMALLEST_LEAD)


def share_terms(
    judged: JudgedSystem,
    view,
    groups: Sequence[Sequence[Term]],
    names: Sequence[str],
    states: Sequence[str],
    clean: bool,
    resamples: int,
    seed: int,
) -> dict[str, dict[str, float]]:
    """For each term of a sum, the share of resamples of rows whose shortest description contains it."""
    draw, shares = np.random.default_rng(seed), {}
    for state, name in enumerate(states):
        terms = judged.formulas[state].terms
        if not terms or resamples < 1:
            continue
        own = [group for group in groups if set(terms) <= {term.text for term in group}]
        group = min(own, key=len, default=flat(groups))
        counts = dict.fromkeys(terms, 0)
        for _ in range(resamples):
            rows = draw.integers(0, len(view.values), len(view.values))
            resampled = type(view)(view.values[rows], view.rates[rows], None)
            found = sparse_candidates([resampled], [group], names, state, clean, 1)
            for term in found[0].terms if found else ():
                if term in counts:
                    counts[term] += 1
        shares[name] = {term: many / resamples for term, many in counts.items()}
    return shares

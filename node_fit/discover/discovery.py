"""`discover`: from measurements to equations with constants, rivals, and a verdict."""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..data.dataset import Dataset
from ..fitting.fit import fit
from ..fitting.ladder import Effort
from ..fitting.result import Fit
from ..model.fields.equations import parse
from ..model.fields.known import Known
from ..model.initial_state.trained import Fitted
from ..runtime.validation import check_argument
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
from .judging import Judge, JudgedSystem

DISCOVERY_LOG = logging.getLogger(__name__)
# Candidates of each state that are combined, and the most terms of which the best one is combined whatever its place.
COMBINED, SHORT_SUM = 4, 5
# Difference of evidence within which a system is a rival.
RIVAL = 10.0
# What a system must explain: the share of variance, and how alike neighbouring residuals may be.
LEAST_EXPLAINED, MOST_ALIKE, NEARLY_EXACT = 0.5, 0.5, 0.999
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
# The most evaluations of a simulation, and starts of which the one that tells rivals apart is chosen.
MOST_EVALUATIONS, EXPERIMENTS = 20_000, 24
FEWEST_ROWS = 12


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


class Bands(NamedTuple):
    """The mean over systems by their evidence, and the range that holds the central share; each `(row, state)`."""

    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


class Experiment(NamedTuple):
    """A start from which the best system and a rival differ: by how many standard deviations of the data."""

    start: dict[str, float]
    rival: FoundSystem
    difference: float

    def __str__(self) -> str:
        at = ", ".join(f"{name} = {value:.3g}" for name, value in self.start.items())
        far = f"they differ by {self.difference:.2g} standard deviations."
        return f"a record from {at} would tell the first two apart: {far}"


@dataclass
class Discovery:
    """What `discover` found.

    - `front`: systems by size, each with a smaller error than all smaller ones.
    - `ranked`: all systems that were refined, the best first. `rivals`: those within the evidence of the best.
    - `shares`: for each state, the share of resamples in which each term of the best was found.
    - `verdict`: a sentence; `explained`: whether an equation explains the records.
    """

    data: Dataset
    ranked: list[FoundSystem]
    shares: dict[str, dict[str, float]]
    explained: bool
    verdict: str
    options: dict = field(default_factory=dict)
    _fit: Fit | None = None

    @property
    def found(self) -> FoundSystem:
        """The best system."""
        return self.ranked[0]

    @property
    def front(self) -> list[FoundSystem]:
        front: list[FoundSystem] = []
        for each in sorted(self.ranked, key=lambda one: (one.size, one.error)):
            if not front or each.error < front[-1].error:
                front.append(each)
        return front

    @property
    def rivals(self) -> list[FoundSystem]:
        return [each for each in self.ranked[1:] if each.evidence - self.found.evidence < RIVAL and not each.escapes]

    @property
    def best(self) -> Fit:
        """A `Fit` of `Known` with the best equations; its `confidence` has the intervals of the constants."""
        if self._fit is None:
            self._fit = fit(self.data, field=self.known(), **self.options)
        return self._fit

    def known(self, place: int = 0) -> Callable[..., Known]:
        """What makes the field of the system at a place of `ranked`."""
        each = self.ranked[place]
        return functools.partial(Known, equations=each.equations, constants=each.constants)

    @property
    def weights(self) -> np.ndarray:
        """The probability of the best system and of each rival."""
        evidence = np.array([each.evidence for each in (self.found, *self.rivals)])
        weights = np.exp(-(evidence - evidence[0]) / 2)
        return weights / weights.sum()

    def predict(
        self,
        y0: Mapping[str, float],
        ts: np.ndarray,
        us: Mapping[str, np.ndarray] | None = None,
        level: float = 0.9,
    ) -> Bands:
        """Simulations of the best system and its rivals, averaged by their probability.

        The bands hold a share `level` of the probability; they show what is not known of the equations, and neither
        noise nor what is not known of the constants.

        **Arguments:** `y0`: the start by state. `ts`: `(row,)`. `us`: inputs by name, `(row,)`.

        **Raises:** `ValueError` if no system can be simulated from there.
        """
        start, ts = [float(y0[name]) for name in self.data.states], np.asarray(ts, float)
        solved = [each.simulate(start, ts, us) for each in (self.found, *self.rivals)]
        pairs = [(weight, ys) for weight, ys in zip(self.weights, solved, strict=True) if ys is not None]
        if not pairs:
            raise ValueError(f"no system that was found can be simulated from {dict(y0)} to {ts[-1]:g}.")
        weights, ys = np.array([weight for weight, _ in pairs]), np.stack([each for _, each in pairs])
        weights = weights / weights.sum()
        order = np.argsort(ys, axis=0)
        ranked = np.take_along_axis(ys, order, axis=0)
        reached = weights[order].cumsum(axis=0)

        def quantile(share: float) -> np.ndarray:
            place = (reached < share).sum(axis=0, keepdims=True).clip(max=len(ys) - 1)
            return np.take_along_axis(ranked, place, axis=0)[0]

        return Bands(np.tensordot(weights, ys, 1), quantile((1 - level) / 2), quantile((1 + level) / 2))

    def experiment(self) -> Experiment | None:
        """The start within the range of the data from which the best system and its first rival differ most.

        None if there is no rival. Inputs are those of the first record.
        """
        if not self.rivals:
            return None
        data, rival = self.data, self.rivals[0]
        rows = int(data.lengths[0])
        ts, values = data.ts[0, :rows], np.concatenate([data.ys[at, :n] for at, n in enumerate(data.lengths)])
        us = {name: data.us[0, :rows, at] for at, name in enumerate(data.inputs)}
        low, high, scale = np.nanmin(values, 0), np.nanmax(values, 0), np.nanstd(values, 0)
        best: tuple[float, np.ndarray] | None = None
        for start in np.random.default_rng(0).uniform(low, high, (EXPERIMENTS, len(low))):
            one, other = self.found.simulate(start, ts, us), rival.simulate(start, ts, us)
            if one is not None and other is not None:
                gap = float(np.sqrt(np.mean(((one - other) / scale) ** 2)))
                best = (gap, start) if best is None or gap > best[0] else best
        if best is None:
            return None
        return Experiment(dict(zip(data.states, map(float, best[1]), strict=True)), rival, best[0])

    def sympy(self) -> dict[str, object]:
        """The best equations as SymPy's expressions, by state (`pip install sympy`)."""
        import sympy

        names = {name: sympy.Symbol(name) for name in (*self.data.states, *self.data.inputs)}
        return {state: sympy.parse_expr(text, local_dict=names) for state, text in self.found.shown.items()}

    def latex(self) -> str:
        """The best equations in LaTeX, by SymPy (`pip install sympy`)."""
        import sympy

        rows = [rf"\dot{{{state}}} = {sympy.latex(each)}" for state, each in self.sympy().items()]
        return " \\\\\n".join(rows)

    def __str__(self) -> str:
        if not self.explained:
            return self.verdict
        lines = [self.verdict, str(self.found)]
        if self.rivals:
            shown = str(self.rivals[0]).replace("\n", "\n  ")
            share = f"{self.weights[0]:.0%} for the best"
            lines.append(f"rivals that explain it about as well: {len(self.rivals)} ({share}); the first:")
            lines += [f"  {shown}", *([str(experiment)] if (experiment := self.experiment()) else [])]
        return "\n".join(lines)


def discover(
    data: Dataset,
    *,
    libraries: Sequence[str] = LIBRARIES,
    terms: Sequence[str] = (),
    required: Sequence[str] = (),
    forbidden: Sequence[str] = (),
    symbolic: bool | None = None,
    resamples: int = RESAMPLES,
    effort: Effort = "normal",
    seed: int = 0,
    **options: Any,
) -> Discovery:
    """Finds the equations of a system from measurements of its states.

    **Arguments:**

    - `data`: records of all states.
    - `libraries`: names of the libraries of terms; see `docs/discover.md`.
    - `terms`, `required`, `forbidden`: terms as text, such as `"x^2/(1 + x)"`: further ones, those that every sum has,
      and those that none has.
    - `symbolic`: whether to search with pyoperon too; if None, where it is installed and sums of terms leave errors.
    - `resamples`: number of resamples for the share of each term.
    - `effort`: `quick`, `normal` or `thorough`: how many candidates are simulated.
    - `seed`: of the symbolic search and the resamples.
    - `options`: of `node_fit.fit`, for `Discovery.best`.

    **Raises:** `ValueError` if the data have too few rows, or events, or a text is not a term.
    """
    check_data_of(data)
    check_argument("effort", effort, Effort, "quick, normal or thorough")
    required, forbidden = (tuple(text.replace("^", "**") for text in texts) for texts in (required, forbidden))
    symbolic = has_symbolic() if symbolic is None else symbolic
    if symbolic and not has_symbolic():
        raise ValueError('symbolic search needs pyoperon; install it with `pip install "node-fit[discover]"`.')
    states, inputs = list(data.states), list(data.inputs)
    records = smooth_records(data, 1.0)
    judge = Judge(records, states, inputs)
    library = make_terms(libraries, judge.names, judge.values, terms, required, forbidden)
    clean = all(each.clean for each in records)
    several = [records] if clean else [smooth_records(data, strength) for strength in SMOOTHINGS]
    views = [view for place, each in enumerate(several) for view in make_views(each, weak=place == 0 and not clean)]
    groups = group_terms(library)
    kept = [
        screen_state(judge, views, groups, state, clean, SCREENED[effort], required, seed if symbolic else None)
        for state in range(len(states))
    ]
    search = Search(judge, groups, required, effort)
    search.run(kept, clean)
    judged = search.judged
    explained, verdict = decide(judge, judged[0])
    if search.interrupted:
        verdict += " The search was interrupted."
    options = {"start": Fitted} | options
    shares = share_terms(judged[0], views[0], groups, judge.names, states, clean, resamples, seed)
    return Discovery(
        data, [describe(each, judge.names, states) for each in judged], shares, explained, verdict, options
    )


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


def make_terms(
    libraries: Sequence[str],
    names: Sequence[str],
    values: np.ndarray,
    terms: Sequence[str],
    required: Sequence[str],
    forbidden: Sequence[str],
) -> dict[str, list[Term]]:
    """The terms of each library, without the forbidden ones; the user's are a library of their own."""
    found = {kind: make_library(kind, names, values) for kind in libraries}
    found[OWN] = [Term(f"({text.replace('^', '**')})", count(parse("terms", text))) for text in terms]
    found[OWN] += [Term(text, count(parse("required", text))) for text in required]
    return {kind: [term for term in every if term.text not in forbidden] for kind, every in found.items()}


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


def decide(judge: Judge, judged: JudgedSystem) -> tuple[bool, str]:
    """Whether a system explains the records: it must explain the variance, and leave residuals that look like noise."""
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
    if worst < LEAST_EXPLAINED or alike > MOST_ALIKE or judged.escapes:
        return False, f"no equation of these terms explains the record: of the best, {figures}."
    return True, f"found an equation; {figures}."


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

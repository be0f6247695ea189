"""`discover`: from measurements to equations with constants, rivals, and a verdict."""

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    has_symbolic,
    make_views,
    smooth,
    sparse_candidates,
    symbolic_candidates,
)
from .formulas import LIBRARIES, Formula, Term, count, make_library
from .judging import Judge, JudgedSystem, compile_formula

DISCOVERY_LOG = logging.getLogger(__name__)
# Candidates of each state that are combined.
COMBINED = 3
# Difference of evidence within which a system is a rival.
RIVAL = 10.0
# What a system must explain: the share of variance, and how alike neighbouring residuals may be.
LEAST_EXPLAINED, MOST_ALIKE, NEARLY_EXACT = 0.5, 0.5, 0.999
# By effort: candidates of each state that are simulated on their own, and systems that are refined as a whole. They
# are counts, not seconds, so that a slower machine finds the same.
SCREENED = {"quick": 6, "normal": 10, "thorough": 30}
MOST_SYSTEMS = {"quick": 4, "normal": 6, "thorough": 20}
RESAMPLES = 20
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
            self._fit = fit(self.data, field=self.known(), **({"start": Fitted} | self.options))
        return self._fit

    def known(self, place: int = 0) -> Callable[..., Known]:
        """What makes the field of the system at a place of `ranked`."""
        each = self.ranked[place]
        return functools.partial(Known, equations=each.equations, constants=each.constants)

    def latex(self) -> str:
        """The best equations in LaTeX, by SymPy (`pip install sympy`)."""
        import sympy

        rows = []
        for state, text in self.found.shown.items():
            names = {name: sympy.Symbol(name) for name in (*self.data.states, *self.data.inputs)}
            rows.append(rf"\dot{{{state}}} = " + sympy.latex(sympy.sympify(text, locals=names)))
        return " \\\\\n".join(rows)

    def __str__(self) -> str:
        return f"{self.verdict}\n{self.found}" if self.explained else self.verdict


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
    states, inputs = list(data.states), list(data.inputs)
    names = [*states, *inputs]
    records = smooth_records(data, 1.0)
    judge = Judge(records, states, inputs)
    library = make_libraries(libraries, names, records, terms, required, forbidden)
    symbolic = has_symbolic() if symbolic is None else symbolic
    if symbolic and not has_symbolic():
        raise ValueError('symbolic search needs pyoperon; install it with `pip install "node-fit[discover]"`.')
    if not symbolic:
        DISCOVERY_LOG.info("without symbolic search, only sums of the libraries' terms are found (extra `discover`)")
    clean = all(each.clean for each in records)
    several = [records] if clean else [smooth_records(data, strength) for strength in SMOOTHINGS]
    views = [view for each in several for view in make_views(each)]
    kept: list[list[tuple[float, Formula]]] = []
    for state in range(len(states)):
        found = sparse_candidates(views, library, names, state, clean, required)
        first = views[0].rates[:, state]
        floor = (1e-8 if clean else 1e-3) * float(first.var())
        if symbolic and not (clean and found and found[0][0] < len(first) * math.log(floor + 1e-300) / 2 + 60):
            extra = symbolic_candidates(views[0], names, state, clean, seed)
            found = [pair for both in zip(found, extra, strict=False) for pair in both]
        screened = [judge.screen(formula, state) for _, formula in found[: SCREENED[effort]]]
        kept.append(sorted(screened, key=lambda each: each[0])[:COMBINED])
    judged = combine(judge, kept, MOST_SYSTEMS[effort])
    judged.sort(key=lambda each: each.rank)
    simple = judge.simplify(judged[0])
    if simple is not judged[0]:
        judged.insert(0, simple)
    judged.sort(key=lambda each: each.rank)
    explained, verdict = decide(judge, judged[0])
    shares = share_terms(judged[0], views[0], library, names, states, clean, resamples, seed)
    return Discovery(data, [describe(each, names, states) for each in judged], shares, explained, verdict, options)


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


def make_libraries(
    libraries: Sequence[str],
    names: Sequence[str],
    records: Sequence[Smoothed],
    terms: Sequence[str],
    required: Sequence[str],
    forbidden: Sequence[str],
) -> dict[str, list[Term]]:
    """The libraries' terms, with the user's and without the forbidden ones."""
    values = np.concatenate([each.values for each in records])
    typical = {name: float(v.mean()) if v.min() > 0 else 0.0 for name, v in zip(names, values.T, strict=True)}
    own = [Term(f"({text.replace('^', '**')})", count(parse("terms", text))) for text in terms]
    needed = [Term(text, count(parse("required", text))) for text in required]
    found = {}
    for kind in libraries:
        every = make_library(kind, names, typical)
        texts = {term.text for term in every}
        every = [*every, *own, *[term for term in needed if term.text not in texts]] if every else []
        found[kind] = [term for term in every if term.text not in forbidden]
    return found


def combine(judge: Judge, kept: Sequence[Sequence[tuple[float, Formula]]], most: int) -> list[JudgedSystem]:
    """Refines the systems of the candidates with the best sums of evidence, by beam."""
    beam: list[tuple[float, tuple[Formula, ...]]] = [(0.0, ())]
    for candidates in kept:
        beam = sorted(
            ((total + own, (*chosen, formula)) for total, chosen in beam for own, formula in candidates),
            key=lambda each: each[0],
        )[:most]
    return [judge.judge(formulas) for _, formulas in beam]


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
    rates = [compile_formula(formula, judge.names) for formula in judged.formulas]
    constants = [list(formula.constants) for formula in judged.formulas]
    worst, alike = 1.0, 0.0
    for state in range(len(judge.states)):
        left, products, squares, total = 0.0, 0.0, 0.0, 0.0
        for at, record in enumerate(judge.records):
            found = judge.simulate(rates, constants, judged.starts[at], at)
            if found is None:
                return False, "no equation of these terms explains the record: none could be simulated."
            gap = (found[:, state] - record.raw[:, state])[np.isfinite(record.raw[:, state])]
            value = record.raw[:, state][np.isfinite(record.raw[:, state])]
            left, total = left + float((gap**2).sum()), total + float(((value - value.mean()) ** 2).sum())
            products, squares = products + float((gap[1:] * gap[:-1]).sum()), squares + float((gap**2).sum())
        share = 1 - left / max(total, 1e-300)
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
    library: Mapping[str, Sequence[Term]],
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
        own = {kind: each for kind, each in library.items() if set(terms) <= {term.text for term in each}}
        kind = min(own, key=lambda each: len(own[each]), default=None)
        if kind is None:
            continue
        counts = dict.fromkeys(terms, 0)
        for _ in range(resamples):
            rows = draw.integers(0, len(view.values), len(view.values))
            resampled = type(view)(view.values[rows], view.rates[rows], None)
            found = sparse_candidates([resampled], {kind: own[kind]}, names, state, clean)
            for term in found[0][1].terms if found else ():
                if term in counts:
                    counts[term] += 1
        shares[name] = {term: many / resamples for term, many in counts.items()}
    return shares

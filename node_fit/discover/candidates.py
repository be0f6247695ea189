"""Proposes right-hand sides for one state from smoothed records: sparse sums of terms, and symbolic regression."""

import importlib.util
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .balance import Balance
from .formulas import Formula, Term, lift, part_of, sum_of
from .views import View
from .watch import SearchWatch

# Number of subsets of a size (up to COMPLETE_SIZE terms) below which all are tried; beyond it, only the BEAM best are
# extended. Lower for resamples; higher for reactions, since of two balancing reactions neither fits alone.
MAX_SUBSETS, MAX_RESAMPLED_SUBSETS, MAX_REACTION_SUBSETS = 200_000, 4_000, 400_000
BEAM, COMPLETE_SIZE, MAX_SUMMANDS, OF_EACH_SIZE = 30, 3, 7, 24
# Relative step for derivatives by numbers within a term, and their minimum share that the term does not explain.
NUMBER_NUDGE, MIN_OWN_SHARE = 1e-4, 1e-6
# Evaluations of the symbolic search per state, which keep it reproducible, and a time limit as a safeguard [s].
SEARCH_EVALUATIONS, SEARCH_SECONDS = 100_000, 60


@dataclass(frozen=True)
class Regressors:
    """The columns of a regression: terms, and their derivatives with respect to the numbers within them.

    Linear regression thus estimates these numbers, too: a term c f(k) has the columns f and df/dk, with the constants c
    and c (k - k0). This is linearised variable projection (G. Golub and V. Pereyra, SIAM Journal on Numerical Analysis
    10 (1973) 413).

    **Arguments:** `features`: `(equation, term)`. `tangents`: `(equation, number)`. `owners`: index of the term of each
    number. `alike`: a label of each term, shared by terms that differ only in the numbers within them. `sizes`: sizes
    of the terms with their constants.
    """

    features: np.ndarray
    tangents: np.ndarray
    owners: np.ndarray
    alike: np.ndarray
    sizes: np.ndarray

    @staticmethod
    def of(features: np.ndarray, sizes: np.ndarray) -> "Regressors":
        """Returns the regressors of terms without inner numbers."""
        none = np.zeros((len(features), 0))
        return Regressors(features, none, np.zeros(0, int), np.arange(len(sizes)), sizes)

    @staticmethod
    def of_terms(view: "View", terms: Sequence[Term], names: Sequence[str]) -> "Regressors":
        """Returns the regressors of terms in a view, with a tangent for each inner number."""
        parts = [part_of(term.text) for term in terms]
        owners = np.array([owner for owner, (_, inner, _) in enumerate(parts) for _ in inner], int)
        nudged = [
            Term(part.format(1.0, *inner[:place], inner[place] * (1 + nudge), *inner[place + 1 :]), 0)
            for part, inner, _ in parts for place in range(len(inner)) for nudge in (NUMBER_NUDGE, -NUMBER_NUDGE)
        ]  # fmt: skip
        numbers = np.array([number for _, inner, _ in parts for number in inner])
        values = view.features([*terms, *nudged], names)
        features, around = values[:, : len(terms)], values[:, len(terms) :]
        with np.errstate(all="ignore"):
            tangents = (around[:, ::2] - around[:, 1::2]) / (2 * NUMBER_NUDGE * numbers)
        alike = np.unique([part for part, _, _ in parts], return_inverse=True)[1]
        return Regressors(features, tangents, owners, alike, np.array([size for _, _, size in parts]))


class Subset(NamedTuple):
    """Terms, their constants, the changes of the numbers within them, and the description length."""

    places: tuple[int, ...]
    constants: np.ndarray
    moves: list[np.ndarray]
    length: float


class Description(NamedTuple):
    """The description length of right-hand sides fitted to rates: of their errors and of their text.

    **Arguments:** `variance`: variance of the rates. `rows`: number of rates. `clean`: whether they are noise-free.
    """

    variance: float
    rows: int
    clean: bool

    def length(self, error: np.ndarray, size: np.ndarray) -> np.ndarray:
        """**Arguments:** `error`: mean squared errors. `size`: sizes of the texts."""
        floor = (1e-8 if self.clean else 1e-3) * self.variance + 1e-300
        return self.rows * np.log(np.maximum(error, floor)) / 2 + 0.75 * np.log(self.rows) * size


class Regression:
    """A linear regression of rates on subsets of columns, computed from inner products.

    **Arguments:** `columns`: the available columns. `rates`: `(equation,)`.
    """

    def __init__(self, columns: Regressors, rates: np.ndarray):
        self.columns, self.rates = columns, rates
        table = np.hstack([columns.features, columns.tangents])
        with np.errstate(all="ignore"):
            self.norms = np.linalg.norm(table, axis=0)
            table = table / self.norms
        good = np.isfinite(self.norms) & (self.norms > 0)
        terms = columns.features.shape[1]
        self.usable = np.flatnonzero(good[:terms])
        along = (np.nan_to_num(table[:, terms:]) * np.nan_to_num(table[:, columns.owners])).sum(axis=0)
        has_tangent = good[terms:] & good[columns.owners] & (1 - along**2 > MIN_OWN_SHARE)
        self.tangents = [terms + np.flatnonzero(has_tangent & (columns.owners == term)) for term in range(terms)]
        self.every = np.nan_to_num(table, nan=0.0, posinf=0.0, neginf=0.0)
        self.square = self.every.T @ self.every
        self.square[np.diag_indices_from(self.square)] += 1e-12
        self.sides, self.total = self.every.T @ rates, float(rates @ rates)

    def solve(self, sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Computes the constants of normalised terms and the residual sums of squares for subsets, `(set, term)`."""
        widths = np.array([len(tangents) for tangents in self.tangents])[sets].sum(axis=1)
        weights, errors = np.empty(sets.shape), np.empty(len(sets))
        for width in np.unique(widths):
            rows = np.flatnonzero(widths == width)
            wide = self.widen(sets[rows], int(width))
            square: np.ndarray = self.square[wide[:, :, None], wide[:, None, :]]
            right: np.ndarray = self.sides[wide]
            solved: np.ndarray = np.linalg.solve(square, right[:, :, None])[:, :, 0]
            weights[rows], errors[rows] = solved[:, : sets.shape[1]], self.total - (solved * right).sum(axis=1)
        return weights, np.maximum(errors, 0.0)

    def widen(self, sets: np.ndarray, width: int) -> np.ndarray:
        """Appends the tangents of their terms, `width` in total, to subsets of terms."""
        chosen = np.empty((len(sets), width), int)
        filled = np.zeros(len(sets), int)
        for places in sets.T:
            for term in np.unique(places):
                rows, tangents = np.flatnonzero(places == term), self.tangents[term]
                for order, tangent in enumerate(tangents):
                    chosen[rows, filled[rows] + order] = tangent
                filled[rows] += len(tangents)
        return np.hstack([sets, chosen])

    def fit(self, places: list[int], description: Description) -> Subset:
        """Fits a subset; returns it with its constants in their original units and its description length."""
        wide = self.widen(np.array([places]), sum(len(self.tangents[term]) for term in places))[0]
        square: np.ndarray = self.square[wide[:, None], wide]
        sides: np.ndarray = self.sides[wide]
        solved: np.ndarray = np.linalg.solve(square, sides)
        residuals: np.ndarray = self.rates - self.every[:, wide] @ solved
        length = description.length(
            np.asarray(residuals @ residuals / len(residuals)), np.asarray(self.columns.sizes[places].sum())
        )
        values = solved / self.norms[wide]
        slope: dict[int, float] = dict(zip(wide[len(places) :].tolist(), values[len(places) :].tolist(), strict=True))
        first, moves = self.columns.features.shape[1], list[np.ndarray]()
        for term, constant in zip(places, values[: len(places)].tolist(), strict=True):
            numbers = first + np.flatnonzero(self.columns.owners == term)
            moves.append(np.array([slope.get(int(number), 0.0) for number in numbers]) / (constant or 1.0))
        return Subset(tuple(places), values[: len(places)], moves, float(length))


def find_subsets(
    columns: Regressors,
    rates: np.ndarray,
    keep: Sequence[int],
    most: int,
    description: Description,
    limit: int = MAX_SUBSETS,
    positive: bool = False,
) -> list[Subset]:
    """Finds the subsets of each size with the shortest descriptions: exhaustive search first, then beam search.

    Among subsets that differ only in the numbers within terms, it returns the best one.

    **Arguments:** `rates`: `(equation,)`. `keep`: indices of terms in every subset. `most`: number of subsets per size.
    `limit`: number of subsets of a size below which all are tried. `positive`: whether constants must be above 0.
    """
    regression = Regression(columns, rates)
    usable = regression.usable
    begin = np.array([place for place in keep if place in usable], int)
    sets, subsets = begin[None, :], list[Subset]()
    largest = min(MAX_SUMMANDS, len(usable), len(rates) // 2)
    while len(sets) and sets.shape[1] < largest:
        sets = extend_subsets(sets, usable, columns.alike)
        weights, errors = regression.solve(sets)
        lengths = description.length(errors / len(rates), columns.sizes[sets].sum(axis=1))
        order = np.argsort(lengths, kind="stable")
        if positive:
            order = order[(weights[order] > 0).all(axis=1)]
        shapes = np.sort(columns.alike[sets[order]], axis=1)
        firsts = np.sort(np.unique(shapes, axis=0, return_index=True)[1])
        subsets += [regression.fit(sets[row].tolist(), description) for row in order[firsts[:most]]]
        chosen = sets.shape[1] - len(begin)
        complete = chosen < COMPLETE_SIZE and math.comb(len(usable) - len(begin), chosen + 1) < limit
        sets = sets if complete else sets[order[firsts[:BEAM]]]
    return subsets


def extend_subsets(sets: np.ndarray, usable: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """Extends subsets by one term; no subset has two terms that differ only in the numbers within them."""
    wider = np.hstack([np.repeat(sets, len(usable), axis=0), np.tile(usable, len(sets))[:, None]])
    shapes = np.sort(alike[wider], axis=1)
    wider = np.sort(wider[(np.diff(shapes, axis=1) != 0).all(axis=1)], axis=1)
    return np.unique(wider, axis=0)


def sparse_candidates(
    views: Sequence[View],
    libraries: Sequence[Sequence[Term]],
    names: Sequence[str],
    state: int,
    clean: bool,
    most: int,
    required: Sequence[str] = (),
    limit: int = MAX_SUBSETS,
) -> list[Formula]:
    """Finds sparse sums of terms for the rate of a state; those with the shortest descriptions in a view come first."""
    ranked: list[list[Formula]] = []
    for view, terms in itertools.product(views, libraries):
        rates, columns = view.rates[:, state], Regressors.of_terms(view, terms, names)
        keep = [place for place, term in enumerate(terms) if term.text in required]
        description = Description(float(rates.var()), len(views[0].rates), clean)
        subsets = find_subsets(columns, rates, keep, OF_EACH_SIZE, description, limit)
        ranked.append([
            sum_of([terms[place] for place in subset.places], subset.constants, subset.moves)
            for subset in sorted(subsets, key=lambda subset: subset.length)
        ])  # fmt: skip
    best: dict[tuple[str, ...], Formula] = {}
    for level in itertools.zip_longest(*ranked):
        for formula in level:
            if formula is not None and len(best) < most:
                best.setdefault(tuple(sorted(formula.terms)), formula)
    return list(best.values())


def joint_candidates(
    views: Sequence[View],
    offered: Sequence[Sequence[Sequence[Term]]],
    names: Sequence[str],
    balance: Balance,
    clean: bool,
    most: int,
) -> list[tuple[Formula, ...]]:
    """Finds systems of flows from the rates of all states at once, since only sums of flows are known.

    **Arguments:** `offered`: libraries of terms of each flow, the same number for every flow.

    **Returns:** the systems, those with the shortest descriptions in a view first.
    """
    ranked: list[list[tuple[Formula, ...]]] = []
    shares = balance.shares
    assert shares is not None
    for view, kind in itertools.product(views, range(len(offered[0]))):
        scale = np.maximum(np.sqrt(np.mean(view.rates**2, axis=0)), 1e-300)
        columns = [(flow, term) for flow, libraries in enumerate(offered) for term in libraries[kind]]
        terms = list({term.text: term for _, term in columns}.values())
        values = dict(zip([term.text for term in terms], view.features(terms, names).T, strict=True))
        features = np.stack(
            [np.outer(values[term.text], shares[flow] / scale).ravel() for flow, term in columns], axis=1
        )
        rates = (view.rates / scale).ravel()
        systems: list[tuple[float, tuple[Formula, ...]]] = []
        description = Description(float(rates.var()), len(views[0].rates) * len(scale), clean)
        limit = MAX_REACTION_SUBSETS if balance.positive else MAX_SUBSETS
        regressors = Regressors.of(features, np.array([part_of(term.text)[2] for _, term in columns]))
        for places, constants, _, length in find_subsets(
            regressors, rates, [], OF_EACH_SIZE, description, limit, balance.positive
        ):
            chosen = [(columns[place], constant) for place, constant in zip(places, constants, strict=True)]
            parts = [
                [(term, value) for (flow, term), value in chosen if flow == number] for number in range(len(offered))
            ]
            system = tuple(
                sum_of([term for term, _ in summands], [value for _, value in summands]) for summands in parts
            )
            if all(len(set(formula.parts)) == len(formula.parts) for formula in system):
                systems.append((length, system))
        ranked.append([system for _, system in sorted(systems, key=lambda pair: pair[0])])
    best: dict[tuple[tuple[str, ...], ...], tuple[Formula, ...]] = {}
    for system in filter(None, itertools.chain.from_iterable(itertools.zip_longest(*ranked))):
        if len(best) < most:
            best.setdefault(tuple(tuple(sorted(formula.terms)) for formula in system), system)
    return list(best.values())


def has_symbolic() -> bool:
    """Whether symbolic regression is installed (`pip install "node_fit[discover]"`)."""
    return importlib.util.find_spec("pyoperon") is not None


def symbolic_candidates(
    view: View, names: Sequence[str], state: int, clean: bool, seed: int, watch: SearchWatch
) -> list[Formula]:
    """Finds formulas by genetic programming (B. Burlacu et al., Operon C++, 2020), shortest description first."""
    from pyoperon.sklearn import SymbolicRegressor

    rates = view.rates[:, state]
    description = Description(float(rates.var()), len(rates), clean)
    search = SymbolicRegressor(
        allowed_symbols="add,sub,mul,div,sin,cos,exp,square,constant,variable",
        objectives=["mse", "length"],
        population_size=500,
        generations=100_000,
        max_evaluations=SEARCH_EVALUATIONS,
        max_length=30,
        max_depth=8,
        max_time=SEARCH_SECONDS,
        n_threads=1,
        offspring_generator="basic",
        reinserter="replace-worst",
        optimizer_iterations=3,
        random_state=seed,
        epsilon=1e-5,
    )
    watch.wait_for(f"symbolic regression of {names[state]}", lambda: search.fit(view.values, rates))
    ranked: list[tuple[float, Formula]] = []
    for entry in search.pareto_front_:
        text = re.sub(r"\bX(\d+)\b", lambda match: names[int(match[1]) - 1], str(entry["model"]))
        try:
            formula = lift(text, names[state])
        except (ValueError, TypeError):
            continue
        length = description.length(np.array(entry["mean_squared_error"]), np.array(formula.size))
        ranked.append((float(length), formula))
    return [formula for _, formula in sorted(ranked, key=lambda entry: entry[0])]

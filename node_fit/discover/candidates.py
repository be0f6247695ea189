"""Candidates of one state's right-hand side: sparse sums of terms, and symbolic regression, on smoothed records."""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .formulas import ARRAY, Formula, Term, compile_text, lift, sum_of

if TYPE_CHECKING:
    from scipy.interpolate import BSpline

# Smoothing of the spline relative to what cross-validation chooses.
SMOOTHINGS = (1.0, 10.0)
# Relative residual of a spline below which a record counts as free of noise.
CLEAN = 2e-4
# Rows left out at each end of a record, where the derivative of a spline is least certain.
LEFT_OUT = 3
# Number of steps of the weak form's windows: rows of a record over this.
WEAK_WINDOWS = 10
# Of the symbolic search of one state: its size, which makes it repeatable, and a guard.
SEARCH_EVALUATIONS, SEARCH_SECONDS = 100_000, 60


@dataclass(frozen=True)
class Smoothed:
    """One record, smoothed.

    **Arguments:** `t`: times, shape `(row,)`. `values`: states and inputs, `(row, name)`. `rates`: derivatives of the
    states, `(row, state)`. `splines`: of the states. `raw`: the measured states, `(row, state)`. `clean`: whether there
    is hardly any noise.
    """

    t: np.ndarray
    values: np.ndarray
    rates: np.ndarray
    splines: "tuple[BSpline, ...]"
    raw: np.ndarray
    clean: bool


@dataclass(frozen=True)
class View:
    """What a regression is done on: rates and a map from values at rows to what the rates are compared with.

    **Arguments:** `values`: `(row, name)`. `rates`: `(equation, state)`. `weights`: `(equation, row)` for the weak
    form, or None where each row is an equation.
    """

    values: np.ndarray
    rates: np.ndarray
    weights: np.ndarray | None

    def features(self, terms: Sequence[Term], names: Sequence[str]) -> np.ndarray:
        """The value of each term in each equation, shape `(equation, term)`."""
        columns = [self.values[:, at] for at in range(self.values.shape[1])]
        with np.errstate(all="ignore"):
            each = [compile_text(term.text, names, ARRAY)(columns) for term in terms]
        found = np.stack([np.broadcast_to(value, len(self.values)) for value in each], axis=1)
        return found if self.weights is None else self.weights @ found


def smooth(t: np.ndarray, ys: np.ndarray, us: np.ndarray, strength: float = 1.0) -> Smoothed:
    """Smooths a record by splines, whose smoothing is chosen by generalised cross-validation times `strength`.

    **Arguments:** `t`: `(row,)`. `ys`: states, `(row, state)`, NaN where missing. `us`: inputs, `(row, input)`.
    """
    from scipy.interpolate import BSpline, make_interp_spline, make_smoothing_spline

    splines, residuals = [], []
    for y in ys.T:
        known = np.isfinite(y)
        at, value = t[known], y[known]
        scale, length = float(value.std()) or 1.0, float(at[-1] - at[0])
        spline = make_smoothing_spline((at - at[0]) / length * len(at), value / scale)
        residual = float(np.std(spline((at - at[0]) / length * len(at)) - value / scale))
        if residual > CLEAN and strength != 1.0:
            penalty = strength * lambda_of((at - at[0]) / length * len(at), value / scale, residual)
            spline = make_smoothing_spline((at - at[0]) / length * len(at), value / scale, lam=penalty)
        if residual < CLEAN and len(at) > 5:
            splines.append(make_interp_spline(at, value, k=5))
        else:
            knots = spline.t * length / len(at) + at[0]
            splines.append(BSpline(knots, spline.c * scale, spline.k))
        residuals.append(residual)
    values = np.stack([spline(t) for spline in splines], axis=1)
    rates = np.stack([spline.derivative()(t) for spline in splines], axis=1)
    clean = max(residuals) < CLEAN
    return Smoothed(t, np.hstack([values, us]), rates, tuple(splines), ys, clean)


def lambda_of(x: np.ndarray, y: np.ndarray, residual: float) -> float:
    """The penalty of a smoothing spline with this residual, by bisection."""
    from scipy.interpolate import make_smoothing_spline

    low, high = 1e-8, 1e8
    for _ in range(20):
        middle = float(np.sqrt(low * high))
        if np.std(make_smoothing_spline(x, y, lam=middle)(x) - y) > residual:
            high = middle
        else:
            low = middle
    return float(np.sqrt(low * high))


def make_views(records: Sequence[Smoothed]) -> list[View]:
    """The view by derivatives, and that by the weak form (D. Messenger and D. Bortz, 2021) where there is noise."""
    inner = [slice(LEFT_OUT, -LEFT_OUT) if len(each.t) > 4 * LEFT_OUT else slice(None) for each in records]
    values = np.concatenate([each.values[rows] for each, rows in zip(records, inner, strict=True)])
    rates = np.concatenate([each.rates[rows] for each, rows in zip(records, inner, strict=True)])
    views = [View(values, rates, None)]
    if not all(each.clean for each in records):
        views.append(weak_view(records))
    return views


def weak_view(records: Sequence[Smoothed]) -> View:
    """Integrates each record against bumps, so that no derivative of a measurement is taken."""
    total = sum(len(each.t) for each in records)
    weights, sides, first = [], [], 0
    for each in records:
        t, rows = each.t, len(each.t)
        step = np.gradient(t)
        half = (t[-1] - t[0]) / WEAK_WINDOWS
        raw = np.where(np.isfinite(each.raw), each.raw, each.values[:, : each.raw.shape[1]])
        for middle in np.linspace(t[0] + half, t[-1] - half, 6 * WEAK_WINDOWS):
            z = np.clip((t - middle) / half, -1, 1)
            bump, slope = (1 - z**2) ** 3, -6 * z * (1 - z**2) ** 2 / half
            norm = float((bump * step).sum())
            if norm <= 0 or np.count_nonzero(bump) < 4:
                continue
            row = np.zeros(total)
            row[first : first + rows] = bump * step / norm
            weights.append(row)
            sides.append(-(slope * step / norm) @ raw)
        first += rows
    values = np.concatenate([each.values for each in records])
    if not weights:
        return View(values, np.concatenate([each.rates for each in records]), None)
    return View(values, np.array(sides), np.array(weights))


def eliminate(
    features: np.ndarray, rates: np.ndarray, keep: Sequence[int]
) -> list[tuple[list[int], np.ndarray, float]]:
    """Backward elimination: from all terms, the one whose loss costs least is dropped, until none can be.

    **Arguments:** `features`: `(equation, term)`. `rates`: `(equation,)`. `keep`: places of terms never dropped.

    **Returns:** for each number of terms: their places, constants and mean squared error.
    """
    usable = [at for at in range(features.shape[1]) if np.isfinite(features[:, at]).all()]
    norms = np.linalg.norm(features, axis=0)
    active = [at for at in usable if norms[at] > 0]
    found = []
    while active:
        scaled = features[:, active] / norms[active]
        weights, *_ = np.linalg.lstsq(scaled, rates, rcond=1e-10)
        error = float(np.mean((rates - scaled @ weights) ** 2))
        found.append((list(active), weights / norms[active], error))
        if len(active) == 1:
            break
        curvature = np.diag(np.linalg.pinv(scaled.T @ scaled, rcond=1e-12, hermitian=True))
        loss = weights**2 / np.maximum(curvature, 1e-300)
        loss[[place for place, at in enumerate(active) if at in keep]] = np.inf
        if not np.isfinite(loss.min()):
            break
        del active[int(np.argmin(loss))]
    return found


def description(error: float, variance: float, rows: int, size: int, clean: bool) -> float:
    """Description length of a right-hand side on derivatives: bits of its errors and of its own text."""
    floor = (1e-8 if clean else 1e-3) * variance + 1e-300
    return rows * np.log(max(error, floor)) / 2 + 0.75 * np.log(rows) * size


def sparse_candidates(
    views: Sequence[View],
    libraries: Mapping[str, Sequence[Term]],
    names: Sequence[str],
    state: int,
    clean: bool,
    required: Sequence[str] = (),
) -> list[tuple[float, Formula]]:
    """Sparse sums of the libraries' terms for the rate of a state, the shortest description first."""
    best: dict[tuple[str, ...], tuple[float, Formula]] = {}
    for view in views:
        rates = view.rates[:, state]
        variance = float(rates.var())
        for terms in libraries.values():
            if not terms:
                continue
            features = view.features(terms, names)
            keep = [at for at, term in enumerate(terms) if term.text in required]
            for places, constants, error in eliminate(features, rates, keep):
                if len(places) > 12:
                    continue
                formula = sum_of([terms[at] for at in places], constants)
                length = description(error, variance, len(views[0].rates), formula.size, clean)
                key = tuple(sorted(formula.terms))
                if key not in best or length < best[key][0]:
                    best[key] = (length, formula)
    return sorted(best.values(), key=lambda each: each[0])


def has_symbolic() -> bool:
    """Whether symbolic regression is installed, by `pip install "node-fit[discover]"`."""
    return importlib.util.find_spec("pyoperon") is not None


def symbolic_candidates(
    view: View, names: Sequence[str], state: int, clean: bool, seed: int
) -> list[tuple[float, Formula]]:
    """Right-hand sides by genetic programming (B. Burlacu et al., Operon C++, 2020), the shortest description first."""
    from pyoperon.sklearn import SymbolicRegressor

    rates = view.rates[:, state]
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
    search.fit(view.values, rates)
    found = []
    for each in search.pareto_front_:
        text = re.sub(r"\bX(\d+)\b", lambda found: names[int(found[1]) - 1], str(each["model"]))
        try:
            formula = lift(text, names[state])
        except (ValueError, TypeError):
            continue
        error = float(each["mean_squared_error"])
        length = description(error, float(rates.var()), len(rates), formula.size, clean)
        found.append((length, formula))
    return sorted(found, key=lambda each: each[0])

"""Fits of PEtab problems within bounds from several starts, with intervals, profiles and curves, written as tables."""

import csv
import io
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ..data.dataset import Dataset
from ..evaluation.metrics import Score, score_predictions
from ..minimize.host import Box, LazyPoint, QuadraticModel, TrustRegion, minimize
from ..minimize.restarts import draw_evenly
from ..model.neural_ode import NeuralODE
from ..plots.curves import TRAIN, Curves
from ..plots.figures import fit_figure
from ..runtime.validation import check_argument, says_where
from ..uncertainty.confidence import Confidence, ConfidenceInterval, Method
from .densities import from_scale
from .experiment_model import make_experiment_models
from .objective import Objective, Screen
from .sources import some_of
from .tables import Measurement, PEtabError, Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Vector = Float[np.ndarray, " parameter"]

MAX_EVALUATIONS = 500
# Number of points screened per start (cheap compared with a fit), and their largest distance from the stored value on
# the parameter's scale if the parameter has no bounds.
POINTS_FOR_A_START, WIDTH_WITHOUT_BOUNDS = 100, 3.0
CURVE_POINTS = 200
NO_CURVE = "all measurements are at an infinite time; there is no curve."
# Largest difference in log-likelihood between fits that are counted as the same maximum.
SAME_LOG_LIKELIHOOD = 0.1
# First step of a profile in standard errors, maximum number of steps, and maximum number of halvings.
PROFILE_STEP, MAX_PROFILE_STEPS, PROFILE_HALVINGS = 0.5, 40, 12


class FitFromStart(NamedTuple):
    """A fit from one start, with both points on the parameters' scales.

    - `number`: number of the start; 0 stands for the stored parameters.
    - `evaluations`: number of likelihood evaluations. `has_converged`: whether they were enough.
    """

    number: int
    start: Vector
    x: Vector
    log_likelihood: float
    evaluations: int
    has_converged: bool


class Optimizer:
    """Maximises the likelihood times the prior density within bounds.

    The Fisher information approximates the curvature; it is exact to first order for noise parameters of any size.
    Each parameter is scaled by a tenth of the range between its bounds.
    """

    def __init__(self, objective: Objective):
        self.objective = objective
        self.has_prior = any(
            parameter.prior is not None and parameter.prior.name != "uniform" for parameter in objective.estimated
        )
        lower, upper = objective.bounds
        width = upper - lower
        self.box = Box(lower, upper, np.where(np.isfinite(width) & (width > 0), width / 10, 1.0))

    def value(self, x: Vector) -> float:
        value = float(self.objective.log_likelihood(x))
        return value + self.objective.log_prior(x) if self.has_prior and math.isfinite(value) else value

    def expand(self, x: Vector) -> QuadraticModel:
        """Expands the objective, minus the log-density, around a point."""
        derivatives = self.objective.differentiate(x)
        value, slope, curvature = (
            -float(derivatives.value),
            -np.asarray(derivatives.gradient),
            np.asarray(derivatives.fisher),
        )
        if not self.has_prior:
            return QuadraticModel(value, slope, curvature)
        prior = self.objective.gradient_of_log_prior(x)
        # The expected curvature of a density's logarithm.
        return QuadraticModel(value - self.objective.log_prior(x), slope - prior, curvature + np.diag(prior**2))

    def maximise(
        self, start: Vector, held: Sequence[int] = (), evaluations: int = MAX_EVALUATIONS, number: int = 0
    ) -> FitFromStart | None:
        """Returns the optimum reached from a start, or `None` if the simulation fails there."""

        def look(x: Vector) -> LazyPoint:
            return LazyPoint(x, -self.value(x), self.expand)

        begin, region = look(np.clip(start, *self.objective.bounds)), TrustRegion(self.box, held, evaluations)
        if not begin.local.is_finite:
            return None
        x = minimize(begin, region, look).x
        likelihood = float(self.objective.log_likelihood(x))
        return FitFromStart(number, start, x, likelihood, region.evaluations, region.has_converged)


def draw_points(objective: Objective, count: int, seed: int) -> list[Float[np.ndarray, "point parameter"]]:
    """Draws points of a Sobol' sequence between the bounds for each start, on the parameters' scales."""
    lower, upper = objective.bounds
    middle = np.where(np.isfinite(objective.nominal), objective.nominal, 0.0)
    lower = np.where(np.isfinite(lower), lower, np.minimum(middle, upper) - WIDTH_WITHOUT_BOUNDS)
    upper = np.where(np.isfinite(upper), upper, np.maximum(middle, lower) + WIDTH_WITHOUT_BOUNDS)
    return np.array_split(draw_evenly(lower, upper, max(1, count) * POINTS_FOR_A_START, seed), max(1, count))


def fit_from_starts(
    objective: Objective, count: int, seed: int, nominal: bool, evaluations: int, known: Collection[int] = ()
) -> Iterator[tuple[int, FitFromStart | None]]:
    """Fits from the stored parameters, if wanted and complete, and from drawn starts, skipping the known numbers.

    **Returns:** the number of each start and its fit, or `None` if the simulation fails there.
    """
    optimizer = Optimizer(objective)
    if nominal and np.isfinite(objective.nominal).all() and 0 not in known:
        yield 0, optimizer.maximise(objective.nominal, evaluations=evaluations)
    screen = Screen(objective)
    for number, points in enumerate(draw_points(objective, count, seed) if count else (), start=1):
        if number not in known:
            yield number, optimizer.maximise(screen.choose(points), evaluations=evaluations, number=number)


@dataclass
class ExperimentRecord:
    """Measurements of an experiment that one curve describes: one value per observable and time, and one set of
    overrides per observable.

    - `first`: the first measurement of each observable. `values`: the measured values, by time and observable.
    """

    name: str
    first: dict[str, Measurement] = field(default_factory=dict[str, Measurement])
    values: dict[float, dict[str, float]] = field(default_factory=dict[float, dict[str, float]])

    def holds(self, each: Measurement) -> bool:
        """Whether a measurement can't be added; replicates and other overrides need a separate record."""
        other = self.first.get(each.observable, each)
        return other.overrides != each.overrides or each.observable in self.values.get(each.time, {})

    def add(self, each: Measurement) -> None:
        self.first.setdefault(each.observable, each)
        self.values.setdefault(each.time, {})[each.observable] = each.value


def sort_into_records(measurements: Iterable[Measurement]) -> list[ExperimentRecord]:
    """Sorts measurements into records, without those at an infinite time."""
    by_experiment: dict[str, list[ExperimentRecord]] = {}
    for measurement in measurements:
        if not math.isfinite(measurement.time):
            continue
        records = by_experiment.setdefault(measurement.experiment, [])
        record = next((record for record in records if not record.holds(measurement)), None)
        if record is None:
            name = measurement.experiment or "measured"
            record = ExperimentRecord(f"{name} ({len(records) + 1})" if records else name)
            records.append(record)
        record.add(measurement)
    return [record for records in by_experiment.values() for record in records]


class Drawn(NamedTuple):
    """Data of a plot: measurements by record, simulated values at their times, and dense curves."""

    data: Dataset
    predicted: Float[np.ndarray, "record time observable"]
    curves: Curves


def simulate_records(objective: Objective, x: ArrayLike) -> Drawn | None:
    """Simulates the records of a problem at a point; returns `None` if nothing is measured at a finite time."""
    problem = objective.problem
    records = sort_into_records(problem.measurements)
    if not records:
        return None
    measured = {name for record in records for name in record.first}
    states = [name for name in problem.observables if name in measured]
    times = [np.array(sorted(record.values)) for record in records]
    ys = [
        np.array([[record.values[time].get(name, np.nan) for name in states] for time in row_times.tolist()])
        for record, row_times in zip(records, times, strict=True)
    ]
    data = Dataset.from_arrays(times, ys, states=states, trajectories=[r.name for r in records], time="time")
    smooth = [
        np.linspace(begin_of(problem, record), row_times[-1], CURVE_POINTS)
        for record, row_times in zip(records, times, strict=True)
    ]
    places = list(zip(records, smooth, times, strict=True))
    simulated = iter(simulate_at(objective, x, dense_measurements(places)).tolist())
    dense = np.full((len(records), CURVE_POINTS, len(states)), np.nan)
    predicted = np.full(data.ys.shape, np.nan)
    for at, (record, curve, row_times) in enumerate(places):
        for name in record.first:
            column = states.index(name)
            dense[at, :, column] = [next(simulated) for _ in curve]
            predicted[at, : len(row_times), column] = [next(simulated) for _ in row_times]
    return Drawn(data, predicted, Curves({TRAIN: data}, {TRAIN: (np.stack(smooth), dense)}, at_rows={TRAIN: predicted}))


Places = Sequence[tuple[ExperimentRecord, np.ndarray, np.ndarray]]


def dense_measurements(places: Places) -> list[Measurement]:
    """Returns placeholder measurements of each record's observables, at the times of its curve and of its rows."""
    return [
        first._replace(time=time, value=1.0)
        for record, curve, row_times in places
        for first in record.first.values()
        for time in (*curve.tolist(), *row_times.tolist())
    ]


def begin_of(problem: Problem, record: ExperimentRecord) -> float:
    """Returns the time at which the experiment of a record begins, after its equilibrium."""
    periods = problem.experiments[next(iter(record.first.values())).experiment]
    return next(period.time for period in periods if math.isfinite(period.time))


def simulate_at(objective: Objective, x: ArrayLike, wanted: Sequence[Measurement]) -> Float[np.ndarray, " wanted"]:
    """Simulates measurements that are not part of the problem."""
    used = {measurement.experiment for measurement in wanted}
    experiments = {name: periods for name, periods in objective.problem.experiments.items() if name in used}
    problem = replace(objective.problem, measurements=tuple(wanted), experiments=experiments)
    return Objective(problem, objective.tolerances).simulate(x)


@dataclass(frozen=True)
class PEtabFit:
    """A fitted PEtab problem.

    - `objective`: the log-likelihood. `attempts`: the fits from all starts, the best one first.
    - `failed`: the numbers of the starts at which the simulation failed.
    """

    objective: Objective
    attempts: tuple[FitFromStart, ...]
    failed: tuple[int, ...] = ()

    @property
    def x(self) -> Vector:
        """The estimated parameters on their scales."""
        return self.attempts[0].x

    @property
    def log_likelihood(self) -> float:
        return self.attempts[0].log_likelihood

    @property
    def near(self) -> int:
        """The number of starts that reached the best log-likelihood."""
        return sum(attempt.log_likelihood >= self.log_likelihood - SAME_LOG_LIKELIHOOD for attempt in self.attempts)

    @cached_property
    def parameters(self) -> dict[str, float]:
        """The values of the estimated parameters, not transformed."""
        values = self.objective.values(self.x)
        return {name: values[name] for name in self.objective.names}

    @cached_property
    def standard_errors(self) -> Vector:
        """Standard errors on the parameters' scales, from the Fisher information; infinite if not identifiable."""
        return find_standard_errors(self.objective.fisher_information(self.x), self.x, *self.objective.bounds)

    def intervals(self, level: float = 0.95) -> dict[str, ConfidenceInterval]:
        """Computes confidence intervals from the Fisher information; fast, and exact for a quadratic log-likelihood.

        An end at or beyond a parameter's bound is returned as infinite.
        """
        reach = normal_quantile(level) * self.standard_errors
        return self.as_intervals(self.x - reach, self.x + reach)

    def profiles(self, names: Iterable[str] | None = None, level: float = 0.95) -> dict[str, ConfidenceInterval]:
        """Computes confidence intervals from likelihood profiles, which fix one parameter and refit all others.

        **Arguments:** `names`: names of parameters; all if `None`.
        """
        intervals: dict[str, ConfidenceInterval] = {}
        for name in self.objective.names if names is None else names:
            if name not in self.objective.names:
                raise ValueError(f"{name!r} is not estimated; the names are {', '.join(self.objective.names)}.")
            at = self.objective.names.index(name)
            ends = [np.array(self.x), np.array(self.x)]
            for side, end in zip((-1, 1), ends, strict=True):
                end[at] = profile_end(self, at, side, level)
            intervals[name] = self.as_intervals(*ends)[name]
        return intervals

    def confidence(self, method: Method = "fisher", level: float = 0.95) -> Confidence:
        """Returns `intervals` or `profiles` as the `Confidence` that other fits return."""
        check_argument("method", method, Method)
        intervals = self.profiles(level=level) if method == "profile" else self.intervals(level)
        lost = [name for name, interval in intervals.items() if not math.isfinite(interval.upper - interval.lower)]
        warnings = tuple(f"{name}: {interval_in_words(intervals[name])}." for name in lost)
        return Confidence(method, level, "estimated", None, intervals, (), warnings, ())

    @property
    def constants(self) -> dict[str, float]:
        """The estimated parameters, under the attribute name that other fits use."""
        return self.parameters

    def to_models(self, experiments: Sequence[str] | None = None) -> dict[str, NeuralODE | PEtabError]:
        """Converts each experiment to a model, or returns the error that prevents it; see `to_model`."""
        names = tuple(self.objective.problem.experiments) if experiments is None else experiments
        return dict(make_experiment_models(self.objective, self.x, names))

    def to_model(self, experiment: str | None = None) -> NeuralODE:
        """Returns an experiment as a model with the estimated parameters, to save, simulate and export like any other.

        ```python
        model = fit.to_model("dose_1")
        node_fit.save(model, "dose_1.safetensors")
        model.predict(ts=np.linspace(0, 60, 601))  # the observables
        node_fit.export(model, "c", "dose_1")
        ```

        **Arguments:** `experiment`: its name; optional if the problem has a single experiment.

        **Returns:** a model in double precision, whose channels are the observables (`NAME_2` with the second set of
        placeholder overrides), and whose constants are held.

        **Raises:** `ValueError` if the experiment does not exist, or can't be written as equations with triggers.
        """
        names = list(self.objective.problem.experiments)
        if experiment is None and len(names) > 1:
            raise ValueError(f"name one of the {len(names)} experiments: {some_of(names)}.")
        chosen = names[0] if experiment is None else experiment
        if chosen not in names:
            raise ValueError(f"there is no experiment {chosen!r}; there are {some_of(names)}.")
        model = self.to_models([chosen])[chosen]
        if isinstance(model, PEtabError):
            raise model
        return model

    def predict(self, ts: ArrayLike, experiment: str | None = None) -> Float[np.ndarray, "time observable"]:
        """Predicts the observables of an experiment at increasing times; see `to_model` for the arguments."""
        return self.to_model(experiment).predict(ts=ts)

    def score(self) -> Score:
        """Scores the simulated values against all measurements at finite times."""
        drawn = self.draw()
        if drawn is None:
            raise ValueError(NO_CURVE)
        return score_predictions(drawn.data, drawn.predicted)

    def as_intervals(self, lowest: Vector, highest: Vector) -> dict[str, ConfidenceInterval]:
        lower, upper = self.objective.bounds
        intervals: dict[str, ConfidenceInterval] = {}
        with jax.enable_x64(True):
            for at, parameter in enumerate(self.objective.estimated):
                place = jnp.asarray(self.x[at])
                value, slope = jax.value_and_grad(partial(from_scale, scale=parameter.scale))(place)
                first, last = (float(from_scale(jnp.asarray(end[at]), parameter.scale)) for end in (lowest, highest))
                intervals[parameter.name] = ConfidenceInterval(
                    float(value),
                    float(slope) * float(self.standard_errors[at]),
                    first if lowest[at] > lower[at] else -math.inf,
                    last if highest[at] < upper[at] else math.inf,
                )
        return intervals

    def write(self, folder: str | Path) -> None:
        """Writes PEtab's `parameters.tsv`, with the estimates as nominal values, and `simulations.tsv`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        problem, estimates = self.objective.problem, self.parameters
        parameters = [
            {**each.row, "nominalValue": repr(estimates[name])} if name in estimates else dict(each.row)
            for name, each in problem.parameters.items()
        ]
        simulations = [
            {("simulation" if key == "measurement" else key): cell for key, cell in each.row.items()}
            | {"simulation": repr(float(value))}
            for each, value in zip(problem.measurements, self.objective.simulate(self.x), strict=True)
        ]
        (folder / "parameters.tsv").write_text(as_table(parameters))
        (folder / "simulations.tsv").write_text(as_table(simulations))

    def draw(self) -> Drawn | None:
        """Returns measurements and curves by experiment, or `None` if all measurements are at an infinite time."""
        return simulate_records(self.objective, self.x)

    def plot(self) -> "Figure":
        """Plots measurements and curves of at most three experiments: the best, the median and the worst."""
        drawn = self.draw()
        if drawn is None:
            raise ValueError(NO_CURVE)
        return fit_figure(drawn.curves)

    @property
    def sentence(self) -> str:
        """A summary: the log-likelihood, the number of starts that agree, and advice on restarts."""
        best, count = self.attempts[0], len(self.attempts)
        near = f"to which {self.near} of {count} fits came within {SAME_LOG_LIKELIHOOD}"
        near += f" (at {len(self.failed)} more starts nothing could be simulated)" if self.failed else ""
        text = f"log-likelihood {self.log_likelihood:.4f}, {near}"
        if not best.has_converged:
            return f"{text}; the best had not converged after {best.evaluations} evaluations."
        if self.near == 1 and count > 2:
            return f"{text}, so that there may be a better one; try restarts={5 * count}."
        return f"{text}."

    def __repr__(self) -> str:
        lines = [f"Fit of {self.objective.problem.name}: {self.sentence}"]
        lines += [
            f"  {name} = {interval.estimate:.6g} ({interval_in_words(interval)})"
            for name, interval in self.intervals().items()
        ]
        return "\n".join(lines)


def interval_in_words(interval: ConfidenceInterval) -> str:
    """Formats an interval, one or both of whose ends can be infinite."""
    lower, upper = interval.lower, interval.upper
    if math.isfinite(lower) and math.isfinite(upper):
        return f"{lower:.4g} to {upper:.4g}"
    if math.isfinite(lower):
        return f"at least {lower:.4g}"
    return f"at most {upper:.4g}" if math.isfinite(upper) else "the data do not give it"


def as_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Formats rows as a table; missing cells are left empty."""
    text = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, list(columns), delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def normal_quantile(level: float) -> float:
    from scipy.stats import norm

    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}.")
    return float(norm.ppf(0.5 + level / 2))


def find_standard_errors(
    information: Float[np.ndarray, "parameter parameter"], x: Vector, lower: Vector, upper: Vector
) -> Vector:
    """Computes standard errors of the parameters off their bounds; infinite for those that are not identifiable."""
    free = (x > lower + 1e-8) & (x < upper - 1e-8)
    errors = np.full(len(x), np.inf)
    if free.any():
        values, vectors = np.linalg.eigh(information[np.ix_(free, free)])
        is_identified = values > 1e-10 * max(values.max(), 0.0)
        variances = (vectors[:, is_identified] ** 2 / values[is_identified]).sum(1)
        is_unknown = (vectors[:, ~is_identified] ** 2).sum(1) > 1e-6
        errors[free] = np.where(is_unknown, np.inf, np.sqrt(variances))
    return errors


@says_where(starts="restarts")
def fit_petab(
    problem: Problem | Objective,
    *,
    restarts: int = 10,
    seed: int = 0,
    nominal: bool = True,
    evaluations: int = MAX_EVALUATIONS,
    known: Sequence[FitFromStart] = (),
    on_fit: Callable[[FitFromStart], bool] = lambda _: False,
    on_failure: Callable[[int], None] = lambda _: None,
) -> PEtabFit:
    """Fits a PEtab problem from several starts.

    **Arguments:**

    - `problem`: from `read_petab`, or its objective.
    - `restarts`: number of fits from points drawn between the bounds; `seed`: their random seed.
    - `nominal`: whether to fit from the stored parameters as well, if they are complete.
    - `evaluations`: maximum number of evaluations per fit.
    - `known`: fits of an earlier call with the same arguments, which are not repeated.
    - `on_fit`: called with each fit from a start; a true return value ends the search.
    - `on_failure`: called with the number of each start at which the simulation fails.

    **Raises:** `ValueError` if the simulation fails at every start.
    """
    if restarts < 0 or (restarts == 0 and not nominal):
        raise ValueError(f"restarts must be positive, or 0 for the stored parameters alone; got {restarts}.")
    objective = problem if isinstance(problem, Objective) else Objective(problem)
    if not objective.names:
        raise ValueError(f"{objective.problem.path.name} has no parameter to estimate.")
    lacking = [name for name, value in zip(objective.names, objective.nominal, strict=True) if not np.isfinite(value)]
    if restarts == 0 and lacking:
        raise ValueError(
            f"restarts=0 fits from the stored parameters, of which {lacking[0]!r} has no value; try restarts=10."
        )
    attempts, failed = list(known), list[int]()
    numbers = {fit.number for fit in known}
    for number, attempt in fit_from_starts(objective, restarts, seed, nominal, evaluations, numbers):
        if attempt is None:
            failed.append(number)
            on_failure(number)
            continue
        attempts.append(attempt)
        if on_fit(attempt):
            break
    if not attempts:
        raise ValueError(f"{objective.problem.path.name} can be simulated from none of the starts; look at its bounds.")
    return PEtabFit(objective, tuple(sorted(attempts, key=lambda fit: -fit.log_likelihood)), tuple(failed))


def profile_end(fit: PEtabFit, at: int, side: int, level: float) -> float:
    """Finds where a parameter's profile falls by half the quantile of chi squared, or returns its bound if nearer."""
    optimizer, bound = Optimizer(fit.objective), fit.objective.bounds[side > 0][at]
    threshold = optimizer.value(fit.x) - 0.5 * normal_quantile(level) ** 2
    error = fit.standard_errors[at]
    step = PROFILE_STEP * (error if math.isfinite(error) and error > 0 else 1.0)
    inside, warm, outside = float(fit.x[at]), fit.x, None
    for _ in range(MAX_PROFILE_STEPS + PROFILE_HALVINGS):
        trial = inside + side * step if outside is None else 0.5 * (inside + outside)
        is_bound = outside is None and side * (trial - bound) >= 0
        start = warm.copy()
        start[at] = trial = bound if is_bound else trial
        profile_fit = optimizer.maximise(start, held=[at])
        if profile_fit is not None and optimizer.value(profile_fit.x) >= threshold:
            inside, warm = trial, profile_fit.x
            step *= 1.5
            if is_bound:
                return float(bound)
        else:
            outside = trial
        if outside is not None and abs(outside - inside) <= 0.01 * abs(inside - fit.x[at]) + 1e-12:
            break
    return inside

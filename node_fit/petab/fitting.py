"""Fits of PEtab problems from several starts, with intervals and profiles, written back as PEtab tables."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .likelihood import from_scale
from .objective import Objective
from .tables import Problem

MAX_EVALUATIONS = 500
# Each start is the best of so many points, which costs little beside the fit.
POINTS_FOR_A_START = 20
# Fisher scoring: the first damping, the most trials of a step, its longest move of a parameter on its scale, and how
# many steps in a row may gain less than so much before a fit has converged.
DAMPING_AT_START, MAX_TRIALS, MAX_MOVE, MOST_STILL, ACCURATE_VALUE = 1e-2, 20, 2.0, 3, 1e-6
# Of a parameter without bounds, starts are drawn within so many units of its stored value on its scale.
WIDTH_WITHOUT_BOUNDS = 3.0
# A step of a profile, in standard errors or in shares of the range between the bounds, and the most of them.
PROFILE_STEP, MAX_PROFILE_STEPS, PROFILE_HALVINGS = 0.5, 40, 12

Vector = Float[np.ndarray, " parameter"]


class FitFromStart(NamedTuple):
    """A fit from one start: both points on the parameters' scales."""

    start: Vector
    x: Vector
    log_likelihood: float
    evaluations: int


class Local(NamedTuple):
    """A function near a point."""

    value: float
    gradient: Vector
    curvature: Float[np.ndarray, "parameter parameter"]

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.value) and bool(
            np.isfinite(self.gradient).all() and np.isfinite(self.curvature).all()
        )


class ParameterInterval(NamedTuple):
    """A confidence interval of a parameter, not transformed; ends at a bound are those of the bound."""

    lower: float
    upper: float
    is_determined: bool


@dataclass(frozen=True)
class PEtabFit:
    """A fitted PEtab problem.

    - `objective`: the log-likelihood. `attempts`: the fits from all starts, the best one first.
    """

    objective: Objective
    attempts: tuple[FitFromStart, ...]

    @property
    def x(self) -> Vector:
        """The estimated parameters on their scales."""
        return self.attempts[0].x

    @property
    def log_likelihood(self) -> float:
        return self.attempts[0].log_likelihood

    @cached_property
    def parameters(self) -> dict[str, float]:
        """The values of the estimated parameters, not transformed."""
        values = self.objective.values(self.x)
        return {name: values[name] for name in self.objective.names}

    def intervals(self, level: float = 0.95) -> dict[str, ParameterInterval]:
        """Confidence intervals from the Fisher information; quick, and exact for a likelihood without bends."""
        quantile = normal_quantile(level)
        lower, upper = self.objective.bounds
        errors = standard_errors(self.objective.fisher_information(self.x), self.x, lower, upper)
        ends = np.clip(self.x - quantile * errors, lower, upper), np.clip(self.x + quantile * errors, lower, upper)
        return self.as_intervals(*ends)

    def profiles(self, names: Iterable[str] | None = None, level: float = 0.95) -> dict[str, ParameterInterval]:
        """Confidence intervals from profiles of the likelihood: each parameter is held, and all others are fitted.

        **Arguments:** `names`: of parameters; all if `None`.
        """
        found = {}
        for name in self.objective.names if names is None else names:
            if name not in self.objective.names:
                raise ValueError(f"{name!r} is not estimated; the names are {', '.join(self.objective.names)}.")
            at = self.objective.names.index(name)
            ends = [np.array(self.x), np.array(self.x)]
            for side, end in zip((-1, 1), ends, strict=True):
                end[at] = profile_end(self, at, side, level)
            found[name] = self.as_intervals(*ends)[name]
        return found

    def as_intervals(self, lowest: Vector, highest: Vector) -> dict[str, ParameterInterval]:
        bounds, found = self.objective.bounds, {}
        with jax.enable_x64(True):
            for at, each in enumerate(self.objective.estimated):
                first, last = (float(from_scale(jnp.asarray(end[at]), each.scale)) for end in (lowest, highest))
                is_determined = bool(lowest[at] > bounds[0][at] and highest[at] < bounds[1][at])
                found[each.name] = ParameterInterval(first, last, is_determined)
        return found

    def write(self, folder: str | Path) -> None:
        """Writes `parameters.tsv`, with the estimates as nominal values, and `simulations.tsv`, as PEtab has them."""
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

    def plot(self, folder: str | Path) -> list[Path]:
        """Draws each observable: measurements as dots, simulations as crosses, by the time and the experiment."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        problem, simulated, paths = self.objective.problem, self.objective.simulate(self.x), []
        for name, observable in problem.observables.items():
            figure = Figure(figsize=(6, 4), layout="constrained")
            FigureCanvasAgg(figure)
            axes = figure.add_subplot(xlabel="time", ylabel=name)
            for color, experiment in enumerate(problem.experiments):
                found = [
                    (each.time, each.value, y)
                    for each, y in zip(problem.measurements, simulated, strict=True)
                    if (each.observable, each.experiment) == (name, experiment) and math.isfinite(each.time)
                ]
                if found:
                    times, measured, values = np.array(sorted(found)).T
                    axes.plot(times, measured, "o", color=f"C{color}", label=experiment or "measured")
                    axes.plot(times, values, "x-", color=f"C{color}", linewidth=1)
            axes.set_yscale("linear" if observable.scale == "lin" else "log")
            axes.legend(title="dots: measured, crosses: simulated", fontsize="small")
            paths.append(folder / f"{name}.png")
            figure.savefig(paths[-1], dpi=120)
        return paths

    def __repr__(self) -> str:
        values = [each.log_likelihood for each in self.attempts]
        near = sum(value >= values[0] - 0.1 for value in values)
        lines = [
            f"Fit of {self.objective.problem.name}: log-likelihood {self.log_likelihood:.4f}",
            f"  {near} of {len(values)} starts within 0.1 of it",
        ]
        for name, interval in self.intervals().items():
            ends = f"{interval.lower:.4g} to {interval.upper:.4g}"
            lines.append(f"  {name} = {self.parameters[name]:.6g} ({ends}{'' if interval.is_determined else ', open'})")
        return "\n".join(lines)


def as_table(rows: Sequence[Mapping[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def normal_quantile(level: float) -> float:
    from scipy.stats import norm

    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}.")
    return float(norm.ppf(0.5 + level / 2))


def standard_errors(
    information: Float[np.ndarray, "parameter parameter"], x: Vector, lower: Vector, upper: Vector
) -> Vector:
    """Standard errors of the parameters that are not at a bound; infinite for those that the data do not tell."""
    free = (x > lower + 1e-8) & (x < upper - 1e-8)
    errors = np.full(len(x), np.inf)
    if free.any():
        values, vectors = np.linalg.eigh(information[np.ix_(free, free)])
        known = values > 1e-10 * max(values.max(), 0.0)
        variances = (vectors[:, known] ** 2 / values[known]).sum(1)
        is_unknown = (vectors[:, ~known] ** 2).sum(1) > 1e-6
        errors[free] = np.where(is_unknown, np.inf, np.sqrt(variances))
    return errors


class Optimizer:
    """Maximises the likelihood times the prior density within bounds, by damped Fisher scoring.

    The Fisher information stands for the curvature, which is exact to first order however large the noise's own
    parameters are, and a damping as in Levenberg and Marquardt's method keeps steps where they help. Parameters at a
    bound that the gradient pushes against rest.
    """

    def __init__(self, objective: Objective):
        self.objective = objective
        self.has_prior = any(each.prior is not None and each.prior.name != "uniform" for each in objective.estimated)

    def value(self, x: Vector) -> float:
        value = float(self.objective.log_likelihood(x))
        return value + self.objective.log_prior(x) if self.has_prior and math.isfinite(value) else value

    def model(self, x: Vector) -> Local:
        """Value, gradient and curvature at a point."""
        found = self.objective.differentiate(x)
        if not self.has_prior:
            return Local(float(found.value), np.asarray(found.gradient), np.asarray(found.fisher))
        slope = self.objective.gradient_of_log_prior(x)
        curvature = np.asarray(found.fisher) + np.diag(slope**2)  # the expected curvature of a density's logarithm
        return Local(float(found.value) + self.objective.log_prior(x), np.asarray(found.gradient) + slope, curvature)

    def maximise(
        self, start: Vector, held: Sequence[int] = (), evaluations: int = MAX_EVALUATIONS
    ) -> FitFromStart | None:
        """The best point near a start, or `None` where nothing can be simulated."""
        x = np.clip(start, *self.objective.bounds)
        here = self.model(x)
        if not here.is_finite:
            return None
        damping, count, still = DAMPING_AT_START, 1, 0
        while count < evaluations and still < MOST_STILL:
            free = self.is_free(x, here.gradient)
            free[list(held)] = False
            trial, used, damping = self.search(x, here, free, damping, evaluations - count)
            count += used
            if trial is None:
                break
            there = self.model(trial)
            if not there.is_finite:
                break
            still = still + 1 if there.value - here.value < ACCURATE_VALUE else 0
            x, here = trial, there
        return FitFromStart(start, x, float(self.objective.log_likelihood(x)), count)

    def is_free(self, x: Vector, gradient: Vector) -> np.ndarray:
        lower, upper = self.objective.bounds
        return ~((x <= lower) & (gradient < 0)) & ~((x >= upper) & (gradient > 0))

    def search(
        self, x: Vector, here: Local, free: np.ndarray, damping: float, evaluations: int
    ) -> tuple[Vector | None, int, float]:
        """A better point, how many were tried, and the damping to begin with next; `None` if there is none."""
        if not free.any():
            return None, 0, damping
        curvature, gradient = here.curvature[np.ix_(free, free)], here.gradient[free]
        scales = np.maximum(np.diag(curvature), 1e-10 * max(np.diag(curvature).max(), 1e-300))
        for count in range(1, min(MAX_TRIALS, evaluations) + 1):
            step = np.zeros_like(x)
            step[free] = np.linalg.lstsq(curvature + damping * np.diag(scales), gradient, rcond=None)[0]
            step *= min(1.0, MAX_MOVE / max(np.abs(step).max(), 1e-300))
            trial = np.clip(x + step, *self.objective.bounds)
            moved = trial - x
            expected = here.gradient @ moved - 0.5 * moved @ here.curvature @ moved
            gained = self.value(trial) - here.value
            if gained > 0 and gained >= 1e-4 * expected:
                return trial, count, damping / 8 if gained > 0.5 * expected else damping
            damping = max(damping * 5, 1e-8)
            if np.abs(moved).max() < 1e-12:
                break
        return None, MAX_TRIALS, damping


def draw_starts(objective: Objective, count: int, seed: int) -> Iterator[Vector]:
    """Starts between the bounds, on the parameters' scales: each is the best of some points of a Sobol' sequence."""
    from scipy.stats import qmc

    lower, upper = objective.bounds
    middle = np.where(np.isfinite(objective.nominal), objective.nominal, 0.0)
    lower = np.where(np.isfinite(lower), lower, np.minimum(middle, upper) - WIDTH_WITHOUT_BOUNDS)
    upper = np.where(np.isfinite(upper), upper, np.maximum(middle, lower) + WIDTH_WITHOUT_BOUNDS)
    sequence = qmc.Sobol(len(lower), rng=np.random.default_rng(seed))
    drawn = lower + (upper - lower) * sequence.random_base2(math.ceil(math.log2(max(1, count) * POINTS_FOR_A_START)))
    for points in np.array_split(drawn, max(1, count)):
        yield max(points, key=objective.log_likelihood)


def fit_petab(
    problem: Problem | Objective,
    *,
    restarts: int = 10,
    seed: int = 0,
    nominal: bool = True,
    evaluations: int = MAX_EVALUATIONS,
) -> PEtabFit:
    """Fits a PEtab problem from several starts.

    **Arguments:**

    - `problem`: from `read_petab`, or its objective.
    - `restarts`: how many fits begin at points drawn between the bounds, and `seed` of these.
    - `nominal`: whether one more begins at the stored parameters, if they are complete.
    - `evaluations`: the most evaluations of a fit.

    **Raises:** `ValueError` if the problem can be simulated from none of the starts.
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
    optimizer = Optimizer(objective)
    attempts: list[FitFromStart] = []
    if nominal and np.isfinite(objective.nominal).all():
        attempts += filter(None, [optimizer.maximise(objective.nominal, evaluations=evaluations)])
    for start in draw_starts(objective, restarts, seed) if restarts else ():
        attempts += filter(None, [optimizer.maximise(start, evaluations=evaluations)])
    if not attempts:
        raise ValueError(f"{objective.problem.path.name} can be simulated from none of the starts; look at its bounds.")
    return PEtabFit(objective, tuple(sorted(attempts, key=lambda each: -each.log_likelihood)))


def profile_end(fit: PEtabFit, at: int, side: int, level: float) -> float:
    """Where the profile of a parameter falls by half the quantile of chi squared, or the bound that comes before."""
    optimizer, bound = Optimizer(fit.objective), fit.objective.bounds[side > 0][at]
    threshold = optimizer.value(fit.x) - 0.5 * normal_quantile(level) ** 2
    error = standard_errors(fit.objective.fisher_information(fit.x), fit.x, *fit.objective.bounds)[at]
    step = PROFILE_STEP * (error if math.isfinite(error) and error > 0 else 1.0)
    inside, warm, outside = float(fit.x[at]), fit.x, None
    for _ in range(MAX_PROFILE_STEPS + PROFILE_HALVINGS):
        trial = inside + side * step if outside is None else 0.5 * (inside + outside)
        is_bound = outside is None and side * (trial - bound) >= 0
        start = warm.copy()
        start[at] = trial = bound if is_bound else trial
        found = optimizer.maximise(start, held=[at])
        if found is not None and optimizer.value(found.x) >= threshold:
            inside, warm = trial, found.x
            step *= 1.5
            if is_bound:
                return float(bound)
        else:
            outside = trial
        if outside is not None and abs(outside - inside) <= 0.01 * abs(inside - fit.x[at]) + 1e-12:
            break
    return inside

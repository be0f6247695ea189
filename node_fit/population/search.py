"""The search for the parameters of a population: first without effects, then with them, from one start or several."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import OptimizeResult, minimize

from ..minimize.restarts import draw_evenly
from ..solver.held_steps import BETWEEN
from .likelihood import Method, Population
from .subjects import Expansion

POPULATION_LOG = logging.getLogger(__name__)
# Value of an objective that can't be computed, to make a line search backtrack.
FAR = 1e12
# A search ends when the gradient in every parameter is below this, after this maximum number of iterations, or when
# this number of them have lowered the objective by less than `MIN_PROGRESS`.
GRADIENT, MAX_ITERATIONS, IDLE_ITERATIONS, MIN_PROGRESS = 1e-4, 400, 4, 1e-5
# Maximum number of searches, whose solver steps are set at the end of the previous one.
MAX_DESCENTS = 3
# Initial noise as a share of the noise without effects.
NOISE_SHARE = 0.5
# Minimum gain in the objective to accept constants far from the initial ones.
MIN_GAIN = 1.0
# Initial offset of constants from their values without effects, on the fitted scale.
MIN_DISTANCE = 0.1
# Number of solver steps between two rows at constants that can lie far from those of the subjects.
MANY_SOLVER_STEPS = BETWEEN[-1]
# Number of sets of constants that are screened without effects, and the factor within which they are drawn.
SCREENED_POINTS, SCREENED_FACTOR = 128, 100.0
# Further starts are drawn within this factor of the initial constants.
START_FACTOR = 5.0
# Weights of a network are drawn within this distance of those of the model.
WEIGHT_WIDTH = 0.3
# Step of the finite differences of gradients for the Hessian.
HESSIAN_STEP = 1e-4
# Converged if another Newton step would lower the objective by less than this.
MAX_GAIN = 0.01
# Step sizes along a direction of negative curvature, in log-parameters, and maximum number of escapes from saddles.
SADDLE_STEPS, MAX_SADDLES = (1.0, 0.3, 0.1), 5


@dataclass
class Descent:
    """The objective of a population during a search, with the last modes as initial guess of the next ones.

    - `slopes`: the gradients of the subjects' parts at the last point. `evaluations`: number of evaluations so far.
    - `lowest`, `lowest_z`: the lowest value so far, and the modes there.
    """

    population: Population
    method: Method | str
    z: Float[np.ndarray, "subject effect"] = field(init=False)
    slopes: Float[np.ndarray, "subject parameter"] = field(init=False)
    evaluations: int = 0
    lowest: float = np.inf
    lowest_z: Float[np.ndarray, "subject effect"] = field(init=False)

    def __post_init__(self):
        self.z = self.lowest_z = self.population.still

    def __call__(self, x: Float[np.ndarray, " parameter"]) -> tuple[float, Float[np.ndarray, " parameter"]]:
        """Returns the objective and its gradient; `FAR` if the objective can't be computed."""
        self.evaluations += 1
        with np.errstate(all="ignore"):
            z, expansion = self.modes(x)
            value, slopes = self.population.objective_by_subject(x, z, self.method, expansion)
            if not (np.isfinite(value) and np.isfinite(slopes).all()):
                if not self.z.any():
                    return FAR, np.zeros_like(x)
                self.z = self.population.still  # Modes of another point can be a bad initial guess here.
                return self(x)
        self.z, self.slopes = z, slopes
        if value < self.lowest:
            self.lowest, self.lowest_z = value, z
        self.population.watch(self.method, value)
        return value, slopes.sum(axis=0)

    def modes(self, x: Float[np.ndarray, " parameter"]) -> tuple[Float[np.ndarray, "subject effect"], Expansion | None]:
        if self.method in ("fo", "pooled"):
            return self.population.still, None
        z, expansion = self.population.find_modes_and_expansion(x, self.z, interaction=self.method != "foce")
        return np.where(np.isfinite(z), z, 0.0), expansion


@dataclass(frozen=True)
class Optimum:
    """The result of a search.

    - `x`: the parameters. `z`: the modes of the effects there. `value`: the objective.
    - `slopes`: gradients of the objective's parts, one per subject. `evaluations`: number of evaluations.
    """

    population: Population
    x: Float[np.ndarray, " parameter"]
    z: Float[np.ndarray, "subject effect"]
    value: float
    slopes: Float[np.ndarray, "subject parameter"]
    evaluations: int

    @property
    def gradient(self) -> Float[np.ndarray, " parameter"]:
        return self.slopes.sum(axis=0)


def begin_without_effects(population: Population) -> Float[np.ndarray, " parameter"]:
    """Returns initial parameters: constants that fit all subjects without effects, and a share of the residual noise.

    **Raises:** `ValueError` if the model can't be solved at its constants.
    """
    structure, subjects = population.structure, population.subjects
    theta, (fixed, _, _) = subjects.first(), structure.ends
    spread = structure.first_spread()
    predicted = predict_alike(population, theta)
    if not np.isfinite(predicted[subjects.mask]).all():
        raise ValueError(
            "the model can't be solved with its first constants; give constants nearer to those of the subjects, "
            "field.constants."
        )
    structure.noise.check(np.where(subjects.mask, subjects.y, np.nan), predicted)
    best, screened = (
        find_optimum(population, first_parameters(population, constants, spread), "pooled")
        for constants in (theta, screen(population))
    )
    # Among equal optima, as with exchangeable rates, prefer the one near the initial constants.
    if screened.value < best.value - MIN_GAIN:
        best = screened
    # Two exchangeable constants, such as rates of consecutive steps, would stay equal from equal initial values.
    apart = MIN_DISTANCE * np.random.default_rng(0).standard_normal(fixed)
    apart[list(structure.weights)] = 0.0
    is_given = np.repeat([bool(values) for values in structure.noise.given], structure.noise.sizes)
    first = first_parameters(population, theta, spread)[fixed + len(spread) :]
    noise = np.where(is_given, first, best.x[fixed + len(spread) :] + np.log(NOISE_SHARE))
    return np.concatenate([best.x[:fixed] + apart, spread, noise])


def predict_alike(
    population: Population, theta: Float[np.ndarray, " coordinate"]
) -> Float[np.ndarray, "subject row channel"]:
    """Predicts subjects that all have the same constants, with many solver steps."""
    subjects = replace(population.subjects, steps=MANY_SOLVER_STEPS)
    return np.asarray(subjects.expand(np.tile(theta, (subjects.count, subjects.most_records, 1))).f)


def first_parameters(
    population: Population, theta: Float[np.ndarray, " coordinate"], spread: Float[np.ndarray, " parameter"]
) -> Float[np.ndarray, " parameter"]:
    """Returns all parameters, with noise of the size of the residuals at these constants."""
    subjects, noise = population.subjects, population.structure.noise
    off = subjects.seen.residuals(predict_alike(population, theta))
    pairs = [
        (subjects.y[..., at][mask], off[..., at][mask]) for at, mask in enumerate(np.moveaxis(subjects.mask, 2, 0))
    ]
    residuals = [float(np.sqrt(np.mean(off**2))) for _, off in pairs]
    sizes = [float(np.sqrt(np.mean(y**2))) or 1.0 for y, _ in pairs]
    return np.concatenate([theta, spread, noise.first(residuals, sizes)])


def screen(population: Population) -> Float[np.ndarray, " coordinate"]:
    """Returns the best of many sets of constants around the initial ones, with each channel scaled by its size."""
    subjects = population.subjects
    theta, best, least = subjects.first(), subjects.first(), np.inf
    scale = np.sqrt((subjects.mask * subjects.y**2).sum(axis=(0, 1)) / np.maximum(subjects.mask.sum(axis=(0, 1)), 1))
    width = np.full(theta.shape, np.log(SCREENED_FACTOR))
    width[list(population.structure.weights)] = 0.0
    for at in (theta, *draw_evenly(theta - width, theta + width, SCREENED_POINTS, 0)):
        f = predict_alike(population, at)
        with np.errstate(all="ignore"):
            misfit = float((subjects.mask * np.log1p((subjects.seen.residuals(f) / scale) ** 2)).sum())
        if misfit < least:
            best, least = at, misfit
    return best


def minimize_objective(population: Population, x: Float[np.ndarray, " parameter"], method: Method | str) -> Optimum:
    """Minimises the objective from initial parameters (BFGS; Nocedal and Wright, Numerical Optimization, 2006).

    The initial curvature is estimated from the subjects' gradients (Berndt, Hall, Hall and Hausman, Ann. Econ. Soc.
    Meas. 3, 1974), and is at least 1, to prevent large first steps in logarithms.
    """
    objective, values = Descent(population, method), list[float]()

    def stop_when_idle(intermediate_result: OptimizeResult) -> None:
        values.append(float(intermediate_result.fun))
        if len(values) > IDLE_ITERATIONS and values[-1 - IDLE_ITERATIONS] - values[-1] < MIN_PROGRESS:
            raise StopIteration

    objective(x)
    curvature = objective.slopes.T @ objective.slopes / 2 + np.eye(len(x))
    options = {"gtol": GRADIENT, "maxiter": MAX_ITERATIONS, "hess_inv0": invert(curvature)}
    end = cast(
        OptimizeResult,
        minimize(objective, x, jac=True, method="BFGS", callback=stop_when_idle, options=options),  # pyright: ignore
    )
    x = np.asarray(end.x)
    # The last point can be a distant trial, whose modes are a bad initial guess for those of the optimum.
    objective.z = objective.lowest_z
    value, _ = objective(x)
    return Optimum(population, x, objective.z, value, objective.slopes, objective.evaluations)


def invert(curvature: Float[np.ndarray, "parameter parameter"]) -> Float[np.ndarray, "parameter parameter"]:
    """Inverts a positive definite matrix; the result is exactly symmetric."""
    inverse = np.linalg.inv(curvature)
    return (inverse + inverse.T) / 2


def find_optimum(population: Population, x: Float[np.ndarray, " parameter"], method: Method | str) -> Optimum:
    """Finds the optimum near parameters, with solver steps that meet the tolerance there."""
    population = population.refine_steps(x, population.still)
    optimum = minimize_objective(population, x, method)
    for _ in range(MAX_DESCENTS - 1):
        settled = optimum.population.refine_steps(optimum.x, optimum.z)
        if np.array_equal(settled.subjects.counts, optimum.population.subjects.counts):
            break
        optimum = minimize_objective(settled, optimum.x, method)
    return optimum


def search_from_starts(
    population: Population,
    method: Method,
    restarts: int = 1,
    seed: int = 0,
    tell: Callable[[int, Optimum | ValueError], None] = lambda number, end: None,
) -> tuple[Optimum, list[float]]:
    """Finds the best optimum from several starts; the first one is at the model's constants.

    **Arguments:** `tell`: called with the number of each start and its result.

    **Returns:** the optimum, and the objective at the end of each search.

    **Raises:** `ValueError` if the model can't be solved at its initial constants.
    """
    rng, best, values = np.random.default_rng(seed), None, list[float]()
    theta = population.subjects.first()
    for number in range(restarts):
        start = population
        if number:
            width = np.full(theta.shape, np.log(START_FACTOR))
            width[list(population.structure.weights)] = WEIGHT_WIDTH
            moved = theta + rng.uniform(-1, 1, theta.shape) * width
            start = population.with_constants(moved)
        try:
            optimum = find_optimum(start, begin_without_effects(start), method)
        except ValueError as error:
            if number == 0:
                raise
            tell(number, error)
            continue
        tell(number, optimum)
        values.append(optimum.value)
        if best is None or optimum.value < best.value:
            best = optimum
    assert best is not None
    return best, values


def leave_saddles(optimum: Optimum, method: Method) -> tuple[Optimum, Float[np.ndarray, "parameter parameter"]]:
    """Continues from a saddle along the direction of its most negative curvature, and refines an optimum with a Newton
    step.

    **Returns:** the optimum, and the Hessian of the objective there.
    """
    free = find_free(optimum)
    for _ in range(MAX_SADDLES):
        hessian = find_hessian(optimum, method)
        if not np.isfinite(hessian).all():
            break
        values, vectors = np.linalg.eigh(hessian[np.ix_(free, free)])
        if values[0] > 0:
            return take_newton_step(optimum, hessian, method), hessian
        direction = np.zeros(len(optimum.x))
        direction[free] = vectors[:, 0]
        below = step_aside(optimum, direction, method)
        if below is None:
            break
        POPULATION_LOG.info("left a saddle of the objective %.3f", optimum.value)
        optimum = find_optimum(optimum.population, below, method)
    return optimum, find_hessian(optimum, method)


def step_aside(
    optimum: Optimum, direction: Float[np.ndarray, " parameter"], method: Method
) -> Float[np.ndarray, " parameter"] | None:
    """Returns the lowest point on both sides of an optimum, or None if none is clearly lower."""
    objective = Descent(optimum.population, method)
    best, least = None, optimum.value - MAX_GAIN
    for size in SADDLE_STEPS:
        for side in (size, -size):
            objective.z = optimum.z
            x = optimum.x + side * direction
            value, _ = objective(x)
            if value < least:
                best, least = x, value
    return best


def take_newton_step(optimum: Optimum, hessian: Float[np.ndarray, "parameter parameter"], method: Method) -> Optimum:
    """Takes a Newton step from an optimum if that lowers the objective."""
    objective = Descent(optimum.population, method)
    objective.z = optimum.z
    free, x = find_free(optimum), optimum.x.copy()
    x[free] -= np.linalg.solve(hessian[np.ix_(free, free)], optimum.gradient[free])
    value, _ = objective(x)
    if not value < optimum.value:
        return optimum
    return replace(optimum, x=x, z=objective.z, value=value, slopes=objective.slopes)


def find_free(optimum: Optimum) -> Int[np.ndarray, " parameter"]:
    """Returns the parameters that are not weights of a network."""
    return np.setdiff1d(np.arange(len(optimum.x)), optimum.population.structure.weights)


def find_hessian(optimum: Optimum, method: Method) -> Float[np.ndarray, "parameter parameter"]:
    """Computes the Hessian of the objective from differences of its exact gradients; 0 for the weights of a network,
    which are redundant."""
    objective = Descent(optimum.population, method)
    free = find_free(optimum)
    hessian = np.zeros((len(optimum.x),) * 2)
    for at in free:
        ends: list[np.ndarray] = []
        for side in (1, -1):
            objective.z = optimum.z
            x = optimum.x.copy()
            x[at] += side * HESSIAN_STEP
            ends.append(objective(x)[1])
        hessian[at, free] = (ends[0] - ends[1])[free] / (2 * HESSIAN_STEP)
    return (hessian + hessian.T) / 2

"""Predictions of a population: of known subjects, of new ones, and of new ones with a few measurements."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ..data.dataset import Dataset
from ..data.table_source import with_times
from ..model.neural_ode import NeuralODE
from .likelihood import Population, Structure
from .measurements import Measurements
from .search import Optimum
from .subjects import Subjects

if TYPE_CHECKING:
    import pandas

# Number of draws for the quantiles of bands, and the share of measurements that bands should contain.
BAND_DRAWS, BAND_LEVEL = 200, 0.9
# Number of times of a curve between the first and the last row of a subject.
CURVE_TIMES = 80
# Number of simulated studies of a visual predictive check, its quantiles, maximum number of time bins, and minimum
# number of measurements per bin.
STUDIES, QUANTILES, MAX_BINS, LEAST_IN_BIN = 200, (0.05, 0.5, 0.95), 10, 5


class KnownPopulation(NamedTuple):
    """A population without its data that predicts subjects.

    - `model`: the model of a typical subject. `x`: the parameters, of this `structure`. `method`: method of the fit.
    - `names`: names of the fitted subjects. `z`, `spread`: the modes of their standardized effects, and the posterior
      covariance of these.
    - `steps`: number of solver steps between two rows.
    - `records`: for each subject, the names of its trajectories if occasions distinguish them.
    """

    model: NeuralODE
    structure: Structure
    x: Float[np.ndarray, " parameter"]
    method: str
    names: tuple[str, ...]
    z: Float[np.ndarray, "subject effect"]
    spread: Float[np.ndarray, "subject effect effect"]
    steps: int
    records: tuple[tuple[str, ...], ...] = ()

    @staticmethod
    def of(optimum: Optimum, method: str, trajectories: Sequence[str]) -> "KnownPopulation":
        """Returns the population at an optimum that was fitted to trajectories with these names."""
        x, z, problem = optimum.x, optimum.z, optimum.population
        subjects, structure, spread = problem.subjects, problem.structure, problem.spread_of_modes(x, z)
        model = subjects.model_at(x[: structure.ends[0]])
        records = tuple(tuple(trajectories[at] for at in own) for own in subjects.records)
        return KnownPopulation(
            model,
            structure,
            x,
            method,
            subjects.names,
            z,
            spread,
            subjects.most_steps,
            records if structure.has_occasions else (),
        )

    def effects_of(self, subject: str, trajectories: Sequence[str]) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the effects of a fitted subject, for trajectories, and their covariance; None for another subject.

        An occasion that was not fitted has effects of 0 with the variance of the distribution.
        """
        if subject not in self.names:
            return None
        at, structure = self.names.index(subject), self.structure
        known, count = self.records[at] if self.records else (), len(structure.occasions)
        places = list(range(structure.covariances.effects))
        for name in trajectories:
            begin = structure.covariances.effects + known.index(name) * count if name in known else -1
            places += [begin + number if begin >= 0 else -1 for number in range(count)]
        index = np.array(places, int)
        is_fitted = index >= 0
        z = np.where(is_fitted, self.z[at][index], 0.0)
        both = is_fitted[:, None] & is_fitted[None]
        return z, np.where(both, self.spread[at][np.ix_(index, index)], np.eye(len(index)))

    def predict(self, data: Dataset, level: float = BAND_LEVEL, seed: int = 0) -> "SubjectPredictions":
        """Predicts subjects; see `predict_subjects`."""
        return predict_subjects(self, data, level, seed)


class SubjectPredictions(NamedTuple):
    """Predictions at the rows of data, in the user's units.

    - `data`: the data with those rows. `ys`: predictions of each trajectory, shape `(trajectory, row, channel)`.
    - `lower`, `upper`: the ends of bands that contain a share of the measurements. They include the noise and the
      uncertainty about the subject, which for a new one is the full variability between subjects.
    - `ways`: source of the effects of each trajectory's subject: `known`, its mode in the fit; `measured`, its mode
      from the rows here; or `population`.
    """

    data: Dataset
    ys: Float[np.ndarray, "trajectory row channel"]
    lower: Float[np.ndarray, "trajectory row channel"]
    upper: Float[np.ndarray, "trajectory row channel"]
    ways: tuple[str, ...]

    def frame(self) -> "pandas.DataFrame":
        """Returns a data frame with one row for each row of the data."""
        import pandas as pd

        data, at = self.data, self.data.valid & self.data.scored
        table: dict[str, object] = {
            "trajectory": np.repeat(np.array(data.trajectories, object), at.sum(axis=1)),
            data.time: data.ts[at],
        }
        for index, name in enumerate(data.states):
            table[name] = data.ys[at][:, index]
            table[f"{name}_predicted"] = self.ys[at][:, index]
            table[f"{name}_lower"] = self.lower[at][:, index]
            table[f"{name}_upper"] = self.upper[at][:, index]
        table["from"] = np.repeat(np.array(self.ways, object), at.sum(axis=1))
        return pd.DataFrame(table)


def predict_subjects(
    population: KnownPopulation, data: Dataset, level: float = BAND_LEVEL, seed: int = 0
) -> SubjectPredictions:
    """Predicts known subjects, new ones, and new ones with a few measurements.

    A known subject without measurements in `data` uses its mode in the fit. A subject with measurements uses its mode
    given these. Any other subject is drawn from the population.

    **Arguments:** `data`: rows with the columns of the fit; measurements can be missing. `level`: the share of
    measurements that bands should contain.

    **Raises:** `ValueError` if the columns are not those of the fit.
    """
    model, x = population.model, population.x
    data = model.scaler.mark_angles(data)
    model.check_channels(data)
    has_occasions = population.structure.has_occasions
    subjects = Subjects.of(model, population.structure.coordinates, data, has_occasions=has_occasions)
    structure = replace(population.structure, records=subjects.most_records)
    problem = Population(replace(subjects, steps=population.steps), structure)
    problem = problem.refine_steps(x, problem.still)
    measured = np.asarray(problem.subjects.mask.any(axis=(1, 2)))
    z, spread = problem.still, np.tile(np.eye(problem.still.shape[1]), (problem.subjects.count, 1, 1))
    if measured.any():
        modes = problem.find_modes(x, interaction=population.method != "foce")
        z = np.where(measured[:, None], modes, z)
        spread = np.where(measured[:, None, None], problem.spread_of_modes(x, modes), spread)
    ways: list[str] = []
    for at, name in enumerate(subjects.names):
        own = subjects.records[at]
        known = population.effects_of(name, [data.trajectories[trajectory] for trajectory in own])
        ways.append("measured" if measured[at] else "population" if known is None else "known")
        if known is not None and not measured[at]:
            size = len(known[0])
            z[at, :size], spread[at, :size, :size] = known
    ys = np.asarray(problem.subjects.expand(problem.phi(x, z)).f)
    rng = np.random.default_rng(seed)
    roots = np.linalg.cholesky(spread + 1e-12 * np.eye(spread.shape[1]))
    draws = np.stack(
        [
            simulate_measurements(problem, x, z + np.einsum("sij,sj->si", roots, rng.standard_normal(z.shape)), rng)
            for _ in range(BAND_DRAWS)
        ]
    )
    lower, upper = np.nanquantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    ys, lower, upper = (subjects.by_trajectory(values) for values in (ys, lower, upper))
    whose: list[int] = subjects.places[0].tolist()
    return SubjectPredictions(data, ys, lower, upper, tuple(ways[subject] for subject in whose))


def simulate_measurements(
    problem: Population,
    x: Float[np.ndarray, " parameter"],
    z: Float[np.ndarray, "subject effect"],
    rng: np.random.Generator,
) -> Float[np.ndarray, "subject row channel"]:
    """Simulates noisy measurements of subjects with these effects."""
    f = np.asarray(problem.subjects.expand(problem.phi(x, z)).f)
    return problem.structure.noise.simulate(f, x[problem.structure.ends[1] :], rng)


class SubjectCurves(NamedTuple):
    """Dense curves of each trajectory: times, its individual curve and that of a typical subject, with the shapes
    `(trajectory, time)` and `(trajectory, time, channel)`."""

    ts: Float[np.ndarray, "trajectory time"]
    individual: Float[np.ndarray, "trajectory time channel"]
    population: Float[np.ndarray, "trajectory time channel"]


def draw_curves(optimum: Optimum, data: Dataset) -> SubjectCurves:
    """Computes curves of the fitted subjects, whose measurements are in `data`."""
    problem = optimum.population
    first, last = data.ts[:, 0], data.ts[np.arange(len(data.lengths)), data.lengths - 1]
    grid: Float[np.ndarray, "trajectory time"] = np.linspace(first, last, CURVE_TIMES, axis=1)
    wide = with_times(data, list(grid))
    model, structure = problem.subjects.model, problem.structure
    subjects = Subjects.of(model, structure.coordinates, wide, has_occasions=structure.has_occasions)
    subjects = replace(subjects, steps=problem.subjects.most_steps)
    grown = Population(subjects, structure)
    rows = np.zeros(grid.shape, int)
    lengths: list[int] = wide.lengths.tolist()
    for at, length in enumerate(lengths):
        place = np.asarray(np.searchsorted(wide.ts[at, :length], grid[at]), int)
        rows[at] = np.minimum(place, length - 1)
    individual, typical = (
        np.take_along_axis(
            subjects.by_trajectory(np.asarray(subjects.expand(grown.phi(optimum.x, z)).f)), rows[..., None], axis=1
        )
        for z in (optimum.z, problem.still)
    )
    return SubjectCurves(grid, individual, typical)


class PredictiveCheck(NamedTuple):
    """Quantiles of measurements in bins of time, with those of simulated studies.

    - `times`: the middle of each bin. `observed`: quantiles, shape `(quantile, bin)`.
    - `lower`, `middle`, `upper`: 5 %, 50 % and 95 % points of the simulated quantiles, of the same shape.
    - `counts`: number of measurements per bin. `inside`: share of observed quantiles between `lower` and `upper`.
    """

    times: Float[np.ndarray, " bin"]
    observed: Float[np.ndarray, "quantile bin"]
    lower: Float[np.ndarray, "quantile bin"]
    middle: Float[np.ndarray, "quantile bin"]
    upper: Float[np.ndarray, "quantile bin"]
    counts: np.ndarray

    @property
    def inside(self) -> float:
        return float(np.mean((self.observed >= self.lower) & (self.observed <= self.upper)))


def check_by_simulation(
    optimum: Optimum, data: Dataset, channel: str | None = None, studies: int = STUDIES, seed: int = 0
) -> PredictiveCheck:
    """Runs a visual predictive check: simulates the study many times with new subjects (Holford, PAGE 14, 2005).

    Times of an occasion count from its beginning.

    If some measurements are limits, values beyond the innermost limit, both measured and simulated, are set to it, so
    that quantiles are comparable. A value between two limits counts as their middle.

    **Arguments:**

    - `optimum`, `data`: the population, and the measurements that it was fitted to.
    - `channel`: channel of the measurements; the first one by default. `studies`: number of simulated studies.
    """
    problem = optimum.population
    index = 0 if channel is None else data.states.index(channel)
    mask = problem.subjects.mask[..., index]
    inside = innermost_limits(problem.subjects.seen, index)
    ts = data.ts - data.ts[:, :1] if problem.structure.has_occasions else data.ts
    values = problem.subjects.seen.middles[..., index][mask]
    times, observed = problem.subjects.arrange(ts)[mask], np.clip(values, *inside)
    bins = bin_times(times)
    rng = np.random.default_rng(seed)

    def quantiles(values: np.ndarray) -> np.ndarray:
        return np.stack([np.nanquantile(values[chosen], QUANTILES) for chosen in bins], axis=1)

    drawn: list[np.ndarray] = []
    for _ in range(studies):
        z = rng.standard_normal(problem.still.shape)
        simulated = simulate_measurements(problem, optimum.x, z, rng)[..., index][mask]
        drawn.append(quantiles(np.clip(simulated, *inside)))
    lower, middle, upper = np.nanquantile(np.stack(drawn), QUANTILES, axis=0)
    middles = np.array([np.median(times[chosen]) for chosen in bins])
    return PredictiveCheck(middles, quantiles(observed), lower, middle, upper, np.array([c.sum() for c in bins]))


def innermost_limits(seen: Measurements, channel: int) -> tuple[float, float]:
    """Returns the largest limit that values of a channel lie below, and the smallest one that they lie above; infinite
    without such a limit. Values between two limits are ignored."""
    if seen.sides is None:
        return -np.inf, np.inf
    y, sides = np.asarray(seen.y)[..., channel], np.where(seen.mask & ~seen.is_between, seen.sides, 0)[..., channel]
    return float(y[sides < 0].max(initial=-np.inf)), float(y[sides > 0].min(initial=np.inf))


def bin_times(times: Float[np.ndarray, " value"]) -> list[Bool[np.ndarray, " value"]]:
    """Divides times into bins with similar numbers of measurements; measurements at one time share a bin."""
    count = int(np.clip(len(times) // LEAST_IN_BIN, 1, MAX_BINS))
    edges = np.unique(np.quantile(times, np.linspace(0, 1, count + 1), method="nearest"))
    places, last = np.searchsorted(edges, times, side="right") - 1, len(edges) - 1
    if (places == last).sum() < LEAST_IN_BIN:  # The largest time is often that of a single measurement.
        places = np.minimum(places, max(last - 1, 0))
    return [places == place for place in np.unique(places)]

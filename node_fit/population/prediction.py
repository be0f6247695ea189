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

# Draws that bands are quantiles of, and the share of measurements that these should hold.
BAND_DRAWS, BAND_LEVEL = 200, 0.9
# Times of a curve between the first and the last row of a subject.
CURVE_TIMES = 80
# Simulated studies of a visual predictive check, its quantiles, the most bins of time, and the fewest measurements of
# one.
STUDIES, QUANTILES, MAX_BINS, LEAST_IN_BIN = 200, (0.05, 0.5, 0.95), 10, 5


class KnownPopulation(NamedTuple):
    """A population without its data, which predicts subjects.

    - `model`: of a typical subject. `x`: the parameters, of this `structure`. `method`: that they were fitted by.
    - `names`: of the subjects of the fit. `z`, `spread`: the modes of their effects, in units of the distribution, and
      the covariance of these given the measurements.
    - `steps`: solver steps between two rows.
    - `records`: of each subject, the names of its trajectories where occasions tell them apart.
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
        """The population at an optimum, which was fitted to trajectories with these names."""
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
        """The effects of a subject of the fit, for trajectories, and their covariance; None of another subject.

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

    - `data`: with those rows. `ys`: predictions of each trajectory, shape `(trajectory, row, channel)`.
    - `lower`, `upper`: the ends of bands that hold a share of the measurements: they include the noise and what is not
      known of the subject, for a new one all of the scatter between subjects.
    - `ways`: of the subject of each trajectory: `known`, its mode in the fit; `measured`, its mode by its rows here; or
      `population`.
    """

    data: Dataset
    ys: Float[np.ndarray, "trajectory row channel"]
    lower: Float[np.ndarray, "trajectory row channel"]
    upper: Float[np.ndarray, "trajectory row channel"]
    ways: tuple[str, ...]

    def frame(self) -> "pandas.DataFrame":
        """A row for each row of the data."""
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

    A known subject without measurements here has its mode in the fit, one with measurements its mode given these, and
    any other is drawn from the population.

    **Arguments:** `data`: rows with the columns of the fit; measurements may be missing. `level`: the share of
    measurements that bands should hold.

    **Raises:** `ValueError` if the columns are not those of the fit.
    """
    model, x = population.model, population.x
    data = model.scaler.marked(data)
    model.check_channels(data)
    has_occasions = population.structure.has_occasions
    subjects = Subjects.of(model, population.structure.coordinates, data, has_occasions=has_occasions)
    structure = replace(population.structure, records=subjects.most_records)
    problem = Population(replace(subjects, steps=population.steps), structure)
    problem = problem.settled(x, problem.still)
    measured = np.asarray(problem.subjects.mask.any(axis=(1, 2)))
    z, spread = problem.still, np.tile(np.eye(problem.still.shape[1]), (problem.subjects.count, 1, 1))
    if measured.any():
        modes = problem.find_modes(x, interaction=population.method != "foce")
        z = np.where(measured[:, None], modes, z)
        spread = np.where(measured[:, None, None], problem.spread_of_modes(x, modes), spread)
    ways: list[str] = []
    for at, name in enumerate(subjects.names):
        own = subjects.records[at]
        known = population.effects_of(name, [data.trajectories[each] for each in own])
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
    """Measurements with noise of subjects with these effects."""
    f = np.asarray(problem.subjects.expand(problem.phi(x, z)).f)
    return problem.structure.noise.simulate(f, x[problem.structure.ends[1] :], rng)


class SubjectCurves(NamedTuple):
    """Curves between the rows of each trajectory: times, its own curve and that of a typical subject, of the shapes
    `(trajectory, time)` and `(trajectory, time, channel)`."""

    ts: Float[np.ndarray, "trajectory time"]
    individual: Float[np.ndarray, "trajectory time channel"]
    population: Float[np.ndarray, "trajectory time channel"]


def draw_curves(optimum: Optimum, data: Dataset) -> SubjectCurves:
    """Curves of the fitted subjects, whose measurements `data` holds."""
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
    own, typical = (
        np.take_along_axis(
            subjects.by_trajectory(np.asarray(subjects.expand(grown.phi(optimum.x, z)).f)), rows[..., None], axis=1
        )
        for z in (optimum.z, problem.still)
    )
    return SubjectCurves(grid, own, typical)


class PredictiveCheck(NamedTuple):
    """Quantiles of measurements in bins of time, and where those of simulated studies lie.

    - `times`: the middle of each bin. `observed`: quantiles, shape `(quantile, bin)`.
    - `lower`, `middle`, `upper`: of the simulated quantiles, their 5 %, 50 % and 95 % points, of the same shape.
    - `counts`: measurements of each bin. `inside`: the share of observed quantiles between `lower` and `upper`.
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
    """A visual predictive check: the study is simulated many times with new subjects (Holford, PAGE 14, 2005).

    Times of occasions count from the begin of each.

    Where some measurements are limits, values beyond the innermost one count as that, measured and simulated ones
    alike, so that quantiles compare. A value between two limits counts as their middle.

    **Arguments:**

    - `optimum`, `data`: the population, and the measurements that it was fitted to.
    - `channel`: of the measurements; the first one by default. `studies`: number of simulated studies.
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
    """The largest limit that a value of a channel lies below, and the least that one lies above; infinite if there is
    none. Values between two limits have none."""
    if seen.sides is None:
        return -np.inf, np.inf
    y, sides = np.asarray(seen.y)[..., channel], np.where(seen.mask & ~seen.is_between, seen.sides, 0)[..., channel]
    return float(y[sides < 0].max(initial=-np.inf)), float(y[sides > 0].min(initial=np.inf))


def bin_times(times: Float[np.ndarray, " value"]) -> list[Bool[np.ndarray, " value"]]:
    """Bins of about equally many measurements; measurements of one time share a bin."""
    count = int(np.clip(len(times) // LEAST_IN_BIN, 1, MAX_BINS))
    edges = np.unique(np.quantile(times, np.linspace(0, 1, count + 1), method="nearest"))
    places, last = np.searchsorted(edges, times, side="right") - 1, len(edges) - 1
    if (places == last).sum() < LEAST_IN_BIN:  # At most times, the largest one is that of a single measurement.
        places = np.minimum(places, max(last - 1, 0))
    return [places == place for place in np.unique(places)]

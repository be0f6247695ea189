"""How well a model of a chaotic system forecasts, and whether its simulations go where the system goes.

Errors of a chaotic system grow exponentially, so that no simulation of a whole record can match it row by row. What can
be asked is how long a forecast is valid, and whether a long simulation has the distribution and the spectrum of the
data.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data.dataset import Dataset
from ..model.initial_state.trained import Fitted
from ..model.neural_ode import NeuralODE
from .metrics import jsonable, prediction_errors, score, score_predictions, score_values

# A forecast is valid up to this error [standard deviations] (P. R. Vlachas et al., Neural Networks 126:191, 2020).
VALID_ERROR = 0.4
# Errors beyond this count as so large [standard deviations].
LARGEST_ERROR = 1e3
# Forecasts begin in so many rows of a record, and go on for this share of it.
FORECASTS, FORECAST_SHARE = 16, 0.5
# Steps over which the growth of a small error is measured, the first part to forget its direction; from so many rows of
# the data, since the growth along one orbit varies.
GROWTH_STEPS, FORGOTTEN, ORBITS = 16_000, 0.25, 8
# The longest step: between two rows, and times the largest rate of the linearised model at so many rows of the data.
# With longer ones Runge and Kutta's method leaves the orbit, or makes it stable.
STEPS_PER_ROW, LONGEST_ANGLE, SAMPLED_ROWS = 4, 0.2, 512
# Over so many Lyapunov times of all orbits together, growth is no chance.
FEWEST_TIMES = 10.0
# The width of the window that smooths a spectrum [share of its frequencies].
SPECTRAL_WIDTH = 0.01
# A simulation has the distribution of the data up to this many times the distance that two records of the system have
# on average (of 28 pairs of orbits of Lorenz's and of Rössler's system, none was at over three times), and their
# spectrum up to this distance.
SAME_PLACES, SAME_SPECTRUM = 4.0, 0.3
# Rows to which the start of a window is fitted.
ROWS_OF_A_START = 10
# Rows of the windows of which a model of chaos predicts one kind up to this error. Its simulations of a whole record
# have a spread within this factor of the data's.
CHAOTIC_WINDOWS, PREDICTED, BOUNDED = (50, 25, 10), 0.3, 2.0
# Pieces of the data, between which distances are twice those between records as long as the data.
PIECES = 4


@dataclass(frozen=True)
class ChaosScores:
    """Scores of a chaotic system.

    - `valid_time`: how long forecasts are valid, the median over where they begin [unit of time].
    - `lyapunov_time`: in which a small error of the model grows by a factor of e; infinite if it does not grow.
    - `distribution`: how far the places differ that the data and a simulation as long visit: Wasserstein's distance of
      each state's values, in their standard deviations, the mean over states. Infinite if the simulation runs away.
    - `expected`: what `distribution` is on average between two records of the system, by quarters of the data.
    - `spectrum`: Hellinger's distance of their smoothed power spectra, from 0 to 1, the mean over states (J. M.
      Mikhaeil et al., NeurIPS 2022); NaN at uneven times.
    """

    valid_time: float
    lyapunov_time: float
    distribution: float
    expected: float
    spectrum: float

    @property
    def valid_lyapunov_times(self) -> float:
        """How many Lyapunov times forecasts are valid."""
        return self.valid_time / self.lyapunov_time

    @property
    def stays(self) -> bool:
        """Whether a long simulation goes where the data go."""
        return self.distribution <= SAME_PLACES * self.expected and not self.spectrum > SAME_SPECTRUM

    def as_dict(self) -> dict[str, float | None]:
        """For JSON; None for what is not finite."""
        return {
            name: jsonable(value)
            for name, value in {**asdict(self), "valid_lyapunov_times": self.valid_lyapunov_times}.items()
        }

    def __str__(self) -> str:
        times = f" ({self.valid_lyapunov_times:.2g} Lyapunov times)" if self.valid_lyapunov_times > 0 else ""
        spectrum = "" if math.isnan(self.spectrum) else f", its spectrum by {self.spectrum:.2g}"
        usual = f"{self.expected:.2g} between two records"
        places = f"values differ by {self.distribution:.2g} standard deviations from the data's ({usual}){spectrum}"
        places = places if math.isfinite(self.distribution) else "runs away"
        verb = "a long simulation's " if math.isfinite(self.distribution) else "a long simulation "
        return f"forecasts are valid for {self.valid_time:.3g}{times}; {verb}{places}"


def score_chaos(model: NeuralODE, train: Dataset, held: Dataset) -> ChaosScores:
    """Scores of a model of a chaotic system.

    **Arguments:** `train`: the data whose distribution and spectrum a simulation should have. `held`: the data to
    forecast.
    """
    model = reading_few_rows(model)
    longest = int(held.scored.sum(axis=1).max())
    rows = max(int(FORECAST_SHARE * longest), 2)
    windows = held.windows(rows, max((longest - rows) // FORECASTS, 1))
    whole = np.flatnonzero(windows.scored[:, 1])  # Others begin before the rows that count.
    windows = windows.select(whole.tolist()) if whole.size else windows
    simulated = model.predict(train)
    distances = [(distance_of_values, simulated), (distance_of_spectra, simulated)]
    lost = not np.isfinite(simulated[train.valid]).all()
    distribution, spectrum = (math.inf if lost else measure(train, found) for measure, found in distances)
    valid = valid_time(windows, model.predict(windows))
    return ChaosScores(valid, lyapunov_time(model, train), distribution, expected_distance(train), spectrum)


def predicts_windows_alone(model: NeuralODE, data: Mapping[str, Dataset], most: float) -> bool:
    """Whether data look chaotic to a model: it predicts short windows, and its simulation of the whole training record
    has the size of the data, but not their phase.

    **Arguments:** `data`: by their roles, such as `train`. `most`: R² of the simulation at the most.
    """
    model = reading_few_rows(model)
    start, train = model.start, data["train"]
    reads = 0 if start.reads_windows else start.given_rows if isinstance(start, Fitted) else None
    if reads is None:
        return False
    predicted, known = model.predict(train), train.mask
    if score_predictions(score_values(model, train), predicted).r2 > most or not np.isfinite(predicted[known]).all():
        return False
    spread, own = (np.std(np.where(known, each, np.nan), axis=(0, 1), where=known) for each in (predicted, train.ys))
    if not ((spread < BOUNDED * own) & (own < BOUNDED * spread)).all():
        return False
    for rows in CHAOTIC_WINDOWS:
        if rows <= 2 * reads:
            continue
        windows = [each.windows(rows, rows) for each in data.values() if each.lengths.max() >= 2 * rows]
        if len(windows) == len(data) and all(score(model, each).nrmse < PREDICTED for each in windows):
            return True
    return False


def reading_few_rows(model: NeuralODE) -> NeuralODE:
    """The model, but with a start that is fitted to a few rows where it is to all: no window would be a forecast."""
    start = model.start
    if not isinstance(start, Fitted) or start.given_rows is not None:
        return model
    return eqx.tree_at(lambda model: model.start, model, start.reading(ROWS_OF_A_START))


def valid_time(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> float:
    """The median time for which predictions are within `VALID_ERROR`, where they are measured."""
    off = (predicted - np.where(data.mask, data.ys, predicted)) / prediction_errors(data)
    far = np.clip(np.nan_to_num(np.abs(off), nan=LARGEST_ERROR), 0, LARGEST_ERROR)
    errors = np.sqrt((far**2).mean(axis=2)) * data.valid
    beyond = errors > VALID_ERROR
    last = np.where(beyond.any(axis=1), beyond.argmax(axis=1) - 1, data.lengths - 1)
    return float(np.median(data.ts[np.arange(len(last)), np.maximum(last, 0)] - data.ts[:, 0]))


def lyapunov_time(model: NeuralODE, data: Dataset) -> float:
    """The inverse of the model's largest Lyapunov exponent [unit of time]; NaN of a driven model, or where
    it is lost or too stiff to be followed for long.

    It is the mean growth of a small difference along an orbit (G. Benettin et al., Meccanica 15:9, 1980).
    """
    if model.inputs or model.hidden:
        return math.nan
    rows = np.argwhere(data.mask.all(axis=2))
    if not len(rows):
        return math.nan

    def spread(count: int) -> Float[Array, "row state"]:
        trajectory, time = rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)].T
        return jnp.asarray(data.ys[trajectory, time])

    fastest = float(largest_rate(model, spread(SAMPLED_ROWS)))
    longest = data.median_step / STEPS_PER_ROW
    step = min(longest, LONGEST_ANGLE / fastest) if fastest > 0 else longest
    first = spread(ORBITS)
    exponent = float(growth_of_errors(model, first, jnp.asarray(step, first.dtype)))
    measured = exponent * step * GROWTH_STEPS * (1 - FORGOTTEN) * len(first)
    if not math.isfinite(exponent) or 0 < measured < FEWEST_TIMES:
        return math.nan
    return math.inf if exponent <= 0 else 1 / exponent


@eqx.filter_jit
def largest_rate(model: NeuralODE, points: Float[Array, "row state"]) -> Float[Array, ""]:
    """The largest norm of the field's derivative at some points [per unit of time]."""
    slopes = jax.vmap(jax.jacfwd(lambda y: model.vector_field(0.0, y)))(points)
    return jnp.linalg.norm(slopes, axis=(1, 2)).max()


@eqx.filter_jit
def growth_of_errors(model: NeuralODE, first: Float[Array, "orbit state"], step: Float[Array, ""]) -> Float[Array, ""]:
    """The rate at which a small difference grows along orbits, the mean over them, by Runge and Kutta's steps."""

    def advance(now: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        y, off = jax.jvp(lambda y: runge_kutta(lambda y: model.vector_field(0.0, y), y, step), (now[0],), (now[1],))
        size = jnp.linalg.norm(off)
        return (y, off / size), jnp.log(size)

    begin = jnp.ones_like(first) / math.sqrt(first.shape[1])
    _, logs = jax.lax.scan(jax.vmap(advance, in_axes=(0, None)), (first, begin), length=GROWTH_STEPS)
    return logs[int(FORGOTTEN * GROWTH_STEPS) :].mean() / step


def runge_kutta(rates: Callable[[Array], Array], y: Array, step: Array) -> Array:
    """A step of the classical method of the fourth order."""
    one = rates(y)
    two = rates(y + step / 2 * one)
    three = rates(y + step / 2 * two)
    return y + step / 6 * (one + 2 * two + 2 * three + rates(y + step * three))


def distance_of_values(data: Dataset, simulated: Float[np.ndarray, "trajectory time state"]) -> float:
    """Wasserstein's distance of measured and simulated values, in standard deviations, the mean over states."""
    from scipy.stats import wasserstein_distance  # It is slow to import.

    found: list[float] = []
    for at, spread in enumerate(prediction_errors(data)):
        known = data.mask[..., at]
        found.append(wasserstein_distance(data.ys[..., at][known], simulated[..., at][known]) / spread)
    return float(np.mean(found))


def expected_distance(data: Dataset) -> float:
    """The distance of values that two records of the system have on average.

    Distances fall with the root of the length, as errors of means do: between quarters they are twice as large.
    """
    from scipy.stats import wasserstein_distance  # It is slow to import.

    found: list[float] = []
    for at, spread in enumerate(prediction_errors(data)):
        pieces = np.array_split(data.ys[..., at][data.mask[..., at]], PIECES)
        found += [wasserstein_distance(one, other) / spread for one, other in itertools.combinations(pieces, 2)]
    return float(np.mean(found)) / math.sqrt(PIECES)


def distance_of_spectra(data: Dataset, simulated: Float[np.ndarray, "trajectory time state"]) -> float:
    """Hellinger's distance of the spectra of the longest trajectory, the mean over states; NaN at uneven times."""
    longest = int(data.lengths.argmax())
    rows = slice(0, int(data.lengths[longest]))
    steps = np.diff(data.ts[longest, rows])
    if not np.allclose(steps, steps.mean(), rtol=1e-2) or not data.mask[longest, rows][1:].all():
        return math.nan
    pairs = zip(data.ys[longest, rows].T, simulated[longest, rows].T, strict=True)
    shared = [np.sqrt(spectrum(own[1:]) * spectrum(other[1:])).sum() for own, other in pairs]
    return float(np.mean(np.sqrt(np.clip(1 - np.array(shared), 0, 1))))


def spectrum(values: Float[np.ndarray, " time"]) -> Float[np.ndarray, " frequency"]:
    """The smoothed power spectrum, whose sum is 1."""
    from scipy.ndimage import gaussian_filter1d

    power = np.abs(np.fft.rfft(values - values.mean())) ** 2
    smooth = gaussian_filter1d(power, max(SPECTRAL_WIDTH * power.size, 1.0))
    return smooth / smooth.sum()

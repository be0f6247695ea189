"""Scores forecasts and long-term behaviour of a model of a chaotic system.

Errors in a chaotic system grow exponentially, so no simulation of a full record can match it row by row. Meaningful
criteria are how long a forecast is valid, and whether a long simulation has the distribution and spectrum of the data.
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

# Maximum error of a valid forecast [standard deviations] (P. R. Vlachas et al., Neural Networks 126:191, 2020).
VALID_ERROR = 0.4
# Limit at which errors are clipped [standard deviations].
LARGEST_ERROR = 1e3
# Number of forecasts per record, and their length as a fraction of the record.
FORECASTS, FORECAST_SHARE = 16, 0.5
# Number of steps over which the growth of a small error is measured, the initial fraction discarded while the error
# aligns, and the number of orbits, since growth varies between orbits.
GROWTH_STEPS, FORGOTTEN, ORBITS = 16_000, 0.25, 8
# Minimum number of steps per row interval, maximum product of step size and the largest rate of the linearised model,
# and number of rows at which this rate is evaluated. With larger steps, the Runge-Kutta method leaves the orbit or
# stabilizes it.
STEPS_PER_ROW, LONGEST_ANGLE, SAMPLED_ROWS = 4, 0.2, 512
# Total number of Lyapunov times over all orbits above which growth is significant.
FEWEST_TIMES = 10.0
# Width of the smoothing window of a spectrum [fraction of its frequencies].
SPECTRAL_WIDTH = 0.01
# Maximum distance of the distributions of simulation and data, as a multiple of the average distance between two
# records of the system (for 28 pairs of orbits of Lorenz's and of Rössler's system, it never exceeded three), and
# maximum distance of their spectra.
SAME_PLACES, SAME_SPECTRUM = 4.0, 0.3
# Number of rows to which the start of a window is fitted.
ROWS_OF_A_START = 10
# Window sizes of which a model of chaos must predict at least one within this error [rows], and the factor within which
# the spread of its simulation of a full record must match that of the data.
CHAOTIC_WINDOWS, PREDICTED, BOUNDED = (50, 25, 10), 0.3, 2.0
# Number of pieces of the data; distances between them are twice those between records of full length.
PIECES = 4


@dataclass(frozen=True)
class ChaosScores:
    """Scores of a chaotic system.

    - `valid_time`: median time for which forecasts are valid, over their starting points [unit of time].
    - `lyapunov_time`: time in which a small error of the model grows by a factor of e; infinite if it does not grow.
    - `distribution`: Wasserstein distance between the values of the data and of an equally long simulation, in standard
      deviations, averaged over states. Infinite if the simulation runs away.
    - `expected`: average of `distribution` between two records of the system, estimated from quarters of the data.
    - `spectrum`: Hellinger distance of their smoothed power spectra, from 0 to 1, averaged over states (J. M. Mikhaeil
      et al., NeurIPS 2022); NaN for uneven times.
    """

    valid_time: float
    lyapunov_time: float
    distribution: float
    expected: float
    spectrum: float

    @property
    def valid_lyapunov_times(self) -> float:
        """The valid time of forecasts in Lyapunov times."""
        return self.valid_time / self.lyapunov_time

    @property
    def stays(self) -> bool:
        """Whether a long simulation visits the same region as the data."""
        return self.distribution <= SAME_PLACES * self.expected and not self.spectrum > SAME_SPECTRUM

    def as_dict(self) -> dict[str, float | None]:
        """Converts to a dictionary for JSON; None for non-finite values."""
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
    """Scores a model of a chaotic system.

    **Arguments:** `train`: the data whose distribution and spectrum a simulation should match. `held`: the data to
    forecast.
    """
    model = reading_few_rows(model)
    longest = int(held.scored.sum(axis=1).max())
    rows = max(int(FORECAST_SHARE * longest), 2)
    windows = held.windows(rows, max((longest - rows) // FORECASTS, 1))
    complete = np.flatnonzero(windows.scored[:, 1])  # Others begin before the scored rows.
    windows = windows.select(complete.tolist()) if complete.size else windows
    simulated = model.predict(train)
    distances = [(distance_of_values, simulated), (distance_of_spectra, simulated)]
    lost = not np.isfinite(simulated[train.valid]).all()
    distribution, spectrum = (math.inf if lost else measure(train, ys) for measure, ys in distances)
    valid = valid_time(windows, model.predict(windows))
    return ChaosScores(valid, lyapunov_time(model, train), distribution, expected_distance(train), spectrum)


def predicts_windows_alone(model: NeuralODE, data: Mapping[str, Dataset], most: float) -> bool:
    """Whether data look chaotic to a model: it predicts short windows, but its simulation of the full training record
    only matches the spread of the data, not their phase.

    **Arguments:** `data`: data by role, such as `train`. `most`: maximum R² of the full simulation.
    """
    model = reading_few_rows(model)
    start, train = model.start, data["train"]
    reads = 0 if start.reads_windows else start.given_rows if isinstance(start, Fitted) else None
    if reads is None:
        return False
    predicted, mask = model.predict(train), train.mask
    if score_predictions(score_values(model, train), predicted).r2 > most or not np.isfinite(predicted[mask]).all():
        return False
    spread, measured = (np.std(np.where(mask, ys, np.nan), axis=(0, 1), where=mask) for ys in (predicted, train.ys))
    if not ((spread < BOUNDED * measured) & (measured < BOUNDED * spread)).all():
        return False
    for rows in CHAOTIC_WINDOWS:
        if rows <= 2 * reads:
            continue
        windows = [part.windows(rows, rows) for part in data.values() if part.lengths.max() >= 2 * rows]
        if len(windows) == len(data) and all(score(model, part).nrmse < PREDICTED for part in windows):
            return True
    return False


def reading_few_rows(model: NeuralODE) -> NeuralODE:
    """Returns the model with a start fitted to a few rows instead of all, so that windows are forecasts."""
    start = model.start
    if not isinstance(start, Fitted) or start.given_rows is not None:
        return model
    return eqx.tree_at(lambda model: model.start, model, start.reading(ROWS_OF_A_START))


def valid_time(data: Dataset, predicted: Float[np.ndarray, "trajectory time state"]) -> float:
    """Computes the median time for which predictions of measured values are within `VALID_ERROR`."""
    off = (predicted - np.where(data.mask, data.ys, predicted)) / prediction_errors(data)
    far = np.clip(np.nan_to_num(np.abs(off), nan=LARGEST_ERROR), 0, LARGEST_ERROR)
    errors = np.sqrt((far**2).mean(axis=2)) * data.valid
    beyond = errors > VALID_ERROR
    last = np.where(beyond.any(axis=1), beyond.argmax(axis=1) - 1, data.lengths - 1)
    return float(np.median(data.ts[np.arange(len(last)), np.maximum(last, 0)] - data.ts[:, 0]))


def lyapunov_time(model: NeuralODE, data: Dataset) -> float:
    """Computes the inverse of the model's largest Lyapunov exponent [unit of time].

    The exponent is the mean growth rate of a small difference along an orbit (G. Benettin et al., Meccanica 15:9,
    1980). NaN for a model with inputs or hidden states, or if the orbit diverges or is too stiff to be followed long.
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
    """Computes the largest norm of the field's Jacobian at some points [per unit of time]."""
    slopes = jax.vmap(jax.jacfwd(lambda y: model.vector_field(0.0, y)))(points)
    return jnp.linalg.norm(slopes, axis=(1, 2)).max()


@eqx.filter_jit
def growth_of_errors(model: NeuralODE, first: Float[Array, "orbit state"], step: Float[Array, ""]) -> Float[Array, ""]:
    """Computes the mean growth rate of a small difference along orbits, using Runge-Kutta steps."""

    def advance(now: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        y, off = jax.jvp(lambda y: runge_kutta(lambda y: model.vector_field(0.0, y), y, step), (now[0],), (now[1],))
        size = jnp.linalg.norm(off)
        return (y, off / size), jnp.log(size)

    begin = jnp.ones_like(first) / math.sqrt(first.shape[1])
    _, logs = jax.lax.scan(jax.vmap(advance, in_axes=(0, None)), (first, begin), length=GROWTH_STEPS)
    return logs[int(FORGOTTEN * GROWTH_STEPS) :].mean() / step


def runge_kutta(rates: Callable[[Array], Array], y: Array, step: Array) -> Array:
    """Takes a step of the classical fourth-order method."""
    one = rates(y)
    two = rates(y + step / 2 * one)
    three = rates(y + step / 2 * two)
    return y + step / 6 * (one + 2 * two + 2 * three + rates(y + step * three))


def distance_of_values(data: Dataset, simulated: Float[np.ndarray, "trajectory time state"]) -> float:
    """Computes the Wasserstein distance of measured and simulated values, in standard deviations (mean over states)."""
    from scipy.stats import wasserstein_distance  # Slow to import.

    distances: list[float] = []
    for state, spread in enumerate(prediction_errors(data)):
        mask = data.mask[..., state]
        distances.append(wasserstein_distance(data.ys[..., state][mask], simulated[..., state][mask]) / spread)
    return float(np.mean(distances))


def expected_distance(data: Dataset) -> float:
    """Estimates the average distance of values between two records of the system.

    Distances decrease with the square root of the length, like errors of means: between quarters, they are twice as
    large.
    """
    from scipy.stats import wasserstein_distance  # Slow to import.

    distances: list[float] = []
    for state, spread in enumerate(prediction_errors(data)):
        pieces = np.array_split(data.ys[..., state][data.mask[..., state]], PIECES)
        distances += [wasserstein_distance(one, other) / spread for one, other in itertools.combinations(pieces, 2)]
    return float(np.mean(distances)) / math.sqrt(PIECES)


def distance_of_spectra(data: Dataset, simulated: Float[np.ndarray, "trajectory time state"]) -> float:
    """Computes the Hellinger distance of the longest trajectory's spectra (mean over states); NaN at uneven times."""
    longest = int(data.lengths.argmax())
    rows = slice(0, int(data.lengths[longest]))
    steps = np.diff(data.ts[longest, rows])
    if not np.allclose(steps, steps.mean(), rtol=1e-2) or not data.mask[longest, rows][1:].all():
        return math.nan
    pairs = zip(data.ys[longest, rows].T, simulated[longest, rows].T, strict=True)
    shared = [
        np.sqrt(spectrum(measured_ys[1:]) * spectrum(simulated_ys[1:])).sum() for measured_ys, simulated_ys in pairs
    ]
    return float(np.mean(np.sqrt(np.clip(1 - np.array(shared), 0, 1))))


def spectrum(values: Float[np.ndarray, " time"]) -> Float[np.ndarray, " frequency"]:
    """Computes the smoothed power spectrum, normalized to sum 1."""
    from scipy.ndimage import gaussian_filter1d

    power = np.abs(np.fft.rfft(values - values.mean())) ** 2
    smooth = gaussian_filter1d(power, max(SPECTRAL_WIDTH * power.size, 1.0))
    return smooth / smooth.sum()

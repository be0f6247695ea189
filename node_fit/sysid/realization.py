"""Linear systems of many states, identified from long, evenly sampled records that inputs drive.

Least squares estimates the impulse responses, their Ho-Kalman realisation gives the modes, and the free simulation is
linear in all other parameters. Then all parameters are fitted together. A mode is a filter of one signal, so
simulations need no matrix products. Everything runs in NumPy in float64.

Ho and Kalman, Regelungstechnik 14, 1966; Juang and Pappa, J. Guidance 8, 1985 (several inputs and outputs).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Complex, Float, Inexact

from ..evaluation.comparison import compare_squares
from ..minimize.host import DampedSteps, Damping, LazyPoint, QuadraticModel, minimize
from .linear_model import step_matrix

# Numbers of states to try.
ORDERS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 34, 40, 48, 56, 64, 72, 80, 90, 100, 110, 120)
COARSE_ORDERS = (4, 10, 20, 40, 80, 120)
# Length of the impulse response in rows: maximum, minimum, share of the longest record, share of the rows per input.
MAX_TAPS, MIN_TAPS, TAPS_OF_RECORD, TAPS_OF_ROWS = 400, 100, 1 / 8, 1 / 20
# Ridges to try for the impulse response, as shares of the inputs' power.
RESPONSE_RIDGES = tuple(10.0 ** np.arange(-8, 0, 0.5))
# Maximum number of past rows in a regression on outputs and inputs, and rows of data required per column.
# With 60 lightly damped modes and 2 % noise, 60 past rows left an error of 12 times the noise, 150 left 1.06 times.
MAX_LAGS, ROWS_OF_COLUMN = 150, 40
# Size of a response, in standard deviations, above which it counts as growing.
GROWN = 1e3
# Singular values below this share of the largest are rounding errors.
SMALLEST_SINGULAR = 1e-9
# Minimum decay rate of a mode [1/row], so that it settles within the record, and maximum.
SLOWEST_RATE, FASTEST_RATE = 1e-5, 6.0
# A pole on the negative real axis has no real logarithm; a pair at this angle is close to it.
NEXT_TO_NEGATIVE = 0.98 * np.pi
# Rows filtered at a time, so that memory does not grow with the record.
FILTERED_ROWS = 1 << 14
# Ridge of least squares, as a share of the mean square of the columns.
MODE_RIDGE = 1e-10
# Squared error above which modes are still missing; every output has a variance of about one.
NOT_YET_FOUND = 0.1
# Ridge for initial states estimated from the first rows, in the same units as `MODE_RIDGE`.
START_RIDGE = 1e-6
# Maximum number of records with fitted initial states; more records start at rest, and settle.
MAX_OWN_STARTS = 4
# Rows per column of a regression that are enough to compare systems.
ROWS_COMPARED = 20
# Significance level for one order being worse than another.
ORDER_RISK = 0.05
# Damping, maximum number of steps, and relative decrease of the error below which the joint fit stops.
MODAL_DAMPING, MODAL_STEPS, MODAL_STALLED = Damping(increase=4.0, maximum=1e10), 12, 1e-3
# Steps of the joint fit before input kinds are compared, and maximum number of states for these steps.
KIND_STEPS, MAX_REFINED = 4, 30
# Up to this number of states, all orders are compared after the joint fit. Larger systems are compared from the first
# one whose squared error is within this factor of the best, with at most this number of further orders.
MAX_SEARCHED, NEAR_BEST, MORE_ORDERS = 16, 1.2, 2

Kind = Literal["hold", "linear"]


class Signals(NamedTuple):
    """A record with a row at every step, in scaled units.

    - `us`, `ys`: inputs and outputs.
    - `counts`: rows in which all outputs are known and count.
    """

    us: Float[np.ndarray, "row input"]
    ys: Float[np.ndarray, "row output"]
    counts: Bool[np.ndarray, " row"]

    def without_transient(self, rows: int) -> "Signals":
        """Returns the record with its first `rows` rows not counted, in which a simulation from rest settles."""
        return self._replace(counts=self.counts & (np.arange(len(self.us)) >= rows))


@dataclass(frozen=True)
class ModalSystem:
    """Modes `x' = s x + b u`, and outputs `y = Re(c x) + direct u + shift`, with a row as the unit of time.

    A mode with an imaginary part represents a conjugate pair, that is two states.

    - `rates`: `s` of each mode, whose real parts are negative. `b`, `c`, `direct`, `shift`: as above.
    - `kind`: interpolation of inputs between rows.
    """

    rates: Complex[np.ndarray, " mode"]
    b: Complex[np.ndarray, "mode input"]
    c: Complex[np.ndarray, "output mode"]
    direct: Float[np.ndarray, "output input"]
    shift: Float[np.ndarray, " output"]
    kind: Kind

    @property
    def states(self) -> int:
        return len(self.rates) + int(self.swings.sum())

    @property
    def swings(self) -> Bool[np.ndarray, " mode"]:
        """Whether each mode represents a conjugate pair."""
        return np.imag(self.rates) > 0

    @property
    def has_direct(self) -> bool:
        return bool(self.direct.any())

    def simulate(self, us: Float[np.ndarray, "row input"]) -> Float[np.ndarray, "row output"]:
        """Simulates the outputs from rest."""
        drives = (us @ self.b.T)[:, :, None]
        parts = [np.real(states[:, :, 0] @ self.c.T) for states in filter_drives(self.rates, drives, self.kind)]
        return np.concatenate(parts) + us @ self.direct.T + self.shift


def count_taps(records: Sequence[Signals]) -> int | None:
    """Returns the impulse-response length that the records determine; None if they are too short."""
    inputs, rows = records[0].us.shape[1], sum(int(record.counts.sum()) for record in records)
    longest = max(len(record.us) for record in records)
    taps = int(min(MAX_TAPS, TAPS_OF_RECORD * longest, TAPS_OF_ROWS * rows / max(inputs, 1)))
    return taps if inputs and taps >= MIN_TAPS else None


def estimate_response(records: Sequence[Signals], taps: int) -> Float[np.ndarray, "tap output input"]:
    """Estimates the impulse responses by least squares on past inputs."""
    inputs, outputs = records[0].us.shape[1], records[0].ys.shape[1]
    width = taps * inputs + 1
    gram, cross, power, rows = np.zeros((width, width)), np.zeros((width, outputs)), 0.0, 0
    for record in records:
        counted = np.flatnonzero(record.without_transient(taps - 1).counts)
        for part in np.array_split(counted, -(-len(counted) // FILTERED_ROWS) or 1):
            lagged = record.us[part[:, None] - np.arange(taps)].reshape(len(part), -1)
            table, ys = np.concatenate([lagged, np.ones((len(part), 1))], axis=1), record.ys[part]
            gram, cross, power, rows = (
                gram + table.T @ table,
                cross + table.T @ ys,
                power + (ys**2).sum(),
                rows + len(ys),
            )
    coefficients = solve_validated(gram, cross, power, rows)
    return coefficients[:-1].reshape(taps, inputs, outputs).transpose(0, 2, 1)


def solve_validated(gram: np.ndarray, cross: np.ndarray, power: float, rows: int) -> np.ndarray:
    """Solves least squares with the ridge that minimises the predicted error.

    Generalised cross-validation chooses the ridge (Golub, Heath and Wahba, Technometrics 21, 1979).

    **Arguments:** `gram`, `cross`: inner products of the columns, and of the columns with the outputs. `power`,
    `rows`: the sum of the outputs' squares, and the number of rows.
    """
    sizes, vectors = np.linalg.eigh(gram)
    sizes, seen, mean = np.maximum(sizes, 0), vectors.T @ cross, np.trace(gram) / len(gram)

    def predict(ridge: float) -> float:
        kept = 1 / (sizes + ridge)
        left = power - ((2 * kept - sizes * kept**2)[:, None] * seen**2).sum()
        return left / (1 - min((sizes * kept).sum() / rows, 0.99)) ** 2

    ridge = min((share * mean for share in RESPONSE_RIDGES), key=predict)
    return vectors @ (seen / (sizes + ridge)[:, None])


def extend_response(records: Sequence[Signals], taps: int) -> Float[np.ndarray, "tap output input"] | None:
    """Estimates the impulse responses by regression on past outputs and inputs (VARX), with a memory beyond `taps`;
    None if they grow."""
    inputs, outputs = records[0].us.shape[1], records[0].ys.shape[1]
    counted = sum(int(record.counts.sum()) for record in records)
    lags = min(MAX_LAGS, taps, counted // (ROWS_OF_COLUMN * (inputs + outputs)))
    if not lags:
        return None
    width = lags * (inputs + outputs) + inputs + 1
    gram, cross, power, rows = np.zeros((width, width)), np.zeros((width, outputs)), 0.0, 0
    for record in records:
        complete = np.lib.stride_tricks.sliding_window_view(record.counts, lags + 1).all(axis=1)
        counted = np.flatnonzero(complete) + lags
        for part in np.array_split(counted, -(-len(counted) // FILTERED_ROWS) or 1):
            past = part[:, None] - np.arange(1, lags + 1)
            columns = [record.ys[past].reshape(len(part), -1), record.us[past].reshape(len(part), -1)]
            table = np.concatenate([*columns, record.us[part], np.ones((len(part), 1))], axis=1)
            ys = record.ys[part]
            gram, cross, power, rows = (
                gram + table.T @ table,
                cross + table.T @ ys,
                power + (ys**2).sum(),
                rows + len(ys),
            )
    if rows < 2 * width:
        return None
    coefficients = solve_validated(gram, cross, power, rows)
    by_output = coefficients[: lags * outputs].reshape(lags, outputs, outputs).transpose(0, 2, 1)
    driven = coefficients[lags * outputs : -1 - inputs].reshape(lags, inputs, outputs).transpose(0, 2, 1)
    response = np.zeros((max(taps, MAX_TAPS), outputs, inputs))
    response[0] = coefficients[-1 - inputs : -1].T
    for tap in range(1, len(response)):
        back = min(lags, tap)
        response[tap] = np.einsum("koi,kij->oj", by_output[:back], response[tap - 1 :: -1][:back])
        response[tap] += driven[tap - 1] if tap <= lags else 0
        if not np.abs(response[tap]).max() < GROWN:
            return None
    return response


class Modes(NamedTuple):
    """The modes of a realisation: their rates and output weights."""

    rates: Complex[np.ndarray, " mode"]
    c: Complex[np.ndarray, "output mode"]


def realize(response: Float[np.ndarray, "tap output input"], orders: Sequence[int]) -> Iterator[Modes]:
    """Yields the stable modes of realisations of several orders, up to the rank of the response.

    The block Hankel matrix of the response gives the observability matrix, and the shift of its rows the transition
    matrix.
    """
    outputs, half = response.shape[1], len(response) // 2 - 1
    blocks = response[1 + np.arange(half)[:, None] + np.arange(half)[None, :]]
    hankel = blocks.transpose(0, 2, 1, 3).reshape(half * outputs, -1)
    left, sizes, _ = np.linalg.svd(hankel, full_matrices=False)
    yield from modes_of_range(left, sizes, outputs, orders)


def realize_windows(gram: Float[np.ndarray, "value value"], outputs: int, orders: Sequence[int]) -> Iterator[Modes]:
    """Yields the stable modes of realisations of several orders of free responses, as far as they have windows.

    **Arguments:** `gram`: inner products of windows of the responses, whose values are ordered by rows, then outputs.
    """
    squares, left = np.linalg.eigh(gram)
    sizes = np.sqrt(np.maximum(squares[::-1], 0))
    yield from modes_of_range(left[:, ::-1], sizes, outputs, orders)


def modes_of_range(
    left: Float[np.ndarray, "value singular"],
    sizes: Float[np.ndarray, " singular"],
    outputs: int,
    orders: Sequence[int],
) -> Iterator[Modes]:
    """Yields the stable modes whose responses span the first left singular vectors of a Hankel matrix."""
    rows = len(left) // outputs
    for order in orders:
        if order > min(len(sizes), (rows - 1) * outputs) or sizes[order - 1] < SMALLEST_SINGULAR * sizes[0]:
            return
        observability = left[:, :order] * np.sqrt(sizes[:order])
        shift = np.linalg.lstsq(observability[:-outputs], observability[outputs:], rcond=None)[0]
        values, vectors = np.linalg.eig(shift)
        values, seen = values.astype(complex), observability[:outputs] @ vectors
        upper = np.imag(values) >= 0
        yield Modes(stable_rates(values[upper]), seen[:, upper].astype(complex))


def stable_rates(values: Complex[np.ndarray, " mode"]) -> Complex[np.ndarray, " mode"]:
    """Converts eigenvalues of the transition matrix to rates [1/row], clipped so that every mode decays."""
    angle = np.where((np.imag(values) == 0) & (np.real(values) < 0), NEXT_TO_NEGATIVE, np.angle(values))
    decay = np.clip(-np.log(np.maximum(np.abs(values), 1e-300)), SLOWEST_RATE, FASTEST_RATE)
    return -decay + 1j * angle


class Weights(NamedTuple):
    """Weights of an input at both ends of a row for the state at its end, and their derivatives by the rate."""

    begin: Complex[np.ndarray, " mode"]
    end: Complex[np.ndarray, " mode"]
    begin_slope: Complex[np.ndarray, " mode"]
    end_slope: Complex[np.ndarray, " mode"]


# Number of terms of the power series, and the rate below which it replaces the closed form because of cancellation.
SERIES_TERMS, SMALL_RATE = 16, 0.5


def input_weights(rates: Complex[np.ndarray, " mode"], kind: Kind) -> Weights:
    """Computes exact integrals of `exp(s (1 - t)) u(t)` over a row, for a held or linear input.

    They are the functions `phi_1(s) = (e^s - 1) / s` and `phi_2(s) = (phi_1(s) - 1) / s` of exponential integrators
    (Hochbruck and Ostermann, Acta Numerica 19, 2010).
    """
    small = np.abs(rates) < SMALL_RATE
    s, near = np.where(small, 1.0, rates), np.where(small, rates, 0.0)
    powers = near[:, None] ** np.arange(SERIES_TERMS)
    orders, factorials = np.arange(SERIES_TERMS), np.cumprod(np.arange(1.0, SERIES_TERMS + 3))

    def pick(k: int, closed: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        terms = 1 / factorials[orders + k - 1]
        slopes = orders[1:] * terms[1:]
        return np.where(small, powers @ terms, closed), np.where(small, powers[:, :-1] @ slopes, slope)

    one = (np.exp(s) - 1) / s
    two = (one - 1) / s
    first, first_slope = pick(1, one, (np.exp(s) - one) / s)
    second, second_slope = pick(2, two, ((np.exp(s) - one) / s - two) / s)
    if kind == "hold":
        return Weights(first, np.zeros_like(first), first_slope, np.zeros_like(first))
    return Weights(first - second, second, first_slope - second_slope, second_slope)


def filter_drives(
    rates: Complex[np.ndarray, " mode"], drives: Inexact[np.ndarray, "row mode drive"], kind: Kind
) -> Iterator[Complex[np.ndarray, "part mode drive"]]:
    """Filters the drives of each mode from rest; yields the states in blocks of rows."""
    from scipy.signal import lfilter

    weights, held = input_weights(rates, kind), np.zeros((*drives.shape[1:], 1), complex)
    for begin in range(0, len(drives), FILTERED_ROWS):
        part = drives[begin : begin + FILTERED_ROWS].astype(complex)
        for mode, rate in enumerate(rates):
            numerator, denominator = [weights.end[mode], weights.begin[mode]], [1, -np.exp(rate)]
            for number in range(part.shape[2]):
                part[:, mode, number], held[mode, number] = lfilter(
                    numerator, denominator, part[:, mode, number], zi=held[mode, number]
                )
        yield part


def filter_inputs(
    rates: Complex[np.ndarray, " mode"], us: Float[np.ndarray, "row input"], kind: Kind
) -> Iterator[Complex[np.ndarray, "part mode input"]]:
    """Filters each input by each mode from rest; yields the results in blocks of rows."""
    yield from filter_drives(rates, np.broadcast_to(us[:, None], (len(us), len(rates), us.shape[1])), kind)


def stride_for(columns: int, records: Sequence[Signals]) -> int:
    """Returns the stride between rows that leaves enough for least squares with this number of columns."""
    rows = sum(int(record.counts.sum()) for record in records)
    return max(rows // (ROWS_COMPARED * columns), 1)


def fit_inputs(
    modes: Modes, records: Sequence[Signals], kinds: Sequence[tuple[Kind, bool]], *, sample: bool = False
) -> list[ModalSystem]:
    """Fits all parameters but the modes to the free simulation, which is linear in them.

    **Arguments:** `kinds`: pairs of the interpolation of inputs and whether outputs depend on inputs directly; one
    system is fitted per pair. `sample`: whether to skip rows if they far outnumber the parameters.
    """
    outputs, columns = records[0].ys.shape[1], 2 * len(modes.rates) * records[0].us.shape[1]
    stride = stride_for(columns, records) if sample else 1
    different: list[Kind] = [*dict.fromkeys(kind for kind, _ in kinds)]
    grams = {kind: sum_products(modes.rates, records, kind, stride) for kind in different}
    return [solve_inputs(modes, grams[kind], kind, outputs, direct=direct) for kind, direct in kinds]


class Products(NamedTuple):
    """Sums over rows of the products of the real and imaginary parts of filtered inputs, inputs and 1 (`gram`), and of
    their products with the outputs (`cross`)."""

    gram: Float[np.ndarray, "column column"]
    cross: Float[np.ndarray, "column output"]


def sum_products(
    rates: Complex[np.ndarray, " mode"], records: Sequence[Signals], kind: Kind, stride: int = 1
) -> Products:
    gram: np.ndarray | float = 0.0
    cross: np.ndarray | float = 0.0
    for record in records:
        begin = 0
        for filtered in filter_inputs(rates, record.us, kind):
            rows = slice(begin, begin + len(filtered))
            begin, counts, flat = rows.stop, record.counts[rows], filtered.reshape(len(filtered), -1)
            ones = np.ones((len(filtered), 1))
            table = np.concatenate([np.real(flat), np.imag(flat), record.us[rows], ones], axis=1)[counts][::stride]
            gram, cross = gram + table.T @ table, cross + table.T @ record.ys[rows][counts][::stride]
    return Products(np.asarray(gram), np.asarray(cross))


def solve_inputs(modes: Modes, products: Products, kind: Kind, outputs: int, *, direct: bool) -> ModalSystem:
    count = len(modes.rates)
    inputs = (len(products.gram) - 1) // (2 * count + 1)
    paired = np.repeat(np.imag(modes.rates) > 0, inputs)
    width, filters = len(products.gram), count * inputs
    free = outputs * inputs if direct else 0
    columns = filters + int(paired.sum())
    matrix: np.ndarray | float = 0.0
    pulled: np.ndarray | float = 0.0
    for output in range(outputs):
        c = np.repeat(modes.c[output], inputs)
        change = np.zeros((width, columns + free + outputs))
        # Re(c b f) in terms of the real and imaginary parts of b, and of the filtered input f.
        real, imaginary = np.diag(np.real(c)), np.diag(np.imag(c))
        change[:filters, :filters], change[filters : 2 * filters, :filters] = real, -imaginary
        change[:filters, filters:columns] = -imaginary[:, paired]
        change[filters : 2 * filters, filters:columns] = -real[:, paired]
        if direct:
            place = columns + output * inputs
            change[2 * filters : -1, place : place + inputs] = np.eye(inputs)
        change[-1, columns + free + output] = 1
        matrix, pulled = matrix + change.T @ products.gram @ change, pulled + change.T @ products.cross[:, output]
    matrix = np.asarray(matrix)
    scale = 1 / np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    scaled = matrix * scale[:, None] * scale
    solution = scale * np.linalg.solve(scaled + MODE_RIDGE * np.eye(len(scaled)), scale * np.asarray(pulled))
    b = solution[:filters].astype(complex)
    b[paired] += 1j * solution[filters:columns]
    through = solution[columns : columns + free].reshape(outputs, inputs) if direct else np.zeros((outputs, inputs))
    return ModalSystem(modes.rates, b.reshape(count, inputs), modes.c, through, solution[columns + free :], kind)


class ModalLayout(NamedTuple):
    """The layout of a system's parameter vector: `decays` and `swings` of the rates, `b` and `c` as real and
    imaginary parts, the direct part, and the shift."""

    system: ModalSystem

    @property
    def sizes(self) -> list[int]:
        outputs, modes = self.system.c.shape
        pairs, inputs = int(self.system.swings.sum()), self.system.b.shape[1]
        direct = self.system.direct.size if self.system.has_direct else 0
        return [modes, pairs, modes * inputs, pairs * inputs, modes * outputs, pairs * outputs, direct, outputs]

    @property
    def ends(self) -> list[int]:
        return np.cumsum(self.sizes).tolist()

    def as_vector(self, system: ModalSystem) -> np.ndarray:
        pairs = system.swings
        parts = [
            np.log(-np.real(system.rates)),
            np.imag(system.rates)[pairs],
            np.real(system.b),
            np.imag(system.b)[pairs],
        ]
        parts += [
            np.real(system.c.T),
            np.imag(system.c.T)[pairs],
            system.direct if self.sizes[6] else np.zeros(0),
            system.shift,
        ]
        return np.concatenate([np.ravel(part) for part in parts])

    def from_vector(self, x: np.ndarray) -> ModalSystem:
        decays, swings, b, b_imaginary, c, c_imaginary, direct, shift = np.split(x, self.ends[:-1])
        outputs, modes = self.system.c.shape
        pairs = self.system.swings
        rates = -np.exp(np.clip(decays, np.log(SLOWEST_RATE), np.log(FASTEST_RATE))).astype(complex)
        rates[pairs] += 1j * np.clip(swings, 1e-9, np.pi)
        weights = b.reshape(modes, -1).astype(complex)
        weights[pairs] += 1j * b_imaginary.reshape(int(pairs.sum()), weights.shape[1])
        seen = c.reshape(modes, outputs).astype(complex)
        seen[pairs] += 1j * c_imaginary.reshape(int(pairs.sum()), outputs)
        through = direct.reshape(self.system.direct.shape) if direct.size else self.system.direct
        return replace(self.system, rates=rates, b=weights, c=seen.T, direct=through, shift=shift)


def expand_error(system: ModalSystem, records: Sequence[Signals]) -> tuple[np.ndarray, np.ndarray]:
    """Computes half the gradient of the mean squared error and half its Gauss-Newton curvature.

    All derivatives are combinations of the filtered inputs, the states' derivatives by their rates, the inputs and 1,
    the same for all outputs, so their products are summed only once.
    """
    gram: np.ndarray | float = 0.0
    cross: np.ndarray | float = 0.0
    count = 0
    for record in records:
        for rows, filtered, slopes, off in expand_parts(system, record):
            counts, flat = record.counts[rows], filtered.reshape(len(filtered), -1)
            parts = [
                np.real(flat),
                np.imag(flat),
                np.real(slopes),
                np.imag(slopes),
                record.us[rows],
                np.ones((len(flat), 1)),
            ]
            table = np.concatenate(parts, axis=1)[counts]
            gram, cross = gram + table.T @ table, cross + table.T @ off[counts]
            count += int(counts.sum())
    gram, cross, sizes = np.asarray(gram), np.asarray(cross), ModalLayout(system).sizes
    slope, curvature = np.zeros(sum(sizes)), np.zeros((sum(sizes), sum(sizes)))
    for output in range(len(system.c)):
        change, indices = combine_derivatives(system, output)
        slope[indices] += change.T @ cross[:, output]
        curvature[np.ix_(indices, indices)] += change.T @ gram @ change
    values = count * len(system.c)
    return slope / values, curvature / values


def expand_parts(system: ModalSystem, record: Signals) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
    """Yields blocks of rows: the rows, the filtered inputs, the states' derivatives by their rates, and the errors."""
    from scipy.signal import lfilter

    weights, growth = input_weights(system.rates, system.kind), np.exp(system.rates)
    held, driven, begin = np.zeros((len(growth), 1), complex), record.us @ system.b.T, 0
    before = np.zeros((2, 1, len(growth)), complex)
    for filtered in filter_inputs(system.rates, record.us, system.kind):
        rows = slice(begin, begin + len(filtered))
        states, push = np.einsum("rmi,mi->rm", filtered, system.b), driven[rows]
        earlier, pushed = np.concatenate([before, np.stack([states, push])[:, :-1]], axis=1)
        slopes = growth * earlier + weights.begin_slope * pushed + weights.end_slope * push
        for mode, factor in enumerate(growth):
            slopes[:, mode], held[mode] = lfilter([1.0], [1, -factor], slopes[:, mode], zi=held[mode])
        simulated = np.real(states @ system.c.T) + record.us[rows] @ system.direct.T + system.shift
        yield rows, filtered, slopes, simulated - record.ys[rows]
        before, begin = np.stack([states[-1:], push[-1:]]), rows.stop


def combine_derivatives(system: ModalSystem, output: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the derivatives of an output by the parameters as combinations of the columns of `expand_error`, shape
    `(column, parameter)`, and the indices of these parameters in the vector."""
    modes, inputs = system.b.shape
    outputs, pairs, filters = len(system.c), system.swings, modes * inputs
    c, rate, ends = system.c[output], system.rates, [0, *ModalLayout(system).ends]
    wide, several = np.repeat(c, inputs), np.repeat(pairs, inputs)
    of_mode = np.repeat(np.eye(modes), inputs, axis=0)
    b = system.b.ravel()[:, None] * of_mode
    still, none = np.zeros((filters, modes)), np.zeros((modes, filters))
    # For each block of parameters, its weights of filtered inputs and of slopes, in real and imaginary parts.
    blocks = [
        (still, still, np.diag(np.real(c) * np.real(rate)), np.diag(-np.imag(c) * np.real(rate))),
        (still[:, pairs], still[:, pairs], np.diag(-np.imag(c))[:, pairs], np.diag(-np.real(c))[:, pairs]),
        (np.diag(np.real(wide)), np.diag(-np.imag(wide)), none, none),
        (np.diag(-np.imag(wide))[:, several], np.diag(-np.real(wide))[:, several], none[:, several], none[:, several]),
        (np.real(b), -np.imag(b), np.zeros((modes, modes)), np.zeros((modes, modes))),
        (-np.imag(b)[:, pairs], -np.real(b)[:, pairs], np.zeros((modes, pairs.sum())), np.zeros((modes, pairs.sum()))),
    ]
    moving = np.concatenate([np.concatenate(block) for block in blocks], axis=1)
    still_columns = inputs * system.has_direct + 1
    change = np.zeros((len(moving) + inputs + 1, moving.shape[1] + still_columns))
    change[: len(moving), : moving.shape[1]] = moving
    if system.has_direct:
        change[len(moving) : -1, moving.shape[1] : -1] = np.eye(inputs)
    change[-1, -1] = 1
    indices: list[np.ndarray] = [
        np.arange(ends[4]),
        ends[4] + np.arange(modes) * outputs + output,
        ends[5] + np.arange(int(pairs.sum())) * outputs + output,
        ends[6] + output * inputs + np.arange(inputs * system.has_direct),
        np.array([ends[7] + output]),
    ]
    return change, np.concatenate(indices)


def simulation_error(system: ModalSystem, records: Sequence[Signals]) -> float:
    """Computes the mean squared error of the free simulation from rest."""
    off = [((system.simulate(record.us) - record.ys) ** 2)[record.counts] for record in records]
    return float(np.concatenate(off).mean())


def row_errors(system: ModalSystem, records: Sequence[Signals], read: int) -> Float[np.ndarray, " row"]:
    """Computes the squared error of each counted row, with initial states estimated from the first rows.

    **Arguments:** `read`: number of rows used to estimate the initial states; they do not count.
    """
    errors: list[np.ndarray] = []
    for record in records:
        off = record.ys - system.simulate(record.us)
        rows = np.arange(len(off))
        table = free_responses(system, rows)
        first = record.counts & (rows < read)
        flat = table[first].reshape(-1, table.shape[2])
        normal = flat.T @ flat
        ridge = START_RIDGE * np.trace(normal) / len(normal) + 1e-300
        normal, seen = normal + ridge * np.eye(len(normal)), flat.T @ off[first].ravel()
        start = cast(np.ndarray, np.linalg.solve(normal, seen))
        later = record.counts & (rows >= read)
        residuals: np.ndarray = off[later] - table[later] @ start
        errors.append(np.sum(residuals**2, axis=1))
    return np.concatenate(errors)


def free_responses(system: ModalSystem, rows: np.ndarray) -> Float[np.ndarray, "row output state"]:
    """Computes the outputs after a unit initial value of each state; for pairs, of the real and imaginary part."""
    decays = np.exp(rows[:, None] * system.rates)
    seen = decays[:, None, :] * system.c
    return np.concatenate([np.real(seen), -np.imag(seen)[:, :, system.swings]], axis=2)


def refine(system: ModalSystem, records: Sequence[Signals], steps: int = MODAL_STEPS) -> ModalSystem:
    """Minimises the squared error of the free simulation from this system with the Levenberg-Marquardt method."""
    layout = ModalLayout(system)

    def look(x: np.ndarray) -> LazyPoint:
        here = layout.from_vector(x)
        value = simulation_error(here, records)

        def expand(x: np.ndarray) -> QuadraticModel:
            slope, curvature = expand_error(here, records)
            return QuadraticModel(value, 2 * slope, 2 * curvature)

        return LazyPoint(x, value, expand)

    def step(here: LazyPoint, damping: float) -> np.ndarray:
        curvature = here.local.curvature
        scale = 1 / np.sqrt(np.diag(curvature) + 1e-300)
        scaled = curvature * scale[:, None] * scale
        return here.x - scale * np.linalg.solve(
            scaled + (damping + MODE_RIDGE) * np.eye(len(scale)), scale * here.local.gradient
        )

    rule = DampedSteps(
        step,
        MODAL_DAMPING,
        max_steps=steps,
        is_still=lambda old, new: (1 - MODAL_STALLED) * old.value <= new.value < old.value,
        patience=1,
        predict=lambda old, new: old.local.predict_decrease(new.x - old.x),
    )
    return layout.from_vector(minimize(look(layout.as_vector(system)), rule, look).x)


class ScoredSystem(NamedTuple):
    """A system and its squared errors on the held-out rows."""

    system: ModalSystem
    errors: Float[np.ndarray, " row"]

    @property
    def mean(self) -> float:
        return float(self.errors.mean())


def smallest_as_good(tried: Sequence[ScoredSystem]) -> int:
    """Returns the index of the first system that is not significantly worse than the best on the same rows."""
    best = min(range(len(tried)), key=lambda number: tried[number].mean)
    counted = np.ones((1, len(tried[best].errors)), bool)
    for number in range(best):
        if compare_squares(tried[number].errors[None], tried[best].errors[None], counted) > ORDER_RISK:
            return number
    return best


# Interpolation of inputs, and whether outputs depend on inputs directly; simpler kinds first.
INPUT_KINDS: tuple[tuple[Kind, bool], ...] = (("hold", False), ("linear", False), ("hold", True))


def identify_modes(
    fitted: Sequence[Signals],
    held_out: Sequence[Signals],
    *,
    kinds: Sequence[tuple[Kind, bool]] = INPUT_KINDS,
    watch: Callable[[str], None] = lambda said: None,
) -> ScoredSystem | None:
    """Identifies the smallest linear system that no larger one significantly outperforms on held-out rows.

    **Arguments:**

    - `fitted`, `held_out`: records; the held-out ones select the number of states and the interpolation of inputs.
    - `kinds`: pairs of an interpolation and whether outputs depend on inputs directly; simpler kinds first.
    - `watch`: receives a message for each order.

    **Returns:** the system, and its errors on the held-out rows after its modes have settled; None if records are too
    short for their number of signals, or nothing responds to the inputs.
    """
    taps = count_taps(fitted)
    if taps is None:
        return None
    begun = (
        with_starts(fitted) if len(fitted) <= MAX_OWN_STARTS else [record.without_transient(taps) for record in fitted]
    )
    read = min(taps, min(len(record.us) for record in held_out) // 4)

    def try_system(system: ModalSystem) -> ScoredSystem:
        return ScoredSystem(system, row_errors(of_inputs(system, fitted), held_out, read))

    def scan(response: np.ndarray | None, orders: Sequence[int], enough: float = 0.0) -> Iterator[ScoredSystem]:
        reached = 0
        for modes in realize(response, orders) if response is not None else ():
            here = try_system(fit_inputs(modes, begun, kinds[-1:], sample=True)[0])
            watch(f"a linear system of {here.system.states} states (RMSE {here.mean**0.5:.2g})")
            yield here
            reached += here.mean <= enough
            if reached > MORE_ORDERS:
                return

    responses = extend_response(fitted, taps), estimate_response(fitted, taps)
    coarse = [until_idle(scan(response, COARSE_ORDERS)) for response in responses]
    if not any(coarse):
        return None
    best = [min((entry.mean for entry in tried_orders), default=np.inf) for tried_orders in coarse]
    which, enough = int(best[1] < best[0]), NEAR_BEST * min(best)
    below = max(
        (order for order, entry in zip(COARSE_ORDERS, coarse[which], strict=False) if entry.mean > enough), default=0
    )
    between = [order for order in ORDERS if order > below or below <= MAX_SEARCHED]
    scanned = best_of_each([*coarse[which], *scan(responses[which], between, enough)])
    near = next(number for number, entry in enumerate(scanned) if entry.mean <= enough)
    system = scanned[near].system
    several = fit_inputs(Modes(system.rates, system.c), begun, kinds)
    steps = KIND_STEPS if system.states <= MAX_REFINED else 0
    kind = kinds[smallest_as_good([try_system(refine(entry, begun, steps)) for entry in several])]
    chosen = search_orders(
        scanned, near, lambda entry: try_system(refine(fit_inputs(entry, begun, [kind])[0], begun)), watch
    )
    return chosen._replace(system=of_inputs(chosen.system, fitted))


def until_idle(scanned: Iterator[ScoredSystem]) -> list[ScoredSystem]:
    """Collects systems of increasing order until they stop improving: after one without improvement if the best is
    good, otherwise after two in a row."""
    kept: list[ScoredSystem] = []
    idle, best = 0, np.inf
    for entry in scanned:
        kept.append(entry)
        idle = idle + 1 if NEAR_BEST * entry.mean > best else 0
        best = min(best, entry.mean)
        if idle > (best > NOT_YET_FOUND):
            break
    return kept


def search_orders(
    scanned: Sequence[ScoredSystem], near: int, fit_all: Callable[[Modes], ScoredSystem], watch: Callable[[str], None]
) -> ScoredSystem:
    """Fits all parameters of several orders, and returns the smallest system that no other significantly outperforms.

    **Arguments:** `scanned`: systems ordered by their number of states. `near`: index of the first one about as good as
    the best. `fit_all`: fits all parameters, starting from modes.
    """
    is_small = scanned[near].system.states <= MAX_SEARCHED
    searched: list[ScoredSystem] = []
    for entry in scanned[0 if is_small else near : near + MORE_ORDERS + 1]:
        searched.append(fit_all(Modes(entry.system.rates, entry.system.c)))
        watch(
            f"a linear system of {entry.system.states} states, fitted as a whole (RMSE {searched[-1].mean ** 0.5:.2g})"
        )
        if not is_small and smallest_as_good(searched) < len(searched) - 1:
            break
    return searched[smallest_as_good(searched)]


def with_starts(records: Sequence[Signals]) -> list[Signals]:
    """Adds one input per record that is 1 only in its first row; its weights represent the initial states."""
    begun: list[Signals] = []
    for number, record in enumerate(records):
        impulses = np.zeros((len(record.us), len(records)))
        impulses[0, number] = 1
        begun.append(record._replace(us=np.concatenate([record.us, impulses], axis=1)).without_transient(1))
    return begun


def of_inputs(system: ModalSystem, records: Sequence[Signals]) -> ModalSystem:
    """Returns the system without the inputs added by `with_starts`."""
    inputs = records[0].us.shape[1]
    return replace(system, b=system.b[:, :inputs], direct=system.direct[:, :inputs])


def best_of_each(tried: Sequence[ScoredSystem]) -> list[ScoredSystem]:
    """Returns the best system for each number of states, in increasing order."""
    counts = sorted({entry.system.states for entry in tried})
    return [
        min((entry for entry in tried if entry.system.states == count), key=lambda entry: entry.mean)
        for count in counts
    ]


class StateMatrices(NamedTuple):
    """`z' = a z + b u`, `y = c z + direct u + shift`, with a row as the unit of time and states of order one.

    - `covariance`: covariance of the states in the fitted records.
    """

    a: Float[np.ndarray, "state state"]
    b: Float[np.ndarray, "state input"]
    c: Float[np.ndarray, "output state"]
    direct: Float[np.ndarray, "output input"]
    shift: Float[np.ndarray, " output"]
    covariance: Float[np.ndarray, "state state"]


def as_matrices(system: ModalSystem, records: Sequence[Signals]) -> StateMatrices:
    """Converts to real states: one per real mode, and the real and imaginary part of each pair."""
    total, count = 0.0, 0
    for record in records:
        drives = (record.us @ system.b.T)[:, :, None]
        for states in filter_drives(system.rates, drives, system.kind):
            real = interleave(states[:, :, 0], system.swings)
            total, count = total + real.T @ real, count + len(real)
    covariance = np.asarray(total) / max(count, 1)
    sizes = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    rates: np.ndarray = interleave(system.rates[None], system.swings)[0]
    first = np.flatnonzero(np.repeat(system.swings, 1 + system.swings) & ~is_imaginary(system.swings))
    decays: np.ndarray = np.where(is_imaginary(system.swings), np.roll(rates, 1), rates)
    a: np.ndarray = np.diag(decays)
    a[first + 1, first], a[first, first + 1] = rates[first + 1], -rates[first + 1]
    b = interleave(system.b.T, system.swings).T
    c = interleave(system.c.conj(), system.swings)
    return StateMatrices(
        a * sizes / sizes[:, None],
        b / sizes[:, None],
        c * sizes,
        system.direct,
        system.shift,
        covariance / sizes / sizes[:, None],
    )


def is_imaginary(swings: Bool[np.ndarray, " mode"]) -> Bool[np.ndarray, " state"]:
    """Whether each real state is an imaginary part."""
    mask = np.zeros(len(swings) + int(swings.sum()), bool)
    mask[(np.cumsum(1 + swings) - 1)[swings]] = True
    return mask


def interleave(
    values: Complex[np.ndarray, "row mode"], swings: Bool[np.ndarray, " mode"]
) -> Float[np.ndarray, "row state"]:
    """Returns the real part of each column, followed by the imaginary part for pairs."""
    wide = np.repeat(values, 1 + swings, axis=1)
    return np.where(is_imaginary(swings), np.imag(wide), np.real(wide))


class PastMap(NamedTuple):
    """An affine map from past rows of outputs and inputs to the states at the last of them.

    - `matrix`: its columns are, row by row, the outputs, whether they are known, the inputs, and the time.
    - `rows`: number of rows that it reads.
    - `share`: largest error variance of an output soon after the start, relative to the noise.
    """

    matrix: Float[np.ndarray, "state feature"]
    constant: Float[np.ndarray, " state"]
    rows: int
    share: float


def map_past(matrices: StateMatrices, noise: Float[np.ndarray, " output"], rows: int, kind: Kind) -> PastMap:
    """Computes the affine map from rows of outputs and inputs to the states at the last row.

    It minimises the mean square error if the first states have the covariance of the record, and outputs are noisy.

    **Arguments:** `noise`: noise variance of each output. `rows`: number of rows that are read.
    """
    states, inputs = matrices.b.shape
    outputs = len(matrices.c)
    steps = step_matrix(matrices.a, matrices.b, np.zeros(len(matrices.a)), held=kind == "hold")
    free, begin, end = steps[:, :states], steps[:, states : states + inputs], steps[:, states + inputs : -1]
    power, driven = np.eye(states), np.zeros((states, rows, inputs))
    seen, through = np.zeros((rows, outputs, states)), np.zeros((rows, outputs, rows, inputs))
    for row in range(rows):
        seen[row], through[row] = matrices.c @ power, np.tensordot(matrices.c, driven, 1)
        through[row, :, row] += matrices.direct
        if row < rows - 1:
            power, driven = free @ power, np.tensordot(free, driven, 1)
            driven[:, row] += begin
            if kind == "linear":
                driven[:, row + 1] += end
    flat = seen.reshape(rows * outputs, states)
    weighted = flat / np.tile(noise, rows)[:, None]
    prior = np.linalg.inv(matrices.covariance + 1e-6 * np.eye(states))
    information = weighted.T @ flat + prior
    gain = power @ np.linalg.solve(information, weighted.T)
    # Errors of states can cancel at the start but not later.
    variances = matrices.c**2 @ np.einsum("ij,ji->i", power, np.linalg.solve(information, power.T)) / noise
    by_input = driven - np.tensordot(gain, through.reshape(rows * outputs, rows, inputs), 1)
    by_output = gain.reshape(states, rows, outputs)
    blank = np.zeros((states, rows, outputs)), np.zeros((states, rows, 1))
    features = np.concatenate([by_output, blank[0], by_input, blank[1]], axis=2)
    return PastMap(features.reshape(states, -1), -gain @ np.tile(matrices.shift, rows), rows, float(variances.max()))

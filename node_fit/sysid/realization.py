"""Linear systems of many states, identified from long, evenly sampled records that inputs drive.

The impulse responses follow from least squares, Ho and Kalman's realisation of them gives modes, and the free
simulation is linear in all else. Then all parameters are fitted together. A mode is a filter of one signal, so that a
simulation takes no products of matrices. It is NumPy in float64.

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

# Numbers of states that are tried.
ORDERS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 34, 40, 48, 56, 64, 72, 80, 90, 100, 110, 120)
COARSE_ORDERS = (4, 10, 20, 40, 80, 120)
# Rows of the impulse response: at most, at least, as a share of the longest record, and of the rows for each input.
MAX_TAPS, MIN_TAPS, TAPS_OF_RECORD, TAPS_OF_ROWS = 400, 100, 1 / 8, 1 / 20
# Weights of the squared response that are tried, as shares of the inputs' power.
RESPONSE_RIDGES = tuple(10.0 ** np.arange(-8, 0, 0.5))
# Past rows of a regression on outputs, too: at most, and for so many rows of the record one column of the regression.
# Of 60 lightly damped modes with 2 % noise, 60 rows left 12 times the noise, and 150 left 1.06 times.
MAX_LAGS, ROWS_OF_COLUMN = 150, 40
# The size of a response, in standard deviations, that grows.
GROWN = 1e3
# Singular values below this share of the largest are rounding.
SMALLEST_SINGULAR = 1e-9
# Decay of a mode [1/row]: at least, so that it settles within the record, and at most.
SLOWEST_RATE, FASTEST_RATE = 1e-5, 6.0
# A pole on the negative axis has no real logarithm; a pair of this angle is next to it.
NEXT_TO_NEGATIVE = 0.98 * np.pi
# Rows that are filtered at a time, so that memory does not grow with the record.
FILTERED_ROWS = 1 << 14
# Weight of squared parameters in least squares, as a share of the mean square of their columns.
MODE_RIDGE = 1e-10
# Outputs have a variance of about one each; above this squared error, a few modes are not yet found.
NOT_YET_FOUND = 0.1
# The same of the states that the first rows tell.
START_RIDGE = 1e-6
# Records up to so many have a start of their own in a fit; more of them begin at rest, and settle.
MAX_OWN_STARTS = 4
# Rows for each column of a table that are enough to compare systems.
ROWS_COMPARED = 20
# An order is worse than another by more than chance at this risk.
ORDER_RISK = 0.05
# Damping, steps, and the relative fall of the error at which the search over all parameters ends.
MODAL_DAMPING, MODAL_STEPS, MODAL_STALLED = Damping(increase=4.0, maximum=1e10), 12, 1e-3
# Steps of it before kinds of inputs are compared, of systems of so many states at the most.
KIND_STEPS, MAX_REFINED = 4, 30
# Up to so many states, all orders are compared after that search; of more, from the first whose squared error is as
# small as the best but for this factor, so many more at the most.
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

    def settled(self, rows: int) -> "Signals":
        """The record, of which so many rows at the beginning do not count: a simulation from rest settles in them."""
        return self._replace(counts=self.counts & (np.arange(len(self.us)) >= rows))


@dataclass(frozen=True)
class ModalSystem:
    """Modes `x' = s x + b u`, and outputs `y = Re(c x) + direct u + shift`, with a row as the unit of time.

    A mode with an imaginary part stands for itself and its conjugate, that is two states.

    - `rates`: `s` of each mode, whose real parts are negative. `b`, `c`, `direct`, `shift`: as above.
    - `kind`: how inputs go on between rows.
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
        """Which modes are one of a conjugate pair."""
        return np.imag(self.rates) > 0

    @property
    def has_direct(self) -> bool:
        return bool(self.direct.any())

    def simulate(self, us: Float[np.ndarray, "row input"]) -> Float[np.ndarray, "row output"]:
        """Outputs from rest."""
        drives = (us @ self.b.T)[:, :, None]
        parts = [np.real(states[:, :, 0] @ self.c.T) for states in filter_drives(self.rates, drives, self.kind)]
        return np.concatenate(parts) + us @ self.direct.T + self.shift


def count_taps(records: Sequence[Signals]) -> int | None:
    """Rows of an impulse response that the records determine; None if they are short for their signals."""
    inputs, rows = records[0].us.shape[1], sum(int(record.counts.sum()) for record in records)
    longest = max(len(record.us) for record in records)
    taps = int(min(MAX_TAPS, TAPS_OF_RECORD * longest, TAPS_OF_ROWS * rows / max(inputs, 1)))
    return taps if inputs and taps >= MIN_TAPS else None


def estimate_response(records: Sequence[Signals], taps: int) -> Float[np.ndarray, "tap output input"]:
    """The impulse responses by least squares on the inputs of past rows."""
    inputs, outputs = records[0].us.shape[1], records[0].ys.shape[1]
    width = taps * inputs + 1
    gram, cross, power, rows = np.zeros((width, width)), np.zeros((width, outputs)), 0.0, 0
    for record in records:
        counted = np.flatnonzero(record.settled(taps - 1).counts)
        for part in np.array_split(counted, -(-len(counted) // FILTERED_ROWS) or 1):
            lagged = record.us[part[:, None] - np.arange(taps)].reshape(len(part), -1)
            table, ys = np.concatenate([lagged, np.ones((len(part), 1))], axis=1), record.ys[part]
            gram, cross, power, rows = (
                gram + table.T @ table,
                cross + table.T @ ys,
                power + (ys**2).sum(),
                rows + len(ys),
            )
    found = solve_validated(gram, cross, power, rows)
    return found[:-1].reshape(taps, inputs, outputs).transpose(0, 2, 1)


def solve_validated(gram: np.ndarray, cross: np.ndarray, power: float, rows: int) -> np.ndarray:
    """Coefficients of least squares, with a ridge of the least predicted error.

    The ridge is that of generalised cross-validation (Golub, Heath and Wahba, Technometrics 21, 1979).

    **Arguments:** `gram`, `cross`: products of the columns, and of these with the outputs. `power`, `rows`: the sum of
    the outputs' squares, and the number of rows.
    """
    sizes, vectors = np.linalg.eigh(gram)
    sizes, seen, mean = np.maximum(sizes, 0), vectors.T @ cross, np.trace(gram) / len(gram)

    def predicted(ridge: float) -> float:
        kept = 1 / (sizes + ridge)
        left = power - ((2 * kept - sizes * kept**2)[:, None] * seen**2).sum()
        return left / (1 - min((sizes * kept).sum() / rows, 0.99)) ** 2

    ridge = min((share * mean for share in RESPONSE_RIDGES), key=predicted)
    return vectors @ (seen / (sizes + ridge)[:, None])


def extend_response(records: Sequence[Signals], taps: int) -> Float[np.ndarray, "tap output input"] | None:
    """The impulse responses of a regression on past rows of outputs and inputs (VARX), which has a longer memory than
    `taps` inputs; None if it grows."""
    inputs, outputs = records[0].us.shape[1], records[0].ys.shape[1]
    counted = sum(int(record.counts.sum()) for record in records)
    lags = min(MAX_LAGS, taps, counted // (ROWS_OF_COLUMN * (inputs + outputs)))
    if not lags:
        return None
    width = lags * (inputs + outputs) + inputs + 1
    gram, cross, power, rows = np.zeros((width, width)), np.zeros((width, outputs)), 0.0, 0
    for record in records:
        known = np.lib.stride_tricks.sliding_window_view(record.counts, lags + 1).all(axis=1)
        counted = np.flatnonzero(known) + lags
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
    found = solve_validated(gram, cross, power, rows)
    own = found[: lags * outputs].reshape(lags, outputs, outputs).transpose(0, 2, 1)
    driven = found[lags * outputs : -1 - inputs].reshape(lags, inputs, outputs).transpose(0, 2, 1)
    response = np.zeros((max(taps, MAX_TAPS), outputs, inputs))
    response[0] = found[-1 - inputs : -1].T
    for tap in range(1, len(response)):
        back = min(lags, tap)
        response[tap] = np.einsum("koi,kij->oj", own[:back], response[tap - 1 :: -1][:back])
        response[tap] += driven[tap - 1] if tap <= lags else 0
        if not np.abs(response[tap]).max() < GROWN:
            return None
    return response


class Modes(NamedTuple):
    """The modes of a realisation: their rates, and the outputs of each."""

    rates: Complex[np.ndarray, " mode"]
    c: Complex[np.ndarray, "output mode"]


def realize(response: Float[np.ndarray, "tap output input"], orders: Sequence[int]) -> Iterator[Modes]:
    """The modes of realisations of several orders, as far as the response has so many: none grows.

    The shift of the rows of the observability matrix, which the block Hankel matrix of the response gives, is the
    transition matrix.
    """
    outputs, half = response.shape[1], len(response) // 2 - 1
    blocks = response[1 + np.arange(half)[:, None] + np.arange(half)[None, :]]
    hankel = blocks.transpose(0, 2, 1, 3).reshape(half * outputs, -1)
    left, sizes, _ = np.linalg.svd(hankel, full_matrices=False)
    for order in orders:
        if order > min(len(sizes), (half - 1) * outputs) or sizes[order - 1] < SMALLEST_SINGULAR * sizes[0]:
            return
        observability = left[:, :order] * np.sqrt(sizes[:order])
        shift = np.linalg.lstsq(observability[:-outputs], observability[outputs:], rcond=None)[0]
        values, vectors = np.linalg.eig(shift)
        values, seen = values.astype(complex), observability[:outputs] @ vectors
        upper = np.imag(values) >= 0
        yield Modes(stable_rates(values[upper]), seen[:, upper].astype(complex))


def stable_rates(values: Complex[np.ndarray, " mode"]) -> Complex[np.ndarray, " mode"]:
    """The rates [1/row] of modes that are multiplied by these values from row to row, drawn to where they decay."""
    angle = np.where((np.imag(values) == 0) & (np.real(values) < 0), NEXT_TO_NEGATIVE, np.angle(values))
    decay = np.clip(-np.log(np.maximum(np.abs(values), 1e-300)), SLOWEST_RATE, FASTEST_RATE)
    return -decay + 1j * angle


class Weights(NamedTuple):
    """Weights of an input at both ends of a row in the state at its end, and their derivatives by the rate."""

    begin: Complex[np.ndarray, " mode"]
    end: Complex[np.ndarray, " mode"]
    begin_slope: Complex[np.ndarray, " mode"]
    end_slope: Complex[np.ndarray, " mode"]


# Terms of a power series, and the rates up to which it replaces the closed form, which cancels there.
SERIES_TERMS, SMALL_RATE = 16, 0.5


def input_weights(rates: Complex[np.ndarray, " mode"], kind: Kind) -> Weights:
    """Exact integrals of `exp(s (1 - t)) u(t)` over a row, of an input that is held or linear.

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
    """What each mode makes of each of its drives, from rest; some rows after others."""
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
    """What each input alone makes of each mode, from rest; some rows after others."""
    yield from filter_drives(rates, np.broadcast_to(us[:, None], (len(us), len(rates), us.shape[1])), kind)


def stride_for(columns: int, records: Sequence[Signals]) -> int:
    """Every how many rows are enough for least squares of so many columns."""
    rows = sum(int(record.counts.sum()) for record in records)
    return max(rows // (ROWS_COMPARED * columns), 1)


def fit_inputs(
    modes: Modes, records: Sequence[Signals], kinds: Sequence[tuple[Kind, bool]], *, sample: bool = False
) -> list[ModalSystem]:
    """The systems of these modes whose free simulation has the least squares of errors: it is linear in all the rest.

    **Arguments:** `kinds`: how inputs go on between rows, and whether outputs have a direct part of them; each makes a
    system. `sample`: whether rows are left out where there are many for each parameter.
    """
    outputs, columns = records[0].ys.shape[1], 2 * len(modes.rates) * records[0].us.shape[1]
    stride = stride_for(columns, records) if sample else 1
    different: list[Kind] = [*dict.fromkeys(kind for kind, _ in kinds)]
    grams = {kind: sum_products(modes.rates, records, kind, stride) for kind in different}
    return [solve_inputs(modes, grams[kind], kind, outputs, direct=direct) for kind, direct in kinds]


class Products(NamedTuple):
    """Sums over rows: of the products of real and imaginary parts of filtered inputs, inputs and 1 (`gram`), and of
    these with the outputs (`cross`)."""

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
        # Re(c b f) in the real and imaginary parts of b, and of the filtered input f.
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
    found = scale * np.linalg.solve(scaled + MODE_RIDGE * np.eye(len(scaled)), scale * np.asarray(pulled))
    b = found[:filters].astype(complex)
    b[paired] += 1j * found[filters:columns]
    through = found[columns : columns + free].reshape(outputs, inputs) if direct else np.zeros((outputs, inputs))
    return ModalSystem(modes.rates, b.reshape(count, inputs), modes.c, through, found[columns + free :], kind)


class ModalLayout(NamedTuple):
    """Where the parameters of a system are in a vector: `decays` and `swings` of the rates, `b` and `c` as real and
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
    """Half the gradient of the mean squared error, and half its Gauss-Newton curvature.

    All derivatives are combinations of the filtered inputs, of the states' derivatives by their rates, of the inputs
    and of 1, the same for all outputs: their products are summed once.
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
        change, own = combine_derivatives(system, output)
        slope[own] += change.T @ cross[:, output]
        curvature[np.ix_(own, own)] += change.T @ gram @ change
    values = count * len(system.c)
    return slope / values, curvature / values


def expand_parts(system: ModalSystem, record: Signals) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
    """Of some rows after others: the rows, the filtered inputs, the states' derivatives by their rates, the errors."""
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
    """The derivatives of an output by the parameters as combinations of the columns of `expand_error`, shape `(column,
    parameter)`, and the places of these parameters in the vector."""
    modes, inputs = system.b.shape
    outputs, pairs, filters = len(system.c), system.swings, modes * inputs
    c, rate, ends = system.c[output], system.rates, [0, *ModalLayout(system).ends]
    wide, several = np.repeat(c, inputs), np.repeat(pairs, inputs)
    of_mode = np.repeat(np.eye(modes), inputs, axis=0)
    b = system.b.ravel()[:, None] * of_mode
    still, none = np.zeros((filters, modes)), np.zeros((modes, filters))
    # Of each block of parameters, what it takes of filtered inputs and of slopes, both by real and imaginary parts.
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
    own: list[np.ndarray] = [
        np.arange(ends[4]),
        ends[4] + np.arange(modes) * outputs + output,
        ends[5] + np.arange(int(pairs.sum())) * outputs + output,
        ends[6] + output * inputs + np.arange(inputs * system.has_direct),
        np.array([ends[7] + output]),
    ]
    return change, np.concatenate(own)


def simulation_error(system: ModalSystem, records: Sequence[Signals]) -> float:
    """Mean squared error of the free simulation from rest."""
    off = [((system.simulate(record.us) - record.ys) ** 2)[record.counts] for record in records]
    return float(np.concatenate(off).mean())


def row_errors(system: ModalSystem, records: Sequence[Signals], read: int) -> Float[np.ndarray, " row"]:
    """The squared errors of each row that counts, over the outputs, from states that the first rows tell.

    **Arguments:** `read`: so many rows at the beginning tell the states there, and do not count.
    """
    errors: list[np.ndarray] = []
    for record in records:
        off = record.ys - system.simulate(record.us)
        rows = np.arange(len(off))
        table = free_responses(system, rows)
        known = record.counts & (rows < read)
        flat = table[known].reshape(-1, table.shape[2])
        normal = flat.T @ flat
        ridge = START_RIDGE * np.trace(normal) / len(normal) + 1e-300
        normal, seen = normal + ridge * np.eye(len(normal)), flat.T @ off[known].ravel()
        start = cast(np.ndarray, np.linalg.solve(normal, seen))
        later = record.counts & (rows >= read)
        left: np.ndarray = off[later] - table[later] @ start
        errors.append(np.sum(left**2, axis=1))
    return np.concatenate(errors)


def free_responses(system: ModalSystem, rows: np.ndarray) -> Float[np.ndarray, "row output state"]:
    """What a unit of each state at the first row makes of the outputs later on; of pairs, of both parts."""
    decays = np.exp(rows[:, None] * system.rates)
    seen = decays[:, None, :] * system.c
    return np.concatenate([np.real(seen), -np.imag(seen)[:, :, system.swings]], axis=2)


def refine(system: ModalSystem, records: Sequence[Signals], steps: int = MODAL_STEPS) -> ModalSystem:
    """The system near this one of least squared errors in the free simulation, by Levenberg and Marquardt's method."""
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
    """A system, and the squared error of each row that was held out."""

    system: ModalSystem
    errors: Float[np.ndarray, " row"]

    @property
    def mean(self) -> float:
        return float(self.errors.mean())


def smallest_as_good(tried: Sequence[ScoredSystem]) -> int:
    """The first of some systems that the best is not better than by more than chance on the same rows."""
    best = min(range(len(tried)), key=lambda number: tried[number].mean)
    counted = np.ones((1, len(tried[best].errors)), bool)
    for number in range(best):
        if compare_squares(tried[number].errors[None], tried[best].errors[None], counted) > ORDER_RISK:
            return number
    return best


# How inputs go on between rows, and whether outputs have a direct part of them, the simpler first.
INPUT_KINDS: tuple[tuple[Kind, bool], ...] = (("hold", False), ("linear", False), ("hold", True))


def identify_modes(
    fitted: Sequence[Signals],
    held_out: Sequence[Signals],
    *,
    kinds: Sequence[tuple[Kind, bool]] = INPUT_KINDS,
    watch: Callable[[str], None] = lambda said: None,
) -> ScoredSystem | None:
    """The linear system of the fewest states that none of more states is better than, by more than chance, on rows that
    are held out.

    **Arguments:**

    - `fitted`, `held_out`: records; those held out choose the number of states and how inputs go on between rows.
    - `kinds`: pairs of an interpolation and whether there is a direct part, the simpler first.
    - `watch`: is told of each order.

    **Returns:** the system, and its errors on the rows held out after its modes have settled; None where records are
    short for their signals, or nothing responds to the inputs.
    """
    taps = count_taps(fitted)
    if taps is None:
        return None
    begun = with_starts(fitted) if len(fitted) <= MAX_OWN_STARTS else [record.settled(taps) for record in fitted]
    read = min(taps, min(len(record.us) for record in held_out) // 4)

    def tried(system: ModalSystem) -> ScoredSystem:
        return ScoredSystem(system, row_errors(of_inputs(system, fitted), held_out, read))

    def scan(response: np.ndarray | None, orders: Sequence[int], enough: float = 0.0) -> Iterator[ScoredSystem]:
        reached = 0
        for modes in realize(response, orders) if response is not None else ():
            here = tried(fit_inputs(modes, begun, kinds[-1:], sample=True)[0])
            watch(f"a linear system of {here.system.states} states (RMSE {here.mean**0.5:.2g})")
            yield here
            reached += here.mean <= enough
            if reached > MORE_ORDERS:
                return

    responses = extend_response(fitted, taps), estimate_response(fitted, taps)
    coarse = [until_idle(scan(response, COARSE_ORDERS)) for response in responses]
    if not any(coarse):
        return None
    best = [min((each.mean for each in tried_orders), default=np.inf) for tried_orders in coarse]
    which, enough = int(best[1] < best[0]), NEAR_BEST * min(best)
    below = max(
        (order for order, each in zip(COARSE_ORDERS, coarse[which], strict=False) if each.mean > enough), default=0
    )
    between = [order for order in ORDERS if order > below or below <= MAX_SEARCHED]
    scanned = best_of_each([*coarse[which], *scan(responses[which], between, enough)])
    near = next(number for number, each in enumerate(scanned) if each.mean <= enough)
    system = scanned[near].system
    several = fit_inputs(Modes(system.rates, system.c), begun, kinds)
    steps = KIND_STEPS if system.states <= MAX_REFINED else 0
    kind = kinds[smallest_as_good([tried(refine(each, begun, steps)) for each in several])]
    found = search_orders(scanned, near, lambda each: tried(refine(fit_inputs(each, begun, [kind])[0], begun)), watch)
    return found._replace(system=of_inputs(found.system, fitted))


def until_idle(scanned: Iterator[ScoredSystem]) -> list[ScoredSystem]:
    """Systems of more and more states, until they get better no more: one that is no better ends it where the best is
    good, and two in a row where it is not."""
    kept: list[ScoredSystem] = []
    idle, best = 0, np.inf
    for each in scanned:
        kept.append(each)
        idle = idle + 1 if NEAR_BEST * each.mean > best else 0
        best = min(best, each.mean)
        if idle > (best > NOT_YET_FOUND):
            break
    return kept


def search_orders(
    scanned: Sequence[ScoredSystem], near: int, fit_all: Callable[[Modes], ScoredSystem], watch: Callable[[str], None]
) -> ScoredSystem:
    """The smallest system, all of whose parameters are fitted together, that no other is better than by more than
    chance.

    **Arguments:** `scanned`: systems by their numbers of states, of which the one with the number `near` is about as
    good as the best. `fit_all`: fits all parameters, from modes.
    """
    is_small = scanned[near].system.states <= MAX_SEARCHED
    searched: list[ScoredSystem] = []
    for each in scanned[0 if is_small else near : near + MORE_ORDERS + 1]:
        searched.append(fit_all(Modes(each.system.rates, each.system.c)))
        watch(
            f"a linear system of {each.system.states} states, fitted as a whole (RMSE {searched[-1].mean ** 0.5:.2g})"
        )
        if not is_small and smallest_as_good(searched) < len(searched) - 1:
            break
    return searched[smallest_as_good(searched)]


def with_starts(records: Sequence[Signals]) -> list[Signals]:
    """The records with an input more for each, which is 1 in its first row alone: it makes the states there."""
    begun: list[Signals] = []
    for number, record in enumerate(records):
        impulses = np.zeros((len(record.us), len(records)))
        impulses[0, number] = 1
        begun.append(record._replace(us=np.concatenate([record.us, impulses], axis=1)).settled(1))
    return begun


def of_inputs(system: ModalSystem, records: Sequence[Signals]) -> ModalSystem:
    """The system without the inputs that `with_starts` has added."""
    inputs = records[0].us.shape[1]
    return replace(system, b=system.b[:, :inputs], direct=system.direct[:, :inputs])


def best_of_each(tried: Sequence[ScoredSystem]) -> list[ScoredSystem]:
    """The best of those with the same number of states, in the order of this number."""
    counts = sorted({each.system.states for each in tried})
    return [
        min((each for each in tried if each.system.states == count), key=lambda each: each.mean) for count in counts
    ]


class StateMatrices(NamedTuple):
    """`z' = a z + b u`, `y = c z + direct u + shift`, with a row as the unit of time and states of order one.

    - `covariance`: of the states in the records that the system was fitted to.
    """

    a: Float[np.ndarray, "state state"]
    b: Float[np.ndarray, "state input"]
    c: Float[np.ndarray, "output state"]
    direct: Float[np.ndarray, "output input"]
    shift: Float[np.ndarray, " output"]
    covariance: Float[np.ndarray, "state state"]


def as_matrices(system: ModalSystem, records: Sequence[Signals]) -> StateMatrices:
    """The system with real states: one of each mode, or the real and the imaginary part of a pair's."""
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
    """Which real states are imaginary parts."""
    found = np.zeros(len(swings) + int(swings.sum()), bool)
    found[(np.cumsum(1 + swings) - 1)[swings]] = True
    return found


def interleave(
    values: Complex[np.ndarray, "row mode"], swings: Bool[np.ndarray, " mode"]
) -> Float[np.ndarray, "row state"]:
    """The real part of each column, and after it the imaginary one of those that swing."""
    wide = np.repeat(values, 1 + swings, axis=1)
    return np.where(is_imaginary(swings), np.imag(wide), np.real(wide))


class PastMap(NamedTuple):
    """An affine map from past rows of outputs and inputs to the states at the last of them.

    - `matrix`: its columns are of each row its outputs, whether they are known, its inputs, and its time.
    - `rows`: number of rows that it reads.
    - `share`: the largest variance of an output's error soon after the start that it leaves, over the noise.
    """

    matrix: Float[np.ndarray, "state feature"]
    constant: Float[np.ndarray, " state"]
    rows: int
    share: float


def map_past(matrices: StateMatrices, noise: Float[np.ndarray, " output"], rows: int, kind: Kind) -> PastMap:
    """The affine map from some rows of outputs and inputs to the states at the last of them.

    Its mean square error is least where the first states have the covariance of the record, and outputs have noise.

    **Arguments:** `noise`: the variance of each output's. `rows`: number of rows that are read.
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
    # Errors of states that cancel at the start do not later on.
    left = matrices.c**2 @ np.einsum("ij,ji->i", power, np.linalg.solve(information, power.T)) / noise
    by_input = driven - np.tensordot(gain, through.reshape(rows * outputs, rows, inputs), 1)
    by_output = gain.reshape(states, rows, outputs)
    blank = np.zeros((states, rows, outputs)), np.zeros((states, rows, 1))
    features = np.concatenate([by_output, blank[0], by_input, blank[1]], axis=2)
    return PastMap(features.reshape(states, -1), -gain @ np.tile(matrices.shift, rows), rows, float(left.max()))

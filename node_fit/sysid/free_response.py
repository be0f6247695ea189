"""Linear systems of many states, identified from even records without inputs: ring-downs, tides, beats, decays.

A record without inputs is a free response: a sum of modes, as an impulse response is. The shift of the Hankel matrix of
its rows gives the modes, and its start is fitted as the response to an impulse before the first counted row. What
follows is the same as for driven records (`sysid/realization.py`).

Juang and Pappa, J. Guidance 8, 1985; Roy and Kailath, IEEE Trans. ASSP 37, 1989 (ESPRIT).
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from ..evaluation.comparison import compare_squares
from .realization import (
    MAX_TAPS,
    MORE_ORDERS,
    ORDERS,
    Kind,
    ModalSystem,
    Modes,
    ScoredSystem,
    Signals,
    StateMatrices,
    as_matrices,
    fit_inputs,
    of_inputs,
    realize_windows,
    refine,
    row_errors,
    simulation_error,
    with_starts,
)

# Significance level for a system being worse than the best of many, which is so by luck as well.
LUCK = 0.01
# Minimum number of rows of the longest record.
LEAST_ROWS = 60
# Maximum number of values of a window, and of windows, which bound the time of long records of many outputs.
WINDOW_VALUES, FREE_WINDOWS = 600, 4_000
# Maximum number of states to try, and of records, each of which has a start of its own.
MOST_FREE_STATES, MOST_FREE_RECORDS = 40, 12
# Least share of known rows in a window; divisors of its length to try, until there are as many windows as its rows.
LEAST_KNOWN, SHORTER = 0.8, (1, 2, 4)
# Modes are driven by impulses, which are held for a row; squared error below which only rounding errors are left.
HELD_IMPULSE: tuple[Kind, bool] = ("hold", False)
LEAST_ERROR = 1e-14
# Squared error on held-out rows, relative to the spread, above which a record is no free response.
MOST_UNEXPLAINED = 0.1


def count_window(records: Sequence[Signals]) -> int | None:
    """Returns the number of rows of the windows in which modes are sought; None if records are short or too many."""
    longest, outputs = max(len(record.us) for record in records), records[0].ys.shape[1]
    if longest < LEAST_ROWS or len(records) > MOST_FREE_RECORDS:
        return None
    return min(MAX_TAPS, longest // 2, WINDOW_VALUES // outputs)


def collect_windows(records: Sequence[Signals], rows: int) -> tuple[Float[np.ndarray, "value value"], int]:
    """Returns the inner products of windows of this number of rows, and the number of these windows.

    Windows may have a few gaps, which are bridged by straight lines; the fit that follows counts measured rows alone.
    """
    outputs = records[0].ys.shape[1]
    gram, count = np.zeros((rows * outputs, rows * outputs)), 0
    stride = max(sum(len(record.ys) for record in records) // FREE_WINDOWS, 1)
    for record in records:
        known = np.flatnonzero(record.counts)
        if len(record.ys) < rows or not len(known):
            continue
        bridged = np.zeros_like(record.ys)
        for output in range(outputs):
            bridged[:, output] = np.interp(np.arange(len(bridged)), known, record.ys[known, output])
        shares = np.lib.stride_tricks.sliding_window_view(record.counts, rows).mean(axis=1)
        begins = np.flatnonzero(shares >= LEAST_KNOWN)[::stride]
        windows = np.lib.stride_tricks.sliding_window_view(bridged, rows, axis=0)[begins]
        table = windows.transpose(0, 2, 1).reshape(len(begins), rows * outputs)
        gram += table.T @ table
        count += len(begins)
    return gram, count


def identify_free_modes(
    fitted: Sequence[Signals],
    held_out: Sequence[Signals],
    *,
    watch: Callable[[str], None] = lambda said: None,
) -> ScoredSystem | None:
    """Identifies a linear system that no other significantly outperforms on held-out rows.

    A mode that has decayed before the held-out rows does not show in them. Of the systems that these do not tell apart,
    Schwarz's criterion of the fitted rows therefore chooses.

    **Arguments:**

    - `fitted`, `held_out`: records without inputs; both select the number of states.
    - `watch`: receives a message for each order.

    **Returns:** the system, whose inputs are impulses that start the records (`with_starts`), and its errors on the
    held-out rows after those from which a start is fitted; None if records are short or have too many gaps, or if no
    free response explains them.
    """
    most = count_window(fitted)
    if most is None:
        return None
    begun, outputs = with_starts(fitted), fitted[0].ys.shape[1]
    read = min(most, min(len(record.us) for record in held_out) // 4)
    collected = ((most // share, *collect_windows(fitted, most // share)) for share in SHORTER)
    enough = (gram for rows, gram, count in collected if count >= min(rows, FREE_WINDOWS // 2))
    if (gram := next(enough, None)) is None:
        return None

    def score(system: ModalSystem) -> ScoredSystem:
        return ScoredSystem(system, row_errors(of_inputs(system, fitted), held_out, read))

    orders = [order for order in ORDERS if order <= MOST_FREE_STATES]
    scanned: list[ScoredSystem] = []
    for modes in realize_windows(gram, outputs, orders):
        scanned.append(score(fit_inputs(modes, begun, [HELD_IMPULSE], sample=True)[0]))
        watch(f"a linear system of {scanned[-1].system.states} states (RMSE {scanned[-1].mean ** 0.5:.2g})")
    if not scanned or min(entry.mean for entry in scanned) > MOST_UNEXPLAINED * outputs:
        return None
    criteria = [criterion_of(entry.system, begun) for entry in scanned]
    last = max(int(np.argmin([entry.mean for entry in scanned])), int(np.argmin(criteria))) + 1
    refined = [
        score(refine(fit_inputs(Modes(entry.system.rates, entry.system.c), begun, [HELD_IMPULSE])[0], begun))
        for entry in scanned[: last + MORE_ORDERS]
    ]
    return min(as_good_as_best(refined), key=lambda entry: criterion_of(entry.system, begun))


def as_good_as_best(tried: Sequence[ScoredSystem]) -> list[ScoredSystem]:
    """Returns the systems that are not significantly worse than the best on held-out rows."""
    best = min(tried, key=lambda entry: entry.mean)
    counted = np.ones((1, len(best.errors)), bool)
    return [
        entry
        for entry in tried
        if entry is best or compare_squares(entry.errors[None], best.errors[None], counted) > LUCK
    ]


def criterion_of(system: ModalSystem, begun: Sequence[Signals]) -> float:
    """Computes Schwarz's criterion of fitted records, per value (G. Schwarz, Ann. Stat. 6, 1978); lower is better."""
    outputs = len(system.c)
    values = sum(int(record.counts.sum()) for record in begun) * outputs
    # A mode can be scaled in its start or in its outputs.
    parameters = system.states * (len(begun) + outputs) + outputs
    return float(np.log(max(simulation_error(system, begun), LEAST_ERROR)) + parameters * np.log(values) / values)


def as_free_matrices(system: ModalSystem, records: Sequence[Signals]) -> StateMatrices:
    """Returns the matrices of a system that `identify_free_modes` found, without the impulses that start records."""
    matrices = as_matrices(system, with_starts(records))
    return matrices._replace(b=matrices.b[:, :0], direct=matrices.direct[:, :0])

"""Finds columns that look like inputs: they are held at levels, or drive other columns and are driven by none.

A column drives another if its past values improve the prediction of the next value from the past of all other columns
(Granger, Econometrica 37(3), 1969). Predictions are linear, so few rows tell, and a column that drives others only in
products with them may not be found.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ..levels import level_out
from .guess import MOST_BYTES_LOOKED_AT
from .layout import Roles
from .options import AS_RECOGNISED, ReadingOptions
from .reading import read_file
from .table import UNKNOWN_FIX, as_numbers_of_column, is_typed, list_names, read_names, split_limits

# Minimum number of rows that are examined, and maximum number of rows and columns of which predictions are compared.
FEWEST_COMPARED, MOST_ROWS_COMPARED, MOST_DRIVING = 30, 10_000, 20
# Minimum share of neighbouring rows that both have a value of a column.
MANY_PAIRS = 0.5
# An input has at most this many levels, and changes in less than this fraction of the rows.
MOST_LEVELS, STAYS = 8, 0.5
# A column of three or more levels is surely an input if it stays for this many rows (median) and this fraction of its
# changes, two at least, pass over a level: a coarse sensor goes from one level to the next, and counts rarely stay.
LEAST_STAY, PASSES_OVER, FEWEST_LEAPS = 3, 0.2, 2
# A column of other values that stays as long is surely an input if it jumps at least this often, this share of its
# values is new, and neither its last value nor the other columns foretell the next one, at this level of significance.
# A sensor that is read less often stays, too, but its values follow each other and the other columns.
FEWEST_JUMPS, NEW_VALUES, FORETELLS = 8, 0.5, 0.01
# Numbers of past values of a column itself, of which the largest is taken that leaves this many rows for each, and the
# number of past values of the others.
OWN_LAGS, ROWS_PER_LAG, OTHER_LAGS = (20, 10, 5, 3), 12, 3
# A column drives another if it explains this share of what is unexplained, at this level of significance; it is driven
# if the others explain more than this share, or are significant; and it is new if all leave more than the last share of
# its variance unexplained.
DRIVES, DRIVES_SURELY, DRIVEN, DRIVEN_SURELY, NEW = 0.1, 1e-6, 0.03, 1e-3, 0.7
# A column wanders if errors of predictions are larger by this factor for the second of these numbers of rows ahead than
# for the first, and exceed these shares of its variance for the first and the last, and if it changes in at least this
# fraction of the rows.
AHEAD, LASTS, LEFT_NEAR, LEFT_FAR, CHANGES = (1, 5, 20), 2.5, 1e-3, 0.1, 0.4
# Relative singular value below which past values count as dependent on others; and unexplained share that is rounding.
DEPENDENT, ROUNDED_OFF = 1e-9, 1e-18
# Minimum number of degrees of freedom of a comparison.
FEWEST_FREE = 5


class LikelyInput(NamedTuple):
    """Why a column looks like an input, as the end of a sentence; if `is_certain`, it can hardly be a state."""

    reason: str
    is_certain: bool = False


def find_likely_inputs(
    path: Path,
    time: str,
    trajectory: str | None,
    states: Sequence[str],
    options: ReadingOptions = AS_RECOGNISED,
) -> dict[str, LikelyInput]:
    """Returns the columns of a file that look like inputs; none for few rows, or if not all columns are numbers."""
    if path.stat().st_size > MOST_BYTES_LOOKED_AT:
        return {}
    table = read_file(path, Roles(time=time, states=tuple(states), trajectory=trajectory), options=options)
    # Limits of detection are cells of text in a column of numbers.
    table = split_limits(table, [name for name in states if not is_typed(table.columns[name])]).numbers
    columns = [as_numbers_of_column(table, name, UNKNOWN_FIX, may_miss=True) for name in states]
    values = np.stack(columns, axis=1)
    follows = np.ones(len(values), bool)
    if trajectory is not None:
        (records,) = read_names([table], trajectory, "trajectory")
        follows[1:] = np.asarray(records[1:] == records[:-1])
    follows[0] = False
    known = np.isfinite(values)
    # A sensor that is read less often than the others is no input, and must not hide those that are.
    pairs = known[1:] & known[:-1] & follows[1:, None]
    dense = pairs.sum(axis=0) >= MANY_PAIRS * follows.sum()
    names = [name for name, is_dense in zip(states, dense, strict=True) if is_dense]
    likely = find_inputs_in_rows(values[:, dense], follows, names) if names else {}
    return likely if len(likely) < len(states) else {}


def find_inputs_in_rows(
    values: Float[np.ndarray, "row column"], follows: Bool[np.ndarray, " row"], names: Sequence[str]
) -> dict[str, LikelyInput]:
    """Like `find_likely_inputs`, for the values of rows, NaN where they are missing.

    **Arguments:** `follows`: whether a row continues the trajectory of the row before it.
    """
    complete = np.asarray(np.isfinite(values).all(axis=1))
    pairs = np.flatnonzero(complete[1:] & complete[:-1] & follows[1:])
    if len(pairs) < FEWEST_COMPARED:
        return {}
    exact, levelled = (find_held_columns(rows[pairs], rows[pairs + 1] - rows[pairs], names)
                       for rows in (values, level_out_columns(values, pairs)))  # fmt: skip
    held = exact | {name: found for name, found in levelled.items() if found.is_certain}
    found = held | find_driving_columns(values, follows & complete, names, held)
    likely = {name: found[name] for name in names if name in found}
    certain = {name: reason for name, reason in likely.items() if reason.is_certain}
    return likely if len(likely) < len(names) else certain if len(certain) < len(names) else {}


def level_out_columns(
    values: Float[np.ndarray, "row column"], pairs: Int[np.ndarray, " pair"]
) -> Float[np.ndarray, "row column"]:
    """Replaces columns that jump between levels, but for white noise, by their levels; leaves others unchanged.

    A column that jumps where another such column does may only follow it at once, and is left as it is.

    **Arguments:** `pairs`: rows that another row of the same record follows.
    """
    levels = np.stack([level_out(column, pairs) for column in values.T], axis=1)
    is_levelled = (levels != values).any(axis=0)
    moves = levels[pairs + 1] != levels[pairs]
    stays = np.asarray(moves.mean(axis=0) < STAYS)
    for index in np.flatnonzero(stays & is_levelled):
        others = moves[np.ix_(moves[:, index], stays & (np.arange(len(stays)) != index))]
        if (others.mean(axis=0) > STAYS).any():
            levels[:, index] = values[:, index]
    return levels


def find_held_columns(
    before: Float[np.ndarray, "row column"], steps: Float[np.ndarray, "row column"], names: Sequence[str]
) -> dict[str, LikelyInput]:
    """Returns the columns that stay at a few levels, or jump between values, from rows and the steps to the next."""
    likely: dict[str, LikelyInput] = {}
    for index, name in enumerate(names):
        levels, moves = len(np.unique(before[:, index])), float((steps[:, index] != 0).mean())
        if 2 <= levels <= MOST_LEVELS and 0 < moves < STAYS:
            leaps = levels == 2 or leaps_between_levels(before[:, index], steps[:, index])
            likely[name] = LikelyInput(f"stays at one of {levels} levels", is_certain=leaps)
        elif 0 < moves < STAYS and jumps_between_values(before, steps, index):
            likely[name] = LikelyInput("jumps between values that it holds", is_certain=True)
    return likely


def leaps_between_levels(before: Float[np.ndarray, " row"], steps: Float[np.ndarray, " row"]) -> bool:
    """Whether a column stays at its levels, returns to them, and often passes over one on its way to another."""
    changes = np.flatnonzero(steps)
    stays = np.diff(np.append(changes, len(steps)))
    if np.median(stays) < LEAST_STAY:
        return False
    held = changes[stays > 1]
    levels = np.unique(before)
    ends = before[held][:, None], (before[held] + steps[held])[:, None]
    first, last = (np.abs(values - levels).argmin(axis=1) for values in ends)
    leaps = np.abs(last - first) > 1
    return len(held) > len(levels) and leaps.sum().item() >= FEWEST_LEAPS and leaps.mean().item() >= PASSES_OVER


def jumps_between_values(
    before: Float[np.ndarray, "row column"], steps: Float[np.ndarray, "row column"], index: int
) -> bool:
    """Whether a column holds its values, and neither these nor the other columns foretell the next one."""
    changes = np.flatnonzero(steps[:, index])
    if len(changes) < FEWEST_JUMPS or np.median(np.diff(np.append(changes, len(steps)))) < LEAST_STAY:
        return False
    last, new = before[changes, index], before[changes, index] + steps[changes, index]
    if len(np.unique(new)) < NEW_VALUES * len(new) or np.diff(new).var() < new.var():
        return False
    others = np.delete(before, index, axis=1)
    means = np.add.reduceat(others, np.append(0, changes[:-1] + 1)) / np.diff(changes, prepend=-1)[:, None]
    alone = np.column_stack([np.ones(len(new)), last])
    # The largest set of regressors that leaves enough degrees of freedom.
    for added in ([others[changes], means, others[changes] ** 2], [others[changes], means], [others[changes]]):
        design = np.column_stack([alone, *added])
        if len(new) >= design.shape[1] + FEWEST_FREE:
            table, count = np.column_stack([design, new]), int(design.shape[1])
            return compare(table, np.arange(2), np.arange(count), count, len(new)).chance > FORETELLS
    return False


def find_driving_columns(
    values: Float[np.ndarray, "row column"],
    follows: Bool[np.ndarray, " row"],
    names: Sequence[str],
    held: Mapping[str, LikelyInput],
) -> dict[str, LikelyInput]:
    """Returns the columns that drive others and are new at each row, or that no column drives.

    The latter are certain if they wander as weather does, or beside an input that is certain: an oscillator that drives
    another one is not driven, either. Beside such an input, they can be too weak to be seen to drive a column, unless
    they are noise.

    **Arguments:** `held`: the inputs that are held.
    """
    if not 2 <= len(names) <= MOST_DRIVING:
        return {}
    past = Past.of(values, follows)
    if past is None:
        return {}
    drives = past.find_driving()
    likely: dict[str, LikelyInput] = {}
    for index, name in enumerate(names):
        if name in held or not drives[index].any():
            continue
        driven = f"drives {list_names([names[int(other)] for other in np.flatnonzero(drives[index])], 3)}"
        if past.is_new(index):
            likely[name] = LikelyInput(f"{driven} and is predicted by no column", is_certain=True)
        elif not past.is_driven(index):
            is_certain = past.wanders(index) and not past.is_driven_by_products(index)
            likely[name] = LikelyInput(f"{driven} and is driven by no column", is_certain=is_certain)
    if not any(found.is_certain for found in (*held.values(), *likely.values())):
        return likely
    likely = {name: found._replace(is_certain=True) for name, found in likely.items()}
    weak = {
        name: LikelyInput("is driven by no column", is_certain=True)
        for index, name in enumerate(names)
        if name not in held
        and name not in likely
        and past.is_smooth(index)
        and not past.is_driven(index, at_once=True)
        and not past.is_driven_later(index)
    }
    return likely | weak if len(held) + len(likely) + len(weak) < len(names) else likely


class Improvement(NamedTuple):
    """How much further regressors improve a prediction.

    - `chance`: the probability of as large an improvement without any effect, by an F test.
    - `share`: the share of the unexplained variance that they explain, for the same degrees of freedom.
    """

    chance: float
    share: float


class Past(NamedTuple):
    """The past values of all columns as regressors, and the next values.

    - `table`: the triangle of the QR decomposition of regressors and next values, from which all least squares follow.
    - `rows`, `columns`, `lags`: numbers of rows, of columns, and of past values of each column.
    - `variance`: the variance of each column's next values.
    - `scaled`, `length`: the values in standard deviations, and the complete rows before each row.
    """

    table: Float[np.ndarray, "regressor regressor"]
    rows: int
    columns: int
    lags: int
    variance: Float[np.ndarray, " column"]
    scaled: Float[np.ndarray, "row column"]
    length: Int[np.ndarray, " row"]

    @staticmethod
    def of(values: Float[np.ndarray, "row column"], follows: Bool[np.ndarray, " row"]) -> "Past | None":
        """Gathers past and next values, as many as rows allow; None if there are too few.

        **Arguments:** `follows`: whether a row is complete, and continues the trajectory of the row before it.
        """
        length = rows_before(values, follows)
        for lags in OWN_LAGS:
            rows = np.flatnonzero(length >= lags)[:MOST_ROWS_COMPARED]
            if len(rows) >= max(ROWS_PER_LAG * lags, FEWEST_COMPARED):
                break
        else:
            return None
        spread = values[rows].std(axis=0)
        scaled = (values - values[rows].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
        past = [scaled[rows - lag] for lag in range(1, lags + 1)]
        table = np.column_stack([np.ones(len(rows)), *past, scaled[rows]])
        triangle, variance = np.asarray(np.linalg.qr(table, mode="r")), scaled[rows].var(axis=0)
        return Past(triangle, len(rows), values.shape[1], lags, variance, scaled, length)

    def find_driving(self) -> Bool[np.ndarray, "column driven"]:
        """Returns whether each column drives each other one."""
        lags, columns = min(OTHER_LAGS, self.lags), range(self.columns)
        everything = self.select(columns, lags)
        drives = np.zeros((self.columns, self.columns), bool)
        for column in columns:
            others = self.select([other for other in columns if other != column], lags)
            for driven in columns:
                found = compare(self.table, others, everything, self.target(driven), self.rows)
                is_other = driven != column
                drives[column, driven] = is_other and found.chance < DRIVES_SURELY and found.share > DRIVES
        return drives

    def is_driven(self, column: int, *, at_once: bool = False) -> bool:
        """Whether the other columns improve the prediction of a column from its own past.

        **Arguments:** `at_once`: whether the other columns' values in the same row count, too.
        """
        own, around = self.select([column], self.lags), self.select_around(column)
        if at_once:
            around = np.append(around, [self.target(other) for other in range(self.columns) if other != column])
        found = compare(self.table, own, around, self.target(column), self.rows)
        return found.chance < DRIVEN_SURELY or found.share > DRIVEN

    def is_driven_by_products(self, column: int) -> bool:
        """Whether the other columns and products with them improve the prediction of a column from its own past.

        A chaotic state can wander, and need not respond to others linearly. Too few rows count as a response.
        """
        rows = np.flatnonzero(self.length >= self.lags)[:MOST_ROWS_COMPARED]
        last, others = self.scaled[rows - 1], [other for other in range(self.columns) if other != column]
        pairs = np.stack(np.triu_indices(self.columns), axis=1)
        mixed = pairs[(pairs != column).any(axis=1)]
        own = [self.scaled[rows - lag, column] for lag in range(1, self.lags + 1)]
        own += [np.ones(len(rows)), last[:, column] ** 2, last[:, column] ** 3]
        added = [self.scaled[rows - lag][:, others] for lag in range(1, min(OTHER_LAGS, self.lags) + 1)]
        design = np.column_stack([*own, *added, last[:, mixed[:, 0]] * last[:, mixed[:, 1]]])
        if len(rows) < 2 * design.shape[1]:
            return True
        table = np.column_stack([design, self.scaled[rows, column]])
        everything = np.arange(int(design.shape[1]))
        return compare(table, np.arange(len(own)), everything, len(everything), len(rows)).share > DRIVES

    def is_driven_later(self, column: int) -> bool:
        """Whether means of the other columns, of squares and of products predict a column many rows ahead.

        A slow state, such as a temperature that the square of a current raises, moves less in a row than its noise.
        """
        ahead = AHEAD[-1]
        # Rows whose stretches do not overlap.
        rows = np.flatnonzero((self.length >= self.lags + ahead) & (self.length % ahead == 0))
        pairs = np.stack(np.triu_indices(self.columns), axis=1)
        pairs = pairs[(pairs != column).any(axis=1)]
        others = np.delete(self.scaled, column, axis=1)
        own = [np.ones(len(rows)), *(self.scaled[rows - ahead - lag, column] for lag in range(self.lags))]
        for added in (
            [others, self.scaled[:, pairs[:, 0]] * self.scaled[:, pairs[:, 1]]],
            [others, others**2],
            [others],
        ):
            sums = np.nancumsum(np.column_stack(added), axis=0)
            table = np.column_stack(
                [*own, (sums[rows - 1] - sums[rows - 1 - ahead]) / ahead, self.scaled[rows, column]]
            )
            count = int(table.shape[1]) - 1
            if len(rows) >= 2 * count:
                return compare(table, np.arange(len(own)), np.arange(count), count, len(rows)).chance < DRIVEN_SURELY
        return False

    def wanders(self, column: int) -> bool:
        """Whether errors of predictions from a column's own past grow with the rows ahead, since its noise lasts.

        Noise of a sensor is the same for any time ahead, and the states of a system without noise are predicted well. A
        sensor that is read less often, and repeated in the rows between, seems to wander.
        """
        rows = np.flatnonzero(self.length > 0)
        if (self.scaled[rows, column] != self.scaled[rows - 1, column]).mean() < CHANGES:
            return False
        near, later, far = (self.error_ahead(column, rows) for rows in AHEAD)
        return near > LEFT_NEAR and later > LASTS * near and far > LEFT_FAR

    def error_ahead(self, column: int, ahead: int) -> float:
        """Computes the mean square error of predictions so many rows ahead, in variances; 0 for too few rows."""
        rows = np.flatnonzero(self.length >= self.lags - 1 + ahead)[:MOST_ROWS_COMPARED]
        if len(rows) < 3 * self.lags:
            return 0.0
        past = [self.scaled[rows - ahead - lag, column] for lag in range(self.lags)]
        table = np.column_stack([np.ones(len(rows)), *past, self.scaled[rows, column]])
        return sum_of_squares(table, np.arange(self.lags + 1), self.lags + 1) / (len(rows) - self.lags - 1)

    def is_new(self, column: int) -> bool:
        """Whether most of a column's variance is unexplained by the past of all columns."""
        return self.left_of(column) > NEW * float(self.variance[column])

    def is_smooth(self, column: int) -> bool:
        """Whether a column varies, and the past of all columns explains most of its variance."""
        return self.left_of(column) < (1 - NEW) * float(self.variance[column])

    def left_of(self, column: int) -> float:
        """Computes the variance that the past of all columns leaves of a column; 0 for too few rows."""
        regressors = self.select_around(column)
        free = self.rows - len(regressors)
        left = sum_of_squares(self.table, regressors, self.target(column))
        return left / free if free >= FEWEST_FREE else 0.0

    def select_around(self, column: int) -> Int[np.ndarray, " regressor"]:
        """Returns the regressors of a column's own past, and of the near past of all others."""
        return np.union1d(
            self.select([column], self.lags), self.select(range(self.columns), min(OTHER_LAGS, self.lags))
        )

    def select(self, columns: Sequence[int], lags: int) -> Int[np.ndarray, " regressor"]:
        """Returns the regressors of the last values of columns, and the constant."""
        past = 1 + self.columns * np.arange(lags)[:, None] + np.asarray(columns, int)
        return np.append(0, past.ravel())

    def target(self, column: int) -> int:
        return 1 + self.columns * self.lags + column


def rows_before(values: Float[np.ndarray, "row column"], follows: Bool[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
    """Counts the complete rows before each row without a gap; 0 for a row that is not complete."""
    is_linked = follows.copy()
    is_linked[1:] &= np.isfinite(values[:-1]).all(axis=1)
    rows = np.arange(len(follows))
    return rows - np.maximum.accumulate(np.where(is_linked, 0, rows))


def compare(
    table: np.ndarray, fewer: Int[np.ndarray, " regressor"], more: Int[np.ndarray, " other"], target: int, rows: int
) -> Improvement:
    """Compares predictions of a column of a table from fewer and from more of its columns."""
    from scipy.special import fdtrc

    free, added = rows - len(more), len(more) - len(fewer)
    before = sum_of_squares(table, fewer, target)
    if free < FEWEST_FREE or added <= 0 or before <= ROUNDED_OFF * rows:
        return Improvement(1.0, 0.0)
    after = sum_of_squares(table, more, target)
    ratio = max(before - after, 0.0) / added / max(after / free, np.finfo(float).tiny)
    return Improvement(float(fdtrc(added, free, ratio)), 1 - after / free / (before / (rows - len(fewer))))


def sum_of_squares(table: np.ndarray, regressors: Int[np.ndarray, " regressor"], target: int) -> float:
    """Computes what least squares leave of a column of a table."""
    design, wanted = table[:, regressors], table[:, target]
    residuals = wanted - design @ np.linalg.lstsq(design, wanted, rcond=DEPENDENT)[0]
    return float(residuals @ residuals)

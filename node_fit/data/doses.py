"""Doses in columns of a table: each value is added to a state at its row."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ..runtime.validation import check_argument
from .dataset import Dataset
from .events import WHERE
from .tables.assembly import Assembled


class SplitDoses(NamedTuple):
    """Measurements without the columns of doses, and the doses; NaN where a cell is empty."""

    measured: Assembled[Dataset]
    doses: Float[np.ndarray, "trajectory time column"]


def check_doses(doses: Mapping[str, object], states: Sequence[str], *, is_wide: bool) -> None:
    """Checks which column is a dose of which state.

    **Arguments:** `doses`: the column of each state. `states`: measured states. `is_wide`: whether each trajectory is a
    column.

    **Raises:** `ValueError` that names the state.
    """
    for state, column in doses.items():
        check_argument(f"doses.{state}", column, str, "the column of the amounts that are added to it")
        if column in states:
            raise ValueError(
                f"doses: the column {column!r} holds measurements of a state and doses of {state!r}; name the column "
                "of the amounts."
            )
    if doses and is_wide:
        raise ValueError(
            "doses names columns with a value per row, and series makes each column a trajectory; use events."
        )


def split_doses(assembled: Assembled[Dataset], count: int) -> SplitDoses:
    """Splits off the last columns, which hold doses. Rows of one time are merged to their mean, and doses add up."""
    data, counts = assembled.data, assembled.counts
    if not count:
        return SplitDoses(assembled, data.ys[..., :0])
    kept, doses = data.ys[..., :-count], data.ys[..., -count:]
    columns = data.states[-count:]
    measured = replace(
        data,
        ys=kept,
        states=data.states[:-count],
        units={name: unit for name, unit in data.units.items() if name not in columns},
        censored=None if data.censored is None else data.censored[..., :-count],
        other_end=None if data.other_end is None else data.other_end[..., :-count],
    )
    if counts is None:
        return SplitDoses(Assembled(measured, None), doses)
    return SplitDoses(Assembled(measured, counts[..., :-count]), doses * counts[..., -count:])


def events_of_doses(
    data: Dataset, columns: Mapping[str, str], doses: Float[np.ndarray, "trajectory time column"]
) -> list[dict[str, object]]:
    """Returns doses as rows of events.

    **Arguments:** `columns`: the column of each state. `doses`: values of these columns, each of which comes once.
    """
    given, order = np.nan_to_num(doses) * data.valid[..., None], list(dict.fromkeys(columns.values()))
    return [
        {
            "time": float(data.ts[trajectory, row]),
            "trajectory": data.trajectories[trajectory],
            "state": state,
            "add": float(given[trajectory, row, order.index(column)]),
            WHERE: f"column {column!r}",
        }
        for state, column in columns.items()
        for trajectory, row in np.argwhere(given[..., order.index(column)])
    ]

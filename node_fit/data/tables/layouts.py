"""Converts wide and tidy tables to one row per time; each row keeps the line that it came from."""

from collections.abc import Sequence

import numpy as np

from .roles import Roles
from .table import RawTable, hint, shown
from .values import UNKNOWN_FIX, names, numbers


def as_rows(tables: Sequence[RawTable], roles: Roles) -> list[RawTable]:
    """Converts the tables to one column per state and input.

    Rows of a tidy table hold one measurement each; `merging` joins the rows of the same time.
    """
    if roles.series or roles.observable is not None:
        reject_stacks(tables, roles)
    if roles.series:
        return [melt(table, roles) for table in tables]
    if roles.observable is not None:
        return spread(tables, roles, roles.observable, str(roles.value))
    return list(tables)


def reject_stacks(tables: Sequence[RawTable], roles: Roles) -> None:
    """Rejects stacks, whose trajectories a wide or tidy layout would mix up."""
    stack = next((table for table in tables if table.own is not None), None)
    if stack is not None and roles.trajectory is None:
        keys = "series" if roles.series else "observable and value"
        raise ValueError(
            f"{stack.origin} holds stacks, (trajectory, time), which already separate the trajectories; leave out "
            f"{keys}, and name its arrays in states."
        )


def melt(table: RawTable, roles: Roles) -> RawTable:
    """Puts the columns of a wide table below one another.

    A series runs from its first value to its last. If the table's last row is empty in every series, they all run to
    that row: the times after the last value are to be predicted.
    """
    import pandas as pd

    series = [name for name in table.columns if name not in roles.fixed]
    values = np.stack([numbers(table, name, UNKNOWN_FIX, may_miss=True) for name in series], axis=1)
    known = ~np.isnan(values)
    if not known.any(axis=0).all():
        empty = series[int((~known.any(axis=0)).argmax())]
        raise ValueError(f"{table.origin}, column {empty!r} has no values; fill it, or narrow series to the others.")
    row = np.arange(len(table))
    last = len(table) - 1 - known[::-1].argmax(axis=0) if known[-1].any() else np.full(len(series), len(table) - 1)
    inside = (row >= known.argmax(axis=0)[:, None]) & (row <= last[:, None])
    which, row = np.nonzero(inside)
    shared = {name: table.columns[name].iloc[row].reset_index(drop=True) for name in roles.fixed}
    return table.take(
        row, shared | {roles.states[0]: pd.Series(values[row, which])}, np.array(series, dtype=object)[which]
    )


def spread(tables: Sequence[RawTable], roles: Roles, observable: str, value: str) -> list[RawTable]:
    """Gives each wanted observable of tidy tables a column of its own, and drops the rows of others."""
    observed = [names(table, observable, "observable") for table in tables]
    found = list(dict.fromkeys(name for each in observed for name in each))
    columns = set().union(*(table.columns for table in tables))
    wanted = [*roles.states, *(name for name in roles.inputs if name not in columns)]
    for name in wanted:
        if name not in found:
            origin = tables[0].origin if len(tables) == 1 else f"all {len(tables)} files, such as {tables[0].origin}"
            raise ValueError(
                f"{origin}, column {observable!r} never names {name!r}; it names {shown(found)}.{hint(name, found)}"
            )
    return [pick(table, each, wanted, value) for table, each in zip(tables, observed, strict=True)]


def pick(table: RawTable, observed: np.ndarray, wanted: Sequence[str], value: str) -> RawTable:
    """Selects the rows of a tidy table that measure something wanted."""
    import pandas as pd

    kept = np.flatnonzero(np.isin(observed, wanted))
    if kept.size == 0:
        raise ValueError(f"{table.origin} has no row for any of {shown(wanted)}; leave this file out.")
    rest = {name: column.iloc[kept].reset_index(drop=True) for name, column in table.columns.items()}
    rows = table.take(kept, rest)
    measured = numbers(rows, value, UNKNOWN_FIX, may_miss=True)
    own = {name: pd.Series(np.where(observed[kept] == name, measured, np.nan)) for name in wanted}
    return table.take(kept, rest | own)

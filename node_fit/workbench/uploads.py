"""The tables uploaded to the page: stored by content digest, and described as columns with roles."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..app.config.overrides import as_value
from ..app.recognition import (
    guess_columns,
    keys_of_option,
    reading_of,
    table_of_words,
    take_certain_inputs,
    take_series,
)
from ..data.dataset import Dataset
from ..data.tables.clocks import holds_clock
from ..data.tables.guess import ColumnsToSee, number_in
from ..data.tables.reading import column_names, read_file
from ..data.tables.times import holds_stamps
from ..report.page import jsonable_numbers, jsonable_times
from ..runtime.serialization import Json, is_json, is_list
from ..storage.files import write_file

if TYPE_CHECKING:
    import pandas

# Maximum size of one table, and of all stored tables [bytes].
MAX_UPLOAD_BYTES, MAX_KEPT_BYTES = 200_000_000, 2_000_000_000
# Maximum number of displayed raw rows, columns, points per plot, trajectories, and characters per cell.
SHOWN_ROWS, MAX_SHOWN_COLUMNS, PICTURE_POINTS, MAX_PICTURED, MAX_CELL = 8, 60, 500, 12, 60
TABLE_ID = re.compile(r"[0-9a-f]{16}")
# Characters that are replaced by an underscore in file names.
OTHER_LETTERS = re.compile(r"[^\w.-]+", re.ASCII)
MAX_NAME = 80
# Column roles on the page, which are keys of `data`.
SINGLE_ROLES, LISTED_ROLES = ("time", "time_of_day", "trajectory"), ("states", "inputs", "covariates", "series")


class NotKept(ValueError):
    """Raised for a table that can't be stored, or that does not exist."""


@dataclass(frozen=True)
class Uploads:
    """The tables in a folder, each in a subfolder named after its id.

    **Arguments:** `folder`: relative to the working directory, so that commands name a table as the page does.
    """

    folder: Path

    def keep(self, name: str, content: bytes) -> str:
        """Stores a table, unless it is already stored. Returns its id.

        **Raises:** `NotKept` if it is empty, or the storage limit is exceeded.
        """
        if not content:
            raise NotKept(f"{name} is empty; it needs a line of column names and rows of numbers.")
        key = hashlib.sha256(safe_name(name).encode() + b"\0" + content).hexdigest()[:16]
        place = self.folder / key
        if not place.is_dir():
            stored_bytes = sum(path.stat().st_size for path in self.folder.glob("*/*") if path.is_file())
            if stored_bytes + len(content) > MAX_KEPT_BYTES:
                raise NotKept(
                    f"{self.folder} holds {stored_bytes / 1e9:.2g} GB of tables already; remove some of its folders."
                )
        place.mkdir(parents=True, exist_ok=True)
        write_file(place / safe_name(name), content)
        return key

    def find(self, key: str) -> Path:
        """Returns the file of a table.

        **Raises:** `NotKept` if the id is unknown.
        """
        files = sorted((self.folder / key).glob("[!.]*")) if TABLE_ID.fullmatch(key) else []
        if len(files) != 1 or files[0].is_symlink() or not files[0].is_file():
            raise NotKept("there is no such table; drop it again.")
        return files[0]

    def list(self) -> list[Json]:
        """Returns the ids and names of all tables, newest first."""
        folders = [path for path in self.folder.glob("*") if TABLE_ID.fullmatch(path.name)]
        tables: list[Json] = []
        for folder in sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True):
            try:
                tables.append({"id": folder.name, "name": self.find(folder.name).name})
            except NotKept:
                continue
        return tables


def safe_name(name: str) -> str:
    """Returns a file name of letters, digits, dots, hyphens and underscores that keeps the format's suffix."""
    last = re.split(r"[/\\]", name)[-1]
    plain = OTHER_LETTERS.sub("_", last).strip("._-") or "table"
    stem, dot, ending = plain.rpartition(".")
    return f"{stem[: MAX_NAME - len(ending)]}.{ending}" if dot and len(ending) < 12 else plain[:MAX_NAME]


def words_of_roles(roles: Mapping[str, object] | None) -> list[str]:
    """Returns the overrides that set column roles; empty if roles are to be guessed.

    **Raises:** `ValueError` if a role is unknown, or does not name columns.
    """
    if roles is None:
        return []
    known_roles = (*SINGLE_ROLES, *LISTED_ROLES, "sigma")
    if unknown := set(roles) - set(known_roles):
        raise ValueError(f"{sorted(unknown)[0]!r} is no role of a column; roles are {', '.join(known_roles)}.")
    words: list[str] = []
    # The state of columns that repeat an experiment has the name that equations give it.
    left_open = {"covariates", "series"} | ({"states"} if roles.get("series") else set[str]())
    for role in known_roles:
        value = roles.get(role)
        names = {"sigma": dict[str, str]}.get(role, list[str] if role in LISTED_ROLES else str)
        checked = build_names(value, names, role)
        if role == "sigma" and not checked:
            words.append("data.sigma=estimate")
        elif checked or role not in left_open:
            words.append(f"data.{role}={as_value(checked)}")
    return words


def build_names(value: object, kind: type, role: str) -> object:
    """Checks column names from JSON: a string or null, a list of strings, or a mapping of strings."""
    if kind is str:
        if value is None or isinstance(value, str):
            return value
    elif value is None:
        return kind()
    elif kind == list[str]:
        if is_list(value) and all(isinstance(name, str) for name in value):
            return value
    elif is_json(value) and all(isinstance(name, str) for name in value.values()):
        return value
    raise ValueError(f"the role {role!r} must name columns, got {value!r:.60}.")


def look_at(path: Path, roles: Mapping[str, object] | None, words: Sequence[str]) -> Json:
    """Describes a table for the page: its first rows, its columns, their roles, and the data as a fit would read them.

    **Arguments:** `roles`: the column roles; None to guess them. `words`: overrides for the table's format.

    **Raises:** `ValueError` or `OSError` if the file is not a table.
    """
    overrides = {word.partition("=")[0]: word for word in words}
    options = reading_of(overrides)
    names = list(dict.fromkeys(name for name in column_names(path, options) if name))
    table = read_file(path, ColumnsToSee(time=None, states=tuple(names)), options=options)
    shown: Json = {
        "name": path.name,
        "rows": len(table),
        "columns": [describe_column(name, table.columns[name]) for name in names[:MAX_SHOWN_COLUMNS]],
        "left": max(len(names) - MAX_SHOWN_COLUMNS, 0),
        "recognised": list(table.notes),
        "units": dict(table.units),
        "roles": roles,
        "likely_inputs": {},
    }
    try:
        if roles is None:
            shown["roles"], shown["likely_inputs"] = guess_roles(path, overrides)
        overrides |= {word.partition("=")[0]: word for word in words_of_roles(roles)}
        added, sentence = keys_of_option([str(path)], overrides)
        data = table_of_words([*overrides.values(), *added]).read(str(path))
        return shown | {"said": sentence, "data": describe_data(data), "error": None}
    except (ValueError, OSError) as error:
        return shown | {"said": "", "data": None, "error": str(error)}


def guess_roles(path: Path, given: dict[str, str]) -> tuple[Json, dict[str, str]]:
    """Guesses the column roles, and finds states that look like inputs, with reasons."""
    columns = take_series(guess_columns(path, path.name, given), given)
    columns, likely = take_certain_inputs(path, columns, given)
    roles: Json = {
        "time": columns.time,
        "time_of_day": columns.time_of_day,
        "trajectory": columns.trajectory,
        "states": list(columns.states),
        "inputs": list(columns.inputs),
        "covariates": list(columns.covariates),
        "series": list(columns.series),
        "sigma": dict(columns.deviations),
    }
    return roles, likely


def describe_column(name: str, column: "pandas.Series") -> Json:
    """Describes a column: its name, kind, first cells, and values to plot against the row number."""
    rows = np.linspace(0, len(column) - 1, min(len(column), PICTURE_POINTS)).round().astype(int)
    numbers = np.array([np.nan if (value := number_in(cell)) is None else value for cell in column.iloc[rows]], float)
    kind = "numbers" if np.isfinite(numbers).mean() >= 0.5 else "text"
    if kind == "text" and holds_stamps(column):
        kind = "dates"
    elif kind == "text" and holds_clock(column):
        kind = "times of day"
    return {
        "name": name,
        "kind": kind,
        "first": [str(cell)[:MAX_CELL] for cell in column.iloc[:SHOWN_ROWS]],
        "rows": rows.tolist(),
        "values": jsonable_numbers(numbers) if kind == "numbers" else [],
    }


def describe_data(data: Dataset) -> Json:
    """Returns points of states and inputs of some trajectories, and notes on the recognised format."""
    records: list[Json] = []
    for index, name in enumerate(data.trajectories[:MAX_PICTURED]):
        length = int(data.lengths[index])
        rows = np.unique(np.linspace(0, length - 1, min(length, PICTURE_POINTS)).round().astype(int))
        records.append(
            {
                "name": name,
                "ts": jsonable_times(data.ts[index, rows]),
                "ys": jsonable_numbers(data.ys[index, rows].T),
                "us": jsonable_numbers(data.us[index, rows].T),
            }
        )
    return {
        "time": data.time,
        "states": list(data.states),
        "inputs": list(data.inputs),
        "units": dict(data.units),
        "trajectories": len(data.trajectories),
        "rows": int(data.lengths.sum()),
        "records": records,
        "notes": list(data.notes),
    }

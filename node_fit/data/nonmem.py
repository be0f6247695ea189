"""NONMEM and nlmixr2 tables of subjects and doses: a row for each dose and for each measurement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .dataset import Dataset
from .table_source import Table, with_events
from .tables.reading import find_files
from .tables.table import limit_kind, list_names, parts_of_cell

if TYPE_CHECKING:
    import pandas

# Columns that define the kind of a row, in upper or lower case.
COLUMNS = ("ID", "TIME", "DV", "AMT", "EVID", "CMT", "MDV", "DVID", "RATE", "DUR", "II", "ADDL", "SS", "CENS", "LIMIT")
# Columns that a table of doses requires: all of the former, and at least one of the latter.
NEEDED, DOSES = ("ID", "TIME", "DV"), ("AMT", "EVID")
# Codes of EVID: a measurement, a dose, another row, a reset, a reset with a dose; 101 is nlmixr2's dose at CMT 1.
MEASUREMENT, DOSE, OTHER, RESET, RESET_AND_DOSE, COMPARTMENT_CODE = 0, 1, 2, 3, 4, 100
# Number of doses simulated before one at steady state.
STEADY_DOSES = 30
# Delay of a measurement that follows a dose into the same state at the same time, or of a second measurement, as a
# fraction of the longest record.
LATER = 1e-8
INFUSION = "infusion_"


class Doses(NamedTuple):
    """Doses: `jumps`, as rows of events, and `rates`, as `(begin, end, rate)` by subject and state."""

    jumps: list[dict[str, object]]
    rates: dict[tuple[str, str], list[tuple[float, float, float]]]


def find_occasions(frame: "pandas.DataFrame", column: str, path: Path) -> "pandas.Series[str]":
    """Returns the occasion of each row.

    **Raises:** `ValueError` if the column is missing.
    """
    if column not in frame:
        raise ValueError(
            f"{path} has no column {column!r} of occasions; its columns are {list_names(list(frame.columns))}."
        )
    return frame[column].map(plain)


def find_columns(names: Sequence[str]) -> dict[str, str]:
    """Returns the columns of doses and measurements among names, keyed by NONMEM's name in capitals."""
    return {name.strip().upper(): name for name in names if name.strip().upper() in COLUMNS}


def is_dosing_table(names: Sequence[str]) -> bool:
    """Whether columns are those of a table of doses and measurements."""
    columns = find_columns(names)
    return all(name in columns for name in NEEDED) and any(name in columns for name in DOSES)


@dataclass(frozen=True)
class NONMEM(Table):
    """Subjects, doses and measurements in one table, with NONMEM's columns.

    These are ID, TIME, DV, AMT, EVID, CMT, MDV, DVID, RATE, DUR, II, ADDL, SS, CENS and LIMIT.

    A dose at CMT n goes into the n-th state of the equations, and DV at CMT n measures that state; DVID names the
    measured state, or its position in `states`. A dose with RATE or DUR is an infusion: the input `infusion_STATE` is
    its rate, which the equation of that state must add. A dose row is not a measurement. CENS 1 means that the value
    lies below DV, and -1 above it.

    **Arguments:** `compartments`: states of the equations in order; the others as in `Table`.

    **Raises:** `ValueError` that names the file, the row and the column.
    """

    compartments: Sequence[str] = field(default_factory=tuple)

    def read(self, path: str | Sequence[str], unit: str | None = None) -> Dataset:
        frames = [self.read_rows(file) for file in find_files(path)]
        import pandas as pd

        rows = pd.concat(frames, ignore_index=True)
        doses = self.read_doses(rows)
        measured = self.read_measurements(rows, doses)
        columns = [name for name in self.inputs if not name.startswith(INFUSION)]
        covariates = self.covariates or ()
        data = Dataset.from_frame(
            measured,
            time="TIME" if self.time is None else self.time,
            states=self.states,
            inputs=[*columns, *self.infusions(doses)],
            covariates=list(covariates) if not isinstance(covariates, Mapping) else covariates,
            trajectory=self.trajectory,
            units=self.units,
            origin=str(path),
            censored=bool((rows["side"] != 0).any()),
        )
        events = [row for row in doses.jumps if row["trajectory"] in data.trajectories]
        return self.scaling.mark_angles(with_events(data, events) if events else data)

    def infusions(self, doses: Doses) -> list[str]:
        """Returns the inputs that are rates of infusions.

        **Raises:** `ValueError` if `inputs` lacks one.
        """
        infusions = list(dict.fromkeys(f"{INFUSION}{state}" for _, state in doses.rates))
        for name in infusions:
            if name not in self.inputs:
                state = name.removeprefix(INFUSION)
                raise ValueError(
                    f"the data have infusions into {state!r} (RATE or DUR); add the input {name} to its equation, "
                    f"{{{state}: ... + {name}}}, and to inputs: data.inputs=[{name}]."
                )
        return [name for name in self.inputs if name.startswith(INFUSION)]

    def read_rows(self, path: Path) -> "pandas.DataFrame":
        """Reads the rows of a file, with NONMEM's names of columns, and the place of each row."""
        import pandas as pd

        try:
            frame = pd.read_csv(path, sep=None, engine="python", dtype=str, keep_default_na=False, comment="#")
        except (ValueError, UnicodeError) as error:
            raise ValueError(f"{path} can't be read as a table: {str(error).splitlines()[0]}.") from None
        frame.columns = [str(name).strip() for name in frame.columns]
        words = find_columns(list(frame.columns))
        missing = [name for name in NEEDED if name not in words]
        if missing:
            raise ValueError(f"{path} has no column {missing[0]}; a table of doses needs {', '.join(NEEDED)}.")
        frame = frame.rename(columns={name: word for word, name in words.items()})
        frame["where"] = [f"{path}, line {number + 2}" for number in range(len(frame))]
        frame["subject"] = [plain(name) for name in frame["ID"]]
        if self.occasion is not None:
            frame["subject"] += "/" + find_occasions(frame, self.occasion, path)
        frame["side"] = self.read_sides(frame)
        for name in ("TIME", "DV", "LIMIT", "AMT", "EVID", "MDV", "RATE", "DUR", "II", "ADDL", "SS"):
            if name in frame:
                frame[name] = read_column(frame, name)
        if frame["TIME"].isna().any():
            raise ValueError(f"{frame['where'][frame['TIME'].isna()].iloc[0]} has no TIME; give one to each row.")
        frame["is_dose"] = are_doses(frame)
        return frame

    def read_sides(self, frame: "pandas.DataFrame") -> list[int]:
        """Returns the side of DV on which each row's value lies, -1 below, 1 above, else 0: from CENS, or from cells of
        DV such as `<0.5` or `0.2..0.5`, which become a plain DV and LIMIT if `censored` allows them.

        **Raises:** `ValueError` that names the row.
        """
        marks = {"0": 0, "": 0, ".": 0, "1": -1, "-1": 1}
        sides: list[int] = []
        values: list[str] = []
        limits: list[str] = []
        for _, row in frame.iterrows():
            mark, where = str(row.get("CENS", "0")).strip().removesuffix(".0"), row["where"]
            if mark not in marks:
                raise ValueError(f"{where} has CENS {mark!r}; it is 1 (below DV), -1 (above DV) or 0 (DV itself).")
            parts = parts_of_cell(str(row["DV"])) if self.censored else [str(row["DV"])]
            limit = parts[0] if ".." in parts else str(row.get("LIMIT", ""))
            if "CENS" not in frame and len(parts) == 1 and not is_no_number(limit):
                raise ValueError(
                    f"{where} has LIMIT, and the table has no CENS, which says that a value lies between LIMIT and DV; "
                    "add CENS: 1 where LIMIT is below DV, -1 where above, and 0 where DV is the value."
                )
            sides.append(marks[mark] if len(parts) == 1 else 1 if parts[0][0] in ">≥" else -1)
            values.append(parts[-1])
            limits.append(limit)
        frame["DV"], frame["LIMIT"] = values, limits
        return sides

    def state_at(self, cell: object, where: str) -> str:
        """Returns the state for the number or name of a compartment."""
        text = plain(str(cell))
        if text in self.compartments:
            return text
        if not text.isdigit() or not 1 <= int(text) <= len(self.compartments):
            known = ", ".join(f"{number} {name}" for number, name in enumerate(self.compartments, start=1))
            raise ValueError(f"{where} has CMT {text!r}, and the states of the equations are {known}.")
        return self.compartments[int(text) - 1]

    def read_doses(self, rows: "pandas.DataFrame") -> Doses:
        """Collects the doses and resets of all rows, including additional doses and those before a steady state."""
        doses = Doses([], {})
        for _, row in rows[rows["is_dose"]].iterrows():
            where, subject, time = str(row["where"]), str(row["subject"]), float(row["TIME"])
            code = int(row["EVID"]) if "EVID" in row and row["EVID"] == row["EVID"] else DOSE
            if code in (RESET, RESET_AND_DOSE):
                doses.jumps.extend(
                    {"_where": where, "trajectory": subject, "time": time, "state": state, "set": 0.0}
                    for state in self.compartments
                )
            amount = cell_as_number(row, "AMT")
            if code == RESET or amount == 0:
                continue
            compartment = str(row["CMT"]).strip() if "CMT" in row else ""
            cell = compartment if compartment not in ("", ".") else str(max(code // COMPARTMENT_CODE, 1))
            state = self.state_at(cell, where)
            for dose_time in dose_times(row, time, where):
                self.add_dose(doses, row, where, subject, state, dose_time, amount)
        return doses

    def add_dose(
        self, doses: Doses, row: "pandas.Series", where: str, subject: str, state: str, time: float, amount: float
    ) -> None:
        """Adds a dose as a jump, or as the rate of an infusion."""
        rate, duration = cell_as_number(row, "RATE"), cell_as_number(row, "DUR")
        if rate < 0:
            raise ValueError(
                f"{where} has RATE {rate:g}, a rate or duration that the model estimates; write a state with an "
                "equation for it, and a dose into that."
            )
        if rate > 0 or duration > 0:
            duration = amount / rate if rate > 0 else duration
            doses.rates.setdefault((subject, state), []).append((time, time + duration, amount / duration))
        else:
            doses.jumps.append({"_where": where, "trajectory": subject, "time": time, "state": state, "add": amount})

    def read_measurements(self, rows: "pandas.DataFrame", doses: Doses) -> "pandas.DataFrame":
        """Returns a row per subject and time, with a column for each measured state, and rates of infusions."""
        import pandas as pd

        time, name = self.time or "TIME", self.trajectory or "ID"
        extra = [column for column in (*self.inputs, *(self.covariates or ())) if column in rows.columns]
        table: dict[tuple[str, float], dict[str, object]] = {}
        duration = float(np.ptp(rows["TIME"])) or 1.0
        jumps = {(str(row["trajectory"]), float(str(row["time"])), str(row["state"])) for row in doses.jumps}
        dosed: set[tuple[str, float, str]] = set()
        for _, row in rows.iterrows():
            subject, time_of_row = str(row["subject"]), float(row["TIME"])
            cell = table.setdefault((subject, time_of_row), {})
            cell.update({column: row[column] for column in extra})
            if row["is_dose"]:
                dosed |= {jump for jump in jumps if jump[:2] == (subject, time_of_row)}
                continue
            if cell_as_number(row, "MDV") or cell_as_number(row, "EVID") == OTHER or np.isnan(row["DV"]):
                continue
            state = self.measured_state(row)
            if state is None:
                continue
            first_cell = dict(cell)
            # After a dose into its state, or a second value at the same time.
            while (subject, time_of_row, state) in dosed or state in cell:
                time_of_row += LATER * duration
                cell = table.setdefault((subject, time_of_row), {column: first_cell[column] for column in extra})
            cell[state] = row["DV"] if row["side"] == 0 else censored_cell(row)
        last = rows.groupby("subject")["TIME"].max()
        moments = [
            (subject, time_of_row)
            for (subject, _), rates in doses.rates.items()
            for rate in rates
            for time_of_row in rate[:2]
        ]
        moments += [(str(event["trajectory"]), float(str(event["time"]))) for event in doses.jumps]
        for subject, time_of_row in moments:
            if time_of_row < last[subject]:
                table.setdefault((subject, time_of_row), {})
        order = {subject: number for number, subject in enumerate(dict.fromkeys(rows["subject"]))}
        keys = sorted(table, key=lambda key: (order[key[0]], key[1]))
        frame = pd.DataFrame(
            [{name: subject, time: time_of_row, **table[subject, time_of_row]} for subject, time_of_row in keys]
        )
        for state in self.states:
            if state not in frame:
                frame[state] = np.nan  # Rows to be predicted need no measurement.
        for column in extra:
            frame[column] = frame.groupby(name)[column].transform(lambda values: values.ffill().bfill())
        for column in (name_of_input for name_of_input in self.inputs if name_of_input.startswith(INFUSION)):
            rates = [doses.rates.get((subject, column.removeprefix(INFUSION)), []) for subject, _ in keys]
            frame[column] = [
                sum(rate for begin, end, rate in rates_of_subject if begin <= time_of_row < end)
                for (_, time_of_row), rates_of_subject in zip(keys, rates, strict=True)
            ]
        return frame

    def measured_state(self, row: "pandas.Series") -> str | None:
        """Returns the state that a row measures, from its DVID, its CMT, or as the only one; None for other states."""
        for column, names in (("DVID", self.states), ("CMT", self.compartments)):
            text = plain(str(row[column])) if column in row else ""
            if text in ("", "."):
                continue
            if column == "DVID" and not text.isdigit():
                return text if text in names else None
            if column == "CMT":
                state = self.state_at(text, str(row["where"]))
                is_formula = len(self.states) == 1 and self.states[0] not in self.compartments
                return self.states[0] if is_formula else state if state in self.states else None
            if not 1 <= int(text) <= len(names):
                raise ValueError(
                    f"{row['where']} has DVID {text}, and {len(names)} states are named: {', '.join(names)}."
                )
            return names[int(text) - 1]
        if len(self.states) > 1:
            raise ValueError(f"{row['where']} does not say what it measures; add a column DVID or CMT.")
        return self.states[0]


def plain(text: str) -> str:
    """Normalizes a name or a whole number, without blanks and decimals: `1.0` becomes `1`."""
    text = text.strip()
    return text.removesuffix(".0") if text.removesuffix(".0").isdigit() else text


def is_no_number(text: str) -> bool:
    """Whether a cell is missing: a dot, nothing or a word for a missing value."""
    return text.strip() in ("", ".", "NA", "NaN")


def censored_cell(row: "pandas.Series") -> str:
    """Formats a censored value as a limit, `<0.5`, or as an interval, `0.2..0.5`.

    **Raises:** `ValueError` that names the row, if LIMIT is on the wrong side of DV.
    """
    side, value, limit = int(row["side"]), float(row["DV"]), float(row["LIMIT"])
    if not np.isfinite(limit):
        return f"{'<' if side < 0 else '>'}{value!r}"
    if not side * (limit - value) > 0:
        raise ValueError(
            f"{row['where']} has LIMIT {limit:g} and DV {value:g}; LIMIT is the {'lower' if side < 0 else 'upper'} end "
            f"of the interval where CENS is {-side}. Exchange them, or change the sign of CENS."
        )
    return f"{min(value, limit)!r}..{max(value, limit)!r}"


def read_column(frame: "pandas.DataFrame", name: str) -> list[float]:
    """Parses a column of numbers, in which a dot or an empty cell is missing.

    **Raises:** `ValueError` that names the row.
    """
    numbers: list[float] = []
    for text, where in zip(frame[name], frame["where"], strict=True):
        try:
            numbers.append(float("nan") if is_no_number(text) else float(text))
        except ValueError:
            is_limit = name == "DV" and len(parts_of_cell(text)) > 1
            fix = f"set data.censored=true if it is {limit_kind(text)}" if is_limit else "correct it, or write a dot"
            raise ValueError(f"{where}, column {name}: {text!r} is not a number; {fix}.") from None
    return numbers


def cell_as_number(row: "pandas.Series", name: str) -> float:
    """Returns a number of a row; 0 if it is missing."""
    value = float(row[name]) if name in row else 0.0
    return 0.0 if np.isnan(value) else value


def are_doses(frame: "pandas.DataFrame") -> list[bool]:
    """Returns which rows are doses or resets: from EVID, or from a positive amount without EVID."""
    flags: list[bool] = []
    for _, row in frame.iterrows():
        code, amount = (row["EVID"] if "EVID" in frame else float("nan")), cell_as_number(row, "AMT")
        if np.isnan(code):
            flags.append(amount > 0)
        elif code in (MEASUREMENT, OTHER):
            flags.append(False)
        elif code in (DOSE, RESET, RESET_AND_DOSE) or (code > COMPARTMENT_CODE and code % COMPARTMENT_CODE == 1):
            flags.append(True)
        else:
            raise ValueError(
                f"{row['where']} has EVID {code:g}; known are 0 (a measurement), 1 (a dose), 2 (neither), 3 (a reset), "
                "4 (a reset with a dose), and 101, 201, ... (a dose at CMT 1, 2, ...)."
            )
    return flags


def dose_times(row: "pandas.Series", time: float, where: str) -> list[float]:
    """Returns the times of a dose, of its additional doses, and of the doses before a steady state."""
    interval, more, steady = cell_as_number(row, "II"), int(cell_as_number(row, "ADDL")), cell_as_number(row, "SS")
    if (more or steady) and interval <= 0:
        raise ValueError(f"{where} has ADDL or SS without II, the time between two doses; give II.")
    times = [time + interval * number for number in range(more + 1)]
    if steady:
        times = [time - interval * number for number in range(STEADY_DOSES, 0, -1)] + times
    return times


def structure_of(path: Path, compartments: Sequence[str]) -> NONMEM:
    """Returns a source that reads only the kinds of rows, not the values."""
    return NONMEM(
        path=str(path), time="TIME", states=("DV",), trajectory="ID", censored=True, compartments=compartments
    )


def guess_measured(path: Path, compartments: Sequence[str]) -> list[str]:
    """Guesses the states that a table measures, in the order of the equations, from DVID, CMT, or a state named DV.

    Without these columns, it is the last state.
    """
    source = structure_of(path, compartments)
    rows = source.read_rows(path)
    rows = rows[~rows["is_dose"] & rows["DV"].notna()]
    if "MDV" in rows:
        rows = rows[rows["MDV"] != 1]
    if "DVID" in rows:
        names = list(dict.fromkeys(plain(text) for text in rows["DVID"]))
        return names if all(not name.isdigit() for name in names) else list(compartments[-len(names) :])
    if "CMT" in rows:
        measured = {source.state_at(cell, str(where)) for cell, where in zip(rows["CMT"], rows["where"], strict=True)}
        return [name for name in compartments if name in measured]
    return ["DV"] if "DV" in compartments else list(compartments[-1:])


def infused_states(path: Path, compartments: Sequence[str]) -> list[str]:
    """Returns the states with infusions in a table."""
    source = structure_of(path, compartments)
    return list(dict.fromkeys(state for _, state in source.read_doses(source.read_rows(path)).rates))

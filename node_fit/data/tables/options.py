"""User options that override the detected layout of tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...runtime.validation import check_argument, check_choice, is_mapping

DECIMAL_MARKS = (".", ",")
TIME_FORMATS = ("number", "timestamp", "hh:mm:ss", "hh:mm", "mm:ss", "unix_s", "unix_ms", "unix_us", "unix_ns")
GAPS = ("auto", "linear", "hold", "none")
INTERVALS = ("after", "before")
REPEAT_RULES = ("auto", "mean", "none")
ROW_ORDERS = ("auto", "written", "sorted")
OF_LEVELS = "the words of each covariate that is text, such as {strain: [wild, mutant]}"


@dataclass(frozen=True)
class ReadingOptions:
    """Layout of a table; values of None or `auto` are detected and reported in the notes of the dataset.

    **Arguments:**

    - `header`: line of a text file with the column names, counted from 1; in a spreadsheet, its row.
    - `first_row`: line of the first data row below it; lines between, such as a row of units, are skipped.
    - `decimal`: the decimal mark, a point or a comma; the other one then groups thousands.
    - `missing`: markers of a missing value, words or numbers such as `-999`, in place of the common words. An empty
      cell is always missing.
    - `sheet`: the sheet of a spreadsheet, the group of an HDF5 or NetCDF file, or the struct of a MATLAB file.
    - `time_format`: one of `TIME_FORMATS`; `number` leaves numbers unchanged.
    - `input_gaps`: how to fill rows without a value of an input: `linear` between the values around, `hold` for the
      last value, `none` to reject such rows; or one of these for each input, by name.
    - `repeats`: treatment of several rows of a trajectory at one time: their `mean`, or `none` to reject them. `auto`
      takes the mean if at least half of the times repeat, and joins rows that share no state.
    - `row_order`: `written`, or `sorted` by time within each trajectory. `auto` reverses rows in descending order, and
      begins a new trajectory where the time begins again, if no column names trajectories.
    - `input_interval`: the interval for which a row gives the value of an input: `after` the row, or `before` it, as
      loggers give means of the time since the row before; or one of these for each input, by name.
    - `levels`: words of covariates that are text, by name; a covariate is the position of its word, from 0.

    **Raises:** `ValueError` if a value is not allowed.
    """

    header: int | None = None
    first_row: int | None = None
    decimal: str | None = None
    missing: Sequence[str | float | int] | None = None
    sheet: str | None = None
    time_format: str | None = None
    input_gaps: str | Mapping[str, str] = "auto"
    repeats: str = "auto"
    row_order: str = "auto"
    input_interval: str | Mapping[str, str] = "after"
    levels: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    def __post_init__(self):
        check_argument("missing", self.missing, Sequence[str | float] | None, "a list of words or numbers")
        if isinstance(self.missing, str):
            raise ValueError(f"missing must be a list, got the text {self.missing!r}; write missing=[{self.missing}].")
        check_argument("sheet", self.sheet, str | None, "a name")
        for key in ("header", "first_row"):
            line = getattr(self, key)
            if line is not None and (isinstance(line, bool) or not isinstance(line, int) or line < 1):
                raise ValueError(f"{key} must be the number of a line, counted from 1, got {line!r}.")
        if self.header is not None and self.first_row is not None and self.first_row <= self.header:
            raise ValueError(f"first_row={self.first_row} must come after the line of names, header={self.header}.")
        choices = {
            "decimal": DECIMAL_MARKS,
            "time_format": TIME_FORMATS,
            "repeats": REPEAT_RULES,
            "row_order": ROW_ORDERS,
        }
        for key, known in choices.items():
            check_argument(key, getattr(self, key), str | None, f"one of {', '.join(known)}")
            check_choice(key, getattr(self, key), known)
        for option, known in (("input_gaps", GAPS), ("input_interval", INTERVALS)):
            given = getattr(self, option)
            for name, choice in (given if is_mapping(given) else {"": given}).items():
                key = f"{option}.{name}" if name else option
                check_argument(key, choice, str, f"one of {', '.join(known)}")
                check_choice(key, choice, known)

        check_argument("levels", self.levels, Mapping[str, object], OF_LEVELS)
        for name, words in self.levels.items():
            check_argument(f"levels.{name}", words, Sequence[str], "a list of words")
            if isinstance(words, str) or len(set(words)) < max(len(words), 1):
                raise ValueError(f"levels.{name} must be a list of different words, got {words!r:.60}.")

    def check_inputs(self, names: Sequence[str]) -> None:
        """Raises a `ValueError` if an option names a column that is no input."""
        for option in ("input_gaps", "input_interval"):
            given = getattr(self, option)
            for name in given if is_mapping(given) else ():
                check_choice(f"a name in {option}", name, names)

    def gap_of(self, name: str) -> str:
        """Returns how gaps of the input `name` are filled."""
        return self.input_gaps if isinstance(self.input_gaps, str) else self.input_gaps.get(name, "auto")

    def interval_of(self, name: str) -> str:
        """Returns the interval for which a row gives the value of the input `name`."""
        given = self.input_interval
        return given if isinstance(given, str) else given.get(name, "after")


AS_RECOGNISED = ReadingOptions()

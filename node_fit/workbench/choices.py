"""The options on the page: keys of the command, which are checked before they are added to it."""

import re
from collections.abc import Callable, Mapping

from ..app.config.overrides import as_value
from ..model.fields.equations import read_equation_text
from ..runtime.serialization import parse_number

# Maximum length of a short text and of equations [characters], and maximum number of constants.
MAX_TEXT, MAX_EQUATIONS, MAX_CONSTANTS = 200, 20_000, 200
# Options of `field` on the page.
OFFERED_FIELDS = ("auto", "mlp", "linear", "sparse", "second_order", "known")


def one_of(*known: str) -> Callable[[str, object], str]:
    def check(key: str, value: object) -> str:
        if value not in known:
            raise ValueError(f"{key} must be one of {', '.join(known)}, got {value!r:.40}.")
        return str(value)

    return check


def count_from(least: int, most: int) -> Callable[[str, object], str]:
    def check(key: str, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{key} must be a whole number from {least} to {most:,}, got {value!r:.40}.")
        return str(value)

    return check


def positive_number(key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise ValueError(f"{key} must be a positive number, got {value!r:.40}.")
    return repr(float(value))


def short_text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > MAX_TEXT or not value.isprintable():
        raise ValueError(f"{key} must be a text of at most {MAX_TEXT} letters, got {value!r:.40}.")
    return as_value(value)


# Options for the format of a table that is not recognised.
READING: dict[str, Callable[[str, object], str]] = {
    "data.decimal": lambda key, value: as_value(one_of(".", ",")(key, value)),
    "data.header": count_from(1, 100_000),
    "data.first_row": count_from(1, 100_000),
    "data.sheet": short_text,
    "data.time_unit": one_of("s", "min", "h", "d"),
    "data.day_first": one_of("true", "false"),
    "data.step": positive_number,
}
FITTING: dict[str, Callable[[str, object], str]] = {
    "effort": one_of("quick", "normal", "thorough"),
    "training.steps": count_from(1, 1_000_000),
    "precision": one_of("x32", "x64"),
    "hidden": count_from(0, 20),
    "start": one_of("first", "fitted"),
    "seed": count_from(0, 2**31 - 1),
    "data.split.by": one_of("trajectory", "time"),
    "discover": one_of("true", "false"),
}


def words_of_reading(options: Mapping[str, object]) -> list[str]:
    """Returns the overrides for the format of a table."""
    return [f"{key}={READING[key](key, value)}" for key, value in options.items() if key in READING]


def words_of_options(options: Mapping[str, object]) -> list[str]:
    """Returns the overrides for the page's options, in the order of the tables above; rejects other keys.

    **Raises:** `ValueError` with the key and its allowed values.
    """
    checks = {**READING, **FITTING}
    model_keys = ("field", "equations", "constants")
    if unknown := [key for key in options if key not in checks and key not in model_keys]:
        raise ValueError(f"{unknown[0]!r:.60} is no option of this page; use the command for it.")
    words = [f"{key}={check(key, options[key])}" for key, check in checks.items() if key in options]
    field = one_of(*OFFERED_FIELDS)("field", options.get("field", "auto"))
    if field == "known":
        equations = equations_of_page(options.get("equations"))
        words += ["field=known", f"+field.equations={as_value(equations)}"]
        if constants := constants_of_page(options.get("constants") or ""):
            words.append(f"+field.constants={as_value(constants)}")
    elif field != "auto":
        words.append(f"field={field}")
    return words


def equations_of_page(text: object) -> dict[str, str]:
    """Parses equations, one per line, such as `x: -k*x`.

    **Raises:** `ValueError` with the line.
    """
    if not isinstance(text, str) or len(text) > MAX_EQUATIONS:
        raise ValueError(f"equations must be a text of at most {MAX_EQUATIONS:,} letters.")
    return dict(read_equation_text(text, "equations"))


def constants_of_page(text: object) -> dict[str, object]:
    """Parses initial values of constants, one per line: `k = 1.0`, or with bounds `k = 1.0, 0, 10`.

    **Raises:** `ValueError` with the line.
    """
    if not isinstance(text, str) or len(text) > MAX_EQUATIONS:
        raise ValueError(f"constants must be a text of at most {MAX_EQUATIONS:,} letters.")
    constants: dict[str, object] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        name, sign, values = (
            (part.strip() for part in re.split(r"([=:])", line, maxsplit=1))
            if re.search("[=:]", line)
            else ("", "", "")
        )
        try:
            numbers = [parse_number(number_text) for number_text in values.split(",")]
        except ValueError:
            numbers = []
        if not sign or not name.isidentifier() or len(numbers) not in (1, 3):
            raise ValueError(
                f"constants, line {number}: write k = 1.0, or k = 1.0, 0, 10 with bounds; got {line!r:.60}."
            )
        constants[name] = numbers[0] if len(numbers) == 1 else numbers
    if len(constants) > MAX_CONSTANTS:
        raise ValueError(f"constants must be at most {MAX_CONSTANTS}, got {len(constants)}.")
    return constants

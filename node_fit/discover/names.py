"""Converts column names to names that equations can have: without units in brackets, spaces or signs."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from ..data.dataset import Dataset
from ..model.fields.equations import check_symbol

# A unit in brackets at the end of a name.
UNIT = re.compile(r"\s*[(\[]([^()\[\]]*)[)\]]\s*$")


def is_symbol(name: str) -> bool:
    """Whether a name is valid in equations."""
    try:
        check_symbol(name, "state")
    except ValueError:
        return False
    return True


def plain_names(names: Sequence[str]) -> dict[str, str]:
    """Returns a valid and unused name for each name that equations can't have.

    For example, `Voltage (V)` becomes `Voltage`, `speed-2` becomes `speed_2`, and `exp` becomes `exp_`.
    """
    taken = {name for name in names if is_symbol(name)}
    plain: dict[str, str] = {}
    for name in names:
        if name in taken:
            continue
        short = re.sub(r"\W+", "_", UNIT.sub("", name) or name).strip("_") or "x"
        short = f"x{short}" if short[0].isdigit() else short if is_symbol(short) else f"{short}_"
        numbered = (f"{short}{number}" for number in range(2, len(names) + 2))
        plain[name] = (
            short if short not in taken else next(candidate for candidate in numbered if candidate not in taken)
        )
        taken.add(plain[name])
    return plain


def with_plain_names(data: Dataset) -> tuple[Dataset, dict[str, str]]:
    """Returns the data with valid names of states and inputs, and the new name of each renamed column."""
    plain = plain_names([*data.states, *data.inputs])
    rename = {name: plain.get(name, name) for name in (*data.states, *data.inputs)}
    renamed = replace(
        data,
        states=tuple(rename[name] for name in data.states),
        inputs=tuple(rename[name] for name in data.inputs),
        units={rename.get(name, name): unit for name, unit in data.units.items()},
        angles={rename[name]: turn for name, turn in data.angles.items()},
    )
    return renamed, plain


def rename_columns(data: Mapping[str, object], columns: Sequence[str] | None = None) -> dict[str, object]:
    """Returns a table's settings with valid names of states and inputs, which its key `rename` maps to the columns.

    **Arguments:** `columns`: all columns of the file, so that names do not depend on the roles; None for those with a
    role.
    """
    roles = [
        str(name) for key in ("states", "inputs", "covariates") for name in cast(Sequence[str], data.get(key) or ())
    ]
    plain = plain_names(roles if columns is None else columns)

    def new_name(value: object) -> object:
        if isinstance(value, Mapping):
            return {plain.get(str(name), name): entry for name, entry in cast(Mapping[str, object], value).items()}
        return [plain.get(name, name) for name in cast(Sequence[str], value)]

    keys = ("states", "inputs", "covariates", "levels", "units", "log", "bounds", "angles", "sigma")
    changed = {key: new_name(data[key]) for key in keys if not isinstance(data.get(key), str | float | None)}
    rename = {plain[name]: name for name in roles if name in plain}
    return {**data, **changed, "rename": {**cast(Mapping[str, str], data.get("rename") or {}), **rename}}


def unit_of(name: str) -> str | None:
    """Returns the unit in brackets at the end of a column's name, as in `Voltage (V)`."""
    match = UNIT.search(name)
    return match[1].strip() or None if match else None


def write_plainly(texts: Iterable[str], plain: Mapping[str, str]) -> list[str]:
    """Replaces names in texts by their plain names, the longest first."""
    written = list(texts)
    for name in sorted(plain, key=len, reverse=True):
        written = [text.replace(name, plain[name]) for text in written]
    return written

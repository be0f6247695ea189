"""Formulas of the noise of a state, specified by a name, as an expression, or with initial values."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from ..runtime.validation import is_mapping

# Name of a state's own predicted value in its formula, whatever the state is called.
PREDICTION = "prediction"
# Standard deviations by name. Their constants get the state's name as a suffix if there are several states.
NAMED_FORMULAS = {
    "additive": "sigma",
    "proportional": "sigma_rel*abs(prediction)",
    "combined": "sqrt(sigma**2 + (sigma_rel*prediction)**2)",
    "power": "sigma*abs(prediction)**sigma_power",
    "lognormal": "sigma_log",
}
LOGNORMAL = "lognormal"
# Pattern that marks a text as an expression rather than the name of a column.
OPERATOR = re.compile(r"[*+^]|\b(abs|exp|log|log10|max|maximum|min|minimum|sqrt)\(")
# Pattern of columns in a wide table, such as `sd*`.
PATTERN = re.compile(r"[^\s()+^/*]*\*[^\s()+^/*]*")
FORMULA_KEYS = {"formula", "constants"}


@dataclass(frozen=True)
class NoiseFormula:
    """The standard deviation of a state's measurements as a formula.

    - `text`: an expression of states, inputs, the time, constants, and `prediction`, the state's own predicted value.
    - `constants`: initial values, or `[value, lower, upper]`, of constants of the noise; others are initialized from
      the data, and are positive.
    - `is_log`: whether it is the standard deviation of the logarithm (log-normal noise).
    """

    text: str
    constants: Mapping[str, object] = field(default_factory=dict[str, object])
    is_log: bool = False


def is_formula(given: object, wide_state: str | None = None) -> bool:
    """Whether an entry of `sigma` is a formula rather than a number, column or pair of parts.

    **Arguments:** `wide_state`: state of a wide table, in which `sd*` names columns and `0.1*y` is a formula.
    """
    if is_mapping(given):
        return "formula" in given
    if not isinstance(given, str) or given in NAMED_FORMULAS:
        return isinstance(given, str)
    if wide_state is not None and PATTERN.fullmatch(given):
        return not {wide_state, PREDICTION}.isdisjoint(given.split("*"))
    return OPERATOR.search(given) is not None


def read_formula(given: object, state: str, states: Sequence[str]) -> NoiseFormula:
    """Parses an entry of `sigma` into a formula.

    **Raises:** `ValueError` that names the state and the expected form.
    """
    constants: Mapping[str, object] = {}
    if is_mapping(given) and "formula" in given:
        if set(given) - FORMULA_KEYS or not isinstance(given["formula"], str):
            raise ValueError(
                f"sigma of {state!r} must be {{formula: 's0 + s1*{state}', constants: {{s0: 0.1}}}}, got "
                f"{dict(given)!r:.80}."
            )
        constants_of_entry = given.get("constants", {})
        if not is_mapping(constants_of_entry):
            raise ValueError(f"constants of the sigma of {state!r} must be a mapping such as {{s0: 0.1}}.")
        constants, given = cast(Mapping[str, object], constants_of_entry), given["formula"]
    if isinstance(given, str):
        return NoiseFormula(with_own_names(given, state, states), constants, given == LOGNORMAL)
    parts = cast(Mapping[str, float], given) if is_mapping(given) else {"absolute": cast(float, given)}
    squares = [f"({parts['absolute']})**2"] if "absolute" in parts else []
    squares += [f"({parts['relative']}*{PREDICTION})**2"] if "relative" in parts else []
    return NoiseFormula(f"sqrt({' + '.join(squares)})")


def read_formulas(given: object, states: Sequence[str]) -> dict[str, NoiseFormula]:
    """Parses the formula of each state, from one for all or one per state; empty for None.

    **Raises:** `ValueError` if a state lacks a formula.
    """
    if given is None:
        return {}
    by_state = given if is_mapping(given) else dict.fromkeys(states, given)
    lacking = [name for name in states if name not in by_state]
    if lacking:
        raise ValueError(f"sigma has no entry for the state {lacking[0]!r}; give one for each of {', '.join(states)}.")
    return {name: read_formula(by_state[name], name, states) for name in states}


def with_own_names(text: str, state: str, states: Sequence[str]) -> str:
    """Expands a named formula, with state names in its constants if there are several states; returns others as is."""
    if text not in NAMED_FORMULAS:
        return text
    suffix = re.sub(r"\W", "_", state)
    ending = "" if len(states) == 1 else f"_{suffix}"
    return re.sub(r"\bsigma\w*", lambda name: name[0] + ending, NAMED_FORMULAS[text])

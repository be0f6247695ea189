"""Formulas in the files of PEtab and SBML: their text, their limits, and the time in them."""

from ..expressions.parsing import PETAB_DIALECT, ParseError, parse_text
from ..expressions.tree import Expression, ExpressionSize, Number, Symbol, measure, symbols

TIME = "time"
# Formulas come from files of others. These limits bound the time to parse and to trace them.
MAX_DEPTH, MAX_NODES = 100, 200_000
# The same of a formula of a table or a rule with all that it names written out: `evaluate` calls itself for each level.
MAX_DEPTH_WRITTEN_OUT, MAX_NODES_OF_TEXT = 250, 10_000


class FormulaError(ValueError):
    """Raised for a text that is no formula."""


def parse_formula(text: str | float, place: str) -> Expression:
    """Parses a formula in the grammar of PEtab: `+ - * / ^`, comparisons, `&& || !`, `piecewise`, functions.

    **Arguments:**

    - `text`: the formula, or a number.
    - `place`: where it is written, for the sentence about one that is wrong.

    **Raises:** `FormulaError` that says what is wrong, and at which column.
    """
    if isinstance(text, int | float):
        return Number(float(text))
    try:
        formula = parse_text(text, PETAB_DIALECT)
    except ParseError as error:
        raise FormulaError(f"{place}: {error.reason} (column {error.column} of {text[:200]!r}).") from None
    refuse_large(measure(formula), place)
    return formula


def refuse_large(size: ExpressionSize, place: str) -> None:
    """Refuses a formula that takes too long to trace, or too many calls of `evaluate` within each other."""
    if size.depth > MAX_DEPTH_WRITTEN_OUT or size.nodes > MAX_NODES_OF_TEXT:
        raise FormulaError(
            f"{place}: with what it names written out, the formula is nested over {MAX_DEPTH_WRITTEN_OUT} deep or has "
            f"over {MAX_NODES_OF_TEXT:,} parts; write it shorter."
        )


def is_affine_in_time(formula: Expression, moving: frozenset[str]) -> bool:
    """Whether a formula is of first degree in the time, and holds no name that moves."""
    if isinstance(formula, Number):
        return True
    if isinstance(formula, Symbol):
        return formula.name not in moving
    inside = [TIME in symbols(each) for each in formula.arguments]
    affine = all(is_affine_in_time(each, moving) for each in formula.arguments)
    if not any(inside) or formula.function in ("+", "-", "negative"):
        return affine
    return affine and ((formula.function == "*" and sum(inside) == 1) or (formula.function == "/" and not inside[1]))

"""Formulas in the files of PEtab and SBML: their text, their limits, and the time in them."""

from ..expressions.parsing import PETAB_DIALECT, ParseError, parse_text
from ..expressions.tree import Expression, ExpressionSize, Number, Symbol, measure, symbols

TIME = "time"
# Limits on formulas from untrusted files, which bound the time to parse and to trace them.
MAX_DEPTH, MAX_NODES = 100, 200_000
# Maximum depth of a formula with all its names written out; `evaluate` recurses once per level.
MAX_DEPTH_WRITTEN_OUT, MAX_NODES_OF_TEXT = 250, 10_000


class FormulaError(ValueError):
    """Raised for text that is not a formula."""


def parse_formula(text: str | float, place: str) -> Expression:
    """Parses a formula in the grammar of PEtab: `+ - * / ^`, comparisons, `&& || !`, `piecewise`, functions.

    **Arguments:**

    - `text`: the formula, or a number.
    - `place`: its location, for the error message.

    **Raises:** `FormulaError` with the reason and the column.
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
    """Refuses a formula that takes too long to trace, or too many nested calls of `evaluate`."""
    if size.depth > MAX_DEPTH_WRITTEN_OUT or size.nodes > MAX_NODES_OF_TEXT:
        raise FormulaError(
            f"{place}: with its names written out, the formula is nested over {MAX_DEPTH_WRITTEN_OUT} deep or has "
            f"over {MAX_NODES_OF_TEXT:,} parts; write it shorter."
        )


def is_affine_in_time(formula: Expression, moving: frozenset[str]) -> bool:
    """Whether a formula is affine in the time, and contains no moving name."""
    if isinstance(formula, Number):
        return True
    if isinstance(formula, Symbol):
        return formula.name not in moving
    inside = [TIME in symbols(argument) for argument in formula.arguments]
    affine = all(is_affine_in_time(argument, moving) for argument in formula.arguments)
    if not any(inside) or formula.function in ("+", "-", "negative"):
        return affine
    return affine and ((formula.function == "*" and sum(inside) == 1) or (formula.function == "/" and not inside[1]))

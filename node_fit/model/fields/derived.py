"""Quantities that follow from the constants of equations, such as a half-life, written as text."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...data.bounds import Bounds
from ...runtime.placement import scope
from .equations import check_symbol, column_of, evaluate_term, nearest_symbol, normalize, parse, variables

KIND = "derived quantity"


@dataclass(frozen=True)
class Quantity:
    """An expression of constants.

    - `name`, `text`: its name and its expression.
    """

    name: str
    text: str

    @property
    def tree(self) -> Any:
        return parse(self.name, self.text, KIND)

    @property
    def names(self) -> tuple[str, ...]:
        """The constants in it, normalised."""
        return tuple(dict.fromkeys(node.id for node in variables(self.tree)))

    def uses(self, constant: str) -> bool:
        return normalize(constant) in self.names

    def of(self, values: Mapping[str, Any]) -> Any:
        """Its value in double precision; an array of them if a constant has an array of values."""
        with scope("x64"), np.errstate(all="ignore"):
            known = {normalize(name): jnp.asarray(value, jnp.float64) for name, value in values.items()}
            found = np.asarray(evaluate_term(self.tree, known, jnp.float64))
        return found if found.ndim else float(found)

    def gradient(self, values: Mapping[str, float]) -> dict[str, float]:
        """Its derivative by each constant."""
        with scope("x64"):
            known = {normalize(name): jnp.asarray(value, jnp.float64) for name, value in values.items()}
            found = jax.grad(lambda at: evaluate_term(self.tree, at, jnp.float64))(known)
            return {name: float(found[normalize(name)]) for name in values}

    def is_positive(self, bounds: Mapping[str, Bounds]) -> bool:
        """Whether it is positive for all values of the constants within their bounds, as its form shows."""

        def positive(node: ast.expr) -> bool:
            match node:
                case ast.Name(id=name):
                    lower = next(pair[0] for key, pair in bounds.items() if normalize(key) == name)
                    return lower is not None and lower >= 0
                case ast.BinOp(op=ast.Add() | ast.Mult() | ast.Div(), left=left, right=right):
                    return positive(left) and positive(right)
                case ast.BinOp(op=ast.Pow(), left=left):
                    return positive(left)
                case ast.Call(func=ast.Name(id="exp" | "sigmoid")):
                    return True
                case ast.Call(func=ast.Name(id="sqrt"), args=[argument]):
                    return positive(argument)
            # Without constants it is a number.
            return not any(variables(node)) and float(evaluate_term(node, {}, float)) > 0

        return positive(self.tree)


def quantities(texts: Mapping[str, str | float] | None, constants: Sequence[str] | None = None) -> tuple[Quantity, ...]:
    """Reads derived quantities.

    **Arguments:** `texts`: the expression of each by its name. `constants`: the constants that they may use, if known.

    **Raises:** `ValueError` that names the quantity, what is wrong with it, and the column.
    """
    found = []
    for name, text in (texts or {}).items():
        check_symbol(name, KIND)
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise ValueError(f"{KIND} {name!r} must be a string such as 'log(2)/k', got {text!r:.60}.")
        found.append(Quantity(name, " ".join(str(text).split())))
        _ = found[-1].tree
    if constants is not None and found:
        check_quantities(found, constants)
    return tuple(found)


def check_quantities(found: Sequence[Quantity], constants: Sequence[str]) -> None:
    """Refuses a name that is not that of a constant, and the name of a constant for a quantity."""
    if not constants:
        raise ValueError(
            f"{KIND} {found[0].name!r} needs constants, and the model has none; give field.constants with field=known "
            "or field=hybrid."
        )
    known = [normalize(name) for name in constants]
    for each in found:
        if normalize(each.name) in known:
            raise ValueError(f"{KIND} {each.name!r} has the name of a constant; rename it.")
        for node in variables(each.tree):
            if node.id not in known:
                raise ValueError(
                    f"{KIND} {each.name!r}: {node.id!r} is not a constant (column {column_of(node, each.text)} of "
                    f"{each.text[:200]!r}); {nearest_symbol(node.id, known)}"
                )

"""Places unknown functions in the rates of states: separately, within known equations, or as flows between states."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from ..expressions.evaluation import Tape
from ..expressions.tree import Expression, substitute
from ..model.fields.equations import parse
from .formulas import Formula, Term, lift_expression, monomial, read_tape
from .shapes import summands_of

# Maximum number of molecules on each side of a reaction.
MOST_MOLECULES = 2
# Relative residual below which known constants absorb a term's effect.
SPANNED = 1e-6


@dataclass(frozen=True)
class Balance:
    """The functions to find, and their places in the rates of states.

    **Arguments:**

    - `titles`: description of each function for the user: the rate of a state, a term, or a flow.
    - `unknowns`: a name for each function, distinct from states and inputs.
    - `rates`: the rate of each state, in the grammar of equations, with these names.
    - `shares`: coefficient of each function in the rate of each state, `(function, state)`, if only these sums are
      known; None if every function is known separately.
    - `constants`: known constants by name, which are fitted with the others.
    - `offered`: the only terms of each function; None to use the libraries.
    - `positive`: whether all constants must be above 0, as for reactions.
    """

    titles: tuple[str, ...]
    unknowns: tuple[str, ...]
    rates: tuple[str, ...]
    shares: np.ndarray | None = None
    constants: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    offered: tuple[tuple[Term, ...], ...] | None = None
    positive: bool = False

    @staticmethod
    def apart(states: Sequence[str]) -> "Balance":
        """Returns the balance in which the rate of each state is a separate function."""
        names = tuple(f"rate{at}_" for at in range(len(states)))
        return Balance(tuple(states), names, names)

    @staticmethod
    def flows(
        titles: Sequence[str],
        shares: np.ndarray,
        offered: tuple[tuple[Term, ...], ...] | None = None,
        positive: bool = False,
    ) -> "Balance":
        """Returns the balance in which rates are sums of flows; a flow can occur in several rates.

        **Arguments:** `shares`: whole numbers, `(flow, state)`.
        """
        names = tuple(f"flow{at}_" for at in range(len(titles)))
        rates: list[str] = []
        for column in shares.T:
            summands = [
                f"{'-' if share < 0 else '+'} {name if abs(share) == 1 else f'{abs(share):g}*{name}'}"
                for name, share in zip(names, column, strict=True)
                if share
            ]
            rates.append(" ".join(summands).removeprefix("+ ") or "0")
        return Balance(
            tuple(titles), names, tuple(rates), np.asarray(shares, float), offered=offered, positive=positive
        )

    @property
    def may_be_empty(self) -> bool:
        """Whether functions can be without terms, as flows and corrections of known equations can."""
        return self.shares is not None or bool(self.rates != self.unknowns)

    def accepts(self, formulas: Sequence[Formula], required: Sequence[str] = ()) -> bool:
        """Whether constants have the required sign, and functions the required terms.

        If functions can be empty, one of them must have a required term, otherwise all.
        """
        if self.positive and any(value <= 0 for formula in formulas for value in formula.constants):
            return False
        if self.may_be_empty:
            return set(required) <= {term for formula in formulas for term in formula.terms}
        return all(set(required) <= set(formula.terms) for formula in formulas)

    def known_functions(self) -> tuple[Formula, ...]:
        """Returns the functions that are known constants, which come last."""
        return tuple(Formula(("{0}",), (float(value),), (), 1) for value in self.constants.values())

    def absorb(
        self, terms: Sequence[Term], names: Sequence[str], values: np.ndarray, given: np.ndarray
    ) -> list[set[str]]:
        """Finds for each function the terms that no data can distinguish from changes of known constants.

        Examples are `x` in `f` if the rate is `-k*x + f`, and `x` and 1 if it is `-k*(x - b) + f`.

        **Arguments:** `names`, `values`: states and inputs, and their values `(row, name)`. `given`: the values of the
        functions except the constants, `(row, function)`.
        """
        if not self.constants:
            return [set() for _ in self.titles]
        rates = read_tape(self.rates, [*names, *self.unknowns])
        arguments = [*values.T, *given.T, *self.constants.values()]
        slopes = [slopes_of(rates, arguments, len(names) + place) for place in range(len(self.unknowns))]
        sought, known = (
            slopes[: given.shape[1]],
            np.stack([slope.ravel() for slope in slopes[given.shape[1] :]], axis=1),
        )
        with np.errstate(all="ignore"):
            added = read_tape([term.text for term in terms], names)([*values.T])
        return [
            {term.text for term, value in zip(terms, added, strict=True) if is_spanned((slope * value).ravel(), known)}
            for slope in sought
        ]

    def write(self, texts: Sequence[str], states: Sequence[str], digits: int = 15) -> dict[str, str]:
        """Writes the rate of each state with texts in place of the functions, rounding its numbers to `digits`."""
        held = dict(zip(self.unknowns, texts, strict=True))
        trees = {name: parse(name, text) for name, text in held.items()}
        return {
            state: held[rate] if rate in held else join(summands_of(substitute(parse(state, rate), trees)), digits)
            for state, rate in zip(states, self.rates, strict=True)
        }


def slopes_of(rates: Tape, at: Sequence[np.ndarray | float], place: int) -> np.ndarray:
    """Computes the derivatives of rates with respect to one value, `(state, row)`."""
    step = 1e-5 * (float(np.abs(at[place]).max()) or 1.0)
    shape = np.broadcast_shapes(*map(np.shape, at))
    above, below = (
        np.stack([np.broadcast_to(rate, shape) for rate in rates([*at[:place], at[place] + nudge, *at[place + 1 :]])])
        for nudge in (step, -step)
    )
    return (above - below) / (2 * step)


def is_spanned(column: np.ndarray, known: np.ndarray) -> bool:
    """Whether a column is a linear combination of known columns, `(row, column)`."""
    if not np.isfinite(column).all():
        return False
    residual = column - known @ np.linalg.lstsq(known, column)[0]
    return bool(np.linalg.norm(residual) < SPANNED * np.linalg.norm(column))


def join(summands: Iterable[tuple[int, Expression]], digits: int) -> str:
    """Writes a sum with numbers rounded to `digits`."""
    text = ""
    for sign, tree in summands:
        text += f" {'-' if sign < 0 else '+'} {lift_expression(tree).with_numbers(digits)}"
    return re.sub(r"^ (?:\+ |(-) )", r"\1", text) or "0"


def conserving(states: Sequence[str], sums: Sequence[str]) -> Balance:
    """Returns the balance that conserves sums of states: every flow leaves one of their states and enters another.

    **Arguments:** `sums`: texts such as `"S + I + R"`; states in none of them have separate rates.

    **Raises:** `ValueError` if a text is not a sum of states, or a state is in two sums.
    """
    groups = [[name.strip() for name in text.split("+")] for text in sums]
    for text, group in zip(sums, groups, strict=True):
        unknown = [name for name in group if name not in states]
        if unknown or len(group) < 2:
            raise ValueError(
                f"conserved: {text!r} must be a sum of at least two states, such as {' + '.join(states[:2])!r}; "
                f"the states are {', '.join(states)}."
            )
    twice = [name for name, count in Counter(itertools.chain.from_iterable(groups)).items() if count > 1]
    if twice:
        raise ValueError(f"conserved: {twice[0]!r} occurs twice; a state can be in one sum only.")
    titles: list[str] = []
    rows: list[list[int]] = []
    for group in groups:
        for source, sink in itertools.combinations(group, 2):
            titles.append(f"{source} -> {sink}")
            rows.append([(name == sink) - (name == source) for name in states])
    for alone in states:
        if not any(alone in group for group in groups):
            titles.append(alone)
            rows.append([name == alone for name in states])
    return Balance.flows(titles, np.array(rows, int))


def reacting(states: Sequence[str], sums: Sequence[str] = ()) -> Balance:
    """Returns the balance of reactions of at most two molecules, with rates proportional to the product of reactants.

    Reactions whose effects are multiples of each other form one function, whose terms are the products of their
    possible reactants.

    **Arguments:** `sums`: sums of states that no reaction changes, as in `conserving`.
    """
    sides = [
        side for many in range(MOST_MOLECULES + 1) for side in itertools.combinations_with_replacement(states, many)
    ]
    groups = [[name.strip() for name in text.split("+")] for text in sums]
    conserving(states, sums)  # Validates the sums.
    effects: dict[tuple[int, ...], tuple[str, list[Term]]] = {}
    for before, after in itertools.permutations(sides, 2):
        if not before and len(after) > 1:
            continue  # Inflow from outside adds one molecule at a time.
        change = {name: after.count(name) - before.count(name) for name in states}
        if any(sum(change[name] for name in group) for group in groups):
            continue
        many = math.gcd(*change.values())
        effect = tuple(number // many for number in change.values())
        title = f"{' + '.join(before) or 'nothing'} -> {' + '.join(after) or 'nothing'}"
        effects.setdefault(effect, (title, []))[1].append(monomial(before))
    titles = [title for title, _ in effects.values()]
    offered = tuple(tuple({term.text: term for term in terms}.values()) for _, terms in effects.values())
    return Balance.flows(titles, np.array(list(effects)), offered=offered, positive=True)

"""Right-hand sides as text, parsed by a small grammar and never run as Python code."""

import keyword
import math
import re
import unicodedata
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...data.tables.paths import missing
from ...runtime.stored_names import stored_as
from .grammar import FUNCTIONS, EquationError, evaluate, nearest, parse, variables

# A line of a file of equations.
LINE = re.compile(r"\s*(?:d(?P<derived>\w+)\s*/\s*dt|(?P<state>[^:=]*?)'?)\s*[:=](?P<text>.*)")
# A file of equations is not larger [bytes].
MOST = 1_000_000
# What to write for numbers that have a name elsewhere.
NUMBERS = {"e": "write exp(x) for e^x.", "pi": f"write {math.pi} for pi."}


@stored_as("Equations")
class Equations(eqx.Module):
    """Right-hand sides `d(state)/dt = expression`, written as text.

    An expression consists of numbers, names, `+ - * / **`, parentheses, and the functions exp, log, log10, sqrt, sin,
    cos, tan, sinh, cosh, tanh, sigmoid, abs, sign, minimum and maximum. `^` is another way to write `**`.

    **Arguments:**

    - `texts`: pairs of a state's name and its right-hand side. `Equations.of` makes and checks them.
    """

    texts: tuple[tuple[str, str], ...] = eqx.field(static=True)

    @staticmethod
    def of(texts: Mapping[Any, Any]) -> "Equations":
        """Makes equations from a mapping of each state's name to its right-hand side, a text or a number.

        **Raises:** `ValueError` if a name or a text is not valid in an equation; it says where.
        """
        if not texts:
            raise ValueError("equations is empty; write one for each state, such as {x: -a*x}.")
        pairs = []
        for name, text in texts.items():
            check_name(name, "state")
            if isinstance(text, bool) or not isinstance(text, str | int | float):
                raise ValueError(f"equation of {name!r} must be a string such as '-a*x', got {text!r}.")
            parse(name, str(text))  # as written, for the columns in errors
            pairs.append((name, " ".join(str(text).replace("^", "**").split())))
        return Equations(tuple(pairs))

    def __call__(self, names: Mapping[str, Float[Array, "..."]]) -> dict[str, Float[Array, "..."]]:
        """Evaluates all right-hand sides.

        **Arguments:**

        - `names`: the value of each name in the equations (states, inputs, time, constants, unknown terms), all of one
            floating dtype and usually scalars.

        **Returns:** the time derivative of each state, in the dtype of the values.

        **Raises:** `ValueError` if a name has no value.
        """
        self.check(names)
        values = {normalised(name): value for name, value in names.items()}
        dtype = jnp.result_type(float, *values.values())
        return {state: evaluate(parse(state, text), values, dtype) for state, text in self.texts}

    def names_used(self) -> frozenset[str]:
        """All names in the right-hand sides except functions, normalised like Python identifiers (Unicode NFKC)."""
        return frozenset(node.id for state, text in self.texts for node in variables(parse(state, text)))

    def check(self, known: Collection[str]) -> None:
        """Checks that the equations use only known names.

        **Arguments:**

        - `known`: names of states, inputs, constants, unknown terms and the time.

        **Raises:** `ValueError` with the equation, the unknown name, and the nearest known one.
        """
        names = {normalised(name) for name in known}
        for state, text in self.texts:
            for node in variables(parse(state, text)):
                if node.id not in names:
                    hint = NUMBERS.get(node.id) or nearest(node.id, names)
                    what = "is not a state, an input, a constant or the time"
                    raise EquationError(state, f": {node.id!r} {what}; {hint}")


class EquationFile(dict[str, str]):
    """The equations that a text file holds, by state; `lines` says where each is, for errors."""

    lines: dict[str, str]


def read_equations(path: str | Path) -> EquationFile:
    """Reads equations from a text file: a line each, `v: m*(1 - x^2)*v - x`, with `#` before comments.

    A line may also begin with `v =`, `v' =` or `dv/dt =`.

    **Raises:** `FileNotFoundError`, or `ValueError` that names the file, the line and the column.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"equations: {missing(path)}")
    if not path.is_file() or path.stat().st_size > MOST:
        raise ValueError(f"equations: {path} is not a text file of at most {MOST // 1000} kB; give each state a line.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"equations: {path} is not a text in UTF-8; save it as one.") from None
    found, places = EquationFile(), {}
    for number, line in enumerate(text.splitlines(), start=1):
        written, place = line.partition("#")[0], f"{path}, line {number}"
        if not written.strip():
            continue
        if (parts := LINE.fullmatch(written)) is None:
            raise ValueError(
                f"{place}: write a state and its equation, such as v: m*(1 - x^2)*v - x; got {line!r:.80}."
            )
        state = (parts["derived"] or parts["state"]).strip()
        try:
            check_name(state, "state")
            parse(state, parts["text"])
        except EquationError as error:
            if error.column is not None:
                error = EquationError(state, error.reason, error.column + parts.start("text"), line)
            raise ValueError(f"{place}: {error}") from None
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        if state in found:
            raise ValueError(f"{place}: {places[state]} gives an equation of {state!r} already; remove one.")
        found[state], places[state] = parts["text"].strip(), place
    if not found:
        raise ValueError(f"equations: {path} holds none; write a line for each state, such as v: m*(1 - x^2)*v - x.")
    found.lines = places
    return found


def as_mapping(equations: Mapping[Any, Any] | str | Path) -> Mapping[Any, Any]:
    """Equations by state; those of a file are read."""
    return read_equations(equations) if isinstance(equations, str | Path) else equations


def placed(error: EquationError, equations: Mapping[Any, Any]) -> ValueError:
    """The error, with its file and line if the equations come from a file."""
    place = equations.lines.get(error.state) if isinstance(equations, EquationFile) else None
    return error if place is None else ValueError(f"{place}: {error}")


def check_name(name: Any, kind: str) -> None:
    """Checks that a name is valid in an equation.

    **Arguments:**

    - `name`: the user's name.
    - `kind`: what the name is of, for the error message: `state`, `constant` or `term`.

    **Raises:** `ValueError` that says why the name is not valid.
    """
    if not isinstance(name, str):
        raise ValueError(f"{kind} {name!r} has a name that is not a string; in YAML, put quotes around it.")
    if name in FUNCTIONS:
        raise ValueError(f"{kind} {name!r} has the name of a function; rename it.")
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("__"):
        raise ValueError(
            f"{kind} {name!r} has a name that is not valid in an equation; rename it: use letters, digits and single "
            "underscores, do not start with a digit, and avoid Python keywords."
        )


def normalised(name: str) -> str:
    """Normalises a name as Python's parser does, which turns the micro sign into the Greek letter."""
    return unicodedata.normalize("NFKC", name)

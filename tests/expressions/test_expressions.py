"""Expressions: one table whose columns agree, and texts that mean what was read."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy as sp
from helpers.expressions import arguments_for
from hypothesis import given, settings
from hypothesis import strategies as st

from node_fit.expressions import finite_slopes
from node_fit.expressions.evaluation import Tape, evaluate
from node_fit.expressions.operations import OPERATIONS
from node_fit.expressions.parsing import EQUATION_DIALECT, PETAB_DIALECT, ParseError, Parser, find_name, parse_text
from node_fit.expressions.tree import (
    Application,
    Number,
    Symbol,
    comparisons,
    measure,
    substitute,
    symbols,
    whole_number,
)
from node_fit.expressions.writing import write, write_sympy
from node_fit.runtime.placement import scope


@pytest.mark.parametrize("name", OPERATIONS)
def test_jax_numpy_and_sympy_compute_the_same(name):
    values = arguments_for(name)
    names = [f"x{at}" for at in range(len(values))]
    tree = Application(name, tuple(Symbol(each) for each in names))
    with scope("x64"):
        by_jax = float(evaluate(tree, dict(zip(names, map(jnp.asarray, values), strict=True))))
        numbers = Application(name, tuple(Number(value) for value in values))
        assert float(evaluate(numbers, {})) == pytest.approx(by_jax, rel=1e-12), "of numbers"
    (by_numpy,) = Tape([tree], names)([np.asarray(value) for value in values])
    written = [f"sp.{str(value).lower()}" if isinstance(value, bool) else f"sp.Float({value})" for value in values]
    by_sympy = eval(write_sympy(tree, dict(zip(names, written, strict=True))), {"sp": sp})
    assert float(by_numpy) == pytest.approx(by_jax, rel=1e-12)
    assert float(bool(by_sympy) if by_sympy in (sp.true, sp.false) else by_sympy) == pytest.approx(by_jax, rel=1e-10)
    assert math.isfinite(by_jax)


@pytest.mark.parametrize("name", [name for name, entry in OPERATIONS.items() if not entry.takes_conditions])
def test_derivatives_are_finite_at_the_edge(name):
    values = [value if isinstance(value, bool) else 0.0 for value in arguments_for(name)]
    names = [f"x{at}" for at in range(len(values))]
    tree = Application(name, tuple(Symbol(each) for each in names))
    if OPERATIONS[name].gives_condition or name in ("remainder", "quotient"):
        return
    with scope("x64"):
        moving = {each: jnp.asarray(v) for each, v in zip(names, values, strict=True) if not isinstance(v, bool)}
        fixed = {each: jnp.asarray(v) for each, v in zip(names, values, strict=True) if isinstance(v, bool)}
        slopes = jax.grad(lambda at: evaluate(tree, {**at, **fixed}))(moving)
    assert np.isfinite([float(slope) for slope in slopes.values()]).all()


LEAVES = st.sampled_from(["x", "y", "2", "0.5", "3", "pi"])


def larger_numbers(numbers: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    compared = st.tuples(numbers, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), numbers).map(" ".join)
    one = compared | compared.map("not ({})".format)
    two = st.tuples(one, st.sampled_from(["and", "or"]), one).map("({0[0]}) {0[1]} ({0[2]})".format)
    conditions = one | two | two.map("not ({})".format)
    return st.one_of(
        st.tuples(numbers, st.sampled_from(["+", "-", "*", "/", "^"]), numbers).map("({0[0]}){0[1]}({0[2]})".format),
        st.tuples(numbers, st.sampled_from(["+", "-", "*", "/"]), numbers).map("{0[0]} {0[1]} {0[2]}".format),
        numbers.map("-({})".format),
        numbers.map("ln({})".format),
        st.tuples(numbers, numbers).map("max({0[0]}, {0[1]})".format),
        st.tuples(numbers, conditions, numbers).map("piecewise({0[0]}, {0[1]}, {0[2]})".format),
    )


# Bounded, since most texts without a bound grow beyond what Hypothesis draws, and are drawn for nothing.
NUMBERS = st.recursive(LEAVES, larger_numbers, max_leaves=16)


@given(text=NUMBERS)
@settings(deadline=None, max_examples=150)
def test_what_is_written_reads_as_the_same(text):
    tree = parse_text(text, EQUATION_DIALECT)
    again = parse_text(write(tree), EQUATION_DIALECT)
    values = [np.asarray(0.7), np.asarray(-1.3)]
    with np.errstate(all="ignore"):
        old, new = Tape([tree, again], ["x", "y"])(values)
    np.testing.assert_allclose(np.asarray(new, float), np.asarray(old, float), rtol=1e-9)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("piecewise(1, x > 0, 2)", 1.0),
        ("piecewise(1, x < 0, y, not x <= 0 and y != 3, 7)", -1.3),
        ("piecewise(1, x > 1 or y == -1.3, 2)", 1.0),
        ("piecewise(sqrt(y), y > 0, x)", 0.7),
        ("ln(e) + min(x, y, 1) - max(x, 2)", 1 - 1.3 - 2),
        ("asin(sin(x)) + log2(8) + log(9, 3) + floor(y) + ceil(y)", 0.7 + 3 + 2 - 2 - 1),
        ("2*pi", 2 * math.pi),
        ("pow(x, 2) + power(x, y)", 0.49 + 0.7**-1.3),
    ],
)
def test_equations_have_conditions_and_the_functions_of_petab(text, value):
    tree = parse_text(text, EQUATION_DIALECT)
    scope_ = {"x": 0.7, "y": -1.3, "e": math.e}
    with scope("x64"):
        values = {name: jnp.asarray(each) for name, each in scope_.items()}
        assert float(evaluate(tree, values, dtype=float)) == pytest.approx(value, rel=1e-12)
        slope = jax.grad(lambda x: evaluate(tree, {**values, "x": x}, dtype=float))(values["x"])
    assert math.isfinite(float(slope))
    with np.errstate(all="ignore"):
        assert float(Tape([tree], list(scope_))(list(scope_.values()))[0]) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("piecewise(1, x, 0)", "piecewise takes values, each with its condition"),
        ("piecewise(1, x > 0)", "piecewise takes values, each with its condition"),
        ("piecewise(x > 0, x > 1, 0)", "outside of a condition"),
        ("0 < x < 1", "outside of a condition"),
        ("exp(x > 0)", "outside of a condition"),
        ("piecewise(1, x and y > 1, 0)", "not allowed but between comparisons"),
        ("piecewise(1, not x, 0)", "`not` is for comparisons"),
        ("min(x)", "'min' takes 2 arguments or more"),
        ("log(x, 2, 3)", "'log' takes 1 or 2 arguments"),
        ("where(x > 0, 1, 2)", r"piecewise\(x, condition, y\)"),
        ("and(x > 1, y > 1)", "a value should come before"),
        ("negative(x)", "'negative' is not a function"),
    ],
)
def test_a_condition_is_no_number(text, sentence):
    with pytest.raises(ParseError, match=sentence):
        Parser(text, EQUATION_DIALECT).whole()


def test_dialects_spell_one_tree():
    equation = parse_text("piecewise(1, a >= 2 and not b < 3 or c == 1, min(a, 2))", EQUATION_DIALECT)
    assert equation == parse_text("piecewise(1, a >= 2 && !(b < 3) || c == 1, minimum(a, 2))", PETAB_DIALECT)
    assert parse_text("a + b + c", PETAB_DIALECT) == Application("+", (Symbol("a"), Symbol("b"), Symbol("c")))
    with pytest.raises(ParseError):
        parse_text("a && b", EQUATION_DIALECT)


def test_trees_are_searched_measured_and_changed():
    tree = parse_text("piecewise(a*b, a > t, -(2))", EQUATION_DIALECT)
    assert list(symbols(tree)) == ["a", "b", "a", "t"] and len(list(comparisons(tree))) == 1
    assert measure(tree) == (9, 3)
    assert set(symbols(substitute(tree, {"a": Number(1), "b": Symbol("c")}))) == {"c", "t"}
    assert [whole_number(parse_text(text, EQUATION_DIALECT)) for text in ("2", "-2", "2.0", "2.5", "x")] == [
        2, -2, 2, None, None,
    ]  # fmt: skip
    assert (
        find_name(
            "b",
            "  a*b + bb",
        )
        == 5
    )


def test_a_quotient_is_differentiated_in_a_loop_within_two_batches():
    """Of states by states, in each of several experiments, by parameters that all share."""
    jacobian = jax.jacfwd(lambda y, k: finite_slopes.divide(y, k))

    def simulate(start, k):
        state = jnp.full(3, start) * k
        return jax.lax.fori_loop(0, 2, lambda _, y: y + 0.1 * jacobian(y, k) @ y, state)

    def simulate_all(k):
        return jax.vmap(lambda start: simulate(start, k))(jnp.array([1.0, 2.0]))

    # Two steps of y' = y/k from k: k (1 + 0.1/k)^2.
    slope = jax.jit(jax.jacfwd(simulate_all))(jnp.array(0.5))
    np.testing.assert_allclose(slope, np.outer([1.0, 2.0], np.full(3, 1 - 0.01 / 0.25)), rtol=1e-5)

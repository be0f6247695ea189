"""Expressions that are computed together: the values and derivatives of each by itself, in few operations."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.expressions import arguments_for

from node_fit.expressions.evaluation import evaluate
from node_fit.expressions.operations import OPERATIONS
from node_fit.expressions.parsing import EQUATION_DIALECT, parse_text
from node_fit.expressions.together import Together
from node_fit.expressions.tree import Application, Number, Symbol, split_sum

NONE = np.zeros(0, bool)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def read(*texts):
    return [parse_text(text, EQUATION_DIALECT) for text in texts]


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_has_its_value(name):
    values = arguments_for(name)
    tree = Application(name, tuple(Number(value) for value in values))
    if OPERATIONS[name].gives_condition:
        tree = Application("piecewise", (Number(1.0), tree, Number(0.0)))
    alone = float(evaluate(tree, {}))
    assert float(Together([tree], ())(jnp.zeros(0), NONE)[0]) == pytest.approx(alone, rel=1e-14)


TEXTS = (
    "a*x*y/(1 + x) - b*x", "b*x*y/(1 + y) - a*y", "x^2 + y^3 - x^2", "x^a + sqrt(y)", "sin(x)*exp(-y) + 3",
    "piecewise(x, x > 1 and not y > 2, y, a > b, 7)", "min(x, y, a, b) + max(x, y)", "-x - -y", "log(x)/log10(y)", "x",
)  # fmt: skip


def test_values_and_derivatives_are_those_of_each_by_itself():
    trees, names = read(*TEXTS), ("x", "y", "a", "b")
    together = Together(trees, names)
    for point in itertools.product([0.3, 1.7], [0.6, 2.4], [0.9], [0.4, 1.3]):
        values = jnp.asarray(point)

        def alone(values):
            return jnp.stack([evaluate(tree, dict(zip(names, values, strict=True))) for tree in trees])

        def at_once(values):
            return together(values, NONE)

        np.testing.assert_allclose(at_once(values), alone(values), rtol=1e-13)
        for derivative in (jax.jacfwd, jax.jacrev):
            np.testing.assert_allclose(derivative(at_once)(values), jax.jacfwd(alone)(values), rtol=1e-12, atol=1e-13)


def test_names_may_stand_for_formulas_and_conditions_be_given():
    rate, inner = read("k*v + piecewise(1, x > 2, 0)", "x^2")
    condition = Application(">", (Symbol("x"), Number(2)))
    together = Together([rate, Symbol("v")], ("x", "k"), {"v": inner}, [condition])
    for outcome in (True, False):
        found = together(jnp.array([3.0, 0.5]), jnp.array([outcome]))
        np.testing.assert_allclose(found, [4.5 + outcome, 9.0])


def test_the_number_of_operations_does_not_grow_with_that_of_expressions():
    counts = []
    for reactions in (10, 1_000):
        names = tuple(f"x{at}" for at in range(reactions + 2))
        trees = read(*(f"2*x{at}*x{at + 1} - x{at + 2}/(1 + x{at})" for at in range(reactions)))
        together = Together(trees, names)
        counts.append(len(jax.make_jaxpr(together)(jnp.ones(reactions + 2), NONE).eqns))
    assert counts[0] == counts[1] < 100


def test_shared_parts_are_computed_once_and_sums_are_no_chains():
    together = Together(read("exp(x) + exp(x)*y", "exp(x)"), ("x", "y"))
    assert sum(len(group.operands[0]) for group in together.groups if group.operation == "exp") == 1
    long = Together([Application("+", tuple(Symbol(f"x{at}") for at in range(100)))], [f"x{at}" for at in range(100)])
    assert len(long.groups) == 7
    np.testing.assert_allclose(long(jnp.arange(100.0), NONE), [4950])


def test_dependencies_are_the_elements_of_the_jacobian():
    names = ("x", "y", "z")
    together = Together(read("x*y", "z + piecewise(1, x > 2, 0)", "3"), names)
    np.testing.assert_array_equal(together.dependencies, [[1, 1, 0], [0, 0, 1], [0, 0, 0]])


def test_a_sum_has_its_terms_with_their_factors():
    (tree,) = read("r1 - 2*r2 + 3*(r1 - x*y) - (-r3)")
    found = {str(term): factor for term, factor in split_sum(tree).items()}
    x_times_y = str(read("x*y")[0])
    assert found == {str(Symbol("r1")): 4.0, str(Symbol("r2")): -2.0, x_times_y: -3.0, str(Symbol("r3")): 1.0}

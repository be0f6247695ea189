"""Equations written as text: their values, and that everything else is refused in one sentence."""

import ast
import functools
import json
import math
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import node_fit as nf
from node_fit.expressions.parsing import RESERVED
from node_fit.model.fields.equations import DEEPEST, LONGEST_EQUATION, Equations, read_equation_lines
from node_fit.runtime.placement import dtype_of, scope
from node_fit.storage.model_file import describe_part, rebuild

VALUES = {"x": 0.7, "y": -1.3, "t": 2.5, "rate_1": 3.0}
NUMPY = {"sigmoid": lambda x: 1 / (1 + np.exp(-x)), "__builtins__": {}} | {
    name: getattr(np, name) for name in RESERVED if name != "sigmoid"
}


def value_of(text: str, values: dict[str, float] = VALUES) -> float:
    with scope("x64"):
        return float(Equations.of({"z": text})({name: jnp.array(value) for name, value in values.items()})["z"])


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "-x + y*t/rate_1 - 2.5e-3",
        "+x - -y",
        "x**2 - y**3 + x**-2 + y**(-1) + x**2.5 + x**y + y**0",
        "2**3**2 - -2**2",
        "x**(1/2) + (x + t)**rate_1 + y**65 + y**64",
        "exp(-x)*log(t) + log10(t) - sqrt(x)",
        "sin(x) + cos(y) + tan(t) + sinh(x) + cosh(y) + tanh(t)",
        "minimum(x, y) - maximum(x, 2*t) + abs(y) + sign(y) + sigmoid(x*t)",
        "rate_1 * x / (1 + x / (2 + x))",
        "  x\n  + y  ",
    ],
)
def test_the_value_is_that_of_numpy(text):
    assert math.isclose(value_of(text), eval(" ".join(text.split()), NUMPY, dict(VALUES)), rel_tol=1e-12)


def test_a_caret_is_a_power():
    assert value_of("-x^2 + 2^-y*t^2^x") == value_of("-x**2 + 2**-y*t**2**x")
    assert Equations.of({"z": "1 - x^2"}) == Equations.of({"z": "1 - x**2"}), "a model file has one way to write it"
    kept = Equations((("z", "t^x"),))  # as a model file may hold it
    assert kept({"t": jnp.asarray(3.0), "x": jnp.asarray(2.0)})["z"] == 9.0
    assert value_of("1 - x^2") == value_of("1 - x*x"), "not the precedence that ^ has in Python"


LEAVES = st.sampled_from([*VALUES, "2", "0.5", "3", "1e-2"])
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("-{}".format),
        st.tuples(inner, st.sampled_from(["2", "-1", "(-3)", "2.0"])).map(lambda pair: f"({pair[0]})**{pair[1]}"),
        st.tuples(st.sampled_from(["sin", "tanh", "cos", "abs", "exp"]), inner).map(
            lambda pair: "{}({})".format(*pair)
        ),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(text=EXPRESSIONS)
@settings(deadline=None, max_examples=150)
def test_random_expressions_mean_what_they_mean_in_python(text):
    functions = {name: getattr(math, name) for name in ("sin", "tanh", "cos", "exp")} | {"abs": abs}
    floats = {name: np.float64(value) for name, value in VALUES.items()}
    try:
        expected = float(eval(text, {"__builtins__": {}, **functions}, floats))
    except (OverflowError, ZeroDivisionError, RuntimeWarning):
        return
    if 1e-200 < abs(expected) < 1e200:
        # Python squares integers exactly and uses `pow` for powers; both may differ from JAX by rounding.
        assert math.isclose(value_of(text), expected, rel_tol=1e-6, abs_tol=1e-6 * scale_of(text))


def scale_of(text: str) -> float:
    """The largest magnitude of a subexpression, which bounds the rounding errors."""
    parts = [ast.unparse(node) for node in ast.walk(ast.parse(text, mode="eval").body) if isinstance(node, ast.expr)]
    return max(abs(value_of(part)) for part in parts if part not in RESERVED)


@pytest.mark.parametrize("text", ["x*y - x**3", "exp(-x*t)/(1 + y**2)", "sigmoid(x)*sqrt(t)", "maximum(x, y)*x**2.5"])
def test_gradients_are_those_of_finite_differences(text):
    with scope("x64"):
        equations = Equations.of({"z": text})
        values = {name: jnp.array(value) for name, value in VALUES.items()}
        gradient = jax.jit(jax.grad(lambda names: equations(names)["z"]))(values)
    for name, value in VALUES.items():
        up, down = (value_of(text, VALUES | {name: value + step}) for step in (1e-6, -1e-6))
        assert math.isclose(gradient[name], (up - down) / 2e-6, rel_tol=1e-6, abs_tol=1e-8)


@pytest.mark.parametrize(
    ("text", "at", "slope"),
    [("x**2", 0.0, 0.0), ("x**1", 0.0, 1.0), ("x**3", -2.0, 12.0), ("x**2.0", -3.0, -6.0), ("x**(-1)", -2.0, -0.25)],
)
def test_whole_powers_have_a_derivative_at_zero_and_below(text, at, slope, precision):
    with scope(precision):
        equations = Equations.of({"x": text})
        assert float(jax.grad(lambda x: equations({"x": x})["x"])(jnp.array(at))) == slope


# Expressions at the edge of where they have a slope, and their derivatives by x there.
EDGES = [
    ("sqrt(maximum(x, 0))", 0.0, 0.0),
    ("sqrt(maximum(x, 0))", -1.0, 0.0),
    ("maximum(x, 0)^n", 0.0, 0.0),
    ("abs(x)^0.5", 0.0, 0.0),
    ("sqrt(abs(x))*sign(x)", 0.0, 0.0),
    ("sqrt(x^2 + 0*n)", 0.0, 0.0),
    ("maximum(log(x), -3)", 0.0, 0.0),
    ("maximum(log10(x), -3)", 0.0, 0.0),
    ("minimum(n/x, 5)", 0.0, 0.0),
    ("minimum(x^(-2), 5)", 0.0, 0.0),
    ("1/(1 + exp(1000*n + x))", 0.0, 0.0),
    ("x/sqrt(maximum(x, 4))", 1.0, 0.5),
]


@pytest.mark.parametrize(("text", "at", "slope"), EDGES)
@pytest.mark.parametrize("differentiate", [jax.jacrev, jax.jacfwd])
def test_derivatives_are_finite_at_the_edge_of_a_domain(text, at, slope, differentiate):
    equations = Equations.of({"z": text})
    with scope("x64"):
        by_x, by_n = differentiate(lambda x, n: equations({"x": x, "n": n})["z"], (0, 1))(jnp.array(at), jnp.array(0.7))
    assert float(by_x) == pytest.approx(slope)
    assert np.isfinite(float(by_n))


@pytest.mark.parametrize("text", ["sqrt(maximum(x, 0))", "maximum(x, 0)^n", "minimum(1/x, 5)", "maximum(log(x), -3)"])
def test_second_derivatives_are_finite_at_the_edge_and_right_inside(text):
    equations = Equations.of({"z": text})
    with scope("x64"):
        second = jax.hessian(lambda x: equations({"x": x, "n": jnp.array(0.5)})["z"])
        assert np.isfinite(second(jnp.array(0.0)))
    inside = {"sqrt(maximum(x, 0))": -1 / 32, "maximum(x, 0)^n": -1 / 32, "minimum(1/x, 5)": 1 / 32}
    with scope("x64"):
        assert float(second(jnp.array(4.0))) == pytest.approx(inside.get(text, -1 / 16))


def test_every_equation_gets_its_value_in_the_dtype_of_the_names(precision):
    with scope(precision):
        equations = Equations.of({"hare": "a*hare - b*hare*lynx", "lynx": "-lynx/2", "level": 0, "drift": "-1.5"})
        names = {"a": jnp.array(0.5), "b": jnp.array(0.1), "hare": jnp.array(10.0), "lynx": jnp.array(2.0)}
        rates = eqx.filter_jit(lambda values: equations(values))(names)
        assert {rate.dtype for rate in rates.values()} == {dtype_of(precision)}
        assert {rate.shape for rate in rates.values()} == {()}
        np.testing.assert_allclose([rates[name] for name in equations_of(equations)], [3.0, -1.0, 0.0, -1.5], rtol=1e-6)


def equations_of(equations: Equations) -> list[str]:
    return [state for state, _ in equations.texts]


def test_equations_are_no_arrays_and_have_a_hash():
    equations = Equations.of({"x": "a*x"})
    assert jax.tree.leaves(equations) == [] and hash(equations.texts)


def test_a_model_file_gives_them_back():
    equations = Equations.of({"x": "a*x", "y": "-exp(x)"})
    assert rebuild(json.loads(json.dumps(describe_part(equations, "field", {}))), {}, ()) == equations


def test_a_tower_of_powers_takes_no_time():
    assert value_of("9**9**9") == math.inf
    assert value_of("x*0*9**9**9**9", {"x": 0.0}) != 0.0, "NaN, like float arithmetic"


def test_names_used_are_no_functions():
    equations = Equations.of({"x": "a*sin(w*t) - x", "y": "2"})
    assert equations.names_used() == {"a", "w", "t", "x"}
    equations.check(["a", "w", "t", "x", "more"])


def test_unknown_names_are_named_with_the_nearest():
    equations = Equations.of({"lynx": "lynx", "hare": "a*hare - b*hare*linx"})
    sentence = "^equation of 'hare': 'linx' is not a state, an input, a constant or the time; did you mean 'lynx'\\?$"
    with pytest.raises(ValueError, match=sentence):
        equations.check({"a", "b", "hare", "lynx"})
    with pytest.raises(ValueError, match=r"'hare' is not a .*; the names are a, b, lynx"):
        equations.check({"a", "b", "lynx"})
    with pytest.raises(ValueError, match=r"'e' is not a .*; write exp\(x\) for e\^x"):
        Equations.of({"hare": "e^(-a)"}).check({"a"})
    with pytest.raises(ValueError, match="equation of 'lynx': 'lynx' is not a state"):
        equations({"a": jnp.array(1.0)})


def test_greek_letters_are_names_however_they_are_typed():
    micro, mu = "\u00b5", "\u03bc"
    assert value_of(f"2*{micro}", {micro: 1.5}) == value_of(f"2*{mu}", {micro: 1.5}) == 3.0
    with pytest.raises(ValueError, match=r"a comparison is not allowed in an equation \(column 3 of"):
        Equations.of({"x": f"{micro} > 1"})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x.real", r"an attribute after a dot is not allowed in an equation \(column 1 of 'x.real'\)"),
        ("().__class__", "an attribute"),
        ("2*x.__class__.__mro__", r"an attribute .*\(column 3 of"),
        ("__import__('os')", "'__import__' is not a function; write \\* for a product"),
        ("open('f')", "'open' is not a function"),
        ("sine(x)", "'sine' is not a function; write \\* for a product, or did you mean 'sin'"),
        ("a(x + 1)", "'a' is not a function; write \\* for a product"),
        ("2(x + 1)", "only a function name may come before parentheses; write \\* for a product"),
        ("exp(x)(y)", "only a function name"),
        ("exp", "the function 'exp' needs its argument in parentheses"),
        ("exp()", "'exp' takes 1 argument "),
        ("exp(x, y)", "'exp' takes 1 argument "),
        ("exp(x=1)", "'exp' takes 1 argument "),
        ("exp(*x)", "'exp' takes 1 argument "),
        ("maximum(x)", "'maximum' takes 2 arguments"),
        ("__name__", "'__name__' is not allowed as a name"),
        ("x + __builtins__", r"'__builtins__' is not allowed as a name \(column 5 of"),
        ("lambda: x", "`lambda` is not allowed"),
        ("sin(lambda x: x)", r"`lambda` is not allowed in an equation \(column 5 of"),
        ("[x for x in y]", "a comprehension is not allowed"),
        ("sin({x for x in y})", "a comprehension"),
        ("sin(x for x in y)", "a comprehension"),
        ("{x: x for x in y}", "a comprehension"),
        ("'x'", "text in quotes is not allowed"),
        ("b'x'", "text in quotes is not allowed"),
        ("f'{x}'", "text in quotes is not allowed"),
        ("x > 1", "a comparison is not allowed"),
        ("x == y", "a comparison"),
        ("x in y", "a comparison"),
        ("(x := 1)", "an assignment is not allowed"),
        ("x[0]", "an index in brackets is not allowed"),
        ("[x, y]", "a list of values"),
        ("x, y", r"a list of values is not allowed in an equation \(column 2 of"),
        ("{}", "a list of values"),
        ("x and y", "`and` or `or` is not allowed"),
        ("x if y else t", "`if` is not allowed"),
        ("not x", r"the operators are \+ - \* / \*\*"),
        ("~x", r"the operators are \+"),
        ("x % y", r"the operators are \+ - \* / \*\* \(column 3 of 'x % y'\)"),
        ("x // y", r"the operators are \+"),
        ("x @ y", r"the operators are \+"),
        ("2*(x)^2^", r"it ends where a value should follow \(column 9 of '2\*\(x\)\^2\^'\)"),
        ("x^2 + y^2 - * t", r"invalid syntax \(column 13 of 'x\^2 \+ y\^2 - \* t'\)"),
        ("  x  -  * t", r"invalid syntax \(column 9 of '  x  -  \* t'\)"),
        ("a*x +", r"it ends where a value should follow \(column 6 of"),
        ("a + 2x", r"write \* between a number and a name \(column 6 of"),
        ("  x^2 +  y < 3", r"a comparison is not allowed in an equation \(column 12 of"),
        ("y*x^2 + np.exp(x)", r"write exp\(x\) for np.exp \(column 9 of 'y\*x\^2 \+ np.exp\(x\)'\)"),
        ("np.power(x, 2)", r"write x\*\*y for np.power \(column 1 of"),
        ("lne(x)", r"'lne' is not a function; write \* for a product, or did you mean 'ln' \(column 1 of"),
        ("np.foo(x)", "only a function name may come before parentheses"),
        ("True", "True is not a real number"),
        ("None", "None is not a real number"),
        ("...", "Ellipsis is not a real number"),
        ("2j*x", "2j is not a real number"),
        ("x + 1_5*y", r"a number has no underscore \(column 6 of 'x \+ 1_5\*y'\)"),
        ("1.2_5", r"a number has no underscore \(column 4 of"),
        ("1e999", "a number is too large"),
        ("1" + "0" * 500, "a number is too large"),
        ("await x", "this is not allowed|can't|invalid|await"),
        ("(yield x)", "this is not allowed"),
        ("x # growth", r"a comment is not allowed in an equation \(column 3 of"),
        ("a*x - * b", r"invalid syntax \(column 7 of 'a\*x - \* b'\)"),
        ("sin(x", r"'\(' was never closed \(column 4 of"),
        ("x)", r"unmatched '\)' \(column 2 of"),
        ("3x", r"write \* between a number and a name \(column 2 of"),
        ("x = 3", "invalid syntax"),
        ("x; y", r"invalid syntax \(column 2 of"),
        ("import os", "invalid syntax"),
        ("", "invalid syntax"),
        ("x\0y", "column|characters"),
        ("x\ud800", "characters"),
    ],
)
def test_what_is_no_equation_is_refused(text, sentence):
    with pytest.raises(ValueError, match=rf"^equation of 'hare': .*({sentence})") as error:
        Equations.of({"hare": text})
    assert "\n" not in str(error.value)
    smuggled = Equations((("hare", text),))  # As from a model file, which does not call `Equations.of`.
    with pytest.raises(ValueError, match="equation of 'hare'"):
        smuggled({"x": jnp.array(1.0), "y": jnp.array(1.0)})


@pytest.mark.parametrize(
    "text",
    [
        "-" * 1900 + "x",
        "(" * 900 + "x" + ")" * 900,
        "(" * 150 + "x",
        "sin(" * 300 + "x" + ")" * 300,
        "x" + "+x" * 900,
        "x" + "**x" * 600,
        "[" * 1900,
        "x" + ".x" * 900,
        "x" + "(x)" * 600,
        "lambda:" * 200 + "x",
    ],
)
def test_deeply_nested_texts_are_refused_and_nothing_worse(text):
    with pytest.raises(ValueError, match=r"^equation of 'x'"):
        Equations.of({"x": text})


def test_long_texts_are_refused():
    with pytest.raises(
        ValueError, match=f"equation of 'x' has {LONGEST_EQUATION + 2} characters, over the limit of {LONGEST_EQUATION}"
    ):
        Equations.of({"x": "x+" * (LONGEST_EQUATION // 2) + "xy"})
    with pytest.raises(ValueError, match=f"nested more than {DEEPEST} deep; group the terms"):
        Equations.of({"x": "x" + "+x" * DEEPEST})


def test_texts_within_the_limits_are_evaluated():
    assert math.isclose(value_of("x" + "+x" * (DEEPEST - 1)), DEEPEST * VALUES["x"])
    half = "(" + "x" + "+x" * (DEEPEST - 10) + ")"
    assert math.isclose(value_of(" + ".join([half] * 5)), 5 * (DEEPEST - 9) * VALUES["x"])


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ({}, "equations is empty; write one for each state"),
        ({"exp": "1"}, "state 'exp' has the name of a function; rename it"),
        ({"CO2 (ppm)": "1"}, r"state 'CO2 \(ppm\)' has a name that is not valid in an equation"),
        ({"in": "1"}, "state 'in' has a name that is not valid"),
        ({"__x": "1"}, "state '__x' has a name that is not valid"),
        ({True: "1"}, "state True has a name that is not a string; in YAML, put quotes"),
        ({"x": None}, "equation of 'x' must be a string such as '-a\\*x', got None"),
        ({"x": ["1"]}, "equation of 'x' must be a string"),
        ({"x": True}, "equation of 'x' must be a string"),
    ],
)
def test_mappings_that_are_no_equations_are_refused(texts, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        Equations.of(texts)


VAN_DER_POL = """\ufeff# van der Pol

x: v
v:  m*(1-x^2)*v - x   # stiff for a large m
"""


def test_a_text_file_holds_an_equation_a_line(tmp_path):
    path = tmp_path / "model.txt"
    path.write_text(VAN_DER_POL)
    assert read_equation_lines(path) == {"x": "v", "v": "m*(1-x^2)*v - x"}
    for line in ("v: -x", "v = -x", "v' = -x", "dv/dt = -x", "  dv / dt:-x", "\tv '  : -x"):
        path.write_text(line)
        assert read_equation_lines(str(path)) == {"v": "-x"}
    path.write_text("x_1: 2*x_1")
    assert read_equation_lines(path) == {"x_1": "2*x_1"}


@pytest.mark.parametrize(
    "line", [" " * 900_000 + "x", "dx" + " " * 400_000 + "/" + " " * 400_000 + "dt", "$" * 900_000 + ":1"]
)
def test_a_long_line_is_refused_soon_and_in_few_words(line, tmp_path):
    (tmp_path / "model.txt").write_text(line)
    began = time.perf_counter()
    with pytest.raises(ValueError, match="line 1: ") as error:
        read_equation_lines(tmp_path / "model.txt")
    assert time.perf_counter() - began < 1 and len(str(error.value)) < 1000


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "x: v\n\nv: m*(1-x^2)*v + np.sin(x)",
            "model.txt, line 3: equation of 'v': write sin(x) for np.sin (column 18",
        ),
        ("x: v\nv: x - * v", "model.txt, line 2: equation of 'v': invalid syntax (column 8 of 'v: x - * v')."),
        (
            "x: v  # speed\nv - x",
            "model.txt, line 2: write a state and its equation, such as v: m*(1 - x^2)*v - x; got",
        ),
        ("x: v\nx: -v", "model.txt, line 2: model.txt, line 1 gives an equation of 'x' already; remove one."),
        ("x y: v", "model.txt, line 1: state 'x y' has a name that is not valid in an equation; rename it"),
        ("# nothing\n", "equations: model.txt holds none; write a line for each state"),
        ("v:", "model.txt, line 1: equation of 'v': invalid syntax (column 3 of 'v:')."),
        ("x: v\nv: " + "+x" * 900, "model.txt, line 2: equation of 'v' is nested more"),
    ],
)
def test_an_error_in_a_file_names_its_line(text, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.txt").write_text(text)
    with pytest.raises(ValueError) as error:
        read_equation_lines("model.txt")
    assert str(error.value).startswith(sentence) and "\n" not in str(error.value)


def test_what_is_no_file_of_equations_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"equations: .*model.txt does not exist; did you mean .*modell.txt\?"):
        (tmp_path / "modell.txt").write_text("x: 1")
        read_equation_lines(tmp_path / "model.txt")
    (tmp_path / "binary.txt").write_bytes(b"x: \xff")
    with pytest.raises(ValueError, match=r"binary\.txt is not a text in UTF-8"):
        read_equation_lines(tmp_path / "binary.txt")
    (tmp_path / "huge.txt").write_text("#" * 1_000_001)
    for path in (tmp_path, tmp_path / "huge.txt", "/dev/zero"):
        with pytest.raises(ValueError, match="is not a text file of at most 1000 kB"):
            read_equation_lines(path)


@pytest.mark.parametrize("make", [nf.Known, nf.Hybrid])
def test_a_field_takes_the_path_of_its_equations(make, tmp_path):
    path = tmp_path / "model.txt"
    path.write_text(VAN_DER_POL)
    field = functools.partial(make, constants={"m": 1.0})
    data = nf.Dataset.from_arrays(np.arange(4.0), np.ones((4, 2)), states=["x", "v"])
    read, given = (
        nf.make_model(data, field=functools.partial(field, equations=each), key=jax.random.key(0))
        for each in (path, {"x": "v", "v": "m*(1-x**2)*v - x"})
    )
    assert eqx.tree_equal(read, given)
    path.write_text("x: v\nv: k*x - m")
    with pytest.raises(ValueError, match=r"model.txt, line 2: equation of 'v': 'k' is not a state"):
        nf.make_model(data, field=functools.partial(field, equations=str(path)), key=jax.random.key(0))

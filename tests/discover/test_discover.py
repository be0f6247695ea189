"""Equations that are found in measurements: known systems, their terms, and data without an equation."""

import numpy as np
import pytest
from helpers.commands import node_fit, read_summary
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.discover.formulas import ARRAY, compile_text, lift

TS = np.linspace(0.0, 10.0, 150)


def record(rates, start, states=("x", "v"), noise=0.0, seed=0, us=None):
    ys = solve_ivp(rates, (0, 10), start, t_eval=TS, rtol=1e-9, atol=1e-9).y.T
    noisy = ys * (1 + noise * np.random.default_rng(seed).standard_normal(ys.shape))
    return nf.Dataset.from_arrays(TS, noisy, us, states=states, **({} if us is None else {"inputs": ("u",)}))


def van_der_pol(t, y):
    return [y[1], 2 * (1 - y[0] ** 2) * y[1] - y[0]]


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_van_der_pols_equations_are_found(noise):
    found = nf.discover(record(van_der_pol, (1.0, 0.5), noise=noise), symbolic=False, effort="quick")
    assert found.explained and "found an equation" in found.verdict
    assert set(found.shares["x"]) == {"v"} and set(found.shares["v"]) == {"x", "v", "x**2*v"}
    assert min(found.shares["v"].values()) > 0.8
    values = sorted(found.found.constants.values())
    assert values == pytest.approx([-2, -1, 1, 2], abs=0.05 if noise else 1e-3)
    assert found.front[0].size <= found.found.size
    assert r"\dot{x}" in found.latex() if pytest.importorskip("sympy") else True


@pytest.mark.slow
def test_the_best_is_a_fit_that_forecasts_from_another_start():
    data = record(van_der_pol, (1.0, 0.5), noise=0.02)
    found = nf.discover(data, libraries=("cubic",), symbolic=False, effort="quick", resamples=0)
    truth = solve_ivp(van_der_pol, (0, 10), (-2.0, 1.0), t_eval=TS, rtol=1e-9).y.T
    predicted = found.best.predict(y0={"x": -2.0, "v": 1.0}, ts=TS)
    assert np.sqrt(np.mean((predicted - truth) ** 2)) < 0.1 * truth.std()
    assert set(found.best.constants) == set(found.found.constants)


def test_an_input_is_a_term():
    force = np.cos(1.3 * TS)
    data = record(
        lambda t, y: [y[1], -y[0] - 0.2 * y[1] + 0.7 * np.interp(t, TS, force)], (1.0, 0.0), us=force[:, None]
    )
    found = nf.discover(data, libraries=("linear",), symbolic=False, effort="quick", resamples=0)
    assert found.explained and "u" in found.found.equations["v"] and "u" not in found.found.equations["x"]


def test_terms_are_added_required_and_forbidden():
    data = record(lambda t, y: [y[1], -np.sin(y[0])], (2.0, 0.0))
    options = {"symbolic": False, "effort": "quick", "resamples": 0}
    found = nf.discover(data, libraries=("linear",), terms=["sin(x)"], **options)
    assert found.explained and "sin(x)" in found.found.equations["v"]
    without = nf.discover(data, libraries=("trigonometric",), forbidden=["sin(x)", "cos(x)"], **options)
    assert "sin(x)" not in without.found.equations["v"]
    needed = nf.discover(data, libraries=("cubic",), required=["v^3"], **options)
    assert "v**3" in needed.ranked[-1].equations["v"]


@pytest.mark.parametrize("what", ["noise", "random walk"])
@pytest.mark.slow
def test_no_equation_is_claimed_where_there_is_none(what):
    draw = np.random.default_rng(1).standard_normal((150, 2))
    ys = draw if what == "noise" else draw.cumsum(0)
    data = nf.Dataset.from_arrays(TS, ys, states=("x", "v"))
    found = nf.discover(data, symbolic=False, effort="quick", resamples=0)
    assert not found.explained and str(found).startswith("no equation of these terms explains the record")


@pytest.mark.slow
def test_a_seed_repeats():
    data = record(lambda t, y: [y[1], -y[0] - 0.3 * y[1]], (1.0, 0.5), noise=0.05)
    options = {"symbolic": False, "libraries": ("quadratic",), "effort": "quick", "resamples": 3}
    one, other = (nf.discover(data, seed=4, **options) for _ in range(2))
    assert one.found == other.found and one.shares == other.shares


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("1.5*x + 2*v", "{0}*x + {1}*v"),
        ("-(x + 1)*v", "-({0} + x)*v"),
        ("x - (v - 2)", "x - (v - {0})"),
        ("x/(v*2)", "x/(v*{0})"),
        ("(x + v)^2/sin(3*x)", "(x + v)**2/sin({0}*x)"),
        ("(-2)^2*x", "{0}**2*x"),
        ("2**(x + v)", "{0}**(x + v)"),
        ("(x**2)**3", "(x**2)**3"),
        ("x*(-v)", "x*(-v)"),
    ],
)
def test_a_formula_is_written_with_the_parentheses_that_it_needs(text, written):
    formula = lift(text, "x")
    point = [np.array([0.3, 1.7]), np.array([-0.8, 2.2])]
    expected = compile_text(text, ["x", "v"], ARRAY)(point)
    for shown in (formula.named([f"({value!r})" for value in formula.constants]), formula.shown(17)):
        assert compile_text(shown, ["x", "v"], ARRAY)(point) == pytest.approx(expected, rel=1e-12), shown
    if written != "-({0} + x)*v":
        assert formula.text == written


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"libraries": ("quartic",)}, "library 'quartic' is not known"),
        ({"terms": ("x +",)}, "terms"),
    ],
)
def test_a_wrong_argument_is_a_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        nf.discover(record(van_der_pol, (1.0, 0.5)), symbolic=False, **arguments)


def test_few_rows_and_events_are_refused():
    with pytest.raises(ValueError, match="at least 12 rows"):
        nf.discover(nf.Dataset.from_arrays(TS[:8], np.ones((8, 1))))


@pytest.mark.slow
def test_the_command_finds_lotka_and_volterras_equations(tmp_path):
    """The hares and lynxes of the Hudson Bay company, to 1914; constants from the years after 1900 lie near."""
    done = node_fit(tmp_path, "data=lynx_hare", "report=false", module="node_fit.discover")
    assert done.code == 0, done.err
    assert "hare*lynx" in done.out.split("run:")[0]
    summary = read_summary(next(tmp_path.glob("outputs/*/*")))
    assert len(summary["constants"]) == 4 and summary["metrics"]["test"]["nrmse"] < 1.2

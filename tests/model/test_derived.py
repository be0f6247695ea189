"""Quantities that follow from constants: their intervals are those of fits in which they are constants themselves."""

import math
import re
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from helpers.commands import node_fit, read_summary
from helpers.decay import FITTED, OPTIONS, decay, known
from helpers.problems import fit_to
from helpers.reports import by_trajectory, spirals, write_run

import node_fit as nf
from node_fit.model.fields.known import quantities
from node_fit.report.pages import make_run_page

TS = np.linspace(0.0, 4.0, 25)


def growing(noise=0.02) -> nf.Dataset:
    """A substance that is made, and decays."""
    ys = 3.0 / 0.8 * (1 - np.exp(-0.8 * TS)) + noise * np.random.default_rng(0).standard_normal(TS.size)
    return nf.Dataset.from_arrays(TS, ys[:, None], states=["x"])


def fit_growing(equation, constants, derived, **options):
    options = {**OPTIONS, "optimizer": nf.LevenbergMarquardt(), **options}
    return fit_to(growing(), field=known({"x": equation}, constants), start=FITTED, derived=derived, **options)


def assert_same(found, expected, rel=2e-3):
    width = expected.upper - expected.lower
    for name in ("estimate", "lower", "upper"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=rel * width), name
    assert found.standard_error == pytest.approx(expected.standard_error, rel=5 * rel)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("method", ["fisher", "profile"])
def test_a_quantity_of_one_constant_has_the_interval_of_a_fit_with_it(method):
    derived = {"half_life": "log(2)/k", "double": "2*k", "always": 3}
    found = fit_growing("s - k*x", {"s": [1.0, 0.0, None], "k": [0.5, 0.0, None]}, derived).confidence(method)
    other = fit_growing("s - log(2)/T*x", {"s": [1.0, 0.0, None], "T": [1.0, 0.0, None]}, None).confidence(method)
    assert_same(found.derived["half_life"], other.constants["T"])
    k, double, always = found.constants["k"], found.derived["double"], found.derived["always"]
    assert (double.lower, double.upper) == pytest.approx((2 * k.lower, 2 * k.upper), rel=1e-9)
    assert (always.estimate, always.standard_error, always.lower, always.upper) == (3.0, 0.0, 3.0, 3.0)
    assert not any("linearised" in note for note in found.notes)


@pytest.mark.slow
def test_a_quantity_of_several_constants_has_the_interval_of_a_fit_with_it():
    """Their logarithms are linear in each other, so the linearised models are the same."""
    constants = {"s": [1.0, 0.0, None], "k": [0.5, 0.0, None]}
    fit = fit_growing("s - k*x", constants, {"level": "s/k"})
    other = fit_growing("level*k - k*x", {"level": [1.0, 0.0, None], "k": [0.5, 0.0, None]}, None)
    assert_same(fit.derived["level"], other.confidence().constants["level"])
    assert any("level is of several constants" in note for note in fit.confidence("profile").notes)


@pytest.mark.slow
def test_a_difference_has_the_interval_of_a_fit_with_it_and_may_be_negative():
    fit = fit_growing("s - k*x", {"s": 1.0, "k": 0.5}, {"gap": "k - s"})
    other = fit_growing("s - (s + gap)*x", {"s": 1.0, "gap": -0.5}, None)
    assert_same(fit.derived["gap"], other.confidence().constants["gap"])
    assert fit.derived["gap"].upper < 0


@pytest.mark.slow
def test_a_product_is_determined_where_its_factors_are_not():
    equations = {"x": "-a*b*x", "y": "-c*y"}
    constants = {"a": [0.8, 0.0, None], "b": [1.0, 0.0, None], "c": [0.6, 0.0, None]}
    fit = decay(0.02, equations=equations, constants=constants, derived={"ab": "a*b", "a_over_b": "a/b"})
    alone = decay(
        0.02, equations={"x": "-ab*x", "y": "-c*y"}, constants={"ab": [0.8, 0.0, None], "c": [0.6, 0.0, None]}
    )
    found = fit.confidence()
    assert math.isinf(found.constants["a"].standard_error)
    assert_same(found.derived["ab"], alone.confidence().constants["ab"])
    ratio = found.derived["a_over_b"]
    assert (ratio.lower, ratio.upper) == (0.0, math.inf) and math.isinf(ratio.standard_error)


@pytest.mark.slow
def test_a_quantity_that_is_not_monotone_has_what_it_can_be_in_between():
    found = fit_growing(
        "s - k*x", {"s": [1.0, 0.0, None], "k": [0.5, 0.0, None]}, {"far": "(s - 3)**2", "bad": "log(s - 3)"}
    )
    own, far, bad = found.confidence().constants["s"], found.derived["far"], found.derived["bad"]
    assert own.lower < 3 < own.upper, "else the test is void"
    assert far.lower == pytest.approx(0.0, abs=1e-6)
    assert far.upper == pytest.approx(max((own.lower - 3) ** 2, (own.upper - 3) ** 2), rel=1e-9)
    assert (bad.lower, bad.upper) == (-math.inf, math.inf)


@pytest.mark.long
@pytest.mark.slow
def test_level_and_coverage_of_a_normal_approximation():
    """Over data sets of known noise, the standard error is the spread of the estimates."""
    estimates, errors = [], []
    rng = np.random.default_rng(1)
    for _ in range(40):
        ys = 3.0 / 0.8 * (1 - np.exp(-0.8 * TS)) + 0.05 * rng.standard_normal(TS.size)
        data = nf.Dataset.from_arrays(TS, ys[:, None], states=["x"], sigma=0.05)
        field = known({"x": "s - k*x"}, {"s": [2.0, 0.0, None], "k": [0.7, 0.0, None]})
        fit = fit_to(data, field=field, start=FITTED, derived={"level": "s/k"}, **OPTIONS | {"steps": 30})
        level = fit.confidence(level=0.9).derived["level"]
        estimates.append(level.estimate)
        errors.append(level.standard_error)
    assert np.std(estimates) == pytest.approx(np.mean(errors), rel=0.3)
    half = math.log(level.upper / level.lower) / 2
    expected = NormalDist().inv_cdf(0.95) * level.standard_error / level.estimate
    assert half == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("derived", "sentence"),
    [
        ({"T": "2*(k"}, "derived quantity 'T': '(' was never closed (column 3 of '2*(k')."),
        (
            {"T": "log(2)/kk"},
            "derived quantity 'T': 'kk' is not a constant (column 8 of 'log(2)/kk'); did you mean 'k'?",
        ),
        ({"T": "2*x"}, "derived quantity 'T': 'x' is not a constant (column 3 of '2*x'); the names are k, s."),
        ({"k": "2*s"}, "derived quantity 'k' has the name of a constant; rename it."),
        ({"half life": "2*s"}, "derived quantity 'half life' has a name that is not valid"),
    ],
)
def test_what_is_wrong_in_an_expression_is_said(derived, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        fit_growing("s - k*x", {"s": 1.0, "k": 0.5}, derived)


def test_a_network_has_no_constants_to_derive_from():
    with pytest.raises(ValueError, match="'T' needs constants, and the model has none"):
        fit_to(growing(), derived={"T": "log(2)/k"}, steps=1)


@pytest.mark.parametrize(
    ("text", "positive"),
    [("a/b", True), ("log(2)/a", True), ("a + b**2", True), ("exp(c)", True), ("sqrt(a)", True), ("a*c", False),
     ("a - b", False), ("-a", False), ("log(0.5)/a", False), ("abs(c)", False)],
)  # fmt: skip
def test_what_can_t_be_negative_is_known_by_its_form(text, positive):
    bounds = {"a": (0.0, None), "b": (0.0, 2.0), "c": (None, None)}
    assert quantities({"q": text})[0].is_positive(bounds) is positive


@pytest.mark.long
@pytest.mark.slow
def test_the_command_prints_and_keeps_them(tmp_path):
    ys = growing().ys[0, :, 0]
    pd.DataFrame({"t": TS, "x": ys}).to_csv(tmp_path / "mine.csv", index=False)
    words = (
        "data=table", "data.path=mine.csv", "data.time=t", "data.states=[x]", "data.split.validation=0",
        "data.split.test=0", "field=hybrid", "field.equations={x: s - k*x}", "field.width=4", "field.depth=1",
        "+field.constants={s: [1.0, 0, null], k: [0.5, 0, null]}", "field.rest=true", "precision=x64",
        "penalty.ridge=100",
    )  # fmt: skip
    done = node_fit(
        tmp_path, *words, '+derived={half_life: "log(2)/k", level: s/k}', "training.steps=50", "hydra.run.dir=run"
    )
    assert done.code == 0, done.err
    summary = read_summary(tmp_path / "run")
    k, found = summary["constants"]["k"], summary["confidence"]["derived"]
    assert summary["derived"]["half_life"] == pytest.approx(math.log(2) / k) == found["half_life"]["estimate"]
    (line,) = [line for line in done.out.splitlines() if line.startswith("derived: ")]
    assert line.startswith(f"derived: half_life = {math.log(2) / k:.3g}"[:24]) and ", level = " in line
    wrong = node_fit(tmp_path, *words, '+derived={half_life: "log(2)/kk"}', "hydra.run.dir=wrong")
    assert "derived quantity 'half_life': 'kk' is not a constant (column 8 of 'log(2)/kk')" in wrong.sentence


def test_the_page_shows_them_beside_the_constants(tmp_path):
    interval = {"estimate": 1.4, "standard_error": 0.1, "lower": 1.2, "upper": 1.6}
    sure = {"level": 0.95, "constants": {"a": {**interval, "lower": 0.25}}, "derived": {"half_life": interval}}
    folder = write_run(
        tmp_path / "run",
        by_trajectory(spirals()),
        confidence=sure,
        constants={"a": 0.5},
        derived={"half_life": 1.4},
        equations={"x": "-0.5*x"},
    )
    page = make_run_page(folder).read_text()
    assert (
        "<h3>Derived from them</h3>" in page
        and "dx/dt = -0.5*x" in page
        and "<span>1.2</span> to <span>1.6</span>" in page
        and page.index("<span>0.25</span> to") < page.index("<span>1.2</span> to")
    )
    bare = make_run_page(write_run(tmp_path / "bare", by_trajectory(spirals()), constants={"a": 0.5})).read_text()
    assert "Derived from them" not in bare and "Constants of the equations" in bare

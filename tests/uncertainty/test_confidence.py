"""Intervals of constants: closed forms, a Hessian, coverage, and what data do not determine."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from helpers.decay import FITTED, OPTIONS, decay, known
from helpers.problems import fit_to

import node_fit as nf
from node_fit.model.fields.known import Constants
from node_fit.uncertainty.confidence import ConfidenceInterval, format_with_interval

pytestmark = pytest.mark.slow

TS = np.linspace(0.0, 2.0, 12)


def line(seed=0, slope=1.5, sigma=None, noise=0.2) -> nf.Dataset:
    ys = 1.0 + slope * TS + noise * np.random.default_rng(seed).standard_normal(TS.size)
    return nf.Dataset.from_arrays(TS, ys[:, None], states=("x",), sigma=sigma)


def fit_line(data, **options):
    return fit_to(data, **{"field": known({"x": "k"}, {"k": 1.0}), "start": FITTED, **OPTIONS, **options})


def test_a_straight_line_has_the_interval_of_linear_regression():
    data = line()
    found = fit_line(data).confidence()
    expected = scipy.stats.linregress(TS, data.ys[0, :, 0])
    k = found.constants["k"]
    assert (k.estimate, k.standard_error) == pytest.approx((expected.slope, expected.stderr), rel=1e-5)
    reach = scipy.stats.t.ppf(0.975, 10) * expected.stderr
    assert (k.lower, k.upper) == pytest.approx((expected.slope - reach, expected.slope + reach), rel=1e-5)
    assert (found.noise, found.degrees_of_freedom, found.notes) == ("estimated", 10, ())


def test_given_noise_needs_no_estimate():
    found = fit_line(line(sigma=0.2)).confidence(level=0.9)
    error = 0.2 / np.sqrt(((TS - TS.mean()) ** 2).sum())
    k = found.constants["k"]
    assert k.standard_error == pytest.approx(error, rel=1e-6)
    assert k.upper - k.estimate == pytest.approx(scipy.stats.norm.ppf(0.95) * error, rel=1e-6)
    assert (found.noise, found.degrees_of_freedom) == ("given", None)


def test_a_first_row_that_counts_as_exact_is_said():
    data = line()
    found = fit_line(data, start=nf.First).confidence()
    off = data.ys[0, 1:, 0] - data.ys[0, 0, 0]
    slope = (TS[1:] * off).sum() / (TS**2).sum()
    error = np.sqrt(((off - slope * TS[1:]) ** 2).sum() / 10 / (TS**2).sum())
    assert found.constants["k"].standard_error == pytest.approx(error, rel=1e-5)
    assert found.degrees_of_freedom == 10, "the first row tells nothing"
    assert "start=fitted" in found.notes[0]


def test_intervals_of_a_line_cover_its_slope():
    inside = 0
    for seed in range(60):
        k = fit_line(line(seed), steps=20).confidence().constants["k"]
        inside += k.lower <= 1.5 <= k.upper
    assert 52 <= inside <= 60, "57 are expected; fewer than 52 have a probability of 0.5 %"


def test_the_information_is_the_hessian_by_finite_differences():
    evidence = decay(1e-4).evidence
    found, x = evidence.best, evidence.x
    steps = 1e-3 * np.eye(x.size)

    def half(at):
        return (evidence.at(at).residuals ** 2).sum() / 2

    hessian = [
        [(half(x + a + b) - half(x + a - b) - half(x - a + b) + half(x - a - b)) / 4e-6 for b in steps] for a in steps
    ]
    assert np.asarray(hessian) == pytest.approx(found.jacobian.T @ found.jacobian, rel=1e-3, abs=1e-3)


def test_intervals_stay_within_bounds():
    found = decay(0.5).confidence().constants
    assert 0 < found["a"].lower < found["a"].estimate < found["a"].upper
    assert 0 < found["b"].lower < found["b"].estimate < found["b"].upper < 0.7
    # On a logarithmic line, an interval is as wide above as below.
    assert found["a"].upper / found["a"].estimate == pytest.approx(found["a"].estimate / found["a"].lower)


@pytest.mark.parametrize(
    "term, only, precision",
    [("a*c*x", "product", "x64"), ("a*c*x", "product", "x32"), ("a/c*x", "ratio", "x64")],
)
def test_constants_that_only_occur_together_are_named(term, only, precision):
    constants = {"a": [0.8, 0.0, None], "b": [0.6, 0.0, None], "c": [1.1, 0.0, None]}
    found = decay(0.01, constants, {"x": f"-{term}", "y": "-b*y"}, precision).confidence()
    assert found.undetermined == (f"a and c are not determined by these data: only their {only} is.",)
    assert found.constants["a"].upper == np.inf and found.constants["a"].lower == 0
    assert found.constants["b"].upper == pytest.approx(0.5, rel=0.05)
    assert found.as_dict()["constants"]["c"]["standard_error"] is None


def test_a_constant_that_hardly_acts_is_named_alone():
    constants = {"a": [0.8, 0.0, None], "b": [0.6, 0.0, None], "c": [1e-4, 0.0, None]}
    found = decay(0.05, constants, {"x": "-a*x", "y": "-b*y - c*1e-3*x"}).confidence()
    assert found.undetermined == ("c is not determined by these data.",)


@pytest.mark.parametrize(("ridge", "why"), [(0.0, ", since other"), (1e-6, ": other fitted quantities")])
def test_a_network_that_makes_up_for_a_constant_is_said(ridge, why):
    hybrid = functools.partial(
        nf.Hybrid,
        equations={"x": "-a*x + free", "y": "-b*y"},
        constants={"a": [0.8, 0.0, None], "b": [0.6, 0.0, None]},
        terms={"free": 1.0},
        sees=["x"],
        width=3,
        depth=1,
    )
    fit = fit_to(decay(0.01).data["train"], field=hybrid, start=FITTED, **{**OPTIONS, "ridge": ridge, "steps": 200})
    found = fit.confidence()
    (said,) = found.undetermined
    assert said.startswith(f"a is not determined by these data{why}")
    assert found.constants["b"].upper == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("ridge", [0.01, 0.1, 1.0])
def test_a_constant_that_only_the_prior_determines_is_said(ridge):
    """The network sees what the constant acts on, a prior weighs the two, and an interval would be narrow and wrong."""
    starts, noise = np.linspace(0.3, 3.0, 6), np.random.default_rng(0)
    rates = lambda t, x: -0.7 * x + 1.5 * x**2 / (1 + x**2)  # noqa: E731
    ys = scipy.integrate.solve_ivp(rates, (0, 2), starts, t_eval=TS, rtol=1e-8).y
    data = nf.Dataset.from_arrays(TS, (ys + 0.01 * noise.standard_normal(ys.shape))[..., None], states=("x",))
    field = functools.partial(
        nf.Hybrid, equations={"x": "-k*x + f"}, constants={"k": [1.0, 0.0, None]}, terms={"f": 1.0}, width=4, depth=1
    )
    fit = fit_to(data, field=field, start=FITTED, **{**OPTIONS, "ridge": ridge, "steps": 300})
    for method in ("fisher", "profile"):
        found = fit.confidence(method)
        (said,) = found.undetermined
        assert said.startswith("k is not determined by these data") and "penalty.ridge" in said
        assert (found.constants["k"].lower, found.constants["k"].upper) == (0.0, np.inf)


class Slope(eqx.Module):
    """`-k x + w x` for a constant `k` and a number `w` that a prior holds."""

    constants: Constants
    w: jax.Array

    def __call__(self, t, y, u):
        return (self.w - self.constants.values()["k"]) * y


def test_a_number_that_a_prior_holds_may_make_up_for_a_constant():
    def field(states, inputs, *, key):
        return Slope(Constants.of({"k": [0.5, 0.0, None]}), jnp.zeros(()))

    data = nf.Dataset.from_arrays(TS, np.exp(-0.7 * TS)[:, None] + 0.01 * np.sin(40 * TS)[:, None], states=("x",))
    units = nf.Scaling(affine=False)  # In which the field describes the data.
    options = {**OPTIONS, "ridge": 0.01, "steps": 100, "scaling": units}
    found = fit_to(data, field=field, start=FITTED, **options).confidence()
    assert "k is not determined by these data" in found.undetermined[0]


@pytest.fixture
def unfinished(monkeypatch):
    """Fits stay where their training has left them, as those with a network do."""
    monkeypatch.setattr("node_fit.fitting.train.bring_to_optimum", lambda fit: fit)


@pytest.mark.usefixtures("unfinished")
def test_a_fit_that_is_cut_short_is_said():
    found = fit_line(line(), steps=1, optimizer=nf.Adam()).confidence()
    assert "standard errors from its optimum" in found.notes[0]
    assert "use optimizer=lm" in found.notes[0]


@pytest.mark.usefixtures("unfinished")
def test_a_fit_far_from_its_optimum_is_not_advised_what_it_has_used():
    data = nf.Dataset.from_arrays(TS, np.exp(-TS)[:, None] + 0.01 * np.cos(40 * TS)[:, None], states=("x",))
    field = known({"x": "-k*x"}, {"k": 0.2})
    found = fit_line(data, field=field, steps=1, optimizer=nf.LevenbergMarquardt()).confidence()
    assert found.notes[0].endswith("off by as much; raise training.steps.")


def test_what_has_no_confidence_says_why():
    fit = fit_to(line(), field=functools.partial(nf.MLP, width=2, depth=1), **{**OPTIONS, "steps": 1})
    with pytest.raises(ValueError, match="no constants"):
        fit.confidence()
    with pytest.raises(ValueError, match="level must be above 0"):
        fit.confidence(level=95.0)
    windows = fit_line(line(), start=nf.First, window=4, steps=1)
    assert windows.confidence().constants, "whole trajectories come after windows"
    few = nf.Dataset.from_arrays(TS[:3], line().ys[0, :3], states=("x",))
    three = known({"x": "k + a*t + b*t**2"}, {"k": 1.0, "a": 1.0, "b": 1.0})
    with pytest.raises(ValueError, match="nothing to estimate the noise from"):
        fit_to(few, field=three, **{**OPTIONS, "steps": 1}).confidence()


@pytest.mark.parametrize(
    "interval, text",
    [
        ((0.0451, 0.001, 0.0438, 0.0465), "k1 = 0.0451 [0.0438, 0.0465]"),
        ((3e7, 10.0, 29999980.0, 30000020.0), "k1 = 30000000 [29999980, 30000020]"),
        ((0.5, np.inf, 0.0, np.inf), "k1 = 0.5 [0, inf]"),
    ],
)
def test_an_interval_is_printed_with_as_many_digits_as_it_has(interval, text):
    found = ConfidenceInterval(*interval)
    assert format_with_interval("k1", found) == text
    assert ConfidenceInterval.of(found.as_dict()) == found


def test_the_profile_of_a_straight_line_is_its_interval():
    fit = fit_line(line())
    fisher, profile = (fit.confidence(method).constants["k"] for method in ("fisher", "profile"))
    assert (profile.lower, profile.upper) == pytest.approx((fisher.lower, fisher.upper), rel=2e-3)


@pytest.mark.parametrize("sigma", [None, 0.2])
def test_a_profile_ends_where_the_best_fit_with_the_constant_held_is_worse_by_the_threshold(sigma):
    ts = np.linspace(0.0, 3.0, 15)
    ys = np.exp(-ts) + 0.2 * np.random.default_rng(1).standard_normal(15)
    data = nf.Dataset.from_arrays(ts, ys[:, None], states=("x",), sigma=sigma)
    field = known({"x": "-a*x"}, {"a": 0.8})
    fit = fit_to(data, field=field, start=FITTED, **{**OPTIONS, "solver": nf.Solver("tsit5", rtol=1e-8)})

    def squares(a):
        basis = np.exp(-a * ts)  # The best start follows from linear regression.
        return ((ys - basis * (basis @ ys) / (basis @ basis)) ** 2).sum()

    found = fit.confidence("profile").constants["a"]
    best = squares(found.estimate)
    rise = scipy.stats.norm.ppf(0.975) ** 2 * 0.04 if sigma else scipy.stats.t.ppf(0.975, 13) ** 2 * best / 13
    for end in (found.lower, found.upper):
        assert squares(end) - best == pytest.approx(rise, rel=0.01)
    linear = fit.confidence().constants["a"]
    assert abs(squares(linear.upper) - best - rise) > 0.02 * rise, "the problem is not linear"


@pytest.mark.parametrize("precision", ["x32", "x64"])
def test_a_profile_without_an_upper_end_is_said(precision):
    ts = np.linspace(0.0, 3.0, 15)
    # The solution of x' = -3 x / (2 + x).
    ys = 2 * scipy.special.lambertw(0.5 * np.exp(0.5 - 1.5 * ts)).real + 0.03 * np.random.default_rng(
        3
    ).standard_normal(15)
    data = nf.Dataset.from_arrays(ts, ys[:, None], states=("x",))
    constants = {"v": [3.0, 0.0, None], "half": [3.0, 0.0, None]}
    field = known({"x": "-v*x/(half + x)"}, constants)
    found = fit_to(data, field=field, start=FITTED, **{**OPTIONS, "precision": precision}).confidence("profile")
    assert "only their ratio is" in found.undetermined[0]
    assert "The profile of half has one side only" in found.undetermined[-1]
    assert found.constants["v"].upper == found.constants["half"].upper == np.inf
    assert 0.5 < found.constants["half"].lower < found.constants["half"].estimate


def test_implicit_methods_give_the_same_intervals():
    implicit = nf.Solver("kvaerno3", rtol=1e-6)
    found = decay(0.1, solver=implicit, optimizer=nf.LevenbergMarquardt(), steps=15).confidence().constants
    explicit = decay(0.1, solver=nf.Solver("bosh3", rtol=1e-6)).confidence().constants
    for name in ("a", "b"):
        assert found[name].lower == pytest.approx(explicit[name].lower, rel=1e-3)


def test_intervals_are_those_of_the_fit_where_first_held_steps_are_unstable():
    """Batches that run out of glucose, whose rate then is fast: steps far too long have errors that say little."""
    draw, (growth, half, gain) = np.random.default_rng(4), (0.4, 0.5, 0.5)

    def grow(t, y):
        rate = growth * y[1] / (half + y[1]) * y[0]
        return [rate, -rate / gain]

    ts = [np.sort(np.append(draw.uniform(0, 14, 12), 0.0)) for _ in range(6)]
    starts = draw.uniform([0.1, 6.0], [0.4, 12.0], (6, 2))
    solved = [
        scipy.integrate.solve_ivp(grow, (0, 15), start, t_eval=times, rtol=1e-9, atol=1e-12).y.T
        for start, times in zip(starts, ts, strict=True)
    ]
    noisy = [ys + np.array([0.08, 0.2]) * draw.standard_normal(ys.shape) for ys in solved]
    data = nf.Dataset.from_arrays(ts, noisy, states=("x", "s"))
    rate = "mu*s/(K + s)*x"
    field = known({"x": rate, "s": f"-{rate}/Y"}, {"mu": [0.2, 0, None], "K": [1.0, 0, None], "Y": [1.0, 0, None]})
    fit = nf.fit(data, field=field, options=nf.Options(precision="x64", effort="quick"), progress=False)
    found = fit.confidence()
    assert found.constants["K"].lower > 0.1 and found.constants["K"].upper < 2 and "do not describe" not in str(found)

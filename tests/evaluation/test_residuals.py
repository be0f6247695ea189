"""Checks of residuals: independent noise is rarely accused, and what depends on something is found."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
from helpers.problems import fit_to
from scipy.stats import norm

import node_fit as nf
from node_fit.data.scaling import Scaler
from node_fit.evaluation.residuals import (
    autocorrelation,
    check_channels,
    check_residuals,
    describe_misfit,
    even_out,
    explain_by_past,
    growth_of,
    inputs_in_words,
    ljung_box,
    neighbours_in_words,
    neumann_test,
    runs_test,
)

ROWS = 60


def lasting(rng, shape, correlation):
    """Autoregressive noise of variance 1 along the last axis."""
    values = rng.normal(size=shape)
    for row in range(1, shape[-1]):
        values[..., row] = correlation * values[..., row - 1] + (1 - correlation**2) ** 0.5 * values[..., row]
    return values


def checked(values, us=None, inputs=()):
    values = np.atleast_2d(values)
    segment = np.repeat(np.arange(len(values)), values.shape[1])
    us = np.zeros((values.size, 0)) if us is None else us.reshape(values.size, -1)
    return check_channels(values.reshape(-1, 1), segment, us, ("x",), inputs)


def accused(words, make, sets=400):
    return np.mean([bool(words(make(np.random.default_rng(seed)))) for seed in range(sets)])


def test_independent_noise_is_rarely_accused():
    """At most 1 % of sets, and three standard errors of 400 sets are 1.5 %; of a record and of many short ones."""
    assert accused(neighbours_in_words, lambda rng: checked(rng.normal(size=ROWS))) <= 0.025
    assert accused(neighbours_in_words, lambda rng: checked(rng.standard_t(3, size=(12, 5)))) <= 0.025


def test_slow_inputs_are_not_accused_of_slow_residuals():
    def make(rng):
        slow = lasting(rng, (2, 200), 0.9)
        return checked(slow[0], slow[1], ("u",))

    assert accused(inputs_in_words, make, 200) <= 0.06


def test_what_depends_is_found():
    def neighbours(rng):
        return checked(lasting(rng, (100,), 0.7))

    def inputs(rng):
        u = rng.normal(size=100)
        return checked(np.exp(u) + rng.normal(size=100), u, ("u",))

    assert accused(neighbours_in_words, neighbours, 50) >= 0.95
    assert accused(inputs_in_words, inputs, 50) >= 0.95
    found = neighbours(np.random.default_rng(1))
    assert neighbours_in_words(found) == [
        f"Neighbouring residuals depend on each other (lag-1 correlation {found['x'].lag1:.2f} of x)."
    ]
    said = inputs_in_words(inputs(np.random.default_rng(0)))
    assert said[0].startswith("The residuals of x depend on the input u (rank correlation 0.")


def decay_with_errors(rng, relative, rows=60, shift=0.0):
    """Two decays over two decades with errors of 5, or 5 % of the values; and the true values."""
    ts = np.linspace(0, 5, rows)
    true = shift + 100 * np.exp(-ts)[None, :, None] * np.array([1.0, 0.5])[:, None, None]
    noise = rng.normal(size=true.shape) * (0.05 * true if relative else 5.0)
    ys = true + noise
    data = nf.Dataset.from_arrays(np.tile(ts, (2, 1)), np.abs(ys) if relative else ys, states=("x",))
    return data, true


def growths(data, true, bounds=None):
    says = check_residuals(data, true, Scaler.from_dataset(data, bounds=bounds)).says
    return [sentence for sentence in says if "grow" in sentence]


def test_residuals_that_grow_with_values_are_named():
    found = [growths(*decay_with_errors(np.random.default_rng(seed), relative=True)) for seed in range(30)]
    assert np.mean([bool(each) for each in found]) >= 0.95
    assert found[0][0].startswith("The residuals grow with the values (rank correlation 0.")
    assert found[0][0].endswith(" of x), as relative errors do: data.log=[x] fits these.")


def misfits(relative, wrong=lambda true, ts: true, sets=200):
    """The share of sets with a misfit."""
    count = 0
    for seed in range(sets):
        data, true = decay_with_errors(np.random.default_rng(seed), relative, shift=0.0 if relative else 50.0)
        predicted = wrong(true, data.ts[..., None])
        count += describe_misfit(check_residuals(data, predicted, Scaler.from_dataset(data))) is not None
    return count / sets


@pytest.mark.parametrize("relative", [True, False])
def test_a_true_model_is_rarely_a_misfit(relative):
    """Large residuals beside each other are not dependent where values are large: 45 % of these sets looked so."""
    assert misfits(relative) <= 0.035


def test_wrong_models_are_misfits_under_relative_errors():
    assert misfits(True, lambda true, ts: true * (1 + 0.1 * np.sin(2 * ts)), 50) >= 0.95
    assert misfits(True, lambda true, ts: true * np.exp(0.03 * ts), 50) >= 0.8


def test_sizes_are_fitted_to_small_and_large_values():
    ratios = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        predicted = np.exp(rng.uniform(-7, 7, 600))
        residuals = (0.1 + 0.05 * predicted) * rng.normal(size=600)
        residuals[::10] = np.nan
        even = even_out(residuals, predicted)
        assert np.isnan(even).sum() == 60
        small, large = (np.nanstd(even[part]) for part in (predicted < 0.2, predicted > 10))
        ratios.append(small / large)
    assert np.median(np.abs(np.log(ratios))) < 0.12


def test_residuals_of_one_size_or_none_do_not_grow():
    rows = np.linspace(1, 2, 40)
    for residuals in (np.resize([0.1, -0.1], 40), np.zeros(40), np.full(40, np.nan), 1e-4 * rows):
        assert growth_of(residuals, rows) == (None, None)
    assert growth_of(rows, np.ones(40)) == (None, None) == growth_of(rows[:5], rows[:5])
    assert growth_of(np.resize([1, -1], 40) * rows, rows) == (pytest.approx(1), pytest.approx(0, abs=1e-9))


def test_residuals_of_one_size_are_rarely_said_to_grow():
    """At most 1 % of sets, and three standard errors of 400 sets are 1.5 %."""
    made = [decay_with_errors(np.random.default_rng(seed), relative=False, shift=50.0) for seed in range(400)]
    assert np.mean([bool(growths(*each)) for each in made]) <= 0.025


@pytest.mark.parametrize("kind", ["logarithms", "known deviations", "negative values", "exact"])
def test_residuals_of_which_no_logarithm_is_asked(kind):
    data, true = decay_with_errors(np.random.default_rng(0), relative=True)
    bounds = {"x": (0.0, None)} if kind == "logarithms" else None
    if kind == "logarithms":  # Errors that grow faster than the values.
        data = dataclasses.replace(data, ys=true * (data.ys / true) ** (true / 20))
    if kind == "known deviations":
        data = dataclasses.replace(data, sigma=0.05 * true)
    if kind == "negative values":
        data, true = dataclasses.replace(data, ys=data.ys - 60), true - 60
    if kind == "exact":
        data = dataclasses.replace(data, ys=true * (1 + 1e-4 * (data.ys / true - 1)))
    assert growths(data, true, bounds) == []


def test_standard_error_and_probabilities_are_those_of_independent_values():
    rng = np.random.default_rng(3)
    found = [checked(rng.normal(size=400))["x"] for _ in range(600)]
    assert np.std([each.lag1 for each in found]) == pytest.approx(found[0].lag1_error, rel=0.1)
    for name in ("ljung_box", "runs"):
        ps = np.array([getattr(each, name) for each in found])
        for level in (0.05, 0.5):
            assert (ps < level).mean() == pytest.approx(level, abs=4 * (level * (1 - level) / ps.size) ** 0.5)


def test_runs_against_all_orders():
    """Mean and variance of the number of runs of three high and four low values, over all their orders."""
    orders = [np.isin(np.arange(7), high) for high in itertools.combinations(range(7), 3)]
    runs = [1 + np.diff(order).sum() for order in orders]
    values = np.array([1.0, 1.1, 1.2, -1.0, -1.1, -1.2, -1.3])
    expected = 2 * norm.sf(abs(2 - np.mean(runs)) / np.std(runs))
    assert runs_test(values, np.zeros(7, int)) == pytest.approx(expected)
    # A single value of another segment has one run in any order.
    assert runs_test(np.append(values, 0.0), np.array([0] * 7 + [1])) == pytest.approx(
        2 * norm.sf(abs(2 - np.mean(runs)) / np.std(runs))
    )
    assert runs_test(np.ones(7), np.zeros(7, int)) is None


def test_few_rows_and_exact_predictions_tell_nothing():
    found = checked(np.random.default_rng(0).normal(size=7))["x"]
    assert found.values == 7 and found.lag1 is None and found.neumann is None
    found = checked(np.random.default_rng(0).normal(size=19))["x"]
    assert found.neumann is not None and found.ljung_box is None and found.runs is None
    assert checked(np.zeros(100))["x"].ljung_box is None
    assert ljung_box(autocorrelation(np.arange(6.0), np.arange(6), 3)[1:], np.zeros(3, int), 6) is None


def test_residuals_count_on_the_scale_of_the_fit():
    """Relative noise is even in logarithms; with a standard deviation for each row, in units of it."""
    rng = np.random.default_rng(0)
    ts, noise = np.linspace(0, 4, 200), lasting(rng, (200,), 0.6)
    exact = np.exp(ts)
    data = nf.Dataset.from_arrays(ts, (exact * np.exp(0.1 * noise))[:, None], states=["x"])
    scaler = Scaler.from_dataset(data, bounds=nf.Scaling(log=["x"]).limits(("x",), ()))
    own = check_residuals(data, exact[None, :, None], scaler).channels["x"]
    assert own.lag1 == pytest.approx(autocorrelation(noise, np.zeros(200, int), 1)[1], abs=1e-6)
    given = nf.Dataset.from_arrays(ts, (exact * (1 + 0.1 * noise))[:, None], states=["x"], sigma=0.1 * exact[:, None])
    there = check_residuals(given, exact[None, :, None], Scaler.from_dataset(given)).channels["x"]
    assert there.lag1 == pytest.approx(own.lag1, abs=1e-6)


def test_values_that_are_counted_in_steps_are_not_accused_of_their_steps():
    """What an encoder counts depends on its neighbours where it moves slowly; an error of more than a step is one."""
    ts = np.linspace(0, 1, 400)
    exact = np.sin(3 * ts)
    for step, share, is_accused in ((0.01, 0.0, False), (0.01, 0.9, True), (0.03, 0.3, False)):
        written = np.round(exact / step) * step
        data = nf.Dataset.from_arrays(ts, written[:, None], states=["x"])
        predicted = (exact + share * step * np.sin(9 * ts))[None, :, None]
        found = check_residuals(data, predicted, Scaler.from_dataset(data))
        assert (describe_misfit(found) is not None) == is_accused, (step, share)
    noise = 0.004 * lasting(np.random.default_rng(0), (400,), 0.9)
    data = nf.Dataset.from_arrays(ts, (exact + noise)[:, None], states=["x"])
    assert describe_misfit(check_residuals(data, exact[None, :, None], Scaler.from_dataset(data))), "no steps"


def test_a_start_that_is_a_measurement_is_no_residual():
    data = nf.Dataset.from_arrays(np.arange(30.0), np.random.default_rng(0).normal(size=(30, 1)), states=["x"])
    predicted = np.zeros((1, 30, 1))
    predicted[0, 0] = data.ys[0, 0]
    predicted[0, 7] = np.inf
    assert check_residuals(data, predicted, Scaler.from_dataset(data)).channels["x"].values == 28


def test_what_past_rows_explain():
    rng = np.random.default_rng(0)
    slow, white = lasting(rng, (400,), 0.9), rng.normal(size=400)
    data = nf.Dataset.from_arrays(np.arange(400.0), np.stack([slow, white], axis=1), states=["a", "b"])
    shares = explain_by_past(data, np.zeros((1, 400, 2)))
    assert 0.7 < shares[0] < 0.9 and shares[1] < 0.2
    assert np.isnan(explain_by_past(data, data.ys)).all()


@pytest.mark.parametrize("rows", [1, 8, 9, 10, 11])
def test_past_rows_of_short_records_explain_nothing_that_is_known(rows):
    data = nf.Dataset.from_arrays(np.arange(float(rows)), np.ones((3, rows, 1)), states=["a"])
    assert np.isnan(explain_by_past(data, np.zeros((3, rows, 1)))).all()


@pytest.mark.slow
def test_a_fit_says_that_its_intervals_are_too_narrow():
    ts = np.linspace(0, 4, 80)
    field = functools.partial(nf.Known, equations={"x": "-a*x"}, constants={"a": 0.8})
    for correlation in (0.8, 0.0):
        ys = np.exp(-ts) + 0.05 * lasting(np.random.default_rng(2), (80,), correlation)
        data = nf.Dataset.from_arrays(ts, ys[:, None], states=["x"])
        fit = fit_to(
            data,
            field=field,
            start=functools.partial(nf.Fitted, given=None),
            recipe="direct",
            precision="x64",
            ridge=0.0,
            steps=60,
        )
        notes, checks = fit.confidence().notes, fit.check_residuals()
        if correlation:
            lag1 = checks.channels["x"].lag1
            said = f"Neighbouring residuals depend on each other (lag-1 correlation {lag1:.2f} of x)"
            assert f"{said}: the intervals are too narrow." in notes and checks.says == (f"{said}.",)
        else:
            assert not any("Neighbouring" in note for note in notes) and checks.says == ()


def misfit(values, sigma=None):
    """What is said of residuals, shape (trajectory, time), of one state."""
    ys = np.atleast_2d(values)[..., None]
    data = nf.Dataset.from_arrays(np.arange(float(ys.shape[1])), ys, states=["x"], sigma=sigma)
    return describe_misfit(check_residuals(data, np.zeros_like(ys), Scaler.from_dataset(data, identity=True)))


@pytest.mark.parametrize("share", [0.0, 0.7])
def test_residuals_that_depend_on_an_input_are_no_noise(share):
    """Neighbours are independent, as the input is new in each row."""
    rng = np.random.default_rng(3)
    us, noise = rng.uniform(size=(2, 80, 1))
    ys = (noise + share * us)[None]
    data = nf.Dataset.from_arrays(np.arange(80.0), ys, us[None], states=["x"], inputs=["u"])
    found = describe_misfit(check_residuals(data, np.full_like(ys, ys.mean()), Scaler.from_dataset(data)))
    assert (found is not None) == (share > 0)
    assert share == 0 or found.startswith("the residuals of x depend on the input u (rank correlation 0.")


def test_few_rows_tell_of_neighbours_that_are_alike():
    """Twelve rows: noise is rarely accused, and half a wave of three times the noise is found."""
    draws = [np.random.default_rng(seed).normal(size=12) for seed in range(300)]
    assert np.mean([misfit(noise) is not None for noise in draws]) <= 0.025
    wave = 3 * np.cos(np.pi * np.arange(12) / 11)
    assert np.mean([misfit(noise + wave) is not None for noise in draws[:50]]) >= 0.9


def test_trajectories_that_differ_by_group_are_no_replicates():
    """Each start is fitted, so that its trajectory's residuals have no mean; half of them bend up, half down."""
    bend = np.cos(2 * np.pi * np.arange(6) / 5)
    bend -= bend.mean()
    groups = np.where(np.arange(10) < 5, 1.0, -1.0)[:, None] * bend

    def left(seed, size):
        noise = np.random.default_rng(seed).normal(size=(10, 6))
        return noise - noise.mean(axis=1, keepdims=True) + size * groups

    assert np.mean([misfit(left(seed, 0.0)) is not None for seed in range(300)]) <= 0.03
    said = [misfit(left(seed, 1.7)) for seed in range(50)]
    assert np.mean([each is not None and "trajectories differ" in each for each in said]) >= 0.9


def test_residuals_are_as_large_as_their_known_deviation():
    rng = np.random.default_rng(0)
    values = 0.1 * rng.normal(size=60)
    assert misfit(values, sigma=0.1) is None and misfit(values, sigma=0.105) is None
    assert "larger than data.sigma says" in misfit(values, sigma=0.06)


def test_neighbours_are_as_in_all_orders():
    """The mean and the variance over all orders of five values, of two trajectories."""
    values, segment = np.array([0.3, -1.2, 2.0, 0.1, 0.7]), np.array([0, 0, 0, 1, 1])
    centred = values - values.mean()

    def share(order):
        x = centred[list(order)]
        return (x[0] * x[1] + x[1] * x[2] + x[3] * x[4]) / (x @ x)

    shares = np.array([share(order) for order in itertools.permutations(range(5))])
    expected = norm.cdf((shares.mean() - share(range(5))) / shares.std())
    assert neumann_test(values, segment) == pytest.approx(expected, abs=0.03)

"""Values beyond a limit in a population: their probability, its derivatives and integral, and what is made of them."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import node_fit
from node_fit.likelihood.limits import FAR_TAIL, log_probability
from node_fit.population.fit import build_population
from node_fit.population.measurements import Measurements, measurement_misfit, weights
from node_fit.population.noise import ResidualNoise
from node_fit.population.prediction import innermost_limits
from node_fit.population.search import first_parameters
from node_fit.runtime.placement import scope

LIMIT, RATE, VARIANCE, SIZE = 2.0, 0.5, 0.09, 0.3
TIMES = np.array([0.0, 2.0, 4.0])


def cut_decays(subjects=6, kind="additive", seed=4, limit=LIMIT):
    """Decays from 10 whose rate is log-normal, of which low values are known to be below a limit alone."""
    rng = np.random.default_rng(seed)
    rates = RATE * np.exp(np.sqrt(VARIANCE) * rng.standard_normal(subjects))
    clean = 10 * np.exp(-rates[:, None] * TIMES)
    ys = clean + SIZE * rng.standard_normal(clean.shape) * (clean if kind == "proportional" else 1)
    sides = np.where(ys < limit, -1, 0)
    return node_fit.Dataset.from_arrays(
        TIMES, np.maximum(ys, limit)[..., None], states=["y"], censored=sides[..., None]
    )


def make_population(data, kind="additive", method="focei"):
    field = functools.partial(node_fit.Known, equations={"y": "-k*y"}, constants={"k": RATE})
    start = functools.partial(node_fit.Stated, values={"y": 10})
    options = node_fit.Options(field=field, start=start, solver=node_fit.Solver(rtol=1e-9), precision="x64")
    settings = node_fit.MixedEffects(method=method, noise={"y": {kind: SIZE}})
    random = {"k": {"kind": "lognormal", "variance": VARIANCE}}
    population = build_population(data, random, settings, options)
    return population.refine_steps(parameters(), population.still)


def parameters():
    return np.array([np.log(RATE), 0.5 * np.log(VARIANCE), np.log(SIZE)])


def exact_objective(data, x, kind="additive"):
    """Minus twice the log-likelihood without 2 pi of exact values, by integrals over one effect."""
    theta, root, size = x[0], np.exp(x[1]), np.exp(x[2])
    total = 0.0
    for ys, sides in zip(data.ys[..., 0], data.censored[..., 0], strict=True):

        def density(z, ys=ys, sides=sides):
            f = 10 * np.exp(-np.exp(theta + root * z) * TIMES)
            deviation = size * (f if kind == "proportional" else 1)
            exact = norm.logpdf(ys, f, deviation) + 0.5 * np.log(2 * np.pi)
            logs = np.where(sides == 0, exact, norm.logcdf(sides * (f - ys) / deviation))
            return np.exp(logs.sum() + norm.logpdf(z))

        total -= 2 * np.log(quad(density, -8, 8, epsabs=0, epsrel=1e-10, points=[-2, 0, 2], limit=200)[0])
    return total


@pytest.mark.parametrize(
    ("kind", "off"), [("additive", 0.1), pytest.param("proportional", 0.7, marks=pytest.mark.slow)]
)
def test_quadrature_is_the_integral(kind, off):
    """And the first-order objective is as near as it is without limits."""
    data, x = cut_decays(kind=kind), parameters()
    assert 0.2 < (data.censored != 0).mean() < 0.7
    population = make_population(data, kind)
    z = population.find_modes(x)
    wanted = exact_objective(data, x, kind)
    assert population.quadrature(x, z, 21) == pytest.approx(wanted, abs=2e-3)
    assert population.objective(x, z, "focei")[0] == pytest.approx(wanted, abs=off)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("limits", "focei"),
        *(pytest.param("limits", each, marks=pytest.mark.slow) for each in ("foce", "laplace")),
        *(pytest.param("intervals", each, marks=pytest.mark.slow) for each in ("focei", "foce", "laplace")),
    ],
)
def test_gradient_is_exact(kind, method):
    data = cut_decays() if kind == "limits" else binned_decays()
    population, x = make_population(data, "additive", method), parameters()

    def objective(x):
        return population.objective(x, population.find_modes(x, interaction=method != "foce"), method)

    _, gradient = objective(x)
    for at in range(len(x)):
        step = 1e-4 * np.eye(len(x))[at]
        ends = [objective(x + side * step)[0] for side in (1, -1)]
        assert gradient[at] == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("kind", "side"), [("additive", -1), ("additive", 1), ("proportional", -1), ("lognormal", 1)])
def test_misfit_is_that_of_the_probability_beyond(kind, side):
    noise, y, f, size = ResidualNoise.of(kind, ["y"]), 2.0, np.array([0.7, 1.9, 2.0, 3.5]), 0.4
    deviation = size * (f if kind == "proportional" else 1)
    off = np.log(f / y) if kind == "lognormal" else f - y
    for predicted, wanted in zip(f, -2 * norm.logcdf(side * off / deviation), strict=True):
        seen = Measurements(np.array([[y]]), np.array([[True]]), np.array([[side]]))
        with scope("x64"):
            h = noise.transform(jnp.array([[predicted]]))
            found = measurement_misfit(noise, jnp.log(jnp.array([size])), h, seen.arrays)
        assert float(found) == pytest.approx(wanted)


def test_weight_of_a_limit_is_the_curvature_of_its_probability():
    """And goes to that of an exact value far on the wrong side, and to zero on the right one."""
    noise, f = ResidualNoise.of("additive", ["y"]), np.array([[-60.0], [1.0], [2.3], [3.0], [60.0]])
    seen = Measurements(np.full(f.shape, 2.0), np.ones(f.shape, bool), np.full(f.shape, -1)).arrays
    log_size, step = jnp.log(jnp.array([0.4])), 1e-4
    with scope("x64"):
        found = np.asarray(weights(noise, log_size, jnp.asarray(f), seen))[:, 0]
    u = (2.0 - f[:, 0]) / 0.4
    logs = [norm.logcdf(u + side * step) for side in (1, 0, -1)]
    wanted = -(logs[0] - 2 * logs[1] + logs[2]) / step**2 / 0.4**2
    np.testing.assert_allclose(found[1:4], wanted[1:4], rtol=1e-4)
    assert found[0] == 0 and found[4] == pytest.approx(0.4**-2, rel=1e-3)


def test_far_tail_has_the_derivatives_of_the_distribution():
    """So far on the wrong side the probability's logarithm is a parabola; its parts differ in their last digits."""
    u = np.array([2 * FAR_TAIL, 1e2 * FAR_TAIL, 1e4 * FAR_TAIL, 1e6 * FAR_TAIL])
    seen = Measurements(np.zeros((4, 1)), np.ones((4, 1), bool), np.full((4, 1), -1)).arrays
    with scope("x64"):
        slope, bend = jax.grad(log_probability), jax.grad(jax.grad(log_probability))
        ends = [np.asarray(log_probability(jnp.asarray(FAR_TAIL + off))) for off in (-1e-9, 1e-9)]
        slopes, bends = jax.vmap(slope)(jnp.asarray(u)), jax.vmap(bend)(jnp.asarray(u))
        found = weights(ResidualNoise.of("additive", ["y"]), jnp.zeros(1), -jnp.asarray(u)[:, None], seen)
        joint = [np.asarray(jax.vmap(bend)(jnp.array([FAR_TAIL + off]))) for off in (-1e-6, 1e-6)]
    np.testing.assert_allclose(slopes, -u - 1 / u, rtol=1e-8)
    np.testing.assert_allclose(bends, -1 + 1 / u**2, atol=1e-8)
    np.testing.assert_allclose(np.asarray(found)[:, 0], 1, rtol=2e-4)
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-9)
    np.testing.assert_allclose(joint[0], joint[1], rtol=1e-6)


@pytest.mark.slow
def test_laplace_with_limits_is_near_the_integral():
    data, x = cut_decays(), parameters()
    population = make_population(data, method="laplace")
    z = population.find_modes(x)
    value = population.objective(x, z, "laplace")[0]
    assert value == pytest.approx(exact_objective(data, x), abs=0.1)


@pytest.mark.parametrize(("side", "row", "is_refused"), [(-1, 0, True), (1, 0, True), (-1, 1, False)])
def test_starts_at_a_limit_are_refused(side, row, is_refused):
    """A first measurement that is a limit says no value to start at; a row that was not measured is none."""
    ys, sides = np.tile([[np.nan], [4.0], [2.0], [1.0]], (3, 1, 1)), np.zeros((3, 4, 1), int)
    sides[1, 1 + row] = side
    data = node_fit.Dataset.from_arrays(np.arange(4.0), ys, states=["y"], trajectories=["a", "b", "c"], censored=sides)
    field = functools.partial(node_fit.Known, equations={"y": "-k*y"}, constants={"k": RATE})
    options, settings = node_fit.Options(field=field, precision="x64"), node_fit.MixedEffects()
    if not is_refused:
        build_population(data, ["k"], settings, options)
        return
    with pytest.raises(ValueError, match=r"subject 'b' starts at its first measurement of 'y'.*start=stated"):
        build_population(data, ["k"], settings, options)
    stated = functools.partial(node_fit.Stated, values={"y": "y0"}, constants={"y0": 4.0})
    build_population(data, ["k"], settings, replace(options, start=stated))


def test_residuals_of_predictions_beyond_their_limits_are_none():
    seen = Measurements(np.array([[2.0], [2.0], [2.0]]), np.ones((3, 1), bool), np.array([[-1], [1], [0]]))
    np.testing.assert_allclose(seen.residuals(np.full((3, 1), 1.5))[:, 0], [0.0, 0.5, 0.5])
    np.testing.assert_allclose(seen.residuals(np.full((3, 1), 2.5))[:, 0], [-0.5, 0.0, -0.5])
    assert seen.exact[:, 0].tolist() == [False, False, True]


def test_first_noise_is_of_what_contradicts_limits():
    """Low limits that predictions lie below say nothing of the noise."""
    data = cut_decays()
    low = replace(data, ys=np.where(data.censored < 0, 50.0, data.ys))
    population, theta = make_population(low), parameters()[:1]
    noise = ResidualNoise.of("additive", ["y"])
    population = replace(population, structure=replace(population.structure, noise=noise))
    assert np.exp(first_parameters(population, theta, parameters()[1:2])[-1]) < 2


def test_predictive_check_compares_within_limits():
    seen = Measurements(np.array([[0.5], [0.8], [4.0], [9.0]]), np.ones((4, 1), bool), np.array([[-1], [-1], [0], [1]]))
    assert innermost_limits(seen, 0) == (0.8, 9.0)
    assert innermost_limits(Measurements(seen.y, seen.mask), 0) == (-np.inf, np.inf)
    nothing = Measurements(seen.y, np.zeros((4, 1), bool), seen.sides)
    assert innermost_limits(nothing, 0) == (-np.inf, np.inf)


def test_first_order_method_refuses_limits():
    with pytest.raises(ValueError, match="use method focei"):
        make_population(cut_decays(), method="fo")


@pytest.mark.slow
def test_estimates_by_draws_are_those_of_the_expansion():
    """Of little noise, the expansion is about exact; and leaving the low values out would be far from both."""
    data = cut_decays(60)
    field = functools.partial(node_fit.Known, equations={"y": "-k*y"}, constants={"k": 0.4})
    start = functools.partial(node_fit.Stated, values={"y": 10})
    fits = [
        node_fit.fit_population(
            each, random=["k"], field=field, start=start, population=node_fit.MixedEffects(method=method)
        )
        for each, method in (
            (data, "saem"),
            (data, "focei"),
            (replace(data, censored=None, ys=np.where(data.censored < 0, np.nan, data.ys)), "focei"),
        )
    ]
    by_draws, expanded, without = fits
    assert by_draws.constants["k"] == pytest.approx(expanded.constants["k"], rel=0.01)
    assert by_draws.noise["y"]["additive"].value == pytest.approx(expanded.noise["y"]["additive"].value, rel=0.02)
    assert by_draws.variances["k"].value == pytest.approx(expanded.variances["k"].value, rel=0.03)
    assert expanded.fixed["k"].lower < RATE < expanded.fixed["k"].upper
    assert without.constants["k"] < 0.97 * expanded.constants["k"]
    rows = expanded.predictions
    assert set(rows["limit"]) == {"", "below"}
    assert (rows["weighted_residual"].isna() == (rows["limit"] == "below")).all()
    assert "beyond a limit) by focei" in repr(expanded)
    assert expanded.check_by_simulation().inside > 0.8


def binned_decays(subjects=6, kind="additive", width=0.8):
    """Those of `cut_decays`, of whose values after the first only bins are known, and of the lowest only a limit."""
    rng = np.random.default_rng(8)
    rates = RATE * np.exp(np.sqrt(VARIANCE) * rng.standard_normal(subjects))
    clean = 10 * np.exp(-rates[:, None] * TIMES)
    ys = clean + SIZE * rng.standard_normal(clean.shape) * (clean if kind == "proportional" else 1)
    lower = np.maximum(width * np.floor(ys / width), 0.0)
    is_known = TIMES == 0
    sides = np.broadcast_to(np.where(is_known, 0, -1), ys.shape)
    ends = np.where((sides < 0) & (lower > LIMIT), lower, np.nan)
    return node_fit.Dataset.from_arrays(
        TIMES,
        np.where(is_known, ys, lower + width)[..., None],
        states=["y"],
        censored=sides[..., None],
        other_end=ends[..., None],
    )


def log_difference(data, f, deviation, row):
    """The logarithm of the density of a subject's values, or of the probability of their intervals."""
    ys, sides, ends = (each[row, :, 0] for each in (data.ys, data.censored, data.other_end))
    lower = norm.cdf(np.where(np.isnan(ends), -np.inf, ends), f, deviation)
    with np.errstate(divide="ignore"):
        inside = np.log(norm.cdf(ys, f, deviation) - lower)
    return np.where(sides == 0, norm.logpdf(ys, f, deviation) + 0.5 * np.log(2 * np.pi), inside)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "off"), [("additive", 0.1), ("proportional", 0.7)])
def test_quadrature_of_intervals_is_the_integral(kind, off):
    data, x = binned_decays(kind=kind, width=0.3), parameters()
    assert np.isfinite(data.other_end).mean() > 0.4 and (data.censored < 0).sum() > np.isfinite(data.other_end).sum()
    theta, root, size = x[0], np.exp(x[1]), np.exp(x[2])
    wanted = 0.0
    for row in range(len(data)):

        def density(z, row=row):
            f = 10 * np.exp(-np.exp(theta + root * z) * TIMES)
            deviation = size * (f if kind == "proportional" else 1)
            return np.exp(log_difference(data, f, deviation, row).sum() + norm.logpdf(z))

        wanted -= 2 * np.log(quad(density, -8, 8, epsabs=0, epsrel=1e-10, points=[-2, 0, 2], limit=200)[0])
    population = make_population(data, kind)
    z = population.find_modes(x)
    assert population.quadrature(x, z, 21) == pytest.approx(wanted, abs=2e-3)
    assert population.objective(x, z, "focei")[0] == pytest.approx(wanted, abs=off)


@pytest.mark.parametrize(("kind", "side"), [("additive", -1), ("additive", 1), ("proportional", -1), ("lognormal", 1)])
def test_misfit_is_that_of_the_probability_between(kind, side):
    noise, y, f, size = ResidualNoise.of(kind, ["y"]), 2.0, np.array([0.7, 1.9, 2.0, 3.5]), 0.4
    other = y + side * 0.9
    ends = np.sort([y, other])
    deviation = size * (f if kind == "proportional" else 1)
    off = [np.log(end / f) if kind == "lognormal" else end - f for end in ends]
    wanted = -2 * np.log(norm.cdf(off[1] / deviation) - norm.cdf(off[0] / deviation))
    for predicted, each in zip(f, wanted, strict=True):
        given = (np.array([[value]]) for value in (y, True, side, other))
        with scope("x64"):
            h = noise.transform(jnp.array([[predicted]]))
            found = measurement_misfit(noise, jnp.log(jnp.array([size])), h, Measurements(*given).arrays)
        assert float(found) == pytest.approx(each)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "width"), [("additive", 0.7), ("additive", 1e-6), ("proportional", 1e-6)])
def test_weight_of_an_interval_is_its_curvature(kind, width):
    """And of one far narrower than the noise that of its middle, with the noise that follows the prediction."""
    noise, f, step = ResidualNoise.of(kind, ["y"]), np.array([[1.0], [2.0], [2.9]]), 1e-3
    shape, y = f.shape, 2.0
    seen = Measurements(np.full(shape, y), np.ones(shape, bool), np.full(shape, -1), np.full(shape, y - width)).arrays
    log_size = jnp.log(jnp.array([0.4]))
    with scope("x64"):
        found = np.asarray(weights(noise, log_size, jnp.asarray(f), seen))[:, 0]
        logs = [
            [measurement_misfit(noise, log_size, jnp.asarray(f[row : row + 1] + by * step), one) for by in (1, 0, -1)]
            for row in range(3)
            for one in [jax.tree.map(lambda part, row=row: part[row : row + 1], seen)]
        ]
    if kind == "additive":
        bends = [(high - 2 * middle + low) / (2 * step**2) for high, middle, low in np.asarray(logs)]
        np.testing.assert_allclose(found, bends, rtol=1e-4)
    else:  # One standard deviation more of the noise is so much less of the distance.
        z, share = (y - f[:, 0]) / (0.4 * f[:, 0]), 1 / f[:, 0]
        np.testing.assert_allclose(found, (1 / (0.4 * f[:, 0]) + z * share) ** 2 + share**2, rtol=1e-4)


def test_checks_take_intervals_at_their_middles():
    y, ones = np.array([[0.5], [4.0], [9.0], [2.0]]), np.ones((4, 1), bool)
    ends = np.array([[np.nan], [2.0], [np.nan], [np.nan]])
    seen = Measurements(y, ones, np.array([[-1], [-1], [0], [1]]), ends)
    assert innermost_limits(seen, 0) == (0.5, 2.0)
    np.testing.assert_array_equal(seen.middles[:, 0], [0.5, 3.0, 9.0, 2.0])
    np.testing.assert_allclose(seen.residuals(np.full((4, 1), 2.5))[:, 0], [-2.0, 0.5, 6.5, 0.0])
    assert seen.is_between[:, 0].tolist() == [False, True, False, False]


@pytest.mark.long
@pytest.mark.slow
def test_intervals_are_fitted_by_draws_as_by_the_expansion():
    """With estimates near those of the values themselves, where their upper ends are far off."""
    data = binned_decays(60)
    field = functools.partial(node_fit.Known, equations={"y": "-k*y"}, constants={"k": 0.4})
    start = functools.partial(node_fit.Stated, values={"y": 10})
    by_draws, expanded, upper = (
        node_fit.fit_population(
            each, random=["k"], field=field, start=start, population=node_fit.MixedEffects(method=method)
        )
        for each, method in ((data, "saem"), (data, "focei"), (replace(data, censored=None, other_end=None), "focei"))
    )
    assert by_draws.constants["k"] == pytest.approx(expanded.constants["k"], rel=0.01)
    assert by_draws.noise["y"]["additive"].value == pytest.approx(expanded.noise["y"]["additive"].value, rel=0.03)
    assert expanded.fixed["k"].lower < RATE < expanded.fixed["k"].upper
    assert upper.constants["k"] < 0.9 * expanded.constants["k"]
    rows = expanded.predictions
    is_between = rows["other_end"].notna()
    assert is_between.any() and (rows["other_end"][is_between] < rows["observed"][is_between]).all()
    assert expanded.check_by_simulation().inside > 0.7

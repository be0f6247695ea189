"""Channels that are counted between the rows of a record."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.model.ensemble import Ensemble
from node_fit.model.rollout import counts_from
from node_fit.predict import check_starts
from node_fit.runtime.placement import scope

KEY = jax.random.key(0)
B, G, PEOPLE, SICK = 0.42, 0.2, 50_000.0, 12.0
EPIDEMIC = functools.partial(
    nf.Known,
    equations={"S": "-b*S*I/50000", "I": "b*S*I/50000 - g*I", "total": "b*S*I/50000"},
    constants={"b": [B, 0, None], "g": [G, 0, None]},
)
CASES = functools.partial(nf.FormulaReadout, formulas={"cases": "increase(total)"})
START = functools.partial(nf.First, absent={"S": PEOPLE - SICK, "I": SICK, "total": 0.0})
STATES = ["S", "I", "total"]


def totals(ts: np.ndarray) -> np.ndarray:
    """How many have fallen sick up to some times."""

    def rates(t: float, y: np.ndarray) -> list[float]:
        new = B * y[0] * y[1] / PEOPLE
        return [-new, new - G * y[1], new]

    start = [PEOPLE - SICK, SICK, 0.0]
    return solve_ivp(rates, (0, ts[-1]), start, "LSODA", t_eval=ts, rtol=1e-10, atol=1e-8).y[2]


# Rows are not even: counts of a week, of two days, of none.
TIMES = np.array([0.0, 7.0, 14.0, 16.0, 23.0, 30.0, 37.0, 51.0, 58.0])


def weekly(first: float = 4.0, ts: np.ndarray = TIMES) -> nf.Dataset:
    counts = np.append(first, np.diff(totals(ts)))
    return nf.Dataset.from_arrays(ts, counts[:, None], states=["cases"])


def model_of(data: nf.Dataset, **options) -> nf.NeuralODE:
    given = {"field": EPIDEMIC, "hidden": STATES, "start": START, "observation": CASES, "key": KEY} | options
    with scope("x64"):
        return nf.make_model(data, solver=nf.Solver(rtol=1e-9, atol=1e-11), **given)


def test_a_likelihood_of_counts_sees_increases_and_no_first_count():
    """The first value may be anything, since it does not count."""
    data = nf.Dataset.from_arrays(TIMES, [[[-0.5], *np.round(weekly().ys[0, 1:])]], states=["cases"])
    model = model_of(data, loss=nf.Poisson())
    with scope("x64"):
        batch = model.batch(model.scaler.mark_angles(data))
        states = model.solver.solve(model.problem(batch, model.first_states(batch)), joint=batch.joint).ys
        seen = model.predictors(states, batch, counts=True)
    assert not batch.mask[0, 0, 0] and batch.mask[0, 1:].all()
    np.testing.assert_allclose(np.exp(seen.location)[0, 1:, 0], np.diff(totals(TIMES)), rtol=1e-4)
    np.testing.assert_array_equal(seen.value[0, 1:], data.ys[0, 1:])


def test_counts_at_rows_are_differences_and_curves_pass_through_them():
    data = weekly()
    model = model_of(data)
    counts = model.predict(data)[0, :, 0]
    np.testing.assert_allclose(counts[1:], data.ys[0, 1:, 0], rtol=1e-5)
    assert counts[0] == 0
    fine = np.array([[0.0, 3.5, 7.0, 10.5, 14.0, 15.0, 19.5, 58.0, 60.0]])
    # An interval earlier: within the first from its beginning on, in the third half of the second one earlier, and
    # beyond the last row as long as the last one.
    since = np.array([0.0, 0.0, 0.0, 3.5, 7.0, 10.5, 15.0, 51.0, 53.0])
    np.testing.assert_array_equal(counts_from(data.ts, fine)[0], since)
    found = model.predict(data, ts=fine)[0, :, 0]
    moments = np.unique([fine[0], since])
    at, before = (np.interp(times, moments, totals(moments)) for times in (fine[0], since))
    np.testing.assert_allclose(found, at - before, rtol=1e-5, atol=1e-5)


def test_times_without_data_are_rows():
    model = model_of(weekly())
    ts = np.arange(0.0, 30.0, 1.0)
    daily = model.predict(y0={"cases": np.nan}, ts=ts)[:, 0]
    np.testing.assert_allclose(daily[1:], np.diff(totals(ts)), rtol=1e-5)


def test_the_first_count_of_a_record_does_not_count():
    """It may be of any time before, and neither scales, nor residuals, nor scores see it."""
    one, other = weekly(first=4.0), weekly(first=1e6)
    models = [model_of(data) for data in (one, other)]
    np.testing.assert_array_equal(models[0].scaler.state_scale, models[1].scaler.state_scale)
    assert not models[1].batch(other).mask[0, 0, 0] and models[1].batch(other).mask[0, 1:, 0].all()
    assert nf.score(models[1], other).nrmse < 1e-4
    windows = models[0].batch(one.windows(3, 3))
    assert not windows.mask[:, 0].any() and windows.mask[:, 1:].any(), "a window has no row before its first one"
    mixed = nf.Dataset.from_arrays(TIMES, np.stack([one.ys[0, :, 0], totals(TIMES)], 1), states=["cases", "reported"])
    formulas = {"cases": "increase(total)", "reported": "total"}
    both = model_of(mixed, observation=functools.partial(CASES, formulas=formulas))
    np.testing.assert_array_equal(both.batch(mixed).mask[0, 0], [False, True])


def test_rows_that_are_missing_are_rows_all_the_same():
    data = weekly()
    ys = data.ys.copy()
    ys[0, 3] = np.nan
    gap = nf.Dataset.from_arrays(TIMES, ys[0], states=["cases"])
    np.testing.assert_allclose(model_of(gap).predict(gap), model_of(data).predict(data), rtol=1e-9)


@pytest.mark.parametrize("log", [(), ("cases",)])
def test_channels_and_their_gradients_are_finite_and_right(log):
    """In rows that fill up a shorter record, too, where a logarithm of no cases has no value."""
    data = nf.Dataset.from_arrays([TIMES, TIMES[:5]], [weekly().ys[0], weekly(ts=TIMES[:5]).ys[0]], states=["cases"])
    formulas = {"cases": "rho*increase(total)"}
    readout = functools.partial(nf.FormulaReadout, formulas=formulas, constants={"rho": 0.7})
    model = model_of(data, observation=readout, scaling=nf.Scaling(log=log))
    with scope("x64"):
        batch = model.batch(data)
        counted = np.stack([totals(TIMES), np.append(totals(TIMES[:5]), np.full(4, totals(TIMES[:5])[-1]))])
        states = np.stack([counted, counted, counted], axis=2)

        @jax.jit
        def loss(x: jax.Array) -> jax.Array:
            moved = eqx.tree_at(lambda m: m.observation.constants.raw, model, x[:1])
            off = moved.observe(x[1] * states, batch) - batch.ys
            return (jnp.where(batch.mask, off, 0) ** 2).sum()

        x = jnp.array([model.observation.constants.raw[0], 1.3])
        gradient, nudge = jax.grad(loss)(x), 1e-6 * np.eye(2)
        expected = [(loss(x + step) - loss(x - step)) / 2e-6 for step in nudge]
        assert loss(jnp.array([model.observation.constants.raw[0], 1 / 0.7])) < 1e-20, "rows before and rows of data"
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_a_model_file_and_an_ensemble_have_counts(tmp_path):
    data = weekly(first=1e6)
    model = model_of(data)
    nf.save(model, tmp_path / "cases.safetensors")
    again = nf.load(tmp_path / "cases.safetensors")
    np.testing.assert_array_equal(again.predict(data), model.predict(data))
    assert again.scaler.counted == (True,)
    with scope("x64"):
        moved = eqx.tree_at(lambda m: m.field.constants.raw, model, model.field.constants.raw * 1.01)
    both = Ensemble.of([model, moved], data, None)
    mean = (model.predict(data) + moved.predict(data)) / 2
    np.testing.assert_allclose(both.predict(data), mean, rtol=1e-6, atol=1e-9)
    assert np.isfinite(both.bands(data).lower).all()
    assert float(both.noise[0]) < 0.2, "the first count, which may be any, is no residual"


def test_formulas_of_counts_and_of_moments_may_be_mixed():
    data = weekly()
    formulas = {"cases": "rho*increase(total)/(1 + increase(total)/1000) + 0*I + increase(-S) - increase(total)"}
    readout = functools.partial(nf.FormulaReadout, formulas=formulas, constants={"rho": 0.5})
    counts = model_of(data).predict(data)[0, 1:, 0]
    found = model_of(data, observation=readout).predict(data)[0, 1:, 0]
    np.testing.assert_allclose(found, 0.5 * counts / (1 + counts / 1000), rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"observation": functools.partial(CASES, formulas={"cases": "increase(totl)"})},
            "formula of 'cases': 'totl' is not a state.*did you mean 'total'",
        ),
        (
            {"observation": functools.partial(CASES, formulas={"cases": "2*increase(total, I)"})},
            r"formula of 'cases': 'increase' takes 1 argument \(column 3 of",
        ),
        (
            {"observation": functools.partial(CASES, formulas={"cases": "increase(increase(total))"})},
            "'increase' is not allowed within itself",
        ),
        (
            {"field": functools.partial(EPIDEMIC, equations=EPIDEMIC.keywords["equations"] | {"I": "increase(S)"})},
            r"'increase' is not a function; .*or increase\(x\) in observation.formulas, the only place for it",
        ),
        (
            {"start": nf.Encoder},
            r"increase\(...\) counts from a trajectory's first row on, .*start=encoder.*use start=first",
        ),
    ],
)
def test_wrong_counts_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        model_of(weekly(), **options)


def test_new_times_need_no_first_count():
    data = nf.Dataset.from_arrays(TIMES, np.full((len(TIMES), 1), np.nan), states=["cases"])
    model = model_of(weekly())
    check_starts(model, data)
    np.testing.assert_allclose(model.predict(data)[0, 1:, 0], weekly().ys[0, 1:, 0], rtol=1e-5)


@pytest.mark.slow
def test_rates_are_found_from_counts(caplog):
    """From Poisson counts, within four standard errors, with the share of cases that is reported."""
    ts = np.arange(0.0, 85.0, 7.0)
    expected = 0.6 * np.diff(totals(ts))
    counts = np.append(np.nan, np.random.default_rng(0).poisson(expected))
    data = nf.Dataset.from_arrays(ts, counts[:, None], states=["cases"])
    field = functools.partial(EPIDEMIC, constants={"b": [0.5, 0, None], "g": [0.25, 0, None]})
    readout = functools.partial(
        nf.FormulaReadout, formulas={"cases": "rho*increase(total)"}, constants={"rho": [0.5, 0, 1]}
    )
    options = nf.Options(precision="x64", observation=readout)
    fit = nf.fit(data, field=field, hidden=STATES, start=START, options=options)
    intervals = fit.confidence().constants
    for name, true in {"b": B, "g": G, "rho": 0.6}.items():
        assert abs(fit.constants[name] - true) < 4 * intervals[name].standard_error
        assert intervals[name].standard_error < 0.2 * true
    assert fit.score(data).r2 > 0.98
    assert not caplog.records, "a channel that is a formula has no first measurement to start from"

"""Ensembles drawn from the Laplace approximation: their spread, coverage and refusals, and the command."""

import functools
import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.commands import node_fit, read_summary, read_table
from scipy.integrate import solve_ivp
from scipy.stats import t

import node_fit as nf
from node_fit.fitting.fit import has_few_noisy_rows, with_bands
from node_fit.fitting.judge import Attempt
from node_fit.fitting.relevance import log_evidence
from node_fit.uncertainty import linearization
from node_fit.uncertainty.linearization import Information, Unsure

pytestmark = pytest.mark.slow

SMALL = functools.partial(nf.MLP, width=16, depth=2)
DECAYING = functools.partial(
    nf.Known, equations={"x": "v", "v": "-a*x - b*x**3 - c*v"}, constants={"a": 1.2, "b": 0.2, "c": 0.1}
)


def oscillations(count: int, seed: int, noise: float = 0.1) -> nf.Dataset:
    """A damped oscillator with a stiffening spring, from several starts."""
    rng, ts = np.random.default_rng(seed), np.linspace(0, 10, 41)
    starts = [(rng.uniform(1, 2), rng.uniform(-0.5, 0.5)) for _ in range(count)]
    rates = lambda _, y: [y[1], -y[0] - 0.2 * y[1] - 0.3 * y[0] ** 3]  # noqa: E731
    ys = np.array([solve_ivp(rates, (0, 10), y0, t_eval=ts, rtol=1e-8).y.T for y0 in starts])
    return nf.Dataset.from_arrays(ts, ys + noise * rng.normal(size=ys.shape), states=["x", "v"])


def test_the_spread_is_that_of_propagated_errors():
    rng, ts = np.random.default_rng(0), np.linspace(0, 3, 31)
    ys = 2 * np.exp(-0.7 * ts) + np.where(ts > 0, 0.02 * rng.normal(size=31), 0)
    data = nf.Dataset.from_arrays(ts, ys[:, None], states=["x"])
    field = functools.partial(nf.Known, equations={"x": "-k*x"}, constants={"k": 0.5})
    fit = nf.fit(data, field=field, start="first", options=nf.Options(precision="x64"))
    k, interval = fit.model.constants()["k"], fit.confidence("fisher", level=0.95).constants["k"]
    error = (interval.upper - interval.lower) / (2 * 2.045)  # by Student's t with 29 degrees of freedom
    ensemble = fit.laplace(400)
    each = ensemble.simulate(data) * float(ensemble.members[0].scaler.state_scale[0])
    spread = ensemble.gain * each.std(axis=0)[0, :, 0]
    np.testing.assert_allclose(spread[1:], 2 * ts[1:] * np.exp(-k * ts[1:]) * error, rtol=0.15)
    np.testing.assert_allclose(ensemble.predict(data), fit.predict(data), atol=1e-5)
    assert fit.laplace(6).members[0].constants() == fit.laplace(6).members[0].constants()


def test_bands_of_a_network_cover_what_was_held_out():
    train, test = oscillations(4, seed=0), oscillations(4, seed=1)
    fit = nf.fit(train, field=SMALL, start=nf.Fitted, options=nf.Options(penalty=nf.Penalty(ridge=0.1)))
    bands = fit.laplace(32).bands(test, level=0.9)
    inside = ((bands.lower <= test.ys) & (test.ys <= bands.upper))[test.mask].mean()
    assert 0.85 <= inside <= 0.97
    assert np.mean(bands.upper - bands.lower) < 1.3 * 2 * 1.645 * 0.1


def test_more_parameters_than_a_square_matrix_may_have_get_the_same_bands(monkeypatch):
    """From the singular values of the Jacobian, which has few rows, instead of those of the whole curvature."""
    train = oscillations(2, seed=0)
    fit = nf.fit(train, field=SMALL, options=nf.Options(penalty=nf.Penalty(ridge=0.1), effort="quick"))
    plain, whole = fit.laplace(401), Information(fit.evidence).parameters
    monkeypatch.setattr(linearization, "MOST_PARAMETERS", 300)
    wide = replace(fit)
    assert Information(wide.evidence).is_wide and not Information(fit.evidence).is_wide
    assert Information(wide.evidence).parameters == pytest.approx(whole, rel=0.01)
    spreads = [ensemble.gain * ensemble.simulate(train).std(axis=0) for ensemble in (plain, wide.laplace(401))]
    np.testing.assert_allclose(spreads[1].mean(axis=1), spreads[0].mean(axis=1), rtol=0.15)
    with pytest.raises(Unsure, match=r"354 parameters are trained, more than 300"):
        log_evidence(wide.evidence)
    with pytest.raises(Unsure, match=r"354 parameters are trained, more than 300"):
        _ = Information(wide.evidence).root


def test_a_network_needs_a_prior():
    fit = nf.fit(
        oscillations(2, seed=0),
        field=SMALL,
        training=nf.Training(steps=50),
        options=nf.Options(penalty=nf.Penalty(ridge=0.0)),
    )
    with pytest.raises(ValueError, match=r"leave directions of the parameters open, .*; set penalty\.ridge"):
        fit.laplace()


def test_the_fit_itself_is_the_first_member():
    fit = nf.fit(oscillations(1, seed=0), field=DECAYING, options=nf.Options(effort="quick"))
    ensemble = fit.laplace(5)
    assert len(ensemble.members) == 5 and ensemble.center is ensemble.members[0]
    assert ensemble.center.constants() == pytest.approx(fit.model.constants(), rel=1e-6)
    assert ensemble.members[1].constants() != ensemble.center.constants()


def test_members_stay_near_a_fit_whose_constants_the_data_leave_open():
    """A rate that is fast against the rows: far members have it negative, and grow without bound."""
    rng, ts = np.random.default_rng(0), np.linspace(0, 24, 13)
    ys = 5 * np.exp(-0.1 * ts) + np.where(ts > 0, 0.3 * rng.normal(size=13), -4.9)
    data = nf.Dataset.from_arrays(ts, ys[:, None], states=["c"])
    field = functools.partial(nf.Known, equations={"g": "-a*g", "c": "a*g/20 - k*c"}, constants={"a": 5.0, "k": 0.1})
    options = nf.Options(hidden=["g"], start="fitted", effort="quick", precision="x64")
    fit = nf.fit(data, field=field, optimizer="lm", options=options)
    ensemble = fit.laplace()
    assert ensemble.gain > 100 and all(member.constants()["a"] > 0 for member in ensemble.members)
    np.testing.assert_allclose(ensemble.predict(data), fit.predict(data), rtol=0.02, atol=0.02)


def test_a_constant_near_zero_keeps_its_spread():
    """It is a share of its first value that members move by, not of what is left of it."""
    ts = np.linspace(0, 6, 31)
    wave = 0.05 * np.where(np.arange(31) % 2, 1.0, -1.0)
    field = functools.partial(nf.Known, equations={"x": "-k*x + b"}, constants={"k": 0.5, "b": 0.2})

    def fit_to(ys):
        data = nf.Dataset.from_arrays(ts, ys[:, None], states=["x"])
        return nf.fit(data, field=field, start="fitted", options=nf.Options(effort="quick", precision="x64"))

    ys = 2 * np.exp(-0.7 * ts) + wave
    before = fit_to(ys).constants
    fit = fit_to(ys - before["b"] / before["k"])  # whose equilibrium is 0
    interval = fit.confidence("fisher").constants["b"]
    assert abs(fit.constants["b"]) < 1e-3 * (interval.upper - interval.lower)
    ensemble = fit.laplace(401)
    drawn = ensemble.gain * np.std([member.constants()["b"] for member in ensemble.members])
    assert ensemble.gain == 100 and drawn == pytest.approx((interval.upper - interval.lower) / (2 * 2.05), rel=0.15)


def test_few_noisy_rows_have_bands_by_default():
    """Of equations, in forecasts too; they are found around the single fit that other options leave."""
    whole = oscillations(1, seed=0)
    rows = whole.ts[0] <= 6
    train = nf.Dataset.from_arrays(whole.ts[:, rows], whole.ys[:, rows], states=("x", "v"))
    fit = nf.fit(train, field=DECAYING, start=nf.Fitted)
    assert isinstance(fit.model, nf.Ensemble) and fit.model.center is not None
    bands = fit.bands(whole, level=0.9)
    later = ~rows
    inside = (bands.lower <= whole.ys) & (whole.ys <= bands.upper)
    assert inside[:, rows].mean() > 0.8 and inside[:, later].mean() > 0.8
    single = nf.fit(train, field=DECAYING, start=nf.Fitted, options=nf.Options(ensemble=1))
    assert isinstance(single.model, nf.NeuralODE)
    np.testing.assert_allclose(fit.predict(whole), single.predict(whole), atol=1e-3)
    assert fit.constants == pytest.approx(single.constants, rel=1e-3)
    again = nf.fit(train, model=fit.model)  # goes on from the fit itself
    assert again.constants == pytest.approx(fit.constants, rel=1e-2)


@pytest.mark.parametrize(
    ("noise", "options"), [(0.1, nf.Options(effort="quick")), (0.0, nf.Options())], ids=["quick", "no noise"]
)
def test_others_have_no_bands_by_default(noise, options):
    fit = nf.fit(oscillations(1, seed=0, noise=noise), field=DECAYING, options=options)
    assert isinstance(fit.model, nf.NeuralODE)


def test_bands_that_nobody_asked_for_are_left_out_in_silence(caplog):
    options = nf.Options(penalty=nf.Penalty(ridge=0.0))
    fit = nf.fit(oscillations(1, seed=0), field=SMALL, training=nf.Training(steps=5), options=options)
    good = Attempt("as chosen", "good", 0.1, None, None, None, 1.0, kept=True)
    fit = replace(fit, status="completed", attempts=(good,))
    caplog.clear()
    assert has_few_noisy_rows(fit) and with_bands(fit, nf.Members()) is fit and not caplog.records
    assert with_bands(fit, nf.Members(vary="laplace")) is fit and "no ensemble is drawn: the data leave" in caplog.text


def test_a_fit_is_not_lost_for_its_bands(monkeypatch):
    def fails(*given):
        raise MemoryError

    monkeypatch.setattr(nf.Fit, "laplace", fails)
    fit = nf.fit(oscillations(1, seed=0), field=DECAYING, start=nf.Fitted)
    assert has_few_noisy_rows(fit) and isinstance(fit.model, nf.NeuralODE)


def test_validation_data_do_not_narrow_the_bands_of_a_fit():
    """Few of them may lie well by chance."""
    whole = oscillations(1, seed=0)
    exact = oscillations(1, seed=0, noise=0.0)
    fit = nf.fit(whole, validation=exact, field=DECAYING, start=nf.Fitted, options=nf.Options(effort="quick"))
    held = fit.laplace(9)
    assert held.calibrated and held.factor(0.9) == pytest.approx(t.ppf(0.95, 38.5), abs=2e-3)


@pytest.fixture
def table(tmp_path):
    data = oscillations(4, seed=0)
    rows = [np.column_stack([np.full(41, i), data.ts[i], data.ys[i]]) for i in range(4)]
    np.savetxt(tmp_path / "x.csv", np.concatenate(rows), delimiter=",", header="id,t,x,v", comments="")
    return (
        *("data=table", "data.path=x.csv", "data.time=t", "data.states=[x,v]", "data.trajectory=id"),
        *("ensemble.vary=laplace", "ensemble.size=8", "training.steps=100", "hydra.run.dir=run"),
    )


@pytest.mark.long
def test_the_command_draws_an_ensemble_and_keeps_the_intervals(table, tmp_path):
    words = (
        "field=known",
        "+field.equations={x: v, v: -a*x - b*x**3 - c*v}",
        "+field.constants={a: 1.2, b: 0.2, c: 0.1}",
    )
    ran = node_fit(tmp_path, *table, *words)
    assert ran.code == 0 and "bands of 8 members at 90%" in ran.out, ran
    summary = read_summary(tmp_path / "run")
    assert summary["ensemble"]["kept"] == 8 and summary["ensemble"]["coverage"]["train"] > 0.8
    # No members were trained, of which a page could tell.
    assert not (tmp_path / "run" / "index.html").exists()
    interval = summary["confidence"]["constants"]["a"]
    assert interval["lower"] < summary["constants"]["a"] < interval["upper"]
    ran = node_fit(tmp_path, "run", "--data", "x.csv", "--out", "new.csv", module="node_fit.predict")
    assert ran.code == 0, ran
    rows = read_table(tmp_path / "new.csv")
    assert all(float(row["x_lower"]) < float(row["x_predicted"]) < float(row["x_upper"]) for row in rows)
    ran = node_fit(tmp_path, "run", "--to", "sympy", "--out", "formulas", module="node_fit.export")
    assert ran.code == 0, ran  # the fit in the middle, since formulas have no bands
    written = (tmp_path / "formulas" / "formulas.py").read_text()
    numbers = [float(text) for text in re.findall(r"\d+\.\d+", written)]
    assert min(abs(number - summary["constants"]["a"]) for number in numbers) < 1e-4


def test_a_run_without_a_prior_keeps_its_model(table, tmp_path):
    ran = node_fit(tmp_path, *table, "field.width=8", "penalty.ridge=0", "data.split.test=0", "data.split.validation=0")
    assert ran.code == 0, ran
    assert "no ensemble is drawn: the data leave directions" in ran.out + ran.err
    assert isinstance(nf.load(tmp_path / "run" / "model.safetensors"), nf.NeuralODE)

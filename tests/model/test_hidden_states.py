"""Partly measured systems: starts, readouts and second-order fields recover the known solution."""

import functools

import jax
import numpy as np
import pytest
from helpers.problems import fit_to, rotation
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.data.batch import Batch
from node_fit.data.facts import Facts
from node_fit.fitting.problem import build_problem
from node_fit.fitting.resolve import resolve
from node_fit.model.initial_state.rule import describe_known_starts
from node_fit.model.make_model import maker_class
from node_fit.runtime.placement import carry, scope

pytestmark = pytest.mark.slow

SMALL = functools.partial(nf.MLP, width=16, depth=1)


def waves(phases, times=40, noise=0.0, end=6.0) -> nf.Dataset:
    """Positions of a harmonic oscillator without its velocities."""
    ts = np.linspace(0.0, end, times)
    ys = 30.0 + 5.0 * np.cos(2.0 * ts + np.array(phases)[:, None])
    ys = ys + noise * np.random.default_rng(0).standard_normal(ys.shape)
    return nf.Dataset.from_arrays(ts, ys[..., None], states=("x",), trajectories=[f"p{phase}" for phase in phases])


# Fixed steps make the loss smooth enough for a line search, and bosh3 compiles quickly.
FIXED = nf.Solver("bosh3", stepping="even")
TRAIN, TEST = waves([0.0, 1.0, 2.0, 3.5, 5.0]), waves([0.5, 4.2])
FITS = {
    "encoder": {"start": functools.partial(nf.Encoder, rows=8), "field": SMALL},
    "fitted": {"start": nf.Fitted, "field": functools.partial(nf.SecondOrder, width=16, depth=1)},
}


@functools.cache
def fitted(name: str) -> nf.Fit:
    return fit_to(TRAIN, hidden=1, steps=500, precision="x64", solver=FIXED, **FITS[name])


@pytest.mark.parametrize("name", FITS)
def test_a_hidden_velocity_is_found_and_new_trajectories_are_predicted(name):
    assert fitted(name).score(TEST).nrmse < 0.05


def test_without_the_hidden_state_the_same_fit_fails():
    alone = fit_to(TRAIN, field=SMALL, steps=200, precision="x64", solver=FIXED, recipe="direct")
    assert alone.score(TEST).nrmse > 0.5


def test_a_start_that_is_fitted_uses_what_is_given_and_nothing_else():
    model = fitted("fitted").model
    other = waves([0.5, 4.2])
    other.ys[:, 10:] = 99.0  # Beyond the given rows.
    np.testing.assert_allclose(model.predict(other), model.predict(TEST), rtol=1e-12)
    late = TEST.score_after(TEST.ts[0, 19])
    changed = waves([0.5, 4.2]).score_after(TEST.ts[0, 19])
    changed.ys[:, 20:] = 99.0  # The scored rows.
    np.testing.assert_allclose(model.predict(changed), model.predict(late), rtol=1e-12)
    changed.ys[:, 15] = 99.0  # An earlier row, which is given.
    assert not np.allclose(model.predict(changed), model.predict(late))


def test_an_encoder_sees_its_rows_and_nothing_else():
    model = fitted("encoder").model
    other = waves([0.5, 4.2])
    other.ys[:, 8:] = 99.0
    np.testing.assert_allclose(model.predict(other), model.predict(TEST), rtol=1e-12)
    other.ys[:, 7] = np.nan
    assert not np.allclose(model.predict(other), model.predict(TEST))
    assert np.isfinite(model.predict(other)).all(), "a missing sample is masked"
    assert np.isfinite(model.predict(TEST.until(1.0))).all(), "fewer rows than the encoder reads must be padded"


def test_averaging_makes_a_fitted_start_better_than_a_noisy_first_measurement():
    equations = {"x": "v", "v": "-k*(x - 30)"}
    field = functools.partial(nf.Known, equations=equations, constants={"k": [3.0, 0.0, None]})
    noisy, errors = waves([0.0, 1.0, 2.0], noise=0.5), {}
    for start in (nf.First, functools.partial(nf.Fitted, given=None)):
        found = fit_to(noisy, field=field, hidden=["v"], start=start, steps=200, precision="x64", solver=FIXED)
        truth = waves([0.0, 1.0, 2.0]).ys[..., 0]
        errors[start] = np.sqrt(((found.predict(noisy)[..., 0] - truth) ** 2).mean())
    first, fit_to_all = errors.values()
    assert fit_to_all < 0.5 * first and fit_to_all < 0.5, "below the noise"


def test_a_state_that_is_absent_starts_where_it_is_told():
    data = rotation()
    data.ys[1, :, 0] = np.nan
    for start in (nf.First, nf.Fitted, nf.Encoder):
        rule = functools.partial(start, absent=0.25)
        model = carry(nf.make_model(data, field=SMALL, start=rule, key=jax.random.key(0)), np.float32)
        batch = carry(Batch.from_dataset(data, model.scaler), np.float32)
        starts = model.scaler.unscale_states(np.asarray(model.start(batch)))
        np.testing.assert_allclose(starts[1, 0], 0.25, rtol=1e-6)
        np.testing.assert_allclose(starts[[0, 2]], data.ys[[0, 2], 0], rtol=1e-5, atol=1e-6)


def test_a_linear_readout_of_fewer_states():
    mixing = np.array([[1.0, 0.5], [0.2, -1.0], [-0.7, 0.7]])
    data = rotation(trajectories=5, times=30)
    channels = data.ys @ mixing.T + np.array([10.0, 0.0, -3.0])
    mixed = nf.Dataset.from_arrays(data.ts, channels)
    found = fit_to(
        mixed.select([0, 1, 2, 3]), field=nf.Linear, hidden=-1, observation=nf.LinearReadout, solver=FIXED,
        start=functools.partial(nf.Fitted, given=3), steps=300, precision="x64",
    )  # fmt: skip
    assert found.model.latent == ("z0", "z1")
    assert found.score(mixed.select([4])).nrmse < 1e-3


def test_a_network_reads_a_bent_channel():
    data = rotation(trajectories=6, times=30)
    bent = nf.Dataset.from_arrays(data.ts, np.exp(data.ys[..., :1]))
    options = {"field": nf.Linear, "hidden": 1, "start": nf.Fitted, "steps": 300, "precision": "x64", "solver": FIXED}
    train, test = bent.select([0, 1, 2, 3, 4]), bent.select([5])
    straight = fit_to(train, observation=nf.LinearReadout, **options).score(test).nrmse
    curved = fit_to(train, observation=functools.partial(nf.NetworkReadout, width=8), **options).score(test).nrmse
    assert curved < 0.01 and straight > 0.1


def test_positions_move_by_their_velocities_in_the_users_units():
    ts = np.linspace(0.0, 3.0, 20)
    ys = np.stack([500 + 20 * np.sin(ts), 20 * np.cos(ts)], axis=1)
    data = nf.Dataset.from_arrays(ts, ys, states=("position", "velocity"))
    model = carry(nf.make_model(data, field=nf.SecondOrder, key=jax.random.key(0)), np.float32)
    np.testing.assert_allclose(model.derivative(ys)[:, 0], ys[:, 1], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hidden": -1}, "there can't be -1 hidden states"),
        ({"hidden": -2, "observation": nf.LinearReadout}, "1 measured channels and hidden=-2 leave no state"),
        ({"hidden": ["x"]}, "the hidden state 'x' has the name of a measured channel"),
        ({"hidden": 2, "field": nf.SecondOrder}, "set hidden=1"),
        ({"window": 10, "start": nf.Fitted}, "window needs a start"),
        ({"window": 1}, "window must be at least 2 rows"),
        ({"stride": 5}, "stride must be at least 1 row, and needs a window"),
        ({"start": functools.partial(nf.Encoder, rows=0)}, "rows must be at least 1"),
        ({"start": functools.partial(nf.Fitted, given=0)}, "given must be at least 1"),
        (
            {"hidden": 1, "recipe": [nf.Stage(nf.DerivativeMatching(), nf.LBFGS(), 5)]},
            "derivative matching needs a model whose states are all measured",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit_to(TRAIN, **{"field": SMALL, "steps": 5} | options)


def test_windows_come_before_the_whole_record():
    record = waves([0.0], times=240, end=18.0)
    found = fit_to(
        record, hidden=1, field=SMALL, start=functools.partial(nf.Encoder, rows=5), window=60, steps=200,
        chunk_steps=50, precision="x64", solver=FIXED,
    )  # fmt: skip
    assert {record.stage for record in found.history} == {"windows", "main"}
    assert found.score(record).nrmse < 0.05


def test_a_callback_is_told_why_no_derivatives_are_matched():
    class Listener(nf.Callback):
        def on_fit_start(self, model, notes):
            self.notes = list(notes)

    listener = Listener()
    fit_to(TRAIN, hidden=1, field=SMALL, steps=2, chunk_steps=2, callbacks=[listener])
    assert listener.notes == ["no derivative stage, since the derivatives of states that are not measured are unknown"]


SIR = {"I": "beta*S*I - gamma*I", "S": "-beta*S*I"}
BETA, GAMMA, SUSCEPTIBLE = 5e-5, 0.2, 1e4


@functools.cache
def epidemic() -> nf.Dataset:
    """Infected people; nobody counts the susceptible, who are 10,000 at first."""
    ts = np.linspace(0.0, 60.0, 31)
    rates = lambda t, y: [BETA * y[0] * y[1] - GAMMA * y[0], -BETA * y[0] * y[1]]  # noqa: E731
    infected = solve_ivp(rates, (0, 60), [10.0, SUSCEPTIBLE], t_eval=ts, rtol=1e-10, atol=1e-8).y[0]
    return nf.Dataset.from_arrays(ts, infected[None, :, None], states=["I"])


def starts_of(model: nf.NeuralODE, data: nf.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Scaled states where trajectories of training start, and where others do."""
    with scope("x64"):
        batch = carry(model.batch(data), np.float64)
        return np.asarray(model.first_states(batch)), np.asarray(model.estimated_start(batch))


@pytest.mark.parametrize(
    ("start", "freeze"),
    [
        (functools.partial(nf.First, absent=SUSCEPTIBLE), ["start.hidden"]),
        (functools.partial(nf.First, absent={"S": SUSCEPTIBLE}), []),
        (functools.partial(nf.Fitted, absent={"S": SUSCEPTIBLE}), []),
        (functools.partial(nf.Stated, values={"I": 10.0}, absent={"S": SUSCEPTIBLE}), []),
    ],
)
def test_a_known_start_of_a_hidden_state_is_where_it_starts(start, freeze, tmp_path):
    field = functools.partial(nf.Known, equations=SIR, constants={"beta": [1e-4, 0.0, None], "gamma": [0.3, 0.0, None]})
    fit = fit_to(
        epidemic(), field=field, hidden=["S"], start=start, freeze=freeze, precision="x64", recipe="direct",
        optimizer=nf.LevenbergMarquardt(),
    )  # fmt: skip
    assert fit.model.constants() == pytest.approx({"beta": BETA, "gamma": GAMMA}, rel=1e-3)
    fit.save(tmp_path / "model")
    stored = nf.load(tmp_path / "model")
    for model in (fit.model, stored):
        assert [float(states[0, 1]) for states in starts_of(model, epidemic())] == [SUSCEPTIBLE, SUSCEPTIBLE]
    np.testing.assert_allclose(stored.predict(epidemic()), epidemic().ys, rtol=1e-2)


def test_each_known_start_is_that_of_its_state_and_the_others_are_trained():
    rule = functools.partial(nf.First, absent={"c": 3.0, "a": -1.0})
    equations = {"x": "a + b + c - k*x", "a": "0*x", "b": "0*x", "c": "0*x"}
    field = functools.partial(nf.Known, equations=equations, constants={"k": 1.0})
    ts = np.linspace(0.0, 4.0, 30)
    data = nf.Dataset.from_arrays(ts, (7.0 * (1 - np.exp(-ts)))[None, :, None], states=["x"])
    options = {"field": field, "hidden": ["a", "b", "c"], "start": rule, "precision": "x64", "recipe": "direct"}
    fit = fit_to(data, optimizer=nf.LevenbergMarquardt(), **options)
    np.testing.assert_allclose(starts_of(fit.model, data)[0][0, 1:], [-1.0, 5.0, 3.0], rtol=1e-3)
    held = fit_to(data, optimizer=nf.LevenbergMarquardt(), freeze=["start.hidden"], **options)
    np.testing.assert_array_equal(starts_of(held.model, data)[0][0, 1:], [-1.0, 0.0, 3.0])
    assert describe_known_starts(fit.model.start, fit.model.system).endswith(
        "of each state; a = -1, c = 3 (start.absent)"
    )


def test_a_known_start_of_a_hidden_state_is_within_its_bounds():
    options = {"field": SMALL, "hidden": ["v"], "log": ["v"], "start": functools.partial(nf.First, absent={"v": 20.0})}
    model = fit_to(TRAIN, steps=1, recipe="direct", precision="x64", **options).model
    starts = model.system.scaler.unscale_states(starts_of(model, TRAIN)[0])
    np.testing.assert_allclose(starts[:, 1], 20.0, rtol=1e-12)
    assert describe_known_starts(model.start, model.system).endswith("; v = 20 (start.absent)")


def test_windows_are_not_chosen_where_a_start_is_that_of_a_trajectory():
    ts = np.linspace(0.0, 50.0, 500)
    driven = nf.Dataset.from_arrays(
        ts, np.sin(ts)[None, :, None], np.cos(ts)[None, :, None], states=["x"], inputs=["u"]
    )
    known = functools.partial(nf.First, absent={"v": 1.0})
    for start, window in ((nf.First, 128), (known, None), (nf.Steady, None), (nf.Fitted, None)):
        options = nf.Options(field=nf.Linear, hidden=["v"], start=start)
        assert resolve(options, Facts.of(driven)).options.training.window == window, start


@pytest.mark.parametrize(
    ("absent", "sentence"),
    [
        ({"w": 1.0}, "absent names 'w', which is not a state; .* x, v. If it is not measured, set hidden=.w."),
        ({"x": 1.0}, "absent names 'x', which starts at its first measurement; .* start=stated start.values={x: 1.0}"),
        (float("nan"), "the start of 'x' must be a number, got nan"),
        ({"v": -1.0}, "absent: the start of 'v' is -1, but its bounds ask for values above 0"),
    ],
)
def test_a_known_start_that_can_t_be_is_refused(absent, sentence):
    start = functools.partial(nf.First, absent=absent)
    with pytest.raises(ValueError, match=sentence):
        fit_to(TRAIN, field=SMALL, hidden=["v"], log=["v"], start=start, steps=1)


def test_a_window_refuses_the_known_start_of_a_hidden_state():
    start = functools.partial(nf.First, absent={"v": 1.0})
    with pytest.raises(ValueError, match=r"window needs a start .* without a known start of a hidden state"):
        fit_to(TRAIN, field=SMALL, hidden=["v"], start=start, window=10, steps=1)


def test_velocities_of_positions_are_derivatives_of_splines():
    """In scaled units, where the wave is `-w^2` times its acceleration."""
    data = waves([0.0, 1.0, 2.0, 3.5], noise=0.002)
    problem = build_problem(nf.Options(field=nf.SecondOrder, hidden=1), data, None)
    model, speed = problem.model, 2.0 * float(problem.model.scaler.time_scale)
    slopes = nf.DerivativeMatching().prepare(data, model)
    shift, scale = float(model.scaler.state_shift[0]), float(model.scaler.state_scale[0])
    middle = (30.0 - shift) / scale
    inner = slopes.mask.all(axis=1) & (slopes.ts > slopes.ts.max() / 6) & (slopes.ts < slopes.ts.max() * 5 / 6)
    np.testing.assert_allclose(slopes.rates[inner, 0], slopes.ys[inner, 1], atol=0.05 * speed)
    accelerations = -(speed**2) * (slopes.ys[inner, 0] - middle)
    np.testing.assert_allclose(slopes.rates[inner, 1], accelerations, atol=0.15 * speed**2)
    assert maker_class(problem.options.start) is nf.Fitted
    true = -5.0 * speed / scale * np.sin([0.0, 1.0, 2.0, 3.5])
    np.testing.assert_allclose(model.start.values[:, 1], true, atol=0.25 * speed)
    wrong = carry(nf.make_model(data, field=SMALL, hidden=1, key=jax.random.key(0)), np.float32)
    assert "are unknown" in nf.DerivativeMatching().why_not(wrong, Facts.of(data))


def test_positions_alone_are_fitted_as_a_second_order_field():
    fit = nf.fit(TRAIN, validation=waves([0.2]), field="second_order", hidden=1)
    assert any(choice.key == "start" and "velocity" in choice.reason for choice in fit.choices)
    assert fit.score(TEST).nrmse < 0.1

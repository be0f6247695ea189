"""`fit` from end to end: it recovers known systems, and the same check fails for wrong ones."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
from helpers.problems import SMALL, fit_to, rotation

import node_fit as nf
from node_fit.runtime.placement import dtype_of, scope

# An NRMSE below this is a good fit.
GOOD = 0.01
SYSTEM = np.array([[-0.3, 2.0], [-1.5, -0.1]])


def simulated(derivative, starts, ts) -> nf.Dataset:
    """Trajectories of a system from SciPy, far more accurate than any fit."""
    solve = lambda y0: scipy.integrate.solve_ivp(derivative, (ts[0], ts[-1]), y0, t_eval=ts, rtol=1e-10, atol=1e-12).y.T  # noqa: E731
    return nf.Dataset.from_arrays(ts, np.stack([solve(y0) for y0 in starts]), states=("x", "y"))


def linear_system() -> nf.Dataset:
    """x' = A x in units far from order one, such as millimetres and seconds."""
    units = np.array([1000.0, 0.01])
    ts = np.linspace(5.0, 5.6, 25)
    starts = np.array([[1.0, 0.0], [0.2, 1.0], [-0.5, 0.5]])
    ys = np.stack([[scipy.linalg.expm(10 * SYSTEM * (t - 5)) @ y0 for t in ts] for y0 in starts])
    return nf.Dataset.from_arrays(ts, ys * units, states=("x", "y"))


def pendulum() -> nf.Dataset:
    """A pendulum that swings nearly to the top."""
    starts = [(2.8, 0.0), (-2.0, 0.5), (1.0, 1.5)]
    return simulated(lambda t, y: [y[1], -np.sin(y[0])], starts, np.linspace(0, 8, 25))


def coefficients(model: nf.NeuralODE) -> np.ndarray:
    """The matrix of a fitted `Linear` field in the user's units."""
    s = model.scaler
    scale = np.asarray(s.state_scale, dtype=float)
    return np.asarray(model.field.layer.weight) * scale[:, None] / scale[None, :] / float(s.time_scale)


class Watch(nf.Callback):
    def on_chunk_end(self, records, state):
        self.state = state.members[0]


def floats(tree) -> set:
    return {x.dtype for x in jax.tree.leaves(tree) if eqx.is_inexact_array(x)}


@pytest.mark.slow
def test_a_linear_system_is_recovered(precision):
    data = linear_system()
    watch = Watch()
    result = fit_to(data, field=nf.Linear, steps=60, chunk_steps=20, precision=precision, callbacks=[watch])
    assert floats(watch.state) == floats(result.model) == {dtype_of(precision)}
    units = np.array([1000.0, 0.01])
    truth = 10 * SYSTEM * units[:, None] / units[None, :]
    np.testing.assert_allclose(coefficients(result.model), truth, rtol=1e-2)
    assert result.score(data).nrmse < GOOD
    # The true system has no constant term: the origin is a fixed point.
    drift = result.model.derivative(np.zeros((1, 2)))
    assert (np.abs(drift) < 0.02 * np.abs(truth @ np.std(data.ys, axis=(0, 1)))).all()


def test_a_wrong_model_fails_the_same_threshold():
    data = pendulum()
    result = fit_to(data, field=nf.Linear, steps=60, chunk_steps=20)
    assert result.score(data).nrmse > 10 * GOOD


class LotkaVolterra(eqx.Module):
    """A custom field in the user's units."""

    rates: jax.Array

    def __call__(self, t, y, args):
        a, b, c, d = self.rates
        prey, predator = y
        return jnp.stack([a * prey - b * prey * predator, c * prey * predator - d * predator])


@pytest.mark.slow
def test_parameters_of_a_users_own_field_are_recovered():
    truth = np.array([1.1, 0.4, 0.1, 0.4])
    predation = lambda t, y: [1.1 * y[0] - 0.4 * y[0] * y[1], 0.1 * y[0] * y[1] - 0.4 * y[1]]  # noqa: E731
    data = simulated(predation, [(10.0, 5.0), (4.0, 2.0)], np.linspace(0, 12, 40))
    with scope("x64"):
        field = LotkaVolterra(jnp.array([0.8, 0.6, 0.2, 0.6]))
    result = fit_to(data, field=field, scale=False, precision="x64", steps=100, chunk_steps=20)
    np.testing.assert_allclose(result.model.field.rates, truth, rtol=0.02)
    np.testing.assert_allclose(result.predict(data), data.ys, rtol=0.05, atol=0.05)


def test_dtypes_of_all_results(precision):
    watch = Watch()
    data = rotation()
    cheap = [nf.Stage(nf.DerivativeMatching(), nf.LBFGS(memory=3), 4)]
    result = fit_to(
        data, validation=rotation(), field=SMALL, recipe=cheap, chunk_steps=2, precision=precision, callbacks=[watch]
    )
    assert floats(watch.state) == floats(result.model) == {dtype_of(precision)}
    assert result.predict(data).dtype == np.float64
    assert result.predict(data).shape == data.ys.shape
    # The process keeps its own precision.
    assert not jax.config.jax_enable_x64


def test_the_process_decides_where_nothing_is_said_and_only_there():
    cheap = [nf.Stage(nf.DerivativeMatching(), nf.LBFGS(memory=3), 4)]
    for precision, expected in ((None, np.float64), ("x32", np.float32)):
        watch = Watch()
        with scope("x64"):
            result = fit_to(rotation(), field=SMALL, recipe=cheap, precision=precision, callbacks=[watch])
        assert floats((watch.state, result.model)) == {np.dtype(expected)}


@pytest.fixture(scope="module")
def fitted() -> nf.Fit:
    return fit_to(rotation(), field=nf.Linear, steps=10, chunk_steps=5)


@pytest.mark.slow
def test_predictions_do_not_depend_on_the_other_trajectories(fitted):
    """Predictions are bit-identical, although training solves the trajectories jointly."""
    data = rotation(4)
    together = fitted.predict(data)
    # One trajectory is far away, where the solver needs different steps.
    ys = data.ys.copy()
    ys[2] *= 1e3
    others = nf.Dataset.from_arrays(data.ts[0], ys, states=data.states)
    np.testing.assert_array_equal(fitted.predict(others)[[0, 1, 3]], together[[0, 1, 3]])
    np.testing.assert_allclose(fitted.predict(data.select([1])), together[[1]], atol=1e-5)


def test_predictions_at_other_times(fitted):
    data = rotation(2)
    fine = np.tile(np.linspace(0.0, 4.0, 40), (2, 1))
    ys = fitted.predict(data, fine)
    angle = fine + np.arange(2)[:, None]
    np.testing.assert_allclose(ys, np.stack([np.cos(angle), np.sin(angle)], axis=-1), atol=0.05)


def test_predictions_start_at_the_first_measurement(fitted):
    data = rotation(2)
    np.testing.assert_allclose(fitted.predict(data)[:, 0], data.ys[:, 0], atol=1e-6)


def test_data_of_other_channels_are_refused(fitted):
    other = nf.Dataset.from_arrays(np.arange(3.0), np.ones((3, 2)), states=("x", "z"))
    with pytest.raises(ValueError, match=r"fitted to the states \['x', 'y'\], but the data have \['x', 'z'\]"):
        fitted.predict(other)
    with pytest.raises(ValueError, match="fitted to the states"):
        fit_to(rotation(), validation=other, field=SMALL, steps=1)


@pytest.mark.slow
def test_ragged_trajectories_with_missing_values():
    """Different lengths, different times, and a third of the values missing give the same system."""
    rng = np.random.default_rng(0)
    ts = [np.sort(rng.uniform(0, 3, size=n)) for n in (30, 12, 21)]
    ys = [np.stack([np.cos(t + i), np.sin(t + i)], axis=-1) for i, t in enumerate(ts)]
    for y in ys:
        y[2:][rng.uniform(size=y[2:].shape) < 0.3] = np.nan
    data = nf.Dataset.from_arrays(ts, ys, states=("x", "y"))
    result = fit_to(data, field=nf.Linear, steps=40, chunk_steps=20)
    np.testing.assert_allclose(coefficients(result.model), [[0, -1], [1, 0]], atol=0.02)
    assert result.score(data).nrmse < GOOD


def test_what_does_not_count_has_no_influence():
    """Changed values in context rows change neither loss nor parameters; changed values in scored rows do."""

    def losses(rows, scored):
        data = rotation()
        ys = data.ys.copy()
        ys[:, rows] *= 3.0
        changed = dataclasses.replace(data, ys=ys, scored=data.scored & (np.arange(12) < scored))
        solver = nf.Solver("euler")
        fit = fit_to(changed, field=SMALL, recipe="direct", optimizer=nf.Adam(), solver=solver, steps=4, chunk_steps=2)
        return [r.train_loss for r in fit.history]

    nothing, late, early = slice(0, 0), slice(9, 12), slice(6, 8)
    assert losses(late, 9) == losses(nothing, 9)
    assert losses(early, 9) != losses(nothing, 9)


def test_the_record_of_a_fit(fitted):
    assert fitted.status in ("converged", "stopped", "completed")
    assert fitted.steps == fitted.history[-1].step
    assert [r.stage for r in fitted.history] == sorted(
        (r.stage for r in fitted.history), key=("derivative", "main").index
    )
    assert all(
        b.step > a.step and b.seconds >= a.seconds for a, b in zip(fitted.history, fitted.history[1:], strict=False)
    )
    assert fitted.parameters == 6
    assert fitted.compiles in (0, 1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "x16"}, "precision must be x32 or x64, got 'x16'"),
        ({"device": "tpu"}, "device must be auto, cpu or gpu, got 'tpu'"),
        ({"recipe": "fast"}, "recipe must be default, direct, a node_fit.Recipe or .*, got 'fast'"),
        ({"recipe": ()}, "stage"),
        ({"penalty": "weak"}, r"penalty must be auto or a node_fit\.Penalty .*, got 'weak'"),
        ({"ridge": "strong"}, "ridge must be a number or auto, got 'strong'"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"log": ["z"]}, "log names 'z', which is not a state"),
        ({"freeze": ["field.layer"]}, "did you mean"),
    ],
)
def test_wrong_words_are_refused_by_name(options, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # Otherwise the tests' type checker raises first.
    with pytest.raises(ValueError, match=message):
        fit_to(rotation(), field=SMALL, **{"steps": 1, **options})


@pytest.mark.skipif(any(d.platform == "gpu" for d in jax.devices()), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_a_clear_error():
    with pytest.raises(ValueError, match="device=gpu was asked for, but JAX finds only: cpu"):
        fit_to(rotation(), field=SMALL, steps=1, device="gpu")


@pytest.mark.parametrize("options", [{"width": 0}, {"depth": -1}])
def test_sizes_of_the_field_are_refused_before_anything_is_compiled(options):
    with pytest.raises(ValueError, match="must be at least"):
        fit_to(rotation(), field=lambda *sizes, key: nf.MLP(*sizes, key=key, **options), steps=1)


@pytest.mark.slow
def test_a_field_that_depends_on_time_is_found_if_it_may_see_it():
    ts = np.linspace(0.0, 6.0, 40)
    ys = np.sin(ts) + np.array([[0.0], [2.0], [-1.0], [0.5]])  # The last one is held out, and lies between the others.
    data = nf.Dataset.from_arrays(ts, ys[..., None])
    recipe = [nf.Stage(nf.DerivativeMatching(), nf.LBFGS(), 300)]

    def error(time: bool) -> float:
        field = functools.partial(nf.MLP, width=16, depth=1, time=time)
        return fit_to(data.select([0, 1, 2]), field=field, recipe=recipe).score(data.select([3])).nrmse

    assert error(True) < 0.1 < 0.5 < error(False)

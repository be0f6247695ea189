"""Rows that a start is read from are predicted in hindsight, and nothing else changes."""

import jax
import numpy as np
import pytest
from helpers.commands import node_fit, read_table, write_table

import node_fit as nf
from node_fit.model import neural_ode

SPRING = nf.Known(equations={"x": "v", "v": "-k*x"}, constants={"k": 1.0})
TIMES = np.linspace(0.0, 6.0, 61)


def spring(phase: float, states=("x", "v")) -> nf.Dataset:
    """Two trajectories of a spring, of which a speed is known to be zero at row 8 if the phase is `TIMES[8]`."""
    each = [size * np.stack([np.cos(TIMES - phase), -np.sin(TIMES - phase)], axis=1) for size in (1.0, 2.0)]
    return nf.Dataset.from_arrays([TIMES] * 2, [ys[:, : len(states)] for ys in each], states=states)


def reads_before(data: nf.Dataset, **options) -> nf.NeuralODE:
    """The true system, whose start is read from nine rows: the last of them as it was measured, hidden states zero."""
    start = nf.Encoder(rows=9, before=True)
    return nf.make_model(data, field=SPRING, start=start, key=jax.random.key(0), **options)


def test_rows_before_the_start_follow_the_trajectory_that_arrives_there():
    data = spring(0.3)
    model = reads_before(data)
    plain, whole = model.predict(data), model.bands(data, earlier=True).ys
    assert np.isnan(plain[:, :8]).all() and np.isfinite(plain[:, 8:]).all()
    np.testing.assert_allclose(whole[:, :8], data.ys[:, :8], atol=1e-4)
    np.testing.assert_array_equal(whole[:, 8:], plain[:, 8:])


def test_of_a_long_past_the_last_rows_are_simulated(monkeypatch):
    """A forecast of the end of a record does not simulate all that comes before it."""
    data = spring(0.3)
    model = reads_before(data)
    whole = model.bands(data, earlier=True).ys
    monkeypatch.setattr(neural_ode, "MOST_EARLIER", 5)
    found = model.bands(data, earlier=True).ys
    assert np.isnan(found[:, :4]).all()
    np.testing.assert_allclose(found[:, 4:], whole[:, 4:], atol=1e-4)


def test_a_hidden_state_and_a_gap_are_filled():
    data = spring(TIMES[8], states=("x",))
    holes = data.ys.copy()
    holes[:, 2:5] = np.nan
    holes = nf.Dataset.from_arrays([TIMES] * 2, list(holes), states=["x"])
    model = reads_before(data, hidden=["v"])
    found = model.bands(holes, earlier=True)
    np.testing.assert_allclose(found.ys[:, :8, 0], data.ys[:, :8, 0], atol=1e-4)
    speeds = [-size * np.sin(TIMES[:8] - TIMES[8]) for size in (1, 2)]
    np.testing.assert_allclose(found.hidden[:, :8, 0], speeds, atol=1e-4)


def test_noisy_rows_are_smoothed():
    data = spring(0.3)
    noisy = nf.Dataset.from_arrays(
        [TIMES] * 2, list(data.ys + np.random.default_rng(0).normal(scale=0.05, size=data.ys.shape)), states=["x", "v"]
    )
    off = reads_before(noisy).bands(noisy, earlier=True).ys[:, :8] - data.ys[:, :8]
    assert np.sqrt(np.mean(off**2)) < 0.04


def test_times_between_these_rows_lie_between_their_states():
    data = spring(0.3)
    between = np.tile((TIMES[:20] + TIMES[1:21]) / 2, (2, 1))
    found = reads_before(data).bands(data, between, earlier=True).ys
    true = [size * np.cos(between[0] - 0.3) for size in (1, 2)]
    np.testing.assert_allclose(found[..., 0], true, atol=0.02)


def test_an_ensemble_predicts_them_too_and_its_scores_do_not_count_them():
    data = spring(0.3)
    model = reads_before(data)
    ensemble = nf.Ensemble.of([model, model], data, None)
    frame = ensemble.predict_frame(data)
    assert frame["x"].notna().all()
    np.testing.assert_allclose(frame["x"][:8], data.ys[0, :8, 0], atol=1e-4)


def test_models_that_read_no_earlier_rows_are_as_before():
    data = spring(0.3)
    model = nf.make_model(data, field=SPRING, key=jax.random.key(0))
    np.testing.assert_array_equal(model.bands(data, earlier=True).ys, model.predict(data))


@pytest.mark.long
@pytest.mark.slow
def test_a_command_leaves_no_row_without_a_prediction(tmp_path):
    t = np.arange(240) * 0.1
    u = np.sin(0.9 * t) + np.cos(2.1 * t)
    y, state = np.zeros(240), np.zeros(2)
    for row in range(239):
        state = state + 0.1 * np.array([state[1], u[row] - state[0] - 0.4 * state[1]])
        y[row + 1] = state[0]
    write_table(tmp_path / "mine.csv", [{"t": a, "u": b, "y": c} for a, b, c in zip(t, u, y, strict=True)])
    words = ("data=table", "data.path=mine.csv", "data.time=t", "data.states=[y]", "data.inputs=[u]", "hidden=1")
    ran = node_fit(
        tmp_path, *words, "start=encoder", "start.before=true", "training.steps=10", "effort=quick", "hydra.run.dir=run"
    )
    assert ran.code == 0, ran
    rows = read_table(tmp_path / "run" / "predictions.csv")
    assert len(rows) == 240 and all(row["y_predicted"] for row in rows)

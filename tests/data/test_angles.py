"""Angles: measured modulo a turn, seen by sine and cosine, and compared the shorter way around."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import fit_to

import node_fit as nf
from node_fit.data.domains import near, unwrap
from node_fit.evaluation.metrics import score_predictions

TURN = 2 * np.pi
SEEN = functools.partial(nf.MLP, width=16, depth=1)


def pendulum(trajectories: int = 4, times: int = 60, *, fast: bool = True) -> nf.Dataset:
    """Pendulums that go over the top (or swing), with their angles measured from -pi to pi."""
    ts = np.linspace(0.0, 6.0, times)
    step, states = ts[1] / 40, []
    for number in range(trajectories):
        y = np.array([0.3 * number, (2.4 if fast else 0.8) + 0.2 * number])
        rows = [y]
        for _ in range(times - 1):
            for _ in range(40):
                middle = y + step / 2 * np.array([y[1], -np.sin(y[0])])
                y = y + step * np.array([middle[1], -np.sin(middle[0])])
            rows.append(y)
        states.append(rows)
    ys = np.array(states)
    ys[..., 0] = (ys[..., 0] + np.pi) % TURN - np.pi
    return nf.Dataset.from_arrays(ts, ys, states=("theta", "omega"))


def marked(data: nf.Dataset) -> nf.Dataset:
    return dataclasses.replace(data, angles={"theta": TURN})


def fitted(data: nf.Dataset, *, angles: bool = True, **options) -> nf.Fit:
    scaling = nf.Scaling(angles=("theta",) if angles else ())
    settings = {"field": SEEN, "recipe": "direct", "ridge": 0.0, "steps": 150, "chunk_steps": 50, **options}
    return fit_to(data, scaling=scaling, **settings)


def test_angles_go_on_without_jumps():
    t = np.linspace(0, 30, 200)
    truth = 0.5 + t
    ys = ((truth + np.pi) % TURN - np.pi)[None, :, None].repeat(2, axis=2)
    ys[0, 40:43, 0] = np.nan
    found = unwrap(ys, (TURN, None))
    assert np.allclose(np.delete(found[0, :, 0], [40, 41, 42]), np.delete(truth, [40, 41, 42]))
    assert np.array_equal(np.isnan(found), np.isnan(ys)) and np.array_equal(found[..., 1], ys[..., 1])
    off = truth - near(ys[0, :, 1], truth, TURN)
    assert (off >= -np.pi).all() and (off < np.pi).all() and np.allclose(off, 0, atol=1e-9)


def test_a_dataset_holds_angles_without_jumps_and_its_windows_begin_within_half_a_turn():
    data = marked(pendulum())
    assert (np.abs(np.diff(data.ys[..., 0], axis=1)) < np.pi).all() and data.ys[..., 0].max() > TURN
    assert (np.abs(data.windows(10).ys[:, 0, 0]) <= np.pi).all()


def test_a_score_takes_errors_of_angles_the_shorter_way_around():
    data = marked(pendulum())
    turned = data.ys + np.array([3 * TURN, 0.0])
    assert score_predictions(data, turned).nrmse < 1e-12
    assert score_predictions(data, turned + np.array([np.pi, 0.0])).channels["theta"].rmse == pytest.approx(np.pi)
    assert score_predictions(data, data.ys + 0.1).channels["theta"].nrmse > 0.05, (
        "the scale is that of directions, not of turns"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "window"),
    [(nf.LBFGS(), None), (nf.LevenbergMarquardt(), None), (nf.Adam(learning_rate=0.01), 20)],
    ids=["lbfgs", "lm", "adam in windows"],
)
def test_a_pendulum_that_goes_over_the_top_is_fitted(optimizer, window):
    data = pendulum()
    newton = isinstance(optimizer, nf.LevenbergMarquardt)
    recipe = "default" if newton else "direct"  # for it needs a good start
    fit = fitted(data, optimizer=optimizer, window=window, recipe=recipe, steps=40 if newton else 400, validation=data)
    assert fit.score(data).nrmse < 0.05
    assert min(record.validation_loss for record in fit.history) < 0.05**2


@pytest.mark.slow
def test_without_angles_it_is_not_fitted():
    data = pendulum()
    assert fitted(data, angles=False, steps=400).score(data).nrmse > 0.3


def test_derivatives_are_those_of_angles_without_jumps():
    data = pendulum()
    recipe = [nf.Stage(nf.DerivativeMatching(), nf.LBFGS(), steps=200)]
    assert fitted(data, recipe=recipe).score(data).nrmse < 0.1


@pytest.mark.slow
def test_what_an_encoder_reads_does_not_depend_on_the_turn():
    data = pendulum()
    fit = fitted(data, start=functools.partial(nf.Encoder, rows=3, before=True), steps=5, chunk_steps=5)
    whole = marked(data).score_after(4.0)
    later = whole.after(3.0)  # which begins a turn or more further back
    first, second = (fit.predict(part)[:, -1, 0] for part in (whole, later))
    moved = whole.ys[:, -1, 0] - later.ys[:, -1, 0]
    assert np.abs(moved).max() > 1
    assert np.allclose(first - second, moved, atol=1e-3)


@pytest.mark.slow
def test_a_start_that_is_fitted_may_be_a_turn_away():
    data = marked(pendulum(1, 12))
    model = nf.make_model(
        data, field=nf.Linear, start=nf.Fitted, scaling=nf.Scaling(angles=("theta",)), key=jax.random.key(0)
    )
    batch = jax.tree.map(jnp.asarray, model.batch(data))
    turn = jnp.array([TURN / model.scaler.state_scale[0], 0.0])
    other = dataclasses.replace(batch, ys=batch.ys + turn[None, None])
    start = eqx.filter_jit(lambda model, batch: model.estimated_start(batch))
    assert np.allclose(start(model, batch), start(model, other), atol=1e-3)


@pytest.mark.slow
def test_a_model_file_keeps_its_angles(tmp_path):
    data = pendulum()
    fit = fitted(data, steps=5, chunk_steps=5)
    fit.save(tmp_path / "model.safetensors")
    back = nf.load(tmp_path / "model.safetensors")
    assert back.scaler.turns == (TURN, None)
    assert np.array_equal(back.predict(data), fit.predict(data))
    y, u = np.array([0.7, 1.0]), np.zeros(0)
    here, there = (np.asarray(back.vector_field(0.0, each, u)) for each in (y, y + np.array([TURN, 0.0])))
    assert np.allclose(here, there, atol=1e-5), "a turn further, the field is the same"


@pytest.mark.slow
def test_angles_in_degrees_are_those_in_radians():
    data = pendulum()
    degrees = dataclasses.replace(data, ys=data.ys * np.array([180 / np.pi, 1.0]))
    one = fitted(data, steps=5, chunk_steps=5)
    other = fit_to(
        degrees,
        scaling=nf.Scaling(angles=("theta",), angle_unit="deg"),
        field=SEEN,
        recipe="direct",
        ridge=0.0,
        steps=5,
        chunk_steps=5,
    )
    assert np.allclose(other.predict(degrees)[..., 0], one.predict(data)[..., 0] * 180 / np.pi, rtol=1e-2, atol=0.5)


@pytest.mark.parametrize(
    "make",
    [nf.SecondOrder, functools.partial(nf.Hybrid, equations={"theta": "omega", "omega": "0*a"}, constants={"a": 1.0})],
)
def test_networks_of_other_fields_see_sine_and_cosine(make):
    model = nf.make_model(pendulum(), field=make, scaling=nf.Scaling(angles=("theta",)), key=jax.random.key(0))
    loud = jax.tree.map(lambda x: x + 0.1, model.field.network.layers)
    field = eqx.tree_at(lambda field: field.network.layers, model.field, loud)
    turn = float(TURN / model.scaler.state_scale[0])
    here, there, elsewhere = (
        field(jnp.zeros(()), jnp.array([angle, 0.2]), jnp.zeros(0)) for angle in (0.3, 0.3 + turn, 1.3)
    )
    assert np.allclose(here, there, atol=1e-4) and not np.allclose(here, elsewhere, atol=1e-4)


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        (nf.Scaling(angles=("thta",)), r"angles names 'thta', which is not a state; did you mean 'theta'\?"),
        (
            nf.Scaling(angles=("theta",), bounds={"theta": (-4.0, 4.0)}),
            "angles names 'theta', which log or bounds names too",
        ),
    ],
)
def test_names_that_are_no_angles_are_refused(scaling, said):
    with pytest.raises(ValueError, match=said):
        nf.fit(pendulum(), options=nf.Options(scaling=scaling))

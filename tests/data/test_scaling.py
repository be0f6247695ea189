"""Scaling to order one and back, from the training data alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import fit_to
from hypothesis import given, settings
from hypothesis import strategies as st

import node_fit as nf
from node_fit.data.scaling import Scaler, characteristic_time, gather_bounds, mean_and_deviation
from node_fit.runtime.placement import carry

POSITIVE = (0.0, None)


def weather(**changes) -> nf.Dataset:
    """Two states in very different units, one of them positive over decades, and an input."""
    generator = np.random.default_rng(0)
    ts = 100.0 + np.arange(50.0) * 0.5
    ys = np.stack(
        [1e5 + 300 * generator.standard_normal((3, 50)), np.exp(2 * generator.standard_normal((3, 50)))], axis=2
    )
    us = 20 + 5 * generator.standard_normal((3, 50, 1))
    data = nf.Dataset.from_arrays(ts, ys, us, states=("pressure", "rain"), inputs=("sun",))
    return dataclasses.replace(data, **changes)


def sines(rate: float, noise: float = 0.0) -> nf.Dataset:
    """Sines of one angular frequency and several phases, with noise relative to their standard deviation."""
    ts = np.linspace(0.0, 20.0 / rate, 400)
    phases = np.array([0.0, 0.7, 2.0, 4.0])[:, None]
    ys = np.stack([np.sin(rate * ts + phases), np.cos(rate * ts + phases)], axis=2)
    ys = ys + noise * np.sqrt(0.5) * np.random.default_rng(1).standard_normal(ys.shape)
    return nf.Dataset.from_arrays(ts, ys)


@pytest.mark.parametrize("log", [(), ("rain",)])
def test_training_data_have_mean_zero_and_deviation_one(log):
    data = weather()
    scaler = Scaler.from_dataset(data, bounds=dict.fromkeys(log, POSITIVE))
    scaled, inputs = scaler.scale_states(data.ys), scaler.scale_inputs(data.us)
    assert np.allclose(scaled.mean(axis=(0, 1)), 0, atol=1e-9) and np.allclose(scaled.std(axis=(0, 1)), 1)
    assert np.allclose(inputs.mean(), 0, atol=1e-9) and np.allclose(inputs.std(), 1)
    assert scaler.scale_times(data.ts)[0, 0] == 0


@given(scaled=st.lists(st.floats(-5, 5), min_size=2, max_size=2))
@settings(deadline=None, max_examples=50)
def test_there_and_back_is_the_same(scaled):
    for log in ((), ("rain",)):
        scaler = Scaler.from_dataset(weather(), bounds=dict.fromkeys(log, POSITIVE))
        there = scaler.unscale_states(np.array(scaled))
        assert np.allclose(scaler.scale_states(there), scaled, rtol=1e-9, atol=1e-9)


def test_the_logarithm_is_taken_of_the_named_state_alone():
    data = weather()
    scaler = Scaler.from_dataset(data, bounds={"rain": POSITIVE})
    assert scaler.bounds == ((None, None), POSITIVE)
    logs = np.log(data.ys[..., 1])
    assert np.allclose(scaler.scale_states(data.ys)[..., 1], (logs - logs.mean()) / logs.std())
    assert (scaler.unscale_states(np.full((1, 2), -50.0))[0] > 0).tolist() == [True, True]
    assert np.isnan(scaler.scale_states(np.full((1, 2), np.nan))).all()


def test_states_that_are_not_positive_have_no_logarithm():
    ys = weather().ys.copy()
    ys[1, 2, 1] = 0.0
    with pytest.raises(
        ValueError, match=r"state 'rain' is 0 at t = 101 of trajectory '1', but its bounds ask for values above 0"
    ):
        Scaler.from_dataset(weather(ys=ys), bounds={"rain": POSITIVE})
    with pytest.raises(
        ValueError, match=r"but data\.log asks for values above 0; leave it out of data\.log or correct"
    ):
        nf.Scaling(log=["rain"]).check(weather(ys=ys))
    ys[1, 2, 1] = np.nan
    Scaler.from_dataset(weather(ys=ys), bounds={"rain": POSITIVE})


def test_data_of_any_split_are_checked_before_a_fit():
    ys = weather().ys.copy()
    ys[2, 4, 1] = 0.0
    with pytest.raises(ValueError, match="state 'rain' is 0 at t = 102 of trajectory '2'"):
        nf.Scaling(log=["rain"]).check(weather(ys=ys))
    with pytest.raises(ValueError, match=r"input 'sun' is .* values below 20"):
        nf.Scaling(bounds={"sun": [None, 20.0]}).check(weather())
    nf.Scaling(log=["level"]).check(weather(ys=ys))  # Of a hidden state.


def test_bounds_are_gathered_by_name():
    states = ("pressure", "rain")
    assert gather_bounds(["rain"], {"pressure": [1.0, 2000.0]}, states) == {"rain": POSITIVE, "pressure": (1.0, 2000.0)}
    with pytest.raises(ValueError, match=r"log names 'rian', which is not a state; did you mean 'rain'\?"):
        gather_bounds(["rian"], {}, states)
    with pytest.raises(ValueError, match="'rain' is named in log and in bounds"):
        gather_bounds(["rain"], {"rain": [0.0, None]}, states)
    with pytest.raises(ValueError, match=r"bounds of 'rain' must be \[lower, upper\]"):
        gather_bounds([], {"rain": [0.0]}, states)
    with pytest.raises(ValueError, match="the lower must be below the upper"):
        gather_bounds([], {"rain": [1.0, 0.0]}, states)


def test_bounded_states_stay_within_their_bounds():
    data = weather()
    scaler = Scaler.from_dataset(data, bounds={"rain": (0.0, 1e3)})
    far = scaler.unscale_states(np.array([[0.0, -1e3], [0.0, 1e3]]))[:, 1]
    assert (far >= 0).all() and (far <= 1e3).all()
    assert np.allclose(scaler.unscale_states(scaler.scale_states(data.ys)), data.ys)


def leaves(scaler: Scaler) -> np.ndarray:
    names = ("state_shift", "state_scale", "input_shift", "input_scale", "time_shift", "time_scale")
    return np.concatenate([np.ravel(getattr(scaler, name)) for name in names])


def test_what_does_not_count_has_no_say():
    """Values outside the training data, missing values and unscored values do not affect the scaler."""
    data = weather()
    scored, ys = data.scored.copy(), data.ys.copy()
    scored[:, 40:] = False
    expected = leaves(Scaler.from_dataset(dataclasses.replace(data, scored=scored)))
    ys[:, 40:] = 1e9
    assert np.array_equal(leaves(Scaler.from_dataset(dataclasses.replace(data, scored=scored, ys=ys))), expected)
    assert not np.allclose(leaves(Scaler.from_dataset(dataclasses.replace(data, ys=ys))), expected)


def test_a_fit_scales_by_its_training_data():
    data = weather()
    train, other = data.select([0]), data.select([1, 2])
    louder = dataclasses.replace(other, ys=other.ys * 3)
    stage = [nf.Stage(nf.DerivativeMatching(), nf.Adam(), steps=1)]
    models = [
        fit_to(train, field=nf.Linear, validation=part, recipe=stage, chunk_steps=1).model for part in (None, louder)
    ]
    assert np.array_equal(leaves(models[0].scaler), leaves(models[1].scaler))
    assert np.allclose(leaves(models[0].scaler), leaves(Scaler.from_dataset(train)))


def test_padding_has_no_say():
    data = weather()
    whole = nf.Dataset.from_arrays(
        [data.ts[0], data.ts[1, :20]], [data.ys[0], data.ys[1, :20]], [data.us[0], data.us[1, :20]]
    )
    longer = np.concatenate([data.us[0].ravel(), data.us[1, :20].ravel()])
    scaler = Scaler.from_dataset(whole)
    assert np.isclose(float(scaler.input_shift[0]), longer.mean())
    assert np.isclose(float(scaler.input_scale[0]), longer.std())


def test_identity_leaves_all_units():
    data = weather()
    scaler = Scaler.from_dataset(data, identity=True)
    assert np.array_equal(scaler.scale_states(data.ys), data.ys)
    assert np.array_equal(scaler.unscale_states(data.ys), data.ys)
    assert np.array_equal(scaler.scale_inputs(data.us), data.us)
    assert np.array_equal(scaler.scale_times(data.ts), data.ts)


def test_a_channel_that_never_changes_or_was_never_measured_keeps_its_scale():
    rows = np.stack([np.full(7, 0.1), np.zeros(7), np.full(7, np.nan), np.arange(7.0)], axis=1)
    mean, deviation = mean_and_deviation(rows)
    assert np.allclose(mean, [0.1, 0, 0, 3])
    assert np.allclose(deviation, [1, 1, 1, 2])


@pytest.mark.parametrize("rate", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2])
def test_in_the_characteristic_time_the_derivative_is_of_order_one(rate, noise):
    data = sines(rate, noise)
    scaler = Scaler.from_dataset(data)
    derivative = rate * float(scaler.time_scale) * np.sqrt(0.5) / np.asarray(scaler.state_scale)
    assert (derivative > 0.7).all() and (derivative < 1.4).all()
    assert np.isclose(np.ptp(scaler.scale_times(data.ts)), 20 / (rate * float(scaler.time_scale)))
    differences = np.diff(scaler.scale_states(data.ys), axis=1) / np.diff(scaler.scale_times(data.ts))[..., None]
    if noise == 0.2:
        assert np.sqrt((differences**2).mean()) > 3, "finite differences would give a wrong scale"


def test_of_a_straight_line_the_characteristic_time_is_one_deviation():
    ts = np.linspace(0.0, 10.0, 101)[None]
    zs = (ts / 2.5)[..., None]
    assert np.isclose(characteristic_time(ts, zs), 2.5, rtol=0.05)


def test_without_any_movement_the_characteristic_time_is_the_span():
    ts = np.linspace(3.0, 10.0, 8)[None]
    assert characteristic_time(ts, np.zeros((1, 8, 2))) == 7
    assert characteristic_time(ts, np.full((1, 8, 2), np.nan)) == 7
    assert characteristic_time(ts[:, :1], np.zeros((1, 1, 2))) == 1


def test_a_scaler_of_arrays_maps_on_the_host_in_float64():
    data = weather()
    scaler = carry(Scaler.from_dataset(data), np.float32)
    assert scaler.state_shift.dtype == jnp.float32
    scaled = scaler.scale_states(data.ys)
    assert scaled.dtype == np.float64
    assert np.allclose(scaler.unscale_states(scaled), data.ys, rtol=1e-12)


def test_inputs_may_be_logarithmic():
    data = weather()
    dose = np.exp(data.us / 5)
    scaled = Scaler.from_dataset(weather(us=dose), bounds={"sun": POSITIVE})
    plain = Scaler.from_dataset(data)
    assert np.allclose(scaled.scale_inputs(dose), plain.scale_inputs(data.us))
    with pytest.raises(
        ValueError, match=r"input 'sun' is 0 at t = 100 of trajectory '0', but its bounds ask for values above 0"
    ):
        Scaler.from_dataset(weather(us=0 * dose), bounds={"sun": POSITIVE})


def test_known_equations_see_a_logarithmic_input_in_its_own_unit():
    field = functools.partial(nf.Known, equations={"pressure": "a*sun", "rain": "0*sun"}, constants={"a": 1.0})
    model = nf.make_model(
        weather(us=np.exp(weather().us / 5)), field=field, scaling=nf.Scaling(log=["sun"]), key=jax.random.key(0)
    )
    rates = model.vector_field(0.0, jnp.array([1e5, 1.0]), jnp.array([50.0]))
    assert np.allclose(rates, [50.0, 0.0], rtol=1e-4)


def test_a_name_that_is_neither_a_state_nor_an_input_is_refused():
    with pytest.raises(ValueError, match=r"log names 'snu', which is not a state or an input; did you mean 'sun'\?"):
        nf.Scaling(log=["snu"]).limits(("pressure", "rain"), ("sun",))

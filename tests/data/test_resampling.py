"""Records on even times: what is interpolated, and what the search of a linear model makes of an uneven record."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import A, record

import node_fit as nf
from node_fit.data.facts import Facts
from node_fit.data.inputs import detect_interpolation, interpolate_input
from node_fit.fitting.resolve import resolve
from node_fit.solver.problem import interpolate


def test_even_records_stay_as_they_are():
    data = record(50)
    assert data.resample(data.median_step, "hold") is data


def test_a_removed_row_is_interpolated_and_a_wide_gap_is_not():
    data = record(60)
    kept = np.r_[0:10, 11:30, 40:60]
    found = cut_to(data, kept).resample(1.0, "hold")
    assert found.ts[0].tolist() == list(range(60))
    assert np.isclose(found.ys[0, 10, 0], data.ys[0, [9, 11], 0].mean())
    assert np.isnan(found.ys[0, 30:40, 0]).all() and np.isfinite(found.ys[0, kept, 0]).all()
    assert np.array_equal(found.ys[0, kept], data.ys[0, kept])
    assert np.array_equal(found.us[0, 30:40], np.repeat(data.us[0, 29:30], 10, axis=0))


def test_trajectories_of_other_lengths_are_padded():
    times = [np.array([0.0, 1.0, 2.5, 3.0]), np.arange(6.0)]
    data = nf.Dataset.from_arrays(times, [t[:, None] for t in times], [t[:, None] for t in times])
    found = data.resample(1.0, "linear")
    assert found.lengths.tolist() == [4, 6]
    assert np.allclose(found.ys[0, :4, 0], np.arange(4)) and np.allclose(found.us[0, :4, 0], np.arange(4))
    assert not found.scored[0, 4:].any()


def cut_to(data: nf.Dataset, kept: np.ndarray) -> nf.Dataset:
    return dataclasses.replace(
        data,
        ts=data.ts[:, kept],
        ys=data.ys[:, kept],
        us=data.us[:, kept],
        lengths=np.array([len(kept)]),
        scored=data.scored[:, kept],
    )


@pytest.mark.long
@pytest.mark.slow
def test_the_linear_model_of_an_uneven_record_is_that_of_the_even_one():
    """A quarter of the rows is missing; a search that takes rows for steps would find other frequencies."""
    data = record(1200, held=False, noise=0.01)
    kept = np.sort(np.random.default_rng(1).permutation(1200)[:900])
    splits = nf.Split(by="time", validation=0.2, test=0.0)(cut_to(data, kept))
    fit = nf.fit(
        splits.train,
        validation=splits.validation,
        field=nf.Linear,
        hidden=1,
        solver=nf.Solver(inputs="linear"),
        training=nf.Training(steps=1, chunk_steps=1),
    )
    assert fit.linear is not None
    weight = np.asarray(fit.linear.field.layer.weight)[:, :2] / float(fit.linear.scaler.time_scale)
    assert np.allclose(np.sort_complex(np.linalg.eigvals(weight)), np.sort_complex(np.linalg.eigvals(A)), rtol=0.1)


def test_each_input_is_resampled_by_its_own_kind():
    ts = np.array([0.0, 1.0, 2.5, 3.0])
    us = np.array([[0.0, 5.0], [2.0, 4.0], [-1.0, 4.0], [3.0, 0.0]])
    data = nf.Dataset.from_arrays(ts, np.ones((4, 1)), us).resample(0.5, ("hold", "linear"))
    np.testing.assert_allclose(data.us[0, :, 0], [0, 0, 2, 2, 2, -1, 3])
    np.testing.assert_allclose(data.us[0, :, 1], [5, 4.5, 4, 4, 4, 4, 0])


def sines(per_period: float, noise: float = 0.0, rows: int = 100) -> np.ndarray:
    t, random = np.arange(rows), np.random.default_rng(0)
    return np.sin(2 * np.pi * t / per_period) + np.sin(np.pi * t / per_period + 1) + noise * random.normal(size=rows)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([sines(12)], "cubic"),
        ([sines(30, 0.0001)], "cubic"),
        ([sines(12), np.full(100, 3.0)], "cubic"),  # an input that never changes has no say
        ([sines(30, 0.05)], "linear"),  # noise, which a cubic follows as lines do
        ([sines(3)], "linear"),  # too few rows to a period
        ([sines(12), np.cumsum(sines(7, 1.0))], "linear"),
        ([np.interp(np.arange(100), np.arange(0, 101, 8), np.random.default_rng(1).normal(size=13))], "linear"),
        ([np.repeat(sines(12), 4)[:100]], "hold"),
        ([sines(12, rows=12)], "linear"),  # too few rows to tell
        ([sines(3), np.repeat([0.0, 1.0], 50)], ("linear", "hold")),  # each by its own column
        ([np.repeat([0.0, 1.0], 50), sines(12), np.full(100, 3.0)], ("hold", "cubic", "hold")),
        ([np.arange(100) % 3, np.repeat(sines(12), 4)[:100]], "hold"),  # few levels, or rare changes
        (
            [np.repeat([0.0, 3, 1, 4, 1], 20) + 0.01 * np.random.default_rng(3).normal(size=100)],
            "hold",
        ),  # a noisy sensor
        ([np.repeat([0.0, 3, 1, 4, 1], 20) + 0.1 * sines(12)], "linear"),  # what moves between jumps is no level
    ],
)
def test_how_inputs_behave_between_rows_is_seen_from_every_second_row(columns, expected):
    us = np.stack(columns, axis=1)[None]
    ts = np.arange(us.shape[1])[None] * 0.5
    names = [f"u{column}" for column in range(us.shape[2])]
    assert detect_interpolation(ts, us, np.ones(ts.shape, bool), names)[0] == expected


def test_the_reason_names_inputs_where_they_differ():
    t = np.arange(100.0)
    us = np.stack([np.repeat([0.0, 1.0], 50), sines(3), sines(12)], axis=1)[None]

    def reason(*columns):
        names = [["heater", "room", "sun"][column] for column in columns]
        return detect_interpolation(t[None], us[..., columns], np.ones((1, 100), bool), names)[1]

    assert reason(0, 1) == "heater has 2 levels, room changes in 100% of the rows"
    assert reason(0, 1, 2) == "heater has 2 levels, room and sun change in 100% of the rows"
    assert reason(0, 2).startswith("heater has 2 levels, sun is smooth: ")
    assert reason(1) == "the inputs change in 100% of the rows"
    noisy = np.repeat([0.0, 3, 1, 4, 1], 20) + 0.01 * np.random.default_rng(3).normal(size=100)
    assert detect_interpolation(t[None], noisy[None, :, None], np.ones((1, 100), bool), ["u"])[1] == (
        "the inputs have 4 levels"
    )


def test_uneven_rows_and_padding_hide_no_smooth_input():
    random, t = np.random.default_rng(2), np.zeros((2, 60))
    t[0] = np.cumsum(random.uniform(0.5, 1.5, 60))
    t[1, :40] = np.cumsum(random.uniform(0.5, 1.5, 40))
    t[1, 40:] = t[1, 39]
    valid = np.arange(60) < np.array([[60], [40]])
    us = np.sin(t / 3)[..., None]
    assert detect_interpolation(t, us, valid, ["u"])[0] == "cubic"
    us[1, 40:] = 1e6  # what stands in padding
    assert detect_interpolation(t, us, valid, ["u"])[0] == "cubic"


def test_a_smooth_drive_is_fitted_on_a_cubic():
    t = np.arange(0, 12, 0.25)
    drive = np.sin(2 * t)
    data = nf.Dataset.from_arrays([t], [np.cos(t)[:, None]], [drive[:, None]])
    chosen = resolve(nf.Options(), Facts.of(data))
    assert chosen.options.solver.inputs == "cubic"
    assert any(choice.key == "solver.inputs" and "smooth" in choice.reason for choice in chosen.choices)


def test_a_smooth_input_is_between_its_rows_where_the_solver_takes_it_to_be():
    t, rng = np.cumsum(np.random.default_rng(0).uniform(0.2, 0.5, 60)), np.random.default_rng(1)
    wanted = np.linspace(t[0], t[-1], 301)
    smooth, noisy = np.sin(t), rng.normal(size=60)
    own = [interpolate(jnp.asarray(at), jnp.asarray(t), jnp.asarray(smooth[:, None]), "cubic")[0] for at in wanted]
    np.testing.assert_allclose(interpolate_input(t, smooth)(wanted), own, atol=1e-5)
    assert np.abs(interpolate_input(t, smooth)(wanted) - np.sin(wanted)).max() < 0.01
    np.testing.assert_array_equal(interpolate_input(t, noisy)(wanted), np.interp(wanted, t, noisy))


@pytest.mark.filterwarnings("error")
def test_rows_at_one_time_are_not_called_smooth():
    t = np.repeat(np.arange(20.0), 2)
    assert interpolate_input(t, np.sin(t / 3))(np.array([1.5])) == np.interp(1.5, t, np.sin(t / 3))

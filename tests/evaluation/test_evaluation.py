import json

import numpy as np
import pytest
from helpers.problems import SMALL, fit_to, rotation

import node_fit as nf
from node_fit.data.dataset import Dataset
from node_fit.evaluation.metrics import error_over_horizon, score_predictions


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    ys = rng.normal(size=(5, 12, 2)) * [1.0, 30.0] + [0.0, 100.0]
    ys[1, 3, 0] = np.nan
    ys[2, 7:, 1] = np.nan
    return Dataset.from_arrays(np.linspace(0, 1, 12), ys, states=["x", "y"])


def filled(data: Dataset, error: np.ndarray | float = 0.0) -> np.ndarray:
    return np.nan_to_num(data.ys) + error


def test_an_exact_prediction_has_no_error(data):
    result = score_predictions(data, filled(data))
    assert (result.rmse, result.nrmse, result.r2, result.failed_points) == (0, 0, 1, 0)
    assert result.points == data.mask.sum() == sum(channel.points for channel in result.channels.values())


def test_channels_agree_with_the_definition(data):
    error = np.random.default_rng(1).normal(size=data.ys.shape) * [0.1, 9.0]
    result = score_predictions(data, filled(data, error))
    for i, name in enumerate(data.states):
        here = data.mask[..., i]
        rmse = np.sqrt((error[..., i][here] ** 2).mean())
        assert result.channels[name].rmse == pytest.approx(rmse)
        assert result.channels[name].nrmse == pytest.approx(rmse / data.ys[..., i][here].std())
        ratio = (error[..., i][here] ** 2).sum() / ((data.ys[..., i][here] - data.ys[..., i][here].mean()) ** 2).sum()
        assert result.channels[name].r2 == pytest.approx(1 - ratio)
    assert result.rmse == pytest.approx(np.sqrt((error[data.mask] ** 2).mean()))
    assert result.r2 == pytest.approx(np.mean([channel.r2 for channel in result.channels.values()]))


def test_nrmse_and_r2_do_not_depend_on_units(data):
    factors, shift = np.array([1e-6, 1e4]), np.array([0.5, -7.0])
    predicted = filled(data, 0.3)
    other = Dataset.from_arrays(data.ts, data.ys * factors + shift, states=data.states)
    first, second = score_predictions(data, predicted), score_predictions(other, predicted * factors + shift)
    assert second.nrmse == pytest.approx(first.nrmse)
    assert second.r2 == pytest.approx(first.r2)
    assert second.rmse != pytest.approx(first.rmse)


def test_a_point_that_does_not_count_equals_a_dropped_point(data):
    later = data.score_after(0.5)
    rows = data.ts[0] > 0.5
    predicted = filled(data, np.linspace(0, 1, 12)[:, None])
    predicted[:, ~rows] = np.nan  # Rows that do not count need no prediction.
    dropped = Dataset.from_arrays(data.ts[:, rows], data.ys[:, rows], states=data.states)
    assert score_predictions(later, predicted) == score_predictions(dropped, predicted[:, rows])


@pytest.mark.parametrize("fault", [np.nan, np.inf, -np.inf])
def test_a_prediction_that_is_not_finite_is_counted_and_becomes_none(data, fault):
    predicted = filled(data)
    predicted[0, 0, 0] = fault
    predicted[2, 8, 1] = fault  # Not measured.
    result = score_predictions(data, predicted)
    figures = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert result.failed_points == 1
    assert (figures["rmse"], figures["nrmse"], figures["r2"]) == (None, None, None)
    assert figures["channels"]["x"] == {"rmse": None, "nrmse": None, "r2": None, "points": 59}
    assert figures["channels"]["y"]["nrmse"] == 0


@pytest.mark.slow
def test_a_model_that_is_loaded_is_scored_as_the_fit_is(tmp_path):
    data = rotation()
    fit = fit_to(data, field=SMALL, steps=2, recipe="direct", ridge=0.0)
    fit.save(tmp_path / "model.safetensors")
    assert nf.score(nf.load(tmp_path / "model.safetensors"), data) == fit.score(data)


def test_data_and_scores_are_printed_in_a_line(data):
    assert str(data) == f"Dataset of x, y: {data.lengths.sum()} rows of {len(data.trajectories)} trajectories"
    assert str(score_predictions(data, filled(data))).startswith("NRMSE 0 (x 0, y 0), R² 1, RMSE 0, ")
    assert str(nf.Dataset.from_arrays([0.0, 1.0], np.ones((2, 1)), np.ones((2, 1)))).endswith(
        "y0 with inputs u0: 2 rows of 1 trajectory"
    )


def test_as_dict_has_exactly_these_keys(data):
    figures = score_predictions(data, filled(data, 1.0)).as_dict()
    assert list(figures) == ["rmse", "nrmse", "r2", "channels"]
    assert list(figures["channels"]) == ["x", "y"]
    assert list(figures["channels"]["x"]) == ["rmse", "nrmse", "r2", "points"]


def test_huge_errors_overflow_without_a_warning(data):
    assert score_predictions(data, filled(data, 1e300)).rmse == np.inf


def test_a_constant_channel_has_an_nrmse_only_if_exact():
    # The mean of equal numbers may differ from them by rounding; their deviation must still be zero.
    ys = np.stack([np.full(10, 0.3), np.linspace(0, 1, 10)], axis=1)[None]
    assert ys[..., 0].std() > 0
    data = Dataset.from_arrays(np.arange(10.0), ys)
    off = score_predictions(data, ys + np.array([0.5, 0.1]))
    assert off.channels["y0"].rmse == pytest.approx(0.5)
    assert off.as_dict()["channels"]["y0"]["nrmse"] is None
    assert off.nrmse == off.channels["y1"].nrmse
    assert score_predictions(data, ys).channels["y0"].nrmse == 0


def test_without_measurements_nothing_is_scored():
    data = Dataset.from_arrays(np.arange(3.0), np.full((1, 3, 1), np.nan))
    result = score_predictions(data, np.zeros((1, 3, 1)))
    assert result.points == 0
    nothing = {"rmse": None, "nrmse": None, "r2": None}
    assert result.as_dict() == nothing | {"channels": {"y0": nothing | {"points": 0}}}


def test_other_shapes_are_refused(data):
    with pytest.raises(ValueError, match=r"\(5, 11, 2\).*\(5, 12, 2\)"):
        score_predictions(data, filled(data)[:, :-1])


def test_the_horizon_shows_where_errors_grow():
    ts = np.linspace(0, 6, 61)
    starts = np.array([0.0, 50.0])  # Far from zero, rounding moves times on the edge of a bin.
    ys = np.sin(ts)[None, :, None] * np.ones((2, 1, 1))
    data = Dataset.from_arrays([ts + start for start in starts], list(ys))
    horizon = error_over_horizon(data, ys + 0.1 * ts[None, :, None], bins=5)
    assert horizon.edges == pytest.approx([0, 1.2, 2.4, 3.6, 4.8, 6])
    assert horizon.points.tolist() == [24, 24, 24, 24, 26]
    inside = ts < 1.2 - 1e-9
    assert horizon.nrmse[0] == pytest.approx(np.sqrt(np.mean((0.1 * ts[inside]) ** 2)) / ys.std())
    assert (np.diff(horizon.nrmse) > 0).all()


def test_the_horizon_covers_the_rows_that_count_only():
    data = Dataset.from_arrays(np.arange(11.0), np.sin(np.arange(11.0))[:, None]).score_after(5.0)
    horizon = error_over_horizon(data, np.zeros((1, 11, 1)), bins=20)
    assert (horizon.edges[0], horizon.edges[-1], horizon.points.sum()) == (6, 10, 5)
    assert np.isnan(horizon.nrmse[horizon.points == 0]).all()
    assert np.isfinite(horizon.nrmse[horizon.points > 0]).all()

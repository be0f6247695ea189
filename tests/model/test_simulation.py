"""One solve for all splits gives each split the result of a separate solve."""

import dataclasses
import functools
from contextlib import contextmanager

import equinox as eqx
import jax
import numpy as np
import pytest
from helpers.problems import SMALL

import node_fit as nf
from node_fit.app.background import Rehearsal
from node_fit.data.batch import count_in_slice
from node_fit.evaluation import simulation
from node_fit.evaluation.simulation import DENSE, compile_simulation, concatenate_splits, simulate_splits
from node_fit.model.ensemble import Ensemble
from node_fit.runtime.compilation import BACKEND_COMPILE, Compilations, count_calls
from node_fit.runtime.placement import carry
from node_fit.training.callback import RunState


def data() -> nf.Dataset:
    """Three driven oscillations of different lengths, times and units."""
    ts = [np.linspace(10.0, 10.0 + 3 * n / 12, n) for n in (12, 7, 9)]
    ys = [np.stack([100 + 20 * np.cos(t), 5 * np.sin(t)], axis=1) for t in ts]
    return nf.Dataset.from_arrays(ts, ys, [np.sin(3 * t)[:, None] for t in ts], trajectories=("a", "b", "c"))


@pytest.fixture(scope="module")
def splits() -> dict[str, nf.Dataset]:
    whole = data()
    return {
        "train": whole.select([0]),
        "validation": whole.select([1]),
        "test": whole.select([2, 0]).score_after(11.0),
    }


@pytest.fixture(scope="module")
def model() -> nf.NeuralODE:
    made = nf.make_model(data(), field=SMALL, solver=nf.Solver(rtol=1e-6), key=jax.random.key(0))
    return carry(made, np.float32)


@pytest.fixture(scope="module")
def simulated(model, splits):
    return simulate_splits(model, splits)


def test_at_the_rows_it_is_the_prediction_of_each_split(model, splits, simulated):
    alone = model.predict(concatenate_splits(splits))
    begin = 0
    for name, part in splits.items():
        count, rows = part.ts.shape
        assert simulated.at_rows[name].shape == part.ys.shape
        assert np.allclose(simulated.at_rows[name], alone[begin : begin + count, :rows], rtol=1e-4, atol=1e-2)
        assert np.isfinite(simulated.at_rows[name]).all()
        begin += count
    assert np.ptp(simulated.at_rows["train"][0, :, 0]) > 1, "the solution must change in time"


@pytest.mark.usefixtures("without_cache")
@pytest.mark.slow
@pytest.mark.parametrize("start", [nf.First, functools.partial(nf.Fitted, given=None)], ids=["first", "fitted"])
def test_what_was_compiled_before_training_serves_the_trained_model(splits, start):
    """As in a run, whose end is rehearsed with its initial model while it trains."""
    first, last = (carry(nf.make_model(data(), start=start, key=jax.random.key(seed)), np.float32) for seed in (1, 2))
    compile_simulation(first, splits)
    count = Compilations()
    with count_calls(count):
        found = simulate_splits(last, splits)
    assert count.count == 0
    np.testing.assert_array_equal(found.at_rows["train"], simulate_splits(last, splits).at_rows["train"])


@pytest.mark.usefixtures("without_cache")
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(nf.First, id="first"),
        pytest.param(functools.partial(nf.Fitted, given=None), id="fitted", marks=pytest.mark.slow),
    ],
)
def test_what_an_attempt_is_judged_by_serves_the_whole_run(splits, start):
    """An attempt sees the training and the validation data, and the end of a run the test data too."""
    made = carry(nf.make_model(data(), start=start, key=jax.random.key(3)), np.float32)
    judged = simulate_splits(made, {name: splits[name] for name in ("train", "validation")})
    count = Compilations()
    with count_calls(count):
        found = simulate_splits(made, splits)
    assert count.count == 0
    np.testing.assert_allclose(found.at_rows["train"], judged.at_rows["train"], rtol=1e-4)


@pytest.mark.usefixtures("without_cache")
@contextmanager
def compiled_programs():
    """The names of the programs that are compiled in a block, or come from the cache."""
    names: list[str] = []

    def listen(event: str, duration: float, **keywords: object) -> None:
        if event == BACKEND_COMPILE:
            names.append(str(keywords.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.slow
def test_parts_of_a_record_share_the_search_for_starts_of_a_model_and_that_of_members():
    """However many trajectories, rows of them and rows that a start is fitted to; each has the start of its own."""
    whole = data()
    start = functools.partial(nf.Fitted, given=None)
    kept = carry(nf.make_model(whole, field=nf.Linear, start=start, key=jax.random.key(0)), np.float32)
    few = eqx.tree_at(lambda model: model.start, kept, kept.start.reading(5))
    ensemble = Ensemble.of([kept, eqx.tree_at(lambda m: m.start.values, kept, kept.start.values + 1)], whole, None)
    jax.clear_caches()  # Other tests may have predicted such data.
    with compiled_programs() as names:
        once = kept.predict(whole)
    assert any("begin_channels" in name for name in names)
    with compiled_programs() as names:
        assert not np.array_equal(few.predict(whole)[0], once[0])
    assert not any("begin" in name or "advance" in name for name in names), "rules for starts share all programs"
    with compiled_programs() as names:
        np.testing.assert_array_equal(kept.predict(whole.select([1]))[0, :7], once[1, :7])
        few.predict(whole.windows(6, 6).select([0, 3]))
    assert not any("begin" in name for name in names)
    with compiled_programs() as names:
        members = ensemble.simulate(whole)
    assert any("begin_all" in name for name in names)
    np.testing.assert_allclose(members[0], kept.scaler.scale_states(once), atol=1e-5)
    with compiled_programs() as names:
        np.testing.assert_array_equal(ensemble.simulate(whole.select([1]))[:, 0, :7], members[:, 1, :7])
    assert not any("begin" in name for name in names)


def test_few_trajectories_of_few_rows_are_solved_as_some_more():
    assert [count_in_slice(count, 100) for count in (1, 4, 5, 16, 17)] == [4, 4, 8, 16, 17]
    assert count_in_slice(1, 100_000) == 1
    assert count_in_slice(10**6, 1000) == 524


def test_a_rehearsal_that_fails_is_passed_over(model):
    def no_data() -> dict[str, nf.Dataset]:
        raise OSError("no data")

    rehearsal = Rehearsal(no_data)
    rehearsal.on_fit_start(model, ())
    for _ in range(2):
        rehearsal.on_chunk_end((), RunState(0, 0, ()))
    assert rehearsal.thread is not None
    rehearsal.on_fit_end()
    assert not rehearsal.thread.is_alive()


def test_a_trajectory_starts_at_its_first_measurement(splits, simulated):
    for name, part in splits.items():
        assert np.allclose(simulated.at_rows[name][:, 0], part.first, rtol=1e-5, atol=1e-4)


def test_dense_curves_span_each_trajectory_and_pass_through_its_rows(splits, simulated):
    longest = max(part.ts.shape[1] for part in splits.values())
    for name, part in splits.items():
        ts, ys = simulated.dense[name]
        assert ts.shape == (len(part.trajectories), DENSE + longest) and ys.shape == (*ts.shape, 2)
        last = part.lengths - 1
        for row, end in enumerate(last):
            assert ts[row, 0] == part.ts[row, 0] and np.isclose(ts[row, -1], part.ts[row, end], rtol=1e-12)
            through = np.interp(part.ts[row, : end + 1], ts[row], ys[row, :, 0])
            assert np.allclose(through, simulated.at_rows[name][row, : end + 1, 0], rtol=1e-12)


def test_curves_of_very_many_rows_are_thinned(model, splits, simulated, monkeypatch):
    monkeypatch.setattr(simulation, "MOST_DRAWN", 5)
    thinned = simulate_splits(model, splits)
    for name, part in splits.items():
        ts, ys = thinned.dense[name]
        assert ts.shape == (len(part.trajectories), DENSE) and ys.shape == (*ts.shape, 2)
        np.testing.assert_array_equal(thinned.at_rows[name], simulated.at_rows[name])


def test_all_trajectories_are_put_one_after_another(splits):
    whole = concatenate_splits(splits)
    assert whole.trajectories == ("train/a", "validation/b", "test/c", "test/a")
    assert whole.lengths.tolist() == [12, 7, 9, 12]


def test_predictions_at_other_times_agree_with_those_at_the_rows(model, simulated):
    whole = data()
    with pytest.raises(ValueError, match=r"fitted to the states \['y0', 'y1'\], but the data have \['x', 'y'\]"):
        model.predict(nf.Dataset.from_arrays(whole.ts[:1], whole.ys[:1], whole.us[:1], states=("x", "y")))
    # The same sizes as above, so nothing compiles again.
    saved = np.linspace(whole.ts[:, 0], whole.ts[:, -1], DENSE + 12, axis=1)[[0, 1, 2, 0]]
    ys = model.predict(whole.select([0, 1, 2, 0]), saved)
    rows = np.interp(whole.ts[0], saved[0], ys[0, :, 1])
    assert np.allclose(rows, simulated.at_rows["train"][0, :, 1], atol=0.01)


@pytest.mark.parametrize("log", [(), ("y0",)])
def test_the_field_in_the_users_units_is_the_slope_of_the_trajectory(log):
    whole = data()
    whole = dataclasses.replace(whole, us=whole.us[..., :0], inputs=())
    made = nf.make_model(
        whole, field=SMALL, solver=nf.Solver(rtol=1e-7, atol=1e-9), scaling=nf.Scaling(log=log), key=jax.random.key(1)
    )
    model, scaler = carry(made, np.float32), made.scaler
    start = np.array([[110.0, 2.0]])
    step = 0.02 * float(scaler.time_scale)
    one = nf.Dataset.from_arrays(np.array([10.0, 10.0 + 2 * step]), np.concatenate([start, start]))
    ys = model.predict(one, np.array([[10.0, 10.0 + step, 10.0 + 2 * step]]))
    slope = (4 * ys[:, 1] - 3 * ys[:, 0] - ys[:, 2]) / (2 * step)
    assert np.allclose(model.derivative(start), slope, rtol=0.02)
    assert np.abs(slope).min() > 0.05


def test_there_is_no_slope_beyond_a_bound():
    """Matplotlib once hung on a plot of slopes there."""
    made = nf.make_model(data(), field=SMALL, scaling=nf.Scaling(log=("y0",)), key=jax.random.key(0))
    model = carry(dataclasses.replace(made, units=()), np.float32)
    slopes = model.derivative(np.array([[100.0, 0.0], [0.0, 0.0], [-3.0, 0.0]]))
    assert np.isfinite(slopes[0]).all() and np.isnan(slopes[1:, 0]).all()
    assert np.isfinite(slopes[:, 1]).all()

"""Large data: streaming, sampling, solves in slices, and rows late in a long record."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest
from helpers.problems import SMALL, fit_to, rotation

import node_fit as nf
from node_fit.data import batch as batches
from node_fit.evaluation import simulation
from node_fit.evaluation.simulation import simulate_splits
from node_fit.objectives import matching
from node_fit.objectives.matching import DerivativeMatching
from node_fit.objectives.objective import Target
from node_fit.plots.curves import Curves, collect
from node_fit.plots.figures import plot_fit
from node_fit.runtime.placement import carry

pytestmark = pytest.mark.slow


def rotations(count: int, times: int = 8, seed: int = 0) -> nf.Dataset:
    """Points that rotate around the origin, with random initial phases."""
    ts = np.linspace(0, 2, times)
    angle = ts[None, :] + np.random.default_rng(seed).uniform(0, 2 * np.pi, (count, 1))
    return nf.Dataset.from_arrays(ts, np.stack([np.cos(angle), np.sin(angle)], axis=-1), states=("x", "y"))


def record(rows: int) -> nf.Dataset:
    ts = 0.1 * np.arange(rows)
    return nf.Dataset.from_arrays(ts, np.stack([np.cos(ts), np.sin(ts)], axis=-1), states=("x", "y"))


class Watch(nf.Callback):
    """Records the last state."""

    def on_chunk_end(self, records, state):
        self.state = state.members[0]


def test_minibatches_of_thousands_of_trajectories_find_the_dynamics():
    data = rotations(2000)
    seen = Watch()
    options = {"optimizer": nf.Adam(1e-2), "batch_size": 32, "steps": 300, "recipe": "direct", "callbacks": [seen]}
    fit = fit_to(data, validation=rotations(50, seed=1), field=SMALL, **options)
    assert fit.score(rotations(100, seed=2)).nrmse < 0.05
    # The size of the training state does not depend on the data.
    assert max(leaf.size for leaf in jax.tree.leaves(seen.state)) < 500
    assert seen.state.grid.shape[0] == 1


def test_windows_of_a_long_record_are_all_that_is_solved():
    data = record(4_000)
    windows = data.windows(20)
    options = {"optimizer": nf.Adam(1e-2), "batch_size": 64, "window": 20, "steps": 200, "recipe": "direct"}
    notes = []

    class Notes(nf.Callback):
        def on_fit_start(self, model, given):
            notes.extend(given)

    fit = fit_to(data, validation=windows.sample(20), field=SMALL, callbacks=[Notes()], **options)
    assert {record.stage for record in fit.history} == {"windows"}
    assert any("no stage on whole trajectories" in note and "4000 rows" in note for note in notes)
    assert fit.score(windows.sample(50)).nrmse < 0.05


def test_late_in_a_record_float32_is_as_exact_as_early():
    """At a time of 3e6, float32 has a resolution of 0.25, and the rows are 0.05 apart."""
    early = rotation(2, times=40)
    late = dataclasses.replace(early, ts=early.ts + np.array([[0.0], [3e6]]))
    for solver in (nf.Solver(), nf.Solver(stepping="adaptive")):
        model = made(early, solver=nf.Solver(rtol=1e-6))
        # The same scales except for the time shift.
        far = eqx.tree_at(lambda m: m.scaler.time_shift, model, carry(np.float32(late.ts.min()), np.float32))
        np.testing.assert_allclose(far.predict(late), model.predict(early), atol=1e-5)
        objective = nf.TrajectoryMatching(solver=solver)
        losses = [loss_of(objective, each, data) for each, data in ((model, early), (far, late))]
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def made(data, field=SMALL, **options):
    return carry(nf.make_model(data, field=field, key=jax.random.key(0), **options), np.float32)


def loss_of(objective, model, data):
    batch = objective.prepare(data, model)
    target = carry(Target(batch, objective.first_grid(batch), np.ones(())), np.float32)
    return float(objective.loss(model, None, target).value)


def test_a_field_of_time_sees_the_time_of_the_record():
    data = rotation(2, times=20)
    late = dataclasses.replace(data, ts=data.ts + np.array([[0.0], [5.0]]))

    class Clock(eqx.Module):
        def __call__(self, t, y, u):
            return y * 0 + t

    for solver in (nf.Solver(rtol=1e-8, atol=1e-8), nf.Solver("kvaerno5", rtol=1e-8, atol=1e-8)):
        model = made(late, field=Clock(), scaling=nf.Scaling(affine=False), solver=solver)
        begin = late.ts[:, :1]
        truth = (late.ts**2 - begin**2)[..., None] / 2 + late.ys[:, :1]
        np.testing.assert_allclose(model.predict(late), truth, atol=1e-4)


def test_predictions_in_slices_are_those_of_one_solve(monkeypatch):
    data = rotations(10)
    model = made(data)
    ensemble = fit_to(data, ensemble=nf.Members(2), field=SMALL, steps=2, recipe="direct").model
    whole = [model.predict(data), ensemble.bands(data).upper]
    monkeypatch.setattr(batches, "SLICE", 3 * data.ts.shape[1])
    np.testing.assert_allclose(model.predict(data), whole[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ensemble.bands(data).upper, whole[1], rtol=1e-5, atol=1e-6)


def test_pictures_of_many_trajectories_are_of_some(monkeypatch, tmp_path):
    monkeypatch.setattr(simulation, "MOST_PICTURED", 5)
    splits = {"train": rotations(20), "test": rotations(4, seed=1)}
    model = made(splits["train"])
    simulated = simulate_splits(model, splits)
    for name, part in splits.items():
        np.testing.assert_allclose(simulated.at_rows[name], model.predict(part), atol=1e-5)
    assert simulated.left_out == 15
    curves = Curves.of(simulated, splits)
    assert len(collect(curves)) == 9
    plot_fit(curves, tmp_path / "fit.png")
    assert (tmp_path / "fit.png").stat().st_size > 10_000


def test_derivative_matching_smooths_no_more_than_it_needs(monkeypatch):
    sizes = []
    smooth = matching.smooth
    monkeypatch.setattr(matching, "smooth", lambda ts, ys: sizes.append(ts.size) or smooth(ts, ys))
    for data in (rotations(3000), record(30_000)):
        model = nf.make_model(data, field=SMALL, key=jax.random.key(0))
        rows = DerivativeMatching(most=500).prepare(data, model)
        assert len(rows.ts) == 500
        # Its rates equal those of the whole record: rates of each piece, and none across two pieces.
        np.testing.assert_allclose(
            np.linalg.norm(rows.rates, axis=1), np.linalg.norm(rows.rates, axis=1).mean(), rtol=0.1
        )
    assert max(sizes) < 5 * 4 * 500


def test_cut_pieces_are_what_was_there():
    ts = [np.arange(5.0), np.arange(3.0) + 10]
    ys = [np.arange(10.0).reshape(5, 2), np.full((3, 2), np.nan)]
    ys[1][1] = 7.0
    us = [np.arange(5.0)[:, None], np.arange(3.0)[:, None]]
    data = nf.Dataset.from_arrays(ts, ys, us).score_after(0.5)
    windows = data.windows(3, 2)
    assert windows.trajectories == ("0[0:3]", "0[2:5]", "1[0:3]")
    np.testing.assert_array_equal(windows.ts, [[0, 1, 2], [2, 3, 4], [10, 11, 12]])
    np.testing.assert_array_equal(windows.ys[0], ys[0][:3])
    np.testing.assert_array_equal(windows.us[1, :, 0], [2, 3, 4])
    np.testing.assert_array_equal(windows.scored, [[False, True, True], [True] * 3, [True] * 3])
    longer = data.windows(4, 4)
    assert longer.lengths.tolist() == [4, 4, 3]
    np.testing.assert_array_equal(longer.ts[2], [10, 11, 12, 12])
    assert np.isnan(longer.ys[2, 3]).all() and not longer.scored[2, 3]


def test_faults_of_a_trajectory_among_many_are_named():
    ts = np.tile(np.arange(4.0), (1000, 1))
    ts[613, 2] = 1.0
    with pytest.raises(ValueError, match=r"trajectory '613' repeats 1 at row 2"):
        nf.Dataset.from_arrays(ts, np.zeros((1000, 4, 1)))


def test_a_sample_of_a_dataset_is_even():
    data = rotations(10)
    assert data.sample(4).trajectories == ("0", "3", "6", "9")
    assert data.sample(10) is data

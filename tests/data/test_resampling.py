"""Records on even times: what is interpolated, and what the search of a linear model makes of an uneven record."""

import dataclasses

import numpy as np
import pytest
from helpers.problems import A, record

import node_fit as nf


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

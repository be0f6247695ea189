"""Features of the rows before a start: missing values and glitches."""

import numpy as np
import pytest

import node_fit as nf
from node_fit.data.batch import past_rows
from node_fit.data.scaling import Scaler

ROWS = 10


def features(values):
    """Returns the channel and the measured flags of the rows before the start, in the scale of a record of sines."""
    ts = np.arange(400.0)
    scaler = Scaler.from_dataset(nf.Dataset.from_arrays(ts, 10 + np.sin(ts / 7)[:, None], states=["x"]))
    record = np.concatenate([values, np.full(5, 10.0)])
    data = nf.Dataset.from_arrays(np.arange(float(len(record))), record[:, None], states=["x"])
    past = past_rows(data, scaler, ROWS)[0]
    return past[:, 0] * float(scaler.state_scale[0]) + float(scaler.state_shift[0]), past[:, 1]


SLOPE = np.linspace(9.8, 10.2, ROWS)


def test_a_missing_value_has_the_one_before():
    values = SLOPE.copy()
    values[4] = np.nan
    channel, known = features(values)
    np.testing.assert_array_equal(known, [1, 1, 1, 1, 0, 1, 1, 1, 1, 1])
    expected = values.copy()
    expected[4] = values[3]
    np.testing.assert_allclose(channel, expected, rtol=1e-6)


@pytest.mark.parametrize("glitch", [-999.0, 0.0, 1e4])
def test_a_glitch_is_missing(glitch):
    values, missing = SLOPE.copy(), SLOPE.copy()
    values[4], missing[4] = glitch, np.nan
    for got, expected in zip(features(values), features(missing), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


STEP = np.where(np.arange(ROWS) < 5, 10.0, 60.0)
RAMP = np.linspace(10, 90, ROWS)
HUMP = np.where((np.arange(ROWS) > 3) & (np.arange(ROWS) < 7), 60.0, 10.0)
SMALL = np.where(np.arange(ROWS) == 4, 13.0, 10.0)


@pytest.mark.parametrize("values", [STEP, RAMP, HUMP, SMALL], ids=["step", "ramp", "hump", "small"])
def test_motions_are_kept(values):
    channel, known = features(values)
    np.testing.assert_allclose(channel, values, rtol=1e-5)
    assert known.all()

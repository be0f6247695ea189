"""Free responses: modes of known sums are recovered, and records that are no such sums are left to others."""

import numpy as np
import pytest

from node_fit.sysid.free_response import as_free_matrices, collect_windows, count_window, identify_free_modes
from node_fit.sysid.realization import Signals

RATES = np.array([-0.004 + 0.35j, -0.002 + 0.41j, -0.01 + 0.9j])
NOISE = 0.02


def record(rows=500, outputs=1, noise=NOISE, seed=0, rates=RATES, lost=0.0):
    """A sum of modes with random amplitudes and phases in each output."""
    rng = np.random.default_rng(seed)
    sizes = rng.uniform(0.5, 1, (len(rates), outputs)) * np.exp(1j * rng.uniform(0, 6, (len(rates), outputs)))
    ys = np.real(np.exp(np.arange(rows)[:, None] * rates) @ sizes) + noise * rng.normal(size=(rows, outputs))
    known = rng.random(rows) >= lost
    return Signals(np.zeros((rows, 0)), np.where(known[:, None], ys, 0.0), known)


def split(signals, at=0.7):
    rows = int(at * len(signals.us))
    return Signals(*(part[:rows] for part in signals)), Signals(*(part[rows:] for part in signals))


@pytest.mark.parametrize("outputs", [1, 2])
def test_modes_of_a_sum_are_recovered(outputs):
    fitted, held = split(record(outputs=outputs))
    found = identify_free_modes([fitted], [held])
    assert found.system.states == 6
    np.testing.assert_allclose(np.sort_complex(found.system.rates), np.sort_complex(RATES), atol=1e-3)
    assert (found.mean / outputs) ** 0.5 < 1.2 * NOISE


def test_records_share_modes_and_have_their_own_starts():
    records = [record(200, seed=seed) for seed in range(4)]
    found = identify_free_modes(records[:3], records[3:])
    assert found.system.states == 6
    assert found.system.b.shape == (3, 3)
    np.testing.assert_allclose(np.sort_complex(found.system.rates), np.sort_complex(RATES), atol=2e-3)
    matrices = as_free_matrices(found.system, records[:3])
    assert matrices.b.shape == (6, 0)
    assert matrices.direct.shape == (1, 0)
    assert np.linalg.eigvalsh(matrices.covariance).min() > 0


def test_missing_rows_are_bridged_in_windows_and_do_not_count_in_the_fit():
    fitted, held = split(record(lost=0.1))
    assert collect_windows([fitted], 175)[1] > 100
    found = identify_free_modes([fitted], [held])
    np.testing.assert_allclose(np.sort_complex(found.system.rates), np.sort_complex(RATES), atol=2e-3)
    lost, _ = split(record(lost=0.5))
    assert identify_free_modes([lost], [held]) is None


def test_windows_of_long_records_of_many_outputs_are_few_and_short():
    long = record(20_000, outputs=6)
    rows = count_window([long])
    assert rows == 100
    gram, count = collect_windows([long], rows)
    assert gram.shape == (600, 600)
    assert count <= 4_000
    assert count_window([record(50)]) is None
    assert count_window([record(100)] * 13) is None


def lorenz(rows, step=0.02):
    x, xs = np.array([1.0, 1.0, 20.0]), []
    for _ in range(rows):
        xs.append(x)
        for _ in range(10):
            slope = np.array([10 * (x[1] - x[0]), x[0] * (28 - x[2]) - x[1], x[0] * x[1] - 8 / 3 * x[2]])
            half = x + step / 20 * slope
            x = x + step / 10 * np.array(
                [10 * (half[1] - half[0]), half[0] * (28 - half[2]) - half[1], half[0] * half[1] - 8 / 3 * half[2]]
            )
    return np.array(xs)


@pytest.mark.parametrize("kind", ["noise", "random walk", "chaos", "growth"])
def test_what_is_no_free_response_is_left_to_others(kind):
    rng = np.random.default_rng(0)
    ys = {
        "noise": rng.normal(size=(500, 1)),
        "random walk": rng.normal(size=(500, 1)).cumsum(axis=0),
        "chaos": lorenz(1000)[:, :1],
        "growth": np.exp(0.02 * np.arange(500))[:, None] + 0.1 * rng.normal(size=(500, 1)),
    }[kind]
    whole = Signals(np.zeros((len(ys), 0)), (ys - ys.mean()) / ys.std(), np.ones(len(ys), bool))
    fitted, held = split(whole)
    assert identify_free_modes([fitted], [held]) is None

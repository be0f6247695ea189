"""The linear state-space model with which driven records begin: exact steps, derivatives, and recovered systems."""

import subprocess
import sys

import numpy as np
import pytest
from helpers.commands import ENVIRONMENT
from helpers.problems import A, B, C, record
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.data.batch import Batch
from node_fit.data.scaling import Scaler
from node_fit.sysid import linear_model
from node_fit.sysid.initialize import limit_growth
from node_fit.sysid.linear_model import (
    LinearModel,
    LinearSystem,
    SimulationRecord,
    as_vector,
    compute_residuals,
    constant_systems,
    fit_system,
    from_vector,
    linear_models,
    normal_equations,
    nrmse_on,
    simplest_model,
    step_matrix,
)
from node_fit.sysid.subspace import identify_subspace

pytestmark = pytest.mark.slow

ROWS = 5


def windows_of(data: nf.Dataset, rows: int = 60) -> tuple[Batch, Scaler]:
    scaler = Scaler.from_dataset(data)
    return Batch.from_dataset(data.windows(rows, 20), scaler, ROWS), scaler


def random_system(states: int, features: int, seed: int = 0) -> LinearSystem:
    rng = np.random.default_rng(seed)
    a = 0.2 * rng.normal(size=(states, states)) - 0.3 * np.eye(states)
    b, c = rng.normal(size=(states, 1)), rng.normal(size=states)
    return LinearSystem(a, b, c, 0.1 * rng.normal(size=(states, features)), 0.1 * rng.normal(size=states))


@pytest.mark.parametrize("held", [True, False])
def test_steps_are_exact(held):
    start, first, last = np.array([0.3, -0.2]), 0.7, -0.4

    def rates(t, z):
        return A @ z + B[:, 0] * (first if held else first + (last - first) * t) + C

    exact = solve_ivp(rates, (0, 1), start, rtol=1e-11, atol=1e-13).y[:, -1]
    drive = [first] if held else [first, last]
    np.testing.assert_allclose(step_matrix(A, B, C, held=held) @ [*start, *drive, 1], exact, rtol=1e-9)


@pytest.mark.parametrize("kind", ["hold", "linear"])
def test_the_normal_equations_are_those_of_the_residuals(kind):
    batch, _ = windows_of(record(100, noise=0.1))
    held = SimulationRecord.of(batch, kind)
    system = random_system(3, held.past.shape[1])
    x, h = as_vector(system), 1e-6

    def off(point):
        return compute_residuals(from_vector(point, system), held)

    jacobian = np.stack([(off(x + h * axis) - off(x - h * axis)) / (2 * h) for axis in np.eye(len(x))], axis=1)
    found = normal_equations(system, held)
    np.testing.assert_allclose(found.matrix, jacobian.T @ jacobian, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.slope, jacobian.T @ off(x), rtol=1e-5, atol=1e-7)


def test_a_record_holds_one_input_and_not_another():
    us = np.random.default_rng(0).normal(size=(1, 6, 2))
    data = nf.Dataset.from_arrays(np.arange(6.0), np.ones((1, 6, 1)), us)
    batch = Batch.from_dataset(data, Scaler.from_dataset(data), ROWS)
    scaled = np.asarray(batch.us, float)[0]
    found = SimulationRecord.of(batch, ("hold", "linear")).us[:, 0]
    np.testing.assert_array_equal(found, np.hstack([scaled[:-1], scaled[:-1, :1], scaled[1:, 1:]]))


def test_the_search_falls_to_the_truth():
    batch, _ = windows_of(record())
    held = SimulationRecord.of(batch, "hold")
    found, error = fit_system(random_system(2, held.past.shape[1], seed=3)._replace(c=np.zeros(2)), held, 60)
    assert np.sqrt(error / held.variance) < 1e-2
    eigenvalues = np.sort_complex(np.linalg.eigvals(found.a))
    np.testing.assert_allclose(eigenvalues, np.sort_complex(np.linalg.eigvals(A)), rtol=0.02)


def test_subspace_identification_finds_the_eigenvalues():
    data = record(2000, noise=0.01)
    guess = identify_subspace(data.ys, data.us, data.valid, 2)
    assert guess is not None
    eigenvalues = np.sort_complex(np.linalg.eigvals(guess.a))
    np.testing.assert_allclose(eigenvalues, np.sort_complex(np.linalg.eigvals(A)), rtol=0.1)
    assert identify_subspace(data.ys[:, :30], data.us[:, :30], data.valid[:, :30], 2) is None


@pytest.mark.parametrize("held", [True, False])
def test_the_number_of_hidden_states_is_found(held):
    train, validation = record(500, held=held, noise=0.01), record(200, seed=5, held=held, noise=0.01)
    batch, scaler = windows_of(train)
    kind = "hold" if held else "linear"
    models = list(
        linear_models(batch, Batch.from_dataset(validation, scaler, ROWS), Batch.from_dataset(train, scaler), kind)
    )
    best = simplest_model(models)
    assert best.hidden == 1
    assert best.error < 0.1 < models[0].error


def test_no_linear_model_is_worse_than_keeping_the_last_value_or_the_mean():
    """The validation data are of another system, of which the training data say nothing."""
    rng = np.random.default_rng(2)
    train = record(300)
    other = nf.Dataset.from_arrays(
        np.arange(150.0), rng.normal(size=(150, 1)), rng.normal(size=(150, 1)), states=("y",), inputs=("u",)
    )
    batch, scaler = windows_of(train)
    held = Batch.from_dataset(other, scaler, ROWS)
    found = simplest_model(list(linear_models(batch, held, Batch.from_dataset(train, scaler), "hold")))
    simple = [
        nrmse_on(each, SimulationRecord.of(held, "hold"))
        for each in constant_systems(SimulationRecord.of(batch, "hold"), 1)
    ]
    assert found.error <= 1.03 * min(simple)


def test_what_is_constant_keeps_the_last_value_and_the_mean():
    batch, _ = windows_of(record(100))
    held = SimulationRecord.of(batch, "hold")
    last, mean = constant_systems(held, 1)
    assert nrmse_on(mean, held) == pytest.approx(
        np.sqrt((held.mask * held.ys**2).sum() / held.mask.sum() / held.variance)
    )
    off = held.mask * (held.first - held.ys)
    assert nrmse_on(last, held) == pytest.approx(np.sqrt((off**2).sum() / held.mask.sum() / held.variance))


def test_the_simplest_of_the_models_that_are_about_as_good_is_taken():
    judged = {0: 0.5, 1: 0.102, 2: 0.1, 3: 0.0999}
    models = [LinearModel(random_system(1 + count, 5), 1, 0.0, 0.0, each) for count, each in judged.items()]
    assert simplest_model(models).hidden == 1
    assert simplest_model(models[:1]).hidden == 0


def test_the_search_ends_after_two_states_that_do_not_help(monkeypatch):
    """Not after one: an oscillation that is not measured takes two states, of which the first alone may not help."""
    judged = iter([1.0, 1.0, 0.5, 0.49, 0.49, 0.1, 0.1])
    monkeypatch.setattr(linear_model, "cross_validate", lambda *_: next(judged))
    monkeypatch.setattr(linear_model, "nrmse_on", lambda *_: 0.0)
    batch, scaler = windows_of(data := record(120), 30)
    assert [model.hidden for model in linear_models(batch, batch, Batch.from_dataset(data, scaler), "hold")] == [
        0,
        1,
        2,
        3,
        4,
    ]


# Without SciPy, as in a process whose first fit this is.
IN_A_FRESH_PROCESS = """
import sys
import numpy as np
import node_fit as nf
from node_fit.data.batch import Batch
from node_fit.data.scaling import Scaler
from node_fit.sysid.linear_model import linear_models
from threadpoolctl import threadpool_info
us = np.sin(np.arange(60.0))[:, None]
data = nf.Dataset.from_arrays(np.arange(60.0), np.cumsum(us, axis=0), us, states=("y",), inputs=("u",))
scaler = Scaler.from_dataset(data)
windows = Batch.from_dataset(data.windows(30, 10), scaler, 5)
models = linear_models(windows, windows, Batch.from_dataset(data, scaler), "hold", 0)
next(models)
print(*[pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"])
"""


def test_the_search_has_one_thread_in_every_blas_from_its_first_product():
    """SciPy brings a BLAS of its own, which a limit set before it is loaded would not cover in the first fit alone."""
    environment = {**ENVIRONMENT, "OPENBLAS_NUM_THREADS": "2"}
    ran = subprocess.run(
        [sys.executable, "-c", IN_A_FRESH_PROCESS], env=environment, capture_output=True, text=True, check=True
    )
    threads = ran.stdout.split()
    assert len(threads) >= 2 and set(threads) == {"1"}, ran


def test_a_linear_model_that_grows_runs_away_over_a_record_by_a_limit_alone():
    """Other modes stay as they are, also where two are complex."""
    modes = np.random.default_rng(0).normal(size=(3, 3))
    rates = np.array([[0.3, 0.5, 0], [-0.5, 0.3, 0], [0, 0, -0.2]])
    system = LinearSystem(
        modes @ rates @ np.linalg.inv(modes), np.ones((3, 1)), np.ones(3), np.ones((3, 1)), np.ones(3)
    )
    limited = limit_growth(system, 100)
    found = np.linalg.eigvals(limited.a)
    np.testing.assert_allclose(np.sort_complex(found), [-0.2, 0.02 - 0.5j, 0.02 + 0.5j], atol=1e-9)
    assert all(map(np.array_equal, limited[1:], system[1:]))
    assert limit_growth(system, 6) is system, "it grows by less than e**2 within 6 rows"

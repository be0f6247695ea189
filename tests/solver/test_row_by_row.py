"""Steps that end at every row: orders, gradients, tolerances, and solves in pieces, where inputs jump or have kinks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import SMALL, fit_to, record
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.evaluation.metrics import score_rows
from node_fit.model.rollout import ROOMS
from node_fit.runtime.compilation import Compilations, count_calls
from node_fit.solver.held_rows import march_rows
from node_fit.solver.held_steps import settle_between_rows
from node_fit.solver.methods import error_order
from node_fit.solver.problem import InitialValueProblem, between_rows

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
TS = np.cumsum(RNG.uniform(0.5, 1.5, 12)) - 0.7
US = RNG.normal(size=(12, 1))
START = np.array([0.5, -0.3])


def bent(t, z, u):
    """A field that is nonlinear in states and inputs."""
    return jnp.stack([z[1] + 0.1 * jnp.sin(t), -jnp.sin(z[0]) - 0.2 * z[1] + u[0] * (1 + 0.3 * z[0])])


def problem(field=bent, start=START, us=US) -> InitialValueProblem:
    return InitialValueProblem(
        field, jnp.asarray(TS)[None], jnp.asarray(start)[None], jnp.asarray(us)[None], jnp.zeros(1)
    )


def exact(kind: str) -> np.ndarray:
    """The solution, from one smooth piece to the next."""
    z, found = START, [START]
    for row in range(len(TS) - 1):
        t0, t1 = TS[row], TS[row + 1]

        def rates(t, z, row=row, t0=t0, t1=t1):
            u = US[row] if kind == "hold" else US[row] + (US[row + 1] - US[row]) * (t - t0) / (t1 - t0)
            return np.asarray(bent(t, z, u))

        z = solve_ivp(rates, (t0, t1), z, rtol=1e-10, atol=1e-12).y[:, -1]
        found.append(z)
    return np.stack(found)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64():
        yield


def marched(method: str, kind: str, substeps: int, **options):
    given = problem(**options)
    return march_rows(method, given, between_rows(given, kind), substeps, (1e-6, 1e-6))


@pytest.mark.parametrize("kind", ["hold", "linear"])
@pytest.mark.parametrize("method, order", [("heun", 2), ("bosh3", 3), ("tsit5", 5)])
def test_the_order_is_kept_across_kinks_and_jumps(method, order, kind):
    truth = exact(kind)
    errors = [np.abs(np.asarray(marched(method, kind, n).ys[0]) - truth).max() for n in (2, 4)]
    assert errors[0] / errors[1] > 0.6 * 2**order


@pytest.mark.parametrize("kind", ["hold", "linear"])
def test_gradients_are_those_of_finite_differences(kind):
    def total(scale):
        return jnp.sum(marched("tsit5", kind, 1, field=lambda t, z, u: scale * bent(t, z, u)).ys ** 2)

    h = 1e-6
    difference = (total(1 + h) - total(1 - h)) / (2 * h)
    assert float(jax.grad(total)(1.0)) == pytest.approx(float(difference), rel=1e-6)
    assert float(jax.jvp(total, (1.0,), (1.0,))[1]) == pytest.approx(float(difference), rel=1e-6)


@pytest.mark.parametrize("kind", ["hold", "linear", "cubic"])
@pytest.mark.parametrize("method", ["tsit5", "bosh3", "kvaerno5"])
def test_forecasts_keep_to_their_tolerance(method, kind):
    solver = nf.Solver(method, rtol=1e-7, atol=1e-9, inputs=kind)
    found = np.asarray(solver.forecast(problem()).ys[0])
    if kind == "cubic":
        truth = np.asarray(nf.Solver("dopri8", rtol=1e-10, atol=1e-12, inputs=kind).forecast(problem()).ys[0])
    else:
        truth = exact(kind)
    np.testing.assert_allclose(found, truth, atol=2e-5)


def test_the_steps_are_those_that_the_errors_ask_for():
    order = error_order("tsit5")
    steps = settle_between_rows(lambda m: np.array([[[4.0**order / m**order]]]), 1, order, 64)
    assert steps in (4, 6)
    assert settle_between_rows(lambda m: np.array([[[0.5]]]), 1, order, 64) == 1


def test_a_program_does_not_grow_with_the_steps_between_rows():
    """A long interval takes many, and compiling them one after another took minutes."""
    programs = [jax.jit(lambda m=m: marched("tsit5", "linear", m).ys).lower().as_text() for m in (8, 64)]
    assert len(programs[0].splitlines()) == len(programs[1].splitlines())


def test_a_field_that_blows_up_is_infinite_and_one_that_is_too_stiff_is_nan():
    solver = nf.Solver(rtol=1e-5, atol=1e-7, inputs="hold", max_steps=300)
    away = solver.forecast(problem(field=lambda t, z, u: 50 * z**3))
    assert not bool(away.ok[0]) and np.isinf(np.asarray(away.ys[0, -1])).all()
    stiff = solver.forecast(problem(field=lambda t, z, u: -1e7 * (z - jnp.cos(9 * t))))
    assert not bool(stiff.ok[0]) and np.isnan(np.asarray(stiff.ys[0, -1])).all()


def model_of(data: nf.Dataset) -> nf.NeuralODE:
    return fit_to(data, field=SMALL, steps=1, recipe="direct", ridge=0.0, window=None, hidden=0, start=nf.First).model


@pytest.mark.usefixtures("without_cache")
def test_long_records_in_pieces_are_the_short_ones_and_compile_nothing():
    """Pieces have one length, so that any longer record runs in the same program, with the same first rows."""
    data = record(3 * ROOMS[-1] // 2)
    model = model_of(data.until(400.0))
    whole = model.predict(data.until(float(ROOMS[-1] + 10)))
    count = Compilations()
    with count_calls(count):
        longer = model.predict(data)
    assert count.count == 0
    np.testing.assert_array_equal(longer[:, : whole.shape[1]], whole)


def test_rows_that_a_start_is_read_from_do_not_count():
    data = record(200)
    model = nf.make_model(data, start=nf.Encoder, key=jax.random.key(0))
    scored = score_rows(model.start, data)
    assert model.start.before and model.start.rows == 10
    assert not scored.mask[:, :10].any() and scored.mask[:, 10:].all()
    later = data.score_after(99.0)
    assert (score_rows(model.start, later).mask == later.mask).all()
    first = nf.make_model(data, key=jax.random.key(0))
    assert score_rows(first.start, data).mask.sum() == data.mask.sum() - 1


def test_predictions_begin_at_the_last_row_that_the_start_is_read_from():
    data = record(200)
    model = nf.make_model(data, start=nf.Encoder, key=jax.random.key(0))
    ys = model.predict(data)
    assert np.isnan(ys[0, :9]).all() and np.isfinite(ys[0, 9:]).all()
    np.testing.assert_allclose(ys[0, 9], data.ys[0, 9], rtol=1e-5)
    other = dataclasses.replace(data, ys=np.where(np.arange(200)[None, :, None] >= 10, np.nan, data.ys))
    np.testing.assert_allclose(model.predict(other), ys, rtol=1e-6)

"""Implicit methods on a stiff oscillator: rows of any density, doses, both precisions, gradients, numbers of steps."""

import functools
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import fit_to
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.data.events import Jumps
from node_fit.runtime.precision import carry, dtype_of, scope
from node_fit.solver.initial_value_problem import InitialValueProblem

STIFFNESS, END, START = 50.0, 20.0, np.array([2.0, 0.0])
DENSITIES = (5, 10, 21, 200)
INTERVALS = len(DENSITIES) * (max(DENSITIES) - 1)
# The largest error, and the most steps for all four densities together: without doses, and with one, beside a step in
# each interval between two rows.
TABLE = {"kvaerno3": (1e-4, 450, 1100), "kvaerno5": (1e-4, 220, 800), "implicit_euler": (2e-3, 2600, 9500)}


class Oscillator(eqx.Module):
    """Van der Pol's. From its start it creeps towards `x = 1`, and returns within 0.01 to its path if it is moved."""

    stiffness: Any

    def __call__(self, t, y, u):
        return jnp.stack([y[1], self.stiffness * (1 - y[0] ** 2) * y[1] - y[0]])


def dose(rows: int) -> tuple[int, np.ndarray]:
    """The row of a dose, and its effect."""
    return rows // 3, np.array([0.3, 1.0])


def exact(rows: int, dosed: bool, stiffness: float = STIFFNESS) -> np.ndarray:
    def piece(ts: np.ndarray, y: np.ndarray) -> np.ndarray:
        rates = lambda t, y: [y[1], stiffness * (1 - y[0] ** 2) * y[1] - y[0]]  # noqa: E731
        return solve_ivp(rates, (ts[0], ts[-1]), y, method="Radau", rtol=1e-11, atol=1e-13, t_eval=ts).y.T

    ts = np.linspace(0, END, rows)
    if not dosed:
        return piece(ts, START)
    row, effect = dose(rows)
    before = piece(ts[: row + 1], START)
    return np.concatenate([before, piece(ts[row:], before[-1] + effect)[1:]])


def problem(dosed: bool) -> InitialValueProblem:
    """A trajectory for each density, with padding."""
    most, dtype = max(DENSITIES), jnp.result_type(float)
    ts = np.stack([np.pad(np.linspace(0, END, rows), (0, most - rows), mode="edge") for rows in DENSITIES])
    shift = np.zeros((*ts.shape, 2))
    for index, rows in enumerate(DENSITIES):
        row, effect = dose(rows)
        shift[index, row] = effect
    given = InitialValueProblem(
        Oscillator(np.asarray(STIFFNESS)),
        ts,
        jnp.tile(jnp.asarray(START, dtype), (len(DENSITIES), 1)),
        np.zeros((*ts.shape, 0)),
        np.zeros(len(DENSITIES)),
        jumps=Jumps(np.ones(shift.shape), shift) if dosed else None,
    )
    return carry(given, dtype)


@pytest.fixture
def steps(monkeypatch):
    """Numbers of steps of all of Diffrax's solves, those in padding included."""
    counts, solve = [], diffrax.diffeqsolve

    def counting(*args, **options):
        solution = solve(*args, **options)
        jax.debug.callback(lambda number: counts.append(int(number)), solution.stats["num_steps"])
        return solution

    monkeypatch.setattr(diffrax, "diffeqsolve", counting)
    return counts


CASES = [(way, dosed, precision) for precision in ("x64", "x32") for way in ("solve", "forecast") for dosed in (0, 1)]


@pytest.mark.parametrize(("way", "dosed", "precision"), CASES)
@pytest.mark.parametrize("method", TABLE)
def test_easy_stiff_data_are_solved(method, way, dosed, precision, steps):
    """The first step is that of the problem and not the interval between two rows, whatever their density."""
    error, most, most_dosed = TABLE[method]
    # Single precision resolves the derivatives of this field to 1e-6.
    solver = nf.Solver(method, rtol=1e-5 if precision == "x64" else 1e-4).for_data()
    with scope(precision):
        given = problem(bool(dosed))

        def total(stiffness):
            one = eqx.tree_at(lambda p: p.field.stiffness, given, stiffness)
            solution = solver.solve(one, joint=False) if way == "solve" else solver.forecast(one)
            return jnp.sum(solution.ys[:, -1]), solution

        at = jnp.asarray(STIFFNESS, dtype_of(precision))
        if way == "solve":
            (_, found), slope = eqx.filter_jit(jax.value_and_grad(total, has_aux=True))(at)
        else:
            _, slope, found = eqx.filter_jit(lambda x: jax.jvp(total, (x,), (jnp.ones_like(x),), has_aux=True))(at)
        jax.effects_barrier()
    print("CASE", method, way, dosed, precision, sum(steps), float(slope))
    assert found.ok.all()
    for ys, rows in zip(np.asarray(found.ys), DENSITIES, strict=True):
        np.testing.assert_allclose(ys[:rows], exact(rows, bool(dosed)), atol=error)
    assert sum(steps) <= (INTERVALS + most_dosed if dosed else most)
    h = 1e-2
    ends = [sum(exact(rows, bool(dosed), STIFFNESS + by)[-1].sum() for rows in DENSITIES) for by in (-h, h)]
    assert float(slope) == pytest.approx(
        (ends[1] - ends[0]) / (2 * h), rel=0.03 if method == "implicit_euler" else 0.001
    )


def creeping(rows: int) -> nf.Dataset:
    return nf.Dataset.from_arrays(np.linspace(0, END, rows), exact(rows, False), states=["x", "v"])


def known(equation: str = "m*(1 - x**2)*v - x", **constants):
    return functools.partial(nf.Known, equations={"x": "v", "v": equation}, constants=constants or {"m": STIFFNESS})


@pytest.mark.parametrize(("method", "rows"), [("kvaerno5", 10), ("kvaerno3", 21)])
def test_a_fit_of_easy_stiff_data_starts_and_ends_at_the_truth(method, rows):
    fit = fit_to(
        creeping(rows), field=known(), solver=nf.Solver(method), recipe="direct", steps=3, precision="x64",
        optimizer=nf.LevenbergMarquardt(), window=None,
    )  # fmt: skip
    assert fit.status != "failed", fit.reason
    assert fit.model.constants()["m"] == pytest.approx(STIFFNESS, rel=1e-3)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_a_step_out_of_the_domain_of_a_field_is_rejected_and_leaves_finite_gradients(mode):
    """A tank runs nearly dry: some steps end below its bottom, where the root is NaN, and so is its derivative."""
    ts = np.linspace(0, 1, 3)[None]

    def end(inflow):
        field = lambda t, y, u: inflow - 10.0 * jnp.sqrt(y)  # noqa: E731
        given = InitialValueProblem(field, ts, jnp.array([[1.0]]), np.zeros((1, 3, 0)), np.zeros(1))
        solver = nf.Solver("kvaerno3").for_data()
        solution = solver.solve(given, joint=False) if mode == "reverse" else solver.forecast(given)
        return solution.ys[0, -1, 0], solution

    with scope("x64"):
        slope, found = jax.jit((jax.grad if mode == "reverse" else jax.jacfwd)(end, has_aux=True))(0.1)
    assert found.ok.all()
    # At the end the level is steady: `(inflow / 10) ** 2`.
    assert float(found.ys[0, -1, 0]) == pytest.approx(1e-4, rel=1e-2)
    assert float(slope) == pytest.approx(2e-3, rel=1e-2)

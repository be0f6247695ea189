"""Implicit methods on a stiff oscillator: rows of any density, doses, both precisions, gradients, numbers of steps."""

import dataclasses
import functools
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.problems import fit_to
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.data.events import Jumps
from node_fit.runtime.compilation import Compilations, count_calls
from node_fit.runtime.placement import carry, dtype_of, scope
from node_fit.solver import row_by_row
from node_fit.solver.problem import InitialValueProblem
from node_fit.solver.row_by_row import next_step

pytestmark = pytest.mark.slow

STIFFNESS, END, START = 50.0, 20.0, np.array([2.0, 0.0])
DENSITIES = (5, 10, 21, 200)
# Intervals between rows of which Diffrax solves each alone where states jump: those of training include padding.
INTERVALS = {"solve": len(DENSITIES) * (max(DENSITIES) - 1), "forecast": sum(DENSITIES) - len(DENSITIES)}
# The largest error, and the most steps for all four densities together: without doses, and with one, beside a step in
# each interval.
TABLE = {"kvaerno3": (1e-4, 360, 1000), "kvaerno5": (1e-4, 165, 380), "implicit_euler": (3e-3, 2200, 8600)}


class Oscillator(eqx.Module):
    """Van der Pol's. From its start it creeps towards `x = 1`, and returns within 0.01 to its path if it is moved."""

    stiffness: Any

    def __call__(self, t, y, u):
        return jnp.stack([y[1], self.stiffness * (1 - y[0] ** 2) * y[1] - y[0]])


def dose(rows: int) -> tuple[int, np.ndarray]:
    """The row of a dose, and its effect."""
    return rows // 3, np.array([0.3, 1.0])


@functools.cache
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


PAIRS = [("solve", 0, "x64"), ("solve", 1, "x32"), ("forecast", 0, "x32"), ("forecast", 1, "x64")]  # of all values
OTHERS = [("solve", 1, "x64"), ("solve", 0, "x32"), ("forecast", 1, "x32"), ("forecast", 0, "x64")]
CASES = [*PAIRS, *(pytest.param(*case, marks=pytest.mark.long) for case in OTHERS)]


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
    assert found.ok.all()
    for ys, rows in zip(np.asarray(found.ys), DENSITIES, strict=True):
        np.testing.assert_allclose(ys[:rows], exact(rows, bool(dosed)), atol=error)
    assert sum(steps) <= (INTERVALS[way] + most_dosed if dosed else most)
    h, near = 1e-2, 0.03 if method == "implicit_euler" else 0.001
    ends = [sum(exact(rows, bool(dosed), STIFFNESS + by)[-1].sum() for rows in DENSITIES) for by in (-h, h)]
    assert float(slope) == pytest.approx((ends[1] - ends[0]) / (2 * h), rel=near)


def test_a_step_to_states_that_are_not_finite_is_rejected():
    """Diffrax's own controller would make the next step NaN."""
    control = row_by_row.step_control(diffrax.Tsit5(), (1e-5, 1e-7))
    after, error = jnp.array([jnp.inf, 1.0]), jnp.array([jnp.inf, 0.0])
    state = ((jnp.ones(()), jnp.ones(()), False), jnp.ones(()))
    keeps, begin, end, *_ = control.adapt_step_size(0.0, 1.0, jnp.ones(2), after, None, error, 5, state)
    assert not keeps and begin == 0 and 0 < end < 1


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
def test_a_step_out_of_the_domain_of_a_field_is_rejected_and_its_gradient_is_finite(mode):
    """A tank runs nearly dry: some steps end below its bottom, where the root is NaN, and so is its derivative."""

    def end(inflow):
        field = lambda t, y, u: inflow - 1000.0 * jnp.sqrt(y)  # noqa: E731
        ts, start = jnp.linspace(0.0, 1.0, 3)[None], jnp.array([[1.0]])
        given = InitialValueProblem(field, ts, start, jnp.zeros((1, 3, 0)), jnp.zeros(1))
        solver = nf.Solver("kvaerno3").for_data()
        solution = solver.solve(given, joint=False) if mode == "reverse" else solver.forecast(given)
        return solution.ys[0, -1, 0], solution.ok

    with scope("x64"):
        slope, ok = jax.jit((jax.grad if mode == "reverse" else jax.jacfwd)(end, has_aux=True))(0.1)
    assert ok.all()
    # At the end the level is steady: `(inflow / 1000) ** 2`.
    assert float(slope) == pytest.approx(2e-7, rel=1e-2)


@pytest.mark.usefixtures("without_cache")
def test_a_fit_with_an_implicit_method_compiles_once():
    """Neither the first step nor the numbers of steps are constants of a program."""
    data = creeping(10)
    options = {"solver": nf.Solver("kvaerno3"), "recipe": "direct", "steps": 2, "precision": "x64", "window": None}
    fit_to(data, field=known(), **options)
    count = Compilations()
    with count_calls(count):
        fit_to(dataclasses.replace(data, ys=data.ys * (1 + 1e-4)), field=known(), **options)
    assert count.count == 0


def test_the_first_step_is_chosen_again_where_states_jump():
    """A step that suited the states before a dose says nothing of those after it; elsewhere it goes on."""
    before = jnp.array([[1.0, 2.0], [1.0, 2.0]])
    found = next_step(jnp.array([0.5, 0.5]), before, before.at[1, 0].add(3.0))
    np.testing.assert_array_equal(found, [0.5, 0.0])

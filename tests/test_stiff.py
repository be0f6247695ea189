"""Implicit methods on a stiff oscillator: rows of all densities, doses, both precisions, gradients, numbers of steps."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import node_fit as nf
from node_fit.data.events import Jumps
from node_fit.runtime.precision import carry, scope
from node_fit.solver.initial_value_problem import InitialValueProblem

STIFFNESS, END, START = 50.0, 20.0, np.array([2.0, 0.0])
ROWS = (5, 10, 21, 200)
# Steps of a solve of 0 to 20 from row to row, in all four densities together, and the largest error.
TABLE = {"kvaerno3": (400, 1e-5), "kvaerno5": (400, 1e-5), "implicit_euler": (4000, 1e-2)}


class Oscillator(eqx.Module):
    """Van der Pol's. It creeps along `x > 1`, where its time constants are 0.007 and about 75."""

    stiffness: Any

    def __call__(self, t, y, u):
        return jnp.stack([y[1], self.stiffness * (1 - y[0] ** 2) * y[1] - y[0]])


def times(rows: int) -> np.ndarray:
    return np.linspace(0, END, rows)


def dose(rows: int) -> tuple[int, np.ndarray]:
    """The row of a dose, and its effect. It throws the state off the slow part of its path."""
    return rows // 3, np.array([0.3, 1.0])


def exact(rows: int, dosed: bool, stiffness: float = STIFFNESS) -> np.ndarray:
    def rates(t, y):
        return [y[1], stiffness * (1 - y[0] ** 2) * y[1] - y[0]]

    def piece(ts, y):
        if len(ts) < 2:
            return np.asarray(y)[None]
        return solve_ivp(rates, (ts[0], ts[-1]), y, method="Radau", rtol=1e-11, atol=1e-13, t_eval=ts).y.T

    ts = times(rows)
    if not dosed:
        return piece(ts, START)
    row, effect = dose(rows)
    before = piece(ts[: row + 1], START)
    return np.concatenate([before, piece(ts[row:], before[-1] + effect)[1:]])


def problem(dosed: bool, dtype) -> InitialValueProblem:
    """A trajectory for each density, with padding."""
    most = max(ROWS)
    ts = np.stack([np.pad(times(rows), (0, most - rows), mode="edge") for rows in ROWS])
    jumps = None
    if dosed:
        shift = np.zeros((len(ROWS), most, 2))
        for index, rows in enumerate(ROWS):
            row, effect = dose(rows)
            shift[index, row] = effect
        jumps = Jumps(np.ones(shift.shape), shift)
    starts, us = jnp.tile(jnp.asarray(START, dtype), (len(ROWS), 1)), np.zeros((*ts.shape, 0))
    return InitialValueProblem(Oscillator(np.asarray(STIFFNESS)), ts, starts, us, np.zeros(len(ROWS)), None, jumps)


@pytest.fixture
def steps(monkeypatch):
    """Numbers of steps of all solves, of padding too."""
    counts, solve = [], diffrax.diffeqsolve

    def counted(*args, **options):
        solution = solve(*args, **options)
        jax.debug.callback(lambda number: counts.append(int(number)), solution.stats["num_steps"])
        return solution

    monkeypatch.setattr(diffrax, "diffeqsolve", counted)
    return counts


@pytest.mark.parametrize("precision", ["x64", "x32"])
@pytest.mark.parametrize("dosed", [False, True], ids=["smooth", "dosed"])
@pytest.mark.parametrize("way", ["solve", "forecast"])
@pytest.mark.parametrize("method", TABLE)
def test_easy_stiff_data_are_solved(method, way, dosed, precision, steps):
    """With rows of any density: the first step is that of the problem and not the interval between two rows."""
    most, error = TABLE[method]
    # In single precision, Newton's iteration does not come within the default tolerance of this field.
    solver = nf.Solver(method, rtol=None if precision == "x64" else 1e-4).for_data()
    known = [exact(rows, dosed) for rows in ROWS]
    dtype = np.float64 if precision == "x64" else np.float32
    with scope(precision):
        base, at = carry((problem(dosed, dtype), np.asarray(STIFFNESS)), dtype)

        def total(stiffness):
            given = eqx.tree_at(lambda p: p.field.stiffness, base, stiffness)
            solution = solver.solve(given, joint=False) if way == "solve" else solver.forecast(given)
            return jnp.sum(solution.ys[:, -1]), solution

        if way == "solve":
            (_, found), slope = eqx.filter_jit(jax.value_and_grad(total, has_aux=True))(at)
        else:
            _, slope, found = eqx.filter_jit(lambda x: jax.jvp(total, (x,), (jnp.ones_like(x),), has_aux=True))(at)
        jax.effects_barrier()
    print(
        method,
        way,
        dosed,
        precision,
        sum(steps),
        max(steps),
        len(steps),
        found.ok,
        slope,
        [float(np.abs(np.asarray(found.ys)[i, : len(y)] - y).max()) for i, y in enumerate(known)],
    )


def slopes(dosed):
    h = 1e-3
    return sum(
        (exact(rows, dosed, STIFFNESS + h)[-1] - exact(rows, dosed, STIFFNESS - h)[-1]).sum() / (2 * h) for rows in ROWS
    )

"""Whether inputs that change at every row are held between rows, by the responses of known and of unknown states."""

import itertools
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.linalg import expm

import node_fit as nf
from node_fit.data.facts import Facts
from node_fit.fitting import held_inputs
from node_fit.fitting.held_inputs import (
    CLEAR_RATIO,
    EQUATION_ROWS,
    EQUATION_WINDOWS,
    few_rows,
    respond_as_held,
    with_responses,
)
from node_fit.fitting.problem import build_problem

# A room, measured, and its walls, which follow it.
ROOM = {"T": "b*u - k*T + c*w", "w": "d*(T - w)"}
RATES, PUSH, STEP = np.array([[-0.8, 0.5], [0.3, -0.3]]), np.array([1.0, 0.0]), 0.5


def room(kind, noise=0.02, rows=80, inputs="new levels", **more):
    """Rows of the room, for an input that is held or linear between rows; exact but for the noise."""
    rng = np.random.default_rng(6)
    us = rng.uniform(size=rows) if inputs == "new levels" else np.cumsum(rng.normal(size=rows)) / 4
    system = np.zeros((4, 4))
    system[:2, :2], system[:2, 2], system[2, 3] = RATES, PUSH, 1.0
    step, state, ys = expm(system * STEP), np.array([0.5, 0.2]), []
    for u, after in zip(us, np.append(us[1:], us[-1]), strict=True):
        ys.append(state[0])
        state = (step @ [*state, u, 0.0 if kind == "hold" else (after - u) / STEP])[:2]
    ys = np.array(ys) + noise * np.std(ys) * rng.standard_normal(rows)
    ts = STEP * np.arange(rows)
    return nf.Dataset.from_arrays(ts, ys[None, :, None], us[None, :, None], states=["T"], inputs=["u"], **more)


@pytest.mark.parametrize("inputs", ["new levels", "a walk"])
def test_a_linear_system_responds_to_held_inputs_as_such(inputs):
    """The inputs look linear, and their system has a state that is not measured."""
    held, lines = (room(kind, inputs=inputs) for kind in ("hold", "linear"))
    assert held.input_interpolation[0] == lines.input_interpolation[0] == "linear"
    assert respond_as_held(held) > CLEAR_RATIO and respond_as_held(lines) == 1
    options = nf.Options()
    facts = with_responses(Facts.of(held), options, held)
    assert facts.inputs == "hold" and facts.inputs_reason.startswith("with inputs held between rows, the error of a l")
    assert with_responses(Facts.of(lines), options, lines) == Facts.of(lines)


def test_uneven_rows_are_interpolated_first():
    data = room("hold")
    kept = np.delete(np.arange(80), [20, 21, 50])
    parts = {name: getattr(data, name)[:, kept] for name in ("ts", "ys", "us", "scored")}
    assert respond_as_held(replace(data, lengths=np.array([77]), **parts)) > CLEAR_RATIO


@pytest.mark.parametrize(
    "data",
    [
        room("hold", noise=3.0),  # Noise hides the responses.
        room("hold", rows=29),
        replace(room("hold"), us=np.repeat([0.0, 1.0], 40)[None, :, None]),  # It looks held.
        nf.with_events(room("hold"), [{"time": 2.0, "state": "T", "add": 1.0}]),
    ],
    ids=["noise", "few rows", "held", "events"],
)
def test_other_records_keep_what_their_inputs_look_like(data):
    assert respond_as_held(data) == 1


def test_a_failing_trial_fails_no_fit(monkeypatch):
    monkeypatch.setattr(held_inputs, "linear_models", Mock(side_effect=np.linalg.LinAlgError("singular")))
    data = room("hold", rows=79)
    assert with_responses(Facts.of(data), nf.Options(), data) == Facts.of(data)
    monkeypatch.setattr(held_inputs, "score_predictions", lambda *_: SimpleNamespace(nrmse=0.0))
    options = nf.Options(field=known_room(), hidden=["w"])
    assert with_responses(Facts.of(data), options, data) == Facts.of(data)


def test_records_with_doses_stay_whole():
    data = nf.with_events(room("hold", rows=120), [{"time": 2.0, "state": "T", "add": 1.0}])
    assert np.array_equal(few_rows(data).ts, data.ts)


def test_wide_records_and_large_holes_are_not_tried(monkeypatch):
    """Their trials would take longer than some fits, or much memory."""
    data = room("hold", rows=78)
    far = replace(data, ts=data.ts + 1e9 * (np.arange(78) > 40))
    wide = nf.Dataset.from_arrays(data.ts, data.ys, np.repeat(data.us, 5, axis=2))
    monkeypatch.setattr(held_inputs, "linear_models", Mock(side_effect=AssertionError))
    assert respond_as_held(wide) == respond_as_held(far) == 1
    with pytest.raises(AssertionError):
        respond_as_held(data)


def test_a_given_interpolation_is_kept():
    data = room("hold")
    options = nf.Options(solver=nf.Solver(inputs="linear"))
    assert with_responses(Facts.of(data), options, data) == Facts.of(data)


def test_equations_of_a_long_record_are_fitted_to_windows_of_it():
    data = room("hold", rows=1200)
    options = nf.Options(field=known_room(), hidden=["w"]).for_data(data)
    assert few_rows(data).ys.shape == (EQUATION_WINDOWS, EQUATION_ROWS, 1) and few_rows(room("hold")).ys.shape[1] == 80
    assert with_responses(Facts.of(data), options, data).inputs == "hold"
    lines = room("linear", rows=1200)
    assert with_responses(Facts.of(lines), options, lines).inputs == "linear"


def test_means_of_the_past_interval_are_hinted_at():
    """A logger gives the input of the past interval, which equations with the inputs of a row can't follow."""
    options = nf.Options(field=known_room(), hidden=["w"])
    for kind in ("hold", "linear"):
        data = room(kind)
        assert "input_interval" not in with_responses(Facts.of(data), options, data).inputs_reason
    data = room("hold")
    logged = replace(data, us=np.concatenate([data.us[:, :1], data.us[:, :-1]], axis=1))
    reason = with_responses(Facts.of(logged), options, logged).inputs_reason
    assert "held inputs of the next row make the error " in reason and "data.input_interval=before" in reason
    beside = nf.Options(field=partial(nf.Known, equations={"T": "c"}, constants={"c": 1.0}))  # Responds to none.
    assert "input_interval" not in with_responses(Facts.of(data), beside, data).inputs_reason


@pytest.mark.parametrize("kind", ["hold", "linear"])
def test_a_fit_takes_the_inputs_to_which_its_equations_respond(kind):
    """The other way round, too: two levels look held, but are lines between rows here."""
    data, equations, hidden = (room(kind), ROOM, ["w"]) if kind == "hold" else (square(), {"T": "b*u - k*T"}, 0)
    constants = dict.fromkeys("bkcd" if hidden else "bk", 0.7)
    field = partial(nf.Known, equations=equations, constants=constants)
    options = nf.Options(field=field, hidden=hidden, precision="x64").for_data(data)
    problem = build_problem(options, data, None)
    assert problem.options.solver.inputs == kind
    (reason,) = [choice.reason for choice in problem.choices if choice.key == "solver.inputs"]
    where = "held" if kind == "hold" else "on lines"
    assert reason.startswith(f"with inputs {where} between rows, the error of the equations is")


def known_room():
    return partial(nf.Known, equations=ROOM, constants=dict.fromkeys("bkcd", 0.7))


def square():
    """`T' = u - T` for an input that rises and falls between two levels, on lines from row to row."""
    us, ts = np.arange(60) // 6 % 2.0, STEP * np.arange(60)
    ys = [0.3]
    for u, after in itertools.pairwise(us):
        slope = (after - u) / STEP
        ys.append(u + slope * (STEP - 1) + (ys[-1] - u + slope) * np.exp(-STEP))
    noisy = np.array(ys) + 0.01 * np.random.default_rng(0).standard_normal(60)
    return nf.Dataset.from_arrays(ts, noisy[None, :, None], us[None, :, None], states=["T"], inputs=["u"])

"""Known equations fitted by NumPy: SciPy's optimum, jumps, held inputs, and what is left to the solver."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import least_squares

import node_fit as nf
from node_fit.data.events import Events
from node_fit.fitting import uncompiled
from node_fit.fitting.uncompiled import (
    HostEquations,
    HostProblem,
    choose_by_likelihood,
    fit_without_compiling,
    step_times,
)

LOTKA_VOLTERRA = {"x": "a*x - b*x*y", "y": "-c*y + d*x*y"}
TRUE = {"a": 0.8, "b": 0.1, "c": 0.6, "d": 0.05}


def known(equations, constants, **given):
    return partial(nf.Known, equations=equations, constants=constants, **given)


def rates(t, z, a, b, c, d):
    return [a * z[0] - b * z[0] * z[1], -c * z[1] + d * z[0] * z[1]]


def solve(ts, start, constants):
    return solve_ivp(rates, (0, ts[-1]), start, t_eval=ts, args=constants, rtol=1e-9, atol=1e-9).y.T


def prey_and_hunters(noise=0.3):
    """Noisy, with a value missing."""
    ts = np.linspace(0, 15, 60)
    ys = solve(ts, [10, 5], [*TRUE.values()]) + noise * np.random.default_rng(0).standard_normal((60, 2))
    ys[7, 1] = np.nan
    return nf.Dataset.from_arrays(ts, ys[None], states=["x", "y"])


def test_constants_are_those_of_scipy():
    """With starts fitted too, both channels in units of their spread."""
    data = prey_and_hunters()
    ts, ys = data.ts[0], data.ys[0]
    scale = np.nanstd(ys, axis=0)

    def residuals(x):
        return np.nan_to_num((solve(ts, x[4:], x[:4]) - ys) / scale).ravel()

    best = least_squares(residuals, [*TRUE.values(), 10, 5], x_scale="jac").x
    field = known(LOTKA_VOLTERRA, {name: 1.3 * value for name, value in TRUE.items()})
    found = fit_without_compiling(field, {"train": data}, "train")
    np.testing.assert_allclose([*found.constants.values()], best[:4], rtol=3e-3)
    np.testing.assert_allclose(found.at_rows("train")[0], solve(ts, best[4:], best[:4]), rtol=0.02)


def test_another_part_of_the_data_is_predicted_from_its_first_values():
    train, test = prey_and_hunters(), prey_and_hunters(noise=0.0)
    found = fit_without_compiling(known(LOTKA_VOLTERRA, TRUE), {"train": train, "test": test}, "train")
    np.testing.assert_allclose(found.at_rows("test")[0, 0], [10, 5])
    assert np.nanmax(np.abs(found.at_rows("test") - test.ys)) < 2


def test_doses_jump_and_hidden_states_begin_at_zero():
    """Absorption and elimination, in closed form; a second dose in the middle."""
    ts = np.array([0.0, 0.5, 1, 2, 3, 4, 4.5, 5, 6, 8])
    ka, k = 1.5, 0.4
    one = np.where(ts >= 0, ka / (ka - k) * (np.exp(-k * ts) - np.exp(-ka * ts)), 0)
    late = np.maximum(ts - 4, 0)
    two = ka / (ka - k) * (np.exp(-k * late) - np.exp(-ka * late))
    shift = np.zeros((1, ts.size, 1))
    shift[0, [0, 5]] = 10.0
    data = nf.Dataset.from_arrays(ts, 10 * (one + two)[None, :, None], states=["c"])
    data = replace(data, events=Events(("depot",), np.ones_like(shift), shift))
    field = known({"depot": "-ka*depot", "c": "ka*depot - k*c"}, {"ka": 1.0, "k": [0.2, 0, 1]})
    found = fit_without_compiling(field, {"train": data}, "train")
    assert found.constants == pytest.approx({"ka": ka, "k": k}, rel=0.01)


def test_limits_are_no_measurements():
    """A tail below a limit of detection is not at the limit."""
    ts = np.linspace(0, 10, 21)
    ys = np.maximum(10 * np.exp(-0.8 * ts), 0.5)[None, :, None]
    data = nf.Dataset.from_arrays(ts, ys, states=["c"], censored=np.where(ys == 0.5, -1, 0))
    found = fit_without_compiling(known({"c": "-k*c"}, {"k": 0.3}), {"train": data}, "train")
    assert found.constants["k"] == pytest.approx(0.8, rel=1e-3)


def test_draws_find_constants_that_the_first_values_do_not():
    """The sum of squares over a frequency has many minima."""
    ts, w = np.linspace(0, 12, 80), 4.0
    data = nf.Dataset.from_arrays(ts, np.stack([np.cos(w * ts), -w * np.sin(w * ts)], axis=-1)[None], states=["x", "v"])
    field = known({"x": "v", "v": "-w^2*x"}, {"w": 1.0})
    alone, drawn = (fit_without_compiling(field, {"train": data}, "train", draws=draws) for draws in (0, 256))
    assert abs(alone.constants["w"] - w) > 1
    assert drawn.constants["w"] == pytest.approx(w, rel=1e-3)


@pytest.mark.parametrize("held", [True, False])
def test_inputs_are_held_or_linear_as_they_look(held):
    ts, us = np.arange(9.0), np.repeat([0.0, 2.0, 1.0], 3) if held else np.sin(np.arange(9.0))
    data = nf.Dataset.from_arrays(ts, np.ones((1, 9, 1)), us[None, :, None], states=["x"], inputs=["u"])
    problem = HostProblem(HostEquations.of(known({"x": "u"}, {}), data), data, 4, data.held_inputs)
    found = problem.simulate(np.zeros((1, 0)), np.ones((1, 1, 1)))[0, 0, ::4, 0]
    areas = us[:-1] if held else (us[1:] + us[:-1]) / 2
    np.testing.assert_allclose(found, 1 + np.concatenate([[0], np.cumsum(areas)]))


def stirred(kind, noise=0.02):
    """`x' = 2*u - 0.4*x`, with a new level of the input at each row, which is held or linear until the next."""
    ts, rng = 0.5 * np.arange(60), np.random.default_rng(4)
    us, x, fade = rng.uniform(size=60), [1.0], np.exp(-0.4 * 0.5)
    for u, after in itertools.pairwise(us):
        slope = 0.0 if kind == "hold" else (after - u) / 0.5
        path = lambda t, u=u, slope=slope: 2 * (u + slope * t) / 0.4 - 2 * slope / 0.4**2  # noqa: E731
        x.append(path(0.5) + (x[-1] - path(0.0)) * fade)
    ys = np.array(x) + noise * rng.standard_normal(60)
    return nf.Dataset.from_arrays(ts, ys[None, :, None], us[None, :, None], states=["x"], inputs=["u"])


@pytest.mark.parametrize("kind", ["hold", "linear"])
def test_the_likelihood_tells_held_inputs_from_others(kind):
    """The inputs look linear; taken so where they are held, they are off by a twentieth."""
    data, field = stirred(kind), known({"x": "b*u - k*x"}, {"b": 1.0, "k": 1.0})
    found, looks = (
        fit_without_compiling(field, {"train": data}, "train", inputs=inputs) for inputs in ("auto", "linear")
    )
    assert (found.inputs, found.gain > 5) == (kind, kind == "hold")
    assert found.constants == pytest.approx({"b": 2.0, "k": 0.4}, rel=0.02)
    assert (looks.constants["k"] < 0.385) == (kind == "hold")


@pytest.mark.parametrize(
    ("rows", "ratio", "chosen"),
    [(60, 1.2, "hold"), (20, 1.2, "linear"), (60, 0.5, "linear"), (2000, 1.04, "linear"), (2000, 1.06, "hold")],
    ids=["clear", "few rows", "worse", "nearly as good", "many rows"],
)
def test_only_a_clearly_better_interpolation_is_chosen(rows, ratio, chosen):
    data = nf.Dataset.from_arrays(np.arange(float(rows)), np.ones((rows, 1)))
    off = np.random.default_rng(0).standard_normal(rows)
    found, gain = choose_by_likelihood(data, {"linear": off, "hold": off / ratio})
    assert found == chosen and gain == pytest.approx(ratio if chosen == "hold" else 1.0)


def test_a_state_with_little_noise_weighs_by_its_values():
    """Each state has noise of its own, so the ratios of their errors count, and not the sizes of the errors."""
    data = nf.Dataset.from_arrays(np.arange(60.0), np.ones((60, 2)))
    off = np.random.default_rng(0).standard_normal((60, 2)) * [1.0, 0.01]
    assert choose_by_likelihood(data, {"linear": off.ravel(), "hold": (off * [0.9, 2.0]).ravel()})[0] == "linear"


def test_time_is_a_name_and_steps_end_at_rows():
    data = nf.Dataset.from_arrays(np.array([0.0, 1, 3]), np.ones((1, 3, 1)), states=["x"], time="t")
    problem = HostProblem(HostEquations.of(known({"x": "2*t"}, {}), data), data, 4)
    np.testing.assert_allclose(problem.simulate(np.zeros((1, 0)), np.ones((1, 1, 1)))[0, 0, ::4, 0], [1, 2, 10])
    np.testing.assert_allclose(step_times(data.ts, 2), [[0, 0.5, 1, 2, 3]])


@pytest.mark.parametrize(
    "field",
    [
        nf.MLP,
        known({"x": "-k*x"}, {"k": 1.0}, local={"k": "trajectory"}),
        known({"x": "-k*x"}, {"k": 1.0}, triggers=[{"when": "x", "set": {"x": "1"}}]),
        known({"x": "-k*x + unknown"}, {"k": 1.0}),
        known({"x": "-k*x", "y": "x"}, {"k": 1e6}),
        known({"other": "-k*other"}, {"k": 1.0}),
    ],
    ids=["a network", "a local constant", "a trigger", "a name", "a stiff equation", "another state"],
)
def test_other_fields_have_no_such_fit(field):
    data = nf.Dataset.from_arrays(np.linspace(0, 4, 9), np.ones((1, 9, 1)), states=["x"])
    assert fit_without_compiling(field, {"train": data}, "train") is None


@pytest.mark.parametrize("limit", ["MAX_HOST_STEPS", "MAX_HOST_VALUES"])
def test_many_rows_have_no_such_fit(limit, monkeypatch):
    monkeypatch.setattr(uncompiled, limit, 8)
    data = nf.Dataset.from_arrays(np.linspace(0, 4, 9), np.ones((1, 9, 1)), states=["x"])
    assert fit_without_compiling(known({"x": "-k*x"}, {"k": 1.0}), {"train": data}, "train") is None


def test_long_records_take_fewer_steps_where_these_are_exact_enough():
    ts = np.linspace(0, 4, 201)
    data = nf.Dataset.from_arrays(ts, np.exp(-ts)[None, :, None], states=["x"])
    found = fit_without_compiling(known({"x": "-k*x"}, {"k": 0.5}), {"train": data}, "train")
    assert found.steps == 1 and found.constants["k"] == pytest.approx(1, rel=1e-3)
    fast = known({"x": "-k*x + 300*sin(300*t)"}, {"k": [0.5, 0, 1]})
    assert fit_without_compiling(fast, {"train": data}, "train") is None, "a step is a whole turn of the input"

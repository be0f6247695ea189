"""Predictions of known equations in NumPy: equal to compiled ones, and left to them where NumPy can't solve."""

import threading
from dataclasses import replace

import equinox as eqx
import numpy as np
import pandas as pd
import pytest

import node_fit as nf
from node_fit.fitting.problem import build_problem
from node_fit.model import host_rollout
from node_fit.model.ensemble import Ensemble
from node_fit.model.host_rollout import predict_without_compiling
from node_fit.runtime import compilation

SEED = 3
PREY = nf.Known(
    equations={"x": "a*x - b*x*v", "v": "-c*v + d*x*v"}, constants={"a": [1.0, 0, 3], "b": 0.5, "c": 0.8, "d": 0.3}
)


@pytest.fixture
def command(monkeypatch):
    """A process that ends soon, once it is set."""
    ends_soon = threading.Event()
    monkeypatch.setattr(compilation, "ENDS_SOON", ends_soon)
    return ends_soon


def table(trajectories, rows=8, **columns):
    """Uneven rows of smooth positive signals, the first row of each trajectory at its own time."""
    parts, rng = [], np.random.default_rng(SEED)
    for number in range(trajectories):
        t = number + np.sort(rng.uniform(0, 4, rows))
        parts.append(pd.DataFrame({"id": number, "t": t} | {name: signal(t) for name, signal in columns.items()}))
    return pd.concat(parts)


def prey(**options):
    frame = table(2, x=lambda t: 2 + np.sin(t), v=lambda t: 2 + np.cos(t))
    frame.iloc[3, 2] = frame.iloc[9, 3] = np.nan
    return nf.from_frame(frame, time="t", states=["x", "v"], trajectory="id"), nf.Options(field=PREY, **options)


def heater(inputs, start="fitted"):
    frame = table(1, 20, T=lambda t: 20 + np.sin(t), u=lambda t: np.sin(3 * t))
    field = nf.Known(equations={"T": "-k*(T - 20) + w", "w": "u - l*w"}, constants={"k": 0.2, "l": 0.3})
    data = nf.from_frame(frame, time="t", states=["T"], inputs=["u"])
    return data, nf.Options(field=field, hidden=["w"], start=start, solver=nf.Solver(inputs=inputs))


def two_inputs(inputs):
    frame = table(1, 20, T=lambda t: 20 + np.sin(t), u=lambda t: np.sin(3 * t), room=lambda t: 20 + np.cos(2 * t))
    field = nf.Known(equations={"T": "-k*(T - room) + u"}, constants={"k": 0.2})
    data = nf.from_frame(frame, time="t", states=["T"], inputs=["u", "room"])
    return data, nf.Options(field=field, solver=nf.Solver(inputs=inputs))


def doses():
    data = nf.from_frame(table(2, conc=lambda t: 1 + 0 * t), time="t", states=["conc"], trajectory="id")
    field = nf.Known(equations={"gut": "-ka*gut", "conc": "ka*gut - k*conc"}, constants={"ka": 1.5, "k": 0.4})
    first, last = data.ts[:, 0].max(), data.ts[:, -1].min()
    times = first + (last - first) * np.array([0.2, 0.6])
    dose = [{"time": times[0], "state": "gut", "add": 3.0}, {"time": times[1], "state": "gut", "set": 1.0}]
    return nf.with_events(data, dose), nf.Options(field=field, hidden=["gut"])


CASES = {
    "two states with bounds and gaps": lambda: prey(scaling=nf.Scaling(bounds={"x": [0.0, 9.0]}, log=["v"])),
    "fitted starts": lambda: prey(start="fitted"),
    "first rows": lambda: prey(start="first"),
    "held input and a hidden state": lambda: heater("hold"),
    "linear input and first rows": lambda: heater("linear", "first"),
    "cubic input": lambda: heater("cubic"),
    "a held input beside a linear one": lambda: two_inputs(["hold", "linear"]),
    "a held input beside a cubic one": lambda: two_inputs(["hold", "cubic"]),
    "doses": doses,
}


def model_of(data, options):
    options = replace(options, precision="x64").for_data(data)
    with options.place.scope():
        return options.place.one(build_problem(options, data, None).model)


@pytest.mark.parametrize("name", list(CASES))
def test_predictions_equal_compiled_ones(name, command):
    data, options = CASES[name]()
    model = model_of(data, options)
    ts = np.sort(np.concatenate([data.ts[:, :1] - 1, data.ts, data.ts[:, -1:] + 0.5, data.ts[:, :1] + 0.37], axis=1))
    compiled = model.bands(data, ts)
    command.set()
    given = model.prediction_request(data, ts)
    assert predict_without_compiling([model], *given) is not None
    host = model.bands(data, ts)
    np.testing.assert_allclose(host.ys, compiled.ys, rtol=1e-6, atol=1e-7)
    assert np.isnan(host.ys[:, 0]).all()
    if compiled.hidden is not None:
        np.testing.assert_allclose(host.hidden, compiled.hidden, rtol=1e-6, atol=1e-6)


def heat(**changes):
    frame = table(1, 20, T=lambda t: 20 + np.sin(t))
    field = nf.Known(equations={"T": changes.pop("T", "-k*(T - 20)")}, constants={"k": 0.2})
    data = nf.from_frame(frame, time="t", states=["T"])
    return data, nf.Options(field=field, **changes)


def test_bands_of_an_ensemble_equal_compiled_ones(command):
    """Also with the noise that members add to the rows of their starts."""
    data, options = heat(start="fitted", ensemble=nf.Members(vary="laplace", size=5), effort="quick")
    fit = nf.fit(data, options=replace(options, precision="x64"))
    assert isinstance(fit.model, Ensemble)
    compiled = fit.model.bands(data)
    command.set()
    assert predict_without_compiling(fit.model.members, *fit.optimum.prediction_request(data, None)) is not None
    host = fit.model.bands(data)
    for part in ("ys", "lower", "upper"):
        np.testing.assert_allclose(getattr(host, part), getattr(compiled, part), rtol=1e-5)


def is_predicted(data, options, command):
    model = model_of(data, options)
    command.set()
    return predict_without_compiling([model], *model.prediction_request(data, None)) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"solver": nf.Solver("kvaerno5", stepping="adaptive")},
        {"start": "steady"},
        {"T": "piecewise(-k*T, t > 2, -2*k*T)"},
        {"T": "-1e9*(T - k*cos(3*t))"},  # stiff
        {"T": "k*T^3"},  # infinite after a while
        {"scaling": nf.Scaling(angles=["T"])},
    ],
    ids=["implicit", "another start", "switch", "stiff", "diverges", "angle"],
)
def test_other_models_and_stiff_ones_are_left_to_compiled_programs(changes, command):
    assert is_predicted(*heat(), command)
    command.clear()
    assert not is_predicted(*heat(**changes), command)


def test_a_session_compiles_since_it_may_predict_often(command):
    data, options = heat()
    model = model_of(data, options)
    assert predict_without_compiling([model], *model.prediction_request(data, None)) is None


@pytest.mark.parametrize("limit", ["MAX_INTERVALS", "MAX_SOLVED", "MAX_SEARCHED_STARTS"])
def test_large_problems_are_compiled(limit, command, monkeypatch):
    monkeypatch.setattr(host_rollout, limit, 0)
    assert not is_predicted(*heat(), command)


@pytest.fixture
def steps(monkeypatch):
    """A list with an entry for each step."""
    taken, adapt = [], host_rollout.AdaptiveSteps.adapt

    def count(self, length, size):
        taken.append(size)
        adapt(self, length, size)

    monkeypatch.setattr(host_rollout.AdaptiveSteps, "adapt", count)
    return taken


def test_a_solution_that_diverges_ends_long_before_the_most_steps(command, steps):
    assert not is_predicted(*heat(T="k*T^3", start="first"), command)
    assert len(steps) < host_rollout.MAX_ADAPTIVE_STEPS / 4


def test_the_number_of_steps_follows_the_tolerance(command, steps):
    """Of order 5: a thousandth of the error takes about four times the steps."""
    data, options = heat(T="k*(20 + 20*sin(9*t) - T)", start="first")
    model = model_of(data, options)
    command.set()
    ts = data.ts[:, [0, -1]]
    counts, ends = [], []
    for rtol in (1e-6, 1e-9, 1e-12):
        tight = eqx.tree_at(
            lambda m: (m.solver.rtol, m.solver.atol), model, (rtol, rtol), is_leaf=lambda leaf: leaf is None
        )
        steps.clear()
        ends.append(tight.predict(data, ts)[0, -1, 0])
        counts.append(len(steps))
    assert 2 < counts[2] / counts[1] < 6
    assert abs(ends[1] - ends[2]) < abs(ends[0] - ends[2]) / 100

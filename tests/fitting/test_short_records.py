"""Short records: equations of few terms come first, and no network is fitted where they leave nothing but noise."""

import dataclasses
import functools
from unittest.mock import Mock

import numpy as np
import pytest

import node_fit as nf
from node_fit.fitting import judge, problem, race, short_records
from node_fit.fitting.candidates import (
    MOST_WHOLE_ROWS,
    SECOND_ORDER,
    begins_with_equations,
    begins_with_linear_system,
    of_linear_system,
)
from node_fit.fitting.problem import NoEquations, build_problem
from node_fit.fitting.resolve import CHUNK
from node_fit.fitting.result import Fit
from node_fit.model.observation import NetworkReadout
from node_fit.sysid.initialize import LARGEST_GROWTH, path


def decay(rows=40, states=1, noise=0.02, inputs=0, **more):
    """Noisy decays to 0, of one rate for each state."""
    ts = np.linspace(0, 4, rows)
    ys = np.exp(-ts[:, None] * (0.5 + np.arange(states)))
    us = np.random.default_rng(1).normal(size=(1, rows, inputs)) if inputs else None
    noisy = ys + noise * np.random.default_rng(0).normal(size=ys.shape)
    return nf.Dataset.from_arrays(more.pop("ts", ts), noisy[None], us, **more)


@pytest.mark.parametrize(
    ("data", "options", "may"),
    [
        (decay(), {}, True),
        (decay(), {"hidden": 0}, True),
        (decay(30, 3), {}, True),
        (decay(30, 4), {}, False),
        (decay(30, 3, inputs=1), {}, True),
        (decay(30, 3, inputs=2), {}, False),
        (decay(11), {}, False),
        (decay(200), {}, False),
        (decay(ts=np.geomspace(1e-4, 1e3, 40)), {}, False),
        (decay(), {"discover": False}, False),
        (decay(), {"hidden": 1}, False),
        (decay(), {"field": nf.Linear}, False),
        (decay(), {"field": functools.partial(nf.MLP, width=8)}, False),
        (decay(), {"observation": NetworkReadout, "hidden": 1}, False),
    ],
)
def test_equations_come_first_where_few_values_are_of_few_measured_variables(data, options, may):
    assert begins_with_equations(nf.Options(**options), data) is may


class Told(nf.Callback):
    def __init__(self):
        self.calls, self.steps, self.begins = [], [], 0

    def on_fit_start(self, model, notes):
        self.calls.append(type(model.field).__name__)

    def on_opening(self, name):
        self.calls.append(name)

    def on_attempt(self, name, why):
        self.calls.append((name, why))
        self.begins = self.begins or len(self.steps)

    def on_chunk_end(self, records, state):
        self.steps += [record.step for record in records]


@pytest.mark.slow
def test_no_network_is_fitted_where_equations_leave_nothing_but_noise(caplog):
    """What is odd in the data is said all the same."""
    told, data = Told(), decay(inputs=1)
    data.us[:] = 1.0
    fit = nf.fit(data, callbacks=[told], progress=False)
    assert "'u0' is 1 throughout the training data" in fit.warnings[0]
    assert [each.getMessage() for each in caplog.records] == list(fit.warnings)
    assert [(each.name, each.verdict, each.kept) for each in fit.attempts] == [("equations", "noise-limited", True)]
    assert told.calls == ["equations", "Known"]
    assert list(fit.constants.values()) == pytest.approx([-0.5], abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("found", [True, False])
def test_a_network_follows_where_equations_are_not_enough_and_none_are_searched_again(monkeypatch, caplog, found):
    """Equations that are good, but leave more than noise; and a record in which none are found."""
    monkeypatch.setattr(judge, "noise_share", lambda train: 0.0)
    searches = []
    build = short_records.build_problem

    def build_problem(*arguments, **more):
        searches.append(arguments)
        if not found:
            raise NoEquations("no equation explains the record.")
        return build(*arguments, **more)

    monkeypatch.setattr(short_records, "build_problem", build_problem)
    monkeypatch.setattr(race, "MOST_ATTEMPTS", {"normal": 1})
    told = Told()
    fit = nf.fit(decay(noise=0.0), callbacks=[told], progress=False)
    assert len(searches) == 1
    said = [] if found else ["equations: no equation explains the record."]
    assert [each.getMessage() for each in caplog.records if each.name.endswith("short_records")] == said
    names = [each.name for each in fit.attempts]
    assert names[0] == "as chosen" and names.count("equations") == int(found)
    opening = ["equations", "Known", "MLP", ("as chosen", "equations is good")]
    assert told.calls[:4] == opening if found else told.calls[:2] == ["as chosen", "MLP"]
    if found:
        last, first = told.steps[told.begins - 1 : told.begins + 1]
        assert first - last == CHUNK, "the steps of a network count on from those of the equations"


@pytest.mark.slow
def test_a_fit_of_equations_that_fails_leaves_the_network(monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("out of order")

    monkeypatch.setattr(short_records, "judge_attempt", fail)
    monkeypatch.setattr(race, "MOST_ATTEMPTS", {"normal": 0})
    told = Told()
    fit = nf.fit(decay(), callbacks=[told], progress=False)
    assert [each.name for each in fit.attempts] == ["as chosen"]
    assert told.calls == ["equations", "Known", "as chosen", "MLP"]
    assert "equations: out of order" in caplog.messages


@pytest.mark.slow
def test_a_network_that_is_interrupted_after_equations_leaves_these_and_says_so(monkeypatch):
    monkeypatch.setattr(judge, "noise_share", lambda train: 0.0)

    class Stop(nf.Callback):
        def on_attempt(self, name, why):
            self.stops = True

        def on_chunk_end(self, records, state):
            if hasattr(self, "stops"):
                raise KeyboardInterrupt

    fit = nf.fit(decay(noise=0.0), callbacks=[Stop()], progress=False)
    assert fit.status == "interrupted"
    assert [(each.name, each.kept) for each in fit.attempts] == [("as chosen", False), ("equations", True)]


def lagging(rows=100, lags=1, noise=0.02, bend=0.0, direct=0.0):
    """What follows an input by hidden lags, from a random input that is held for five rows, and a direct part of it."""
    draw = np.random.default_rng(3)
    us, states, ys = np.repeat(draw.uniform(0, 1, rows // 5), 5), np.full(lags + 1, 0.5), np.zeros(rows)
    for row in range(rows):
        ys[row] = states[0] + direct * us[row]
        for _ in range(20):
            before = np.append(states[1:], us[row])
            states = states + 0.02 * np.linspace(0.4, 1.2, lags + 1) * (before - states - bend * states**3)
    noisy = ys + noise * ys.std() * draw.standard_normal(rows)
    return nf.Dataset.from_arrays(0.4 * np.arange(rows), noisy[None, :, None], us[None, :, None]), ys


@pytest.mark.parametrize(
    ("rows", "options", "may"),
    [
        (100, {}, True),
        (25, {}, False),
        (195, {}, False),
        (100, {"hidden": 1}, False),
        (100, {"start": nf.First}, False),
        (100, {"field": functools.partial(nf.MLP, width=8)}, False),
        (100, {"observation": NetworkReadout}, False),
    ],
)
def test_a_linear_system_comes_before_a_network_in_short_driven_records(rows, options, may):
    assert begins_with_linear_system(nf.Options(**options), lagging(rows)[0]) is may
    assert not begins_with_linear_system(nf.Options(**options), decay(rows))


def fed(rows=150, noise=0.01):
    """A prey that is fed at rates which are held for ten rows, and its predator."""
    draw = np.random.default_rng(5)
    us, state, ys = np.repeat(draw.choice([0.5, 1.0, 2.0], rows // 10), 10), np.array([1.0, 1.0]), np.zeros((rows, 2))
    for row in range(rows):
        ys[row] = state
        for _ in range(40):
            meets = 0.4 * state[0] * state[1]
            state = state + 0.01 * np.array([us[row] - 0.3 * state[0] - meets, meets - 0.4 * state[1]])
    noisy = ys + noise * ys.std(axis=0) * draw.standard_normal(ys.shape)
    return nf.Dataset.from_arrays(0.4 * np.arange(rows), noisy[None], us[None, :, None])


def test_equations_of_few_values_come_before_linear_systems_and_of_more_after_them():
    linear = [*short_records.LINEAR_SYSTEMS.values()]
    for rows, names in ((80, ["equations", *linear]), (150, [*linear, "equations"]), (200, [])):
        openings = short_records.list_openings(nf.Options(), fed(rows))
        assert [opening.name for opening in openings] == names, rows
    assert short_records.list_openings(nf.Options(), fed())[-1].options.start.keywords == {"given": None}
    assert len(short_records.list_openings(nf.Options(discover=False), fed())) == 2


@pytest.mark.slow
def test_no_network_is_fitted_to_a_driven_record_of_which_equations_leave_but_noise():
    told = Told()
    fit = nf.fit(fed(), callbacks=[told], progress=False)
    assert "MLP" not in told.calls and fit.attempts[-1].name == "equations" and fit.attempts[-1].kept
    assert {round(abs(value), 1) for value in fit.constants.values()} <= {0.3, 0.4, 1.0}


@pytest.mark.parametrize(
    ("verdict", "error", "enough"),
    [("noise-limited", 0.5, True), ("good", 0.012, True), ("good", 0.014, False), ("close", 0.001, False)],
)
def test_good_equations_are_enough_if_they_leave_little_more_than_noise(verdict, error, enough, monkeypatch):
    monkeypatch.setattr(judge, "noise_share", lambda train: 0.01)
    model = Mock(typical=Mock(hidden=()))
    fit = Mock(spec=Fit, model=model, data={"train": fed()}, options=nf.Options(field=nf.Sparse, hidden=0))
    judged = judge.Judged(fit, judge.Attempt("equations", verdict, 0.01, error, None, None, 0.0), error)
    assert short_records.is_enough(judged) is enough
    assert not short_records.is_enough(dataclasses.replace(judged, runs_away=True))
    network = dataclasses.replace(judged, attempt=dataclasses.replace(judged.attempt, name="as chosen"))
    assert short_records.is_enough(network) is (verdict == "noise-limited")


@pytest.mark.parametrize("rows", [195, 1000, 2005])
def test_a_longer_record_begins_with_a_linear_system_if_it_responds_at_once(rows):
    direct, plain = lagging(rows, direct=0.5)[0], lagging(rows)[0]
    assert begins_with_linear_system(nf.Options(), direct) is (rows <= MOST_WHOLE_ROWS)
    assert not begins_with_linear_system(nf.Options(), plain)


@pytest.mark.parametrize(("bend", "hidden"), [(0.0, [1]), (6.0, [])])
def test_a_longer_record_begins_with_a_linear_system_if_a_linear_model_leaves_but_noise(bend, hidden):
    train, validation, _ = lagging(500, noise=0.01, bend=bend)[0].split()
    openings = short_records.list_openings(nf.Options(), train, validation)
    assert [opening.options.hidden for opening in openings] == hidden
    assert short_records.list_openings(nf.Options(start=nf.First), train, validation) == []


@pytest.mark.slow
def test_no_network_is_fitted_to_a_longer_record_of_which_a_linear_system_leaves_but_noise():
    train, validation, test = lagging(500, noise=0.01)[0].split()
    told = Told()
    fit = nf.fit(train, validation=validation, callbacks=[told], progress=False)
    assert "MLP" not in told.calls and [each.name for each in fit.attempts] == ["linear system"]
    assert fit.score(test).nrmse < 0.015


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "direct"), [(100, 0.0), (100, 0.5), (400, 0.5)])
def test_a_linear_system_begins_as_a_linear_model_of_the_record(rows, direct):
    """A network of the same form begins at zero."""
    data, exact = lagging(rows, direct=direct)
    options = nf.Options(observation=nf.DirectReadout if direct else nf.MeasuredStates)
    begun = build_problem(of_linear_system(options, data, 1), data, None)
    off = begun.model.predict(data)[0, :, 0] - exact
    assert np.sqrt(np.mean(off[10:] ** 2)) < 0.1 * exact.std()


@pytest.mark.slow
def test_a_linear_system_begins_stable_where_the_linear_model_runs_away(monkeypatch):
    """A linear model that fits windows of a record can grow over the whole; steps from there take seconds."""
    data = fed()
    options = of_linear_system(nf.Options(), data, 1)
    linear = build_problem(options, data, None).linear
    grows = dataclasses.replace(linear, system=linear.system._replace(a=0.1 * np.eye(3)))
    model, _ = problem.first_model(problem.resolve(options, problem.Facts.of(data)).options, data, grows)
    weight = np.asarray(path(model).layer.weight)[:, :3]
    step = data.median_step / float(model.scaler.time_scale)
    np.testing.assert_allclose(weight * step, LARGEST_GROWTH / 150 * np.eye(3), rtol=1e-5)


@pytest.mark.slow
def test_what_responds_to_a_held_input_at_once_is_read_with_it():
    data, exact = lagging(direct=0.5)
    told = Told()
    fit = nf.fit(data, callbacks=[told], progress=False)
    assert [(each.name, each.kept) for each in fit.attempts] == [("linear system", True)]
    assert fit.attempts[0].keys == ("field", "hidden", "observation")
    assert any("y0 changes with an input at once, by 0.49 of u0" in str(choice) for choice in fit.choices)
    off = fit.predict(data)[0, :, 0] - exact
    assert np.sqrt(np.mean(off[10:] ** 2)) < 0.02 * exact.std()
    readout = fit.model.typical.observation
    scaler = fit.model.typical.scaler
    scale = np.asarray(scaler.state_scale)[:, None] / np.asarray(scaler.input_scale)
    np.testing.assert_allclose(np.asarray(readout.direct) * scale, 0.5, rtol=0.1)


@pytest.mark.slow
def test_a_network_that_is_read_with_inputs_follows_a_linear_system_that_is_not_enough():
    """A hidden lag that bends, and a direct part: the network begins with the latter, and ends the search."""
    data, exact = lagging(150, lags=0, noise=0.01, bend=6.0, direct=0.8)
    told = Told()
    fit = nf.fit(data, callbacks=[told], progress=False)
    assert [(each.name, each.kept) for each in fit.attempts] == [
        ("linear system", False),
        ("network read with inputs", True),
    ]
    off = fit.predict(data)[0, :, 0] - exact
    assert np.sqrt(np.mean(off[10:] ** 2)) < 0.03 * exact.std()


@pytest.mark.slow
def test_a_hidden_lag_is_a_hidden_state_of_a_linear_system():
    data, exact = lagging()
    told = Told()
    fit = nf.fit(data, callbacks=[told], progress=False)
    assert [each.name for each in fit.attempts][-1] == "linear system" and fit.attempts[-1].kept
    assert told.calls[-2:] == ["linear system", "Linear"]
    assert len(fit.model.typical.hidden) == 1
    off = fit.predict(data)[0, :, 0] - exact
    assert np.sqrt(np.mean(off[10:] ** 2)) < 0.02 * exact.std()


@pytest.mark.slow
def test_a_larger_linear_system_follows_one_that_is_not_enough_and_steps_count_on():
    data, _ = lagging(120, lags=2, noise=0.005)
    told = Told()
    fit = nf.fit(data, callbacks=[told], progress=False)
    assert [each.name for each in fit.attempts][-2:] == ["linear system", "larger linear system"]
    assert len(fit.model.typical.hidden) == 2 and fit.attempts[-1].kept
    assert told.steps == sorted(told.steps)


@pytest.mark.slow
def test_a_linear_system_that_leaves_more_than_noise_does_not_end_the_search(monkeypatch):
    monkeypatch.setattr(race, "MOST_ATTEMPTS", {"normal": 4})
    told = Told()
    nf.fit(lagging(120, noise=0.003, bend=6.0)[0], callbacks=[told], progress=False)
    assert "MLP" in told.calls
    names = [call[0] for call in told.calls if isinstance(call, tuple)]
    assert SECOND_ORDER in names

"""Fits of known equations in NumPy: equal to compiled ones, also if interrupted; large ones are compiled."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from helpers.callbacks import GoOn, Stop, assert_equal, rows

import node_fit as nf
from node_fit.minimize.host import LinearisedPoint
from node_fit.runtime import compilation
from node_fit.training import host_programs
from node_fit.training.host_programs import HostPrograms, take_damped_step
from node_fit.training.programs import StagePrograms

RNG = np.random.default_rng(5)
TS = np.sort(RNG.uniform(0, 4, (2, 15)), axis=1)
DATA = nf.Dataset.from_arrays(
    TS, (np.array([2.0, 3.0])[:, None] * np.exp(-0.9 * TS) + 0.02 * RNG.normal(size=TS.shape))[..., None], states=["x"]
)
OPTIONS = nf.Options(
    field=nf.Known(equations={"x": "-k*x + c"}, constants={"k": [0.3, 0, None], "c": 0.1}),
    precision="x64",
    effort="quick",
)


@pytest.fixture
def command(monkeypatch):
    """A process that ends soon, once it is set."""
    ends_soon = threading.Event()
    monkeypatch.setattr(compilation, "ENDS_SOON", ends_soon)
    return ends_soon


@pytest.fixture
def kinds(monkeypatch):
    """The classes of the programs of each loop, in order."""
    made, make = [], host_programs.make_programs

    def watch(index, setup):
        made.append(type(programs := make(index, setup)))
        return programs

    monkeypatch.setattr("node_fit.training.loop.make_programs", watch)
    return made


def fit(*callbacks, data=DATA, **changes):
    return nf.fit(data, options=replace(OPTIONS, **changes), callbacks=callbacks)


def test_constants_and_intervals_equal_compiled_ones(command, kinds):
    weighted = replace(DATA, sigma=np.where(DATA.ys > 1, 0.04, 0.02))
    for data in (DATA, weighted):
        command.clear()
        compiled = fit(data=data)
        command.set()
        host = fit(data=data)
        assert kinds[-2:] == [StagePrograms, HostPrograms]
        assert host.compiles == 0
        assert host.status == "converged"
        for name, interval in host.confidence().constants.items():
            other = compiled.confidence().constants[name]
            width = other.upper - other.lower
            # Compiled solves are within the looser tolerance of training.
            assert abs(host.constants[name] - compiled.constants[name]) < 2e-3 * width
            assert interval.upper - interval.lower == pytest.approx(width, rel=1e-3)


def test_interrupted_equals_uninterrupted(command, kinds, tmp_path):
    """Bit for bit, through a file, at the end of every chunk."""
    command.set()
    short = nf.Training(chunk_steps=40)  # two steps
    whole = fit(training=short)
    assert len(whole.history) > 2
    for after in range(1, len(whole.history)):
        folder = tmp_path / str(after)
        part = fit(Stop(folder, after), training=short)
        assert part.status == "interrupted"
        rest = fit(GoOn(folder), training=short)
        assert rows(part.history) + rows(rest.history) == rows(whole.history)
        assert_equal(rest.optimum or rest.model, whole.optimum or whole.model)
    assert set(kinds) == {HostPrograms}


def test_small_steps_are_counted_across_chunks(command):
    """Chunks of two steps never have five small ones."""
    command.set()
    whole = fit(training=nf.Training(chunk_steps=40))
    assert len(whole.history) >= whole.steps / 2
    assert whole.status == "converged"
    assert "damped steps" in whole.reason


def test_a_compiled_fit_is_resumed_compiled(command, kinds, tmp_path):
    fit(Stop(tmp_path, 1))
    command.set()
    rest = fit(GoOn(tmp_path))
    assert rest.status == "converged"
    assert rest.constants["k"] == pytest.approx(fit().constants["k"], rel=1e-3)
    assert kinds[0] is StagePrograms


def test_a_callback_stops_within_a_chunk(command, monkeypatch):
    monkeypatch.setattr(host_programs, "PATIENCE", -1.0)
    command.set()

    class Enough(nf.Callback):
        def on_steps(self, step, state):
            return "enough" if step >= 2 else None

    stopped = fit(Enough())
    assert (stopped.status, stopped.reason) == ("interrupted", "enough")


def test_steps_to_solutions_that_fail_are_refused(command):
    """Most of the constants lead to infinity within the data."""
    command.set()
    ts = np.linspace(0, 1, 12)[None]
    data = nf.Dataset.from_arrays(ts, (1 / (1.1 - ts))[..., None], states=["x"])
    field = nf.Known(equations={"x": "k*x^2"}, constants={"k": 0.2})
    found = fit(data=data, field=field)
    assert found.compiles == 0
    assert found.constants["k"] == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "huber"},
        {"optimizer": nf.LBFGS(memory=7)},
        {"restarts": 2},
        {"training": nf.Training(window=5), "start": "first"},
        {"penalty": nf.Penalty(kinetic_energy=0.1)},
    ],
    ids=["loss", "optimizer", "restarts", "windows", "penalty"],
)
@pytest.mark.slow
def test_other_fits_are_compiled(changes, command, kinds):
    command.set()
    fit(Stop1(), **changes)
    assert kinds[0] is StagePrograms


class Stop1(nf.Callback):
    def on_chunk_end(self, records, state):
        return "enough"


def test_a_fit_with_validation_is_not_judged_by_it(command, kinds):
    command.set()
    nf.fit(DATA.select([0]), validation=DATA.select([1]), options=OPTIONS)
    assert kinds[0] is HostPrograms


def test_a_fit_of_many_steps_is_compiled(command, kinds, monkeypatch):
    monkeypatch.setattr(host_programs, "MAX_FIRST_STEPS", 3)
    command.set()
    fit(Stop1())
    assert kinds[0] is StagePrograms


def test_a_parameter_without_influence_hardly_moves():
    """A step in units of its column would move it a million times as far as the other."""
    point = LinearisedPoint(np.array([0.0, 0.0]), np.array([1.0, 1.0]), np.diag([1.0, 1e-6]))
    np.testing.assert_allclose(take_damped_step(point, 1e-3), [-1 / 1.001, -1e-3], rtol=1e-6)


def test_a_large_parameter_is_damped_by_its_size():
    point = LinearisedPoint(np.array([1e4]), np.array([1.0]), np.array([[1e-3]]))
    np.testing.assert_allclose(take_damped_step(point, 1e-3), 1e4 - 1 / (1e-3 + 1e-6), rtol=1e-6)

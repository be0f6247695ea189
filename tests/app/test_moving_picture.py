"""The picture of a run that is under way."""

import signal
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.commands import DIRECT, begun, python, spirals, until, write_table

import node_fit as nf
from node_fit.app import background
from node_fit.app.background import MAX_PICTURE_SHARE, MovingPicture
from node_fit.fitting.train import CallbackParts
from node_fit.training.callback import Callback, Callbacks, Record, RunState

DATA = nf.Dataset.from_arrays(np.arange(5.0), np.ones((1, 5, 1)), states=["x"])


class Clock:
    """`time.perf_counter`, which only goes on when a test says so."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(background, "time", made)
    return made


@pytest.fixture
def moving(tmp_path, monkeypatch, clock):
    """A picture whose simulation takes 2 s; it draws the name of the model and its caption."""

    def simulate(model, splits, pictured):
        clock.now += 2.0
        return model

    monkeypatch.setattr(background, "simulate_splits", simulate)
    monkeypatch.setattr(background.Curves, "of", lambda simulated, counted: simulated)
    monkeypatch.setattr(background, "png_of_fit", lambda curves, caption, names: f"{curves}, {caption}".encode())
    return MovingPicture(lambda: {"train": DATA}, tmp_path / "plots" / "fit.png", ["0"])


def chunk(step, *losses, evaluated=True):
    """A record and a state of members, whose best iterates are their numbers."""

    def best(member, loss):
        return SimpleNamespace(loss=loss, is_evaluated=evaluated, name=f"model {member}")

    members = tuple(SimpleNamespace(best=best(member, loss)) for member, loss in enumerate(losses))
    records = [Mock(spec=Record, step=step, member=member, judged_loss=loss) for member, loss in enumerate(losses)]
    return records, Mock(spec=RunState, members=members)


def end_chunk(moving, *arguments, **keywords):
    assert moving.on_chunk_end(*chunk(*arguments, **keywords)) is None
    moving.end()
    return moving.picture.read_text() if moving.picture.exists() else None


def name_model(iterate, member):
    return f"{iterate.name} of {member}"


def test_the_best_member_so_far_is_drawn(moving, clock):
    moving.on_training_start(name_model)
    clock.now += 60
    assert end_chunk(moving, 300, 0.3, 0.1, 0.2) == "model 1 of 1, the best model after 300 steps"


def test_pictures_take_a_twentieth_of_the_time(moving, clock):
    moving.on_training_start(name_model)
    assert end_chunk(moving, 1, 0.1) is None, "the first steps are for the fit alone"
    for step in range(2_000):
        clock.now += 1.0
        end_chunk(moving, step, 0.1)
    drawn = clock.now - 2_100.0  # What is no step of the clock is a simulation.
    assert 0.5 * MAX_PICTURE_SHARE < drawn / (clock.now - 100.0) < 1.1 * MAX_PICTURE_SHARE


def test_a_picture_under_way_is_not_drawn_twice(moving, clock, monkeypatch):
    begun, go_on, drawn = threading.Event(), threading.Event(), []

    def simulate(model, splits, pictured):
        drawn.append(model)
        begun.set()
        assert go_on.wait(20)
        return model

    monkeypatch.setattr(background, "simulate_splits", simulate)
    moving.on_training_start(name_model)
    for step in (1, 2, 3):
        clock.now += 60
        moving.on_chunk_end(*chunk(step, 0.1))  # The fit does not wait.
        assert begun.wait(20)
    go_on.set()
    moving.end()
    assert len(drawn) == 1 and "after 1 steps" in moving.picture.read_text()


def test_nothing_is_drawn_without_a_usable_model(moving, clock):
    assert end_chunk(moving, 1, 0.1) is None, "before any training"
    moving.on_training_start(name_model)
    clock.now += 60
    assert end_chunk(moving, 1, np.inf, evaluated=False) is None


def test_large_data_and_failures_are_passed_over(moving, clock, monkeypatch):
    moving.on_training_start(name_model)
    clock.now += 60
    monkeypatch.setattr(background, "MAX_DRAWN_VALUES", 4)
    assert end_chunk(moving, 1, 0.1) is None
    monkeypatch.setattr(background, "MAX_DRAWN_VALUES", 5)
    monkeypatch.setattr(background, "png_of_fit", lambda *_: 1 / 0)
    clock.now += 60
    assert end_chunk(moving, 2, 0.1) is None
    assert not list(moving.picture.parent.glob("*")), "no half of a file stays"


FAILS_BESIDE_A_THREAD = """
import pathlib, time
from unittest.mock import MagicMock
from node_fit.app.background import MovingPicture, Rehearsal

def splits():
    time.sleep(1.0)  # Compiles, say.
    pathlib.Path("ended").touch()

callback = {callback}
callback.on_fit_start(MagicMock(), ())
callback.on_training_start(MagicMock())
callback.due = 0.0
callback.on_chunk_end([MagicMock()], MagicMock())
raise OSError("a full disk")
"""


@pytest.mark.parametrize("callback", ["Rehearsal(splits)", "MovingPicture(splits, pathlib.Path('fit.png'), [])"])
def test_a_process_that_fails_ends_after_its_threads(tmp_path, callback):
    """Python can't end beside a thread that compiles: the process would abort."""
    ran = python(tmp_path, FAILS_BESIDE_A_THREAD.format(callback=callback))
    assert ran.code == 1 and "a full disk" in ran.err
    assert (tmp_path / "ended").exists()


def test_each_of_several_fits_is_told_of_its_own_members():
    told = []

    class Told(Callback):
        def __init__(self, name):
            self.name = name

        def on_training_start(self, model_of):
            told.append((self.name, model_of("best", 1)))

    parts = CallbackParts([Told("a"), Callbacks([Told("b")])], [range(2), range(2, 5)], Callback())
    parts.on_training_start(lambda iterate, member: (iterate, member))
    assert told == [("a", ("best", 1)), ("b", ("best", 3))]


def test_a_callback_can_make_the_model_of_a_state():
    ts = np.linspace(0, 3, 12)
    data = nf.Dataset.from_arrays(ts, np.exp(-0.5 * ts)[None, :, None], states=["x"])
    found = []

    class Latest(Callback):
        def on_training_start(self, model_of):
            self.model_of = model_of

        def on_chunk_end(self, records, state):
            found.append(self.model_of(state.members[0].best, 0))

    options = nf.Options(recipe="direct")
    field = nf.Known(equations={"x": "-k*x"}, constants={"k": 0.1})
    nf.fit(data, field=field, training=nf.Training(steps=20, chunk_steps=10), callbacks=[Latest()], options=options)
    assert abs(found[-1].constants()["k"] - 0.5) < 1e-3


@pytest.mark.long
@pytest.mark.slow
def test_the_picture_of_a_run_moves_while_it_trains(tmp_path):
    write_table(tmp_path / "mine.csv", spirals())
    picture, log, seen = tmp_path / "run" / "plots" / "fit.png", tmp_path / "run" / "metrics.csv", set()

    def has_moved() -> bool:
        if picture.is_file() and log.is_file():
            seen.add(picture.stat().st_mtime_ns)
        return len(seen) >= 3

    # Nobody reads the output, whose pipe lines of short chunks would fill.
    words = ("training.chunk_steps=1000", "training.steps=10000000", "training.patience=1000000", "hydra.run.dir=run")
    process = begun(tmp_path, *DIRECT, "optimizer=adam", *words)
    until(has_moved, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130

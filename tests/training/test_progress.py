"""The progress of a fit in a terminal, in a notebook, and nowhere else."""

import contextlib
import io
import os
import pty
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

import node_fit as nf
from node_fit.app.run_logger import RunLogger
from node_fit.fitting import progress
from node_fit.fitting.progress import Display, ShowProgress, in_notebook

ROOT = Path(__file__).parents[2]
# Two starts, so that simulations choose where the second begins.
FIT = """
import numpy as np, node_fit as nf
t = np.linspace(0, 3, 12)
data = nf.Dataset.from_arrays(t, np.stack([np.cos(t), np.sin(t)], axis=-1))


def fit(restarts=2, **more):
    training = nf.Training(steps=10, chunk_steps=5)
    options = nf.Options(recipe="direct", restarts=restarts)
    field = nf.Known(equations={"y0": "-k*y1", "y1": "k*y0"}, constants={"k": 2.0})
    nf.fit(data, field=field, training=training, options=options, **more)
"""


def fit(**more):
    """The fit, in this process."""
    names = {}
    exec(FIT, names)
    names["fit"](**more)


@contextlib.contextmanager
def terminal():
    """The number of a terminal's file, and a list that afterwards holds what it has shown."""
    mine, its = pty.openpty()
    shown = []

    def read():
        with contextlib.suppress(OSError):  # Linux raises it once the other side is closed.
            while part := os.read(mine, 65536):
                shown.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    yield its, shown
    reader.join()
    os.close(mine)


@pytest.mark.slow
def test_a_terminal_shows_each_phase_from_the_first_second():
    """In a process of its own."""
    with terminal() as (its, shown):
        environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm-256color"}
        command = [sys.executable, "-c", f"{FIT}\nfit()"]
        subprocess.run(command, cwd=ROOT, env=environment, stdout=its, stderr=its, check=True, timeout=300)
        os.close(its)
    shown = b"".join(shown).decode()
    first, last = (f"trying several starts: generation {number} of 21" for number in (1, 21))
    order = ["preparing", first, last, "compiling main", "10/10 loss"]
    found = [shown.find(words) for words in order]
    assert -1 not in found and found == sorted(found), shown
    assert "…" not in shown, "the bar is wider than a terminal"


def streams_of_fit(monkeypatch, *on_terminal, **more) -> tuple[str, str]:
    """What a fit shows where the streams of these names are a terminal, and what it writes to the others."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    rest = io.StringIO()
    with terminal() as (its, shown), open(its, "w") as screen, monkeypatch.context() as patch:
        for name in ("stdout", "stderr"):
            patch.setattr(sys, name, screen if name in on_terminal else rest)
        fit(**more)
    return b"".join(shown).decode(), rest.getvalue()


@pytest.mark.slow
def test_progress_goes_to_the_stream_that_is_a_terminal(monkeypatch):
    shown, rest = streams_of_fit(monkeypatch, "stderr")
    assert "compiling main" in shown and rest == ""


def test_progress_is_turned_off(monkeypatch):
    assert streams_of_fit(monkeypatch, "stdout", "stderr", progress=False, restarts=1) == ("", "")


def test_nothing_is_printed_where_there_is_no_terminal_and_no_notebook(capfd):
    fit(restarts=1)
    assert capfd.readouterr() == ("", "")


def test_plain_lines_are_printed_on_request(capfd):
    fit(progress=True, restarts=1)
    out, err = capfd.readouterr()
    assert err == "" and "compiling main: up to 10 steps\nmain" in out and "step     10 of 10" in out


class Handle:
    """What a notebook's `display` returns: it changes the line that is shown."""

    def __init__(self, lines):
        self.lines = lines

    def update(self, content, *, raw):
        assert raw
        self.lines.append(content["text/plain"])


@pytest.fixture
def notebook(monkeypatch) -> list[str]:
    """A notebook without widgets; the lines that it shows, one in place of another."""
    lines = []

    def display(content, *, raw, display_id):
        assert raw and display_id and not lines, "a notebook has one line of progress"
        lines.append(content["text/plain"])
        return Handle(lines)

    shell, ipython, module = types.SimpleNamespace(kernel=object()), types.ModuleType("IPython"), types.ModuleType("x")
    ipython.get_ipython, module.display = lambda: shell, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return lines


@pytest.mark.slow
def test_a_notebook_shows_a_line_that_changes(notebook, capfd):
    assert in_notebook()
    fit()
    assert notebook[0] == "preparing" and "trying several starts: generation 1 of 21, 60 s in all at most" in notebook
    assert "compiling main" in notebook and notebook[-1].startswith("main 10/10 loss ")
    assert capfd.readouterr() == ("", "")
    shown = len(notebook)
    fit(progress=False, restarts=1)
    assert len(notebook) == shown


def test_a_terminal_of_ipython_is_no_notebook(monkeypatch):
    ipython = types.ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    for shell in (None, types.SimpleNamespace()):
        ipython.get_ipython = lambda shell=shell: shell
        assert not in_notebook()


def test_plain_lines_tell_of_trials_only_after_a_silence(monkeypatch):
    clock = iter([0.0, 0.0, 1.0, 3.0, 4.0]).__next__
    monkeypatch.setattr(progress.time, "perf_counter", clock)
    stream = io.StringIO()
    with Display(Console(file=stream, width=100)) as display:
        for weight in (0, 0.1, 1):
            ShowProgress(display).on_trial(f"penalty.ridge={weight}")
    assert stream.getvalue() == "trying penalty.ridge=0.1\n"


def test_plain_lines_are_never_silent_for_more_than_two_seconds(monkeypatch):
    assert progress.SILENCE * 9 / 8 <= 2, "a thread looks eight times in each silence"
    monkeypatch.setattr(progress, "SILENCE", 0.05)
    stream = io.StringIO()
    with Display(Console(file=stream, width=100)) as display:
        display.announce("main", 100)
        until = time.perf_counter() + 5
        while "\ncompiling main\n" not in stream.getvalue() and time.perf_counter() < until:
            time.sleep(0.01)
        ShowProgress(display).on_attempt("equations", "rows are few")
        while "preparing equations\n" not in stream.getvalue() and time.perf_counter() < until:
            time.sleep(0.01)
    assert "compiling main: up to 100 steps\ncompiling main\n" in stream.getvalue()
    assert "preparing equations\n" in stream.getvalue(), "and not what was done before"


def test_a_command_names_the_attempt_that_it_prepares(tmp_path):
    logger = Mock(attempt=1)
    logger.files.checkpoints_of.return_value = tmp_path
    RunLogger.on_attempt(logger, "equations", "rows are few")
    logger.display.does.assert_called_once_with("preparing equations")


@pytest.mark.slow
def test_callbacks_are_told_of_trials():
    class Told(nf.Callback):
        def __init__(self):
            self.calls = []

        def on_trial(self, what):
            self.calls.append(what)

        def on_fit_start(self, model, notes):
            self.calls.append("start")

    told = Told()
    fit(callbacks=[told])
    assert told.calls[0] == "start" and all(call.startswith("several starts: ") for call in told.calls[1:])
    assert len(told.calls) > 21

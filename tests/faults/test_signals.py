"""Ctrl-C before training starts: during imports and after them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.commands import DIRECT, ENVIRONMENT, begun, read_summary, spirals, until, write_table

from node_fit.app.run_logger import Interruption

pytestmark = pytest.mark.slow

SWALLOWS = """
import os, signal, sys
from node_fit.startup import start_command
start_command()
try:
    os.kill(os.getpid(), signal.SIGINT)
except BaseException:  # Like a weakref callback, of which imports run many.
    pass
print("goes on")
"""


def test_ctrl_c_is_not_lost_where_exceptions_are():
    ran = subprocess.run([sys.executable, "-c", SWALLOWS], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_ctrl_c_in_a_program_of_others_is_theirs():
    theirs = SWALLOWS.replace("from node_fit.startup import start_command", "import node_fit")
    theirs = theirs.replace("start_command()", "node_fit.fit")
    ran = subprocess.run([sys.executable, "-c", theirs], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "goes on\n")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("seconds", [0.0, 0.4, 0.8])
def test_ctrl_c_ends_a_command_that_is_about_to_train(tmp_path, seconds):
    write_table(tmp_path / "mine.csv", spirals())
    process = begun(tmp_path, *DIRECT, "training.steps=1000000", "hydra.run.dir=run")
    until(lambda: b"jaxlib" in Path(f"/proc/{process.pid}/maps").read_bytes(), process)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGXCPU"])
def test_what_a_scheduler_sends_ends_a_run_with_its_state_saved(tmp_path, name):
    write_table(tmp_path / "mine.csv", spirals())
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)  # Under nohup it is ignored, and a command inherits that.
    process = begun(tmp_path, *DIRECT, "training.steps=1000000", "training.chunk_steps=5", "hydra.run.dir=run")
    signal.signal(number, before)
    metrics = tmp_path / "run" / "metrics.csv"
    until(lambda: metrics.is_file() and len(metrics.read_text().splitlines()) > 2, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, (out, err)
    summary = read_summary(tmp_path / "run")
    assert summary["status"] == "interrupted" and name in summary["reason"]


def test_a_signal_that_is_ignored_stays_ignored():
    """As SIGHUP under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption(lambda _: None) as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interruption.number is None
            os.kill(os.getpid(), signal.SIGUSR1)
            assert interruption.name == "SIGUSR1"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


WAITS_IN_C = """
import hashlib, os, signal, threading, time
from node_fit.app.run_logger import Interruption

def send():
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)

with Interruption(print):
    threading.Thread(target=send).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""


def test_a_second_signal_ends_a_process_whose_program_never_returns():
    ran = subprocess.run([sys.executable, "-c", WAITS_IN_C], env=ENVIRONMENT, timeout=60, check=False)
    assert ran.returncode == 128 + signal.SIGTERM

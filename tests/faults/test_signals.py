"""Ctrl-C before a run has begun: while Python loads modules, and while the data are read."""

import signal
import subprocess
import sys
import time

import pytest
from commands import DIRECT, ENVIRONMENT, begun, spirals, write_table

SWALLOWS = """
import os, signal, sys
sys.argv = ["-m"]  # as it is while `python -m` looks for the module
import node_fit.command
try:
    os.kill(os.getpid(), signal.SIGINT)
except BaseException:  # as in the callback of a weak reference, of which imports have many
    pass
print("goes on")
"""


def test_ctrl_c_is_not_lost_where_exceptions_are():
    ran = subprocess.run([sys.executable, "-c", SWALLOWS], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


@pytest.mark.parametrize("seconds", [0.6, 1.2, 1.8])
def test_ctrl_c_ends_a_command_that_has_not_begun_to_train(tmp_path, seconds):
    write_table(tmp_path / "mine.csv", spirals())
    process = begun(tmp_path, *DIRECT, "train.steps=1000000", "hydra.run.dir=run")
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err

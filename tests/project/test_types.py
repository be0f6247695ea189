"""The package's hints, as pyright reads them with the settings of pyproject.toml."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(find_spec("pyright") is None, reason="pyright is not installed")
@pytest.mark.skipif(shutil.which("node") is None, reason="pyright would first download Node.js")
def test_pyright_finds_no_error():
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "node_fit"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout

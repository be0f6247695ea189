"""What a run says before its first step, and how soon it can."""

import subprocess
import sys

import pytest

HEAVY = ("sklearn", "pandas", "scipy.stats", "scipy.optimize", "matplotlib", "plotly", "jinja2")


@pytest.mark.slow
def test_a_command_imports_nothing_that_it_may_not_need():
    """Each takes a fifth of a second or more, before the first line."""
    code = f"""
import sys
import node_fit.__main__, node_fit.app.application
from node_fit.app.config.composition import ALLOWED, locate
locate("node_fit.MLP", "field._target_", ALLOWED)
locate("optax.losses.squared_error", "loss._target_", ALLOWED)
assert not [name for name in {HEAVY} if name in sys.modules], [name for name in {HEAVY} if name in sys.modules]
"""
    subprocess.run([sys.executable, "-c", code], check=True)

"""What all tests share: JAX without silent rank promotion, and small problems with a known truth."""

import functools
import os
import shutil
import tempfile
from importlib.metadata import version

import jax
import numpy as np
import pytest

import node_fit as nf
from node_fit.compilation import CROWDED, PROGRAMS, mappings

# What the tests wait for is XLA's compiler, and unoptimised programs take a third of its time. Commands in processes of
# their own are compiled as users' are, and so is everything with `XLA_FLAGS=` in the environment.
QUICK = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):  # later ones do not know it, and end the process
    QUICK += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", QUICK)  # before JAX's first use of a device

SMALL = functools.partial(nf.MLP, width=8, depth=1)

jax.config.update("jax_numpy_rank_promotion", "raise")
# So that compilations are those of the test, and nothing is left in the user's folders.
jax.config.update("jax_enable_compilation_cache", False)

# Made by the first process of the session; its workers have it in their environment.
OWNER = "NODE_FIT_TEST_CACHE" not in os.environ
os.environ.setdefault("NODE_FIT_TEST_CACHE", tempfile.mkdtemp(prefix="node_fit-tests-") if OWNER else "")


def pytest_unconfigure(config):
    if OWNER:
        shutil.rmtree(os.environ["NODE_FIT_TEST_CACHE"], ignore_errors=True)


def rotation(trajectories: int = 3, times: int = 12, rate: float = 1.0) -> nf.Dataset:
    """Points that turn around the origin."""
    ts = np.linspace(0.0, 3.0, times)
    phases = np.arange(trajectories)[:, None]
    angle = rate * ts[None, :] + phases
    return nf.Dataset.from_arrays(ts, np.stack([np.cos(angle), np.sin(angle)], axis=-1), states=("x", "y"))


@pytest.fixture(scope="module", autouse=True)
def room():
    """Frees compiled programs between files, since a process of many tests has more than the system has room for."""
    yield
    if mappings() > CROWDED / 2:
        PROGRAMS.forget()


@pytest.fixture(params=["x32", "x64"])
def precision(request) -> str:
    return request.param

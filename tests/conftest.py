"""Shared setup: JAX without silent rank promotion, and small problems with a known solution."""

import gc
import os
import shutil
import tempfile
from collections import Counter
from importlib.metadata import version

import jax
import pytest

from node_fit.runtime.compilation import CROWDED, PROGRAMS, mappings

# The tests mostly wait for XLA's compiler; unoptimised programs compile in a third of the time. `test_second_start.py`
# compiles as users do, and so does everything if `XLA_FLAGS=` is in the environment.
QUICK = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):  # Later versions abort on this unknown flag.
    QUICK += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", QUICK)  # Before JAX first uses a device.

# As commands do: tracing makes many objects, and few of them are garbage.
gc.set_threshold(50_000, 20, 100)


jax.config.update("jax_numpy_rank_promotion", "raise")
# The tests count their own compilations, and the user's folders stay clean.
jax.config.update("jax_enable_compilation_cache", False)

# The first process of the session creates the cache; its workers inherit it through the environment.
OWNER = "NODE_FIT_TEST_CACHE" not in os.environ
os.environ.setdefault("NODE_FIT_TEST_CACHE", tempfile.mkdtemp(prefix="node_fit-tests-") if OWNER else "")


def pytest_addoption(parser):
    parser.addoption("--update-docs", action="store_true", help="rewrite outputs that the docs quote, where stale")


def pytest_configure(config):
    config.option.loadscopereorder = False  # xdist would begin with the files that have the most tests.


def pytest_collection_modifyitems(items):
    """Files with the most slow tests begin first, and the quick ones fill the time until all workers end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_unconfigure(config):
    if OWNER:
        shutil.rmtree(os.environ["NODE_FIT_TEST_CACHE"], ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def room():
    """Frees compiled programs between files, since many tests in one process exceed the limit on memory mappings."""
    yield
    if mappings() > CROWDED / 2:
        PROGRAMS.forget()


@pytest.fixture(params=["x32", "x64"])
def precision(request) -> str:
    return request.param

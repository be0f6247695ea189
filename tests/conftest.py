"""Shared setup: JAX without silent rank promotion, and small problems with a known solution."""

import gc
import os
import time
from collections import Counter
from importlib.metadata import version

# Before NumPy is imported: matrices are small here, and waiting threads of BLAS would take the other worker's time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Workers and commands begin in half the time where Python may keep bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from node_fit.runtime.compilation import CROWDED, ENDS_SOON, PROGRAMS, mappings

# The tests mostly wait for XLA's compiler; unoptimised programs compile in a third of the time. `test_second_start.py`
# compiles as users do, and so does everything if `XLA_FLAGS=` is in the environment.
QUICK = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):  # Later versions may abort on unknown flags.
    QUICK += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", QUICK)  # Before JAX first uses a device.

# As commands do: tracing makes many objects, and few of them are garbage.
gc.set_threshold(50_000, 20, 100)


jax.config.update("jax_numpy_rank_promotion", "raise")
# Where in the source an operation was written takes time to find, and no test asks.
jax.config.update("jax_traceback_in_locations_limit", 1)


def pytest_addoption(parser):
    parser.addoption("--update-docs", action="store_true", help="rewrite outputs that the docs quote, where stale")


def pytest_configure(config):
    config.option.loadscopereorder = False  # xdist would begin with the files that have the most tests.
    # Tests and the commands that they run share programs, with the next session too; the user's folders stay clean.
    os.environ["NODE_FIT_TEST_CACHE"] = str(config.cache.mkdir("commands"))
    jax.config.update("jax_compilation_cache_dir", os.environ["NODE_FIT_TEST_CACHE"] + "/node_fit/programs")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def pytest_collection_modifyitems(items):
    """Files with the most slow tests begin first, and the quick ones fill the time until all workers end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_runtest_setup(item):
    """Slow tests end where the time that a caller has for them does, so that the quick ones are all run."""
    until = float(os.environ.get("NODE_FIT_SLOW_TESTS_UNTIL", "inf"))
    if time.time() > until and item.get_closest_marker("slow"):
        pytest.skip("slow, and the time for slow tests is over")


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # What was imported stays, so that no later collection has to look at it.


@pytest.fixture(scope="module", autouse=True)
def begin_as_session():
    """Begins each file as a session, whatever commands the files before it ran in this process."""
    ENDS_SOON.clear()


@pytest.fixture(scope="module", autouse=True)
def room():
    """Frees compiled programs between files, since many tests in one process exceed the limit on memory mappings."""
    yield
    if mappings() > CROWDED / 2:
        PROGRAMS.forget()


@pytest.fixture
def without_cache():
    """For tests that count compilations, which a program from the cache is not."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture(params=["x32", "x64"])
def precision(request) -> str:
    return request.param

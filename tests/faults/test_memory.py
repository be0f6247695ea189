"""A model that does not fit in memory: a clear error, and the other jobs of a multirun continue."""

import subprocess
import sys

import jax
import pytest
from helpers.commands import DIRECT, ENVIRONMENT, node_fit, read_summary, spirals, write_table

from node_fit.app.launching import print_error
from node_fit.runtime.placement import explain_memory

pytestmark = pytest.mark.slow


def test_a_network_without_room_is_refused_and_the_sweep_goes_on(tmp_path):
    write_table(tmp_path / "mine.csv", spirals())
    given = [word for word in DIRECT if not word.startswith(("field.width", "field.depth"))]
    ran = node_fit(
        tmp_path, "-m", *given, "field.width=1000000,8", "field.depth=2", "penalty.ridge=0", "hydra.sweep.dir=sweep"
    )
    assert ran.code == 1 and "Traceback" not in ran.err
    assert ran.sentence.startswith("out of memory: 4 TB were requested at once; lower ")
    assert all(key in ran.sentence for key in ("training.batch_size", "training.window", "field.width"))
    summaries = [read_summary(tmp_path / "sweep" / job) for job in "01"]
    assert summaries[0]["status"] == "failed" and "out of memory" in summaries[0]["reason"]
    assert summaries[1]["status"] == "completed"


@pytest.mark.usefixtures("no_fault")
@pytest.mark.parametrize(
    "error, said",
    [
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 40000000000 bytes."), ": 40 GB were"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3.64GiB."), "3.64 GiB"),
        (MemoryError("Unable to allocate 7.28 TiB for an array with shape (1,)"), "7.28 TiB"),
        (MemoryError(), "out of memory; lower"),
    ],
    ids=["XLA", "XLA on a GPU", "NumPy", "Python"],
)
def test_what_is_said(error, said):
    assert said in explain_memory(error)


@pytest.mark.usefixtures("no_fault")
def test_other_errors_are_none_of_its_business():
    assert explain_memory(jax.errors.JaxRuntimeError("INTERNAL: RESOURCE_EXHAUSTED")) is None
    assert explain_memory(ValueError("RESOURCE_EXHAUSTED: Out of memory")) is None


@pytest.mark.skipif(sys.platform != "linux", reason="sets a limit that Linux keeps")
@pytest.mark.parametrize("most", [300_000, 1_200_000])
def test_a_limit_that_is_too_low_for_the_libraries_is_said_at_once(tmp_path, most):
    """Under such a limit, OpenBLAS tries forever to load, and XLA aborts."""
    command = f'ulimit -v {most} && exec "$0" -m node_fit training.steps=2 hydra.run.dir=run'
    ran = subprocess.run(
        ["bash", "-c", command, sys.executable],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    assert ran.stderr.startswith("error: out of memory: this process may map ") and "ulimit -v unlimited" in ran.stderr
    if most > 1e6:
        assert read_summary(tmp_path / "run")["status"] == "failed"


@pytest.mark.usefixtures("no_fault")
def test_what_the_system_refuses_is_never_an_empty_error(capsys):
    for error in (MemoryError(), ImportError("x.so: failed to map segment from shared object")):
        print_error(error)
        assert capsys.readouterr().err.startswith("error: out of memory; lower ")

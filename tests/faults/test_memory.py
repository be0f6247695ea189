"""A model that does not fit in memory: a clear error, and the other jobs of a multirun continue."""

import jax
import pytest
from commands import DIRECT, node_fit, read_summary, spirals, write_table

from node_fit.runtime.out_of_memory import explain_memory


def test_a_network_without_room_is_refused_and_the_sweep_goes_on(tmp_path):
    write_table(tmp_path / "mine.csv", spirals())
    given = [word for word in DIRECT if not word.startswith(("field.width", "field.depth"))]
    ran = node_fit(
        tmp_path, "-m", *given, "field.width=1000000,8", "field.depth=2", "penalty.ridge=0", "hydra.sweep.dir=sweep"
    )
    assert ran.code == 1 and "Traceback" not in ran.err
    assert ran.sentence.startswith("out of memory: 4 TB were requested at once; lower ")
    assert all(key in ran.sentence for key in ("train.batch_size", "train.window", "field.width"))
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

"""A checkpoint that does not match the run: refused with the differences, or cast with a warning."""

import logging

import numpy as np
import pytest

import node_fit as nf
from faults.moments import content, fill, moment_at, restore
from node_fit.storage.checkpoint import CheckpointError, to_arrays

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("saved", "mine"), [("x32", "x64"), ("x64", "x32")])
@pytest.mark.parametrize("optimizer", [nf.Adam(), nf.LBFGS(memory=3)], ids=["adam", "lbfgs"])
def test_another_precision_is_cast_and_that_is_said(tmp_path, saved, mine, optimizer, caplog):
    moment = moment_at(5, precision=saved, optimizer=optimizer)
    fill(tmp_path, moment)
    with caplog.at_level(logging.WARNING, logger="node_fit"):
        back = restore(tmp_path, precision=mine, optimizer=optimizer)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "float32" in said and "float64" in said and "cast" in said
    before, after = to_arrays(moment.members), to_arrays(back.members)
    for name, array in before.items():
        floating = np.issubdtype(array.dtype, np.floating)
        assert after[name].dtype == (np.dtype({"x32": "f4", "x64": "f8"}[mine]) if floating else array.dtype)
        np.testing.assert_array_equal(after[name], array.astype(after[name].dtype))


def test_a_number_beyond_float32_becomes_infinite(tmp_path):
    fill(tmp_path, moment_at(5, loss=1e300, precision="x64"))
    assert np.isposinf(restore(tmp_path).members[0].chosen.loss)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"width": 5}, "network.layers.0.bias is float32[4] in the checkpoint and float32[5]"),
     ({"optimizer": nf.LBFGS(memory=3)}, "in the checkpoint and absent in this run"),
     ({"width": 5, "precision": "x64"}, "float32[4] in the checkpoint and float64[5]")],
    ids=["wider", "another optimizer", "wider, in another precision"],
)  # fmt: skip
def test_another_model_is_refused_by_its_paths_and_shapes(tmp_path, change, named):
    moments = [moment_at(step) for step in (5, 10)]
    fill(tmp_path, *moments)
    with pytest.raises(CheckpointError, match="another model or optimizer") as caught:
        restore(tmp_path, **change)
    assert named in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match="another model or optimizer"):
        restore(tmp_path, "best", **change)
    assert content(restore(tmp_path)) == content(moments[1]), "a refusal loses nothing"


def test_grids_may_differ_from_one_checkpoint_to_the_next(tmp_path):
    moments = [moment_at(step, nodes=step) for step in (3, 7)]
    fill(tmp_path, *moments)
    assert content(restore(tmp_path)) == content(moments[1])

"""Resuming from the best checkpoint instead of the newest."""

import pytest

from faults.moments import content, fill, moment_at, restore
from node_fit.storage.checkpoint import steps_in

LOSSES = {1: 5.0, 2: 0.5, 3: 4.0, 4: 3.0}


def test_the_best_is_restored_and_later_saves_are_written(tmp_path):
    fill(tmp_path, *(moment_at(step, loss=loss) for step, loss in LOSSES.items()))
    best = restore(tmp_path, "best")
    assert content(best) == content(moment_at(2, loss=0.5))
    again = moment_at(3, loss=0.25)
    fill(tmp_path, again)
    assert content(restore(tmp_path)) == content(again)
    assert content(restore(tmp_path, "best")) == content(again)


def test_the_best_stays_the_best_in_the_next_process(tmp_path):
    for step, loss in LOSSES.items():
        fill(tmp_path, moment_at(step, loss=loss), keep=1)
    assert steps_in(tmp_path) == [2, 4]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("good", [1.0, 1e300, -1e300])
def test_what_is_no_number_is_never_best(tmp_path, bad, good):
    fill(tmp_path, moment_at(1, loss=bad), moment_at(2, loss=good, precision="x64"), moment_at(3, loss=bad), keep=1)
    assert steps_in(tmp_path) == [2, 3]
    assert restore(tmp_path, "best", precision="x64").step == 2


def test_if_no_loss_is_a_number_the_newest_serves(tmp_path):
    fill(tmp_path, moment_at(1, loss=float("nan")), moment_at(2, loss=float("nan")))
    assert restore(tmp_path, "best").step == 2


def test_the_best_is_of_the_latest_stage(tmp_path):
    fill(tmp_path, moment_at(1, 0, loss=0.1), moment_at(2, 1, loss=3.0), moment_at(3, 1, loss=4.0))
    assert restore(tmp_path, "best").step == 2


def test_a_damaged_best_gives_way_to_the_next(tmp_path):
    fill(tmp_path, *(moment_at(step, loss=loss) for step, loss in LOSSES.items()))
    best = tmp_path / "2.safetensors"
    whole = best.read_bytes()
    assert b"0.5" in whole
    best.write_bytes(whole.replace(b"0.5", b"0.4"))
    assert restore(tmp_path, "best").step == 4

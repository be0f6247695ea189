"""Checkpoints: what comes back, and what is refused when a disk or a person has changed them."""

import logging
import shutil
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_pitfalls import problem

import node_fit as nf
from node_fit.checkpoint import CheckpointError, Checkpoints, to_arrays
from node_fit.observer import Moment
from node_fit.precision import carry, dtype_of, scope


def state_at(step, loss=1.0, optimizer=None, field=None, precision="x32"):
    """A training state with numbers of its own."""
    state = problem(optimizer or nf.Adam(), precision, field=field)[3]
    shifted = jax.tree.map(lambda p: p + jnp.asarray(step, p.dtype), state.params)
    where = lambda s: (s.step, s.params, s.chosen.loss)  # noqa: E731
    return carry(eqx.tree_at(where, state, (jnp.int32(step), shifted, jnp.asarray(loss))), dtype_of(precision))


def save(directory, *moments, **options):
    checkpoints = Checkpoints(directory, **options)
    for moment in moments:
        checkpoints.save(moment)
    checkpoints.close()


def restore(directory, optimizer=None, field=None, precision="x32"):
    checkpoints = Checkpoints(directory)
    try:
        return checkpoints.restore(
            lambda _, nodes: state_at(0, optimizer=optimizer, field=field, precision=precision),
            lambda tree: carry(tree, dtype_of(precision)),
        )
    finally:
        checkpoints.close()


def assert_same(state, other):
    mine, theirs = to_arrays(state), to_arrays(other)
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        assert array.dtype == theirs[name].dtype
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def largest(directory: Path, below: str = "state") -> Path:
    """The file that holds the arrays."""
    files = [path for path in (directory / below).rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def truncate(directory: Path) -> None:
    file = largest(directory)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(directory: Path) -> None:
    """A bit in each eighth of the arrays' file; some of its bytes are Orbax's own index, where a bit may not matter."""
    file = largest(directory)
    content = bytearray(file.read_bytes())
    for eighth in range(1, 8):
        content[eighth * len(content) // 8] ^= 1
    file.write_bytes(bytes(content))


def empty(directory: Path) -> None:
    largest(directory).write_bytes(b"")


def remove(directory: Path) -> None:
    shutil.rmtree(directory / "state")


def garble_meta(directory: Path) -> None:
    largest(directory, "meta").write_text("{")


DAMAGES = [truncate, flip, empty, remove, garble_meta]


@pytest.mark.parametrize("optimizer", [nf.Adam(), nf.LBFGS(memory=3)], ids=["adam", "lbfgs"])
def test_what_is_saved_comes_back(tmp_path, optimizer, precision):
    with scope(precision):
        moment = Moment(1, 100, state_at(7, optimizer=optimizer, precision=precision))
        save(tmp_path, moment)
        back = restore(tmp_path, optimizer=optimizer, precision=precision)
        assert (back.stage, back.offset) == (1, 100)
        assert_same(back.state, moment.state)
        # The key draws what it would have drawn.
        draws = [jax.random.normal(state.key, (3,)).tolist() for state in (back.state, moment.state)]
        assert draws[0] == draws[1]
        # Ready for the compiled program, which takes no other kind of leaf.
        signature = lambda state: [(jax.typeof(x), x.sharding) for x in jax.tree.leaves(state)]  # noqa: E731
        assert signature(back.state) == signature(moment.state)


def test_nothing_saved_is_nothing_restored(tmp_path):
    assert restore(tmp_path / "new") is None


def test_the_newest_and_the_best_are_kept(tmp_path):
    losses = {1: 5.0, 2: 0.5, 3: 4.0, 4: float("nan"), 5: 3.0, 6: 2.0}
    save(tmp_path, *(Moment(0, 0, state_at(step, loss)) for step, loss in losses.items()), keep=2)
    kept = sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit())
    assert kept == [2, 5, 6]
    assert int(restore(tmp_path).state.step) == 6


def test_the_best_is_by_what_it_was_judged_by_and_of_the_latest_stage(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    for stage, step, judged in ((0, 1, 0.1), (1, 2, 3.0), (1, 3, 2.0), (1, 4, 4.0), (1, 5, 5.0)):
        checkpoints.save(Moment(stage, 0, state_at(step, loss=1.0)), judged)
    checkpoints.close()
    assert sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()) == [3, 5]


def test_a_moment_is_saved_once(tmp_path):
    first = Moment(0, 0, state_at(5, loss=1.0))
    save(tmp_path, first, Moment(0, 0, state_at(5, loss=2.0)))
    assert_same(restore(tmp_path).state, first.state)


def test_steps_count_over_stages(tmp_path):
    save(tmp_path, Moment(0, 0, state_at(20)), Moment(1, 20, state_at(5)))
    back = restore(tmp_path)
    assert (back.stage, back.offset, int(back.state.step)) == (1, 20, 5)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_is_passed_over_with_a_warning(tmp_path, damage, caplog):
    older, newest = Moment(0, 0, state_at(5)), Moment(0, 0, state_at(10))
    save(tmp_path, older, newest)
    damage(tmp_path / "10")
    with caplog.at_level(logging.WARNING, logger="node_fit"):
        back = restore(tmp_path)
    assert_same(back.state, older.state)
    warnings = [r.getMessage() for r in caplog.records if r.name.startswith("node_fit")]
    assert len(warnings) == 1
    assert str(tmp_path / "10") in warnings[0]
    assert "damaged" in warnings[0]
    # The next save of that step is not taken for one that is there.
    save(tmp_path, newest)
    assert_same(restore(tmp_path).state, newest.state)


def test_if_all_are_damaged_they_are_named(tmp_path):
    save(tmp_path, Moment(0, 0, state_at(5)), Moment(0, 0, state_at(10)))
    flip(tmp_path / "5")
    truncate(tmp_path / "10")
    with pytest.raises(CheckpointError, match="every checkpoint is damaged") as caught:
        restore(tmp_path)
    assert str(tmp_path / "5") in str(caught.value)
    assert str(tmp_path / "10") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "leaf"),
    [
        ({"field": nf.MLP(2, width=9, depth=1, key=jax.random.key(0))}, "field.network.layers.0.bias is float32[8]"),
        ({"field": nf.MLP(2, width=8, depth=2, key=jax.random.key(0))}, "field.network.layers.2.bias is absent"),
        ({"optimizer": nf.LBFGS(memory=3)}, "opt_state"),
        ({"optimizer": nf.Adam(schedule="constant")}, None),
    ],
    ids=["wider", "deeper", "another optimizer", "another schedule"],
)
def test_another_architecture_or_optimizer_is_refused_by_leaf(tmp_path, change, leaf):
    save(tmp_path, Moment(0, 0, state_at(5)))
    if leaf is None:  # a schedule has no state of its own
        assert restore(tmp_path, **change) is not None
        return
    with pytest.raises(CheckpointError, match="of another model or optimizer") as caught:
        restore(tmp_path, **change)
    assert leaf in str(caught.value)
    assert (tmp_path / "5").is_dir()


def test_stray_files_are_ignored(tmp_path):
    moment = Moment(0, 0, state_at(5))
    save(tmp_path, moment)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "more").mkdir()
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    (tmp_path / "12.orbax-checkpoint-tmp-3").mkdir()
    assert_same(restore(tmp_path).state, moment.state)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_empty_directory_of_a_step_is_passed_over(tmp_path):
    moment = Moment(0, 0, state_at(5))
    save(tmp_path, moment)
    (tmp_path / "8").mkdir()
    assert_same(restore(tmp_path).state, moment.state)

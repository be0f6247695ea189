"""Checkpoints: what comes back, and what is refused when a disk or a person has changed them."""

import logging
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_pitfalls import problem

import node_fit as nf
from node_fit.checkpoint import CheckpointError, Checkpoints, steps_in, to_arrays
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


def restore(directory, optimizer=None, field=None, precision="x32"):
    return Checkpoints(directory).restore(
        lambda _, nodes: state_at(0, optimizer=optimizer, field=field, precision=precision),
    )


def assert_same(state, other):
    mine, theirs = to_arrays(state), to_arrays(other)
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        assert array.dtype == theirs[name].dtype
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


def empty(file: Path) -> None:
    file.write_bytes(b"")


def garble(file: Path) -> None:
    file.write_bytes(b"{" * file.stat().st_size)


DAMAGES = [truncate, flip, empty, garble]


# Whose state holds a random key.
NOISY = nf.Optax(optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(3)), optax.sgd(0.1)))


@pytest.mark.parametrize("optimizer", [nf.Adam(), nf.LBFGS(memory=3), NOISY], ids=["adam", "lbfgs", "noisy"])
def test_what_is_saved_comes_back(tmp_path, optimizer, precision):
    with scope(precision):
        moment = Moment(1, 100, state_at(7, optimizer=optimizer, precision=precision))
        save(tmp_path, moment)
        back = restore(tmp_path, optimizer=optimizer, precision=precision)
        assert (back.stage, back.offset) == (1, 100)
        assert_same(back.state, moment.state)


def test_nothing_saved_is_nothing_restored(tmp_path):
    assert restore(tmp_path / "new") is None


def test_the_newest_and_the_best_are_kept(tmp_path):
    losses = {1: 5.0, 2: 0.5, 3: 4.0, 4: float("nan"), 5: 3.0, 6: 2.0}
    save(tmp_path, *(Moment(0, 0, state_at(step, loss)) for step, loss in losses.items()), keep=2)
    assert steps_in(tmp_path) == [2, 5, 6]
    assert int(restore(tmp_path).state.step) == 6


def test_the_best_is_by_what_it_was_judged_by_and_of_the_latest_stage(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    for stage, step, judged in ((0, 1, 0.1), (1, 2, 3.0), (1, 3, 2.0), (1, 4, 4.0), (1, 5, 5.0)):
        checkpoints.save(Moment(stage, 0, state_at(step, loss=1.0)), judged)
    assert steps_in(tmp_path) == [3, 5]


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
    damage(tmp_path / "10.safetensors")
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
    flip(tmp_path / "5.safetensors")
    truncate(tmp_path / "10.safetensors")
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
    assert steps_in(tmp_path) == [5]


def test_stray_files_are_ignored(tmp_path):
    moment = Moment(0, 0, state_at(5))
    save(tmp_path, moment)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "more").mkdir()
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    (tmp_path / "12.safetensors").mkdir()
    (tmp_path / "twelve.safetensors").write_bytes(b"")
    assert_same(restore(tmp_path).state, moment.state)
    assert (tmp_path / "notes.txt").read_text() == "mine"

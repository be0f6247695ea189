"""Checkpoints: round trips, and the refusal of damaged or modified files."""

import logging
import shutil
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.problems import problem

import node_fit as nf
from node_fit.runtime.placement import carry, dtype_of, scope
from node_fit.storage.checkpoint import CHECKPOINT_SCHEMA, CheckpointError, Checkpoints, steps_in, to_arrays
from node_fit.storage.files import CHECKPOINT_STEPS, pack, unpack
from node_fit.training.callback import RunState


def state_at(step, loss=1.0, optimizer=None, field=None, precision="x32"):
    """A training state whose numbers depend on the step."""
    state = problem(optimizer or nf.Adam(), precision, field=field)[3]
    shifted = jax.tree.map(lambda p: p + jnp.asarray(step, p.dtype), state.params)
    where = lambda s: (s.step, s.params, s.chosen.loss)  # noqa: E731
    return carry(eqx.tree_at(where, state, (jnp.int32(step), shifted, jnp.asarray(loss))), dtype_of(precision))


def at(step, loss=1.0, stage=0, offset=0):
    """The state of a run with one member."""
    return RunState(stage, offset, (state_at(step, loss),))


def save(directory, *moments, **options):
    checkpoints = Checkpoints(directory, **options)
    for moment in moments:
        checkpoints.save(moment)


def restore(directory, optimizer=None, field=None, precision="x32"):
    return Checkpoints(directory).restore(
        lambda _, nodes: (state_at(0, optimizer=optimizer, field=field, precision=precision),),
    )


def assert_same(moment, other):
    mine, theirs = to_arrays(moment.members), to_arrays(other.members)
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


# An optimizer whose state holds a PRNG key.
NOISY = nf.Optax(optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(3)), optax.sgd(0.1)))


@pytest.mark.parametrize("optimizer", [nf.Adam(), nf.LBFGS(memory=3), NOISY], ids=["adam", "lbfgs", "noisy"])
def test_what_is_saved_comes_back(tmp_path, optimizer, precision):
    with scope(precision):
        moment = RunState(1, 100, (state_at(7, optimizer=optimizer, precision=precision),))
        save(tmp_path, moment)
        back = restore(tmp_path, optimizer=optimizer, precision=precision)
        assert (back.stage, back.offset) == (1, 100)
        assert_same(back, moment)


def test_nothing_saved_is_nothing_restored(tmp_path):
    assert restore(tmp_path / "new") is None


def test_the_newest_and_the_best_are_kept(tmp_path):
    losses = {1: 5.0, 2: 0.5, 3: 4.0, 4: float("nan"), 5: 3.0, 6: 2.0}
    save(tmp_path, *(at(step, loss) for step, loss in losses.items()), keep=2)
    assert steps_in(tmp_path) == [2, 5, 6]
    assert int(restore(tmp_path).members[0].step) == 6


def test_the_best_is_by_what_it_was_judged_by_and_of_the_latest_stage(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    for stage, step, judged in ((0, 1, 0.1), (1, 2, 3.0), (1, 3, 2.0), (1, 4, 4.0), (1, 5, 5.0)):
        checkpoints.save(at(step, stage=stage), judged)
    assert steps_in(tmp_path) == [3, 5]


def test_a_moment_is_saved_once(tmp_path):
    first = at(5, loss=1.0)
    save(tmp_path, first, at(5, loss=2.0))
    assert_same(restore(tmp_path), first)


def test_steps_count_over_stages(tmp_path):
    save(tmp_path, at(20), at(5, stage=1, offset=20))
    back = restore(tmp_path)
    assert (back.stage, back.offset, int(back.members[0].step)) == (1, 20, 5)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_is_passed_over_with_a_warning(tmp_path, damage, caplog):
    older, newest = at(5), at(10)
    save(tmp_path, older, newest)
    damage(tmp_path / "10.safetensors")
    with caplog.at_level(logging.WARNING, logger="node_fit"):
        back = restore(tmp_path)
    assert_same(back, older)
    warnings = [r.getMessage() for r in caplog.records if r.name.startswith("node_fit")]
    assert len(warnings) == 1
    assert str(tmp_path / "10") in warnings[0]
    assert "damaged" in warnings[0]
    # The damaged checkpoint does not prevent a new save of that step.
    save(tmp_path, newest)
    assert_same(restore(tmp_path), newest)


def test_if_all_are_damaged_they_are_named(tmp_path):
    save(tmp_path, at(5), at(10))
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
    save(tmp_path, at(5))
    if leaf is None:  # A schedule has no state.
        assert restore(tmp_path, **change) is not None
        return
    with pytest.raises(CheckpointError, match="belongs to another model or optimizer") as caught:
        restore(tmp_path, **change)
    assert leaf in str(caught.value)
    assert steps_in(tmp_path) == [5]


def forge(file: Path, change) -> None:
    """Rewrites a checkpoint with modified content and a valid digest."""
    content, arrays = unpack(file)
    change(content, arrays)
    pack(file, content, arrays)


def test_each_member_comes_back_under_its_number(tmp_path):
    run = RunState(0, 0, (state_at(5), state_at(3, loss=2.0)))
    save(tmp_path, run)
    names = unpack(tmp_path / "5.safetensors")[1]
    assert {name.partition(".")[0] for name in names} == {"0", "1"}
    back = Checkpoints(tmp_path).restore(lambda _, nodes: (state_at(0), state_at(0)))
    assert_same(back, run)
    with pytest.raises(CheckpointError, match=r"1\.\S+ is \S+ in the checkpoint and absent in this run"):
        restore(tmp_path)


def test_a_newer_schema_is_refused_and_no_damage(tmp_path):
    """An older checkpoint next to it is not resumed, since that would undo the work of the newer version."""
    save(tmp_path, at(5), at(10))
    forge(
        tmp_path / "10.safetensors", lambda content, _: content.update(schema=CHECKPOINT_SCHEMA + 1, node_fit="7.1.0")
    )
    with pytest.raises(CheckpointError, match=r"schema \d+, and this node_fit .*; pip install 'node_fit>=7\.1\.0'"):
        restore(tmp_path)
    assert steps_in(tmp_path) == [5, 10]


def test_an_older_schema_is_brought_up_by_its_step(tmp_path, monkeypatch):
    moment, old, new = at(5), "0.mark", "0.reference"
    save(tmp_path, moment)

    def age(content, arrays):
        content.update(schema=CHECKPOINT_SCHEMA - 1)
        arrays[old] = arrays.pop(new)

    def rename(content, arrays):
        return content, {new if name == old else name: array for name, array in arrays.items()}

    forge(tmp_path / "5.safetensors", age)
    with pytest.raises(CheckpointError, match=f"schema {CHECKPOINT_SCHEMA - 1}, of a node_fit before version"):
        restore(tmp_path)
    monkeypatch.setitem(CHECKPOINT_STEPS, CHECKPOINT_SCHEMA - 1, rename)
    assert_same(restore(tmp_path), moment)


def of_run(directory, run):
    return Checkpoints(directory, run=run)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    """Also an older or a better one, which would be found later, or deleted."""
    template = lambda _, nodes: (state_at(0),)  # noqa: E731
    for name, step in (("one", 5), ("other", 10), ("older", 3)):
        of_run(tmp_path / name, None if name == "older" else name).save(at(step))
        assert of_run(tmp_path / name, None if name == "older" else name).restore(template).step == step
    for name, copied in (("one", "other/10"), ("other", "one/5"), ("one", "older/3"), ("older", "one/5")):
        shutil.copytree(tmp_path / name, tmp_path / "copy")
        shutil.copy(tmp_path / f"{copied}.safetensors", tmp_path / "copy")
        before = steps_in(tmp_path / "copy")
        with pytest.raises(CheckpointError, match="belongs to another run") as caught:
            of_run(tmp_path / "copy", None if name == "older" else name).restore(template)
        assert copied.partition("/")[2] in str(caught.value) and steps_in(tmp_path / "copy") == before
        shutil.rmtree(tmp_path / "copy")


def test_a_damaged_identity_is_damage(tmp_path):
    for step in (5, 10):
        of_run(tmp_path, "abcdef").save(at(step))
    path = tmp_path / "10.safetensors"
    path.write_bytes(path.read_bytes().replace(b"abcdef", b"abcdee"))
    assert of_run(tmp_path, "abcdef").restore(lambda _, nodes: (state_at(0),)).step == 5


@pytest.mark.parametrize("key", ["stage", "offset", "nodes", "loss", "run", "schema"])
def test_a_forged_checkpoint_is_refused_in_a_sentence(tmp_path, key):
    """With a valid digest, whatever its description says."""
    stages = [(state_at(0),)]
    values = (-1, 1, 10**9, 10**12, 10**400, 1e300, float("nan"), "x", True, None, [1], {"a": 1})
    outcomes = set()
    for value in values:
        save(tmp_path, at(5))
        forge(tmp_path / "5.safetensors", lambda content, _, value=value: content.update({key: value}))
        try:
            outcomes.add(Checkpoints(tmp_path).restore(lambda stage, nodes: stages[stage]).step)
        except CheckpointError as error:
            outcomes.add("refused")
            assert str(tmp_path) in str(error) and "\n" not in str(error) and len(str(error)) < 500
        (tmp_path / "5.safetensors").unlink()
    assert "refused" in outcomes or key == "loss"


def test_stray_files_are_ignored(tmp_path):
    moment = at(5)
    save(tmp_path, moment)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "more").mkdir()
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    (tmp_path / "12.safetensors").mkdir()
    (tmp_path / "twelve.safetensors").write_bytes(b"")
    assert_same(restore(tmp_path), moment)
    assert (tmp_path / "notes.txt").read_text() == "mine"

"""Checkpoints that a disk has changed: every file of one in turn, and every leaf, is found out."""

import gc
import logging
import random

import numpy as np
import pytest

from faults.moments import content, fill, moment_at, restore
from node_fit.checkpoint import CheckpointError, digest, to_arrays

# Orbax leaves tasks unfinished when it can't read a file, and these complain when they are collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def collected():
    yield
    gc.collect()


# Flips of a file, each of one bit. Some bits say nothing (a date, a comment of the format), and then all is as it was.
FLIPS = 3


def files_of(directory) -> list:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def flipped(whole: bytes, draw: random.Random) -> bytes:
    damaged = bytearray(whole)
    damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    return bytes(damaged)


def damages(whole: bytes, draw: random.Random) -> dict[str, bytes | None]:
    flips = {f"flip {index}": flipped(whole, draw) for index in range(FLIPS)}
    return {**flips, "cut": whole[: len(whole) // 2], "empty": b"", "gone": None}


def test_damage_to_any_file_is_found_or_changes_nothing(tmp_path, caplog, collected, record_property):
    """Never another moment than one that was saved, and never a stop while one before it is whole."""
    older, newest = moment_at(5), moment_at(10)
    draw = random.Random(1)
    found: dict[str, int] = {}
    fill(tmp_path / "first", older, newest)
    names = [path.relative_to(tmp_path / "first" / "10") for path in files_of(tmp_path / "first" / "10")]
    record_property("faults", len(names) * (FLIPS + 3))
    assert len(names) > 5, "arrays, their index, and what Orbax and this package say of them"
    for name in names:
        directory = tmp_path / "run"
        fill(directory, older, newest)
        target = file_like(directory / "10" / name)
        for kind, damaged in damages(target.read_bytes(), draw).items():
            whole = target.read_bytes()
            target.unlink() if damaged is None else target.write_bytes(damaged)
            caplog.clear()
            with caplog.at_level(logging.WARNING, logger="node_fit"):
                back = restore(directory)
            said = " ".join(record.getMessage() for record in caplog.records if record.name.startswith("node_fit"))
            if back.step == 5:
                assert content(back) == content(older), (name, kind)
                assert str(directory / "10") in said and "damaged" in said, (name, kind)
                assert not (directory / "10").exists(), "it would be taken for the newest again"
                found[kind.split()[0]] = found.get(kind.split()[0], 0) + 1
                fill(directory, newest)
                target = file_like(directory / "10" / name)
            else:
                assert content(back) == content(newest), (name, kind)
                assert said == ""
                target.write_bytes(whole)
    assert all(found.get(kind, 0) > 2 for kind in ("flip", "cut", "empty", "gone")), found


def file_like(path):
    """The file there; or the largest beside it, for Orbax draws names of files of arrays anew each time."""
    return path if path.is_file() else max(files_of(path.parent), key=lambda other: other.stat().st_size)


def test_a_flipped_bit_of_any_leaf_is_found(tmp_path, monkeypatch, record_property):
    """The bit is flipped before the arrays are packed, for in their files it may fall anywhere."""
    older, newest = moment_at(5), moment_at(10)
    arrays = to_arrays(newest.state)
    record_property("faults", len(arrays))
    fill(tmp_path, older)
    for name in arrays:
        damaged = {key: array.copy() for key, array in arrays.items()}
        damaged[name].reshape(-1).view(np.uint8)[-1] ^= 1
        with monkeypatch.context() as patch:
            patch.setattr("node_fit.checkpoint.to_arrays", lambda _, damaged=damaged: damaged)
            patch.setattr("node_fit.checkpoint.digest", lambda _, meta: digest(arrays, meta))
            fill(tmp_path, newest)
        assert content(restore(tmp_path)) == content(older), name


@pytest.mark.parametrize(("before", "after"), [('"offset": 0', '"offset": 7'), ('"stage": 0', '"stage": 1')])
def test_a_change_of_what_is_said_of_the_arrays_is_found(tmp_path, before, after):
    fill(tmp_path, moment_at(5), moment_at(10))
    meta = tmp_path / "10" / "meta" / "metadata"
    assert before in meta.read_text()
    meta.write_text(meta.read_text().replace(before, after))
    assert restore(tmp_path).step == 5


def test_half_written_and_half_deleted_checkpoints_are_passed_over_and_swept(tmp_path, collected):
    older, newest = moment_at(5), moment_at(10)
    fill(tmp_path, older, newest)
    (tmp_path / "12.orbax-checkpoint-tmp-3" / "state").mkdir(parents=True)
    for path in files_of(tmp_path / "10")[::2]:
        path.unlink()
    (tmp_path / "notes.txt").write_text("mine")
    assert content(restore(tmp_path)) == content(older)
    assert {path.name for path in tmp_path.iterdir()} == {"5", "notes.txt"}
    fill(tmp_path, *(moment_at(step) for step in (20, 21, 22, 23)))
    assert restore(tmp_path).step == 23


def test_all_bad_is_said_and_nothing_is_deleted(tmp_path, collected):
    fill(tmp_path, moment_at(5), moment_at(10))
    for step in ("5", "10"):
        for path in files_of(tmp_path / step):
            path.write_bytes(path.read_bytes()[:-1])
    before = files_of(tmp_path)
    with pytest.raises(CheckpointError, match=r"every checkpoint is damaged: .*10.*5"):
        restore(tmp_path)
    assert files_of(tmp_path) == before

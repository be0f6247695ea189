"""Damaged checkpoints: every flipped bit and every truncation is detected."""

import json
import logging
import random
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from faults.moments import content, fill, moment_at, restore
from node_fit.storage.checkpoint import CheckpointError, to_arrays
from node_fit.storage.files import BadFile, digest, unpack

# Numbers of single-bit flips, drawn over the whole file, and of truncations.
FLIPS, CUTS = 300, 30


def flipped(whole: bytes, byte: int, bit: int) -> bytes:
    damaged = bytearray(whole)
    damaged[byte] ^= 1 << bit
    return bytes(damaged)


@pytest.mark.slow
def test_no_damage_passes(tmp_path, record_property):
    fill(tmp_path, moment_at(10))
    path = tmp_path / "10.safetensors"
    whole = path.read_bytes()
    draw = random.Random(1)
    flips = [flipped(whole, draw.randrange(len(whole)), draw.randrange(8)) for _ in range(FLIPS)]
    # The header is small compared with the arrays, so each of its bytes gets a flip.
    header = 8 + int.from_bytes(whole[:8], "little")
    flips += [flipped(whole, byte, draw.randrange(8)) for byte in range(header)]
    damages = [*flips, *(whole[: draw.randrange(len(whole))] for _ in range(CUTS)), b"", whole + b"\0"]
    record_property("faults", len(damages))
    for damaged in damages:
        path.write_bytes(damaged)
        with pytest.raises(BadFile):
            unpack(path)
    path.write_bytes(whole)
    unpack(path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    path.write_bytes(flipped(path.read_bytes(), -1, 3))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flip, empty])
def test_the_one_before_is_used_and_the_damaged_one_is_named_and_deleted(tmp_path, damage, caplog):
    older, newest = moment_at(5), moment_at(10)
    fill(tmp_path, older, newest)
    path = tmp_path / "10.safetensors"
    damage(path)
    with caplog.at_level(logging.WARNING, logger="node_fit"):
        assert content(restore(tmp_path)) == content(older)
    said = " ".join(record.getMessage() for record in caplog.records if record.name.startswith("node_fit"))
    assert str(path) in said and "damaged" in said
    assert not path.exists(), "it would count as the newest again"
    fill(tmp_path, newest)
    assert content(restore(tmp_path)) == content(newest)


@pytest.mark.slow
def test_a_flipped_bit_of_any_leaf_is_found(tmp_path, monkeypatch, record_property):
    """Flips a bit of each leaf in turn, before the arrays are packed."""
    older, newest = moment_at(5), moment_at(10)
    arrays = to_arrays(newest.members)
    record_property("faults", len(arrays))
    fill(tmp_path, older)
    for name in arrays:
        damaged = {key: array.copy() for key, array in arrays.items()}
        damaged[name].reshape(-1).view(np.uint8)[-1] ^= 1
        with monkeypatch.context() as patch:
            patch.setattr("node_fit.storage.checkpoint.to_arrays", lambda _, damaged=damaged: damaged)
            patch.setattr("node_fit.storage.files.digest", lambda said, _: digest(said, arrays))
            fill(tmp_path, newest)
        assert content(restore(tmp_path)) == content(older), name


@pytest.mark.parametrize("change", [{"offset": 7}, {"stage": 1}, {"nodes": 4}, {"loss": 0.5}])
def test_a_change_of_what_is_said_of_the_arrays_is_found(tmp_path, change):
    fill(tmp_path, moment_at(5), moment_at(10))
    path = tmp_path / "10.safetensors"
    with safe_open(path, framework="numpy") as file:
        said = json.loads(file.metadata()["node_fit"])
    (name,) = change
    before, after = (json.dumps(json.dumps({name: value}))[2:-2] for value in (said[name], change[name]))
    whole = path.read_bytes()
    assert whole.count(before.encode()) == 1
    changed = whole.replace(before.encode(), after.encode())
    length = int.from_bytes(whole[:8], "little") + len(changed) - len(whole)
    path.write_bytes(length.to_bytes(8, "little") + changed[8:])
    assert restore(tmp_path).step == 5


def test_half_written_checkpoints_are_swept_and_strays_are_left(tmp_path):
    older, newest = moment_at(5), moment_at(10)
    fill(tmp_path, older, newest)
    (tmp_path / ".12.safetensors.ab_d1234").write_bytes((tmp_path / "10.safetensors").read_bytes()[:100])
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "12").mkdir()
    cut(tmp_path / "10.safetensors")
    assert content(restore(tmp_path)) == content(older)
    assert {path.name for path in tmp_path.iterdir()} == {"5.safetensors", "notes.txt", "12"}
    fill(tmp_path, *(moment_at(step) for step in (20, 21, 22, 23)))
    assert restore(tmp_path).step == 23


def test_all_bad_is_said_and_nothing_is_deleted(tmp_path):
    fill(tmp_path, moment_at(5), moment_at(10))
    for path in tmp_path.iterdir():
        cut(path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=r"every checkpoint is damaged: .*10.*5"):
        restore(tmp_path)
    assert sorted(tmp_path.iterdir()) == before

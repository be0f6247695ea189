"""Files are written completely or not at all."""

import os

import pytest

from node_fit.storage.files import write_file


def test_a_file_is_whole_before_it_has_its_name(tmp_path, monkeypatch):
    path, rename, seen = tmp_path / "state", os.replace, []
    path.write_bytes(b"old")

    def watched(source, target):
        with open(source, "rb") as file:
            seen.append((path.read_bytes(), file.read()))
        rename(source, target)

    monkeypatch.setattr(os, "replace", watched)
    write_file(path, b"new")
    assert seen == [(b"old", b"new")] and path.read_bytes() == b"new"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch, call):
    path = tmp_path / "state"
    path.write_bytes(b"old")

    def fails(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(OSError, match="Input/output error"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]

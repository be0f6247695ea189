"""Random changes of the files that may come from a stranger: each is read, or refused in a sentence."""

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.io

import node_fit as nf
from faults.moments import model
from faults.test_hostile_models import forged
from node_fit.storage.files import peek
from node_fit.storage.model_file import ModelFileError, save

VALUES = (
    None, True, -1, 0, 3, 10**12, 10**400, 1e300, float("nan"), "x", "", [], [1], {}, {"tuple": []}, {"tuple": ["x"]},
    {"array": "model.start.hidden"}, {"class": "MLP", "fields": {}}, {"function": "jax.numpy.tanh"},
)  # fmt: skip
MODELS, TABLES = 100, 40
TIMES = [0.0, 1.0, 2.0]
STATES = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])


def places(node: Any, above: tuple = ()) -> Iterator[tuple]:
    """The path of each value in a description."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield (*above, key)
        yield from places(child, (*above, key))


def put(node: Any, place: tuple, value: Any) -> None:
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value


@pytest.mark.slow
def test_a_changed_model_file_is_refused_or_predicts(tmp_path, record_property):
    """What is not refused at load is harmless: the model predicts, or says in a sentence that it can't."""
    save(model(), tmp_path / "good")
    said = [("model", *place) for place in places(peek(tmp_path / "good")["model"])]
    data = nf.Dataset.from_arrays(TIMES, STATES, states=("x", "y"))
    draw, refused = random.Random(0), 0
    record_property("faults", MODELS)
    for _ in range(MODELS):
        place, value = draw.choice(said), draw.choice(VALUES)
        changed = forged(tmp_path / "good", lambda header, _, place=place, value=value: put(header, place, value))
        (tmp_path / "bad").write_bytes(changed)
        try:
            loaded = nf.load(tmp_path / "bad")
        except ModelFileError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 600, (place, value)
            continue
        with warnings.catch_warnings(action="ignore"):  # 1e300 is infinite in float32
            try:
                loaded.predict(data)
            except ValueError as error:
                assert "\n" not in str(error), (place, value)
    assert MODELS / 2 < refused < MODELS


def as_csv(path: Path) -> None:
    frame().to_csv(path, index=False)


def as_parquet(path: Path) -> None:
    frame().to_parquet(path)


def as_npz(path: Path) -> None:
    np.savez(path, t=TIMES, x=STATES[:, 0], y=STATES[:, 1])


def as_mat(path: Path) -> None:
    scipy.io.savemat(path, {"t": TIMES, "x": STATES[:, 0], "y": STATES[:, 1]})


def frame() -> pd.DataFrame:
    return pd.DataFrame({"t": TIMES, "x": STATES[:, 0], "y": STATES[:, 1]})


def changes(whole: bytes, draw: random.Random) -> Iterator[bytes]:
    """Flipped bytes, cuts, repeats, and insertions."""
    for _ in range(TABLES):
        at, many = draw.randrange(len(whole)), draw.randrange(1, 9)
        yield draw.choice(
            [
                whole[:at],
                whole[:at] + draw.randbytes(many) + whole[at + many :],
                whole[:at] + draw.randbytes(many) + whole[at:],
                whole[:at] + whole[at - many :],
                whole[:at] + b"\xff" * many + whole[at + many :],
            ]
        )
    yield b""
    yield draw.randbytes(500)


@pytest.mark.parametrize(
    ("suffix", "write"), [("csv", as_csv), ("parquet", as_parquet), ("npz", as_npz), ("mat", as_mat)]
)
def test_a_changed_table_is_read_or_refused(tmp_path, suffix, write: Callable, record_property):
    path = tmp_path / f"table.{suffix}"
    write(path)
    assert nf.read_table(path, time="t", states=["x", "y"]).states == ("x", "y")
    record_property("faults", TABLES + 2)
    refused = 0
    for content in changes(path.read_bytes(), random.Random(suffix)):
        path.write_bytes(content)
        try:
            with warnings.catch_warnings(action="ignore"):
                nf.read_table(path, time="t", states=["x", "y"])
        except (ValueError, OSError) as error:
            refused += 1
            assert str(path) in str(error) or path.name in str(error), (content, error)
            assert len(str(error)) < 1000, error
    assert refused > TABLES / 4


@pytest.mark.parametrize("pickled", [np.array([{"a": 1}], dtype=object), np.array([print], dtype=object)])
def test_pickled_arrays_are_never_read(tmp_path, pickled):
    np.savez(tmp_path / "table.npz", t=pickled, x=[1.0])
    with pytest.raises(ValueError, match=r"table\.npz"):
        nf.read_table(tmp_path / "table.npz", time="t", states=["x"])

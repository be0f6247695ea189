"""What the columns of a table are taken for: by their names, and by how they move."""

import numpy as np
import pytest

from node_fit.data.tables.guess import (
    GuessedRoles,
    find_likely_inputs,
    guess_by_names,
    is_repeating,
    look_set,
    plain_name,
)


@pytest.mark.parametrize(
    ("names", "guess"),
    [
        (["x", "t", "y"], GuessedRoles("t")),
        (["id", "t", "s"], GuessedRoles("t", "id")),
        (["ID", "TIME", "DV", "AMT"], GuessedRoles("TIME", "ID", ("DV",))),
        (["trajectory", "Time [h]", "x"], GuessedRoles("Time [h]", "trajectory")),
        (["Subject", "date", "x"], GuessedRoles("date", "Subject")),
        (["run", "minutes", "x"], GuessedRoles("minutes", "run")),  # By its place, but for the records.
        (["u_V", "t_s", "y_V"], GuessedRoles("t_s")),
        (["year", "hare"], GuessedRoles("year")),
        (["identity", "timer"], GuessedRoles("identity")),
        (["id"], GuessedRoles(None, "id")),
    ],
)
def test_names_come_before_places(names, guess):
    assert guess_by_names(names) == guess


@pytest.mark.parametrize("name", ["time", " TIME ", "Time (s)", "time [h]", "Time_s", "time_min"])
def test_units_are_no_part_of_a_name(name):
    assert plain_name(name) == "time"


def test_numbers_of_rows_name_no_records(tmp_path):
    (tmp_path / "a.csv").write_text("id,t,x\n1,0,1\n2,1,2\n3,2,3\n")
    (tmp_path / "b.csv").write_text("id,t,x\n1,0,1\n1,1,2\n2,0,3\n")
    assert not is_repeating(tmp_path / "a.csv", "id") and is_repeating(tmp_path / "b.csv", "id")


def driven(kind: str, rows: int = 200) -> np.ndarray:
    """An input and what follows it, columns `u` and `y`; or two states that move each other."""
    rng = np.random.default_rng(0)
    if kind == "swing":
        phase = np.linspace(0, 12, rows)
        return np.stack([np.cos(phase), np.sin(phase)], axis=1) + 0.01 * rng.normal(size=(rows, 2))
    if kind == "decay":  # Of one substance into another, which follows it.
        decay = np.exp(-np.linspace(0, 4, rows))
        return np.stack([decay, 1 - decay], axis=1)
    levels = np.repeat(rng.integers(0, 3, rows // 20), 20) if kind == "levels" else rng.normal(size=rows)
    u, y = levels.astype(float), np.zeros(rows)
    for row in range(rows - 1):
        y[row + 1] = 0.8 * y[row] + 0.5 * u[row]
    return np.stack([u, y], axis=1)


@pytest.mark.parametrize(
    ("kind", "why"),
    [("levels", "stays at one of 3 levels"), ("random", "is followed by 'y'"), ("swing", None), ("decay", None)],
)
def test_what_is_set_from_outside_looks_so(kind, why):
    values = driven(kind)
    found = look_set(values[:-1], np.diff(values, axis=0), ["u", "y"])
    assert found == ({} if why is None else {"u": why})


def test_steps_from_one_record_to_the_next_are_none(tmp_path):
    """Two records of few rows each, whose states differ by much at their beginnings."""
    values = driven("levels", 100)
    lines = [f"{row // 50},{row % 50},{u},{y}" for row, (u, y) in enumerate(values)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["run,t,u,y", *lines]))
    assert list(find_likely_inputs(path, "t", "run", ["u", "y"])) == ["u"]
    path.write_text("\n".join(["run,t,u,y", *lines[:20]]))
    assert find_likely_inputs(path, "t", "run", ["u", "y"]) == {}, "too few rows"

"""Compiled programs are kept, and dropped before the system runs out of memory mappings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from node_fit.runtime import compilation
from node_fit.runtime.compilation import Compilations, Programs, mappings
from node_fit.runtime.precision import carry


def doubled(factor, x):
    return factor * x


@pytest.fixture
def x():
    return carry(np.arange(3.0), np.float32)


def test_a_program_is_kept_for_its_arguments(x):
    programs, count = Programs(), Compilations()
    for _ in range(3):
        np.testing.assert_array_equal(programs.get(doubled, 2, (x,), count)(x), [0, 2, 4])
    assert count.count == 1
    programs.get(doubled, 3, (x,), count)
    programs.get(doubled, 2, (x[:2],), count)
    assert count.count == 3


def test_programs_are_forgotten_where_there_is_little_room(x, monkeypatch):
    programs, count = Programs(), Compilations()
    held = programs.get(doubled, 2, (x,), count)
    monkeypatch.setattr(compilation, "mappings", lambda: 0.6)
    programs.get(doubled, 3, (x,), count)
    monkeypatch.undo()
    np.testing.assert_array_equal(held(x), [0, 2, 4])  # Programs in use stay.
    programs.get(doubled, 2, (x,), count)
    assert count.count == 3


@pytest.mark.skipif(mappings() == 0, reason="the system does not say how many mappings a process has")
def test_forgetting_gives_mappings_back(x):
    programs, count = Programs(), Compilations()
    before = mappings()
    for size in range(1, 41):
        programs.get(lambda factor, x: jnp.sin(x @ x.T).sum() * factor, size, (x[None, :],), count)
    taken = mappings()
    assert count.count == 40 and taken > before
    programs.forget()
    assert mappings() - before < 0.2 * (taken - before)
    assert jax.device_get(programs.get(doubled, 2, (x,), count)(x)).tolist() == [0, 2, 4]

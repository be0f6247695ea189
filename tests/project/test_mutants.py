"""The list of removed guards: each is still in the file that it names, and so are the tests that must notice."""

import functools
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "faults" / "mutants.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # Where dataclasses look for their annotations.
    spec.loader.exec_module(module)
    yield module.MUTANTS
    del sys.modules["mutants"]


@functools.cache
def read(file: str) -> str:
    return (ROOT / file).read_text()


def test_each_guard_is_once_in_its_file(mutants):
    assert not {each.name: each.file for each in mutants if read(each.file).count(each.old) != 1}


def test_each_mutant_has_a_name_and_tests_of_its_own(mutants):
    names = [each.name for each in mutants]
    assert len(names) == len(set(names)) > 200
    for each in mutants:
        for test in each.tests:
            path, *parts = test.split("::")
            assert (ROOT / path).exists(), each.name
            assert all(f"def {part.split('[')[0]}(" in read(path) or f"class {part}" in read(path) for part in parts)

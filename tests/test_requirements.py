"""The pinned versions in `requirements/`: one file for each Python that the package supports, within its own bounds."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [line.split()[-1] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]


def pinned(python: str) -> dict[str, Version]:
    lines = (ROOT / "requirements" / f"{python}.txt").read_text().splitlines()
    pairs = [line.split(";")[0].split("==") for line in lines if "==" in line]
    return {name.strip().lower(): Version(version.strip()) for name, version in pairs}


def test_each_supported_python_has_a_file():
    assert sorted(path.stem for path in (ROOT / "requirements").glob("*.txt")) == sorted(PYTHONS)
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in PYTHONS


@pytest.mark.parametrize("python", PYTHONS)
def test_pinned_versions_are_within_the_bounds(python):
    versions = pinned(python)
    extras = PROJECT["optional-dependencies"]
    for text in (*PROJECT["dependencies"], *extras["test"], *extras["tune"]):
        requirement = Requirement(text)
        assert versions[requirement.name.lower()] in requirement.specifier, text

"""The pinned versions in `requirements/`: one file for each Python that the package supports, within its own bounds."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
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


# What each stand-in prints or does: of a machine with a browser, of one on which apt-get gets one, and of others.
MACHINES = {
    "has one": ({"chromium": "", "chromedriver": ""}, "run, in the Chromium found here"),
    "installs one": ({"apt-get": "installs", "id": "echo 0"}, "run, in the Chromium just installed"),
    "half of one": ({"chromium": "", "apt-get": "exit 100", "id": "echo 0"}, "skipped, for apt-get could not install"),
    "no network": ({"apt-get": "exit 100", "id": "echo 0"}, "skipped, for apt-get could not install"),
    "not root": ({"apt-get": "installs", "id": "echo 1000"}, "skipped, for there is no Chromium"),
    "not Debian": ({"id": "echo 0"}, "skipped, for there is no Chromium"),
}
INSTALLS = 'for name in chromium chromedriver; do printf "#!/bin/sh\\n" > "$HERE/$name"; chmod +x "$HERE/$name"; done'


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("machine", MACHINES)
def test_the_readmes_command_is_run_with_or_without_a_browser(machine, code, tmp_path):
    programs, words = MACHINES[machine]
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "README.md").write_text("<!-- test -->\n```sh\npython3 the tests\n```\n")
    stand_ins = {"python3": f"echo tested $*; exit {code}", "id": "echo 0"} | programs
    for name, text in stand_ins.items():
        (folder / name).write_text(f"#!/bin/sh\n{INSTALLS if text == 'installs' else text}\n")
        (folder / name).chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(folder / "python3", tmp_path / ".venv" / "bin" / "python")
    for name in ("bash", "sh", "awk", "dirname", "timeout", "chmod"):
        (folder / name).symlink_to(shutil.which(name))
    ran = subprocess.run(
        [".ci/run"], cwd=tmp_path, env={"PATH": str(folder), "HERE": str(folder)}, capture_output=True, text=True
    )
    first, *rest = ran.stdout.splitlines()
    assert first.startswith(f"browser tests: {words}")
    assert rest[:2] == ["python3 the tests", "tested the tests"] and (ran.returncode, ran.stderr) == (code, "")
    # The quick tests, with checks of hints, follow tests that pass, and then those that take long.
    told = [("--jaxtyping-packages=" in line, "-m not slow" in line, "-m long" in line) for line in rest[2:]]
    assert told == ([(True, True, False), (False, False, True)] if code == 0 else [])


@pytest.mark.slow
def test_slow_tests_are_skipped_once_their_time_is_over(tmp_path):
    (tmp_path / "conftest.py").write_text("from pathlib import Path\n" + (ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    marked = "import pytest\n\n\n@pytest.mark.slow\ndef test_one():\n    pass\n\n\ndef test_two():\n    pass\n"
    (tmp_path / "test_any.py").write_text(marked)
    for until, said in (("0", "1 passed, 1 skipped"), ("9e9", "2 passed")):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NODE_FIT_SLOW_TESTS_UNTIL": until}
        command = [sys.executable, "-m", "pytest", "-q", "test_any.py"]
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert said in ran.stdout, ran


def test_long_tests_are_left_out_on_a_slow_machine():
    script = (ROOT / ".ci" / "run").read_text()
    last = script[script.index("# And those that take long") :].replace(".venv/bin/python", "echo")
    for seconds, said in ((100, "-m pytest -q"), (3000, "long tests: left out, for the others took 50 minutes")):
        ran = subprocess.run(["bash", "-c", f"SECONDS={seconds}\n{last}"], capture_output=True, text=True, check=True)
        assert ran.stdout.startswith(said)

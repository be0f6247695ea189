"""The examples in README and docs run as they stand, and every command in them composes."""

import re
import shlex
from pathlib import Path

import pytest
from helpers.commands import python
from hydra import compose, initialize_config_dir

from node_fit.app.launching import with_or_without_plus

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    """Code blocks of a language, with the name of their page and their number there."""
    found = []
    for page in PAGES:
        for number, code in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)):
            found.append((f"{page.name}-{number}", code))
    return found


# Some examples are on two pages.
EXAMPLES = {name: code for code, name in {code: name for name, code in reversed(blocks("python"))}.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_python_examples_run(name, tmp_path):
    (tmp_path / "data").symlink_to(ROOT / "data")
    ran = python(tmp_path, EXAMPLES[name])
    assert ran.code == 0, ran.err[-2000:]


def commands() -> list[str]:
    found = []
    for _, code in blocks("sh"):
        for line in code.replace("\\\n", " ").splitlines():
            words = line.split("python -m node_fit ", 1)
            if len(words) == 2 and not words[1].startswith(("-m", "resume", "--cfg", "--config-dir")):
                found.append(words[1])
    return found


def headings() -> list[str]:
    """The commands in the first lines of config files."""
    lines = [line for path in (ROOT / "conf").rglob("*.yaml") for line in path.read_text().splitlines()[:2]]
    found = [line.partition("# python -m node_fit ")[2] for line in lines]
    return [re.split(", (?:or|about) ", words)[0] for words in found if words and not words.startswith(("-m", "["))]


@pytest.mark.parametrize("command", [*commands(), *headings()])
def test_commands_compose(command):
    words = [word for word in shlex.split(command, comments=True) if "=" in word]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"), with_or_without_plus():
        compose("config", words)

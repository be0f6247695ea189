"""The examples in README and docs run as they stand and print what is quoted, and every command in them composes.

`pytest tests/project/test_docs.py --update-docs` rewrites the quotes that are no longer true.
"""

import re
import shlex
from pathlib import Path

import pytest
from helpers.commands import node_fit, python
from helpers.printed import COMMAND, EXAMPLE, Quote, find_quotes, find_stale_line, is_alike, renew, rewrite
from hydra import compose, initialize_config_dir

from node_fit.app.launching import with_or_without_plus
from node_fit.app.recognition import MODEL_FILES

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
QUOTES = {quote.program: quote for quote in find_quotes(PAGES, EXAMPLE)}
QUOTED_COMMANDS = {quote.program: quote for quote in find_quotes(PAGES, COMMAND)}


def check(quote: Quote, output: str, *, update: bool) -> None:
    stale = find_stale_line(quote.text, output)
    if stale is not None and update:
        rewrite(quote, output, PAGES)
    else:
        assert stale is None, f"{quote.page.name} is stale at {stale!r}; the program prints\n{output}"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_python_examples_run_and_print_what_is_quoted(name, tmp_path, pytestconfig):
    (tmp_path / "data").symlink_to(ROOT / "data")
    ran = python(tmp_path, EXAMPLES[name])
    assert ran.code == 0, ran.err[-2000:]
    if EXAMPLES[name] in QUOTES:
        check(QUOTES[EXAMPLES[name]], ran.out, update=pytestconfig.getoption("update_docs"))


@pytest.mark.slow
@pytest.mark.parametrize("command", QUOTED_COMMANDS)
def test_commands_print_what_is_quoted(command, tmp_path, pytestconfig):
    (tmp_path / "data").symlink_to(ROOT / "data")
    module, *arguments = shlex.split(command)
    ran = node_fit(tmp_path, *arguments, module=module)
    assert ran.code == 0, ran.err[-2000:]
    check(QUOTED_COMMANDS[command], ran.out, update=pytestconfig.getoption("update_docs"))


def test_quotes_may_differ_in_last_digits_alone():
    printed = "532 steps, 4 parameters; loss 1e-09\n  dx/dt = -0.41*x\ntest all  0.285   0.919\ngood: NRMSE 0.3.\n"
    alike = "467 steps, 4 parameters; loss 7e-06\n  dx/dt = -0.40*x\ntest all 0.29 0.92\ngood: NRMSE 0.29.\n"
    assert find_stale_line(alike, printed) is None
    for old, new in (
        ("0.40", "0.60"),
        ("-0.40", "0.40"),
        ("good", "close"),
        ("4 para", "9 para"),
        ("test all", "test"),
    ):
        stale = find_stale_line(alike.replace(old, new), printed)
        assert stale is not None and new in stale
    assert find_stale_line("...\ngood: NRMSE 0.3.\n", printed) is None
    assert find_stale_line("good: NRMSE 0.3.\n", printed) is not None
    assert find_stale_line(alike, f"{printed}more\n") == "more" and find_stale_line(f"{alike}more\n", printed) == "more"
    assert find_stale_line(alike, f"compiling main, 3 s so far\n{printed}") is None, "how long it waits is no quote"
    assert is_alike(
        "report: outputs/2026-11-22/19-53-10-1/report.html", "report: outputs/2026-12-01/08-00-00-2/report.html"
    )


def test_stale_quotes_are_renewed():
    printed = "dx/dt = -0.61*x\ntried 2 fits\n  dx/dt = -0.59*x\nclose: NRMSE 0.3.\n"
    quote = "dx/dt = -0.4*x\n...\n  dx/dt = -0.61*x\nclose: NRMSE 0.1.\n"
    assert renew(quote, printed) == "dx/dt = -0.61*x\n...\n  dx/dt = -0.59*x\nclose: NRMSE 0.3.\n"
    assert renew("close: NRMSE 0.1.\n", printed) == printed


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
    words = shlex.split(command, comments=True)
    sources = [f"data={MODEL_FILES[Path(word).suffix]}" for word in words if Path(word).suffix in MODEL_FILES]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"), with_or_without_plus():
        compose("config", [*sources[:1], *(word for word in words if "=" in word)])

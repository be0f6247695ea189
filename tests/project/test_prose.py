"""Docstrings and comments avoid phrases that read as translated."""

import ast
from pathlib import Path

import prose
import pytest

PACKAGE = Path(__file__).parents[2] / "node_fit"
# Uses per 10,000 words; other packages of the field have 8 of the first, and fewer than 2 of the others.
MOST_USES = {"what": 8.0, "say": 2.0, "tell": 2.0, "of which": 2.0, "so many": 2.0}


def test_phrases_that_read_as_translated_are_rare():
    parts = [part for parts in prose.read_package(PACKAGE).values() for part in parts]
    rates = prose.count_phrases(parts)
    assert rates.keys() == MOST_USES.keys()
    assert not {name: rate for name, rate in rates.items() if rate > MOST_USES[name]}


def test_docstrings_and_comments_are_counted_and_code_is_not():
    source = '"""What it says."""\nwhat = "so many"  # tells of which\n'
    parts = list(prose.read_prose(source))
    assert parts == [prose.Prose(1, "What it says."), prose.Prose(2, "# tells of which")]
    assert prose.count_phrases(parts) == pytest.approx(
        {"what": 1e4 / 7, "say": 1e4 / 7, "tell": 1e4 / 7, "of which": 1e4 / 7, "so many": 0}
    )


@pytest.mark.parametrize("name", ["found", "each"])
def test_local_variables_say_what_they_hold(name):
    stored = [
        node.id
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    assert stored.count(name) <= 30

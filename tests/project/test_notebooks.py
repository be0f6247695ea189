"""The notebooks of docs/ run as they stand, and their stored outputs are what they print.

`python scripts/docs/notebooks.py` renews the outputs.
"""

import base64
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from helpers.commands import ENVIRONMENT
from helpers.printed import find_stale_line

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs").glob("notebook_*.ipynb"))
LARGEST_PICTURE = 80_000  # bytes
of_each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def outputs_of(path: Path) -> list[list[nbformat.NotebookNode]]:
    """The outputs of each cell with code."""
    return [cell.outputs for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def printed_by(outputs: list[nbformat.NotebookNode]) -> str:
    """What a cell prints, and the texts of what it shows, without the sizes of pictures."""
    texts = [each.text if each.output_type == "stream" else each.data.get("text/plain", "") for each in outputs]
    return re.sub(r"<Figure size \S+", "<Figure", "\n".join(texts))


def kinds_of(outputs: list[nbformat.NotebookNode]) -> list[str]:
    """What each output of a cell is: its stream, or its richest form."""
    return [each.name if each.output_type == "stream" else min(each.get("data", {"error": ""})) for each in outputs]


@pytest.mark.long
@pytest.mark.slow
@of_each
def test_notebooks_run_and_print_what_is_stored(path, tmp_path):
    """Networks that another processor trains differ in their last digits, so numbers are compared as quotes are: a
    fifth of difference is allowed, and no other word (`helpers/printed.py`)."""
    command = [sys.executable, ROOT / "scripts" / "docs" / "notebooks.py", path, "--out", tmp_path]
    ran = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    stored, fresh = outputs_of(path), outputs_of(tmp_path / path.name)
    assert [kinds_of(cell) for cell in fresh] == [kinds_of(cell) for cell in stored]
    for old, new in zip(stored, fresh, strict=True):
        stale = find_stale_line(printed_by(old), printed_by(new))
        assert stale is None, f"{path.name} is stale at {stale!r}; the cell prints\n{printed_by(new)}"


@of_each
def test_stored_notebooks_hold_outputs_alone_that_suit_any_reader(path):
    text, cells = path.read_text(), outputs_of(path)
    assert 8 <= len(nbformat.read(path, as_version=4).cells) <= 14 and any(cells)
    kinds = [kind for cell in cells for kind in kinds_of(cell)]
    assert set(kinds) == {"stdout", "image/png"}, "neither errors nor warnings"
    assert not [place for place in ("/tmp", "/home", "/root", "/Users") if place in text]
    assert "execution_count" in text and '"iopub.' not in text, "no times of cells"
    for outputs in cells:
        for each in outputs:
            picture = each.get("data", {}).get("image/png", "")
            assert len(base64.b64decode(picture)) < LARGEST_PICTURE


def test_every_notebook_is_in_the_menu_and_linked_from_the_start():
    menu, start = (ROOT / "mkdocs.yml").read_text(), (ROOT / "docs" / "start.md").read_text()
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        assert f"{path.stem}.md" in menu and f"]({path.name})" in start


def test_stale_numbers_and_words_are_noticed():
    assert find_stale_line("mu = 0.499 [0.44, 0.57]\n", "mu = 0.501 [0.45, 0.57]\n") is None
    assert find_stale_line("mu = 0.499\n", "mu = 0.7\n") and find_stale_line("good: 0.3\n", "close: 0.3\n")

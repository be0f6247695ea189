"""Executes the notebooks of docs/ and stores their outputs, without what differs from run to run.

python scripts/docs/notebooks.py                                   # all, in place
python scripts/docs/notebooks.py docs/notebook_engineer.ipynb --out elsewhere
"""

import argparse
import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
# What a notebook says of itself; a kernel would add its version.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SECONDS = 300  # that a cell may take


def main() -> None:
    parser = argparse.ArgumentParser(description="Executes notebooks and stores their outputs.")
    parser.add_argument("notebooks", nargs="*", type=Path, default=sorted((ROOT / "docs").glob("notebook_*.ipynb")))
    parser.add_argument("--out", type=Path, help="a folder for them, in place of their own")
    given = parser.parse_args()
    for path in given.notebooks:
        done = executed(path)
        (path if given.out is None else given.out / path.name).write_text(nbformat.writes(done, indent=1) + "\n")


def executed(path: Path) -> nbformat.NotebookNode:
    """A notebook with fresh outputs; its kernel imports this checkout, and runs in a folder that is then removed."""
    os.environ |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=SECONDS, resources=place, coalesce_streams=True).execute()
    return cleaned(notebook)


def cleaned(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook without times and versions."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
    return notebook


if __name__ == "__main__":
    main()

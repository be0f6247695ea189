"""`import node_fit`: what it lists, and that it neither reads the command line nor changes the process."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import node_fit

ROOT = Path(__file__).parents[2]


def run(code: str, *arguments: str) -> str:
    """What a program prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("argv", [["node-fit", "--version"], ["-m", "--version"], ["node_fit", "open"], []])
def test_it_neither_reads_the_command_line_nor_changes_the_process(argv):
    code = f"""if True:
        import gc, os, signal, sys
        sys.argv = {argv!r}
        sys.orig_argv = ["python", "-m", "node_fit", *sys.argv[1:]]
        look = lambda: (dict(os.environ), gc.get_threshold(), signal.getsignal(signal.SIGINT), list(sys.argv))
        before = look()
        import node_fit
        assert look() == before
        import node_fit.startup
        assert look() == before
    """
    assert run(code) == ""


def test_the_lists_agree():
    """Python, type checkers and the documentation read three lists of the public names."""
    checkers = {
        (name.name, node.module)
        for node in ast.walk(ast.parse((ROOT / "node_fit" / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module != "runtime.serialization"
        for name in node.names
    }
    assert checkers == set(node_fit._HOMES.items())
    assert {name for name, _ in checkers} == set(node_fit.__all__)
    assert node_fit.read_table == node_fit.Dataset.from_file  # by the name that it always had
    assert all(getattr(node_fit, name).__name__ == name for name in node_fit.__all__ if name != "read_table")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        _ = node_fit.fitt


@pytest.mark.slow
def test_functions_with_the_name_of_a_folder_stay_functions():
    code = """if True:
        import node_fit
        import node_fit.export.export, node_fit.discover
        from node_fit.petab import objective
        print(*[type(each).__name__ for each in (node_fit.export, node_fit.discover, node_fit.objective, objective)])
    """
    assert run(code).split() == ["function", "function", "function", "module"]


@pytest.mark.slow
def test_every_class_of_a_model_has_its_name_once_files_are_read():
    """A model is read in a process that has named none of its classes."""
    code = """if True:
        import node_fit
        from node_fit.runtime.serialization import CLASSES
        from node_fit.storage.model_file import allowed_class
        allowed_class("MLP", ())
        before = set(CLASSES)
        [getattr(node_fit, name) for name in node_fit.__all__]
        print(*sorted(set(CLASSES) - before))
    """
    assert run(code).split() == []

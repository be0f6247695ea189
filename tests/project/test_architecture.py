"""The import order of the package's folders, and size limits for files and functions."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import concepts
import pytest

PACKAGE = Path(__file__).parents[2] / "node_fit"

# A folder imports only from folders before it. `__init__` lists the library's public names. The application and the
# commands come after it.
LIBRARY = [
    "runtime",
    "data",
    "expressions",
    "minimize",
    "solver",
    "likelihood",
    "model",
    "objectives",
    "optimizers",
    "training",
    "options",
    "evaluation",
    "plots",
    "analysis",
    "storage",
    "sysid",
    "uncertainty",
    "discover",
    "mechanics",
    "fitting",
    "ecosystem",
    "population",
    "export",
    "petab",
    "sample",
    "__init__",
]
APPLICATION = ["startup", "report", "app", "predict", "tune", "benchmark", "workbench", "__main__"]
FOLDERS = LIBRARY + APPLICATION
FOR_COMMANDS = {"hydra", "omegaconf", "argparse"}
MOST_FILES_AT_ROOT, MOST_LINES, LONGEST_FUNCTION = 6, 900, 60
# A file is an idea: few are fragments.
FRAGMENT, MOST_FRAGMENTS, MOST_SHARED_NAMES = 45, 12, 2
# `Any` hides what is passed; where nothing better can be said, it is counted.
MOST_ANY = 150
# Past participles not in -ed, other than verbs (`read`, `put`, `cut`, `split`); and names by
# a participle alone that users know.
IRREGULAR = {
    "told",
    "found",
    "kept",
    "held",
    "given",
    "known",
    "made",
    "drawn",
    "begun",
    "seen",
    "shown",
    "taken",
    "said",
}
PUBLIC = {"closed", "derived", "expected", "found", "given", "known", "named", "fixed"}


@functools.cache
@functools.cache
def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Maps dotted names to the files of the package; an `__init__` has the name of its folder."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


MODULES = modules()


@functools.cache
def imported(path: Path, package: Path = PACKAGE) -> tuple[set[str], set[str]]:
    """The imports of a file, at the top or inside functions: files of the package, and other packages."""
    inside, outside = set(), set()
    known = modules(package)
    folder = path.relative_to(package).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            outside.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            outside.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            base = [*folder[: len(folder) + 1 - node.level], *filter(None, (node.module or "").split("."))]
            for alias in node.names:
                whole = ".".join([*base, alias.name])
                inside.add(whole if whole in known else ".".join(base) or "__init__")
    return inside, outside


def folder_of(name: str) -> str:
    """The first folder; a folder's `__main__` is a command."""
    return "__main__" if name.endswith("__main__") else name.split(".")[0]


def upward(name: str, path: Path, order: list[str], package: Path = PACKAGE) -> set[str]:
    """The imports of a file from folders that come after its own."""
    place = order.index(folder_of(name))
    return {other for other in imported(path, package)[0] if order.index(folder_of(other)) > place}


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Number of lines of a function without its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return 1 + (body[-1].end_lineno or 0) - body[0].lineno if body else 0


def test_every_file_is_in_a_folder_of_the_list():
    assert {folder_of(name) for name in MODULES} == set(FOLDERS)


def test_the_root_holds_few_files():
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_FILES_AT_ROOT


def test_a_file_imports_only_from_its_own_folder_and_those_before():
    found = {name: upward(name, path, FOLDERS) for name, path in MODULES.items()}
    assert not {name: wrong for name, wrong in found.items() if wrong}
    absolute = [name for name, path in MODULES.items() if "node_fit" in imported(path)[1]]
    assert not absolute, "the package uses relative imports of itself"


def test_no_files_import_each_other_in_a_circle():
    graph = {name: imported(path)[0] - {name} for name, path in MODULES.items()}
    # A folder's `__init__` imports nothing, so importing one file of the folder does not import the others.
    assert all(not graph[name] for name, path in MODULES.items() if path.name == "__init__.py" and name != "__init__")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {error.args[1]}")


def test_files_and_functions_are_short():
    texts = {name: path.read_text() for name, path in MODULES.items()}
    assert not [name for name, text in texts.items() if len(text.splitlines()) > MOST_LINES]
    functions = {
        (name, f.name): body_lines(f)
        for name, text in texts.items()
        for f in ast.walk(ast.parse(text))
        if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not {where: lines for where, lines in functions.items() if lines > LONGEST_FUNCTION}


def homes(wanted: Callable[[ast.stmt], Iterator[str]]) -> dict[str, set[str]]:
    """The modules that define each name at their top level."""
    found: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            for each in wanted(node):
                found.setdefault(each, set()).add(name)
    return found


def public_definitions(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_") and node.name != "main":
        yield node.name


def constants(node: ast.stmt) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    yield from (
        x.id for each in targets for x in ast.walk(each) if isinstance(x, ast.Name) and x.id.strip("_").isupper()
    )


def test_a_file_is_an_idea():
    paths = [path for path in MODULES.values() if path.name != "__init__.py"]
    assert sum(len(path.read_text().splitlines()) <= FRAGMENT for path in paths) <= MOST_FRAGMENTS


def test_there_is_one_kind_of_expression():
    """One parser, one table of operations and one tree serve equations, PEtab, SBML, discovery and exports."""
    python = {name for name, path in MODULES.items() if "ast" in imported(path)[1]}
    assert python == {"expressions.python_syntax"}, "which words what is wrong with a text"
    assert homes(public_definitions)["Parser"] == {"expressions.parsing"}
    assert homes(constants)["OPERATIONS"] == {"expressions.operations"}
    assert homes_of("a table of functions by their names") == {"expressions.operations"}


def homes_of(idea: str) -> set[str]:
    """The modules in which an idea is programmed, as `scripts/docs/concepts.py` finds it."""
    return {name for name, path in MODULES.items() if concepts.IDEAS[idea](path.read_text())}


def test_explicit_methods_have_one_step():
    """Steps that adapt, that are held, and that are held between rows are the same."""
    assert homes_of("a step of an explicit method in JAX") == {"solver.methods"}


def test_three_loops_search_by_damped_steps():
    """One is compiled, one is on the host, and one trains networks by steps of an optimizer; others call them."""
    assert homes_of("a search by damped steps") == {
        "minimize.compiled",
        "minimize.host",
        "optimizers.levenberg_marquardt",
    }
    host = ast.parse(MODULES["minimize.host"].read_text())
    looping = [f.name for f in host.body if isinstance(f, ast.FunctionDef) and ".accepts(" in ast.unparse(f)]
    assert looping == ["minimize_together"]


@pytest.mark.parametrize(
    "text",
    [
        "damping = np.where(better, damping / 10, damping * 10)",
        "best[at], damping[at] = new, max(damping[at] / 10, LEAST)",
        "damping *= growth",
        "other = here._replace(damping=HARSHER * here.damping)",
        "radius = min(2 * radius, LARGEST)",
    ],
)
def test_a_loop_that_changes_its_damping_is_found(text):
    assert concepts.adapts_damping(text)
    assert not concepts.adapts_damping("matrix = information + np.diag(damping * scale)"), "a step, by whatever damping"


def test_hints_say_what_is_passed():
    assert sum(len(re.findall(r"\bAny\b", path.read_text())) for path in MODULES.values()) <= MOST_ANY


def test_a_name_has_one_home():
    shared = {name: where for name, where in homes(public_definitions).items() if len(where) > 1}
    assert len(shared) <= MOST_SHARED_NAMES, shared
    assert not {name: where for name, where in homes(constants).items() if len(where) > 1}


def function_names(text: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def bare_participles(names: set[str]) -> set[str]:
    return {name for name in names if name.strip("_") in IRREGULAR or re.fullmatch(r"_?[a-z]{3,}[^e]ed", name)}


def test_functions_are_verbs_and_properties_nouns():
    names = set[str]().union(*(function_names(path.read_text()) for path in MODULES.values()))
    assert not bare_participles(names) - PUBLIC


def test_a_name_by_a_participle_alone_is_found():
    text = "class A:\n    def settled(self): ...\n    def settle(self): ...\ndef _told(): ...\ndef held_out(): ..."
    assert bare_participles(function_names(text)) == {"settled", "_told"}


def test_the_library_knows_no_command():
    library = {name: imported(path)[1] for name, path in MODULES.items() if folder_of(name) in LIBRARY}
    assert not {name: found & FOR_COMMANDS for name, found in library.items() if found & FOR_COMMANDS}


def test_the_application_does():
    application = [path for name, path in MODULES.items() if folder_of(name) in APPLICATION]
    assert set().union(*(imported(path)[1] for path in application)) >= FOR_COMMANDS


def test_the_walk_finds_an_import_that_runs_back(tmp_path):
    """The rules can fail: for a package in which `data` imports from `model`, and with the order reversed."""
    for name, text in {
        "__init__": "",
        "data/__init__": "",
        "data/dataset": "def late():\n    from ..model.system import System\n",
        "model/__init__": "",
        "model/system": "from ..data import dataset\n",
    }.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = modules(tmp_path)
    assert upward("data.dataset", found["data.dataset"], FOLDERS, tmp_path) == {"model.system"}
    assert not upward("model.system", found["model.system"], FOLDERS, tmp_path)
    assert imported(found["model.system"], tmp_path)[0] == {"data.dataset"}
    assert any(upward(name, path, FOLDERS[::-1]) for name, path in MODULES.items())


@pytest.mark.slow
def test_loading_the_package_loads_nothing_heavy_that_it_may_not_need():
    heavy = ["matplotlib", "pandas", "scipy.interpolate", "pyarrow", "hydra", "rich"]
    code = f"""if True:
        import sys, node_fit
        print(*[name for name in ("jax", "numpy") if name in sys.modules])
        node_fit.fit, node_fit.load, node_fit.read_table
        print(*[name for name in {heavy!r} if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

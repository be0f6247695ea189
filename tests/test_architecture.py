"""The layers of the package, and that loading it is quick."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "node_fit"

# From the ground up: a file imports only from files above it in this list. The application comes after the package's
# own `__init__`, which names what the library offers.
LIBRARY = [
    "clock",
    "command",
    "disk",
    "packed",
    "memory",
    "precision",
    "processes",
    "placement",
    "compilation",
    "dataset",
    "tables.table",
    "tables.roles",
    "tables.paths",
    "tables.decimals",
    "tables.values",
    "tables.times",
    "tables.merging",
    "tables.layouts",
    "tables.covariates",
    "tables.text",
    "tables.stacks",
    "tables.binary",
    "tables.trajectories",
    "tables.reading",
    "tables",
    "splits",
    "sources",
    "bounds",
    "scaling",
    "batch",
    "system",
    "interpolation",
    "smoothing",
    "fields.field",
    "fields.linear",
    "fields.mlp",
    "fields.equations",
    "fields.constants",
    "fields.known",
    "fields.hybrid",
    "fields.physical",
    "fields.second_order",
    "fields",
    "observations.observation",
    "observations.measured",
    "observations.linear",
    "observations.network",
    "observations",
    "starts.start",
    "starts.first",
    "starts.encoder",
    "starts.fitted",
    "starts",
    "grid",
    "solver",
    "model",
    "ensemble",
    "construction",
    "model_file",
    "parameters",
    "objectives.penalty",
    "objectives.objective",
    "objectives.jacobian",
    "objectives.derivative",
    "objectives.simulation",
    "objectives.trajectory",
    "objectives.shooting",
    "objectives",
    "optimizers.optimizer",
    "optimizers.adam",
    "optimizers.curvature",
    "optimizers.line_search",
    "optimizers.custom",
    "optimizers.lbfgs",
    "optimizers.levenberg_marquardt",
    "optimizers",
    "stream",
    "goal",
    "stage",
    "training",
    "recipes",
    "members",
    "observer",
    "ending",
    "judging",
    "supply",
    "steps",
    "loop",
    "evaluation",
    "baselines",
    "simulation",
    "diagnosis",
    "prior",
    "setting",
    "fitting",
    "several",
    "plots.style",
    "plots.curves",
    "plots.selection",
    "plots.marks",
    "plots.loss",
    "plots.fit",
    "plots.phase",
    "plots",
    "checkpoint",
    "__init__",
]
APPLICATION = [
    "targets",
    "composition",
    "kept_programs",
    "configuration",
    "console",
    "leaderboard",
    "resuming",
    "run_directory",
    "interruption",
    "watcher",
    "summary",
    "parts",
    "drawing",
    "application",
    "jobs",
    "vectorized",
    "predict",
    "launching",
    "space",
    "study",
    "tune",
    "__main__",
]
LAYERS = LIBRARY + APPLICATION
COMMANDS_ALONE = {"hydra", "omegaconf", "rich", "argparse"}


def modules() -> dict[str, Path]:
    """Each file of the package by its name in it; a folder's `__init__` by the folder's."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


MODULES = modules()


def imported(name: str) -> tuple[set[str], set[str]]:
    """What a file imports, at its top or within functions: files of the package, and other packages."""
    inside, outside = set(), set()
    folder = MODULES[name].relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            outside.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            outside.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            base = [*folder[: len(folder) + 1 - node.level], *filter(None, (node.module or "").split("."))]
            for alias in node.names:
                whole = ".".join([*base, alias.name])
                inside.add(whole if whole in MODULES else ".".join(base) or "__init__")
    return inside, outside


def faults(name: str, layers: list[str]) -> set[str]:
    """What a file imports though it does not come before it."""
    return {other for other in imported(name)[0] if layers.index(other) >= layers.index(name)}


def test_every_file_has_a_layer():
    assert sorted(LAYERS) == sorted(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_a_file_imports_only_from_layers_below(name):
    assert not faults(name, LAYERS)
    assert "node_fit" not in imported(name)[1], "the package names itself by relative imports, which this test reads"


def test_the_walk_sees_imports():
    """The rule can fail: with the layers upside down nearly every file breaks it."""
    broken = [name for name in MODULES if faults(name, LAYERS[::-1])]
    assert len(broken) > len(MODULES) / 2
    assert imported("batch")[0] == {"dataset", "scaling"}
    assert {"batch", "model", "objectives.objective"} <= imported("objectives.trajectory")[0]
    assert {"parameters", "model_file"} <= imported("fitting")[0]
    assert "pandas" in imported("tables.values")[1], "within functions too"


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_knows_no_command(name):
    assert not imported(name)[1] & COMMANDS_ALONE


def test_the_application_does():
    assert set().union(*(imported(name)[1] for name in APPLICATION)) >= COMMANDS_ALONE


def test_loading_the_package_loads_nothing_heavy_that_it_may_not_need():
    heavy = ["matplotlib", "pandas", "scipy.interpolate", "pyarrow", "hydra", "rich"]
    code = f"import sys, node_fit; print(*[name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

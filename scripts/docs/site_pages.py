"""Pages of the site that are made from the code: a hook of mkdocs (see mkdocs.yml).

`keys.md` has every key of `conf/`, with its default, and what the file or the constructor's docstring says of it.
`api.md` has every public name, for mkdocstrings. Notebooks become pages with their outputs. Pages of the repository
that docs link to, such as CONTRIBUTING.md, are added.
"""

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import griffe
import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
# Pages of the repository outside of docs/, and where the site has them.
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "data/README.md": "data.md",
}
# Groups of the config, and what an option of each is.
GROUPS = {
    "data": "Data",
    "field": "Vector field",
    "start": "Start of a trajectory",
    "observation": "What is measured",
    "solver": "Solver",
    "optimizer": "Optimizer",
    "recipe": "Recipe",
    "loss": "Loss of residuals",
    "device": "Device",
    "tune": "Search",
}
# Folders of the package, and the title under which the API lists what is defined there.
FOLDERS = {
    "data": "Data",
    "fitting": "Fitting",
    "population": "Populations",
    "discover": "Discovery of equations",
    "export": "Exports",
    "petab": "PEtab problems and SBML models",
    "options": "Options and recipes",
    "model": "Models",
    "solver": "Solvers",
    "objectives": "Objectives",
    "likelihood": "Likelihoods",
    "optimizers": "Optimizers",
    "training": "Stages, members and callbacks",
    "evaluation": "Scores",
    "sysid": "Linear identification",
    "uncertainty": "Uncertainty",
    "sample": "Posteriors",
    "analysis": "Operating points and responses",
    "ecosystem": "Conventions of other packages",
    "storage": "Files",
}
# What users call of these classes, or override in subclasses; their other members serve the package alone. Classes that
# are not here show all.
MEMBERS = {
    "AbstractObjective": "takes_minibatches prepare loss residuals initial_auxiliary resample",
    "AbstractOptimizer": "full_batch init step",
    "Adam": "",
    "Batch": "from_dataset",
    "Discovery": "best weights predict experiment sympy latex",
    "Encoder": "",
    "Ensemble": "predict predict_frame solve bands constants",
    "Fit": "constants equations derived predict predict_frame bands score assess diagnose confidence laplace "
    "likelihood check_residuals equilibria linearize hopf_points to_xarray plot save",
    "Fitted": "",
    "Hybrid": "",
    "Known": "",
    "Linear": "",
    "MLP": "",
    "Members": "",
    "NetworkReadout": "",
    "NeuralODE": "vector_field simulate observe forecast batch predict compile_prediction starting_from predict_frame "
    "solve bands constants",
    "Objective": "nominal bounds on_scale log_likelihood gradient fisher_information log_prior gradient_of_log_prior "
    "simulate chi2",
    "Options": "",
    "PEtabFit": "parameters standard_errors sentence intervals profiles confidence score to_model to_models predict "
    "write draw plot",
    "Penalty": "",
    "Polynomial": "",
    "Record": "",
    "RunState": "",
    "Scaling": "",
    "Solver": "solve",
    "Split": "",
    "Splits": "",
    "Stated": "",
    "System": "in_users_units in_solver_units",
    "Table": "load",
    "Training": "",
}
# Arguments of constructors that the program gives.
GIVEN = {"system", "batch", "key", "states", "inputs", "angles", "terms", "stages", "model"}


class Key(NamedTuple):
    """A key of a config file: its full name, its default as written, and the comment beside it."""

    name: str
    default: str
    comment: str


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages and those of the repository."""
    package = griffe.load("node_fit", search_paths=[ROOT], resolve_aliases=True)
    files.append(File.generated(config, "keys.md", content=keys_page(package)))
    files.append(File.generated(config, "api.md", content=api_page()))
    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text()))
    for path in sorted((ROOT / "docs").glob("notebook_*.ipynb")):
        for name, content in notebook_page(path).items():
            files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links to notebooks, and those between docs/ and the rest of the repository, to where the site has them."""
    source = page.file.src_uri
    origin = next((path for path, name in OUTSIDE.items() if name == source), f"docs/{source}")

    def moved(link: re.Match) -> str:
        target, hash_, anchor = link[1].partition("#")
        if target.endswith(".ipynb") and target != f"{Path(source).stem}.ipynb":  # A page links to its own file.
            return f"]({target.removesuffix('.ipynb')}.md)"
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        if path not in OUTSIDE and origin not in OUTSIDE:
            return link[0]
        there = OUTSIDE.get(path, path.removeprefix("docs/"))
        return f"]({posixpath.relpath(there, posixpath.dirname(source) or '.')}{hash_}{anchor})"

    return re.sub(r"\]\((?!\w+:|#)([^)\s]+)\)", moved, markdown)


def notebook_page(path: Path) -> dict[str, str | bytes]:
    """A notebook as a page, which links to the notebook itself, and its pictures, by their names on the site."""
    page, resources = MarkdownExporter().from_filename(str(path), {"output_files_dir": f"{path.stem}_files"})
    title, _, rest = page.strip().partition("\n")
    link = f"[Download this notebook]({path.name}), with its outputs, and run it in Jupyter."
    return {f"{path.stem}.md": f"{title}\n\n{link}\n{rest}\n", **resources["outputs"]}


def keys_page(package: Any) -> str:
    """Every key of the config, by group."""
    top = list(keys_of(CONF / "config.yaml", skip=("defaults", "hydra")))
    constructors = targets_of(CONF / "config.yaml")
    lines = [
        "# Every key",
        "This page is made from the config files and the constructors' docstrings. Say `KEY=VALUE` on the command "
        "line, and `+KEY=VALUE` for a key that the option's own list lacks, such as `+data.bounds.share=[0,1]`. "
        "`python -m node_fit --cfg job` prints the config with your changes; [Options](options.md) says which matter.",
        "## All runs",
        *table(top, constructors, package),
    ]
    for group, title in GROUPS.items():
        paths = sorted((CONF / group).glob("*.yaml"))
        lines.append(f"## {title}: `{group}`")
        if group == "data":  # What ships differs in the file alone.
            lines += shipped([path for path in paths if path.stem != "table"])
            paths = [CONF / "data" / "table.yaml"]
        if group == "tune":
            lines += table(list(keys_of(CONF / "tune.yaml", skip=("defaults", "hydra"))), {}, package)
        for path in paths:
            lines += option(group, path, package)
    lines += ["## Experiments: `experiment`", *shipped(sorted((CONF / "experiment").glob("*.yaml")))]
    return "\n\n".join(join_tables(lines))


def join_tables(lines: list[str]) -> list[str]:
    """The same with the rows of each table in one piece."""
    found: list[str] = []
    for line in lines:
        if line.startswith("|") and found and found[-1].startswith("|"):
            found[-1] += "\n" + line
        else:
            found.append(line)
    return found


def option(group: str, path: Path, package: Any) -> Iterator[str]:
    """A section for an option of a group: what it is, and its keys."""
    command, said = heading(path)
    yield f"### `{group}={path.stem}`"
    if said:
        yield said
    yield f"```text\n{command}\n```" if command.startswith("python") else ""
    prefix = "tune" if group == "tune" else group
    skip = ("start",) if path.stem == "auto" and group == "start" else ()
    constructors = {f"{prefix}{'.' if name else ''}{name}": target for name, target in targets_of(path).items()}
    if target := constructors.get(prefix):
        yield f"Constructor: [`{target}`][{target}]" if target.startswith("node_fit.") else f"Constructor: `{target}`"
    keys = [key._replace(name=f"{prefix}.{key.name}") for key in keys_of(path, skip=skip)]
    if keys:
        yield from table(keys, constructors, package)


def shipped(paths: list[Path]) -> Iterator[str]:
    """A table of options that are told apart by their first lines."""
    yield "| option | meaning |"
    yield "|---|---|"
    for path in paths:
        yield f"| `{path.parent.name}={path.stem}` | {escaped(heading(path)[1])} |"


def table(keys: list[Key], constructors: dict[str, str], package: Any) -> Iterator[str]:
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for key in keys:
        parent, _, name = key.name.rpartition(".")
        told = key.comment or described(constructors.get(parent), package).get(name, "")
        default = f"`{key.default}`" if key.default else ""
        yield f"| `{key.name}` | {default} | {escaped(told)} |"
    written = {key.name for key in keys}
    for parent, target in constructors.items():  # Arguments that the file does not write down.
        for name, told in described(target, package).items():
            whole = f"{parent}.{name}"
            if name in parameters(target, package) - GIVEN and not any(key.startswith(whole) for key in written):
                yield f"| `+{whole}` | | {escaped(told)} |"


def heading(path: Path) -> tuple[str, str]:
    """The command and the words in the comment at the top of a config file."""
    words = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            words.append(line.removeprefix("#").strip())
    return (words[0], " ".join(words[1:])) if words else ("", "")


def keys_of(path: Path, skip: tuple[str, ...]) -> Iterator[Key]:
    """The keys of a config file in their order, those of nested nodes with dots."""
    parents: list[tuple[int, str]] = []
    for line in path.read_text().splitlines():
        found = re.match(r"( *)(\w+):(?: +(.*))?$", line)
        if not found or found[2] in ("_target_", "_partial_"):
            continue
        while parents and parents[-1][0] >= len(found[1]):
            parents.pop()
        name = ".".join([*(parent for _, parent in parents), found[2]])
        default, _, comment = (found[3] or "").partition("# ")
        if not default.strip():
            parents.append((len(found[1]), found[2]))
        elif name.split(".")[0] not in skip:
            yield Key(name, default.strip(), comment.strip())


def targets_of(path: Path) -> dict[str, str]:
    """The constructors that a config file names, by their keys; that of the file itself by an empty one."""
    found: dict[str, str] = {}

    def walk(node: Any, name: str) -> None:
        if isinstance(node, dict):
            if "_target_" in node and not name.startswith("hydra"):
                found[name] = node["_target_"]
            for key, value in node.items():
                walk(value, f"{name}.{key}".lstrip("."))

    walk(yaml.safe_load(path.read_text()), "")
    return found


def described(target: str | None, package: Any) -> dict[str, str]:
    """What the docstring of a constructor says of each argument."""
    if target is None or not target.startswith("node_fit."):
        return {}
    text = package[target.removeprefix("node_fit.")].docstring.value
    arguments = re.search(r"\*\*Arguments:\*\*\n(.*?)(?:\n\n(?!- )|\Z)", text, re.DOTALL)
    found = {}
    for item in re.split(r"^- ", arguments[1] if arguments else "", flags=re.MULTILINE):
        names, _, told = item.partition(": ")
        for name in re.findall(r"`(\w+)`", names):
            other = re.search(r"(?:as in|^see) `(\w+)`\.\s*$", told)
            there = described(f"node_fit.{other[1]}", package) if other else {}
            found[name] = there.get(name, told)
    return found


def parameters(target: str, package: Any) -> set[str]:
    return {each.name for each in package[target.removeprefix("node_fit.")].parameters}


def escaped(text: str) -> str:
    """Text as a cell of a table."""
    parts = re.split(r"(`[^`]*`)", re.sub(r"\s+", " ", text).replace("|", "\\|").strip())
    return "".join(part if part.startswith("`") else part.replace("_", r"\_") for part in parts)


def api_page() -> str:
    """Every public name, by the folder that defines it."""
    found: dict[str, list[str]] = {title: [] for title in FOLDERS.values()}
    for node in ast.walk(ast.parse((ROOT / "node_fit" / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in FOLDERS:
            title = FOLDERS[(node.module or "").partition(".")[0]]
            found[title] += [alias.name for alias in node.names if alias.asname is None]
    lines = ["# API", "Everything public, imported from `node_fit`. It is made from the docstrings."]
    for title, names in found.items():
        if not names:
            continue
        lines.append(f"## {title}")
        lines += [reference(name) for name in sorted(names, key=lambda name: (name[0].isupper(), name))]
    return "\n\n".join(lines) + "\n"


def reference(name: str) -> str:
    """A public name for mkdocstrings, with the members that are shown."""
    if name not in MEMBERS:
        return f"::: node_fit.{name}"
    members = ", ".join(MEMBERS[name].split())
    return f"::: node_fit.{name}\n    options:\n      members: [{members}]"

"""Counts what the package is made of: `python scripts/docs/sizes.py [REVISION ...]`, of the working tree without one.

It prints a row for each figure and a column for each revision: modules, lines, small modules, uses of `Any`, names and
constants with two homes, arguments of `fit`, rows of CONTRIBUTING's table of concepts, and keys of the default config.
"""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
# Lines of a module that is hardly one.
FRAGMENT = 45


def texts_of(revision: str | None) -> dict[str, str]:
    """The texts of a revision's Python modules, config files and CONTRIBUTING.md, by their paths."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    paths = git("ls-files") if revision is None else git("ls-tree", "-r", "--name-only", revision)
    wanted = [
        path for path in paths.split("\n") if re.match(r"node_fit/.*\.py$|conf/.*\.yaml$|CONTRIBUTING\.md$", path)
    ]
    if revision is None:
        return {path: (ROOT / path).read_text() for path in wanted if (ROOT / path).exists()}
    return {path: git("show", f"{revision}:{path}") for path in wanted}


def names_of(tree: ast.Module) -> Iterator[str]:
    """The functions and classes of a module, and its constants."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_") and node.name != "main":
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from (x.id for x in ast.walk(target) if isinstance(x, ast.Name) and x.id.strip("_").isupper())


def leaves(node: object, path: str = "") -> set[str]:
    """The full keys that have a value."""
    if not isinstance(node, dict):
        return {path}
    inner = {key: child for key, child in node.items() if key not in ("defaults", "hydra", "_target_", "_partial_")}
    return {name for key, child in inner.items() for name in leaves(child, f"{path}.{key}")}


def option_keys(texts: dict[str, str], group: str, option: str) -> set[str]:
    """The keys of an option of a group, and of those that it begins with."""
    text = texts.get(f"conf/{group}/{option}.yaml", "")
    node = yaml.safe_load(text) or {}
    others = [name.partition("@")[0] for name in node.get("defaults", []) if isinstance(name, str) and name != "_self_"]
    own = leaves(node, "" if "# @package _global_" in text else f".{group}")
    return own.union(*(option_keys(texts, group, name) for name in others))


def figures(texts: dict[str, str]) -> dict[str, float]:
    modules = {path: text for path, text in texts.items() if path.endswith(".py") and not path.endswith("__init__.py")}
    homes, arguments = defaultdict(set), 0
    for path, text in modules.items():
        tree = ast.parse(text)
        for name in names_of(tree):
            homes[name].add(path)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == "fit" and path.endswith(("/fit.py", "/fitting.py")):
                arguments = len(node.args.args) + len(node.args.kwonlyargs)
    shared = [name for name, where in homes.items() if len(where) > 1]
    lines = [len(text.splitlines()) for text in modules.values()]
    concepts = re.search(r"\| concept \|[^\n]*\n\|[-| ]*\n((?:\|[^\n]*\n)*)", texts["CONTRIBUTING.md"])
    chosen = yaml.safe_load(texts["conf/config.yaml"])
    keys = leaves(chosen)
    for each in chosen["defaults"]:
        for group, option in each.items() if isinstance(each, dict) else ():
            keys |= option_keys(texts, group, str(option))
    return {
        "modules": len(modules),
        "lines": sum(lines),
        "lines of a module, mean": round(sum(lines) / len(lines)),
        f"modules of at most {FRAGMENT} lines": sum(each <= FRAGMENT for each in lines),
        "uses of `Any`": sum(len(re.findall(r"\bAny\b", text)) for text in modules.values()),
        "functions and classes with two homes": sum(not name.strip("_").isupper() for name in shared),
        "constants with two homes": sum(name.strip("_").isupper() for name in shared),
        "arguments of `fit`": arguments,
        "concepts before a training step": len(concepts[1].splitlines()) if concepts else 0,
        "keys of the default config": len(keys),
    }


def main() -> None:
    revisions = sys.argv[1:] or [None]
    columns = [figures(texts_of(revision)) for revision in revisions]
    print("| | " + " | ".join(revision or "now" for revision in revisions) + " |")
    print("|---|" + "---|" * len(columns))
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(f"{column[name]:,}" for column in columns) + " |")


if __name__ == "__main__":
    main()

"""Counts the homes of ideas that should have one: `python scripts/docs/concepts.py [--homes] [REVISION ...]`.

It prints a row for each idea and a column for each revision, 1a080d7 and the working tree without one: in how many
modules it is programmed, and how many lines the folders have that were once programs of their own. `--homes` names the
modules. Each idea is found by what a program of it can't do without.
"""

import argparse
import ast
import re
from collections.abc import Callable, Iterator, Mapping

import sizes

BEFORE = "1a080d7"
FOLDERS = ("petab", "discover", "expressions", "minimize", "solver")
# Names of what shortens the steps of a search.
STEP_CONTROL = re.compile("damping|radius|trust")


def adapts_damping(text: str) -> bool:
    """Whether a program multiplies or divides a damping, or a radius, by a number: a search of its own."""

    def last_name(node: ast.expr) -> str:
        while isinstance(node, ast.Subscript):
            node = node.value
        return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""

    def is_number(node: ast.expr) -> bool:
        return isinstance(node, ast.Constant | ast.Attribute) or (isinstance(node, ast.Name) and node.id.isupper())

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult | ast.Div):
            if STEP_CONTROL.search(last_name(node.target)):
                return True
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
            pairs = ((node.left, node.right), (node.right, node.left))
            if any(STEP_CONTROL.search(last_name(one)) and is_number(other) for one, other in pairs):
                return True
    return False


def has(pattern: str) -> Callable[[str], bool]:
    """Whether a text has a match of a pattern."""
    return lambda text: re.search(pattern, text) is not None


IDEAS: Mapping[str, Callable[[str], bool]] = {
    "a table of functions by their names": has(r"""["'](?:sqrt|cosh)["']:"""),
    "a parser of formulas": has(r"\bast\.parse\(|class \w*Parser\b"),
    "a search by damped steps": adapts_damping,
    "a step of an explicit method in JAX": has(r"zip\(\w+\.a, \w+\.c"),
    "a differential evolution or a quasi-random draw": has(r"qmc\.Sobol|\bMUTATION\b|\bCROSSOVER\b"),
    "a log-likelihood of normal errors": has(r"log\(2 \* (?:np|jnp|math)\.pi"),
}


def modules_of(revision: str | None) -> dict[str, str]:
    """The texts of the package's modules by their dotted names."""
    texts = sizes.texts_of(revision)
    return {path.removesuffix(".py").replace("/", "."): text for path, text in texts.items() if path.endswith(".py")}


def homes(modules: Mapping[str, str], is_there: Callable[[str], bool]) -> list[str]:
    return [name.removeprefix("node_fit.") for name, text in modules.items() if is_there(text)]


def rows(modules: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    for idea, is_there in IDEAS.items():
        yield idea, len(homes(modules, is_there))
    yield "uses of `Any`", sum(len(re.findall(r"\bAny\b", text)) for text in modules.values())
    lines = {name: len(text.splitlines()) for name, text in modules.items()}
    for folder in FOLDERS:
        yield f"lines of {folder}/", sum(n for name, n in lines.items() if name.startswith(f"node_fit.{folder}."))
    yield "lines of the package", sum(lines.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revisions", nargs="*")
    parser.add_argument("--homes", action="store_true")
    given = parser.parse_args()
    revisions: list[str | None] = given.revisions or [BEFORE, None]
    found = [modules_of(revision) for revision in revisions]
    print("| | " + " | ".join(revision or "now" for revision in revisions) + " |")
    print("|---|" + "---|" * len(found))
    for columns in zip(*map(rows, found), strict=True):
        print(f"| {columns[0][0]} | " + " | ".join(f"{number:,}" for _, number in columns) + " |")
    if given.homes:
        for idea, is_there in IDEAS.items():
            print(f"\n{idea}: {', '.join(homes(found[-1], is_there)) or 'nowhere'}")


if __name__ == "__main__":
    main()

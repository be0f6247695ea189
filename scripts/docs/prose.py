"""Counts phrases to avoid in the package's docstrings and comments: `python scripts/docs/prose.py [--lines]`.

It prints the uses of each phrase per 10,000 words, for the package and for Diffrax. `--lines` prints where they are.
"""

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Each is grammatical, and reads as translated where it is frequent.
PHRASES = {
    "what": re.compile(r"\bwhat\b", re.IGNORECASE),
    "say": re.compile(r"\b(say|says|said)\b", re.IGNORECASE),
    "tell": re.compile(r"(?<!`)\b(tell|tells|told)\b", re.IGNORECASE),
    "of which": re.compile(r"\bof (which|whose|whom)\b", re.IGNORECASE),
    "so many": re.compile(r"\b(so|as) (many|much|few)\b", re.IGNORECASE),
}


class Prose(NamedTuple):
    """A docstring or a comment, and the line at which it begins."""

    line: int
    text: str


def read_prose(source: str) -> Iterator[Prose]:
    """Yields the docstrings of a module, then its comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)) is not None:
            yield Prose(node.body[0].lineno, text)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Prose(token.start[0], token.string)


def read_package(folder: Path) -> dict[Path, list[Prose]]:
    """Reads the prose of all files below a folder."""
    return {path: list(read_prose(path.read_text())) for path in sorted(folder.rglob("*.py"))}


def count_phrases(prose: list[Prose]) -> dict[str, float]:
    """Counts the uses of each phrase per 10,000 words."""
    words = sum(len(part.text.split()) for part in prose)
    return {
        name: 1e4 * sum(len(pattern.findall(part.text)) for part in prose) / max(words, 1)
        for name, pattern in PHRASES.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", action="store_true")
    package = read_package(ROOT / "node_fit")
    if parser.parse_args().lines:
        for path, parts in package.items():
            for line, text in parts:
                for name in (name for name, pattern in PHRASES.items() if pattern.search(text)):
                    print(f"{path.relative_to(ROOT)}:{line}: {name}")
    spec = find_spec("diffrax")
    assert spec is not None and spec.origin is not None
    columns = [package, read_package(Path(spec.origin).parent)]
    rates = [count_phrases([part for parts in column.values() for part in parts]) for column in columns]
    print("| per 10,000 words | node_fit | Diffrax |\n|---|---|---|")
    for name in PHRASES:
        print(f"| {name} | {rates[0][name]:.1f} | {rates[1][name]:.1f} |")


if __name__ == "__main__":
    main()

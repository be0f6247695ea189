"""Prints the tables of docs/recipes.md of the candidates that are tried where a first fit is not good.

python scripts/docs/candidates.py            # prints the tables
python scripts/docs/candidates.py --write    # and puts them into the page
"""

import sys
from pathlib import Path

from node_fit.fitting.candidates import CANDIDATES_BY_KIND

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
BEGIN, END = "<!-- candidates -->\n", "<!-- end of candidates -->\n"


def tables() -> str:
    candidates = {each.name: each for several in CANDIDATES_BY_KIND.values() for each in several}
    rows = [("candidate", "what it is", "tried if"), ("---",) * 3]
    rows += [(each.name, each.what, each.when) for each in candidates.values()]
    orders = [("record", "candidates, in this order"), ("---",) * 2]
    orders += [(kind, "; ".join(each.name for each in several)) for kind, several in CANDIDATES_BY_KIND.items()]
    return "\n".join("".join(f"| {' | '.join(row)} |\n" for row in table) for table in (orders, rows))


def with_tables(page: str) -> str:
    """The page with the tables between their marks."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + tables() + END + rest.split(END)[1]


if __name__ == "__main__":
    print(tables(), end="")
    if "--write" in sys.argv:
        PAGE.write_text(with_tables(PAGE.read_text()))

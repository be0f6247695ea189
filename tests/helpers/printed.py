"""What pages quote of a program's output, beside what it prints.

A quote is a block of text under an example in Python, or under `<!-- printed by: COMMAND -->`. It is the whole output,
or, if a line of it is `...`, some of its lines in their order.

Lines that break a silence, with how long something takes so far, come as the machine is busy, and don't count.

Last digits, durations and the steps of an optimizer differ between machines. So words have to be the same, and numbers
may differ by a fifth, or both be below a thousandth, where they are errors of solvers and of rounding. Durations,
counts of steps and names of runs may be any.
"""

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_DIFFERENCE, ROUNDING = 0.2, 1e-3
GAP = "..."
NUMBER = re.compile(r"(?<![\w.])([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?![\w])")
FREE = re.compile(r"\d[\d.,]* (?=s\b|steps\b|damped\b|processor\b)|\S*outputs/\S+/")
WAITING = re.compile(r", \d+ s so far$")
EXAMPLE = re.compile(r"```python\n(?P<program>.*?)```\n+```text\n(?P<quote>.*?)```", re.DOTALL)
COMMAND = re.compile(r"<!-- printed by: python -m (?P<program>[^\n]*) -->\n```text\n(?P<quote>.*?)```", re.DOTALL)


class Quote(NamedTuple):
    """A block of a page, and the program or command that prints it."""

    page: Path
    program: str
    text: str


def find_quotes(pages: list[Path], pattern: re.Pattern) -> Iterator[Quote]:
    """The quotes of some pages, under examples (`EXAMPLE`) or commands (`COMMAND`)."""
    for page in pages:
        for block in pattern.finditer(page.read_text()):
            yield Quote(page, block["program"], block["quote"])


def lines_of(output: str) -> list[str]:
    """The lines that a program prints on any machine."""
    return [line for line in output.splitlines() if not WAITING.search(line)]


def is_alike(quoted: str, printed: str) -> bool:
    """Whether two lines have the same words, and numbers that are close to each other."""
    ours, theirs = (NUMBER.split(FREE.sub("", line)) for line in (quoted, printed))
    words = [[" ".join(part.split()) for part in line[::2]] for line in (ours, theirs)]
    return words[0] == words[1] and all(map(is_close, ours[1::2], theirs[1::2]))


def is_close(quoted: str, printed: str) -> bool:
    one, other = (float(number.replace(",", "")) for number in (quoted, printed))
    size = max(abs(one), abs(other))
    return size < ROUNDING or abs(one - other) <= MAX_DIFFERENCE * size


def find_stale_line(quote: str, output: str) -> str | None:
    """The first line of a quote that the program does not print, or, if nothing is left out, of the output that the
    quote lacks; None if the quote is true."""
    quoted, printed = quote.splitlines(), lines_of(output)
    if GAP not in quoted:
        pairs = zip(quoted, printed, strict=False)
        longer = (quoted if len(quoted) > len(printed) else printed)[min(len(quoted), len(printed)) :]
        return next((line for line, other in pairs if not is_alike(line, other)), next(iter(longer), None))
    lines = iter(printed)
    return next((line for line in quoted if line != GAP and not any(is_alike(line, each) for each in lines)), None)


def renew(quote: str, output: str) -> str:
    """The quote as the program prints it today: all lines, or those most similar to the lines that were quoted."""
    quoted, printed = quote.splitlines(), lines_of(output)
    if GAP not in quoted:
        return "".join(f"{line}\n" for line in printed)
    renewed: list[str] = []
    for line in quoted:
        similar = [] if line == GAP else difflib.get_close_matches(line, printed, n=1, cutoff=0.3)
        renewed += [GAP] if line == GAP else similar
        if similar:
            printed = printed[printed.index(similar[0]) + 1 :]
    return "\n".join(renewed) + "\n"


def rewrite(quote: Quote, output: str, pages: list[Path]) -> None:
    """Renews a quote on all pages that have it."""
    for page in pages:
        text = page.read_text()
        page.write_text(text.replace(f"```text\n{quote.text}```", f"```text\n{renew(quote.text, output)}```"))

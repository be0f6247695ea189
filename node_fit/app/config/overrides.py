"""Overrides as words of a command: their values as Python objects, and objects as words."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from ...runtime.serialization import is_json, is_list

PAIRS = {"[": "]", "{": "}", "(": ")"}


def value_of(word: str) -> object:
    """Returns the value of an override, or `None` if it can't be read."""
    try:
        return OverridesParser.create().parse_override(word).value()
    except HydraException:
        return None


def texts_in(value: object) -> Iterator[str]:
    for child in value.values() if is_json(value) else value if is_list(value) else ():
        yield from texts_in(child)
    if isinstance(value, str):
        yield str(value)


def as_value(value: object) -> str:
    """Formats a string, a number, or a list or mapping of these as the value of an override."""
    if isinstance(value, Mapping):
        value = dict(cast(Mapping[str, object], value))
    if is_json(value):
        return f"{{{','.join(f'{as_value(str(name))}:{as_value(item)}' for name, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(as_value(item) for item in cast(Sequence[object], value))}]"
    if not isinstance(value, str):
        return "null" if value is None else str(value)
    if re.fullmatch(r"[A-Za-z_/.][\w/.-]*", value, re.ASCII) and isinstance(value_of(f"key={value}"), str):
        return value
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', value).replace("${", "\\${")
    return f'"{escaped}"'


def quoted_words(words: Sequence[str], wrong: str) -> str | None:
    """Returns a shell-quoted form of an override that can't be read, or `None` if quotes do not help.

    **Arguments:**

    - `words`: the words of the command; a blank in a value splits it into several.
    - `wrong`: the word that can't be read.
    """
    following = list(words[list(words).index(wrong) + 1 :]) if wrong in words else []
    joined = wrong
    while depth(joined) > 0 and following:
        joined += f" {following.pop(0)}"
    key, equals, value = joined.partition("=")
    better = f"{key}={with_quotes(value.strip())}"
    if not equals or not value.strip() or depth(joined) or value_of(better) is None:
        return None
    return shlex.quote(better)


def depth(text: str) -> int:
    return sum(text.count(opening) - text.count(closing) for opening, closing in PAIRS.items())


def with_quotes(value: str) -> str:
    """Adds quotes around the parts of a value that Hydra can't read without them."""
    inner = value[1:-1]
    if value[:1] == "[" and value[-1:] == "]":
        return f"[{','.join(with_quotes(item) for item in split_items(inner))}]"
    if value[:1] == "{" and value[-1:] == "}":
        pairs = (item.partition(":")[::2] for item in split_items(inner))
        return f"{{{', '.join(f'{name.strip()}: {with_quotes(item.strip())}' for name, item in pairs)}}}"
    return value if value and value_of(f"key={value}") is not None else as_value(value)


def split_items(text: str) -> list[str]:
    """Splits a string at its commas, except within brackets."""
    items, level = [""], 0
    for letter in text:
        level += (letter in PAIRS) - (letter in PAIRS.values())
        if letter == "," and level == 0:
            items.append("")
        else:
            items[-1] += letter
    return [item.strip() for item in items]

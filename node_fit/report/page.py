"""A page as one HTML file: a template, its style and scripts, Plotly and the data, all inside of the file."""

import base64
import functools
import gzip
import json
import math
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runtime.placement import ArrayLike
from ..runtime.serialization import __version__
from ..storage.files import write_file

if TYPE_CHECKING:
    import jinja2
    import markupsafe

# Of what JSON can hold, to any depth.
NestedList = list[Any]
TEMPLATES = Path(__file__).parent / "templates"
# Significant digits of numbers that are drawn.
DIGITS = 6


def write_page(path: Path, template: str, data: dict[str, object], **words: object) -> Path:
    """Writes a page; returns `path`.

    **Arguments:**

    - `path`: the HTML file.
    - `template`: its name without a suffix. A script and a template of this name are in `templates/`.
    - `data`: what the scripts draw, as plain values that JSON can hold.
    - `words`: what the template shows. It is escaped, so names may hold any characters.
    """
    text = (
        environment()
        .get_template(f"{template}.html")
        .render(
            words,
            version=__version__,
            style=source("style.css"),
            scripts=source("charts.js") + source(f"{template}.js"),
            data=squeeze(json.dumps(data, allow_nan=False, separators=(",", ":")).encode()),
            plotly=plotly(),
        )
    )
    write_file(path, text.encode())
    return path


@functools.cache
def environment() -> "jinja2.Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "figure": format_figure,
        "explained": explain_term,
        "counted": lambda number: f"{number:,}",
        "short": shorten,
    }
    return made


def source(name: str) -> "markupsafe.Markup":
    """A style or script of ours, which is not escaped."""
    from markupsafe import Markup

    return Markup((TEMPLATES / name).read_text())


@functools.cache
def plotly() -> str:
    """Plotly's script. Compressed, it is 2 MB instead of 5; every current browser can unpack it."""
    return squeeze(resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes())


def squeeze(content: bytes) -> str:
    """Compressed content as text. Equal contents give equal texts."""
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()


def format_figure(number: float | int | None) -> str:
    """A number with three digits; a dash for none."""
    if number is None:
        return "–"
    return f"{number:,}" if isinstance(number, int) else f"{number:.3g}"


def explain_term(r2: float | None) -> str:
    """R² with as many digits as tell it from 1."""
    if r2 is None or not 0.9 < r2 < 1:
        return format_figure(r2)
    return f"{r2:.{min(math.ceil(-math.log10(1 - r2)) + 1, 7)}f}"


def shorten(text: str) -> str:
    """A text as it is or, if it is a number with many digits, with four of them."""
    try:
        return text if len(text) <= 8 else f"{float(text):.4g}"
    except ValueError:
        return text


def jsonable_numbers(values: ArrayLike, digits: int = DIGITS) -> NestedList:
    """An array as nested lists of rounded numbers, with `None` for those that are not finite."""
    exact = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(exact) & (np.abs(exact) < 1e30)
    known = np.where(finite, exact, 1.0)
    places = np.clip(digits - 1 - np.floor(np.log10(np.where(known == 0, 1.0, np.abs(known)))), -300, 300)
    # Powers of ten up to 22 are exact, so the quotient is the double nearest to the rounded number.
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    rounded = np.round(known * up / down) * down / up
    return with_none(rounded, finite)


def jsonable_times(ts: ArrayLike) -> NestedList:
    """Times as a list, rounded to a millionth of their span; these may be large, such as seconds since 1970."""
    exact = np.asarray(ts, dtype=np.float64)
    span = float(np.ptp(exact)) if exact.size else 0.0
    places = int(np.clip(6 - np.floor(np.log10(span)), -300, 300)) if span > 0 else 9
    return with_none(np.round(exact, places), np.isfinite(exact))


def with_none(values: np.ndarray, known: np.ndarray) -> NestedList:
    if known.all():
        return values.tolist()
    found = values.astype(object)
    found[~known] = None
    return found.tolist()

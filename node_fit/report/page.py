"""Writes a page as one HTML file with its template, style, scripts, Plotly and data."""

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

# A list of JSON values, nested to any depth.
NestedList = list[Any]
TEMPLATES = Path(__file__).parent / "templates"
# Significant digits of drawn numbers.
DIGITS = 6


def write_page(path: Path, template: str, data: dict[str, object], **words: object) -> Path:
    """Writes a page; returns `path`.

    **Arguments:**

    - `path`: the HTML file.
    - `template`: its name without a suffix. A script and a template of this name are in `templates/`.
    - `data`: the scripts' data, as plain JSON values.
    - `words`: the template's variables. They are escaped, so names can contain any characters.
    """
    text = (
        environment()
        .get_template(f"{template}.html")
        .render(
            words,
            version=__version__,
            style=source("style.css"),
            scripts=source("charts.js") + source(f"{template}.js"),
            data=compress(json.dumps(data, allow_nan=False, separators=(",", ":")).encode()),
            plotly=plotly(),
        )
    )
    write_file(path, text.encode())
    return path


@functools.cache
def environment() -> "jinja2.Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    template_environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template_environment.filters |= {
        "figure": format_figure,
        "explained": explain_term,
        "counted": lambda number: f"{number:,}",
        "short": shorten,
    }
    return template_environment


def source(name: str) -> "markupsafe.Markup":
    """Reads a style or script of this package, which is not escaped."""
    from markupsafe import Markup

    return Markup((TEMPLATES / name).read_text())


@functools.cache
def plotly() -> str:
    """Returns Plotly's script, compressed from 5 MB to 2 MB; every current browser can unpack it."""
    return compress(resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes())


def compress(content: bytes) -> str:
    """Compresses content to text, deterministically."""
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()


def format_figure(number: float | int | None) -> str:
    """Formats a number with three digits; None becomes a dash."""
    if number is None:
        return "–"
    return f"{number:,}" if isinstance(number, int) else f"{number:.3g}"


def explain_term(r2: float | None) -> str:
    """Formats R² with enough digits to distinguish it from 1."""
    if r2 is None or not 0.9 < r2 < 1:
        return format_figure(r2)
    return f"{r2:.{min(math.ceil(-math.log10(1 - r2)) + 1, 7)}f}"


def shorten(text: str) -> str:
    """Shortens long numbers to four digits; other text is unchanged."""
    try:
        return text if len(text) <= 8 else f"{float(text):.4g}"
    except ValueError:
        return text


def jsonable_numbers(values: ArrayLike, digits: int = DIGITS) -> NestedList:
    """Converts an array to nested lists of rounded numbers, with `None` for non-finite ones."""
    exact = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(exact) & (np.abs(exact) < 1e30)
    filled = np.where(finite, exact, 1.0)
    places = np.clip(digits - 1 - np.floor(np.log10(np.where(filled == 0, 1.0, np.abs(filled)))), -300, 300)
    # Powers of ten up to 22 are exact, so the quotient is the double nearest to the rounded number.
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    rounded = np.round(filled * up / down) * down / up
    return with_none(rounded, finite)


def jsonable_times(ts: ArrayLike) -> NestedList:
    """Converts times to a list, rounded to a millionth of their span. They can be large, such as Unix times."""
    exact = np.asarray(ts, dtype=np.float64)
    span = float(np.ptp(exact)) if exact.size else 0.0
    places = int(np.clip(6 - np.floor(np.log10(span)), -300, 300)) if span > 0 else 9
    return with_none(np.round(exact, places), np.isfinite(exact))


def with_none(values: np.ndarray, known: np.ndarray) -> NestedList:
    if known.all():
        return values.tolist()
    numbers = values.astype(object)
    numbers[~known] = None
    return numbers.tolist()

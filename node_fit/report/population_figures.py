"""The fitted population on a run's page: variances of the constants, noise, and plots of checks."""

import base64
from collections.abc import Mapping
from pathlib import Path

from ..runtime.serialization import Json, is_json

# Titles of check plots, by file name prefix; other files and larger ones are left out [bytes].
PICTURES = {
    "predictive_check": "Quantiles of the measurements, and where simulated studies have them",
    "observed": "Measured against predicted values",
}
PNG, LARGEST_PICTURE, MOST_PICTURES = b"\x89PNG\r\n\x1a\n", 2_000_000, 12


def describe_population(summary: Mapping[str, object], folder: Path) -> Json | None:
    """Builds the page's data for a population; None for other runs or an invalid `summary.json`.

    **Arguments:** `folder`: the run's directory, which can be untrusted.
    """
    population = summary.get("population")
    if not is_json(population):
        return None
    errors, occasions = (
        mapping_in(population, "standard_errors"),
        mapping_in(mapping_in(population, "occasions"), "variances"),
    )
    effects = [
        {
            "name": name,
            "variance": variance,
            "error": number_of(mapping_in(errors, "variances"), name),
            "shrinkage": number_of(mapping_in(population, "shrinkage"), name),
            "occasion": number_of(occasions, name),
        }
        for name, variance in numbers_of(mapping_in(population, "variances"))
    ]
    noise = [
        {
            "name": f"{channel} {name}",
            "value": value,
            "error": number_of(mapping_in(mapping_in(errors, "noise"), channel), name),
        }
        for channel, parameters in mapping_in(population, "noise").items()
        if is_json(parameters)
        for name, value in numbers_of(parameters)
    ]
    facts = {key: number_of(population, key) for key in ("objective", "condition_number", "quadrature", "weights")}
    return {
        "effects": effects,
        "has_occasions": bool(occasions),
        "noise": noise,
        "pictures": read_pictures(folder / "plots"),
        **facts,
    }


def mapping_in(content: Mapping[str, object], key: str) -> Json:
    """Returns the mapping under a key, or an empty one if the value is not a mapping."""
    child = content.get(key)
    return child if is_json(child) else {}


def numbers_of(content: Mapping[str, object]) -> list[tuple[str, float]]:
    """Returns the names in a mapping whose values are numbers, with the numbers."""
    return [(name, number) for name in content if (number := number_of(content, name)) is not None]


def number_of(content: Mapping[str, object], key: str) -> float | None:
    """Returns the number under a key; None if the value is not a number."""
    value = content.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def read_pictures(folder: Path) -> list[Json]:
    """Reads the check plots in a folder as text to embed in the page."""
    pictures: list[Json] = []
    for begin, title in PICTURES.items():
        for path in sorted(folder.glob(f"{begin}*.png"))[:MOST_PICTURES]:
            if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST_PICTURE:
                continue
            content = path.read_bytes()
            if content.startswith(PNG):
                channel = path.stem.removeprefix(begin).removeprefix("_")
                pictures.append(
                    {"title": f"{title}{f', {channel}' if channel else ''}", "png": base64.b64encode(content).decode()}
                )
    return pictures

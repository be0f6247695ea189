"""A fitted population on the page of its run: how constants differ, the noise, and pictures of checks."""

import base64
from collections.abc import Mapping
from pathlib import Path

from ..runtime.serialization import Json, is_json

# Pictures of checks, by how their files begin, each with its title; larger files, or others, are left out [bytes].
PICTURES = {
    "predictive_check": "Quantiles of the measurements, and where simulated studies have them",
    "observed": "Measured against predicted values",
}
PNG, LARGEST_PICTURE, MOST_PICTURES = b"\x89PNG\r\n\x1a\n", 2_000_000, 12


def describe_population(summary: Mapping[str, object], folder: Path) -> Json | None:
    """What the page shows of a population; None of another run, or where `summary.json` holds something else.

    **Arguments:** `folder`: the run's directory, perhaps a stranger's.
    """
    found = summary.get("population")
    if not is_json(found):
        return None
    errors, occasions = mapping_in(found, "standard_errors"), mapping_in(mapping_in(found, "occasions"), "variances")
    effects = [
        {
            "name": name,
            "variance": variance,
            "error": number_of(mapping_in(errors, "variances"), name),
            "shrinkage": number_of(mapping_in(found, "shrinkage"), name),
            "occasion": number_of(occasions, name),
        }
        for name, variance in numbers_of(mapping_in(found, "variances"))
    ]
    noise = [
        {
            "name": f"{channel} {name}",
            "value": value,
            "error": number_of(mapping_in(mapping_in(errors, "noise"), channel), name),
        }
        for channel, own in mapping_in(found, "noise").items()
        if is_json(own)
        for name, value in numbers_of(own)
    ]
    facts = {key: number_of(found, key) for key in ("objective", "condition_number", "quadrature", "weights")}
    return {
        "effects": effects,
        "has_occasions": bool(occasions),
        "noise": noise,
        "pictures": read_pictures(folder / "plots"),
        **facts,
    }


def mapping_in(content: Mapping[str, object], key: str) -> Json:
    """What a mapping holds under a key, if that is a mapping; else an empty one."""
    found = content.get(key)
    return found if is_json(found) else {}


def numbers_of(content: Mapping[str, object]) -> list[tuple[str, float]]:
    """The names in a mapping that have numbers, and these."""
    return [(name, number) for name in content if (number := number_of(content, name)) is not None]


def number_of(content: Mapping[str, object], key: str) -> float | None:
    """A number of a mapping; None if there is none."""
    found = content.get(key)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def read_pictures(folder: Path) -> list[Json]:
    """The pictures of checks in a folder, as text for a page, which then needs no other file."""
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

"""Storage of a fitted population in a folder: the model of a typical subject, the distribution and the subjects."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from ..data.domains import Bounds
from ..runtime.serialization import Json, is_json, is_list
from ..storage.files import write_file
from ..storage.model_file import load, save
from .effects import FIRST_VARIANCE, KINDS, Coordinate, Covariances
from .likelihood import POPULATION_METHODS, Structure
from .noise import NOISE_KINDS, ResidualNoise
from .prediction import KnownPopulation
from .subjects import weights_as_coordinates

MODEL_NAME, POPULATION_NAME = "model.safetensors", "population.json"
SCHEMA = 1
# Maximum number of subjects or parameters, checked before the numbers of a file are read.
MAX_SUBJECTS, MAX_RECORDS, MAX_PARAMETERS, MAX_SOLVER_STEPS = 1_000_000, 1_000, 1_000, 64


def write_population(population: KnownPopulation, folder: Path) -> None:
    """Writes the model and the population."""
    structure = population.structure
    content: Json = {
        "schema": SCHEMA,
        "method": population.method,
        "steps": population.steps,
        "coordinates": [[c.name, list(c.bounds), c.kind] for c in structure.coordinates if not c.is_weight],
        "occasions": [structure.coordinates[at].name for at in structure.occasions],
        "records": [list(own) for own in population.records],
        "blocks": [list(block) for block in structure.covariances.blocks],
        "noise": dict(zip(structure.noise.channels, structure.noise.kinds, strict=True)),
        "parameters": population.x.tolist(),
        "subjects": list(population.names),
        "modes": population.z.tolist(),
        "spread": population.spread.tolist(),
    }
    save(population.model, folder / MODEL_NAME)
    write_file(folder / POPULATION_NAME, (json.dumps(content) + "\n").encode())


def holds_population(folder: Path) -> bool:
    return (folder / POPULATION_NAME).is_file()


def read_population(folder: Path, *, extensions: Sequence[str] = ()) -> KnownPopulation:
    """Reads a population written by `write_population`; the file is not trusted.

    **Raises:** `ValueError` if the file is damaged or does not belong to the model.
    """
    path = folder / POPULATION_NAME
    model = load(folder / MODEL_NAME, extensions=extensions).typical
    try:
        return parse_population(json.loads(path.read_text()), model)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path} is no population of this model ({error}); restore the file.") from None


def parse_population(content: object, model: object) -> KnownPopulation:
    from ..model.neural_ode import NeuralODE

    if not is_json(content) or content["schema"] != SCHEMA or not isinstance(model, NeuralODE):
        raise ValueError(f"its schema is not {SCHEMA}")
    coordinates = tuple(parse_coordinate(entry) for entry in read_list(content["coordinates"]))
    if [c.name for c in coordinates] != [name for name in model.constants() if name in {c.name for c in coordinates}]:
        raise ValueError("its constants are not the model's")
    effects = sum(c.kind is not None for c in coordinates)
    # Files of earlier versions have no occasions.
    occasions = [str(name) for name in read_list(content.get("occasions", []))]
    if not set(occasions) <= {c.name for c in coordinates if c.kind is not None}:
        raise ValueError("its occasions are not of its effects")
    marked = (replace(c, occasion_variance=FIRST_VARIANCE if c.name in occasions else None) for c in coordinates)
    coordinates = (*marked, *weights_as_coordinates(model))
    blocks = tuple(tuple(read_indices(block)) for block in read_list(content["blocks"]))
    if sorted(i for block in blocks for i in block) != list(range(effects)):
        raise ValueError("its blocks are not of its effects")
    noise = content["noise"]
    if not is_json(noise) or tuple(noise) != model.states or not all(kind in NOISE_KINDS for kind in noise.values()):
        raise ValueError("its noise is not of the model's channels")
    kinds = tuple(str(kind) for kind in noise.values())
    names = tuple(str(name) for name in read_list(content["subjects"]))
    records = tuple(tuple(map(str, read_list(own))) for own in read_list(content.get("records", [])))
    if len(records) not in (0, len(names)) or not all(records):
        raise ValueError("its records are not of its subjects")
    most, has_occasions = max(map(len, records), default=1), bool(records)
    noises = ResidualNoise(model.states, kinds, ((),) * len(kinds))
    structure = Structure(coordinates, Covariances(blocks), noises, records=most, has_occasions=has_occasions)
    if len(names) > MAX_SUBJECTS or most > MAX_RECORDS or structure.ends[2] > MAX_PARAMETERS:
        raise ValueError("it is too large")
    method, steps = content["method"], content["steps"]
    if method not in POPULATION_METHODS or not isinstance(steps, int) or not 0 < steps <= MAX_SOLVER_STEPS:
        raise ValueError("its method or its steps make no sense")
    count = len(names)
    return KnownPopulation(
        model,
        structure,
        read_shaped_numbers(content["parameters"], (structure.ends[2],)),
        str(method),
        names,
        read_shaped_numbers(content["modes"], (count, structure.total_effects)),
        read_shaped_numbers(content["spread"], (count, structure.total_effects, structure.total_effects)),
        steps,
        records,
    )


def parse_coordinate(entry: object) -> Coordinate:
    name, bounds, kind = read_list(entry)
    lower, upper = (None if bound is None else float(cast(float, bound)) for bound in read_list(bounds))
    finite = all(bound is None or math.isfinite(bound) for bound in (lower, upper))
    if not isinstance(name, str) or not (kind is None or kind in KINDS) or not finite:
        raise ValueError("a constant makes no sense")
    pair: Bounds = (lower, upper)
    return Coordinate(name, pair, kind)


def read_list(value: object) -> list[object]:
    if not is_list(value):
        raise ValueError("a list is missing")
    return list(value)


def read_indices(value: object) -> list[int]:
    indices = [index for index in read_list(value) if isinstance(index, int)]
    if len(indices) != len(read_list(value)):
        raise ValueError("an index is missing")
    return indices


def read_shaped_numbers(value: object, shape: tuple[int, ...]) -> np.ndarray:
    numbers = np.asarray(value, np.float64).reshape(shape) if 0 in shape else np.asarray(value, np.float64)
    if numbers.shape != shape or not np.isfinite(numbers).all():
        raise ValueError(f"numbers of the shape {shape} are missing")
    return numbers
